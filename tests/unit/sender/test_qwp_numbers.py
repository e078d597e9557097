"""QWP frames get their numbers from where a connection starts: frames without rows must not shift them."""

from __future__ import annotations

import random
import shutil
import struct
import threading
from pathlib import Path

import pyarrow as pa
import pytest

from holdfast.clock import SystemClock
from holdfast.model.frame import Entry
from holdfast.sender.conf import SenderConfig
from holdfast.sender.link import Wire
from holdfast.sender.orphans import Drained, SlotDrainer, errors_only
from holdfast.wire import qwp
from tests.e2e.served import free_port
from tests.unit.sender import handmade
from tests.unit.sender.loopback import Loopback, accept_all
from tests.unit.server.harness import RunningServer

NO_TABLES = struct.pack("<4sBBHI", b"QWP1", 1, 0x08, 0, 2) + b"\0\0"  # a symbol delta of nothing, and no table
NO_ROWS = struct.pack("<4sBBHI", b"QWP1", 1, 0x08, 1, 6) + b"\0\0" + b"\x01t\0\0"  # a table of no rows and no columns
DEFERRED = qwp.encode([Entry("t", pa.record_batch({"n": [-1]}))], None, deferred=True)


def row(n: int) -> bytes:
    return qwp.encode([Entry("t", pa.record_batch({"n": [n]}))], None)


def foreign_slot(directory: Path, payloads: list[bytes]) -> Path:
    """What another client leaves: one segment with these frames, from FSN 0 on."""
    directory.mkdir(parents=True)
    (directory / "sf-0000000000000000.sfa").write_bytes(handmade.segment(0, payloads, size_bytes=1 << 16))
    return directory


def drain(directory: Path, port: int) -> str:
    config = SenderConfig.from_keywords(addr=f"127.0.0.1:{port}")
    wire = Wire(config, None, SystemClock(), random.Random(1))
    return SlotDrainer(directory, wire, errors_only(lambda _error: None), start="off").run(threading.Event())


@pytest.mark.guarantee("G3")
@pytest.mark.parametrize("empty", [NO_TABLES, NO_ROWS], ids=["no tables", "no rows"])
@pytest.mark.parametrize("count", [1, 3])
def test_replay_from_any_frame_behind_empty_ones_stores_nothing_twice(tmp_path: Path, empty: bytes, count: int) -> None:
    slot = foreign_slot(tmp_path / "slots" / "theirs", [*[empty] * count, row(0), row(1), row(2), empty, row(3)])
    assert drain(slot, free_port()) == Drained.FAILED  # nobody listens, but the frames have their slot id now
    shutil.copytree(slot, tmp_path / "before")
    with RunningServer(tmp_path / "data") as server:
        for acked in range(-1, count + 5):
            shutil.rmtree(slot)
            shutil.copytree(tmp_path / "before", slot)
            if acked >= 0:
                (slot / ".ack-watermark").write_bytes(handmade.watermark(acked))
            assert drain(slot, server.port) == Drained.EMPTIED
        assert server.rows("t") == [0, 1, 2, 3]


@pytest.mark.parametrize(
    ("payloads", "first"),
    [
        ([row(0)], 0),
        ([NO_TABLES, row(0)], 1),
        ([NO_TABLES, DEFERRED, NO_TABLES], 1),
        ([NO_TABLES, NO_TABLES], 2),
        ([b"QWP1 but nothing else"], 0),
    ],
    ids=["rows", "empty, rows", "empty, deferred", "all empty", "damaged"],
)
def test_request_announces_the_first_frame_that_counts(tmp_path: Path, payloads: list[bytes], first: int) -> None:
    slot = foreign_slot(tmp_path / "slots" / "theirs", payloads)
    with Loopback(accept_all) as server:
        assert drain(slot, server.port) == Drained.EMPTIED
        assert server.peers[0].headers["X-Holdfast-First-Fsn"] == str(first)
        assert server.peers[0].messages == payloads
