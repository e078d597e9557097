"""`holdfast top`: a running server in the terminal, live: what the console shows, as a table.

Promise: only looks. A server that goes away is waited for, and said to be away. Without a terminal, or with `--once` or
`--json`, it prints one picture and ends; rates then are those of one second.
"""

from __future__ import annotations

import json
import math
import threading
from collections.abc import Iterator
from itertools import accumulate
from typing import Any

from rich.console import Group, RenderableType
from rich.live import Live
from rich.markup import escape
from rich.table import Table
from rich.text import Text

from holdfast.cli.answer import ExitCode, answer_json
from holdfast.cli.channels import lasting
from holdfast.cli.display import count, make_console, make_table, size
from holdfast.cli.serverat import server_at
from holdfast.consumer.adminclient import AdminClient
from holdfast.errors import ServerAway

RETRY_S = 1.0
ROWS = 12
"""Channels and subscribers that are shown; the console has all."""
ERRORS = 5

Json = dict[str, Any]


class Stream:
    """The pictures of one server."""

    def __init__(self, client: AdminClient) -> None:
        self._client = client
        self.channels: dict[str, tuple[int, int, int, float]] = {}
        """Last seq, events, bytes and time of the last event."""

    def pictures(self) -> Iterator[Json]:
        """One a second, until the server goes; `ServerAway` then."""
        self.channels.clear()
        for line in self._client.lines("live"):
            if line.startswith(b"data: "):
                yield self._taken(json.loads(line[6:]))

    def _taken(self, picture: Json) -> Json:
        for name, last, events, total, active in picture["channels"]["changed"]:
            self.channels[name] = (last, events, total, active)
        for name in picture["channels"]["gone"]:
            self.channels.pop(name, None)
        picture["channels"] = dict(self.channels)
        return picture


def run(addr: str, *, token_file: str | None, once: bool, as_json: bool) -> ExitCode:
    """Show the server until interrupted."""
    stream = Stream(_client(addr, token_file))
    console = make_console()
    if as_json or once or not console.is_terminal:
        pictures = stream.pictures()
        first, second = next(pictures), next(pictures)
        if as_json:
            answer_json("top", second)
        else:
            console.print(drawn(second, first))
        return ExitCode.DONE
    try:
        with Live(Text("connecting"), console=console, screen=True, auto_refresh=False) as live:
            _follow(stream, live)
    except KeyboardInterrupt:
        pass
    return ExitCode.DONE


def _follow(stream: Stream, live: Live) -> None:
    pause, last = threading.Event(), Group()
    while True:
        before: Json | None = None
        try:
            for picture in stream.pictures():
                last = drawn(picture, before)
                live.update(last, refresh=True)
                before = picture
        except ServerAway as error:
            live.update(Group(Text(str(error), style="bold red"), last), refresh=True)
            pause.wait(RETRY_S)


def _client(addr: str, token_file: str | None) -> AdminClient:
    return AdminClient(server_at(addr, token_file), patience_s=0)


# -- drawing ----------------------------------------------------------------------------------------------------------


def drawn(now: Json, before: Json | None) -> Group:
    """A picture, with rates against the one before."""
    seconds = max(0.001, now["at"] - before["at"]) if before else 1.0
    parts: list[RenderableType] = [_head(now)]
    if "store" in now:
        parts.append(_figures(now, before, seconds))
    parts += [_channels(now, before, seconds), _subscribers(now)]
    parts += [_queries(now)] if now["queries"] else []
    parts += [_errors(now)] if now.get("errors") else []
    return Group(*parts)


def _head(now: Json) -> RenderableType:
    server = now["server"]
    is_full = bool(now.get("store", {}).get("seal_postponed"))
    state = "[bold red]the disk is full[/]" if is_full else "[bold green]accepting[/]"
    for key, words in (("insecure", "open to everyone"), ("draining", "stopping"), ("failed", "the store has failed")):
        if server[key]:
            state = f"[bold red]{words}[/]"
    up = lasting(now["at"] - server["started_at"])
    return Text.from_markup(f"[bold]holdfast[/] {escape(server['version'])}  {state}  up {up}")


