"""`sf-manifest.bin` of other clients' slots: which segments must be there.

Some clients keep, beside the segments, the first FSN of the oldest segment (`head_base`) and of the one being
written (`active_base`), in the form of `dualrecord` with the magic "SFM1", and mark every segment that relies on it
with bit 0 of its flags. We never make one. Where one is, we check it before anything is changed, and keep it true
while we trim and append, so that its owner can take the slot back at any moment.

Promise: a slot whose manifest names segments that are not there is refused with `CorruptData`.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from holdfast.disk.filesystem import File, Filesystem, Mode
from holdfast.errors import CorruptData
from holdfast.sender import dualrecord
from holdfast.sender.dualrecord import DualRecord

NAME = "sf-manifest.bin"
MAGIC = b"SFM1"


@dataclass(frozen=True, slots=True)
class Span:
    """First FSN of the oldest segment, and of the one being written."""

    head_base: int
    active_base: int


def read_manifest(filesystem: Filesystem, directory: Path) -> Span | None:
    """What the manifest says; None without one; `CorruptData` when it says nothing valid."""
    path = directory / NAME
    if not filesystem.exists(path):
        return None
    file = filesystem.open(path, Mode.READ)
    try:
        size = file.size_bytes()
        record = dualrecord.read(file, MAGIC, 2) if size == dualrecord.FILE_BYTES else None
    finally:
        file.close()
    if record is None:
        reason = f"no valid record in {size} bytes; segments that rely on it cannot be checked"
        raise CorruptData(file=path, offset_bytes=0, reason=reason)
    return Span(*record.values)


def check_span(directory: Path, span: Span, *, lowest_base: int, end: int) -> None:
    """Refuse a slot from which segments are missing. `end` is the FSN after the last frame found."""
    if lowest_base > span.head_base:
        reason = f"the oldest segment starts at FSN {span.head_base}, but the oldest file starts at {lowest_base}"
        raise CorruptData(file=directory / NAME, offset_bytes=0, reason=reason)
    if end < span.active_base:
        reason = f"the newest segment starts at FSN {span.active_base}, but the files end before FSN {end}"
        raise CorruptData(file=directory / NAME, offset_bytes=0, reason=reason)


class Manifest:
    """The open manifest of a slot that this process owns."""

    def __init__(self, file: File, record: DualRecord) -> None:
        self._file = file
        self._record = record

    @classmethod
    def open(cls, filesystem: Filesystem, directory: Path) -> Manifest | None:
        """None when the slot has none."""
        if read_manifest(filesystem, directory) is None:
            return None
        file = filesystem.open(directory / NAME, Mode.WRITE)
        record = dualrecord.read(file, MAGIC, 2)
        assert record is not None, "checked a moment ago, under the lock of the slot"
        return cls(file, record)

    def move(self, *, head_base: int | None = None, active_base: int | None = None) -> None:
        """Write new places and sync them; they only grow."""
        head, active = self._record.values
        values = (max(head, head_base or 0), max(active, active_base or 0))
        if values != self._record.values:
            self._record = DualRecord(self._record.generation + 1, values)
            dualrecord.write(self._file, MAGIC, self._record)
            self._file.sync_data()

    def close(self) -> None:
        """Idempotent."""
        self._file.close()
