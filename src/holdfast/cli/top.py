"""`holdfast top`: a running server in the terminal, live: what the console shows, as a table.

Promise: only looks. A server that goes away is waited for, and said to be away. Without a terminal, or with `--once` or
`--json`, it prints one picture and ends; rates then are those of one second.
"""

from __future__ import annotations

import http.client
import json
import os
import ssl
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from rich.console import Group, RenderableType
from rich.live import Live
from rich.markup import escape
from rich.table import Table
from rich.text import Text

from holdfast.cli.answer import ExitCode, answer_json
from holdfast.cli.channels import lasting
from holdfast.cli.display import count, make_console, make_table, size
from holdfast.errors import BadRequest, ServerAway, Unauthenticated

TIMEOUT_S = 10.0
"""A picture comes each second; so long without one, the server is away."""
RETRY_S = 1.0
ROWS = 12
"""Channels and subscribers that are shown; the console has all."""

Json = dict[str, Any]


class Stream:
    """The pictures of one server."""

    def __init__(self, addr: str, token: str) -> None:
        self.addr = addr
        self._token = token
        self.channels: dict[str, tuple[int, int, int, float]] = {}
        """Last seq, events, bytes and time of the last event."""

    def pictures(self) -> Iterator[Json]:
        """One a second, until the server goes; `ServerAway` then."""
        connection = self._connect()
        try:
            headers = {"Authorization": f"Bearer {self._token}"} if self._token else {}
            connection.request("GET", "/api/v1/live", headers=headers)
            response = connection.getresponse()
            if response.status == 401:
                raise Unauthenticated(reason=f"{self.addr} asks for a token; give --token-file")
            if response.status != 200:
                raise ServerAway(addr=self.addr, reason=f"it answers {response.status}", waited_s=0)
            self.channels.clear()
            for line in response:
                if line.startswith(b"data: "):
                    yield self._taken(json.loads(line[6:]))
        except (OSError, http.client.HTTPException) as error:
            raise ServerAway(addr=self.addr, reason=str(error) or type(error).__name__, waited_s=0) from None
        finally:
            connection.close()
        raise ServerAway(addr=self.addr, reason="it ended the connection", waited_s=0)

    def _taken(self, picture: Json) -> Json:
        for name, last, events, total, active in picture["channels"]["changed"]:
            self.channels[name] = (last, events, total, active)
        for name in picture["channels"]["gone"]:
            self.channels.pop(name, None)
        picture["channels"] = dict(self.channels)
        return picture

    def _connect(self) -> http.client.HTTPConnection:
        parts = urlsplit(self.addr)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise BadRequest(f"--addr {self.addr[:80]!r} is no address; it looks like http://127.0.0.1:9001")
        if parts.scheme == "https":
            context = ssl.create_default_context()
            return http.client.HTTPSConnection(parts.hostname, parts.port or 443, timeout=TIMEOUT_S, context=context)
        return http.client.HTTPConnection(parts.hostname, parts.port or 80, timeout=TIMEOUT_S)


def run(addr: str, *, token_file: str | None, once: bool, as_json: bool) -> ExitCode:
    """Show the server until interrupted."""
    stream = Stream(addr, _token(token_file))
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


def _token(token_file: str | None) -> str:
    if token_file is None:
        return os.environ.get("HOLDFAST_TOKEN", "")
    try:
        return Path(token_file).read_text(encoding="utf-8").strip()
    except OSError as error:
        raise BadRequest(f"--token-file {token_file} cannot be read: {error.strerror}") from None


# -- drawing ----------------------------------------------------------------------------------------------------------


def drawn(now: Json, before: Json | None) -> Group:
    """A picture, with rates against the one before."""
    seconds = max(0.001, now["at"] - before["at"]) if before else 1.0
    parts: list[RenderableType] = [_head(now)]
    if "store" in now:
        parts.append(_figures(now, before, seconds))
    parts += [_channels(now, before, seconds), _subscribers(now)]
    return Group(*parts)


def _head(now: Json) -> RenderableType:
    server = now["server"]
    state = "[bold green]accepting[/]"
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
        ("syncs/s", count(round(rate("store", "syncs")))),
        ("log", f"{size(store['wal_bytes'])} of {size(caps['wal_bytes'])}"),
        ("segments", f"{size(store['segment_bytes'])} in {count(store['segments'])}"),
        ("disk free", size(now["disk"]["free"])),
        ("connections", count(len(now["connections"]))),
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
