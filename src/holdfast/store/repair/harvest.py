"""Writing what only damaged, doubled or discarded files still hold as new segments.

Promise: a segment holds consecutive events of one channel under one schema, as the sealer would have written them: same
seqs, committed_ids, times, frames. No segment spans two sources, so one source is in memory at a time. Each file is
complete and on disk when it is handed over.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import chain
from pathlib import Path

import pyarrow as pa

from holdfast.disk.filesystem import Filesystem
from holdfast.errors import InvalidBatch
from holdfast.model.schema import schema_hash
from holdfast.store.catalog import CatalogChannel, Publication, PublishedSegment, segment_file_name
from holdfast.store.event_ids import digests_of
from holdfast.store.ground import CHANNELS_DIR
from holdfast.store.repair.frames import LogWalk, Piece
from holdfast.store.repair.segments import segment_pieces
from holdfast.store.repair.stock import Harvester, Stock
from holdfast.store.repair.survey import Survey, found_logs
from holdfast.store.segments.metadata import SegmentMeta
from holdfast.store.segments.runs import RunTable
from holdfast.store.segments.writer import write_segment
from holdfast.store.wal.log import WAL_NAME
from holdfast.store.wal.references import ReferredBytes

SEGMENT_BYTES_MAX = 32 << 20


def write_harvest(
    filesystem: Filesystem, survey: Survey, stock: Stock, *, next_segment_seq: Callable[[], int]
) -> Iterator[Publication]:
    """Write one segment after the other."""
    harvester = Harvester(survey, stock)
    for found in stock.aside:
        pieces = segment_pieces(filesystem, found)
        parts = [piece.part(*span) for piece in pieces for span in harvester.from_segment(*_span(piece))]
        yield from _write_all(filesystem, survey, stock, parts, next_segment_seq=next_segment_seq)
    referred = ReferredBytes(filesystem, survey.directory / CHANNELS_DIR)
    walk = LogWalk(survey.lexicon, referred, published={}, complete=False)
    for log in found_logs(filesystem, survey.files.logs, name=WAL_NAME, store_id=survey.store_id):
        parts = [piece.part(*span) for piece in walk.file(log) for span in harvester.from_log(*_span(piece))]
        yield from _write_all(filesystem, survey, stock, parts, next_segment_seq=next_segment_seq)


def _span(piece: Piece) -> tuple[str, int, int]:
    return piece.channel, piece.first_seq, piece.last_seq


def _write_all(
    filesystem: Filesystem,
    survey: Survey,
    stock: Stock,
    parts: list[Piece],
    *,
    next_segment_seq: Callable[[], int],
) -> Iterator[Publication]:
    for group in _groups(sorted(parts, key=lambda part: (part.channel, part.first_seq))):
        yield _write(filesystem, survey, stock, group, segment_seq=next_segment_seq())


def _groups(parts: list[Piece]) -> Iterator[list[Piece]]:
    """Neighbours without a gap, of one schema, up to the size of a segment."""
    group: list[Piece] = []
    size = 0
    for part in parts:
        before = group[-1] if group else None
        if before is not None and (
            before.channel != part.channel
            or before.last_seq + 1 != part.first_seq
            or not before.batch.schema.equals(part.batch.schema)
            or size >= SEGMENT_BYTES_MAX
        ):
            yield group
            group, size = [], 0
        group.append(part)
        size += part.batch.get_total_buffer_size()
    if group:
        yield group


def _write(
    filesystem: Filesystem, survey: Survey, stock: Stock, group: list[Piece], *, segment_seq: int
) -> Publication:
    channel = group[0].channel
    runs = list(chain.from_iterable(piece.runs for piece in group))
    table = RunTable.from_runs(runs)
    schema: pa.Schema = group[0].batch.schema
    meta = SegmentMeta(
        store_id=survey.store_id.hex(),
        channel=channel,
        segment_seq=segment_seq,
        first_seq=group[0].first_seq,
        last_seq=group[-1].last_seq,
        first_committed_id=runs[0].first_committed_id,
        last_committed_id=runs[-1].first_committed_id + runs[-1].rows - 1,
        first_ingested_at_ns=min(run.ingested_at_ns for run in runs),
        last_ingested_at_ns=max(run.ingested_at_ns for run in runs),
        first_event_time_ns=None,
        last_event_time_ns=None,
        schema_hash=schema_hash(schema),
        rows=group[-1].last_seq - group[0].first_seq + 1,
        signal=survey.signals.get(channel, "events"),
    )
    folder = _make_folder(filesystem, survey.directory / CHANNELS_DIR, channel)
    batches = [piece.batch for piece in group]
    path = folder / segment_file_name(segment_seq)
    file = write_segment(filesystem, path, meta=meta, schema=schema, batches=batches, runs=table)
    segment = PublishedSegment(stock.channel_ids[channel], file.meta, table.has_guids, file.size_bytes, file.crc32c)
    ids = [pair for piece in group for pair in event_ids(piece, survey.id_column(channel))]
    return Publication(segment, channel_row(survey, stock, channel), table.slots(), ids)


def _make_folder(filesystem: Filesystem, parent: Path, channel: str) -> Path:
    for folder in (parent, parent / channel):
        filesystem.makedir(folder)
        filesystem.sync_dir(folder.parent)
    return parent / channel


def event_ids(piece: Piece, column: str) -> list[tuple[bytes, int]]:
    """(digest, seq) of events that carry ids of their own."""
    column = piece.id_column or column
    if not column or column not in piece.batch.schema.names:
        return []
    try:
        digests = digests_of(piece.batch, column)
    except InvalidBatch:  # of a time when the events had no ids
        return []
    return list(zip(digests, range(piece.first_seq, piece.last_seq + 1), strict=True))


def channel_row(survey: Survey, stock: Stock, channel: str) -> CatalogChannel:
    """A channel as the catalog will know it."""
    schema = survey.lexicon.schemas.get(channel, pa.schema([]))
    return CatalogChannel(
        stock.channel_ids[channel], channel, stock.next_seqs[channel], schema.serialize().to_pybytes()
    )
