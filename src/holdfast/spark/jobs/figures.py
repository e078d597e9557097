"""What a channel consists of, for people who decide about compaction and retention. Reads the index only."""

from __future__ import annotations

from dataclasses import dataclass

from holdfast.spark.jobs.parts import check_there
from holdfast.spark.options import SourceOptions
from holdfast.spark.resolving import INTERACTIVE_PATIENCE_S, open_access

SMALL_BYTES = 8 << 20
"""A quarter of the size at which segments are sealed by default."""


@dataclass(frozen=True)
class ChannelFigures:
    """One channel. Sizes are those of segment files."""

    channel: str
    first_seq: int
    end_seq: int
    segments: int
    events: int
    bytes: int
    smallest_bytes: int
    median_bytes: int
    largest_bytes: int
    small_segments: int
    """Those below 8 MiB, which compaction puts together."""
    columns: int
    server: str = ""
    """Its address, if several were asked."""


def figures(options: SourceOptions) -> list[ChannelFigures]:
    """All channels that the options name, by name; those of several servers by server."""
    access = open_access(options, patience_s=INTERACTIVE_PATIENCE_S)
    channels = access.channels()
    check_there(options, channels)
    found = []
    for facts in channels:
        segments = list(access.segments(facts.key, from_seq=facts.first_seq))
        sizes = sorted(segment.size_bytes for segment in segments)
        found.append(
            ChannelFigures(
                channel=facts.name,
                first_seq=facts.first_seq,
                end_seq=facts.end_seq,
                segments=len(segments),
                events=sum(segment.last_seq - max(segment.first_seq, facts.first_seq) + 1 for segment in segments),
                bytes=sum(sizes),
                smallest_bytes=sizes[0] if sizes else 0,
                median_bytes=sizes[len(sizes) // 2] if sizes else 0,
                largest_bytes=sizes[-1] if sizes else 0,
                small_segments=sum(size < SMALL_BYTES for size in sizes),
                columns=len(access.schema(facts.key)),
                server=facts.server,
            )
        )
    return found
