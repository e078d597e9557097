"""A segment file back to batches, and the proof that it is undamaged.

Promise: Arrow sees no byte of a file before the file's checksum was found right, here or earlier in this process
(`verified=True`); a damaged file raises `CorruptData` with the place, one of a later version `UnsupportedFormat`.
Verifying reads with `pread`, so that a bad sector is an `OSError` and not the end of the process. Batches are slices of
the mapped file, without a copy unless it is compressed; they stay valid when reader, file and name are gone.
Only what is asked for is touched: the batches of the range, the columns of the projection.

A `SegmentReader` may be used by several threads at once. The file is only needed by `open`; its owner closes it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import numpy as np
import pyarrow as pa

from holdfast.disk.checksum import crc32c
from holdfast.disk.filesystem import File
from holdfast.errors import Closed, CorruptData, UnsupportedFormat
from holdfast.store.segments.footer import Footer, FooterDamaged, read_footer
from holdfast.store.segments.metadata import FORMAT_KEY, FORMAT_VERSION, SegmentMeta
from holdfast.store.segments.runs import RunTable
from holdfast.store.segments.writer import (
    BATCH_ROWS_KEY,
    BLOCK_DIGITS,
    BLOCKS_KEY,
    COMPRESSION_KEY,
    CRC32C_KEY,
    CRC32C_ZERO,
    RUNS_KEY,
    UNCOMPRESSED,
)

READ_BYTES = 1 << 20  # stays in the processor's cache between the read and the checksum


# ------------------------------------------------------------------------------------------------------------ verifying


@dataclass(frozen=True, slots=True)
class _Block:
    """A place in the file up to which the checksum was noted when it was written."""

    end: int
    crc32c: int


def verify_segment(file: File, expected_crc32c: int | None = None) -> None:
    """Raise `CorruptData` unless the file is what was written, by its own checksum and by the catalog's if given."""
    _check_format(file.path, _verified_footer(file, expected_crc32c))


def _verified_footer(file: File, expected_crc32c: int | None) -> Footer:
    footer = _footer(file)
    stored, span = footer.value(CRC32C_KEY), footer.spans[CRC32C_KEY]
    crc, first_bad = _scan(file, footer)
    own = crc32c(footer.data[: span.start] + CRC32C_ZERO + footer.data[span.stop :], crc)
    if stored != b"%08x" % own:
        start, end = first_bad or (footer.start, footer.start + len(footer.data))
        reason = f"bytes {start} to {end} are not what was written (checksum {own:08x}, expected {_shown(stored)})"
        raise CorruptData(file=file.path, offset_bytes=start, reason=reason)
    whole = crc32c(footer.data, crc)
    if expected_crc32c is not None and whole != expected_crc32c:
        reason = f"an undamaged segment, but another one (checksum {whole:08x}, expected {expected_crc32c:08x})"
        raise CorruptData(file=file.path, offset_bytes=0, reason=reason)
    return footer


def _footer(file: File) -> Footer:
    """The footer, with a place for the checksum in it."""
    try:
        footer = read_footer(file)
        footer.value(CRC32C_KEY)
    except FooterDamaged as error:
        raise CorruptData(file=file.path, offset_bytes=error.offset_bytes, reason=error.reason) from None
    return footer


def _scan(file: File, footer: Footer) -> tuple[int, tuple[int, int] | None]:
    """Checksum of everything before the footer, and the first block that differs."""
    first_bad: tuple[int, int] | None = None
    crc = position = 0
    for block in [*_blocks(footer), _Block(footer.start, -1)]:
        start = position
        while position < block.end:
            data = file.pread(min(READ_BYTES, block.end - position), position)
            if not data:
                raise CorruptData(file=file.path, offset_bytes=position, reason="the file ends early")
            crc = crc32c(data, crc)
            position += len(data)
        if first_bad is None and block.crc32c not in {-1, crc}:
            first_bad = (start, block.end)
    return crc, first_bad


def _blocks(footer: Footer) -> list[_Block]:
    """The noted places; none when the table itself is damaged, then the whole footer is to blame."""
    table = footer.data[footer.spans[BLOCKS_KEY]] if BLOCKS_KEY in footer.spans else b""
    digits, check = table[:-8], table[-8:]
    if len(digits) % BLOCK_DIGITS or check != b"%08x" % crc32c(digits):
        return []
    entries = [digits[at : at + BLOCK_DIGITS] for at in range(0, len(digits), BLOCK_DIGITS)]
    blocks = [_Block(int(entry[:16], 16), int(entry[16:], 16)) for entry in entries]
    return [block for block in blocks if block.end <= footer.start]


def _shown(stored: bytes) -> str:
    return stored.decode("ascii", errors="backslashreplace")


def _check_format(path: Path, footer: Footer) -> None:
    text = footer.data[footer.spans[FORMAT_KEY]] if FORMAT_KEY in footer.spans else b""
    if not text.isdigit():
        raise CorruptData(file=path, offset_bytes=footer.start, reason=f"the footer has no entry {FORMAT_KEY}")
    if int(text) > FORMAT_VERSION:
        raise UnsupportedFormat(file=path, found=int(text), supported=FORMAT_VERSION)


# -------------------------------------------------------------------------------------------------------------- reading


