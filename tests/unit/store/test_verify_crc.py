"""`verify_crc: no`: no checksum is compared, the store says so loudly, and what has no structure is still refused."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest

from holdfast import Store
from holdfast.disk.appendlog import HEADER_BYTES
from holdfast.errors import CorruptData
from holdfast.testing import CrashFilesystem
from tests.unit.store.damaged_store import (
    closed,
    damaged,
    flip,
    open_store,
    original,
    paths,
    published,
    read_all,
    records,
)

OFF = {"verify_crc": False}


def unpublished_trades() -> tuple[Path, int]:
    """File and byte of the texts of trades that only the log holds."""
    places = [
        (path, offset)
        for path, offset, _, events in records()
        if any(channel == "trades" and not published(channel, seq) for channel, seq in events)
    ]
    path, offset = places[0]
    return path, damaged().read_bytes(path).index(b"trade ", offset)


@pytest.mark.guarantee("G9")
def test_damaged_record_is_refused_by_default_and_read_with_checksums_off() -> None:
    path, place = unpublished_trades()
    disk = damaged(lambda disk: flip(disk, path, place))
    with pytest.raises(CorruptData, match="checksum"):
        open_store(disk)
    found = read_all(open_store(disk, **OFF))
    changed = [seq for seq, row in found["trades"].items() if row != original()["trades"][seq]]
    assert len(found["trades"]) == len(original()["trades"])
    assert len(changed) == 1


@pytest.mark.guarantee("G9")
def test_damaged_segment_is_refused_by_default_and_read_with_checksums_off() -> None:
    disk = closed()
    path = paths(disk, "channels/trades")[-1]
    flip(disk, path, disk.read_bytes(path).index(b"trade "))
    with pytest.raises(CorruptData):
        read_all(open_store(disk.after_kill()))
    found = read_all(open_store(disk.after_kill(), **OFF))
    assert len([seq for seq, row in found["trades"].items() if row != original()["trades"][seq]]) == 1


def test_start_with_checksums_off_says_loudly_what_it_gives_up(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, logger="holdfast"):
        store = open_store(damaged(), **OFF)
    (line,) = [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING]
    assert line.startswith("store.recovery.unverified ")
    assert "damaged bytes" in line
    assert (store.recovery.verified, store.statistics().verified) == (False, False)


def test_start_with_checksums_on_says_nothing(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, logger="holdfast"):
        store = open_store(damaged())
    assert caplog.records == []
    assert (store.recovery.verified, store.statistics().verified) == (True, True)


def refused(disk: CrashFilesystem) -> Store | None:
    with pytest.raises(CorruptData):
        read_all(open_store(disk, **OFF))
    return None


@pytest.mark.guarantee("G9")
def test_record_without_structure_is_refused_with_checksums_off() -> None:
    path, offset, _, _ = records()[-8]
    for place in (8, 10, 16, 24):  # kind, zeros, file id, position
        refused(damaged(lambda disk, at=offset + place: flip(disk, path, at, bit=6)))  # type: ignore[misc]


@pytest.mark.guarantee("G9")
def test_batch_without_structure_is_refused_with_checksums_off() -> None:
    """Offsets of a column of texts that point outside of it."""
    path, text = unpublished_trades()
    data = bytearray(damaged().read_bytes(path))
    data[text - 16 : text] = b"\xff\xff\xff\x7f" * 4
    refused(damaged(lambda disk: disk.write_bytes(path, bytes(data))))


@pytest.mark.guarantee("G9")
def test_log_that_ends_too_early_is_refused_with_checksums_off() -> None:
    path = paths(damaged(), "wal")[0]
    refused(damaged(lambda disk: disk.write_bytes(path, disk.read_bytes(path)[: HEADER_BYTES + 200])))


def test_segment_that_ends_too_early_is_refused_with_checksums_off() -> None:
    disk = closed()
    path = paths(disk, "channels/trades")[-1]
    disk.write_bytes(path, disk.read_bytes(path)[:-30])
    refused(disk)


def test_what_is_written_with_checksums_off_is_read_with_them_on() -> None:
    disk = damaged()
    open_store(disk, **OFF).close()
    assert read_all(open_store(disk)) == original()
