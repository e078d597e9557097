"""Frames of many connections go to the store together, and each connection is answered as if it were alone."""

from __future__ import annotations

import base64
import errno
import threading
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from holdfast.config.passwords import hash_password
from holdfast.disk.filesystem import Mode
from holdfast.disk.local import LocalFile, LocalFilesystem
from holdfast.errors import Category
from holdfast.model.frame import PlainFrame
from holdfast.server.ingest import IngestHandler
from holdfast.server.ingesttrains import TRAIN_FRAMES
from holdfast.store.committer import Train
from holdfast.store.lane import Lane
from holdfast.store.store import Store
from holdfast.testing import CrashFilesystem
from holdfast.wire.replies import Ok, Refusal
from tests.unit.server.harness import PATIENCE_S, RawClient, RunningServer, arrow_frame, frame_bytes, open_client

MANY = 20


def slot_of(number: int) -> bytes:
    return bytes([1 + number]) * 16


@contextmanager
def in_one_turn(running: RunningServer) -> Iterator[None]:
    """The loop stands still; what is sent meanwhile it finds all at once."""
    stands, go_on = threading.Event(), threading.Event()

    def stand() -> None:
        stands.set()
        go_on.wait(PATIENCE_S)

    running.loop.call_soon_threadsafe(stand)
    assert stands.wait(PATIENCE_S)
    try:
        yield
    finally:
        go_on.set()


@contextmanager
def connected(running: RunningServer, count: int = MANY) -> Iterator[list[RawClient]]:
    """Connections whose channel, schema and slot are known: each has sent its frame 0, with its own number in it."""
    with ExitStack() as stack:
        clients = [stack.enter_context(running.client()) for _ in range(count)]
        for number, client in enumerate(clients):
            client.send(arrow_frame(number, fsn=0, slot_id=slot_of(number)))
            client.acknowledged(0)
        yield clients


def together(running: RunningServer) -> int:
    return running.ask(lambda: running.server.state.totals.together)


def send_at_once(client: RawClient, *frames: bytes) -> None:
    client.socket.sendall(b"".join([frame_bytes(frame) for frame in frames]))


def frames_accepted(client: RawClient, sent: int) -> int:
    """How many of the frames behind the first are stored; if that is not all, the next one is refused."""
    last = 0
    while last < sent:
        reply = client.reply()
        if not isinstance(reply, Ok):
            assert isinstance(reply, Refusal)
            assert (reply.category, reply.wire_seq) == (Category.NOT_WRITABLE, last + 1)
            break
        last = reply.wire_seq
    return last


def malformed(frame: bytes) -> bytes:
    """A frame with four bytes of padding, whose offsets say that there are more."""
    offsets = (0).to_bytes(4, "little") + (4).to_bytes(4, "little")
    at = frame.rfind(offsets)
    return frame[: at + 4] + b"\xff\xff\xff\x7f" + frame[at + 8 :]


@pytest.mark.guarantee("G3")
@pytest.mark.guarantee("G4")
def test_frames_of_many_connections_go_together_and_each_is_told_where_its_own_is(tmp_path: Path) -> None:
    with RunningServer(tmp_path) as running, connected(running) as clients:
        with in_one_turn(running):
            for number, client in enumerate(clients):
                client.send(arrow_frame(100 + number, fsn=1, slot_id=slot_of(number)))
        seqs = [client.acknowledged(1)["trades"] for client in clients]
        rows = running.rows("trades")
        assert [rows[seq - 1] for seq in seqs] == [100 + number for number in range(MANY)]
        assert together(running) == MANY


@pytest.mark.guarantee("G4")
def test_more_frames_than_one_train_takes_keep_the_order_of_each_connection(tmp_path: Path) -> None:
    count = 3 * TRAIN_FRAMES // MANY
    with RunningServer(tmp_path) as running, connected(running) as clients:
        with in_one_turn(running):
            for number, client in enumerate(clients):
                frames = [arrow_frame(1000 * fsn + number, fsn=fsn, slot_id=slot_of(number)) for fsn in range(count)]
                send_at_once(client, *frames[1:])
        for client in clients:
            client.acknowledged(count - 1)
        rows = [n for n in running.rows("trades") if isinstance(n, int)]
        for number in range(MANY):
            mine = [n for n in rows if n % 1000 == number]
            assert mine == [1000 * fsn + number for fsn in range(count)]
        assert together(running) == MANY * (count - 1)


