"""A history against all rules: `check` lists what is wrong, `require` raises it.

    for line, happening in history:  noted, then judged by the rules it can break  ──►  findings, in order

A finding names its kind, says what was found in words, and points at the lines of the history that show it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from enum import StrEnum

import msgspec

from holdfast.testing.history.happenings import (
    Accepted,
    Acked,
    Bucket,
    Crash,
    Delivered,
    Durable,
    Evicted,
    Happening,
    Joined,
    Kept,
    Mark,
    Refused,
    Restart,
    Sent,
    Settled,
    Stored,
    Wiped,
)
from holdfast.testing.history.readers import Readers
from holdfast.testing.history.stored import Ledger, Verdict

REPORTED_MAX = 20
LINE_CHARS_MAX = 300


class Kind(StrEnum):
    """What can be wrong; see the package."""

    LOST = "lost"
    DUPLICATE = "duplicate"
    PHANTOM = "phantom"
    REORDER = "reorder"
    POSITION = "position"
    REUSED = "reused"
    TORN = "torn"
    SKIP = "skip"
    BACK = "back"
    HOLE = "hole"
    UNDURABLE = "undurable"


class Finding(msgspec.Struct, frozen=True):
    """Something that must not be."""

    kind: Kind
    text: str
    lines: tuple[int, ...]
    """Of the history, from 0."""


class HistoryBroken(AssertionError):
    """A run did what the guarantees exclude."""

    def __init__(self, history: Sequence[Happening], findings: Sequence[Finding]) -> None:
        self.findings = tuple(findings)
        super().__init__(report(history, findings))


def check(history: Iterable[Happening], *, gapless: bool = True) -> list[Finding]:
    """Everything that is wrong, in the order in which it shows.

    Without `gapless` seqs may leave some out, as after a power cut under a weak flush policy.
    """
    checker = _Checker(gapless=gapless)
    return [
        Finding(Kind(kind), text, lines)
        for line, happening in enumerate(history)
        for kind, text, lines in checker.judge(line, happening)
    ]


def require(history: Sequence[Happening], *, gapless: bool = True) -> None:
    """Raise `HistoryBroken` if anything is wrong."""
    findings = check(history, gapless=gapless)
    if findings:
        raise HistoryBroken(history, findings)


def report(history: Sequence[Happening], findings: Sequence[Finding]) -> str:
    """The findings, each with the lines it points at."""
    text: list[str] = []
    for finding in findings[:REPORTED_MAX]:
        text.append(f"{finding.kind}: {finding.text}")
        text += [f"    line {line}: {str(history[line])[:LINE_CHARS_MAX]}" for line in sorted(set(finding.lines))]
    if len(findings) > REPORTED_MAX:
        text.append(f"and {len(findings) - REPORTED_MAX} more")
    return "\n".join(text)


class _Checker:
    def __init__(self, *, gapless: bool) -> None:
        self._ledger = Ledger(gapless=gapless)
        self._readers = Readers(self._ledger)

    def judge(self, line: int, happening: Happening) -> Iterator[Verdict]:
        """What this happening shows."""
        ledger, readers = self._ledger, self._readers
        if isinstance(happening, Accepted):
            yield from ledger.accept(line, happening)
        elif isinstance(happening, Stored):
            yield from ledger.read(line, happening)
        elif isinstance(happening, Bucket):
            yield from ledger.look_into(line, happening)
        elif isinstance(happening, Delivered):
            yield from readers.deliver(line, happening)
        elif isinstance(happening, Settled):
            yield from readers.settle(line, happening)
        elif isinstance(happening, Mark):
            yield from readers.mark(line, happening)
        elif isinstance(happening, Evicted):
            yield from readers.evict(line, happening)
            ledger.evict(happening)
        else:
            self._note(line, happening)

    def _note(self, line: int, happening: Happening) -> None:
        ledger = self._ledger
        if isinstance(happening, Sent):
            ledger.send(line, happening)
        elif isinstance(happening, Kept):
            ledger.kept.update((one, line) for one in happening.ids if one not in ledger.kept)
        elif isinstance(happening, Refused):
            ledger.refuse(line, happening.ids)
        elif isinstance(happening, Durable):
            ledger.tell_durable(line, happening.channel, happening.seq)
        elif isinstance(happening, Joined):
            self._readers.join(happening)
        elif isinstance(happening, Acked):
            self._readers.ack(happening)
        elif isinstance(happening, Wiped):
            ledger.era += 1
            ledger.wipe(line)
            self._readers.wipe()
        elif isinstance(happening, Crash):
            ledger.era += 1
        else:
            assert isinstance(happening, Restart), f"no rule knows {happening!r}"
