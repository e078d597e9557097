"""Owning a slot: the lock and whom it names, identity across openings, notes for people, forks and threads."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from holdfast.clock import SystemClock
from holdfast.disk.local import LocalFilesystem
from holdfast.errors import Closed, Locked, SlotFailed
from holdfast.sender.conf import SenderConfig
from holdfast.sender.opening import open_ring as open_configured
from holdfast.sender.opening import open_to_drain
from holdfast.sender.recovery import survey
from holdfast.sender.ring import Ring
from holdfast.sender.slot import Slot, mark_failed
from holdfast.sender.substrate import RingOptions
from holdfast.testing import CrashFilesystem
from tests.unit.sender import handmade
from tests.unit.sender.rings import SLOT, disk_with, open_ring, open_slot, payloads, slot_files

HOLDER = """
import sys
from pathlib import Path
from holdfast.clock import SystemClock
from holdfast.disk.local import LocalFilesystem
from holdfast.sender.slot import Slot
Slot.open(Path(sys.argv[1]), filesystem=LocalFilesystem(), clock=SystemClock())
print("owned", flush=True)
sys.stdin.read()
"""


def real_slot(directory: Path) -> Slot:
    return Slot.open(directory, filesystem=LocalFilesystem(), clock=SystemClock())


# --- the lock -------------------------------------------------------------------------------------------------------


def test_second_process_on_a_slot_is_told_who_owns_it(tmp_path: Path) -> None:
    directory = tmp_path / "sf" / "app"
    directory.parent.mkdir()
    command = [sys.executable, "-c", HOLDER, str(directory)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as holder:
        assert holder.stdout is not None
        assert holder.stdin is not None
        assert holder.stdout.readline() == b"owned\n"
        with pytest.raises(Locked, match=f"process {holder.pid}") as caught:
            real_slot(directory)
        assert caught.value.holder_pid == holder.pid
        holder.stdin.close()
    real_slot(directory).abandon([])


def test_second_opening_in_one_process_is_refused_too(tmp_path: Path) -> None:
    slot = real_slot(tmp_path / "app")
    with pytest.raises(Locked, match=f"process {os.getpid()}"):
        real_slot(tmp_path / "app")
    slot.abandon([])


def test_lock_file_is_empty_and_the_pid_stands_beside_it(tmp_path: Path) -> None:
    slot = real_slot(tmp_path / "app")
    assert (tmp_path / "app" / ".lock").read_bytes() == b""
    assert (tmp_path / "app" / ".lock.pid").read_text() == f"{os.getpid()}\n"
    slot.abandon([])


def test_pid_of_another_client_is_named_though_an_old_one_stands_in_the_lock() -> None:
    disk = disk_with({})
    held = open_slot(disk)
    disk.write_bytes(SLOT / ".lock.pid", b"4711\n")
    with pytest.raises(Locked, match="process 4711"):
        open_slot(disk)
    disk.write_bytes(SLOT / ".lock.pid", b"not a number")
    with pytest.raises(Locked, match="another process"):
        open_slot(disk)
    held.abandon([])


def test_parent_of_the_directory_must_exist(tmp_path: Path) -> None:
    with pytest.raises(SlotFailed, match="No such file"):
        real_slot(tmp_path / "missing" / "sf" / "app")


# --- identity -------------------------------------------------------------------------------------------------------


@pytest.mark.guarantee("G3")
def test_each_opening_for_writing_has_an_id_of_its_own() -> None:
    disk = CrashFilesystem()
    disk.makedir(SLOT.parent)
    seen = []
    for _ in range(4):
        ring = open_ring(disk)
        ring.append(b"x")
        seen.append(ring.slot_id)
        ring.close()
    assert len(set(seen)) == 4
    ring = open_ring(disk)
    assert [ring.session_of(fsn) for fsn in range(4)] == [(seen[fsn], fsn + 1) for fsn in range(4)]
    assert ring.session_of(4) == (ring.slot_id, None)


@pytest.mark.guarantee("G3")
@pytest.mark.parametrize("deleted", [".sfa", ".ack-watermark", ".slot-id", ""])
def test_no_pair_of_id_and_number_comes_back_whatever_is_deleted(deleted: str) -> None:
    disk = CrashFilesystem()
    disk.makedir(SLOT.parent)
    seen: dict[tuple[bytes, int], bytes] = {}
    for round_ in range(6):
        ring = open_ring(disk)
        for number in range(5):
            payload = b"%d/%d" % (round_, number)
            pair = (ring.slot_id, ring.append(payload))
            assert pair not in seen
            seen[pair] = payload
        ring.acknowledge(ring.published_fsn - round_ % 3)
        ring.close()
        for path in disk.paths():
            if path.name.endswith(deleted or "\0"):
                disk.unlink(path)


@pytest.mark.guarantee("G3")
def test_replayed_frames_keep_their_id_over_kills() -> None:
    disk = CrashFilesystem()
    disk.makedir(SLOT.parent)
    written: dict[int, bytes] = {}
    for _ in range(5):
        ring = open_ring(disk)
        for fsn in range(ring.acked_fsn + 1, ring.published_fsn + 1):
            assert ring.session_of(fsn)[0] == written[fsn]
        for _ in range(3):
            written[ring.append(b"x")] = ring.slot_id
        ring.acknowledge(ring.acked_fsn + 2)
        disk = disk.after_kill()


@pytest.mark.guarantee("G3")
def test_frames_of_another_client_get_an_id_that_was_never_used_before() -> None:
    """Our own record says that FSN 0 belongs to an earlier id; but another client has been here since."""
    disk = CrashFilesystem()
    disk.makedir(SLOT.parent)
    ours = open_ring(disk)
    ours.append(b"ours")
    ours_id = ours.slot_id
    disk = disk.after_kill()
    disk.write_bytes(SLOT / "sf-0000000000000000.sfa", handmade.segment(0, [b"theirs"], flags=1))
    disk.write_bytes(SLOT / "sf-manifest.bin", handmade.manifest(0, 0))
    ring = open_ring(disk)
    adopted = ring.session_of(0)[0]
    assert adopted not in (ours_id, ring.slot_id)
    disk = disk.after_kill()
    disk.unlink(SLOT / "sf-manifest.bin")
    disk.write_bytes(SLOT / "sf-0000000000000000.sfa", handmade.segment(0, [b"theirs"]))
    assert open_ring(disk).session_of(0)[0] == adopted


def test_damaged_identity_is_set_aside_and_replaced() -> None:
    disk = disk_with({"sf-0000000000000000.sfa": handmade.segment(3, [b"a"]), ".slot-id": b"nonsense"})
    ring = open_ring(disk)
    assert disk.read_bytes(SLOT / ".slot-id.corrupt") == b"nonsense"
    assert len(ring.session_of(3)[0]) == 16


def test_drainer_takes_no_id_and_leaves_an_empty_slot() -> None:
    disk = disk_with({"sf-0000000000000000.sfa": handmade.segment(3, [b"a", b"b"])})
    slot = open_slot(disk, writing=False)
    assert slot.slot_id == b""
    files = set(slot_files(disk))
    ring = Ring(slot, RingOptions(segment_bytes=256, cap_bytes=1024), clock=SystemClock(), threaded=False)
    assert payloads(ring) == [(3, b"a"), (4, b"b")]
    with pytest.raises(Closed, match="only drained"):
        ring.append(b"c")
    assert not ring.step()
    assert set(slot_files(disk)) == files
    ring.acknowledge(4)
    assert ring.close()
    assert slot_files(disk) == {}


# --- notes ----------------------------------------------------------------------------------------------------------


def test_notes_for_people_say_why_and_replace_each_other() -> None:
    disk = disk_with({"sf-0000000000000000.sfa": handmade.segment(0, [b"a"])})
    slot = open_slot(disk)
    slot.note_error("connection refused")
    slot.note_error("no route")
    mark_failed(disk, SLOT, "frames cannot be decoded: é")
    left = slot_files(disk.after_power_cut(0))
    assert left[".last_error"] == b"no route"
    assert left[".failed"].decode() == "frames cannot be decoded: é"


# --- from settings --------------------------------------------------------------------------------------------------


def test_settings_choose_memory_or_a_slot(tmp_path: Path) -> None:
    with_memory = open_configured(SenderConfig.from_conf("ws::addr=localhost;"))
    assert with_memory.statistics().cap_bytes == 128 << 20
    with_memory.close()
    conf = f"ws::addr=localhost;sf_dir={tmp_path / 'sf'};sender_id=app-1;sf_max_segment_bytes=64k;sf_durability=flush;"
    ring = open_configured(SenderConfig.from_conf(conf))
    assert ring.statistics().cap_bytes == 10 << 30
    assert ring.frame_bytes_max == (64 << 10) - 32
    ring.append(b"x")
    ring.sync()
    ring.close()
    drain = open_to_drain(tmp_path / "sf" / "app-1", SenderConfig.from_conf(conf))
    assert payloads(drain) == [(0, b"x")]
    drain.acknowledge(0)
    assert drain.close()
    assert survey(LocalFilesystem(), tmp_path / "sf" / "app-1").frames == 0


@pytest.mark.guarantee("G11")
@pytest.mark.skipif(not Path("/proc/self/fd").exists(), reason="no /proc to count descriptors in")
def test_long_backlog_holds_few_descriptors(tmp_path: Path) -> None:
    options = RingOptions(segment_bytes=4096, cap_bytes=4 << 20)
    before = len(list(Path("/proc/self/fd").iterdir()))
    for _ in range(2):
        ring = Ring(real_slot(tmp_path / "app"), options, clock=SystemClock())
        for number in range(150):
            ring.append(b"%d" % number * 1000)
        with ring.cursor(0) as cursor:
            assert len(list(cursor.until(149))) == 150
            assert len(list(Path("/proc/self/fd").iterdir())) - before < 16
        ring.close()
    assert len(list(Path("/proc/self/fd").iterdir())) == before


# --- processes and threads ------------------------------------------------------------------------------------------


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
def test_forked_child_may_not_append_and_cannot_hang(tmp_path: Path) -> None:
    program = (
        "import os, sys\n"
        "from holdfast.errors import Closed\n"
        "from holdfast.sender.conf import SenderConfig\n"
        "from holdfast.sender.opening import open_ring\n"
        f"ring = open_ring(SenderConfig.from_conf('ws::addr=h;sf_dir={tmp_path / 'sf'};'))\n"
        "ring.lock.acquire()\n"
        "if os.fork() == 0:\n"
        "    try:\n"
        "        ring.append(b'x')\n"
        "    except Closed:\n"
        "        os._exit(0)\n"
        "    os._exit(1)\n"
        "sys.exit(os.waitstatus_to_exitcode(os.wait()[1]))\n"
    )
    subprocess.run([sys.executable, "-W", "ignore", "-c", program], check=True, timeout=60)


@pytest.mark.parametrize("durability", ["memory", "flush"])
def test_many_threads_append_acknowledge_and_trim_at_once(tmp_path: Path, durability: str) -> None:
    """Real files, real threads: every frame is read once, in order, with the bytes that were appended."""
    options = RingOptions(segment_bytes=8 << 10, cap_bytes=64 << 10, durability=durability)
    slot = Slot.open(
        tmp_path / "app", filesystem=LocalFilesystem(), clock=SystemClock(), durable=durability != "memory"
    )
    ring = Ring(slot, options, clock=SystemClock())
    producers, each = 4, 500
    wake = threading.Event()
    ring.on_published = wake.set
    numbers: dict[int, bytes] = {}
    read: list[tuple[int, bytes]] = []

    def produce(who: int) -> None:
        for number in range(each):
            payload = b"%d:%d:" % (who, number) + bytes([number % 251]) * (number % 700)
            numbers[ring.append(payload)] = payload

    def send() -> None:
        with ring.cursor(0) as cursor:
            while len(read) < producers * each:
                frame = cursor.next()
                if frame is None:
                    wake.wait(1)
                    wake.clear()
                    continue
                read.append((frame.fsn, bytes(frame.payload)))
                if frame.fsn % 7 == 0:
                    ring.acknowledge(frame.fsn)
                if frame.fsn % 50 == 0 and durability == "flush":
                    ring.sync(frame.fsn)

    threads = [threading.Thread(target=produce, args=(who,)) for who in range(producers)]
    threads.append(threading.Thread(target=send))
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    ring.acknowledge(ring.published_fsn)
    assert [fsn for fsn, _ in read] == list(range(producers * each))
    assert dict(read) == numbers
    statistics = ring.statistics()
    assert statistics.used_bytes <= options.cap_bytes
    assert ring.close()
    assert sorted(path.name for path in (tmp_path / "app").iterdir()) == [".lock", ".lock.pid", ".slot-id"]
