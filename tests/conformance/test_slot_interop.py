"""One slot, two clients: what the real PyPI client `questdb` makes of a slot's files, ours makes too, and the reverse.

Each case is a slot, written by us or by them and left by a kill, in which something is damaged. Both clients get a copy
of it and send it to an empty server. They must deliver the same rows, or both refuse and leave the files alone.
"""

from __future__ import annotations

import random
import shutil
import struct
import threading
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pytest

from holdfast.clock import SystemClock
from holdfast.sender.conf import SenderConfig
from holdfast.sender.link import Wire
from holdfast.sender.orphans import Drained, SlotDrainer, errors_only
from holdfast.sender.sender import Sender
from tests.conformance.test_questdb_outages import Writer
from tests.e2e.served import free_port
from tests.unit.sender import handmade
from tests.unit.server.harness import RunningServer

pytest.importorskip("questdb")

ROWS = 60
SEGMENT_BYTES = 1024
REFUSED = "refused"
Change = Callable[[list[Path]], None]


def segments(slot: Path) -> list[Path]:
    """The files with frames, oldest first."""
    found = [path for path in slot.glob("*.sfa") if any(path.read_bytes()[24:32])]
    return sorted(found, key=lambda path: struct.unpack_from("<Q", path.read_bytes(), 8)[0])


def frames(segment: Path) -> list[tuple[int, int]]:
    """Where each frame begins and ends."""
    data, at, found = segment.read_bytes(), 24, []
    while at + 8 <= len(data) and any(data[at : at + 8]):
        end = at + 8 + struct.unpack_from("<I", data, at + 4)[0]
        found.append((at, end))
        at = end
    return found


def of_ours(slots: Path) -> None:
    sender = Sender(
        addr=f"127.0.0.1:{free_port()}", codec="qwp", sf_dir=str(slots), sender_id="w", auto_flush=False,
        initial_connect_retry="async", close_flush_timeout_millis=0, sf_max_segment_bytes=SEGMENT_BYTES,
    )  # fmt: skip
    for n in range(ROWS):
        sender.send("trades", pa.table({"n": [n]}), at=1_700_000_000_000_000_000 + n)
        sender.flush()
    sender.close()


def of_theirs(slots: Path) -> None:
    slots.mkdir()
    options = f"sf_max_segment_bytes={SEGMENT_BYTES};"
    with Writer(f"127.0.0.1:{free_port()}", slots, "w", range(ROWS), options) as writer:
        writer.published()
        writer.kill()


@pytest.fixture(scope="module")
def originals(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    found = {}
    for name, make in {"ours": of_ours, "theirs": of_theirs}.items():
        found[name] = tmp_path_factory.mktemp(name) / "slots"
        make(found[name])
        assert len(segments(found[name] / "w")) >= 3
    return found


# --- who drains -----------------------------------------------------------------------------------------------------


def drained_by_us(slots: Path, server: RunningServer) -> bool:
    config = SenderConfig.from_keywords(addr=f"127.0.0.1:{server.port}")
    wire = Wire(config, None, SystemClock(), random.Random(1))
    drainer = SlotDrainer(slots / "w", wire, errors_only(lambda _error: None), start="off")
    return drainer.run(threading.Event()) == Drained.EMPTIED


def drained_by_them(slots: Path, server: RunningServer) -> bool:
    with Writer(f"127.0.0.1:{server.port}", slots, "w", range(0), f"sf_max_segment_bytes={SEGMENT_BYTES};") as writer:
        output, _ = writer.process.communicate("")
        return output == "published\ndrained\n"


DRAINS = {"us": drained_by_us, "them": drained_by_them}


def delivered(who: str, slots: Path, work: Path) -> list[object] | str:
    """The rows that arrive, or that the slot was refused; then it must be as it was."""
    copy = work / who / "slots"
    shutil.copytree(slots, copy)
    before = {path.name: path.read_bytes() for path in (copy / "w").glob("*.sfa")}
    with RunningServer(work / who / "data") as server:
        if not DRAINS[who](copy, server):
            assert server.rows("trades") == []
            assert {path.name: path.read_bytes() for path in (copy / "w").glob("*.sfa")} == before
            return REFUSED
        assert segments(copy / "w") == []
        return server.rows("trades")


# --- what is done to the slot ---------------------------------------------------------------------------------------


def nothing(_files: list[Path]) -> None:
    """As it was left."""


def tear_the_last_frame(files: list[Path]) -> None:
    data = bytearray(files[-1].read_bytes())
    data[frames(files[-1])[-1][1] - 1] ^= 0xFF
    files[-1].write_bytes(data)


def cut_the_last_frame_short(files: list[Path]) -> None:
    begin, end = frames(files[-1])[-1]
    data = files[-1].read_bytes()
    files[-1].write_bytes(data[: (begin + end) // 2].ljust(len(data), b"\0"))


def remove_a_segment_in_the_middle(files: list[Path]) -> None:
    files[1].unlink()


def add_a_file_that_is_no_segment(files: list[Path]) -> None:
    (files[0].parent / "sf-00000000000000f0.sfa").write_bytes(b"NONE" + bytes(SEGMENT_BYTES - 4))


def acknowledge_ten(files: list[Path]) -> None:
    (files[0].parent / ".ack-watermark").write_bytes(handmade.watermark(9))


def acknowledge_beyond_the_end(files: list[Path]) -> None:
    (files[0].parent / ".ack-watermark").write_bytes(handmade.watermark(10_000))


def damage_the_watermark(files: list[Path]) -> None:
    (files[0].parent / ".ack-watermark").write_bytes(b"\xff" * 8192)


EVERYTHING, ALL_BUT_THE_LAST, FROM_TEN = list(range(ROWS)), list(range(ROWS - 1)), list(range(10, ROWS))
CASES: dict[str, tuple[Change, list[int] | str]] = {
    "as it was left": (nothing, EVERYTHING),
    "torn": (tear_the_last_frame, ALL_BUT_THE_LAST),
    "cut short": (cut_the_last_frame_short, ALL_BUT_THE_LAST),
    "gap": (remove_a_segment_in_the_middle, REFUSED),
    "bad magic": (add_a_file_that_is_no_segment, EVERYTHING),
    "watermark": (acknowledge_ten, FROM_TEN),
    "watermark beyond the end": (acknowledge_beyond_the_end, EVERYTHING),
    "watermark damaged": (damage_the_watermark, EVERYTHING),
}


@pytest.mark.guarantee("G9")
@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("origin", ["ours", "theirs"])
def test_both_clients_make_the_same_of_a_slot(
    originals: dict[str, Path], tmp_path: Path, origin: str, case: str
) -> None:
    change, expected = CASES[case]
    slots = tmp_path / "slots"
    shutil.copytree(originals[origin], slots)
    change(segments(slots / "w"))
    assert {who: delivered(who, slots, tmp_path) for who in DRAINS} == {who: expected for who in DRAINS}


def test_watermark_of_the_old_form_is_read_by_us_and_harmless_to_them(
    originals: dict[str, Path], tmp_path: Path
) -> None:
    slots = tmp_path / "slots"
    shutil.copytree(originals["ours"], slots)
    (slots / "w" / ".ack-watermark").write_bytes(handmade.old_watermark(9))
    found = {who: delivered(who, slots, tmp_path) for who in DRAINS}
    assert found == {"us": FROM_TEN, "them": EVERYTHING}
