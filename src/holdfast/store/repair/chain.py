"""The files of one log among each other: which are needed, and where the row of files is broken.

Promise: pure. A log without problems is one that a start reads without a word; with only *ended* problems, one whose
files merely stop too early, so that nothing that was written is wrong, but some of it is missing.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import zip_longest
from pathlib import Path

from holdfast.disk.appendlog import log_path
from holdfast.store.repair.salvage import FoundLog


@dataclass(frozen=True, slots=True)
class Problem:
    """A place where a log cannot be read on."""

    path: Path
    offset_bytes: int
    reason: str
    ended: bool = False
    needed: bool = True
    """False for a file that is only still there; it matters because a start reads the header of every file."""
    dump: str = ""


def log_problems(files: Sequence[FoundLog], folder: Path, *, name: str, cursor: int | None) -> list[Problem]:
    """Everything that keeps a start from reading a log from position `cursor` on; None reads all there is."""
    problems = list(_start(files, folder, name=name, cursor=cursor))
    before: FoundLog | None = None
    for found, after in zip_longest(files, files[1:]):
        needed = after is None or after.start_position is None or after.start_position > (cursor or 0)
        problems += _inside(found, needed=needed)
        if needed:
            problems += _between(before, found, folder, name=name)
            before = found
    return problems


def _start(files: Sequence[FoundLog], folder: Path, *, name: str, cursor: int | None) -> Iterator[Problem]:
    if cursor is None:
        return
    if not files:
        yield Problem(folder, 0, f"log {name!r} is needed from position {cursor} on, and there is no file of it")
    elif (files[0].start_position or 0) > cursor:
        start = files[0].start_position
        reason = f"is missing: the log is needed from position {cursor} on, and begins at {start}"
        yield Problem(log_path(folder, name, files[0].number - 1), 0, reason)


def _inside(found: FoundLog, *, needed: bool) -> Iterator[Problem]:
    if found.foreign:
        yield Problem(found.path, 0, found.foreign, needed=needed)
    elif found.header_damage:
        ended = found.header is None and found.holes[0].ended
        dump = found.holes[0].dump if found.holes else ""
        yield Problem(found.path, 0, found.header_damage, ended, needed, dump)
    if needed and found.header is not None:
        for hole in found.holes:
            yield Problem(found.path, hole.offset_bytes, hole.reason, hole.ended, dump=hole.dump)


def _between(before: FoundLog | None, found: FoundLog, folder: Path, *, name: str) -> Iterator[Problem]:
    if before is None:
        return
    if found.number != before.number + 1:
        reason = f"is missing: {before.path.name} comes before it, {found.path.name} after it"
        yield Problem(log_path(folder, name, before.number + 1), 0, reason)
    elif before.start_position is None or found.start_position is None or before.ends_in_hole:
        return
    elif found.start_position != before.end_position:
        reason = f"ends at position {before.end_position}, the next file begins at {found.start_position}"
        ended = found.start_position > before.end_position
        yield Problem(before.path, before.end_offset, reason, ended)
