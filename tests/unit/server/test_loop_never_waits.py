"""The event loop does not wait for the disk or for a password: what needs either happens on another thread."""

from __future__ import annotations

import base64
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from holdfast.config.passwords import hash_password
from tests.unit.server.harness import LOOP_THREAD, RunningServer, arrow_frame, ask_for_upgrade, open_client
from tests.unit.server.watched import WatchedFilesystem

UUID = "01020304-0506-0708-090a-0b0c0d0e0f10"
PASSWORD = "correct horse"
USERS: dict[str, object] = {"auth.users": {"app": {"password_hash": hash_password(PASSWORD).text}}}


def basic(password: str) -> dict[str, str]:
    return {"Authorization": f"Basic {base64.b64encode(f'app:{password}'.encode()).decode()}"}


@contextmanager
def watched(
    tmp_path: Path, settings: dict[str, object] | None = None, *, store: dict[str, object] | None = None
) -> Iterator[tuple[RunningServer, WatchedFilesystem]]:
    """A server on a watched disk; what it touched while it started is forgotten."""
    disk = WatchedFilesystem()
    with RunningServer(tmp_path, settings, store=store, filesystem=disk, access_filesystem=disk) as running:
        disk.touched_by.clear()
        yield running, disk
        assert LOOP_THREAD not in disk.touched_by


def test_slot_of_a_frame_is_looked_up_and_bound_beside_the_loop(tmp_path: Path) -> None:
    with watched(tmp_path, USERS) as (running, disk):
        client, answer = open_client(running.port, headers=basic(PASSWORD))
        assert answer.status == 101
        with client:
            for number in range(3):
                client.send(arrow_frame(number, fsn=number))
            client.acknowledged(2)
        assert any(name.startswith("holdfast-decoder") for name in disk.touched_by)
        assert running.gatekeeper.bindings.page(after=b"", limit=2)[0].principal == "app"


def test_slot_of_an_upgrade_request_is_bound_before_it_is_answered(tmp_path: Path) -> None:
    slot = {"X-Holdfast-Slot-Id": UUID, "X-Holdfast-First-Fsn": "0"}
    with watched(tmp_path, USERS) as (running, _):
        client, answer = open_client(running.port, headers={**basic(PASSWORD), **slot})
        with client:
            assert answer.status == 101
            assert [binding.principal for binding in running.gatekeeper.bindings.page(after=b"", limit=2)] == ["app"]


def test_old_frame_that_comes_again_is_looked_up_beside_the_loop(tmp_path: Path) -> None:
    with RunningServer(tmp_path) as running, running.client() as client:
        for number in range(5):
            client.send(arrow_frame(number, fsn=number))
        client.acknowledged(4)
    with watched(tmp_path) as (running, _), running.client() as client:
        for number in range(7):  # five are in segments, two are new
            client.send(arrow_frame(number, fsn=number))
        assert client.acknowledged(6) == {"trades": 7}
        assert running.rows("trades") == list(range(7))


def test_keys_of_events_are_looked_up_beside_the_loop(tmp_path: Path) -> None:
    store: dict[str, object] = {"channels": {"trades": {"dedup_keys": "n"}}}
    with watched(tmp_path, store=store) as (running, _), running.client() as client:
        for number in (1, 2, 1, 3):
            client.send(arrow_frame(number))
        client.acknowledged(3)
        assert running.rows("trades") == [1, 2, 3]


def test_channels_of_a_limited_principal_are_noted_beside_the_loop(tmp_path: Path) -> None:
    settings = {**USERS, "limits": {"app": {"channels": 2}}}
    with watched(tmp_path, settings) as (running, _):
        client, _answer = open_client(running.port, headers=basic(PASSWORD))
        with client:
            for number, channel in enumerate(("a", "b", "a", "c")):
                client.send(arrow_frame(number, channel=channel))
            assert client.refusal().wire_seq == 3
        assert running.store.channels() == ["a", "b"]


@pytest.mark.guarantee("G11")
def test_full_store_is_met_and_explained_beside_the_disk(tmp_path: Path) -> None:
    settings: dict[str, object] = {"ingest.write_deadline": "50ms", "ingest.max_batch_size": "512KiB"}
    store: dict[str, object] = {
        "wal.max_size": "2MiB",
        "wal.rotation_size": "1MiB",
        "frame.max_size": "512KiB",
        "segment.target_size": "64KiB",
        "segment.max_open_duration": "10ms",
        "retention.size_cap": "3MiB",
    }
    with watched(tmp_path, settings, store=store) as (running, _), running.client() as client:
        running.store.subscriber("lazy")
        for number in range(60):
            client.send(arrow_frame(number, fsn=number, pad_bytes=100_000))
        assert "retention.size_cap" in client.refusal().message


@pytest.mark.guarantee("G12")
@pytest.mark.parametrize(("password", "status"), [(PASSWORD, 101), ("wrong", 401)])
def test_password_is_checked_beside_the_loop(tmp_path: Path, password: str, status: int) -> None:
    with RunningServer(tmp_path, USERS) as running:
        running.audit_threads.clear()
        client, answer = open_client(running.port, headers=basic(password))
        with client:
            assert answer.status == status
        if status == 401:
            assert running.audit_threads[0] != LOOP_THREAD  # where it failed
        else:
            assert running.gatekeeper.is_quick(basic(password))


def test_request_in_pieces_is_judged_once_it_is_whole(tmp_path: Path) -> None:
    with RunningServer(tmp_path, USERS) as running:
        for piece_bytes in (1, 20, 200):
            client, answer = open_client(running.port, headers=basic(PASSWORD), piece_bytes=piece_bytes)
            with client:
                assert answer.status == 101
                client.send(arrow_frame(piece_bytes))
                client.acknowledged(0)


def test_peer_that_leaves_while_its_password_is_checked_harms_nobody(tmp_path: Path) -> None:
    with RunningServer(tmp_path, USERS) as running:
        for _ in range(4):
            ask_for_upgrade(running.port, headers=basic("wrong")).close()
        client, answer = open_client(running.port, headers=basic(PASSWORD))
        with client:
            assert answer.status == 101
            client.send(arrow_frame(1))
            client.acknowledged(0)