def _figures(now: Json, before: Json | None, seconds: float) -> RenderableType:
    def rate(section: str, key: str) -> float:
        return (now[section][key] - before[section][key]) / seconds if before else 0.0

    store, caps, tier = now["store"], now["caps"], now.get("tier")
    pairs = [
        ("events/s", count(round(rate("store", "events")))),
        ("in", f"{size(round(rate('ingest', 'bytes')))}/s"),
        ("accepted within", f"{_wait(now, 0.5)}, 99 %: {_wait(now, 0.99)}"),
        ("syncs/s", count(round(rate("store", "syncs")))),
        ("log", f"{size(store['wal_bytes'])} of {size(caps['wal_bytes'])}"),
        ("segments", f"{size(store['segment_bytes'])} in {count(store['segments'])}"),
        ("disk free", size(now["disk"]["free"])),
        ("senders", _senders(now["senders"])),
        ("refused", count(sum(now["ingest"]["refusals"].values()))),
        ("lost", count(sum(now["losses"].values()))),
    ]
    if tier is not None and tier.get("upload"):
        pairs.append(("tier behind", size(tier["upload"]["pending_bytes"])))
    table = Table.grid(padding=(0, 3))
    for _ in pairs:
        table.add_column()
    table.add_row(*(f"[dim]{name}[/]" for name, _ in pairs))
    table.add_row(*(f"[bold]{value}[/]" for _, value in pairs))
    return table


def _wait(now: Json, part: float) -> str:
    """What that part of all frames waited at most, since the start."""
    counts, bounds = now["latency"]["counts"], [*now["latency"]["bounds"], math.inf]
    below = accumulate(counts)
    total = sum(counts)
    if not total:
        return "–"
    found = next(bound for bound, sum_ in zip(bounds, below, strict=True) if sum_ >= total * part)
    return f"{found * 1000:,.1f} ms" if found < 1 else f"{found:,.1f} s"


def _senders(senders: list[Json]) -> str:
    away = sum(not item["connected"] for item in senders)
    return f"{count(len(senders) - away)}" + (f" [bold red]{away} away[/]" if away else "")


def _queries(now: Json) -> RenderableType:
    numbers = ("batch", "rows/s", "rows", "behind")
    table = make_table("Spark query", *numbers, right=numbers)
    for item in now["queries"][:ROWS]:
        name = escape(item["name"]) + (f" [bold red]{escape(item['error'])}[/]" if item["error"] else "")
        table.add_row(name, *(count(round(item[key])) for key in ("batch", "rows_per_s", "rows", "behind")))
    return table


def _errors(now: Json) -> RenderableType:
    table = make_table("last errors", "", "channel", "from")
    for item in now["errors"][:ERRORS]:
        when = f"{lasting(max(0, now['at'] - item['at']))} ago"
        table.add_row(f"{when} {item['category']}", escape(item["message"]), escape(item["channel"]), item["peer"])
    return table


def _channels(now: Json, before: Json | None, seconds: float) -> RenderableType:
    numbers = ("events/s", "events", "size", "last seq")
    table = make_table("channel", *numbers, right=numbers)
    known = before["channels"] if before else {}
    rated = [
        (name, max(0, last - known.get(name, (last,))[0]) / seconds, last, events, total)
        for name, (last, events, total, _) in now["channels"].items()
    ]
    rated.sort(key=lambda row: (-row[1], -row[3], row[0]))
    for name, rate, last, events, total in rated[:ROWS]:
        table.add_row(escape(name), count(round(rate)), count(events), size(total), count(last))
    if len(rated) > ROWS:
        table.add_row(f"[dim]… {count(len(rated) - ROWS)} more[/]")
    return table


def _subscribers(now: Json) -> RenderableType:
    numbers = ("mark", "behind", "oldest", "gaps", "held")
    table = make_table("subscriber", "channel", *numbers, right=numbers)
    rows = [(item, lag) for item in now["subscribers"] for lag in item["channels"]]
    for item, lag in rows[:ROWS]:
        oldest = lasting(lag["seconds"])
        figures = (count(lag["mark"]), count(lag["events"]), oldest, count(lag["gaps_total"]), count(item["leases"]))
        table.add_row(escape(item["name"]), escape(lag["channel"]), *figures)
    if len(rows) > ROWS:
        table.add_row(f"[dim]… {count(len(rows) - ROWS)} more[/]")
    return table
