"""Whether rows are those that a key was used for: compared with what is stored, of every type that a store takes."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest

from holdfast import Store
from holdfast.model.frame import Durability, FrameReceipt, Receipt
from holdfast.model.positions import CommittedId, Seq
from holdfast.server.admin.envelope import Refused
from holdfast.server.admin.samerows import check_same
from holdfast.testing import CrashFilesystem

ROWS = {
    "n": pa.array([1, 2, 3]),
    "x": pa.array([0.5, float("nan"), None]),
    "view": pa.array(["a" * 30, None, "c"], pa.string_view()),
    "views": pa.array([["a" * 30], None, []], pa.list_(pa.binary_view())),
    "word": pa.array(["a", "b", "a"]).dictionary_encode(),
}


@pytest.fixture
def store() -> Store:
    return Store.open(Path("/store"), filesystem=CrashFilesystem(), inline=True)


def stored(store: Store, batch: pa.RecordBatch) -> FrameReceipt:
    found = store.commit("t", batch)
    return FrameReceipt((found,), duplicate=False, durability=found.durability)


def is_same(store: Store, batch: pa.RecordBatch, receipt: FrameReceipt) -> bool:
    try:
        check_same(store, "t", batch, receipt)
    except Refused as refusal:
        return refusal.code != "idempotency_key_reused"
    return True


@pytest.mark.parametrize("name", ROWS)
def test_rows_of_every_type_equal_themselves_and_no_others(store: Store, name: str) -> None:
    batch = pa.record_batch({name: ROWS[name]})
    stored(store, batch)
    receipt = stored(store, batch)
    assert is_same(store, batch, receipt)
    assert not is_same(store, batch.slice(0, 2), receipt)
    assert not is_same(store, pa.concat_batches([batch.slice(1), batch.slice(0, 1)]), receipt)


def test_rows_of_several_segments_are_compared_each_with_its_place(store: Store) -> None:
    batch = pa.record_batch({name: ROWS[name] for name in ("n", "view")})
    receipt = stored(store, batch.slice(0, 2))
    store.flush()
    last = stored(store, batch.slice(2)).entries[0]
    whole = Receipt("t", receipt.entries[0].first_seq, last.last_seq, CommittedId(1), False, Durability.SYNCED)
    receipt = FrameReceipt((whole,), duplicate=True, durability=Durability.SYNCED)
    assert is_same(store, batch, receipt)
    assert not is_same(store, pa.concat_batches([batch.slice(0, 2), batch.slice(0, 1)]), receipt)


def test_rows_that_are_gone_or_were_never_stored_are_believed(store: Store) -> None:
    nothing = Receipt("t", Seq(0), Seq(0), CommittedId(0), True, Durability.SYNCED)
    batch = pa.record_batch({"n": [1]})
    assert is_same(store, batch, FrameReceipt((nothing,), duplicate=True, durability=Durability.SYNCED))
    assert is_same(store, batch, FrameReceipt((), duplicate=True, durability=Durability.SYNCED))
    receipt = stored(store, batch)
    store.remove_channel("t")
    assert is_same(store, pa.record_batch({"n": [2]}), receipt)
