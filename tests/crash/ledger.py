"""What was asked of a store and what it answered, and the comparison of that with what the store holds.

The checks, after every restart (guarantees G1, G3 and G4):

- an accepted event is there, once, under the number of its receipt, with its own value;
- a frame that got no answer is there as a whole or not at all, over all its channels, as far as no other frame brings
  the same events;
- nothing else is there;
- what one reader saw under a seq or a committed_id, every later reader sees there: no number is given out twice;
- seqs are 1, 2, 3 … without a gap; the events of a channel are in the order in which they were sent;
- reading by committed_id gives the same events as reading channel by channel;
- no two segment files ever had the same number.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field

from holdfast import Store
from holdfast.errors import UnknownChannel
from holdfast.model.frame import EventIds, FrameReceipt
from holdfast.testing import CrashFilesystem
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
    """Whether seqs must follow each other; a weak flush policy skips some."""
    asked: list[Frame] = field(default_factory=list)
    answers: dict[Frame, FrameReceipt] = field(default_factory=dict)
    seen: dict[tuple[str, int], Stored] = field(default_factory=dict)
    seen_ids: dict[int, Stored] = field(default_factory=dict)
    order: dict[str, list[int]] = field(default_factory=lambda: {channel: [] for channel in CHANNELS})
    since: list[Frame] = field(default_factory=list)
    """Frames sent since the last check."""
    segments: Counter[int] = field(default_factory=Counter)

    def copy(self) -> Ledger:
        """The same history so far, to be continued in another way."""
        return Ledger(
            self.gapless,
            list(self.asked),
            dict(self.answers),
            dict(self.seen),
            dict(self.seen_ids),
            {channel: list(numbers) for channel, numbers in self.order.items()},
            list(self.since),
            Counter(self.segments),
        )

    def note(self, frame: Frame, receipt: FrameReceipt | None) -> None:
        """Write down a call, or its answer."""
        if receipt is None:
            self.asked.append(frame)
            self.since.append(frame)
            return
        before = self.answers.setdefault(frame, receipt)
        if receipt.duplicate and not isinstance(frame.identity, EventIds):
            assert positions(receipt) == positions(before), f"{frame.name} was answered with two places"
        elif before is not receipt:
            assert isinstance(frame.identity, EventIds), f"{frame.name} was stored twice"

    def refused(self, frame: Frame) -> None:
        """Write down that the last call was refused: nothing of it may ever be seen, unless it is sent again."""
        assert self.asked.pop() is frame
        assert self.since.pop() is frame

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
        stored = {channel: read_channel(store, channel) for channel in CHANNELS}
        for channel, found in stored.items():
            self._check_channel(channel, found)
        by_number = {item.number: item for found in stored.values() for item in found}
        for frame, receipt in self.answers.items():
            self._check_answered(frame, receipt, by_number)
        self._check_unanswered(set(by_number))
        self._check_committed(store, stored)
        self.since.clear()

    def _check_channel(self, channel: str, found: list[Stored]) -> None:
        numbers = [item.number for item in found]
        assert len(set(numbers)) == len(numbers), f"{channel}: events stored twice: {numbers}"
        seqs = [item.seq for item in found]
        if self.gapless:
            assert seqs == list(range(1, len(seqs) + 1)), f"{channel}: seqs have gaps: {seqs}"
        assert seqs == sorted(set(seqs))
        for item in found:
            assert self.seen.setdefault((channel, item.seq), item) == item, f"{channel} {item.seq} changed its meaning"
            assert self.seen_ids.setdefault(item.committed_id, item) == item, f"{item.committed_id} changed its meaning"
        self._check_order(channel, numbers)

    def _check_order(self, channel: str, numbers: list[int]) -> None:
        expected = list(self.order[channel])
        known = set(expected)
        for frame in self.since:
            fresh = [number for number in frame.events.get(channel, ()) if number in numbers and number not in known]
            expected += fresh
            known.update(fresh)
        if self.gapless:
            assert numbers == expected, f"{channel}: {numbers} is not what was sent: {expected}"
        else:
            assert numbers == [number for number in expected if number in set(numbers)]
        self.order[channel] = numbers

    def _check_answered(self, frame: Frame, receipt: FrameReceipt, by_number: dict[int, Stored]) -> None:
        missing = [number for number in frame.numbers() if number not in by_number]
        assert not missing or not self.gapless, f"{frame.name} was accepted, but {missing} are lost"
        if isinstance(frame.identity, EventIds):
            return
        for answer, (channel, numbers) in zip(receipt.entries, frame.events.items(), strict=True):
            assert answer.channel == channel
            for offset, number in enumerate(numbers):
                expected = Stored(channel, answer.first_seq + offset, answer.first_committed_id + offset, number)
                assert by_number.get(number, expected) == expected, f"{frame.name}: the receipt was wrong"

    def _check_unanswered(self, present: set[int]) -> None:
        promised = {number for frame in self.answers for number in frame.numbers()}
        allowed = set(promised)
        frames = set(self.asked)  # one that was sent again is still one
        senders = Counter(number for frame in frames for number in frame.numbers())
        for frame in frames:
            allowed |= set(frame.numbers())
            fresh = {number for number in frame.numbers() if senders[number] == 1} - promised  # no other may bring them
            assert fresh <= present or fresh.isdisjoint(present), f"{frame.name} is there in part: {fresh & present}"
        assert present <= allowed, f"events nobody sent: {present - allowed}"

    def _check_committed(self, store: Store, stored: dict[str, list[Stored]]) -> None:
        expected = sorted((item for found in stored.values() for item in found), key=lambda item: item.committed_id)
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


def positions(receipt: FrameReceipt) -> list[tuple[str, int, int, int]]:
    """Where the entries of a frame are."""
    return [(entry.channel, entry.first_seq, entry.last_seq, entry.first_committed_id) for entry in receipt.entries]


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


__all__ = ["Ledger", "Note", "Stored", "positions", "read_channel"]
