"""A store that is only looked at gives its events in whatever state it is, or says why not; nothing in it changes."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pyarrow as pa
import pytest

import holdfast
from holdfast import Store, reading
from holdfast.disk.appendlog import read_log_file
from holdfast.disk.local import LocalFilesystem
from holdfast.errors import CorruptData, Locked, OnlyInTier
from holdfast.store.inspect import events as module
from holdfast.store.inspect.events import StoreEvents, store_events
from holdfast.testing.objects import MemoryObjects
from tests.unit.store.left_behind import FRAMES, flip, logs, make_store, picture
from tests.unit.tier.test_local_copies import filled

ORDERS = [number for fsn in range(1, FRAMES + 1) for number in (fsn, -fsn)] + [0]
TRADES = [fsn * 100 + n for fsn in range(1, FRAMES + 1) for n in range(60)]


@pytest.fixture
def store(tmp_path: Path) -> Path:
    return make_store(tmp_path / "store")


def ids_of(found: StoreEvents, channel: str) -> list[int]:
    return [number for batch in found.read(channel, columns=["id"]) for number in batch.column(0).to_pylist()]


def ids(directory: Path, channel: str) -> list[int]:
    with store_events(directory) as found:
        return ids_of(found, channel)


def end_of(log: Path) -> int:
    """Where its last record ends."""
    return read_log_file(LocalFilesystem(), log, last=True).end_offset


@contextmanager
def held(directory: Path) -> Iterator[subprocess.Popen[bytes]]:
    """The lock names a process that lives; it ends with its input."""
    holder = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    (directory / "lock").write_text(str(holder.pid))
    try:
        yield holder
    finally:
        if holder.poll() is None:
            holder.communicate(b"\n")


@pytest.mark.parametrize("closed", [False, True], ids=["killed", "closed"])
def test_events_of_segments_and_log_come_without_gap_or_repeat(tmp_path: Path, closed: bool) -> None:
    directory = make_store(tmp_path / "store", closed=closed)
    before = picture(directory)
    with store_events(directory) as found:
        assert found.channels() == ["orders", "trades"]
        assert found.schema("trades").names == ["id", "text"]
        assert (ids_of(found, "trades"), ids_of(found, "orders")) == (TRADES, ORDERS)
    assert picture(directory) == before


def test_torn_end_of_the_log_is_left_out_and_stays_where_it_is(store: Path) -> None:
    last = logs(store)[-1]
    os.truncate(last, end_of(last) - 20)
    before = picture(store)
    assert (ids(store, "trades"), ids(store, "orders")) == (TRADES, ORDERS[:-1])
    assert picture(store) == before


@pytest.mark.guarantee("G9")
def test_damaged_log_is_an_error_with_its_file_and_nothing_is_changed(store: Path) -> None:
    first = logs(store)[0]
    flip(first, end_of(first) - 200)
    before = picture(store)
    with pytest.raises(CorruptData) as caught, store_events(store):
        pass
    assert caught.value.file == first
    assert picture(store) == before


def test_end_of_a_log_that_somebody_writes_is_left_out_and_no_damage(store: Path) -> None:
    last = logs(store)[-1]
    flip(last, end_of(last) - 20)
    with pytest.raises(CorruptData), store_events(store):
        pass
    with held(store):
        assert (ids(store, "trades"), ids(store, "orders")) == (TRADES, ORDERS[:-1])


def test_store_that_another_process_has_open_can_be_read(tmp_path: Path) -> None:
    program = (
        "import sys, pyarrow as pa; from holdfast import Store\n"
        "with Store.open(sys.argv[1]) as store:\n"
        "    store.commit('trades', pa.record_batch({'id': [1, 2, 3]})); store.flush()\n"
        "    store.commit('trades', pa.record_batch({'id': [4]})); print('ready', flush=True); input()\n"
    )
    directory = tmp_path / "store"
    command = [sys.executable, "-c", program, str(directory)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as writer:
        assert writer.stdout is not None
        assert writer.stdout.readline() == b"ready\n"
        assert ids(directory, "trades") == [1, 2, 3, 4]
        writer.communicate(b"\n")
    assert writer.returncode == 0
    assert ids(directory, "trades") == [1, 2, 3, 4]


def test_process_that_has_the_store_open_is_told_to_use_it(tmp_path: Path) -> None:
    directory = tmp_path / "store"
    with Store.open(directory) as opened:
        opened.commit("trades", pa.record_batch({"id": [1]}))
        with pytest.raises(Locked) as caught, store_events(directory):
            pass
        assert caught.value.holder_pid == os.getpid()
    assert ids(directory, "trades") == [1]


def test_segment_that_is_only_in_the_tier_is_an_error_of_who_reads_it(tmp_path: Path) -> None:
    rig = filled(tmp_path / "data", MemoryObjects())
    assert rig.remote("a") == [1, 2, 3]
    rig.close()
    with store_events(tmp_path / "data") as found:
        assert sum(batch.num_rows for batch in found.read("a", start=4)) == 1
        with pytest.raises(OnlyInTier):
            list(found.read("a"))


def test_another_picture_is_taken_when_its_writer_stopped_meanwhile(
    store: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What the picture counted on was replaced before it was read, and then nobody has the store open any more."""
    take, pictures = module.store_events, []

    @contextmanager
    def overtaken(directory: Path) -> Iterator[StoreEvents]:
        pictures.append(directory)
        if len(pictures) == 1:
            holder.communicate(b"\n")
            raise FileNotFoundError("evicted")
        with take(directory) as found:
            yield found

    monkeypatch.setattr(module, "store_events", overtaken)
    with held(store) as holder:
        assert holdfast.read("orders", path=store).table.column("id").to_pylist() == ORDERS
    assert len(pictures) == 2
    monkeypatch.setattr(reading, "PICTURES_MAX", 1)
    with held(store) as holder:
        pictures.clear()
        with pytest.raises(FileNotFoundError):
            holdfast.read("orders", path=store)
