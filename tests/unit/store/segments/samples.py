"""Small segments to test with: their metadata, run tables and files are made in one place."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pyarrow as pa

from holdfast.disk.filesystem import File, Filesystem, Mode
from holdfast.model.schema import schema_hash
from holdfast.store.segments.metadata import SegmentMeta
from holdfast.store.segments.runs import Run, RunTable
from holdfast.store.segments.writer import Compression, SegmentFile, write_segment
from holdfast.testing import CrashFilesystem

SLOT = bytes(range(16))
FIRST_SEQ = 101
NAME = "seg-00000000000000000007.arrow"


def disk() -> tuple[CrashFilesystem, Path]:
    """A disk with one directory that is there for good, and the path of a segment in it."""
    filesystem = CrashFilesystem()
    root = Path("/segments")
    filesystem.makedir(root)
    filesystem.sync_dir(root.parent)
    return filesystem, root / NAME


def runs_of(batches: Sequence[pa.RecordBatch], *, first_seq: int = FIRST_SEQ) -> RunTable:
    """One run per batch, as if each had come with its own frame, with other channels' frames in between."""
    runs: list[Run] = []
    for number, batch in enumerate(batch for batch in batches if batch.num_rows):
        runs.append(Run(first_seq, batch.num_rows, first_seq + 10 * number, 1000 + number, SLOT, number))
        first_seq += batch.num_rows
    return RunTable.from_runs(runs)


def meta_of(schema: pa.Schema, runs: RunTable) -> SegmentMeta:
    """Metadata that agrees with the run table."""
    listed = list(runs)
    return SegmentMeta(
        store_id="0123456789abcdef0123456789abcdef",
        channel="trades",
        segment_seq=7,
        first_seq=runs.first_seq,
        last_seq=runs.last_seq,
        first_committed_id=listed[0].first_committed_id,
        last_committed_id=listed[-1].first_committed_id + listed[-1].rows - 1,
        first_ingested_at_ns=listed[0].ingested_at_ns,
        last_ingested_at_ns=listed[-1].ingested_at_ns,
        first_event_time_ns=None,
        last_event_time_ns=None,
        schema_hash=schema_hash(schema),
        rows=runs.last_seq - runs.first_seq + 1,
    )


def write(
    filesystem: Filesystem, path: Path, batches: Sequence[pa.RecordBatch], *, compression: Compression = None
) -> SegmentFile:
    """Write the batches as a segment whose first seq is `FIRST_SEQ`."""
    schema, runs = batches[0].schema, runs_of(batches)
    return write_segment(
        filesystem,
        path,
        meta=meta_of(schema, runs),
        schema=schema,
        batches=batches,
        runs=runs,
        compression=compression,
    )


def written(batches: Sequence[pa.RecordBatch], *, compression: Compression = None) -> File:
    """The file of a segment of these batches, open for reading."""
    filesystem, path = disk()
    write(filesystem, path, batches, compression=compression)
    return filesystem.open(path, Mode.READ)


def damaged(data: bytes) -> File:
    """A file of just these bytes."""
    filesystem, path = disk()
    filesystem.write_bytes(path, data)
    return filesystem.open(path, Mode.READ)