class SegmentReader:
    """A mapped segment."""

    def __init__(self, path: Path, buffer: pa.Buffer, footer: Footer) -> None:
        self._path = path
        self._buffer: pa.Buffer | None = buffer
        self._footer_start = footer.start
        try:
            entries = {key: footer.value(key).decode() for key in footer.spans if key not in {RUNS_KEY, BLOCKS_KEY}}
            self.meta = SegmentMeta.from_footer(entries)
            self.batch_rows = [int(text) for text in entries[BATCH_ROWS_KEY].split(",")]
            self.compression = entries[COMPRESSION_KEY]
            self._runs_span = footer.spans[RUNS_KEY]
            self.schema: pa.Schema = self._arrow().schema
        except (LookupError, ValueError, pa.ArrowException) as error:
            raise self._damaged(f"the footer cannot be read: {error}") from None
        self._ends = np.cumsum(self.batch_rows)
        if int(self._ends[-1]) != self.meta.rows or min(self.batch_rows) < 1:
            raise self._damaged(f"batches of {self.batch_rows} rows do not make {self.meta.rows}")

    @classmethod
    def open(cls, file: File, *, verified: bool = False, expected_crc32c: int | None = None) -> SegmentReader:
        """Map a segment, after proving it unless the caller already did so in this process."""
        footer = _footer(file) if verified else _verified_footer(file, expected_crc32c)
        _check_format(file.path, footer)
        return cls(file.path, file.map(), footer)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Let go of the map; batches already handed out keep it. Idempotent."""
        self._buffer = None

    @cached_property
    def runs(self) -> RunTable:
        """Which frame brought which rows; decoded on first use."""
        try:
            start = self._footer_start
            text = self._mapped()[start + self._runs_span.start : start + self._runs_span.stop]
            runs = RunTable.decode(text.to_pybytes().decode("ascii"))
        except ValueError as error:
            raise self._damaged(str(error)) from None
        if (runs.first_seq, runs.last_seq) != (self.meta.first_seq, self.meta.last_seq):
            raise self._damaged(f"the run table is of seqs {runs.first_seq}..{runs.last_seq}")
        return runs

    def batches(
        self, first_seq: int | None = None, last_seq: int | None = None, *, columns: Sequence[str] | None = None
    ) -> Iterator[tuple[int, pa.RecordBatch]]:
        """The events from `first_seq` to `last_seq`, both included, as (seq of the first row, batch).

        `columns` are given in that order; those this file does not have are left out, because it may be older than
        they are.
        """
        base = self.meta.first_seq
        start = max(first_seq if first_seq is not None else base, base) - base
        end = min(last_seq if last_seq is not None else self.meta.last_seq, self.meta.last_seq) + 1 - base
        if start >= end:
            return
        names = None if columns is None else [name for name in columns if name in self.schema.names]
        arrow = self._arrow(names)
        for index in range(int(np.searchsorted(self._ends, start, side="right")), len(self._ends)):
            batch_start = int(self._ends[index]) - self.batch_rows[index]
            if batch_start >= end:
                return
            batch = self._batch(arrow, index, names)
            skip = max(start - batch_start, 0)
            yield base + batch_start + skip, batch.slice(skip, min(end - batch_start, batch.num_rows) - skip)

    def _batch(self, arrow: Any, index: int, names: list[str] | None) -> pa.RecordBatch:
        try:
            batch = arrow.get_batch(index)
        except (pa.ArrowException, OSError) as error:
            raise self._damaged(f"batch {index} cannot be read: {error}") from None
        if batch.num_rows != self.batch_rows[index]:
            raise self._damaged(f"batch {index} has {batch.num_rows} rows, expected {self.batch_rows[index]}")
        return batch if names is None else batch.select(names)

    def _arrow(self, names: list[str] | None = None) -> Any:
        """A reader of Arrow's own, one per use: it is not thread-safe, and opening one takes microseconds."""
        if names is None or self.compression == UNCOMPRESSED:
            return pa.ipc.open_file(self._mapped())  # a map is touched only where it is read
        # A projection makes Arrow copy, so it is for compressed files only: there it spares the other columns' work. An
        # empty one means "all" to Arrow, so without columns the first is read and dropped, to keep the rows.
        fields = sorted({self.schema.get_field_index(name) for name in names}) or [0]
        return pa.ipc.open_file(self._mapped(), options=pa.ipc.IpcReadOptions(included_fields=fields))

    def _mapped(self) -> pa.Buffer:
        if self._buffer is None:
            raise Closed(what=f"reader of {self._path}")
        return self._buffer

    def _damaged(self, reason: str) -> CorruptData:
        return CorruptData(file=self._path, offset_bytes=self._footer_start, reason=reason)


# ----------------------------------------------------------------------------------------------------------- inspecting


def inspect_segment(file: File) -> dict[str, Any]:
    """Everything a segment says of itself, in JSON's types. Damage is part of the answer, not an error."""
    report: dict[str, Any] = {"file": str(file.path), "kind": "segment", "size_bytes": file.size_bytes()}
    try:
        footer = _verified_footer(file, None)
        _check_format(file.path, footer)
        with SegmentReader(file.path, file.map(), footer) as reader:
            runs = reader.runs
    except CorruptData as error:
        return report | {"intact": False, "damage": {"offset_bytes": error.offset_bytes, "reason": error.reason}}
    columns = [{"name": f.name, "type": str(f.type), "nullable": f.nullable} for f in reader.schema]
    slots = {slot_id.hex(): ranges for slot_id, ranges in runs.slots().items()}
    return report | {
        "intact": True,
        "format": FORMAT_VERSION,
        **asdict(reader.meta),
        "own_crc32c": _shown(footer.value(CRC32C_KEY)),
        "columns": columns,
        "compression": reader.compression,
        "batch_rows": reader.batch_rows,
        "runs": len(runs),
        "guids": sum(1 for _ in runs.guids()),
        "slots": slots,
    }
