"""Frames over a real socket into a real store, and the answers back."""

from __future__ import annotations

import errno
import statistics
import threading
import time
from contextlib import ExitStack, suppress
from pathlib import Path

import pyarrow as pa
import pytest

from holdfast.errors import Category
from holdfast.model.frame import Entry
from holdfast.store.subscribers.subscriber import Subscriber
from holdfast.testing import CrashFilesystem
from holdfast.wire import hfa
from holdfast.wire.replies import Ok, Refusal
from tests.unit.server.harness import PING, PONG, RawClient, RunningServer, arrow_frame

CAPPED = {
    "wal.max_size": "2MiB",
    "wal.rotation_size": "1MiB",
    "frame.max_size": "512KiB",
    "segment.target_size": "64KiB",
    "segment.max_open_duration": "10ms",
    "retention.size_cap": "3MiB",
    "retention.tick": "10ms",
}


def confirm_everything(subscriber: Subscriber) -> None:
    """All that is published now; what comes when that made room is left, and so it is kept."""
    for lease in list(subscriber.drain()):
        lease.ack()


def test_frame_is_stored_before_it_is_answered(tmp_path: Path) -> None:
    with RunningServer(tmp_path) as running, running.client() as client:
        client.send(arrow_frame(1, 2, 3, fsn=0))
        assert client.reply() == Ok(0, (("trades", 3),))
        assert running.rows("trades") == [1, 2, 3]


@pytest.mark.parametrize("path", ["/api/v4/write", "/write/v4"])
def test_both_paths_take_frames(tmp_path: Path, path: str) -> None:
    with RunningServer(tmp_path) as running, running.client(path) as client:
        client.send(arrow_frame(1))
        assert client.acknowledged(0) == {"trades": 1}


@pytest.mark.guarantee("G3")
def test_repeated_slot_frame_is_stored_once_and_answered_with_its_positions(tmp_path: Path) -> None:
    with RunningServer(tmp_path) as running:
        with running.client() as client:
            client.send(arrow_frame(1, 2, fsn=5))
            assert client.acknowledged(0) == {"trades": 2}
        with running.client() as client:
            client.send(arrow_frame(1, 2, fsn=5))
            client.send(arrow_frame(3, fsn=6))
            assert client.acknowledged(1) == {"trades": 3}
            client.send(arrow_frame(1, 2, fsn=5))
            assert client.acknowledged(2) == {"trades": 2}
        assert running.rows("trades") == [1, 2, 3]
        assert running.ask(lambda: running.server.state.totals.duplicates) == 2


@pytest.mark.guarantee("G3")
def test_repeated_guid_is_stored_once(tmp_path: Path) -> None:
    with RunningServer(tmp_path) as running, running.client() as client:
        client.send(arrow_frame(1, guid=bytes(range(2, 18))))
        client.send(arrow_frame(1, guid=bytes(range(2, 18))))
        assert client.acknowledged(1) == {"trades": 1}
        assert running.rows("trades") == [1]


def test_thousand_frames_in_flight_are_answered_in_order(tmp_path: Path) -> None:
    with RunningServer(tmp_path) as running, running.client() as client:
        for fsn in range(1000):
            client.send(arrow_frame(fsn, fsn=fsn))
        assert client.acknowledged(999) == {"trades": 1000}
        assert running.rows("trades") == list(range(1000))


def test_large_frames_are_decoded_on_threads_and_keep_their_order(tmp_path: Path) -> None:
    with RunningServer(tmp_path) as running, running.client() as client:
        for number in range(12):
            size = 700_000 if number % 3 else 10
            client.send(arrow_frame(number, pad_bytes=size))
        assert client.acknowledged(11) == {"trades": 12}
        assert running.rows("trades") == list(range(12))


@pytest.mark.parametrize(
    ("bad", "category", "words"),
    [
        (b"nonsense", Category.PARSE_ERROR, ["byte 0"]),
        (arrow_frame(1)[:-8], Category.PARSE_ERROR, ["byte"]),
        (
            b"".join(hfa.encode([Entry("trades", pa.record_batch({"n": ["text"]}))])),
            Category.SCHEMA_MISMATCH,
            ["'trades'", "'n'"],
        ),
    ],
    ids=["no frame", "cut frame", "other column type"],
)
def test_refused_frame_leaves_nothing_and_ends_the_answers(
    tmp_path: Path, bad: bytes, category: Category, words: list[str]
) -> None:
    with RunningServer(tmp_path) as running, running.client() as client:
        client.send(arrow_frame(1))
        client.send(bad)
        client.send(arrow_frame(2))
        assert client.acknowledged(0) == {"trades": 1}
        refusal = client.refusal()
        assert (refusal.category, refusal.wire_seq) == (category, 1)
        assert all(word in refusal.message for word in words), refusal.message
        client.send(arrow_frame(3))
        running.until(lambda: running.server.state.connections[0].frames == 4)
        assert running.rows("trades") == [1]
        with running.client() as other:
            other.send(arrow_frame(9))
            assert other.acknowledged(0) == {"trades": 2}


