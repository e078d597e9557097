"""Segment files as they are found: intact, damaged with parts that are not, or somebody else's.

Promise: nothing is written, and Arrow sees only bytes whose checksum was found right. A segment notes the checksum of
the file at the end of each batch, so each batch proves itself even if the one before it is damaged; the footer proves
itself in the same way. Of a file with dictionaries nothing is taken if the dictionaries, which stand before the first
batch, are damaged.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import cast

import pyarrow as pa

from holdfast.disk.checksum import crc32c
from holdfast.disk.filesystem import File, Filesystem, Mode
from holdfast.errors import CorruptData, InvalidName
from holdfast.model.columns import has_dictionary
from holdfast.model.names import check_channel_name
from holdfast.store.catalog import PublishedSegment, segment_file_name
from holdfast.store.repair.frames import Piece, cut_runs
from holdfast.store.repair.salvage import read_damaged
from holdfast.store.segments.footer import Footer, FooterDamaged, read_footer
from holdfast.store.segments.metadata import SegmentMeta
from holdfast.store.segments.reader import READ_BYTES, SegmentReader, _blocks, _check_format
from holdfast.store.segments.writer import CRC32C_KEY, CRC32C_ZERO

MISSING = "is missing"

Slots = dict[bytes, list[tuple[int, int]]]


@dataclass(frozen=True, slots=True)
class FoundSegment:
    """A segment file, or a row of the catalog whose file is not there."""

    path: Path
    row: PublishedSegment | None
    problem: str
    """Why it cannot stay as it is; "" for an intact file."""
    offset_bytes: int = 0
    meta: SegmentMeta | None = None
    """What the file says of itself, where that can be believed."""
    size_bytes: int = 0
    crc32c: int = 0
    has_guids: bool = False
    slots: Slots = field(default_factory=dict)
    schema: pa.Schema | None = None

    @property
    def intact(self) -> bool:
        """Whether the file is what was written."""
        return not self.problem

    @property
    def at_home(self) -> bool:
        """Whether the file has the name it gives itself."""
        meta = self.meta
        return meta is not None and (self.path.parent.name, self.path.name) == (
            meta.channel,
            segment_file_name(meta.segment_seq),
        )


def find_segment(
    filesystem: Filesystem, path: Path, *, row: PublishedSegment | None, store_id: bytes | None, proven: bool = False
) -> FoundSegment:
    """Look at one file. `proven` trusts a row whose file has the right size. Raises `UnsupportedFormat`."""
    try:
        file = filesystem.open(path, Mode.READ)
    except FileNotFoundError:
        return FoundSegment(path, row, MISSING)
    try:
        size = file.size_bytes()
        if row is not None and size != row.size_bytes:
            reason = f"has {size} bytes, the catalog says {row.size_bytes}"
            raise CorruptData(file=path, offset_bytes=min(size, row.size_bytes), reason=reason)
        if row is not None and proven:
            return FoundSegment(path, row, "", 0, row.meta, size, row.crc32c, row.has_guids)
        reader = SegmentReader.open(file, expected_crc32c=row.crc32c if row is not None else None)
        whole = row.crc32c if row is not None else _whole_crc(file, size)
        found = FoundSegment(
            path, row, "", 0, reader.meta, size, whole, reader.runs.has_guids, reader.runs.slots(), reader.schema
        )
    except CorruptData as error:
        return FoundSegment(path, row, error.reason, error.offset_bytes, _own_meta(filesystem, path, store_id))
    except OSError as error:
        return FoundSegment(
            path, row, f"cannot be read: {error.strerror or error}", 0, _own_meta(filesystem, path, store_id)
        )
    finally:
        file.close()
    stranger = _stranger(found.meta, store_id)
    return FoundSegment(path, row, stranger) if stranger else found


def remote_segment(path: Path, row: PublishedSegment, slots: Slots) -> FoundSegment:
    """One that is only in the tier: the catalog's word for it is all there is here."""
    return FoundSegment(path, row, "", 0, row.meta, row.size_bytes, row.crc32c, row.has_guids, slots)


