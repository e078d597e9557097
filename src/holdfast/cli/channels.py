"""`holdfast channels`: what each channel holds, who reads it, its limits; remove one.

Promise: `ls` and `show` only look (picture.py). `rm` takes the store's lock, deletes what it announced and says who
lost what; without `--yes` it asks, and where nobody can answer it refuses.
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import msgspec
import typer
from rich.cells import cell_len
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from holdfast.cli.answer import ExitCode, answer_json
from holdfast.cli.display import count, make_console, make_table, moment, several, shortened, size
from holdfast.cli.picture import CHANGE_NOTHING, Picture, look, read_config
from holdfast.clock import NS_PER_S
from holdfast.config import StoreConfig
from holdfast.errors import BadRequest
from holdfast.store.channels import Channel
from holdfast.store.limits import ALL_CHANNELS, AUTOMATIC, DEFAULT, TARGET_SIZE, LimitRow, LimitsTree
from holdfast.store.store import Store

NOTHING = "–"
TABLE_COLUMNS_MAX = 10_000
"""Wider than any row of ours."""

_UNITS = ((86_400, "d"), (3600, "h"), (60, "min"), (1, "s"))
_ORIGINS = {
    DEFAULT: "default",
    ALL_CHANNELS: "all channels",
    AUTOMATIC: "a quarter of the channel's limit",
    TARGET_SIZE: "segment.target_size",
}


@dataclass(frozen=True, slots=True)
class ChannelFacts:
    """A channel in one line. The seqs are those of the events that are there; None where there are none."""

    name: str
    events: int
    first_seq: int | None
    last_seq: int | None
    next_seq: int
    segments: int
    segment_bytes: int
    unsealed_events: int
    """Accepted, and so far in the log only; part of `events`."""
    last_ingested_at_ns: int | None
    followers: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Column:
    """A column of a channel's schema."""

    name: str
    type: str
    nullable: bool


@dataclass(frozen=True, slots=True)
class Share:
    """Events of one channel that one subscriber is owed, or lost."""

    subscriber: str
    events: int


@dataclass(frozen=True, slots=True)
class Removed:
    """What `rm` did."""

    channel: str
    events: int
    segments: int
    bytes: int
    lost: tuple[Share, ...]


def facts_of(picture: Picture, channel: Channel) -> ChannelFacts:
    """What a picture says of a channel."""
    segments, floor = picture.segments_of(channel), channel.first_seq
    unsealed = picture.unsealed.get(channel.id)
    kept = [(max(item.meta.first_seq, floor), item.meta.last_seq) for item in segments if item.meta.last_seq >= floor]
    events = sum(last - first + 1 for first, last in kept)
    if unsealed is not None:
        kept.append((unsealed.first_seq, unsealed.last_seq))
        events += unsealed.events
    return ChannelFacts(
        name=channel.name,
        events=events,
        first_seq=kept[0][0] if kept else None,
        last_seq=kept[-1][1] if kept else None,
        next_seq=channel.next_seq,
        segments=len(segments),
        segment_bytes=channel.segment_bytes,
        unsealed_events=unsealed.events if unsealed is not None else 0,
        last_ingested_at_ns=channel.active_at_ns or None,
        followers=tuple(name for name, _ in picture.followers(channel)),
    )


def seq_range(first_seq: int | None, last_seq: int | None) -> str:
    """`1..1,500`, or a dash."""
    return NOTHING if first_seq is None or last_seq is None else f"{count(first_seq)}..{count(last_seq)}"


def lasting(seconds: float) -> str:
    """`90.0` as `90 s`, `7300.0` as `2 h`."""
    for length, unit in _UNITS:
        if seconds >= 2 * length:
            return f"{seconds / length:,.0f} {unit}"
    return f"{seconds:.1f} s"


def print_table(console: Console, table: Table, *, left_out: int = 0) -> None:
    """Only the last column wraps, and nothing is cut: on a narrow terminal the lines are longer than the screen."""
    for column in table.columns:
        column.no_wrap = column is not table.columns[-1]
        cells = [str(cell) for cell in column.cells]
        words = cells if column.no_wrap else [word for cell in cells for word in cell.split()]
        column.min_width = max(map(cell_len, [str(column.header), *words]))
    needed = console.measure(table, options=console.options.update(max_width=TABLE_COLUMNS_MAX)).minimum
    console.width = max(console.width, needed)
    console.print(table)
    if left_out:
        console.print(f"{several(left_out, 'row')} left out at …; --limit 0 shows all.", soft_wrap=True)


