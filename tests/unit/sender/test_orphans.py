"""Slots of dead senders: which are found, what is sent, what is marked."""

from __future__ import annotations

import random
import threading
from pathlib import Path
from typing import Any

import pytest

from holdfast.clock import SystemClock
from holdfast.disk.local import LocalFilesystem
from holdfast.errors import Category, CorruptData, Locked, SenderHalted
from holdfast.sender.conf import SenderConfig
from holdfast.sender.link import Wire
from holdfast.sender.orphans import Drained, SlotDrainer, errors_only, find_orphans
from holdfast.sender.sender import Sender
from tests.e2e.served import free_port
from tests.unit.sender.loopback import PATIENCE_S, Loopback, accept_all
from tests.unit.sender.test_link import Heard, numbers

NOBODY = errors_only(lambda _error: None)


def leave(sf_dir: Path, name: str, count: int = 5) -> Path:
    """A slot with so many frames that nobody answered."""
    sender = Sender(
        addr=f"127.0.0.1:{free_port()}",
        sf_dir=str(sf_dir),
        sender_id=name,
        auto_flush=False,
        initial_connect_retry="async",
        close_flush_timeout_millis=0,
    )
    for n in range(count):
        sender.send("t", {"n": n})
        sender.flush()
    sender.close()
    return sf_dir / name


def drainer(directory: Path, port: int, **keys: Any) -> SlotDrainer:
    config = SenderConfig.from_keywords(addr=f"127.0.0.1:{port}", **keys)
    return SlotDrainer(directory, Wire(config, None, SystemClock(), random.Random(1)), NOBODY)


def test_candidates_are_other_slots_with_segments_and_no_mark(tmp_path: Path) -> None:
    for name in ("own", "one", "two", "failed"):
        leave(tmp_path / "sf", name)
    (tmp_path / "sf" / "failed" / ".failed").write_text("no")
    (tmp_path / "sf" / "empty").mkdir()
    (tmp_path / "sf" / "file").write_text("not a slot")
    found = find_orphans(LocalFilesystem(), tmp_path / "sf", own="own")
    assert [path.name for path in found] == ["one", "two"]
    assert find_orphans(LocalFilesystem(), tmp_path / "none", own="own") == []


def test_drained_slot_is_empty_and_everything_was_sent(tmp_path: Path) -> None:
    slot = leave(tmp_path / "sf", "dead")
    with Loopback(accept_all) as server:
        work = drainer(slot, server.port)
        assert work.run(threading.Event()) == Drained.EMPTIED
        assert work.progress == (5, 5)
        assert numbers(server.peers[0].messages) == [0, 1, 2, 3, 4]
    assert not list(slot.glob("*.sfa"))


def test_slot_that_somebody_owns_is_passed_over(tmp_path: Path) -> None:
    with Loopback(accept_all) as server:
        owner = Sender(addr=f"127.0.0.1:{server.port}", sf_dir=str(tmp_path / "sf"), sender_id="busy")
        work = drainer(tmp_path / "sf" / "busy", server.port)
        assert work.run(threading.Event()) == Drained.BUSY
        assert isinstance(work.error, Locked)
        owner.close()
    assert not (tmp_path / "sf" / "busy" / ".failed").exists()


def test_damaged_slot_is_marked_and_never_tried_again(tmp_path: Path) -> None:
    slot = leave(tmp_path / "sf", "dead")
    (segment,) = slot.glob("*.sfa")
    gap = bytearray(segment.read_bytes())
    gap[8:16] = (99).to_bytes(8, "little")
    (slot / "sf-00000000000000ff.sfa").write_bytes(gap)
    work = drainer(slot, free_port())
    assert work.run(threading.Event()) == Drained.FAILED
    assert isinstance(work.error, CorruptData)
    assert "non-contiguous" in (slot / ".failed").read_text()
    assert find_orphans(LocalFilesystem(), tmp_path / "sf", own="own") == []


def test_refusing_server_leaves_a_note_and_the_next_start_tries_again(tmp_path: Path) -> None:
    slot = leave(tmp_path / "sf", "dead")
    with Loopback(lambda peer: peer.refuse(Category.PARSE_ERROR, 0)) as server:
        work = drainer(slot, server.port)
        assert work.run(threading.Event()) == Drained.FAILED
        assert isinstance(work.error, SenderHalted)
    assert "PARSE_ERROR" in (slot / ".last_error").read_text()
    assert find_orphans(LocalFilesystem(), tmp_path / "sf", own="own") == [slot]
    with Loopback(accept_all) as server:
        assert drainer(slot, server.port).run(threading.Event()) == Drained.EMPTIED
    assert not (slot / ".last_error").exists()


def test_stopped_drainer_leaves_the_rest_in_the_slot(tmp_path: Path) -> None:
    slot = leave(tmp_path / "sf", "dead")
    stop = threading.Event()

    def script(peer: Any) -> None:
        if peer.count == 3:
            peer.ok(1)
            stop.set()

    with Loopback(script) as server:
        assert drainer(slot, server.port).run(stop) == Drained.STOPPED
    with Loopback(accept_all) as server:
        assert drainer(slot, server.port).run(threading.Event()) == Drained.EMPTIED
        assert numbers(server.peers[0].messages) == [2, 3, 4]


@pytest.mark.parametrize("most", [0, 1, 4])
def test_so_many_slots_are_drained_at_a_time(tmp_path: Path, most: int) -> None:
    for place in range(3):
        leave(tmp_path / "sf", f"dead-{place}")
    with Loopback(accept_all) as server:
        keys: dict[str, Any] = {"drain_orphans": "on", "max_background_drainers": most}
        with Sender(addr=f"127.0.0.1:{server.port}", sf_dir=str(tmp_path / "sf"), sender_id="own", **keys) as sender:
            assert sender._orphans is not None
            for thread in sender._orphans._threads:
                thread.join(PATIENCE_S)
            assert len(sender._orphans._threads) == min(most, 3)
            assert sender.statistics().total_background_drainers_succeeded == (3 if most else 0)


def test_refusals_of_an_orphan_say_nothing_of_our_own_frames(tmp_path: Path) -> None:
    leave(tmp_path / "sf", "dead", 1)
    heard = Heard()

    def script(peer: Any) -> None:
        if peer.number == 0:
            peer.ok()
        elif peer.count == 1:
            peer.refuse(Category.SCHEMA_MISMATCH)

    with Loopback(script) as server:
        keys: dict[str, Any] = {"drain_orphans": "on", "sf_dir": str(tmp_path / "sf"), "error_handler": heard}
        with Sender(addr=f"127.0.0.1:{server.port}", sender_id="own", auto_flush=False, **keys) as sender:
            assert heard.until(1)[0].first_fsn == 0
            sender.send("t", {"n": 1})
            assert sender.flush() == 0
            assert sender.await_acked(0, PATIENCE_S)  # not `FrameRefused`
    assert list((tmp_path / "sf" / "dead" / "rejected").iterdir())
