"""Errors that outlive the call they came from hold nothing of it, and do not grow when they are raised again.

An error has the places it went through, and those have what they held: the frames of a group, and its callers.
"""

from __future__ import annotations

import errno
import gc
import traceback
import weakref
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pytest

from holdfast import Store
from holdfast.errors import DiskFull, HoldfastError, StoreFailed
from holdfast.model.frame import Entry, PlainFrame
from holdfast.store.lane import Lane
from holdfast.testing import CrashFilesystem

BATCH = pa.record_batch({"n": [1]})


def refused_frame(store: Store) -> BaseException | None:
    return store.commit_frame_async([Entry("trades", BATCH)], lane=Lane()).exception()


def refused_train(store: Store) -> BaseException | None:
    frame = PlainFrame("trades", BATCH.schema, bytes(BATCH.serialize()), 1, None)
    train = store.commit_train([frame, frame], lane=Lane())
    assert train is not None
    return train.answers[0].refusal


def failure(commit: Callable[[], object]) -> HoldfastError:
    with pytest.raises(HoldfastError) as caught:
        commit()
    return caught.value


@pytest.mark.guarantee("G11")
@pytest.mark.parametrize("refused", [refused_frame, refused_train])
def test_what_a_full_disk_refused_is_given_back_to_the_memory(refused: Callable[[Store], BaseException | None]) -> None:
    disk = CrashFilesystem()
    with Store.open(Path("/store"), filesystem=disk, inline=True) as store:
        store.commit("trades", BATCH)
        disk.fail_when(lambda operation, _path: errno.ENOSPC if operation in {"pwritev", "allocate"} else None)
        error = refused(store)
        assert isinstance(error, DiskFull)
        left = weakref.ref(error)
        del error
        gc.collect()
        assert left() is None
        disk.stop_failing()


def test_failure_of_a_store_does_not_grow_with_every_call_that_gets_it() -> None:
    disk = CrashFilesystem()
    store = Store.open(Path("/store"), filesystem=disk, inline=True)
    store.commit("trades", BATCH)
    disk.fail_when(lambda operation, _path: errno.EIO if operation == "sync_data" else None)
    first = failure(lambda: store.commit("trades", BATCH))
    assert isinstance(first, StoreFailed)
    depths = []
    for _ in range(5):
        assert failure(lambda: store.commit("trades", BATCH)) is first
        depths.append(len(traceback.extract_tb(first.__traceback__)))
    assert len(set(depths)) == 1
    store.close()