@pytest.mark.guarantee("G4")
def test_what_comes_behind_a_boarded_frame_is_stored_behind_it(tmp_path: Path) -> None:
    """Another channel, and a frame that is too large for a train: neither overtakes what has boarded."""
    with RunningServer(tmp_path) as running, connected(running, 4) as clients:
        with in_one_turn(running):
            for number, client in enumerate(clients):
                slot_id = slot_of(number)
                for fsn, channel in enumerate(["trades", "quotes", "trades"] * 3, start=1):
                    pad_bytes = 40_000 if fsn == 5 else 0
                    client.send(
                        arrow_frame(10 * number + fsn, channel=channel, fsn=fsn, slot_id=slot_id, pad_bytes=pad_bytes)
                    )
        for client in clients:
            client.acknowledged(9)
        committed = {
            n: committed_id
            for channel in ("trades", "quotes")
            for batch in running.store.read(channel, columns=["n"], system=["_committed_id"])
            for n, committed_id in zip(batch["n"].to_pylist(), batch["_committed_id"].to_pylist(), strict=True)
        }
        for number in range(4):
            mine = [committed[10 * number + fsn] for fsn in range(1, 10)]
            assert mine == sorted(mine)


@pytest.mark.guarantee("G4")
@pytest.mark.guarantee("G9")
def test_malformed_frame_harms_nobody_else_on_its_train(tmp_path: Path) -> None:
    with RunningServer(tmp_path) as running, connected(running) as clients:
        for number, client in enumerate(clients):  # they learn the schema with padding
            client.send(arrow_frame(number, fsn=1, slot_id=slot_of(number), channel="padded", pad_bytes=4))
            client.acknowledged(1)
        with in_one_turn(running):
            for number, client in enumerate(clients):
                frames = [
                    arrow_frame(number, fsn=fsn, slot_id=slot_of(number), channel="padded", pad_bytes=4)
                    for fsn in range(2, 5)
                ]
                if number == 7:
                    frames[1] = malformed(frames[1])
                send_at_once(client, *frames)
        refusal = clients[7].refusal()
        assert (refusal.category, refusal.wire_seq) == (Category.PARSE_ERROR, 3)
        for client in [*clients[:7], *clients[8:]]:
            client.acknowledged(4)
        running.until(lambda: running.server.desk.inflight_bytes == 0)
        rows = running.rows("padded")
        assert [rows.count(number) for number in range(MANY)] == [2 if number == 7 else 4 for number in range(MANY)]


@pytest.mark.guarantee("G3")
def test_repeat_among_new_frames_of_others_is_stored_once(tmp_path: Path) -> None:
    with RunningServer(tmp_path) as running, connected(running) as clients:
        with in_one_turn(running):
            for number, client in enumerate(clients):
                fsn = 0 if number in {3, 11} else 1
                client.send(arrow_frame(number, fsn=fsn, slot_id=slot_of(number)))
        seqs = [client.acknowledged(1)["trades"] for client in clients]
        assert (seqs[3], seqs[11]) == (4, 12)
        rows = running.rows("trades")
        assert [rows.count(number) for number in range(MANY)] == [
            1 if number in {3, 11} else 2 for number in range(MANY)
        ]
        assert running.ask(lambda: running.server.state.totals.duplicates) == 2


@pytest.mark.guarantee("G12")
def test_frame_of_somebody_without_the_right_boards_no_train(tmp_path: Path) -> None:
    settings: dict[str, object] = {
        "auth.users": {name: {"password_hash": hash_password("secret").text} for name in ("app", "guest")},
        "access": [
            {"principal": "app", "allow": ["publish"], "channels": ["*"]},
            {"principal": "guest", "allow": ["publish"], "channels": ["trades"]},
        ],
    }
    with RunningServer(tmp_path, settings) as running, ExitStack() as stack:
        clients: list[RawClient] = []
        for number, name in enumerate(["app", "guest", "app", "app"]):
            word = base64.b64encode(f"{name}:secret".encode()).decode()
            client, _ = open_client(running.port, headers={"Authorization": f"Basic {word}"})
            clients.append(stack.enter_context(client))
            client.send(arrow_frame(number, fsn=0, slot_id=slot_of(number)))
            client.acknowledged(0)
            if name == "app":  # so that its reader knows the other channel
                client.send(arrow_frame(number, fsn=1, slot_id=slot_of(number), channel="secret"))
                client.acknowledged(1)
        with in_one_turn(running):
            for number, client in enumerate(clients):
                client.send(arrow_frame(10 + number, fsn=2, slot_id=slot_of(number), channel="secret"))
        for number in (0, 2, 3):
            clients[number].acknowledged(2)
        assert clients[1].refusal().category is Category.SECURITY_ERROR
        assert sorted(running.rows("secret"), key=str) == [0, 10, 12, 13, 2, 3]


@pytest.mark.guarantee("G4")
def test_each_connection_of_a_train_is_refused_where_the_numbers_end(tmp_path: Path) -> None:
    with RunningServer(tmp_path) as running, connected(running) as clients:
        running.store.port.hold_below(MANY + 31)  # as a tier does that is away for long
        with in_one_turn(running):
            for number, client in enumerate(clients):
                send_at_once(
                    client, *[arrow_frame(100 * fsn + number, fsn=fsn, slot_id=slot_of(number)) for fsn in (1, 2, 3)]
                )
        stored = [frames_accepted(client, 3) for client in clients]
        assert sum(stored) == 30
        assert sorted(stored) == [0] * (MANY - 10) + [3] * 10
        running.until(lambda: running.server.desk.inflight_bytes == 0)
        assert len(running.rows("trades")) == MANY + 30


