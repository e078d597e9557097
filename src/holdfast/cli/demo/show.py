"""What a person sees of a demo.

Promise: without a terminal nothing moves, and every line stays readable. Shows values and decides nothing.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from rich.markup import escape
from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeElapsedColumn

from holdfast.cli.demo.writer import Opened
from holdfast.cli.display import count, make_console, make_table, several, size

if TYPE_CHECKING:
    from holdfast.cli.demo.run import DemoResult, Life

LIMIT = "SIGKILL proves process death, not power loss. Power cuts are played through in the tests, on a simulated disk."


class Show:
    """The console of one demo."""

    def __init__(self, *, quiet: bool) -> None:
        self._console = make_console(quiet=quiet)
        self._progress: Progress | None = None
        self._task: TaskID | None = None

    def begin(self, store: Path, *, seconds: float, kills: int, seed: int) -> None:
        """What is about to happen."""
        times = "once" if kills == 1 else f"{kills} times"
        self._console.print(
            f"[bold]holdfast demo[/]\n"
            f"A writer commits trades, quotes and orders for {seconds:g} s. It is killed {times} with SIGKILL,\n"
            f"at random moments (seed {seed}), and started again. It sends again whatever it got no answer for.",
            soft_wrap=True,
        )
        self._console.print(f"[dim]Store: {escape(str(store))}[/]\n", soft_wrap=True)

    # -- while it runs ----------------------------------------------------------------------------------------------

    @contextmanager
    def moving(self, seconds: float) -> Iterator[None]:
        """A bar while the writers write, on a terminal."""
        accepted = TextColumn("{task.fields[accepted]}")
        still = self._console.quiet or not self._console.is_terminal
        with Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            accepted,
            TimeElapsedColumn(),
            console=self._console,
            transient=True,
            disable=still,
        ) as progress:
            self._progress = progress
            self._task = progress.add_task("starting", total=seconds, accepted="")
            yield
            self._progress = None

    def progress(self, number: int, *, accepted: int, seconds: float) -> None:
        """Time has passed."""
        if self._progress is not None and self._task is not None:
            text = f"{count(accepted)} events accepted"
            self._progress.update(self._task, advance=seconds, description=f"writer {number}", accepted=text)

    def opened(self, number: int, opened: Opened) -> None:
        """A writer has opened the store and its first frame is answered."""
        found = "made the store"
        if number > 1:
            found = f"recovered {several(opened.recovered_events, 'event')} from the log"
        self._console.print(f"[bold]writer {number}[/]  started (pid {opened.pid}), {found}", soft_wrap=True)

    def ended(self, life: Life) -> None:
        """A writer has ended."""
        how = "[bold red]SIGKILL[/]" if life.killed else "[bold green]closed[/] in order"
        left = f", {several(life.unanswered_frames, 'frame')} without an answer" if life.killed else ""
        accepted = several(life.accepted_events, "event")
        self._console.print(f"          {how} after {life.seconds:.1f} s: {accepted} accepted{left}", soft_wrap=True)

    # -- at the end -------------------------------------------------------------------------------------------------

    def result(self, result: DemoResult) -> None:
        """The proof."""
        self._console.print()
        self._lives(result)
        self._channels(result)
        verified = "every byte verified" if result.verify.intact else "[bold red]damaged[/]"
        self._console.print(
            f"On disk: {several(result.verify.segments, 'segment')}, {size(result.verify.checked_bytes)}, {verified}.\n"
            f"Speed: {count(round(result.accepted_per_second))} events/s accepted, each after its sync; "
            f"{count(round(result.read_per_second))} events/s read back and compared.\n"
            f"[dim]{LIMIT}[/]",
            soft_wrap=True,
        )
        self._verdict(result)

    def _lives(self, result: DemoResult) -> None:
        columns = (
            "writer",
            "log\nrecords",
            "events\nrecovered",
            "torn\nbytes",
            "start\nms",
            "frames\nsent again",
            "stored\nalready",
            "events\naccepted",
        )
        table = make_table(*columns, title="What each start found in the log, and what came of it", right=columns)
        for life in result.lives:
            opened = life.opened
            numbers = (life.number, opened.log_records, opened.recovered_events, opened.torn_bytes_cut)
            more = (round(opened.milliseconds), life.resent_frames, life.duplicate_frames, life.accepted_events)
            table.add_row(*map(count, numbers + more))
        self._console.print(table)

    def _channels(self, result: DemoResult) -> None:
        numbers = ("sent", "accepted", "stored", "lost", "duplicated", "out of\norder", "changed")
        table = make_table("channel", *numbers, title="Events, compared one by one", right=numbers)
        for row in result.channels:
            changed = row.moved + row.altered + row.invented
            flaws = (row.lost, row.duplicated, row.out_of_order, changed)
            table.add_row(row.channel, count(row.sent), count(row.accepted), count(row.stored), *map(_flaw, flaws))
        table.add_section()
        flaws = (result.lost, result.duplicated, result.out_of_order, result.changed)
        table.add_row("all", count(result.sent), count(result.accepted), count(result.stored), *map(_flaw, flaws))
        self._console.print(table)

    def _verdict(self, result: DemoResult) -> None:
        if result.held:
            accepted, kills = several(result.accepted, "event"), several(result.kills, "kill")
            text = f"[bold green]{accepted} accepted, {kills}: 0 lost, 0 duplicated, 0 out of order.[/]"
        else:
            text = (
                f"[bold red]The promise did not hold: {count(result.lost)} lost, "
                f"{count(result.duplicated)} duplicated, {count(result.out_of_order)} out of order, "
                f"{count(result.changed)} changed.[/]\n"
                f"Repeat with --seed {result.seed} --keep, then run holdfast verify on the store."
            )
        self._console.print(f"\n{text}", soft_wrap=True)

    def keep(self, store: Path) -> None:
        """What to try next."""
        self._console.print("\nThe store is kept. Look into it:")
        paths = [store, *sorted(store.glob("wal/*.log"))[:1], *sorted(store.glob("channels/trades/*.arrow"))[:1]]
        for command in [*(f"inspect {path}" for path in paths), f"verify {store}"]:
            self._console.print(escape(f"  holdfast {command}"), soft_wrap=True)


def _flaw(number: int) -> str:
    return f"[green]{number}[/]" if number == 0 else f"[bold red]{count(number)}[/]"
