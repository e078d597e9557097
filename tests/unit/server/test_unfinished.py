"""Parts of messages that never become whole: they cost a bounded amount of memory, and those who finish are served."""

from __future__ import annotations

import struct
import threading
from contextlib import ExitStack, suppress
from pathlib import Path

import pytest

from tests.unit.server.harness import BINARY, RawClient, RunningServer, arrow_frame, frame_bytes

MIB = 1 << 20
SETTINGS = {
    "ingest.max_batch_size": "1MiB",
    "ingest.connection_inflight": "1MiB",
    "ingest.total_inflight": "4MiB",
    "ingest.ping_interval": "100ms",  # looks are at half of it
    "ingest.idle_timeout": "1h",
}


def begin_message(client: RawClient, size: int = MIB) -> None:
    """All of a message but its last bytes, as far as the server takes them."""
    client.socket.setblocking(False)
    head = bytes([0x80 | BINARY, 0xFF]) + struct.pack(">Q", size) + bytes(4)
    with suppress(BlockingIOError):
        client.socket.sendall(head + bytes(size - 1000))


def held_bytes(running: RunningServer) -> int:
    return running.ask(lambda: running.server.door.unfinished.total_bytes)


@pytest.mark.guarantee("G11")
def test_parts_of_messages_are_bounded_and_those_who_stop_make_room(tmp_path: Path) -> None:
    with RunningServer(tmp_path, SETTINGS) as running, ExitStack() as opened:
        seen = [0]
        for _ in range(40):
            begin_message(opened.enter_context(running.client()))
            seen.append(held_bytes(running))
        with running.client() as client:
            client.send(arrow_frame(1, pad_bytes=100_000))
            client.acknowledged(0)
        running.until(lambda: running.server.door.unfinished.total_bytes <= 4 * MIB)
        assert max(seen) < 40 * MIB / 2
        assert max(seen) > 4 * MIB  # else nothing was bounded
        assert running.ask(lambda: len(running.server.state.connections)) < 40


@pytest.mark.guarantee("G11")
def test_many_large_messages_at_once_are_all_taken(tmp_path: Path) -> None:
    with RunningServer(tmp_path, SETTINGS) as running, ExitStack() as opened:
        clients = [opened.enter_context(running.client()) for _ in range(24)]
        frame = frame_bytes(arrow_frame(1, pad_bytes=900_000))

        def send_slowly(client: RawClient) -> None:
            for start in range(0, len(frame), 100_000):
                client.socket.sendall(frame[start : start + 100_000])

        senders = [threading.Thread(target=send_slowly, args=(client,)) for client in clients]
        for sender in senders:
            sender.start()
        for sender, client in zip(senders, clients, strict=True):
            sender.join()
            client.acknowledged(0)
        assert len(running.rows("trades")) == 24
        assert held_bytes(running) == 0


def test_connection_that_ends_leaves_nothing_counted(tmp_path: Path) -> None:
    with RunningServer(tmp_path, SETTINGS) as running:
        for _ in range(3):
            with running.client() as client:
                begin_message(client)
                running.until(lambda: running.server.door.unfinished.total_bytes > 0)
            running.until(lambda: running.server.door.unfinished.total_bytes == 0)


def test_room_of_a_quiet_connection_is_given_back_and_it_goes_on(tmp_path: Path) -> None:
    with RunningServer(tmp_path, SETTINGS) as running, running.client() as client:
        for wire_seq in range(3):
            client.send(arrow_frame(wire_seq, pad_bytes=700_000))
            client.acknowledged(wire_seq)
            running.until(lambda: not running.server.door.unfinished._rooms)
        assert running.rows("trades") == [0, 1, 2]


def test_half_a_message_outlives_the_looks_when_nobody_waits(tmp_path: Path) -> None:
    frame = frame_bytes(arrow_frame(5, pad_bytes=300_000))
    with RunningServer(tmp_path, SETTINGS) as running, running.client() as client:
        client.socket.sendall(frame[:200_000])
        running.until(lambda: running.server.door.unfinished.total_bytes == 200_000)
        running.until(lambda: not running.server.door.unfinished._rooms)  # its room was given back, but for the part
        client.socket.sendall(frame[200_000:])
        client.acknowledged(0)
        assert running.rows("trades") == [5]
