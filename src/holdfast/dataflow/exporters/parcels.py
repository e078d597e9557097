"""What an exporter gets, and what it says of it (pure)."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Protocol

import pyarrow as pa

SYSTEM = ("_seq", "_ingested_at")
"""System columns that come with every parcel."""

Span = tuple[int, int]
"""First and last seq, both included."""


@dataclass(frozen=True, slots=True)
class Parcel:
    """Events of one channel, with the columns of `SYSTEM`."""

    channel: str
    first_seq: int
    last_seq: int
    batches: Sequence[pa.RecordBatch]
    core: int = 0
    """Which of the stores that share a graph; each counts seqs for itself."""

    @property
    def rows(self) -> int:
        """How many events it has."""
        return sum(batch.num_rows for batch in self.batches)

    def parts(self) -> Iterator[tuple[pa.Array, pa.Array, pa.RecordBatch]]:
        """Seqs, ingestion times and events, batch by batch."""
        for batch in self.batches:
            names = [name for name in batch.schema.names if name not in SYSTEM]
            yield batch.column("_seq"), batch.column("_ingested_at"), batch.select(names)


@dataclass(frozen=True, slots=True)
class Verdict:
    """What became of a parcel: everything that is not named here is done."""

    rejected: Sequence[tuple[Span, str]] = ()
    """Never again, and why."""
    again: Sequence[Span] = ()
    reason: str = ""
    """Why again."""
    after_s: float = 0.0
    """Not before, as the destination asked."""
    refused_records: int = 0
    """Records that the destination took out of what it accepted."""

    def done(self, first_seq: int, last_seq: int) -> list[Span]:
        """The spans of a parcel that are done."""
        return list(_between(first_seq, last_seq, [*(span for span, _ in self.rejected), *self.again]))


def _between(first_seq: int, last_seq: int, holes: Iterable[Span]) -> Iterator[Span]:
    at = first_seq
    for first, last in sorted(holes):
        if at < first:
            yield at, first - 1
        at = max(at, last + 1)
    if at <= last_seq:
        yield at, last_seq


class Exporter(Protocol):
    """Takes parcels to one destination. Used by one thread."""

    def deliver(self, parcel: Parcel) -> Verdict:
        """Bring it there. What it raises counts as a failure that may pass, for the whole parcel."""

    def close(self) -> None:
        """Let go of connections and files."""


@dataclass(slots=True)
class ExporterStatistics:
    """What an exporter has done; written by its thread."""

    parcels: int = 0
    events: int = 0
    rejected: int = 0
    retries: int = 0
    refused_records: int = 0
    failing: int = 0
    """Failures in a row; 0 while it works."""
    last_failure: str = ""
    rejections: list[str] = field(default_factory=list)
    """The last reasons."""


def together(parts: Sequence[ExporterStatistics]) -> ExporterStatistics:
    """What one node has done for several stores; it fails as long as it does for any."""
    worst = max(parts, key=lambda part: part.failing)
    return ExporterStatistics(
        parcels=sum(part.parcels for part in parts),
        events=sum(part.events for part in parts),
        rejected=sum(part.rejected for part in parts),
        retries=sum(part.retries for part in parts),
        refused_records=sum(part.refused_records for part in parts),
        failing=worst.failing,
        last_failure=worst.last_failure,
        rejections=[reason for part in parts for reason in part.rejections],
    )
