"""Errors carry their facts as fields and say them in lower case, with file and byte or name and value."""

from __future__ import annotations

from pathlib import Path

import pytest

from holdfast import errors
from holdfast.errors import (
    Backpressure,
    Category,
    Closed,
    CorruptData,
    DiskFull,
    HoldfastError,
    InvalidBatch,
    InvalidConfig,
    InvalidName,
    Locked,
    SchemaMismatch,
    StoreFailed,
    UnknownChannel,
    UnsupportedFormat,
    WireError,
)

FILE = Path("/data/wal/wal-0000000001.log")
EXAMPLES: list[tuple[HoldfastError, list[str]]] = [
    (Backpressure(bound="memory_limit", used_bytes=7, cap_bytes=8, waited_s=1.5), ["memory_limit", "7 of 8", "1.5 s"]),
    (DiskFull(file=FILE, reason="No space left"), [str(FILE), "No space left"]),
    (Locked(file=Path("/data/lock"), holder_pid=42), ["/data", "process 42"]),
    (Locked(file=Path("/data/lock"), holder_pid=None), ["another process"]),
    (InvalidName(what="channel", name="a/b", reason="no"), ["channel", "'a/b'", "no"]),
    (InvalidConfig(key="wal.max_size", reason="too small"), ["wal.max_size", "too small"]),
    (InvalidBatch(channel="a", reason="bad"), ["'a'", "bad"]),
    (SchemaMismatch(channel="a", column="c", expected="int64", found="string", reason="r"), ["'c'", "int64", "string"]),
    (UnknownChannel(channel="a"), ["'a'"]),
    (CorruptData(file=FILE, offset_bytes=64, reason="checksum"), [str(FILE), "byte 64", "checksum"]),
    (UnsupportedFormat(file=FILE, found=9, supported=1), [str(FILE), "9", "1"]),
    (StoreFailed(file=FILE, reason="sync failed"), [str(FILE), "sync failed", "restart"]),
    (WireError(category=Category.PARSE_ERROR, reason="too long", place="byte 7"), ["byte 7", "too long"]),
    (Closed(what="store"), ["store is closed"]),
]


@pytest.mark.parametrize(("error", "facts"), EXAMPLES, ids=[type(error).__name__ for error, _ in EXAMPLES])
def test_error_says_its_facts(error: HoldfastError, facts: list[str]) -> None:
    assert [fact for fact in facts if fact not in str(error)] == []


def test_dump_stands_below_the_message() -> None:
    error = CorruptData(file=FILE, offset_bytes=0, reason="bad", dump="  00 11")
    assert str(error).splitlines()[1] == "  00 11"
    assert CorruptData(file=FILE, offset_bytes=0, reason="bad").dump == ""


def test_every_error_is_a_holdfast_error() -> None:
    classes = [item for item in vars(errors).values() if isinstance(item, type) and item.__module__ == errors.__name__]
    classes.remove(errors.Category)  # a word that an error carries
    assert classes
    assert all(issubclass(item, HoldfastError) for item in classes)