def _stranger(meta: SegmentMeta | None, store_id: bytes | None) -> str:
    """Why an intact file is not of this store."""
    if meta is None:
        return ""
    if store_id is not None and meta.store_id != store_id.hex():
        return f"belongs to store {meta.store_id}, this is store {store_id.hex()}"
    try:
        check_channel_name(meta.channel)
    except InvalidName as error:
        return str(error)
    return ""


def _whole_crc(file: File, size: int) -> int:
    crc = 0
    for at in range(0, size, READ_BYTES):
        crc = crc32c(file.pread(READ_BYTES, at), crc)
    return crc


def _own_meta(filesystem: Filesystem, path: Path, store_id: bytes | None) -> SegmentMeta | None:
    parts = _Parts.read(filesystem, path)
    return parts.reader.meta if parts is not None and not _stranger(parts.reader.meta, store_id) else None


def segment_pieces(filesystem: Filesystem, found: FoundSegment) -> Iterator[Piece]:
    """The events of an intact file, or of the intact batches of a damaged one."""
    parts = _Parts.read(filesystem, found.path) if found.meta is not None else None
    if parts is None:
        return
    for index, first_seq in parts.intact_batches():
        (_, batch), *_ = parts.reader.batches(first_seq, first_seq + parts.reader.batch_rows[index] - 1)
        runs = list(parts.reader.runs.overlapping(first_seq, first_seq + batch.num_rows - 1))
        cut = cut_runs(runs, first_seq, first_seq + batch.num_rows - 1)
        yield Piece(parts.reader.meta.channel, batch, cut)


class _Parts:
    """A file in memory whose footer is proven."""

    def __init__(self, path: Path, data: bytes, footer: Footer) -> None:
        self._data = data
        self._blocks = _blocks(footer)
        self.reader = SegmentReader(path, pa.py_buffer(data), footer)

    @classmethod
    def read(cls, filesystem: Filesystem, path: Path) -> _Parts | None:
        """None if the file says nothing that can be believed."""
        try:
            data = read_damaged(filesystem, path)
            footer = read_footer(cast("File", _InMemory(data)))
            if not _is_proven(data, footer):
                return None
            _check_format(path, footer)
            parts = cls(path, data, footer)
            return parts if parts.reader.runs and len(parts._blocks) == len(parts.reader.batch_rows) else None
        except (FileNotFoundError, FooterDamaged, CorruptData):
            return None

    def intact_batches(self) -> Iterator[tuple[int, int]]:
        """(index, first seq) of every batch that is what was written."""
        proven = [self._is_intact(index) for index in range(len(self._blocks))]
        if not proven[0] and has_dictionary(self.reader.schema):
            return
        first_seq = self.reader.meta.first_seq
        for index, rows in enumerate(self.reader.batch_rows):
            if proven[index]:
                yield index, first_seq
            first_seq += rows

    def _is_intact(self, index: int) -> bool:
        start, crc = (self._blocks[index - 1].end, self._blocks[index - 1].crc32c) if index else (0, 0)
        block = self._blocks[index]
        return crc32c(memoryview(self._data)[start : block.end], crc) == block.crc32c


def _is_proven(data: bytes, footer: Footer) -> bool:
    """Whether the footer, and what stands between it and the last batch, are what was written."""
    blocks = _blocks(footer)
    if not blocks or CRC32C_KEY not in footer.spans:
        return False
    span, last = footer.spans[CRC32C_KEY], blocks[-1]
    crc = crc32c(memoryview(data)[last.end : footer.start], last.crc32c)
    own = crc32c(footer.data[: span.start] + CRC32C_ZERO + footer.data[span.stop :], crc)
    return footer.value(CRC32C_KEY) == b"%08x" % own


class _InMemory:
    """As much of a file as `read_footer` needs."""

    def __init__(self, data: bytes) -> None:
        self._data = data

    def size_bytes(self) -> int:
        return len(self._data)

    def pread(self, count: int, offset_bytes: int) -> bytes:
        return self._data[offset_bytes : offset_bytes + count]
