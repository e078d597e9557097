"""Batches to a published segment file.

Promise: when `write_segment` has returned, the file is complete under its name and survives a power cut. When it
raised, there is no file under that name, unless only the sync of the directory failed; then it is complete and may
vanish. A `.tmp` left by a crash is replaced. Nothing is retried: after a failed write or sync the caller decides.

Steps, and what a power cut leaves after each:

    1  unlink an old <name>.tmp, create it        nothing, or an empty or torn .tmp
    2  write batches, footer held back, footer    a torn .tmp
    3  sync the file                              a complete .tmp, if its name is there
    4  rename to <name>                           .tmp or the complete file
    5  sync the directory                         the complete file

Arrow hands over a file in pieces of four bytes to many megabytes. The sink joins the small ones into writes of 1 MiB
and passes the large ones on without a copy; the checksum runs along. Relies on the caller for one writer per path.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal, TypeAlias

import pyarrow as pa

from holdfast.disk.checksum import crc32c
from holdfast.disk.filesystem import Bytes, File, Filesystem, Mode
from holdfast.model.columns import has_dictionary
from holdfast.model.schema import schema_hash
from holdfast.store.segments.combine import DEFAULT_SIZES, LazyBatches, SegmentSizes, combine
from holdfast.store.segments.footer import TRAILER_BYTES, find_entries
from holdfast.store.segments.metadata import KEY_PREFIX, SegmentMeta
from holdfast.store.segments.runs import RunTable

Compression: TypeAlias = Literal["lz4", "zstd"] | None

COMPRESSION_KEY = KEY_PREFIX + "compression"
UNCOMPRESSED = "none"
BATCH_ROWS_KEY = KEY_PREFIX + "batch_rows"
RUNS_KEY = KEY_PREFIX + "runs"
BLOCKS_KEY = KEY_PREFIX + "blocks"
CRC32C_KEY = KEY_PREFIX + "crc32c"
FILLED_KEY = KEY_PREFIX + "filled_as"
CRC32C_ZERO = b"00000000"
BLOCK_DIGITS = 24  # 16 for the offset, 8 for the checksum

ARROW_START = b"ARROW1\0\0"

WRITE_BYTES = 1 << 20  # larger writes are not faster
COPY_BYTES_MAX = 1 << 16  # above this a buffer is passed on as it is
TMP_SUFFIX = ".tmp"


@dataclass(frozen=True, slots=True)
class SegmentFile:
    """What was written. `meta` and `schema` differ from what was asked only if a dictionary index had to be widened."""

    size_bytes: int
    crc32c: int
    """Of all bytes of the file; for the catalog."""
    meta: SegmentMeta
    schema: pa.Schema


def write_segment(
    filesystem: Filesystem,
    path: Path,
    *,
    meta: SegmentMeta,
    schema: pa.Schema,
    batches: Sequence[pa.RecordBatch] | LazyBatches,
    runs: RunTable,
    compression: Compression = None,
    sizes: SegmentSizes = DEFAULT_SIZES,
) -> SegmentFile:
    """Write, sync and name one segment. Lazy batches are written as they come, unless dictionaries must be joined."""
    if isinstance(batches, LazyBatches) and not has_dictionary(schema):
        combined: list[pa.RecordBatch] | LazyBatches = batches
        rows = batches.rows
    else:
        combined = combine(list(batches), schema, sizes=sizes)
        rows = [batch.num_rows for batch in combined]
    _check_agreement(meta, runs, sum(rows))
    if isinstance(combined, list) and not combined[0].schema.equals(schema):
        schema = _retyped(schema, combined[0].schema)
        meta = replace(meta, schema_hash=schema_hash(schema))
    entries = _entries(meta, runs, rows, compression)
    temporary = path.with_name(path.name + TMP_SUFFIX)
    if filesystem.exists(path):
        raise FileExistsError(f"{path} exists; a segment is never written twice")
    if filesystem.exists(temporary):
        filesystem.unlink(temporary)
    try:
        file = filesystem.open(temporary, Mode.CREATE)
        try:
            sink = SegmentSink(file, sync_every_bytes=sizes.sync_every_bytes)
            _write(sink, schema, combined, entries=entries, compression=compression)
            file.sync()
        finally:
            file.close()
        filesystem.rename(temporary, path)
    except BaseException:
        with suppress(OSError):
            filesystem.unlink(temporary)
        raise
    filesystem.sync_dir(path.parent)
    return SegmentFile(sink.size_bytes, sink.crc32c, meta, schema)


class PrefixDiffers(Exception):
    """Arrow would write other bytes than those that are in the file."""


def finish_segment(
    file: File,
    *,
    meta: SegmentMeta,
    schema: pa.Schema,
    batches: LazyBatches,
    runs: RunTable,
    there: tuple[int, int],
    filled_as: int,
) -> SegmentFile:
    """Complete a file that holds the beginning of the segment, and sync it; the caller names it.

    `there` is how many bytes, and their checksum. They are compared with what Arrow writes for `batches`, and not
    written again; `PrefixDiffers` if they are not the same. `filled_as` is the number by which the log calls the file.
    """
    _check_agreement(meta, runs, sum(batches.rows))
    sink = SegmentSink(file, there=there)
    entries = _entries(meta, runs, batches.rows, None) | {FILLED_KEY: str(filled_as)}
    _write(sink, schema, batches, entries=entries, compression=None)
    file.truncate(sink.size_bytes)
    file.sync()
    return SegmentFile(sink.size_bytes, sink.crc32c, meta, schema)


def _check_agreement(meta: SegmentMeta, runs: RunTable, rows: int) -> None:
    """A segment that contradicts itself is a bug of the caller; it must not reach the disk."""
    seqs = (meta.first_seq, meta.last_seq)
    if rows < 1 or rows != meta.rows or seqs[1] - seqs[0] + 1 != rows or seqs != (runs.first_seq, runs.last_seq):
        raise ValueError(
            f"segment {meta.segment_seq} of {meta.channel!r} contradicts itself: {rows} rows in batches, "
            f"{meta.rows} in meta, seqs {seqs} in meta, {(runs.first_seq, runs.last_seq)} in runs"
        )


def _retyped(schema: pa.Schema, wider: pa.Schema) -> pa.Schema:
    """`schema` with the types of `wider` and its own metadata."""
    fields = [field.with_type(other.type) for field, other in zip(schema, wider, strict=True)]
    return pa.schema(fields, metadata=schema.metadata)


def _entries(meta: SegmentMeta, runs: RunTable, rows: list[int], compression: Compression) -> dict[str, str]:
    return {
        **meta.to_footer(),
        COMPRESSION_KEY: compression or UNCOMPRESSED,
        BATCH_ROWS_KEY: ",".join(map(str, rows)),
        RUNS_KEY: runs.encode(),
        BLOCKS_KEY: "0" * (BLOCK_DIGITS * len(rows) + 8),
        CRC32C_KEY: CRC32C_ZERO.decode(),
    }


def _write(
    sink: SegmentSink,
    schema: pa.Schema,
    combined: list[pa.RecordBatch] | LazyBatches,
    *,
    entries: dict[str, str],
    compression: Compression,
) -> None:
    options = pa.ipc.IpcWriteOptions(compression=compression)
    writer = pa.ipc.new_file(pa.PythonFile(sink, mode="w"), schema, options=options, metadata=entries)
    blocks = bytearray()
    for batch in combined:
        writer.write_batch(batch)
        blocks += b"%016x%08x" % (sink.size_bytes, sink.crc32c)
    blocks += b"%08x" % crc32c(blocks)
    sink.hold_back()
    writer.close()  # writes the footer
    sink.release(bytes(blocks))


class SegmentSink:
    """What Arrow writes into. After an error it takes nothing more."""

    closed = False

    def __init__(self, file: File, *, sync_every_bytes: int = 0, there: tuple[int, int] = (0, 0)) -> None:
        self.size_bytes = 0
        """Bytes taken so far, written or not."""
        self.crc32c = 0
        """Of those bytes."""
        self._file = file
        self._sync_every_bytes = sync_every_bytes
        self._pieces: list[Bytes] = []
        self._waiting_bytes = 0
        self._synced_bytes = 0
        self._tail: bytearray | None = None
        self._there_bytes, self._there_crc32c = there

    def write(self, data: Bytes) -> int:
        """Take the next bytes."""
        view = memoryview(data)
        if self._tail is not None:
            self._tail += view
            return view.nbytes
        self.size_bytes += view.nbytes
        self.crc32c = crc32c(view, self.crc32c)
        if self.size_bytes - view.nbytes < self._there_bytes:
            self._compare()
            return view.nbytes
        if view.nbytes > COPY_BYTES_MAX:
            self._pieces.append(data)
        elif self._pieces and isinstance(self._pieces[-1], bytearray):
            self._pieces[-1] += view
        else:
            self._pieces.append(bytearray(view))
        self._waiting_bytes += view.nbytes
        if self._waiting_bytes >= WRITE_BYTES:
            self._write_out()
        return view.nbytes

    def _compare(self) -> None:
        """What was just taken begins where the file has bytes already."""
        ends = self.size_bytes >= self._there_bytes
        if ends and (self.size_bytes, self.crc32c) != (self._there_bytes, self._there_crc32c):
            raise PrefixDiffers(f"at byte {self._there_bytes} of {self._file.path}")

    def tell(self) -> int:
        """Where the next byte goes."""
        return self.size_bytes + len(self._tail or b"")

    def flush(self) -> None:
        """Arrow asks for it; the sink decides by itself when to write."""

    def close(self) -> None:
        """The file is closed by its owner."""

    def hold_back(self) -> None:
        """Keep what comes from now on in memory: the footer, which is still to be completed."""
        if self.size_bytes < self._there_bytes:
            raise PrefixDiffers(f"{self._file.path} is longer than its batches")
        self._tail = bytearray()

    def release(self, blocks: bytes) -> None:
        """Put the table of blocks and the checksum into the footer and write it."""
        assert self._tail is not None
        tail, self._tail = self._tail, None
        footer_bytes = int.from_bytes(tail[-TRAILER_BYTES:][:4], "little")
        start = len(tail) - TRAILER_BYTES - footer_bytes
        spans = find_entries(bytes(tail[start : start + footer_bytes]))
        _fill(tail, start, spans[BLOCKS_KEY], blocks)
        _fill(tail, start, spans[CRC32C_KEY], b"%08x" % crc32c(tail, self.crc32c))  # whose own digits are still zero
        self.write(bytes(tail))
        self._write_out()

    def _write_out(self) -> None:
        pieces, count = self._pieces, self._waiting_bytes
        self._pieces, self._waiting_bytes = [], 0
        if not count:
            return
        offset_bytes = self.size_bytes - count
        self._file.pwritev(pieces, offset_bytes)
        if self._sync_every_bytes and self.size_bytes - self._synced_bytes >= self._sync_every_bytes:
            self._synced_bytes = self.size_bytes
            self._file.sync_data()


def _fill(tail: bytearray, start: int, span: slice, value: bytes) -> None:
    assert len(value) == span.stop - span.start
    tail[start + span.start : start + span.stop] = value
