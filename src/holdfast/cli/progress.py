"""How far long work is: bars on a terminal, nothing elsewhere.

Promise: a bar goes to standard error, so that what a command prints can be taken from standard output. It is gone when
the work is done.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, DownloadColumn, Progress, ProgressColumn, Task, TaskID, TextColumn
from rich.text import Text

from holdfast.disk.filesystem import Filesystem, Mode
from holdfast.disk.local import LocalFile, LocalFilesystem


def make_progress(*columns: str | ProgressColumn, quiet: bool = False, console: Console | None = None) -> Progress:
    """A bar that shows itself on a terminal only."""
    console = console or Console(stderr=True)
    text = TextColumn("{task.description}")
    return Progress(
        text, *(columns or (BarColumn(),)), console=console, transient=True, disable=quiet or not console.is_terminal
    )


class FollowedFilesystem(LocalFilesystem):
    """The disk; tells of every file that is opened for the first time."""

    def __init__(self, on_file: Callable[[Path, int], None]) -> None:
        self._on_file = on_file
        self._known: set[Path] = set()

    def open(self, path: Path, mode: Mode) -> LocalFile:
        """Open a file, and tell of it and its size."""
        file = super().open(path, mode)
        if path not in self._known:
            self._known.add(path)
            self._on_file(path, file.size_bytes())
        return file


@contextmanager
def following_files(what: str, directory: Path, *, quiet: bool, console: Console | None = None) -> Iterator[Filesystem]:
    """The disk, with a bar of how many bytes of the directory's files were opened."""
    with make_progress(BarColumn(), DownloadColumn(binary_units=True), quiet=quiet, console=console) as bar:
        if bar.disable:
            yield LocalFilesystem()
            return
        task = bar.add_task(escape(what), total=_bytes_in(directory) or None)

        def on_file(path: Path, size_bytes: int) -> None:
            _advance(bar, task, f"{what} {path.name}", size_bytes)

        yield FollowedFilesystem(on_file)


@contextmanager
def following_growth(what: str, directory: Path, *, quiet: bool, console: Console | None = None) -> Iterator[None]:
    """How many bytes a directory has got so far; how many it will have is not known."""
    grown = Polled(lambda: (_bytes_in(directory), 0), "bytes")
    with make_progress(BarColumn(), grown, quiet=quiet, console=console) as bar:
        bar.add_task(escape(what), total=None)
        yield


def _advance(bar: Progress, task: TaskID, text: str, size_bytes: int) -> None:
    bar.update(task, description=escape(text), advance=size_bytes)


def _bytes_in(directory: Path) -> int:
    return sum(path.stat().st_size for path in directory.rglob("*") if path.is_file()) if directory.is_dir() else 0


class Polled(ProgressColumn):
    """A bar of what somebody else counts: asked for done and all, 0 if unknown, whenever it is drawn."""

    max_refresh = 0.5

    def __init__(self, ask: Callable[[], tuple[int, int]], things: str) -> None:
        super().__init__()
        self._ask = ask
        self._things = things

    def render(self, task: Task) -> Text:
        """The counts of now."""
        done, total = self._ask()
        task.completed, task.total = done, total or None
        return Text(f"{done:,} of {total:,} {self._things}" if total else f"{done:,} {self._things}")