def title(console: Console, text: str, facts: Sequence[str]) -> None:
    """A bold line and indented ones."""
    console.print(f"[bold]{escape(text)}[/]", soft_wrap=True)
    for fact in facts:
        console.print(f"  {escape(fact)}", soft_wrap=True)


# ------------------------------------------------------------------------------------------------------------------- ls


def run_ls(directory: Path, *, config: Path | None, limit: int, as_json: bool) -> ExitCode:
    """All channels."""
    picture = look(directory, read_config(config))
    rows = [facts_of(picture, channel) for channel in picture.all_channels()]
    if as_json:
        answer_json("channels ls", {"directory": str(directory), "holder_pid": picture.holder_pid, "channels": rows})
        return ExitCode.DONE
    console = make_console()
    amount = f"{several(sum(row.events for row in rows), 'event')}, {size(sum(row.segment_bytes for row in rows))}"
    title(console, f"{directory}: {several(len(rows), 'channel')}, {amount}", [picture.owner])
    if rows:
        _show_list(console, rows, limit, now_ns=picture.clock.wall_ns())
    unsealed = sum(row.unsealed_events for row in rows)
    if unsealed:
        console.print(f"In the log only, not in a segment yet: {several(unsealed, 'event')}.", soft_wrap=True)
    return ExitCode.DONE


def _show_list(console: Console, rows: Sequence[ChannelFacts], limit: int, *, now_ns: int) -> None:
    numbers = ("events", "seq", "size", "segments", "next seq", "last in", "followers")
    table = make_table("channel", *numbers, right=numbers)
    head, left_out, tail = shortened(rows, limit)
    for part in (head, tail):
        for row in part:
            table.add_row(
                escape(row.name),
                count(row.events),
                seq_range(row.first_seq, row.last_seq),
                size(row.segment_bytes),
                count(row.segments),
                count(row.next_seq),
                _ago(row.last_ingested_at_ns, now_ns),
                count(len(row.followers)),
            )
        if part is head and left_out:
            table.add_row("…")
    print_table(console, table, left_out=left_out)


def _ago(time_ns: int | None, now_ns: int) -> str:
    return NOTHING if time_ns is None else f"{lasting(max(0, now_ns - time_ns) / NS_PER_S)} ago"


# ----------------------------------------------------------------------------------------------------------------- show


def run_show(name: str | None, *, directory: Path, config: Path | None, as_json: bool) -> ExitCode:
    """One channel, or without a name the limits of all there may be."""
    settings = read_config(config)
    if name is None:
        return _run_tree(settings, given=config is not None, as_json=as_json)
    picture = look(directory, settings)
    channel = picture.channel(name)
    row, columns, limits = facts_of(picture, channel), _columns(channel), picture.limits.describe(name)
    if as_json:
        answer_json("channels show", {"channel": row, "columns": columns, "limits": limits})
        return ExitCode.DONE
    console = make_console()
    title(console, f"{name}: channel of {directory}", _told(picture, channel, row))
    if columns:
        table = make_table("column", "null", "type")
        for column in columns:
            table.add_row(escape(column.name), "yes" if column.nullable else "no", escape(column.type))
        print_table(console, table)
    table = make_table("limit", "value", "from")
    for line in limits:
        table.add_row(line.key, escape(line.text or NOTHING), escape(_origin(line, own="this channel's entry")))
    print_table(console, table)
    _advise(console, given=config is not None)
    return ExitCode.DONE


def _told(picture: Picture, channel: Channel, row: ChannelFacts) -> list[str]:
    held = (
        f"{several(row.events, 'event')}, seq {seq_range(row.first_seq, row.last_seq)}" if row.events else "no events"
    )
    told = [f"{held}; the next one gets seq {count(row.next_seq)}"]
    open_part = f"; {several(row.unsealed_events, 'event')} in the log only" if row.unsealed_events else ""
    told.append(f"{size(row.segment_bytes)} in {several(row.segments, 'segment')}{open_part}")
    if row.last_ingested_at_ns is not None:
        told.append(f"the last event came in {moment(row.last_ingested_at_ns)}")
    owed = [(name, progress.unconfirmed(channel.next_seq - 1)) for name, progress in picture.followers(channel)]
    who = ", ".join(f"{name} ({f'{count(events)} behind' if events else 'up to date'})" for name, events in owed)
    told.append(f"followed by {who}" if who else "followed by nobody")
    return told


def _columns(channel: Channel) -> list[Column]:
    version = channel.version
    return [] if version is None else [Column(item.name, str(item.type), item.nullable) for item in version.schema]


