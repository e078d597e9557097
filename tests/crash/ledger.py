"""What was asked of a store and what it answered, as a history for the checker of `holdfast.testing.history`.

After every restart (guarantees G1, G3 and G4) the checker says whether an accepted event is there, once, under the
number of its receipt; a frame without an answer is there as a whole or not at all; nothing else is there; no number was
given out twice; seqs have no gaps, and the events of a channel are in the order in which they were sent. Three things
are looked at here: the values of events, that reading by committed_id gives the same events as reading channel by
channel, and that no two segment files ever had the same number.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from holdfast import Store
from holdfast.errors import UnknownChannel
from holdfast.model.frame import EventIds, FrameReceipt
from holdfast.testing import CrashFilesystem, history
from holdfast.testing.history import Accepted, Happening, Row, Sent
from tests.crash.workload import CHANNELS, Frame, Note, event, send

_SEGMENT = re.compile(r"seg-(\d+)\.arrow")


@dataclass(frozen=True)
class Stored:
    """An event as a store holds it."""

    channel: str
    seq: int
    committed_id: int
    number: int


@dataclass
class Ledger:
    """One history, over any number of restarts."""

    gapless: bool = True
    """Whether seqs must follow each other; a weak flush policy skips some, and what it accepted may be lost."""
    asked: list[Frame] = field(default_factory=list)
    answers: dict[Frame, FrameReceipt] = field(default_factory=dict)
    """What counts as answered; a test that takes an answer away takes it out of here."""
    said: list[tuple[Frame, FrameReceipt | None] | history.Stored] = field(default_factory=list)
    """Calls, answers and what was found, in order."""
    segments: Counter[int] = field(default_factory=Counter)

    def copy(self) -> Ledger:
        """The same history so far, to be continued in another way."""
        return Ledger(self.gapless, list(self.asked), dict(self.answers), list(self.said), Counter(self.segments))

    def note(self, frame: Frame, receipt: FrameReceipt | None) -> None:
        """Write down a call, or its answer."""
        self.said.append((frame, receipt))
        if receipt is None:
            self.asked.append(frame)
        else:
            self.answers.setdefault(frame, receipt)

    def refused(self, frame: Frame) -> None:
        """Write down that the last call was refused: nothing of it may ever be seen, unless it is sent again."""
        assert self.asked.pop() is frame
        assert self.said.pop() == (frame, None)

    def note_segments(self, disk: CrashFilesystem) -> None:
        """Write down the numbers of the segment files that were named on this disk."""
        for _, operation, path in disk.log:
            match = _SEGMENT.fullmatch(path.name)
            if operation == "rename" and match:
                self.segments[int(match[1])] += 1
        twice = [number for number, count in self.segments.items() if count > 1]
        assert not twice, f"segment numbers {twice} were used twice"

    # -- checks -----------------------------------------------------------------------------------------------------

    def check(self, store: Store) -> None:
        """Compare the store with this history; raises AssertionError."""
        found = [item for channel in CHANNELS for item in read_channel(store, channel)]
        rows = tuple(Row(item.channel, item.seq, item.number, item.committed_id) for item in found)
        self.said.append(history.Stored(rows))
        history.require(list(self._happenings()), gapless=self.gapless)
        self._check_committed(store, found)

    def _happenings(self) -> Iterator[Happening]:
        for said in self.said:
            if isinstance(said, history.Stored):
                yield said
                continue
            frame, receipt = said
            if receipt is None:
                yield from (Sent("caller", channel, ids, frame.name) for channel, ids in frame.events.items())
            elif frame in self.answers:
                yield from self._accepted(frame, receipt)

    def _accepted(self, frame: Frame, receipt: FrameReceipt) -> Iterator[Accepted]:
        weak = not self.gapless
        if isinstance(frame.identity, EventIds):  # some of them may be elsewhere since before
            yield from (Accepted(channel, ids, weak=weak) for channel, ids in frame.events.items())
            return
        for answer, (channel, ids) in zip(receipt.entries, frame.events.items(), strict=True):
            assert answer.channel == channel
            yield Accepted(channel, ids, answer.first_seq, answer.first_committed_id, weak)

    def _check_committed(self, store: Store, stored: list[Stored]) -> None:
        expected = sorted(stored, key=lambda item: item.committed_id)
        found = [
            (channel, number) for channel, batch in store.read_committed() for number in batch.column("n").to_pylist()
        ]
        assert found == [(item.channel, item.number) for item in expected]

    def replay(self, store: Store, frames: Iterable[Frame]) -> None:
        """Send frames again, as producers do that do not know; every identity must be recognised."""
        for frame in frames:
            if frame.identity is not None:
                answered = frame in self.answers
                receipt = send(store, frame, self.note)
                assert receipt.duplicate or not answered, f"{frame.name} was accepted before, and stored again"


def read_channel(store: Store, channel: str) -> list[Stored]:
    """Every event of a channel, its value compared with the only one it may have."""
    found: list[Stored] = []
    try:
        batches = list(store.read(channel, system=["_seq", "_committed_id"]))
    except UnknownChannel:
        return []
    for batch in batches:
        for row in batch.to_pylist():
            seq, committed_id = row.pop("_seq"), row.pop("_committed_id")
            number = row["n"]
            value = event(channel, number, wide=row.get("later") is not None)
            assert {name: item for name, item in row.items() if item is not None} == value, f"{channel} {seq} is wrong"
            found.append(Stored(channel, seq, committed_id, number))
    return found


__all__ = ["Ledger", "Note", "Stored", "read_channel"]
