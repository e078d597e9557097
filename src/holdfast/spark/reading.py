"""What a task does: proven segments become Arrow batches of the schema that Spark asked for.

Promise: no byte of a segment reaches Spark before the checksum of the whole file was found right (G9). Columns that are
not asked for are not read. Slices are at most `SLICE_ROWS` rows and about `SLICE_BYTES`; rows are never touched one by
one.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence

import pyarrow as pa

from holdfast.errors import EventsGone, UnknownChannel
from holdfast.model.intervals import IntervalSet
from holdfast.model.schema import SYSTEM_COLUMNS
from holdfast.spark.access import StoreAccess
from holdfast.spark.columns import conform
from holdfast.spark.naming import meant
from holdfast.spark.planning import Lost, Piece, pieces_within
from holdfast.store.segments.reader import SegmentReader
from holdfast.telemetry import event

MOVES_MAX = 3
"""How often a task looks again for events whose segment was put together with others while it ran."""
SLICE_ROWS = 20_000
SLICE_BYTES = 16 << 20
"""Spark copies a batch as a whole: larger ones are slower, smaller than a few thousand rows too."""


def read_pieces(
    access: StoreAccess, pieces: Sequence[Piece], target: pa.Schema, *, fail_on_data_loss: bool
) -> Iterator[pa.RecordBatch]:
    """The events of a task, in order."""
    waiting = [(piece, MOVES_MAX) for piece in reversed(pieces)]
    while waiting:
        piece, moves = waiting.pop()
        try:
            with access.opened(piece.segment) as reader:
                for batch in _batches(reader, piece, target):
                    yield from slices(batch)
        except (FileNotFoundError, UnknownChannel):
            found, lost = _moved(access, piece) if moves else ([], [_lost(piece)])
            tell_lost(lost, fail=fail_on_data_loss)
            waiting += [(part, moves - 1) for part in reversed(found)]


def _moved(access: StoreAccess, piece: Piece) -> tuple[list[Piece], list[Lost]]:
    """Where the events of a segment are that is not there any more: it was put together with others, or evicted."""
    channel, span = piece.segment.key, (piece.first_seq, piece.last_seq)
    found = [part for part in pieces_within(access, channel, span) if part.segment.number != piece.segment.number]
    there = IntervalSet((part.first_seq, part.last_seq) for part in found)
    return found, [Lost(channel, *gap) for gap in there.missing(*span)]


def _lost(piece: Piece) -> Lost:
    return Lost(piece.segment.key, piece.first_seq, piece.last_seq)


def _batches(reader: SegmentReader, piece: Piece, target: pa.Schema) -> Iterator[pa.RecordBatch]:
    channel = piece.segment.channel
    there = [*reader.schema.names, *SYSTEM_COLUMNS]
    wanted = dict.fromkeys(meant(target.names, there, channel=channel).values())
    system = [name for name in wanted if name in SYSTEM_COLUMNS]
    stored = [name for name in wanted if name not in SYSTEM_COLUMNS]
    for first_seq, batch in reader.batches(piece.first_seq, piece.last_seq, columns=stored):
        if system:
            extra = reader.runs.system_columns(system, channel=channel, first_seq=first_seq, rows=batch.num_rows)
            names = [*batch.schema.names, *extra]
            full = pa.RecordBatch.from_arrays([*batch.columns, *extra.values()], names=names)
        else:
            full = batch
        yield conform(full, target, channel=channel, stored=True)


def slices(batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
    """The batch in parts that Spark takes well."""
    rows = batch.num_rows
    parts = max(1, -(-rows // SLICE_ROWS), min(rows, -(-batch.nbytes // SLICE_BYTES)))
    step = -(-rows // parts)
    for at in range(0, rows, max(1, step)):
        yield batch.slice(at, step)


def tell_lost(lost: Sequence[Lost], *, fail: bool) -> None:
    """Events that are gone end the query, or are counted in the log."""
    for item in lost:
        if fail:
            reason = (
                "they were evicted, or their segment was removed, before Spark had read them; a subscriber keeps them; "
                "to go on without them, set failOnDataLoss to false"
            )
            raise EventsGone(channel=item.channel, first_seq=item.first_seq, last_seq=item.last_seq, reason=reason)
        event(
            "spark.events.lost",
            level=logging.WARNING,
            channel=item.channel,
            first_seq=item.first_seq,
            last_seq=item.last_seq,
            events=item.last_seq - item.first_seq + 1,
        )
