"""Messages that become much: decoded and handed over beside the event loop, and stored as one or not at all."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from holdfast.errors import Category
from holdfast.model.frame import Entry
from holdfast.server import ingest
from holdfast.store.store import Store
from holdfast.wire import hfa, qwp
from holdfast.wire.ingest import Frame, FrameReader
from tests.unit.server.harness import LOOP_THREAD, RunningServer, arrow_frame
from tests.unit.server.test_ingest import CAPPED, confirm_everything

SMALL: dict[str, object] = {"ingest.max_batch_size": "256KiB", "ingest.group_max_size": "4MiB"}
SMALL_STORE: dict[str, object] = {
    "frame.max_size": "256KiB",
    "wal.rotation_size": "1MiB",
    "wal.max_size": "8MiB",
    "segment.target_size": "1MiB",
    "memory_limit": "2MiB",
}


class Threads:
    """Which threads read a message to its end, and which handed a frame to the store."""

    def __init__(self) -> None:
        self.read: list[str] = []
        self.committed: list[str] = []


@pytest.fixture
def threads(monkeypatch: pytest.MonkeyPatch) -> Threads:
    noted = Threads()

    class NotingReader(FrameReader):
        def read(self, message: bytes, *, now_us: int, at_once: bool = False) -> Frame | None:
            frame = super().read(message, now_us=now_us, at_once=at_once)
            noted.read.append(threading.current_thread().name)
            return frame

    commit = Store.commit_frame_async

    def noting(store: Store, *args: object, **options: object) -> object:
        noted.committed.append(threading.current_thread().name)
        return commit(store, *args, **options)  # type: ignore[arg-type]

    monkeypatch.setattr(ingest, "FrameReader", NotingReader)
    monkeypatch.setattr(Store, "commit_frame_async", noting)
    return noted


def numbers(first: int, rows: int, *, deferred: bool = False, channel: str = "trades") -> bytes:
    """A QWP message with so many numbers, in 16 bytes each."""
    column = pa.array(np.arange(first, first + rows), pa.int64())
    times = pa.array(np.arange(rows), pa.timestamp("us", "UTC"))
    entries = [Entry(channel, pa.record_batch({"n": column, "timestamp": times}))] if rows else []
    return qwp.encode(entries, None, deferred=deferred)


def gorilla() -> bytes:
    times = pa.array(np.arange(200_000) * 1000, pa.timestamp("us", "UTC"))
    return qwp.encode([Entry("trades", pa.record_batch({"n": times, "timestamp": times}))], None, gorilla=True)


def many_tables() -> bytes:
    one = pa.record_batch({"n": [1], **{f"c{n}": pa.array([n], pa.int8()) for n in range(8)}})
    return qwp.encode([Entry(f"t{n}", one) for n in range(200)], None)


def compressed() -> bytes:
    entry = Entry("trades", pa.record_batch({"n": pa.array(np.zeros(1_000_000, np.int64))}))
    return b"".join(hfa.FrameEncoder(compression="zstd").encode([entry]))


@pytest.mark.guarantee("G11")
@pytest.mark.parametrize("make", [gorilla, many_tables, compressed])
def test_small_message_that_becomes_much_does_not_keep_the_loop(
    tmp_path: Path, threads: Threads, make: Callable[[], bytes]
) -> None:
    raw = make()
    assert len(raw) < 128 << 10
    with RunningServer(tmp_path) as running, running.client() as client:
        client.send(raw)
        client.acknowledged(0)
    assert len(threads.read) == len(threads.committed) == 1
    assert LOOP_THREAD not in threads.read + threads.committed


def test_small_messages_are_handled_on_the_loop(tmp_path: Path, threads: Threads) -> None:
    with RunningServer(tmp_path) as running, running.client() as client:
        for number in range(3):
            client.send(numbers(number, 100))
        client.acknowledged(2)
    assert set(threads.read) == {LOOP_THREAD}
    assert threads.committed[-1] == LOOP_THREAD, "only the first looks for its channel on the disk"


@pytest.mark.guarantee("G11")
def test_small_end_of_a_large_group_does_not_keep_the_loop(tmp_path: Path, threads: Threads) -> None:
    with RunningServer(tmp_path) as running, running.client() as client:
        for number in range(4):
            client.send(numbers(number * 20_000, 20_000, deferred=True))
        client.send(numbers(0, 0))
        client.acknowledged(4)
        assert running.rows("trades") == list(range(80_000))
    assert LOOP_THREAD not in threads.read[-1:] + threads.committed


@pytest.mark.guarantee("G11")
def test_large_frame_that_waits_for_room_is_tried_again_beside_the_loop(tmp_path: Path, threads: Threads) -> None:
    settings: dict[str, object] = {**SMALL, "ingest.write_deadline": "1h"}
    with RunningServer(tmp_path, settings, store=CAPPED) as running, running.client() as client:
        lazy = running.store.subscriber("lazy")
        while not running.ask(lambda: running.server.state.totals.stalls):
            client.send(numbers(0, 15_000, deferred=True))
            client.send(numbers(0, 15_000, deferred=True))
            client.send(numbers(0, 15_000))
        threads.committed.clear()
        while running.ask(lambda: running.server.state.connections[0].acknowledged) < client.sent - 1:
            confirm_everything(lazy)
    assert threads.committed
    assert LOOP_THREAD not in threads.committed


@pytest.mark.guarantee("G11")
def test_small_frame_that_takes_the_disk_is_tried_again_beside_the_loop(tmp_path: Path, threads: Threads) -> None:
    settings: dict[str, object] = {**SMALL, "ingest.write_deadline": "1h"}
    store = {**CAPPED, "channels": {"trades": {"dedup_keys": "n"}}}
    with RunningServer(tmp_path, settings, store=store) as running, running.client() as client:
        lazy = running.store.subscriber("lazy")

        def is_over(*, stalled: bool) -> bool:
            state = running.server.state
            return state.connections[0].acknowledged == client.sent - 1 or (stalled and bool(state.totals.stalls))

        while not running.ask(lambda: running.server.state.totals.stalls):
            client.send(numbers(client.sent * 5000, 5000))
            while not running.ask(lambda: is_over(stalled=True)):
                pass
        while not running.ask(lambda: is_over(stalled=False)):
            confirm_everything(lazy)
    assert len(threads.committed) > client.sent, "the last was tried again"
    assert LOOP_THREAD not in threads.committed


# -- as one, or not at all --------------------------------------------------------------------------------------------


@pytest.mark.guarantee("G1")
def test_message_that_becomes_more_than_an_entry_may_have_is_stored_as_one_frame(tmp_path: Path) -> None:
    rows = 60_000
    symbols = [pa.array(np.arange(rows) % 3).cast(pa.string()).dictionary_encode() for _ in range(3)]
    columns = {"n": pa.array(np.arange(rows), pa.int16(), safe=False), **{f"s{i}": s for i, s in enumerate(symbols)}}
    raw = qwp.encode([Entry("trades", pa.record_batch(columns))], qwp.SymbolDictionary())
    assert len(raw) > 256 << 10
    settings = {"ingest.max_batch_size": "512KiB", "ingest.group_max_size": "8MiB"}
    store = {**SMALL_STORE, "frame.max_size": "512KiB"}
    with RunningServer(tmp_path, settings, store=store) as running, running.client() as client:
        client.send(raw)
        assert client.acknowledged(0) == {"trades": rows}
        stored = pa.Table.from_batches(running.store.read("trades", columns=list(columns))).combine_chunks()
        assert running.store.statistics().frames == 1
    assert stored.nbytes > 512 << 10
    assert stored.to_pylist() == pa.table(columns).to_pylist()


@pytest.mark.guarantee("G1")
def test_group_many_times_larger_than_a_frame_is_stored_as_one(tmp_path: Path) -> None:
    with RunningServer(tmp_path, SMALL, store=SMALL_STORE) as running, running.client() as client:
        for number in range(15):
            client.send(numbers(number * 10_000, 10_000, deferred=True))
        client.send(numbers(0, 0))
        assert client.acknowledged(15) == {"trades": 150_000}
        assert running.rows("trades") == list(range(150_000))
        assert running.store.statistics().frames == 1


@pytest.mark.guarantee("G1")
def test_group_of_more_channels_than_other_frames_may_have_is_stored_as_one(tmp_path: Path) -> None:
    with RunningServer(tmp_path, SMALL, store=SMALL_STORE) as running, running.client() as client:
        for number in range(4):
            one, first = pa.record_batch({"n": [number]}), 600 * (number % 2)
            client.send(qwp.encode([Entry(f"t{n}", one) for n in range(first, first + 600)], None, deferred=True))
        client.send(numbers(0, 0))
        assert len(client.acknowledged(4)) == 1200
        assert (running.rows("t0"), running.rows("t1199")) == ([0, 2], [1, 3])
        assert running.store.statistics().frames == 1


def test_large_group_of_a_connection_that_ends_leaves_nothing(tmp_path: Path) -> None:
    with RunningServer(tmp_path, SMALL, store=SMALL_STORE) as running:
        with running.client() as client:
            for number in range(15):
                client.send(numbers(number * 10_000, 10_000, deferred=True))
            running.until(lambda: running.server.state.connections[0].frames == 15)
        running.until(lambda: not running.server.state.connections)
        assert running.store.channels() == []


def test_large_group_whose_end_is_refused_leaves_nothing(tmp_path: Path) -> None:
    with RunningServer(tmp_path, SMALL, store=SMALL_STORE) as running, running.client() as client:
        for number in range(15):
            client.send(numbers(number * 10_000, 10_000, deferred=True))
        client.send(b"QWP1 and then nonsense")
        assert client.refusal().category is Category.PARSE_ERROR
        assert running.store.channels() == []


def test_group_beyond_its_bound_is_refused_as_a_whole_and_the_server_goes_on(tmp_path: Path) -> None:
    with RunningServer(tmp_path, SMALL, store=SMALL_STORE) as running:
        with running.client() as client:
            for number in range(40):
                client.send(numbers(number * 10_000, 10_000, deferred=True))
            refusal = client.refusal()
            assert refusal.category is Category.WRITE_ERROR
            assert "4194304 bytes are committed as one" in refusal.message
        assert running.store.channels() == []
        running.until(lambda: not running.server.state.connections)
        with running.client() as client:
            client.send(arrow_frame(1))
            assert client.acknowledged(0) == {"trades": 1}
