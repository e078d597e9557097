"""`holdfast subscribers`: how far each subscriber is, what it is owed, what it lost; remove one, or put it elsewhere.

Promise: `ls` and `show` only look (picture.py); confirmations count as soon as they are in the acknowledgement log.
`rm` and `reset` take the store's lock; `rm` says what was still owed, `reset` what comes again and what is skipped.
Leases are known only to the process that gave them. With `--addr` the server that has the store is asked instead; it
shows what the caller may see.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, fields
from datetime import datetime
from pathlib import Path
from typing import Any, Protocol

import typer
from rich.console import Console
from rich.markup import escape

from holdfast.cli.answer import ExitCode, answer_json
from holdfast.cli.channels import NOTHING, lasting, print_table, title
from holdfast.cli.display import count, make_console, make_table, moment, several, shortened, size
from holdfast.cli.picture import CHANGE_NOTHING, Picture, look, read_config
from holdfast.cli.serverat import server_at
from holdfast.cli.tail import position
from holdfast.consumer.adminclient import AdminClient
from holdfast.errors import BadRequest
from holdfast.store.catalog import Loss
from holdfast.store.reading import Position
from holdfast.store.store import Store
from holdfast.store.subscribers.moves import Move
from holdfast.store.subscribers.registry import SubscriberState
from holdfast.store.subscribers.subscriber import ChannelLag

RANGES_SHOWN_MAX = 20
"""Ranges in one cell of `show`; JSON has all."""
PATIENCE_S = 10.0
"""How long a server may be away: a person waits."""


@dataclass(frozen=True, slots=True)
class SubscriberFacts:
    """A subscriber: what it follows, and how far it is in each channel. `events` is what it is owed in all."""

    name: str
    patterns: tuple[str, ...]
    newest_first: bool
    created_at_ns: int
    events: int
    channels: tuple[ChannelLag, ...]


@dataclass(frozen=True, slots=True)
class Looked:
    """All subscribers, and where they were found."""

    place: str
    owner: str
    holder_pid: int | None
    subscribers: list[SubscriberFacts]


class There:
    """The subscribers of a running server."""

    def __init__(self, addr: str, token_file: Path | None) -> None:
        self._client = AdminClient(server_at(addr, token_file), patience_s=PATIENCE_S)
        self.addr = addr

    def look(self) -> Looked:
        """All that may be seen."""
        found = [_facts(item) for item in self._client.pages("subscribers")]
        return Looked(self.addr, "told by the server", None, found)

    def one(self, name: str) -> tuple[SubscriberFacts, list[Loss]]:
        """One of them, and what it lost."""
        with _told():
            told = self._client.get("subscribers", name)
        return _facts(told), [Loss(**loss) for loss in told["losses"]]

    def remove(self, name: str) -> tuple[int, list[ChannelLag]]:
        """Deregister; how much was owed, and where."""
        facts, _ = self.one(name)
        with _told():
            return int(self._client.delete("subscribers", name)["owed_events"]), list(facts.channels)

    def plan(self, wanted: Wanted) -> list[Move]:
        """What a reset would change."""
        return self._reset(wanted, plan=True)

    def apply(self, wanted: Wanted) -> list[Move]:
        """Change it, durably."""
        return self._reset(wanted, plan=False)

    def _reset(self, wanted: Wanted, *, plan: bool) -> list[Move]:
        to = wanted.place
        body = {"to": to.isoformat() if isinstance(to, datetime) else to, "channel": wanted.channel, "plan": plan}
        with _told():
            found = self._client.post("subscribers", wanted.name, "reset", body=body)
        return [Move(**move) for move in found["channels"]]


@contextmanager
def _told() -> Iterator[None]:
    """A server's "there is none" is the caller's mistake, not a missing file."""
    try:
        yield
    except FileNotFoundError as error:
        raise BadRequest(str(error)) from None


def _facts(told: dict[str, Any]) -> SubscriberFacts:
    lags = tuple(
        ChannelLag(
            **{item.name: lag[item.name] for item in fields(ChannelLag)} | {"gaps": tuple(map(tuple, lag["gaps"]))}
        )
        for lag in told["channels"]
    )
    events = sum(lag.events for lag in lags)
    return SubscriberFacts(
        told["name"], tuple(told["patterns"]), told["newest_first"], told["created_at_ns"], events, lags
    )


def _look_here(directory: Path, config: Path | None) -> Looked:
    picture = look(directory, read_config(config))
    found = [facts_of(picture, state) for state in picture.registry.states()]
    return Looked(str(directory), picture.owner, picture.holder_pid, found)


def facts_of(picture: Picture, state: SubscriberState) -> SubscriberFacts:
    """What a picture says of a subscriber."""
    note, lags = state.note, tuple(picture.lag_of(state))
    events = sum(lag.events for lag in lags)
    return SubscriberFacts(note.name, note.patterns, note.newest_first, note.created_at_ns, events, lags)


def ranges(spans: Sequence[tuple[int, int]], *, limit: int = RANGES_SHOWN_MAX) -> str:
    """`301..350, 400, … 12 more`."""
    texts = [count(first) if first == last else f"{count(first)}..{count(last)}" for first, last in spans]
    more = [f"… {len(texts) - limit:,} more"] if len(texts) > limit else []
    return ", ".join([*texts[:limit], *more]) or NOTHING


# ------------------------------------------------------------------------------------------------------------------- ls


def run_ls(directory: Path, *, config: Path | None, there: There | None, limit: int, as_json: bool) -> ExitCode:
    """All subscribers."""
    looked = there.look() if there is not None else _look_here(directory, config)
    found = looked.subscribers
    if as_json:
        result = {"directory": looked.place, "holder_pid": looked.holder_pid, "subscribers": found}
        answer_json("subscribers ls", result)
        return ExitCode.DONE
    console = make_console()
    behind = sum(facts.events > 0 for facts in found)
    state = f"{behind} behind" if behind else "none behind"
    title(console, f"{looked.place}: {several(len(found), 'subscriber')}, {state}", [looked.owner])
    if found:
        _show_list(console, found, limit)
    return ExitCode.DONE


def _show_list(console: Console, found: Sequence[SubscriberFacts], limit: int) -> None:
    numbers = ("mark", "behind", "size", "waiting")
    table = make_table("subscriber", "channel", *numbers, "gaps", right=numbers)
    rows = [(facts, lag) for facts in found for lag in facts.channels or (None,)]
    head, left_out, tail = shortened(rows, limit)
    named = ""
    for part in (head, tail):
        for facts, lag in part:
            name = "" if facts.name == named else escape(facts.name)
            named = facts.name
            if lag is None:
                table.add_row(name, "(none)")
            else:
                table.add_row(name, *_lag_cells(lag), ranges(lag.gaps, limit=1))
        if part is head and left_out:
            table.add_row("…")
            named = ""
    print_table(console, table, left_out=left_out)


def _lag_cells(lag: ChannelLag) -> list[str]:
    owed = [count(lag.events), size(lag.bytes), lasting(lag.seconds)] if lag.events else [NOTHING] * 3
    return [escape(lag.channel), count(lag.mark), *owed]


# ----------------------------------------------------------------------------------------------------------------- show


def run_show(name: str, *, directory: Path, config: Path | None, there: There | None, as_json: bool) -> ExitCode:
    """One subscriber."""
    if there is not None:
        (facts, losses), place = there.one(name), there.addr
    else:
        picture, place = look(directory, read_config(config)), str(directory)
        facts = facts_of(picture, picture.subscriber(name))
        losses = [loss for loss in picture.losses if loss.subscriber == name]
    if as_json:
        answer_json("subscribers show", {"subscriber": facts, "losses": losses})
        return ExitCode.DONE
    console = make_console()
    order = "newest first" if facts.newest_first else "oldest first"
    owed = f"{several(facts.events, 'event')} owed" if facts.events else "nothing owed"
    told = [
        f"follows {', '.join(facts.patterns)}; {order}",
        f"registered {moment(facts.created_at_ns)}; {owed}",
    ]
    title(console, f"{name}: subscriber of {place}", told)
    _show_channels(console, facts)
    if losses:
        _show_losses(console, losses)
    return ExitCode.DONE


def _show_channels(console: Console, facts: SubscriberFacts) -> None:
    if not facts.channels:
        console.print("  no channel matches yet; one that does joins by itself", soft_wrap=True)
        return
    numbers = ("mark", "behind", "size", "waiting")
    table = make_table("channel", *numbers, "gaps", right=numbers)
    for lag in facts.channels:
        table.add_row(*_lag_cells(lag), ranges(lag.gaps))
    print_table(console, table)
    if any(lag.gaps for lag in facts.channels):
        console.print("Gaps are events below the highest confirmed one that are not confirmed.", soft_wrap=True)


def _show_losses(console: Console, losses: Sequence[Loss]) -> None:
    numbers = ("events", "segments", "size")
    table = make_table("lost of", "reason", *numbers, title="lost without being confirmed", right=numbers)
    for loss in losses:
        table.add_row(
            escape(loss.channel), escape(loss.reason), count(loss.events), count(loss.segments), size(loss.bytes)
        )
    print_table(console, table)


# ------------------------------------------------------------------------------------------------------------------- rm


def run_rm(name: str, *, directory: Path, config: Path | None, there: There | None, as_json: bool) -> ExitCode:
    """Deregister a subscriber."""
    owed, lags = there.remove(name) if there is not None else _remove_here(name, directory, config)
    parts = {lag.channel: lag.events for lag in sorted(lags, key=lambda lag: lag.channel) if lag.events}
    if as_json:
        answer_json("subscribers rm", {"subscriber": name, "owed_events": owed, "owed_by_channel": parts})
        return ExitCode.DONE
    console = make_console()
    where = ", ".join(f"{channel} {count(events)}" for channel, events in parts.items())
    rest = f"{several(owed, 'event')} were still owed to it: {where}" if owed else "nothing was owed to it"
    console.print(f"removed subscriber {escape(name)}; {escape(rest)}", soft_wrap=True)
    return ExitCode.DONE


def _remove_here(name: str, directory: Path, config: Path | None) -> tuple[int, list[ChannelLag]]:
    settings = read_config(config, without=CHANGE_NOTHING)
    look(directory, settings).subscriber(name)
    with Store.open(directory, settings, inline=True) as store:
        lags = [lag for state in store.subscribers() if state.name == name for lag in state.channels]
        return store.deregister(name), lags


# ---------------------------------------------------------------------------------------------------------------- reset


@dataclass(frozen=True, slots=True)
class Wanted:
    """What is to be reset, and where to."""

    name: str
    channel: str | None
    to: str

    @property
    def place(self) -> Position:
        """The place, of which `to` is the text."""
        return position(self.to, option="--to")


class Resetting(Protocol):
    """A store in which subscribers are put elsewhere."""

    def plan(self, wanted: Wanted) -> list[Move]:
        """What would change."""

    def apply(self, wanted: Wanted) -> list[Move]:
        """Change it, durably."""


class _Here:
    """A store that nobody else has open."""

    def __init__(self, store: Store) -> None:
        self._port = store.handing

    def plan(self, wanted: Wanted) -> list[Move]:
        return self._port.plan_reset(wanted.name, wanted.channel, to=wanted.place)

    def apply(self, wanted: Wanted) -> list[Move]:
        return self._port.reset(wanted.name, wanted.channel, to=wanted.place)


def run_reset(wanted: Wanted, *, directory: Path, config: Path | None, yes: bool, as_json: bool) -> ExitCode:
    """Put a subscriber of a store at another place; NO if the person says so."""
    assert wanted.place is not None  # says what is wrong with it before anything is opened
    settings = read_config(config, without=CHANGE_NOTHING)
    look(directory, settings).subscriber(wanted.name)
    _check_yes(wanted, yes=yes, as_json=as_json)
    with Store.open(directory, settings, inline=True) as store:
        return _reset(_Here(store), wanted, yes=yes, as_json=as_json)


def run_reset_there(wanted: Wanted, there: There, *, yes: bool, as_json: bool) -> ExitCode:
    """The same, done by a running server."""
    assert wanted.place is not None
    _check_yes(wanted, yes=yes, as_json=as_json)
    return _reset(there, wanted, yes=yes, as_json=as_json)


def _check_yes(wanted: Wanted, *, yes: bool, as_json: bool) -> None:
    if not yes and (as_json or not sys.stdin.isatty()):
        text = f"resetting subscriber {wanted.name!r} delivers events again, or skips them; add --yes to do it"
        raise BadRequest(text)


def _reset(store: Resetting, wanted: Wanted, *, yes: bool, as_json: bool) -> ExitCode:
    console = make_console(quiet=as_json)
    if not yes and not _may_move(console, wanted.name, store.plan(wanted)):
        console.print("Nothing was changed.")
        return ExitCode.NO
    moves = store.apply(wanted)
    if as_json:
        answer_json("subscribers reset", {"subscriber": wanted.name, "to": wanted.to, "channels": moves})
        return ExitCode.DONE
    console.print(f"reset subscriber {escape(wanted.name)} to {escape(wanted.to)}", soft_wrap=True)
    _show_moves(console, moves)
    return ExitCode.DONE


def _may_move(console: Console, name: str, moves: Sequence[Move]) -> bool:
    title(console, f"subscriber {name}: what would change", [])
    _show_moves(console, moves)
    return typer.confirm("Put it there?", default=False)


def _show_moves(console: Console, moves: Sequence[Move]) -> None:
    for move in moves:
        told = [f"mark {count(move.mark_before)} to {count(move.mark)}"]
        told += [f"{several(move.again, 'event')} to be delivered again"] if move.again else []
        told += [f"{several(move.skipped, 'event')} skipped"] if move.skipped else []
        console.print(f"  {escape(move.channel)}: {', '.join(told)}", soft_wrap=True)
    if not moves:
        console.print("  it follows no channel yet", soft_wrap=True)
