"""The console, and numbers, sizes and damage for people.

Promise: output that goes to a file or a pipe is as wide as its tables need, has no colours and no moving parts.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import TypeVar

from rich import box
from rich.console import Console
from rich.markup import escape
from rich.table import Table

PIPE_COLUMNS = 160
"""A file has no width; this one keeps the longest row of our tables on one line."""

ELLIPSIS = "…"

_Item = TypeVar("_Item")


def make_console(*, quiet: bool = False) -> Console:
    """Standard output."""
    console = Console(highlight=False, quiet=quiet)
    if not console.is_terminal and "COLUMNS" not in os.environ:
        console.width = PIPE_COLUMNS
    return console


def make_table(*columns: str, title: str = "", right: Sequence[str] = ()) -> Table:
    """A table in the one style; columns named in `right` hold numbers."""
    table = Table(title=title or None, title_justify="left", title_style="bold", box=box.SIMPLE_HEAD, pad_edge=False)
    for column in columns:
        table.add_column(column, justify="right" if column in right else "left", no_wrap=column in right)
    return table


def count(number: int) -> str:
    """`1234567` as `1,234,567`."""
    return f"{number:,}"


def several(number: int, thing: str, things: str = "") -> str:
    """`1 file`, `2 files`, `2 batches`."""
    return f"{number:,} {thing if number == 1 else things or thing + 's'}"


def size(number: int) -> str:
    """`1536` as `1.5 KiB`."""
    value = float(number)
    for unit in ("B", "KiB", "MiB", "GiB"):
        if value < 1024:
            return f"{number} B" if unit == "B" else f"{value:.1f} {unit}"
        value /= 1024
    return f"{value:.1f} TiB"


def moment(time_ns: int) -> str:
    """Nanoseconds since 1970 as a UTC time."""
    seconds, rest_ns = divmod(time_ns, 10**9)
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%d %H:%M:%S") + f".{rest_ns // 10**6:03d}Z"


def shortened(items: Sequence[_Item], limit: int) -> tuple[Sequence[_Item], int, Sequence[_Item]]:
    """The beginning, how many are left out, and the end; at most `limit` in all, 0 is all."""
    if limit == 0 or len(items) <= limit:
        return items, 0, []
    head = (limit + 1) // 2
    return items[:head], len(items) - limit, items[len(items) - (limit - head) :]


def print_place(console: Console, kind: str, text: str, *, dump: str = "") -> None:
    """One place of a file, with its bytes if known."""
    style = "bold red" if kind == "damage" else "yellow"
    console.print(f"[{style}]{kind}[/] {escape(text)}", soft_wrap=True)
    if dump:
        console.print(escape(dump), style="dim", soft_wrap=True)