@pytest.mark.guarantee("G10")
def test_everybody_on_a_train_learns_that_the_disk_failed(tmp_path: Path) -> None:
    disk = CrashFilesystem()
    with RunningServer(tmp_path, filesystem=disk) as running, connected(running) as clients:
        disk.fail_when(lambda _operation, path: errno.EIO if "wal" in path.parts else None)
        with in_one_turn(running):
            for number, client in enumerate(clients):
                client.send(arrow_frame(number, fsn=1, slot_id=slot_of(number)))
        for client in clients:
            refusal = client.refusal()
            assert (refusal.category, refusal.wire_seq) == (Category.NOT_WRITABLE, 1)
            assert client.closed() == 1011
        running.join()


def test_peer_that_leaves_its_frame_behind_harms_nobody_on_its_train(tmp_path: Path) -> None:
    with RunningServer(tmp_path) as running, connected(running) as clients:
        with in_one_turn(running):
            for number, client in enumerate(clients):
                client.send(arrow_frame(100 + number, fsn=1, slot_id=slot_of(number)))
                if number % 3 == 0:
                    client.close()
        for number, client in enumerate(clients):
            if number % 3:
                client.acknowledged(1)
        running.until(lambda: running.server.desk.inflight_bytes == 0)
        assert {100 + number for number in range(MANY) if number % 3} <= set(running.rows("trades"))


def test_channel_that_takes_no_trains_is_tried_less_and_less(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tried: list[int] = []
    real = Store.commit_train

    def commit_train(store: Store, frames: Sequence[PlainFrame], *, lane: Lane) -> Train | None:
        tried.append(len(frames))
        return real(store, frames, lane=lane)

    monkeypatch.setattr(Store, "commit_train", commit_train)
    store: dict[str, object] = {"channels": {"trades": {"dedup_keys": "n"}}}
    with RunningServer(tmp_path, store=store) as running, running.client() as client:
        for number in range(400):
            client.send(arrow_frame(number))
        client.acknowledged(399)
        assert running.rows("trades") == list(range(400))
        assert together(running) == 0
        assert len(tried) < 400 // 10


# -- who is looked at ------------------------------------------------------------------------------------------------


class HeldFile(LocalFile):
    """A file whose data syncs wait until they may go on."""

    __slots__ = ("_disk",)

    def __init__(self, fd: int, path: Path, disk: HeldDisk) -> None:
        super().__init__(fd, path)
        self._disk = disk

    def sync_data(self) -> None:
        self._disk.at_sync.set()
        self._disk.gate.wait(PATIENCE_S)
        super().sync_data()


class HeldDisk(LocalFilesystem):
    """The machine's disk, with a gate before each data sync; `at_sync` says that somebody came to it."""

    def __init__(self) -> None:
        self.at_sync, self.gate = threading.Event(), threading.Event()
        self.gate.set()

    def open(self, path: Path, mode: Mode) -> LocalFile:
        file = super().open(path, mode)
        return HeldFile(file._fd, path, self) if mode is Mode.CREATE else file


def test_group_makes_only_those_look_who_have_an_answer_in_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    looked: list[int] = []
    real = IngestHandler.settle

    def settle(handler: IngestHandler) -> None:
        looked.append(handler.connection.info.id)
        real(handler)

    monkeypatch.setattr(IngestHandler, "settle", settle)
    disk = HeldDisk()
    with RunningServer(tmp_path, filesystem=disk) as running, connected(running) as clients:
        ids = running.ask(lambda: list(running.server.state.connections_by_id))
        disk.gate.clear()
        disk.at_sync.clear()
        clients[0].send(arrow_frame(0, fsn=1, slot_id=slot_of(0)))
        assert disk.at_sync.wait(PATIENCE_S)  # a group of its own
        running.ask(looked.clear)  # the loop has seen to everything before it
        for number, client in enumerate(clients[1:], start=1):
            client.send(arrow_frame(number, fsn=1, slot_id=slot_of(number)))
        running.until(lambda: running.server.state.totals.frames == 2 * MANY)
        disk.gate.set()
        for client in clients:
            client.acknowledged(1)
        assert looked[0] == ids[0]
        assert sorted(looked) == ids


def test_frames_of_a_train_are_answered_before_a_server_that_stops_closes(tmp_path: Path) -> None:
    disk = HeldDisk()
    with RunningServer(tmp_path, filesystem=disk) as running, connected(running) as clients:
        disk.gate.clear()
        for number, client in enumerate(clients):
            client.send(arrow_frame(number, fsn=1, slot_id=slot_of(number)))
        running.until(lambda: running.server.state.totals.frames == 2 * MANY)
        running.stop()
        running.until(lambda: running.server.state.draining)
        disk.gate.set()
        for client in clients:
            client.acknowledged(1)
            assert client.closed() == 1001