def test_frame_for_several_channels_is_refused_as_a_whole(tmp_path: Path) -> None:
    good, bad = pa.record_batch({"n": [1]}), pa.record_batch({"n": ["x"]})
    with RunningServer(tmp_path) as running, running.client() as client:
        client.send(arrow_frame(1, channel="b"))
        client.acknowledged(0)
        client.send(b"".join(hfa.encode([Entry("a", good), Entry("b", bad)])))
        assert client.refusal().category is Category.SCHEMA_MISMATCH
        assert running.rows("a") == []
        assert running.rows("b") == [1]


@pytest.mark.guarantee("G4")
def test_frames_behind_one_that_the_store_refuses_are_not_stored(tmp_path: Path) -> None:
    store = {"channels": {"small": {"max_msgs": 2, "discard": "new"}}}
    with RunningServer(tmp_path, store=store) as running, running.client() as client:
        for fsn, (channel, numbers) in enumerate(
            [("small", (1, 2)), ("small", (3,)), ("trades", (4,)), ("trades", (5,))]
        ):
            client.send(arrow_frame(*numbers, channel=channel, fsn=fsn))
        refusal = client.refusal()
        assert (refusal.category, refusal.wire_seq) == (Category.WRITE_ERROR, 1)
        assert "'small'" in refusal.message
        assert "max_msgs" in refusal.message
        assert running.rows("trades") == []
        assert running.rows("small") == [1, 2]


@pytest.mark.guarantee("G11")
def test_full_store_refuses_after_the_deadline_and_says_what_is_full(tmp_path: Path) -> None:
    settings = {"ingest.write_deadline": "50ms", "ingest.max_batch_size": "512KiB"}
    with RunningServer(tmp_path, settings, store=CAPPED) as running:
        lazy = running.store.subscriber("lazy")
        with running.client() as client:
            number = 0
            while True:
                client.send(arrow_frame(number, fsn=number, pad_bytes=100_000))
                reply = client.reply()
                if not isinstance(reply, Ok):
                    break
                number += 1
            assert isinstance(reply, Refusal)
            assert reply.category is Category.NOT_WRITABLE
            assert "retention.size_cap" in reply.message
            assert "bytes used" in reply.message
            assert "'lazy'" in reply.message
            assert running.ask(lambda: running.server.state.totals.stalls) >= 1
        confirm_everything(lazy)
        with running.client() as client:  # the same frame is taken once there is room
            running.until(lambda: running.store.has_room(200_000))
            client.send(arrow_frame(number, fsn=number, pad_bytes=10))
            assert client.acknowledged(0)
        assert number in running.rows("trades")


@pytest.mark.guarantee("G11")
def test_full_store_stops_reading_only_from_those_who_write(tmp_path: Path) -> None:
    settings = {"ingest.write_deadline": "1h", "ingest.max_batch_size": "512KiB"}
    with RunningServer(tmp_path, settings, store=CAPPED) as running:
        lazy = running.store.subscriber("lazy")
        with running.client() as writer, running.client() as other:
            for number in range(60):
                writer.send(arrow_frame(number, fsn=number, pad_bytes=100_000))
                if running.ask(lambda: running.server.state.totals.stalls):
                    break
            paused = running.ask(lambda: [info.paused for info in running.server.state.connections])
            assert paused == ["store", ""]
            other.send(b"", opcode=9)
            assert other.receive() == (10, b"")
            confirm_everything(lazy)
            writer.acknowledged(number)
        assert running.rows("trades")[-1] == number


def round_trips_s(client: RawClient, count: int) -> float:
    """The median time from a ping to its pong."""
    times: list[float] = []
    for _ in range(count):
        started_s = time.perf_counter()
        client.send(b"", opcode=PING)
        assert client.receive() == (PONG, b"")
        times.append(time.perf_counter() - started_s)
    return statistics.median(times)