def _run_tree(settings: StoreConfig, *, given: bool, as_json: bool) -> ExitCode:
    rows = LimitsTree(settings).tree()
    if as_json:
        answer_json("channels show", {"limits": rows})
        return ExitCode.DONE
    console = make_console()
    table = make_table("channels", "limit", "value", "from")
    general = {row.key: row.value for row in rows if row.pattern == ALL_CHANNELS}
    shown = ""
    for row in rows:
        for_all = row.pattern == ALL_CHANNELS
        if not for_all and row.inherited_from in _ORIGINS and row.value == general[row.key]:
            continue
        if shown and row.pattern != shown:
            table.add_section()
        place = "" if row.pattern == shown else "all" if for_all else escape(row.pattern)
        origin = _origin(row, own="the settings" if for_all else "its own entry")
        table.add_row(place, row.key, escape(row.text or NOTHING), escape(origin))
        shown = row.pattern
    title(console, "limits: all channels, then each pattern with what differs, widest first", [])
    print_table(console, table)
    _advise(console, given=given)
    return ExitCode.DONE


def _origin(row: LimitRow, *, own: str) -> str:
    return own if row.inherited_from is None else _ORIGINS.get(row.inherited_from, row.inherited_from)


def _advise(console: Console, *, given: bool) -> None:
    if not given:
        console.print("A store does not keep its settings: give the file it runs with, --config FILE, to see its own.")


# ------------------------------------------------------------------------------------------------------------------- rm


def run_rm(name: str, *, directory: Path, config: Path | None, yes: bool, as_json: bool) -> ExitCode:
    """Delete all events of a channel; NO if the person says so."""
    settings = read_config(config, without=CHANGE_NOTHING)
    picture = look(directory, settings)
    facts = facts_of(picture, picture.channel(name))
    if not yes and (as_json or not sys.stdin.isatty()):
        raise BadRequest(f"removing channel {name!r} deletes {several(facts.events, 'event')}; add --yes to do it")
    console = make_console(quiet=as_json)
    with Store.open(directory, settings, inline=True) as store:
        if not yes and not _confirmed(console, facts, _owed(store, name)):
            console.print("Nothing was removed.")
            return ExitCode.NO
        removed = _remove(store, name)
    next_seq = look(directory, settings).channel(name).next_seq
    if as_json:
        answer_json("channels rm", {**msgspec.to_builtins(removed), "next_seq": next_seq})
        return ExitCode.DONE
    parts = f"{several(removed.segments, 'segment')}, {size(removed.bytes)}"
    console.print(f"removed {several(removed.events, 'event')} ({parts}) of channel {escape(name)}", soft_wrap=True)
    for part in removed.lost:
        unread = f"{several(part.events, 'event')} that it had not confirmed"
        console.print(f"  subscriber {escape(part.subscriber)} lost {unread}", soft_wrap=True)
    console.print(f"If it is written to again, its next event gets seq {count(next_seq)}.", soft_wrap=True)
    return ExitCode.DONE


def _confirmed(console: Console, facts: ChannelFacts, owed: Sequence[Share]) -> bool:
    held = f"{several(facts.events, 'event')}, {size(facts.segment_bytes)}"
    losers = [f"subscriber {part.subscriber} has not confirmed {several(part.events, 'event')}" for part in owed]
    title(console, f"channel {facts.name}: {held}", losers or ["no subscriber is owed any of it"])
    return typer.confirm("Delete all of it?", default=False)


def _owed(store: Store, channel: str) -> list[Share]:
    lags = [(state.name, lag) for state in store.subscribers() for lag in state.channels]
    return [Share(name, lag.events) for name, lag in lags if lag.channel == channel and lag.events]


def _remove(store: Store, channel: str) -> Removed:
    lost_before, freed_before = _lost(store, channel), store.statistics().retention.evicted_bytes
    events = store.remove_channel(channel)
    retention, lost = store.statistics().retention, _lost(store, channel) - lost_before
    return Removed(
        channel=channel,
        events=events,
        segments=retention.evictions["removed"],
        bytes=retention.evicted_bytes - freed_before,
        lost=tuple(Share(name, number) for name, number in sorted(lost.items())),
    )


def _lost(store: Store, channel: str) -> Counter[str]:
    """Events per subscriber that went because the channel was removed, over all time."""
    mine = [loss for loss in store.losses() if (loss.channel, loss.reason) == (channel, "removed")]
    return Counter({loss.subscriber: loss.events for loss in mine if loss.subscriber})
