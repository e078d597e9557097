"""Small frames that come together go to the store together, and are answered as if each had come alone."""

from __future__ import annotations

import base64
import errno
from pathlib import Path

import pytest

from holdfast.config.passwords import hash_password
from holdfast.errors import Category
from holdfast.testing import CrashFilesystem
from tests.unit.server.harness import RawClient, RunningServer, arrow_frame, frame_bytes, open_client

OTHER_SLOT = bytes(range(2, 18))


def send_together(client: RawClient, *frames: bytes) -> None:
    """Everything in one write, so that the server reads it at once."""
    client.socket.sendall(b"".join([frame_bytes(frame) for frame in frames]))


def together(running: RunningServer) -> int:
    return running.ask(lambda: running.server.state.totals.together)


def introduce(client: RawClient, fsn: int = 0) -> None:
    """One frame alone: the channel, its schema and the slot are known from then on."""
    client.send(arrow_frame(fsn, fsn=fsn))
    client.acknowledged(0)


@pytest.mark.guarantee("G4")
def test_frames_that_come_together_are_stored_in_order_with_one_answer(tmp_path: Path) -> None:
    with RunningServer(tmp_path) as running, running.client() as client:
        introduce(client)
        send_together(client, *[arrow_frame(fsn, fsn=fsn) for fsn in range(1, 51)])
        assert client.acknowledged(50) == {"trades": 51}
        assert running.rows("trades") == list(range(51))
        assert together(running) > 0


@pytest.mark.guarantee("G3")
def test_repeats_in_between_are_answered_and_stored_once(tmp_path: Path) -> None:
    with RunningServer(tmp_path) as running, running.client() as client:
        introduce(client)
        for fsns in ([1, 2, 3], [2, 3, 4], [5, 5, 6], [0, 1, 7]):
            send_together(client, *[arrow_frame(fsn, fsn=fsn) for fsn in fsns])
        assert client.acknowledged(12) == {"trades": 8}
        assert running.rows("trades") == list(range(8))
        assert running.ask(lambda: running.server.state.totals.duplicates) == 5