@pytest.mark.guarantee("G11")
def test_others_keep_their_latency_while_many_flood_a_full_store(tmp_path: Path) -> None:
    settings = {"ingest.write_deadline": "1h", "ingest.max_batch_size": "512KiB"}
    with RunningServer(tmp_path, settings, store=CAPPED) as running, running.client() as other:
        running.store.subscriber("lazy")
        quiet_s = round_trips_s(other, 200)
        with ExitStack() as flood:
            writers = [flood.enter_context(running.client()) for _ in range(20)]
            for writer in writers:
                writer.socket.setblocking(False)
                with suppress(BlockingIOError):
                    for number in range(200):
                        writer.send(arrow_frame(number, pad_bytes=100_000))
            running.until(lambda: [info.paused for info in running.server.state.connections].count("") == 1)
            flooded_s = round_trips_s(other, 200)
            assert running.ask(lambda: running.server.state.totals.stalls) >= len(writers)
        assert flooded_s < 10 * quiet_s
        running.stop()  # and again at the end of the block: it does not wait for frames that find no room


@pytest.mark.guarantee("G11")
def test_frame_of_another_is_answered_long_before_a_flood_is_over(tmp_path: Path) -> None:
    """What stands before it is bounded by what one connection may have in flight, not by what it would send."""
    settings = {"ingest.connection_inflight": "1MiB", "ingest.max_batch_size": "512KiB"}
    frames, pad_bytes = 400, 100_000
    with RunningServer(tmp_path, settings) as running, running.client() as flooder, running.client() as other:

        def send_all() -> None:
            for number in range(frames):
                flooder.send(arrow_frame(number, fsn=number, pad_bytes=pad_bytes))

        flood = threading.Thread(target=send_all)
        flood.start()
        flooder.acknowledged(10)
        other.send(arrow_frame(1, channel="other"))
        other.acknowledged(0)
        assert running.ask(lambda: running.server.state.connections[0].acknowledged) < frames - 1
        flood.join()
        flooder.acknowledged(frames - 1)


@pytest.mark.guarantee("G11")
def test_bytes_in_flight_are_bounded_for_each_and_for_all(tmp_path: Path) -> None:
    settings = {
        "ingest.connection_inflight": "64KiB",
        "ingest.total_inflight": "1MiB",
        "ingest.max_batch_size": "128KiB",
    }
    with RunningServer(tmp_path, settings) as running:
        seen: list[int] = []
        clients = [running.client() for _ in range(8)]
        for number in range(10):
            for client in clients:
                client.send(arrow_frame(number, pad_bytes=50_000))
                seen.append(running.ask(lambda: running.server.desk.inflight_bytes))
        for client in clients:
            client.acknowledged(9)
            client.close()
        assert max(seen) <= (1 << 20) + len(clients) * (1 << 17)  # what one read brings is taken after a pause, too
        running.until(lambda: running.server.desk.inflight_bytes == 0)
        assert len(running.rows("trades")) == 80


@pytest.mark.guarantee("G10")
def test_failing_disk_is_refused_and_ends_the_server(tmp_path: Path) -> None:
    disk = CrashFilesystem()
    with RunningServer(tmp_path, filesystem=disk) as running:
        with running.client() as client, running.client() as idle:
            client.send(arrow_frame(1, fsn=0))
            client.acknowledged(0)
            disk.fail_when(lambda _operation, path: errno.EIO if "wal" in path.parts else None)
            for fsn in (1, 2, 3):
                client.send(arrow_frame(fsn, fsn=fsn))
            refusal = client.refusal()
            assert (refusal.category, refusal.wire_seq) == (Category.NOT_WRITABLE, 1)
            assert client.closed() == 1011
            assert idle.closed() == 1011
        running.join()
        assert "stopped" in str(running.failure)


def test_full_disk_is_refused_and_taken_again_once_there_is_room(tmp_path: Path) -> None:
    disk = CrashFilesystem()
    with RunningServer(tmp_path, filesystem=disk) as running:
        with running.client() as client:
            client.send(arrow_frame(1, fsn=0))
            client.acknowledged(0)
            disk.fail_when(lambda operation, _path: errno.ENOSPC if operation in {"pwritev", "allocate"} else None)
            client.send(arrow_frame(2, fsn=1))
            refusal = client.refusal()
            assert (refusal.category, refusal.wire_seq) == (Category.NOT_WRITABLE, 1)
            assert "no space left" in refusal.message
        disk.stop_failing()
        with running.client() as client:
            client.send(arrow_frame(2, fsn=1))
            assert client.acknowledged(0) == {"trades": 2}
        assert running.rows("trades") == [1, 2]
