"""A segment file that is filled while its events are committed, so that a large frame is written once.

The file is `seg-<segment_seq>.growing` in the directory of its channel, and has from the first byte on what the segment
will have: the Arrow header, the schema, one message per batch. What is still missing is the end of stream and the
footer. The log refers to the messages (`wal/codec.py`), and the frame counts once both are on disk.

    create    reserve a number; create, allocate, sync the directory      a file nobody refers to; deleted at a start
    write     what the group brings, behind what is there                 bytes nobody refers to
    (log)     append the references; sync the file, sync the log          what was referred to is there, or was not
                                                                          accepted (`wal/references.py`)
    settle    the group is accepted                                       -
    finish    the rest, end of stream, footer; cut to size, sync;         the same, or a complete file that the catalog
              rename to `seg-<number>.arrow`, sync the directory          does not know; the log refers to it still

Promises:

- Bytes below `end_bytes` are never written again. `finish` lets Arrow write the whole file anew into a sink that drops
  what is in the file already, and compares the checksum of what it drops with that of what was written: only an equal
  file gets a footer. It is tried once; a unit whose file cannot be finished is sealed as one without.
- A file of which a write failed for lack of space takes nothing more: behind `end_bytes` there may be anything.
- A file is never continued by another process.
- The segment gets a number of its own when it is finished, because segments are published in the order of their
  numbers. Its footer says under which number it was filled, so that a reference finds it before it is published.

One thread writes at a time: the committer while the unit is open, the sealer after it was cut.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pyarrow as pa

from holdfast.disk.checksum import crc32c
from holdfast.disk.filesystem import Bytes, File, Filesystem, Mode
from holdfast.store.segments.combine import LazyBatches
from holdfast.store.segments.metadata import SegmentMeta
from holdfast.store.segments.runs import RunTable
from holdfast.store.segments.writer import ARROW_START, SegmentFile, finish_segment

GROWING_SUFFIX = ".growing"
HASTEN_BYTES = 1 << 20
"""A piece that the disk may begin with: what it takes to write it is more than what it takes to ask."""

Pieces = list[tuple[int, Callable[[], pa.RecordBatch]]]
"""The rows of each batch, and how to make it."""


def growing_name(segment_seq: int) -> str:
    """`seg-<segment_seq>.growing`."""
    return f"seg-{segment_seq}{GROWING_SUFFIX}"


class GrowingSegment:
    """One such file, open for writing."""

    def __init__(self, filesystem: Filesystem, directory: Path, segment_seq: int, schema: pa.Schema) -> None:
        self._filesystem = filesystem
        self.segment_seq = segment_seq
        self.path = directory / growing_name(segment_seq)
        self.schema = schema
        self._file: File = filesystem.open(self.path, Mode.CREATE)
        self.first_seq = self.end_seq = 0
        """The events in the file, as far as they are accepted."""
        self.end_bytes = 0
        self.pieces: Pieces = []
        self._map: pa.Buffer | None = None
        self.broken = False
        """Takes nothing more, and is not finished."""
        self._crc32c = 0
        self._new: list[Bytes] = []
        self._new_pieces: Pieces = []
        self._new_end_bytes = self._new_crc32c = self._new_end_seq = 0

    @classmethod
    def create(
        cls, filesystem: Filesystem, directory: Path, segment_seq: int, *, schema: pa.Schema, allocate_bytes: int
    ) -> GrowingSegment:
        """A new file whose name survives a power cut; when this raised there is none."""
        growing = cls(filesystem, directory, segment_seq, schema)
        try:
            growing._file.allocate(allocate_bytes)
            filesystem.sync_dir(directory)
        except BaseException:
            with suppress(OSError):
                growing.discard()
            raise
        growing._stage(ARROW_START)
        growing._stage(schema.serialize())
        return growing

    def begin(self, first_seq: int) -> None:
        """Say with which event the file begins; before the first `add`."""
        self.first_seq = self.end_seq = self._new_end_seq = first_seq

    def add(self, message: pa.Buffer, rows: int, make: Callable[[], pa.RecordBatch] | None = None) -> int:
        """The next batch, as a message. `make` gives it back for the footer; without, it is read from the file.

        Returns where it will stand.
        """
        offset_bytes, size_bytes = self._new_end_bytes, message.size
        self._stage(message)
        self._new_pieces.append((rows, make or (lambda: self._read(offset_bytes, size_bytes))))
        self._new_end_seq += rows
        return offset_bytes

    def _read(self, offset_bytes: int, size_bytes: int) -> pa.RecordBatch:
        return pa.ipc.read_record_batch(self.view(offset_bytes, size_bytes), self.schema)

    def view(self, offset_bytes: int, size_bytes: int) -> pa.Buffer:
        """Bytes that were written, without a copy."""
        assert self._map is not None
        return self._map.slice(offset_bytes, size_bytes)

    def _stage(self, data: Bytes) -> None:
        self._new.append(data)
        self._new_end_bytes += memoryview(data).nbytes
        self._new_crc32c = crc32c(data, self._new_crc32c)

    def write(self) -> None:
        """Write what was added. Not yet safe: `sync`. The disk begins with a piece while the next one is copied."""
        new, self._new = self._new, []
        piece: list[Bytes] = []
        at_bytes, size_bytes = self.end_bytes, 0
        for data in new:
            if size_bytes >= HASTEN_BYTES:
                self._file.pwritev(piece, at_bytes)
                self._file.hasten(at_bytes, size_bytes)
                at_bytes, piece, size_bytes = at_bytes + size_bytes, [], 0
            piece.append(data)
            size_bytes += memoryview(data).nbytes
        self._file.pwritev(piece, at_bytes)
        self._map = self._file.map()

    def sync(self) -> None:
        """Make what was written survive a power cut."""
        self._file.sync_data()

    def settle(self) -> None:
        """What was written is accepted."""
        self.pieces += self._new_pieces
        self._new_pieces = []
        self.end_bytes, self._crc32c, self.end_seq = self._new_end_bytes, self._new_crc32c, self._new_end_seq

    def give_up(self) -> None:
        """What was written is not accepted, and nothing more is written."""
        self.broken = True
        self._new, self._new_pieces = [], []
        if not self.end_bytes:
            with suppress(OSError):  # a start deletes it
                self.discard()

    def abandon(self) -> None:
        """Write nothing more; the log refers to what is there."""
        self.broken = True
        self.close()

    def discard(self) -> None:
        """Delete a file to which nothing refers."""
        self.close()
        self._filesystem.unlink(self.path)

    def close(self) -> None:
        """Let go of the file."""
        self._file.close()

    def finish(self, path: Path, *, meta: SegmentMeta, runs: RunTable, rest: Pieces) -> SegmentFile:
        """Make it the segment `path`, with the batches of `rest` at its end. As `write_segment`."""
        self.broken = True
        batches = LazyBatches([*self.pieces, *rest])
        try:
            there = (self.end_bytes, self._crc32c)
            written = finish_segment(
                self._file,
                meta=meta,
                schema=self.schema,
                batches=batches,
                runs=runs,
                there=there,
                filled_as=self.segment_seq,
            )
        finally:
            self._file.close()
            self.pieces, self._map = [], None  # they refer to each other, and would hold the mapping
        self._filesystem.rename(self.path, path)
        self._filesystem.sync_dir(path.parent)
        return written