@pytest.mark.guarantee("G4")
def test_channels_and_slots_that_take_turns_keep_their_order(tmp_path: Path) -> None:
    frames = [
        arrow_frame(n, channel=("a", "b")[n // 3 % 2], fsn=n, slot_id=(OTHER_SLOT, bytes(range(1, 17)))[n % 2])
        for n in range(60)
    ]
    with RunningServer(tmp_path) as running, running.client() as client:
        send_together(client, *frames)
        client.acknowledged(59)
        assert running.rows("a") == [n for n in range(60) if n // 3 % 2 == 0]
        assert running.rows("b") == [n for n in range(60) if n // 3 % 2 == 1]


@pytest.mark.guarantee("G4")
@pytest.mark.guarantee("G9")
@pytest.mark.parametrize("place", [1, 20, 63, 64, 65, 99])
def test_malformed_frame_among_good_ones_is_refused_by_its_number(tmp_path: Path, place: int) -> None:
    frames = [arrow_frame(fsn, fsn=fsn, pad_bytes=4) for fsn in range(100)]
    offsets = (0).to_bytes(4, "little") + (4).to_bytes(4, "little")  # where the padding begins and ends
    at = frames[place].rfind(offsets)
    frames[place] = frames[place][: at + 4] + b"\xff\xff\xff\x7f" + frames[place][at + 8 :]
    with RunningServer(tmp_path) as running, running.client() as client:
        send_together(client, *frames)
        refusal = client.refusal()
        assert (refusal.category, refusal.wire_seq) == (Category.PARSE_ERROR, place)
        assert "'trades'" in refusal.message
        running.until(lambda: running.server.desk.inflight_bytes == 0)
        assert running.rows("trades") == list(range(place))


@pytest.mark.guarantee("G12")
def test_train_of_somebody_without_the_right_is_refused_by_its_first_frame(tmp_path: Path) -> None:
    settings: dict[str, object] = {
        "auth.users": {"app": {"password_hash": hash_password("secret").text}},
        "access": [{"principal": "app", "allow": ["publish"], "channels": ["trades"]}],
    }
    with RunningServer(tmp_path, settings) as running:
        word = base64.b64encode(b"app:secret").decode()
        client, _ = open_client(running.port, headers={"Authorization": f"Basic {word}"})
        with client:
            introduce(client)
            send_together(
                client,
                *[arrow_frame(n, fsn=n) for n in range(1, 10)],
                *[arrow_frame(n, channel="secret", fsn=n) for n in range(10, 20)],
            )
            refusal = client.refusal()
            assert (refusal.category, refusal.wire_seq) == (Category.SECURITY_ERROR, 10)
        assert running.store.channels() == ["trades"]
        assert running.rows("trades") == list(range(10))


@pytest.mark.guarantee("G4")
def test_train_that_gets_no_numbers_is_refused_where_they_end(tmp_path: Path) -> None:
    with RunningServer(tmp_path) as running, running.client() as client:
        introduce(client)
        running.store.port.hold_below(21)  # as a tier does that is away for long
        send_together(client, *[arrow_frame(fsn, fsn=fsn) for fsn in range(1, 41)])
        assert client.acknowledged(19) == {"trades": 20}
        refusal = client.refusal()
        assert (refusal.category, refusal.wire_seq) == (Category.NOT_WRITABLE, 20)
        running.until(lambda: running.server.desk.inflight_bytes == 0)
        assert running.rows("trades") == list(range(20))


@pytest.mark.guarantee("G11")
def test_train_that_finds_no_room_is_taken_as_far_as_there_is(tmp_path: Path) -> None:
    settings = {"ingest.write_deadline": "50ms"}
    store = {
        "wal.max_size": "2MiB",
        "wal.rotation_size": "1MiB",
        "frame.max_size": "512KiB",
        "segment.target_size": "64KiB",
        "segment.max_open_duration": "10ms",
        "retention.size_cap": "3MiB",
    }
    with RunningServer(tmp_path, settings, store=store) as running, running.client() as client:
        running.store.subscriber("lazy")
        frames = [arrow_frame(fsn, fsn=fsn, pad_bytes=20_000) for fsn in range(200)]
        send_together(client, *frames)
        refusal = client.refusal()
        assert refusal.category is Category.NOT_WRITABLE
        assert 0 < refusal.wire_seq < 200
        running.until(lambda: running.server.desk.inflight_bytes == 0)
        assert running.rows("trades") == list(range(refusal.wire_seq))


@pytest.mark.guarantee("G10")
def test_train_on_a_disk_that_fails_is_refused_by_its_first_frame(tmp_path: Path) -> None:
    disk = CrashFilesystem()
    with RunningServer(tmp_path, filesystem=disk) as running, running.client() as client:
        introduce(client)
        disk.fail_when(lambda _operation, path: errno.EIO if "wal" in path.parts else None)
        send_together(client, *[arrow_frame(fsn, fsn=fsn) for fsn in range(1, 30)])
        refusal = client.refusal()
        assert (refusal.category, refusal.wire_seq) == (Category.NOT_WRITABLE, 1)
        assert client.closed() == 1011
        running.join()


def test_peer_that_leaves_behind_its_frames_harms_nobody(tmp_path: Path) -> None:
    with RunningServer(tmp_path) as running, running.client() as other:
        with running.client() as client:
            introduce(client)
            send_together(client, *[arrow_frame(fsn, fsn=fsn) for fsn in range(1, 200)])
        other.send(arrow_frame(1, channel="others"))
        other.acknowledged(0)
        running.until(lambda: running.server.desk.inflight_bytes == 0)
        found = running.rows("trades")
        assert found == list(range(len(found)))
