"""`holdfast segments`: the published segments, and who still needs each of them.

Promise: only looks (picture.py). A subscriber needs a segment while one of its events is not confirmed. What is in a
segment's file is shown by `holdfast inspect`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console
from rich.markup import escape

from holdfast.cli.answer import ExitCode, answer_json
from holdfast.cli.channels import NOTHING, lasting, print_table, seq_range, title
from holdfast.cli.display import count, make_console, make_table, moment, several, shortened, size
from holdfast.cli.picture import Picture, look, read_config
from holdfast.cli.subscribers import ranges
from holdfast.clock import NS_PER_S
from holdfast.errors import BadRequest
from holdfast.store.catalog import PublishedSegment
from holdfast.store.channels import Channel
from holdfast.store.ground import CHANNELS_DIR

NAMES_SHOWN_MAX = 3
EVENT_TIME_COLUMNS = 130
"""A narrower table has no room for a second period."""


@dataclass(frozen=True, slots=True)
class Need:
    """Events of a segment that a subscriber has not confirmed."""

    subscriber: str
    events: int
    ranges: tuple[tuple[int, int], ...]


@dataclass(frozen=True, slots=True)
class SegmentFacts:
    """A published segment. Times of events are None where the channel has no `event_time`."""

    segment_seq: int
    channel: str
    file: str
    first_seq: int
    last_seq: int
    rows: int
    size_bytes: int
    crc32c: str
    remote: bool
    """Whether it is only in the tier, and has no file here."""
    first_committed_id: int
    last_committed_id: int
    first_ingested_at_ns: int
    last_ingested_at_ns: int
    first_event_time_ns: int | None
    last_event_time_ns: int | None
    needed_by: tuple[Need, ...]


def facts_of(picture: Picture, channel: Channel) -> Iterator[SegmentFacts]:
    """The segments of a channel, in the order of their events."""
    followers = picture.followers(channel)
    for segment in picture.segments_of(channel):
        first_seq, last_seq = segment.meta.first_seq, segment.meta.last_seq
        owed = [(name, progress.owed(first_seq, last_seq)) for name, progress in followers]
        needs = tuple(Need(name, sum(b - a + 1 for a, b in spans), tuple(spans)) for name, spans in owed if spans)
        yield _facts(picture.directory / CHANNELS_DIR / channel.name, segment, needs)


def _facts(folder: Path, segment: PublishedSegment, needs: tuple[Need, ...]) -> SegmentFacts:
    meta = segment.meta
    return SegmentFacts(
        segment_seq=meta.segment_seq,
        channel=meta.channel,
        file=str(folder / segment.file_name),
        first_seq=meta.first_seq,
        last_seq=meta.last_seq,
        rows=meta.rows,
        size_bytes=segment.size_bytes,
        crc32c=f"{segment.crc32c:08x}",
        remote=segment.remote,
        first_committed_id=meta.first_committed_id,
        last_committed_id=meta.last_committed_id,
        first_ingested_at_ns=meta.first_ingested_at_ns,
        last_ingested_at_ns=meta.last_ingested_at_ns,
        first_event_time_ns=meta.first_event_time_ns,
        last_event_time_ns=meta.last_event_time_ns,
        needed_by=needs,
    )


# ------------------------------------------------------------------------------------------------------------------- ls


def run_ls(name: str | None, *, directory: Path, config: Path | None, limit: int, as_json: bool) -> ExitCode:
    """The segments of a channel, or of all."""
    picture = look(directory, read_config(config))
    channels = picture.all_channels() if name is None else [picture.channel(name)]
    found = [facts for channel in channels for facts in facts_of(picture, channel)]
    if as_json:
        result = {"directory": str(directory), "holder_pid": picture.holder_pid, "segments": found}
        answer_json("segments ls", result)
        return ExitCode.DONE
    console = make_console()
    place = directory if name is None else f"{directory}, channel {name}"
    amount = f"{several(sum(item.rows for item in found), 'event')}, {size(sum(item.size_bytes for item in found))}"
    title(console, f"{place}: {several(len(found), 'segment')}, {amount}", [picture.owner])
    if found:
        _show_list(console, found, limit)
    return ExitCode.DONE


def _show_list(console: Console, found: Sequence[SegmentFacts], limit: int) -> None:
    numbers = ("segment", "seq", "events", "size")
    has_times = any(item.first_event_time_ns is not None for item in found)
    happened = ("happened",) if has_times and console.width >= EVENT_TIME_COLUMNS else ()
    columns = ("segment", "channel", *numbers[1:], "came in", *happened, "needed by")
    table = make_table(*columns, right=numbers)
    head, left_out, tail = shortened(found, limit)
    for part in (head, tail):
        for item in part:
            event_time = period(item.first_event_time_ns, item.last_event_time_ns)
            table.add_row(
                str(item.segment_seq),
                escape(item.channel),
                seq_range(item.first_seq, item.last_seq),
                count(item.rows),
                f"{size(item.size_bytes)}{' remote' if item.remote else ''}",
                period(item.first_ingested_at_ns, item.last_ingested_at_ns),
                *([event_time] if happened else []),
                escape(_names(item.needed_by)),
            )
        if part is head and left_out:
            table.add_row("…")
    print_table(console, table, left_out=left_out)
    if has_times and not happened:
        console.print("When the events happened is in `segments show N`, in --json, and in a wider table.")


def period(first_ns: int | None, last_ns: int | None) -> str:
    """A time and how long from there on: `2026-01-31 12:00:00Z +5 s`."""
    if first_ns is None or last_ns is None:
        return NOTHING
    return f"{moment(first_ns)[:19]}Z +{lasting((last_ns - first_ns) / NS_PER_S)}"


def _names(needs: Sequence[Need]) -> str:
    shown = ", ".join(need.subscriber for need in needs[:NAMES_SHOWN_MAX]) or "nobody"
    return f"{shown} +{len(needs) - NAMES_SHOWN_MAX}" if len(needs) > NAMES_SHOWN_MAX else shown


# ----------------------------------------------------------------------------------------------------------------- show


def run_show(number: int, *, directory: Path, config: Path | None, as_json: bool) -> ExitCode:
    """One segment."""
    picture = look(directory, read_config(config))
    channel = _channel_of(picture, number)
    facts = next(facts for facts in facts_of(picture, channel) if facts.segment_seq == number)
    if as_json:
        answer_json("segments show", facts)
        return ExitCode.DONE
    console = make_console()
    title(console, f"segment {number} of {directory}", _told(facts))
    if not facts.needed_by:
        reason = "all who follow the channel have confirmed it" if picture.followers(channel) else "nobody follows it"
        console.print(f"  needed by nobody: {reason}", soft_wrap=True)
        return ExitCode.DONE
    table = make_table("needed by", "events", "not confirmed", right=("events",))
    for need in facts.needed_by:
        table.add_row(escape(need.subscriber), count(need.events), ranges(need.ranges))
    print_table(console, table)
    return ExitCode.DONE


def _channel_of(picture: Picture, number: int) -> Channel:
    for channel in picture.all_channels():
        if any(segment.meta.segment_seq == number for segment in picture.segments_of(channel)):
            return channel
    raise BadRequest(
        f"there is no segment {number} in {picture.directory}; it may have been deleted since: "
        "`holdfast segments ls` shows those there are"
    )


def _told(facts: SegmentFacts) -> list[str]:
    told = [
        f"channel {facts.channel}; {several(facts.rows, 'event')}, seq {seq_range(facts.first_seq, facts.last_seq)}, "
        f"committed_id {seq_range(facts.first_committed_id, facts.last_committed_id)}",
        f"came in {moment(facts.first_ingested_at_ns)} to {moment(facts.last_ingested_at_ns)}",
    ]
    if facts.first_event_time_ns is not None and facts.last_event_time_ns is not None:
        told.append(f"happened {moment(facts.first_event_time_ns)} to {moment(facts.last_event_time_ns)}")
    place = "only in the tier; reads through the server fetch it" if facts.remote else facts.file
    return [*told, f"{size(facts.size_bytes)}, CRC32C {facts.crc32c}", place]
