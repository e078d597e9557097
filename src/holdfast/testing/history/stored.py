"""Rules about what a store holds: everything that was promised, once, in order, where it was said to be.

`Ledger` is told what was handed over and answered, and judges every place at which an event is seen.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from holdfast.model.intervals import IntervalSet
from holdfast.testing.history.happenings import Accepted, Bucket, Evicted, Id, Row, Sent, Stored

Verdict = tuple[str, str, tuple[int, ...]]
"""Kind, text, and the lines of the history that are to be looked at."""
NOTHING = IntervalSet()


@dataclass(slots=True)
class _Sending:
    """An event as its producers sent it."""

    sources: dict[str, list[int]] = field(default_factory=dict)
    """Per producer the numbers of its sendings, ascending."""
    lines: list[int] = field(default_factory=list)
    frames: set[str] = field(default_factory=set)
    """Those that bring it."""
    refused_at: int | None = None


@dataclass(slots=True)
class _Seen:
    """What stands at a place."""

    id: Id
    line: int
    era: int
    committed_id: int


@dataclass
class Ledger:
    """What is known so far about events and places."""

    gapless: bool = True
    sent: dict[Id, _Sending] = field(default_factory=dict)
    frames: dict[str, set[Id]] = field(default_factory=dict)
    accepted: dict[Id, int] = field(default_factory=dict)
    weak: set[Id] = field(default_factory=set)
    kept: dict[Id, int] = field(default_factory=dict)
    at: dict[tuple[str, int], _Seen] = field(default_factory=dict)
    place: dict[Id, tuple[str, int]] = field(default_factory=dict)
    committed: dict[int, tuple[str, int]] = field(default_factory=dict)
    durable: dict[str, tuple[int, int]] = field(default_factory=dict)
    gone: dict[str, IntervalSet] = field(default_factory=dict)
    """Evicted, or lost with a disk: may be missing."""
    excused: set[Id] = field(default_factory=set)
    """Taken away before a disk was lost: whoever sends them again finds nobody who remembers that."""
    seen: dict[str, IntervalSet] = field(default_factory=dict)
    """Every place at which an event was ever seen."""
    is_wiped: bool = False
    """The disk was lost: channels came back up to `wiped_at`, and their next events come some way behind."""
    wiped_at: dict[str, int] = field(default_factory=dict)
    wiped_line: int = -1
    era: int = 0
    """Grows with every crash."""
    _sendings: int = 0

    # -- what was said ----------------------------------------------------------------------------------------------

    def send(self, line: int, said: Sent) -> None:
        """Note a sending."""
        for one in said.ids:
            self._sendings += 1
            known = self.sent.setdefault(one, _Sending())
            known.sources.setdefault(said.source, []).append(self._sendings)
            known.lines.append(line)
            known.frames.add(said.frame)
            known.refused_at = None
        if said.frame:
            self.frames.setdefault(said.frame, set()).update(said.ids)

    def accept(self, line: int, said: Accepted) -> Iterator[Verdict]:
        """Note an answer, and where it says that events are."""
        for offset, one in enumerate(said.ids):
            if not self.is_old_news(said.sent_at):
                self.accepted.setdefault(one, line)
            if said.weak:
                self.weak.add(one)
            if one not in self.sent:
                yield ("phantom", f"event {one} was accepted, and nobody sent it", (line,))
            if said.first_seq:
                committed_id = said.first_committed_id + offset if said.first_committed_id else 0
                row = Row(said.channel, said.first_seq + offset, one, committed_id)
                yield from self.see(line, row, sent_at=said.sent_at)

    def refuse(self, line: int, ids: Iterable[Id]) -> None:
        """Note that these will never be there."""
        for one in ids:
            if one in self.sent:
                self.sent[one].refused_at = line

    def evict(self, said: Evicted) -> None:
        """Note that these may be missing."""
        self.gone.setdefault(said.channel, IntervalSet()).add(said.first, said.last)

    def tell_durable(self, line: int, channel: str, seq: int) -> None:
        """Note what was told about the bucket."""
        if seq > self.durable.get(channel, (0, 0))[0]:
            self.durable[channel] = (seq, line)

    def is_old_news(self, sent_at: int | None) -> bool:
        """Whether a server said it that has lost its disk since, while the network kept it back."""
        return sent_at is not None and sent_at <= self.wiped_line

    def wipe(self, line: int) -> None:
        """Forget where events are that nobody called durable: they may be lost, and come to other places.

        Their numbers stay what they were: nobody else may have them.
        """
        self.is_wiped, self.wiped_line = True, line
        for channel in self.seen:
            self.wiped_at[channel] = self.durable.get(channel, (0, 0))[0]
        for (channel, seq), seen in self.at.items():
            if seq > self.wiped_at[channel]:
                if seq in self.gone.get(channel, NOTHING):
                    self.excused.add(seen.id)
                self.gone.setdefault(channel, IntervalSet()).add(seq, seq)
                if self.place.get(seen.id) == (channel, seq):
                    del self.place[seen.id]
        self.accepted = {one: line for one, line in self.accepted.items() if one in self.place}

    # -- what is seen -----------------------------------------------------------------------------------------------

    def see(self, line: int, row: Row, *, sent_at: int | None = None) -> Iterator[Verdict]:
        """An event stands at a place: it was sent, and neither stood elsewhere nor did another one stand there.

        Old news says where it stood on a disk that is lost; it may stand elsewhere now.
        """
        sending = self.sent.get(row.id)
        if sending is None:
            yield ("phantom", f"{_where(row)} holds event {row.id}, which nobody sent", (line,))
        elif sending.refused_at is not None:
            lines = (sending.refused_at, line)
            yield ("phantom", f"{_where(row)} holds event {row.id}, which was refused for good", lines)
        before = self.at.get((row.channel, row.seq))
        if before is None:
            self.at[row.channel, row.seq] = _Seen(row.id, line, self.era, row.committed_id)
            self.seen.setdefault(row.channel, IntervalSet()).add(row.seq, row.seq)
        elif before.id != row.id:
            kind = "position" if before.era == self.era else "reused"
            yield (kind, f"{_where(row)} was event {before.id} and is event {row.id}", (before.line, line))
        if self.is_old_news(sent_at) and row.seq > self.wiped_at.get(row.channel, 0):
            self.gone.setdefault(row.channel, IntervalSet()).add(row.seq, row.seq)
            return
        place = self.place.setdefault(row.id, (row.channel, row.seq))
        if place != (row.channel, row.seq):
            earlier = [seen.line for seen in [self.at.get(place)] if seen is not None]
            yield ("position", f"event {row.id} is at {_where(row)} and at {place[0]} {place[1]}", (*earlier, line))
        elif before is not None and before.id == row.id:
            yield from self._same_number(line, row, before)
        if row.committed_id:
            here = (row.channel, row.seq)
            other = self.committed.setdefault(row.committed_id, here)
            if other != here:
                text = f"committed_id {row.committed_id} is {other[0]} {other[1]} and {_where(row)}"
                yield ("position", text, (line,))

    @staticmethod
    def _same_number(line: int, row: Row, before: _Seen) -> Iterator[Verdict]:
        if row.committed_id and before.committed_id not in (0, row.committed_id):
            text = f"{_where(row)} had committed_id {before.committed_id} and has {row.committed_id}"
            yield ("position", text, (before.line, line))
        before.committed_id = before.committed_id or row.committed_id

    def read(self, line: int, found: Stored) -> Iterator[Verdict]:
        """All that is there."""
        order: dict[tuple[str, str], tuple[int, Id]] = {}
        last: dict[str, Row] = {}
        present: set[Id] = set()
        for row in found.rows:
            if row.id in present:
                yield ("duplicate", f"{_where(row)} holds event {row.id} once more", (line,))
                continue
            present.add(row.id)
            yield from self.see(line, row)
            yield from self._follows(line, last.get(row.channel), row)
            last[row.channel] = row
            yield from self._in_order(line, row, order)
        yield from self._missing(line, present, is_final=found.is_final)
        yield from self._parts(line, present)

    def _follows(self, line: int, before: Row | None, row: Row) -> Iterator[Verdict]:
        seq = before.seq if before is not None else 0
        if row.seq <= seq:
            yield ("position", f"{_where(row)} comes behind {seq}", (line,))
        elif self.gapless and row.seq > seq + 1 and not self._may_miss(row.channel, seq + 1, row.seq - 1):
            yield (
                "skip",
                f"{row.channel} goes from {seq} to {row.seq}, and nobody took away what was between",
                (line,),
            )
        if before is not None and row.committed_id and row.committed_id <= before.committed_id:
            text = f"{_where(row)} has committed_id {row.committed_id}, behind {before.committed_id}"
            yield ("position", text, (line,))

    def _may_miss(self, channel: str, first: int, last: int) -> bool:
        return self.first_owed(channel, first, last) is None

    def first_owed(self, channel: str, first: int, last: int) -> int | None:
        """The first seq of a range that holds an event which nobody took away.

        Behind a loss of the disk only seqs that were seen can be told from those that were never given out.
        """
        seen = self.seen.get(channel, NOTHING)
        wiped_at = self.wiped_at.get(channel, 0) if self.is_wiped else None
        for span in self.gone.get(channel, NOTHING).missing(first, last):
            if wiped_at is None or span[0] <= wiped_at:
                return span[0]
            for start, _ in seen.overlap(*span):
                return start
        return None

    def _in_order(self, line: int, row: Row, order: dict[tuple[str, str], tuple[int, Id]]) -> Iterator[Verdict]:
        sending = self.sent.get(row.id)
        if sending is None:
            return
        for source, numbers in sending.sources.items():
            before, earlier = order.get((source, row.channel), (0, row.id))
            number = next((number for number in numbers if number > before), None)
            if number is not None:
                order[source, row.channel] = (number, row.id)
            elif len(sending.sources) == 1:
                lines = (self.sent[earlier].lines[-1], sending.lines[0], line)
                text = f"{_where(row)} holds event {row.id}, which {source} sent before {earlier}"
                yield ("reorder", text, lines)

    def _missing(self, line: int, present: set[Id], *, is_final: bool) -> Iterator[Verdict]:
        promised = [(self.accepted, "accepted")] if not is_final else [(self.accepted, "accepted"), (self.kept, "kept")]
        for table, verb in promised:
            for one, since in table.items():
                if one in present or one in self.weak or one in self.excused:
                    continue
                place = self.place.get(one)
                if place is not None and self._may_miss(place[0], place[1], place[1]):
                    continue
                sending = self.sent.get(one)
                if sending is not None and sending.refused_at is not None:
                    continue
                yield ("lost", f"event {one} was {verb} and is not there", (since, line))

    def _parts(self, line: int, present: set[Id]) -> Iterator[Verdict]:
        for name, ids in self.frames.items():
            here = ids & present
            if not here or len(here) == len(ids):
                continue
            # what several frames bring says nothing about one of them
            gone = [one for one in ids - here if len(self.sent[one].frames) == 1 and not self._may_be_missing(one)]
            own = [one for one in here if len(self.sent[one].frames) == 1]
            if gone and own:
                text = f"frame {name} is there in part: event {own[0]} is, event {gone[0]} is not"
                yield ("torn", text, (self.sent[own[0]].lines[0], line))

    def _may_be_missing(self, one: Id) -> bool:
        if one in self.excused or one in self.accepted:  # the latter is lost, and reported as that
            return True
        place = self.place.get(one)
        return place is not None and self._may_miss(*place, place[1])

    def look_into(self, line: int, bucket: Bucket) -> Iterator[Verdict]:
        """What was told as durable is in the bucket."""
        listed: dict[str, IntervalSet] = {}
        for row in bucket.rows:
            yield from self.see(line, row)
            listed.setdefault(row.channel, IntervalSet()).add(row.seq, row.seq)
        for channel, (seq, since) in self.durable.items():
            for span in listed.get(channel, NOTHING).missing(1, seq):
                owed = self.first_owed(channel, *span)
                if owed is not None:
                    text = f"{channel} was told as durable up to {seq}, {owed} is not in the bucket"
                    yield ("undurable", text, (since, line))
                    break


def _where(row: Row) -> str:
    return f"{row.channel} {row.seq}"
