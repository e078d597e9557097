"""What a person sees of a demo.

Promise: without a terminal nothing moves, and every line stays readable. Shows values and decides nothing.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from rich.markup import escape
from rich.progress import Progress, SpinnerColumn, TaskID, TextColumn

from holdfast.cli.display import count, make_console, make_table, several

if TYPE_CHECKING:
    from holdfast.cli.demo.run import DemoResult

LIMIT = "SIGKILL proves process death, not power loss. Power cuts are played through in the tests, on a simulated disk."


class Show:
    """The console of one demo."""

    def __init__(self, *, quiet: bool) -> None:
        self._console = make_console(quiet=quiet)
        self._progress: Progress | None = None
        self._task: TaskID | None = None

    def begin(self, place: Path, *, seconds: float, seed: int, console: str) -> None:
        """What is about to happen."""
        self._console.print(
            "[bold]holdfast demo[/]\n"
            f"Two Senders and an OpenTelemetry client send for {seconds:g} s to a server; Spark writes Parquet, a\n"
            f"consumer listens. A Sender and the server are killed with SIGKILL at random moments (seed {seed}).\n"
            "Then every event is looked for.",
            soft_wrap=True,
        )
        self._console.print(f"[dim]Watch it: {console}   Files: {escape(str(place))}[/]\n", soft_wrap=True)

    # -- while it runs ------------------------------------------------------------------------------------------------

    @contextmanager
    def moving(self) -> Iterator[None]:
        """Figures while it runs, on a terminal."""
        with Progress(
            SpinnerColumn(),
            TextColumn("{task.fields[figures]}"),
            console=self._console,
            transient=True,
            disable=self._console.quiet or not self._console.is_terminal,
        ) as progress:
            self._progress = progress
            self._task = progress.add_task("", total=None, figures="starting")
            yield
            self._progress = None

    def progress(self, seconds: float, sent: int, accepted: int, spark: int, consumed: int) -> None:  # noqa: PLR0917
        """Time has passed."""
        if self._progress is not None and self._task is not None:
            figures = (
                f"{seconds:4.0f} s   sent {count(sent)}   accepted {count(accepted)}   "
                f"in Parquet {count(spark)}   at the consumer {count(consumed)}"
            )
            self._progress.update(self._task, figures=figures)

    def say(self, seconds: float, text: str) -> None:
        """Something happened."""
        self._console.print(f"[dim]{seconds:5.1f} s[/]  {text}", soft_wrap=True)

    # -- at the end ---------------------------------------------------------------------------------------------------

    def result(self, result: DemoResult) -> None:
        """The proof."""
        self._console.print()
        self._volumes(result)
        self._places(result)
        verified = "every byte verified" if result.intact else "[bold red]damaged[/]"
        self._console.print(
            f"The server was away for {result.outage_seconds:.1f} s; the killed producer left "
            f"{several(result.recovered_frames, 'frame')} in its slot.\n"
            f"The consumer got {several(result.redelivered, 'event')} again, whose confirmation the kill took. "
            f"On disk: {verified}.\n"
            f"Spark closed {several(result.windows, 'sum')} over windows; {count(result.wrong_windows)} of them "
            f"differ from what was sent.\n[dim]{LIMIT}[/]",
            soft_wrap=True,
        )
        self._figures(result)
        self._verdict(result)

    def _volumes(self, result: DemoResult) -> None:
        if result.volumes:
            numbers = ("trades", "volume")
            table = make_table("symbol", *numbers, title="What Spark computed: the busiest symbols", right=numbers)
            for symbol, trades, volume in result.volumes:
                table.add_row(symbol, count(trades), f"{volume:,.0f}")
            self._console.print(table)

    def _places(self, result: DemoResult) -> None:
        numbers = ("promised", "found", "lost", "duplicated", "out of\norder", "changed")
        table = make_table("channel", "where", *numbers, title="Events, compared one by one", right=numbers)
        for item in result.places:
            may_repeat = item.place == "consumer"
            promised = item.found - item.duplicated - item.invented + item.lost
            repeated = f"{count(item.duplicated)} again" if may_repeat and item.duplicated else _flaw(item.duplicated)
            order = "–" if may_repeat else _flaw(item.out_of_order)
            flaws = (_flaw(item.lost), repeated, order, _flaw(item.altered + item.invented))
            table.add_row(item.channel, item.place, count(promised), count(item.found), *flaws)
        self._console.print(table)

    def _figures(self, result: DemoResult) -> None:
        table = make_table("events", "", title="The verdict", right=("",))
        for name, number in (
            ("sent", count(result.sent)),
            ("accepted by the server", count(result.accepted)),
            ("in Spark", count(result.in_spark)),
            ("in Parquet", count(result.in_parquet)),
            ("lost", _flaw(result.lost)),
            ("duplicated", _flaw(result.duplicated)),
            ("outage of the server, seconds", f"{result.outage_seconds:.1f}"),
        ):
            table.add_row(name, number)
        self._console.print(table)

    def _verdict(self, result: DemoResult) -> None:
        if result.held:
            text = (
                f"[bold green]{count(result.sent)} events sent, {count(result.accepted)} accepted, "
                f"{count(result.in_parquet)} in Parquet through Spark; 2 kills: 0 lost, 0 duplicated.[/]"
            )
        else:
            text = (
                f"[bold red]The promise did not hold: {count(result.lost)} lost, "
                f"{count(result.duplicated)} duplicated.[/]\n"
                f"Repeat with --seed {result.seed} --keep, then run holdfast verify on the store."
            )
        self._console.print(f"{text}  ({result.seconds:.0f} s)", soft_wrap=True)

    def staying(self, console: str, place: Path) -> None:
        """What to try next."""
        self._console.print(f"\nThe server runs on. Console: [bold]{console}[/]   Stop it with Ctrl-C. Try:")
        data = place / "data"
        for command in (f"channels ls --data {data}", f"inspect {data}", f"verify {data}"):
            self._console.print(escape(f"  holdfast {command}"), soft_wrap=True)


def _flaw(number: int) -> str:
    return f"[green]{number}[/]" if number == 0 else f"[bold red]{count(number)}[/]"
