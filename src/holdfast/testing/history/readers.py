"""Rules about readers: they get everything, in order, and a mark says neither too much nor less than before."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from holdfast.model.intervals import IntervalSet
from holdfast.testing.history.happenings import Acked, Delivered, Evicted, Joined, Mark, Row, Settled
from holdfast.testing.history.stored import NOTHING, Ledger, Verdict


@dataclass(slots=True)
class _Reader:
    """One reader in one channel."""

    first_seq: int = 1
    delivered: IntervalSet = field(default_factory=IntervalSet)
    acked: IntervalSet = field(default_factory=IntervalSet)
    settled: IntervalSet = field(default_factory=IntervalSet)
    settled_at: dict[int, int] = field(default_factory=dict)
    mark: tuple[int, int] = (0, 0)
    """And its line."""
    session: tuple[int, int, int] = (-1, 0, 0)
    """The last first delivery: session, seq and line."""


@dataclass
class Readers:
    """All of them."""

    ledger: Ledger
    known: dict[tuple[str, str], _Reader] = field(default_factory=dict)

    def _of(self, name: str, channel: str) -> _Reader:
        return self.known.setdefault((name, channel), _Reader())

    def join(self, said: Joined) -> None:
        """Note where a reader begins."""
        self._of(said.reader, said.channel).first_seq = said.first_seq

    def deliver(self, line: int, said: Delivered) -> Iterator[Verdict]:
        """An event came."""
        reader = self._of(said.reader, said.channel)
        yield from self.ledger.see(line, Row(said.channel, said.seq, said.id), sent_at=said.sent_at)
        sent_at = line if said.sent_at is None else said.sent_at
        if said.seq in reader.settled and reader.settled_at[said.seq] < sent_at:  # else it was on its way by then
            text = f"{said.reader} got {said.channel} {said.seq} again, which it had confirmed"
            yield ("duplicate", text, (reader.settled_at[said.seq], line))
        if not said.again:
            session, seq, since = reader.session
            if session == said.session and said.seq <= seq:
                text = f"{said.reader} got {said.channel} {said.seq} as new, after {seq}"
                yield ("reorder", text, (since, line))
            reader.session = (said.session, said.seq, line)
        reader.delivered.add(said.seq, said.seq)

    def evict(self, line: int, said: Evicted) -> Iterator[Verdict]:
        """What is taken away because everybody has confirmed it was confirmed by everybody."""
        seen, gone = self.ledger.seen.get(said.channel, NOTHING), self.ledger.gone.get(said.channel, NOTHING)
        readers = {name: reader for (name, channel), reader in self.known.items() if channel == said.channel}
        for name, reader in (readers or {"anybody": _Reader()}).items():
            if not said.confirmed or said.last < reader.first_seq:
                continue
            for span in reader.acked.missing(max(reader.first_seq, said.first), said.last):
                owed = next((first for part in seen.overlap(*span) for first, _ in gone.missing(*part)), None)
                if owed is not None:
                    yield ("lost", f"{said.channel} {owed} was taken away, and {name} has not confirmed it", (line,))

    def wipe(self) -> None:
        """A lost disk takes what the bucket does not know of: marks may be older than before."""
        for reader in self.known.values():
            reader.mark = (0, 0)
            reader.settled, reader.settled_at = IntervalSet(), {}

    def ack(self, said: Acked) -> None:
        """Note what a reader is done with."""
        self._of(said.reader, said.channel).acked.add(said.first, said.last)

    def settle(self, line: int, said: Settled) -> Iterator[Verdict]:
        """What is durable was confirmed by somebody."""
        reader = self._of(said.reader, said.channel)
        open_at = reader.acked.lowest_missing(said.first, said.last)
        if open_at is not None:
            text = f"{said.reader} was told that {said.channel} {open_at[0]} is confirmed, which it never said"
            yield ("hole", text, (line,))
        if self.ledger.is_old_news(said.sent_at):
            return
        reader.settled.add(said.first, said.last)
        for seq in range(said.first, said.last + 1):
            reader.settled_at.setdefault(seq, line)

    def mark(self, line: int, said: Mark) -> Iterator[Verdict]:
        """A mark never moves back, never passes what was not confirmed, nor what never came."""
        if self.ledger.is_old_news(said.sent_at):
            return
        reader = self._of(said.reader, said.channel)
        before, since = reader.mark
        if said.seq < before:
            text = f"the mark of {said.reader} in {said.channel} was {before} and is {said.seq}"
            yield ("back", text, (since, line))
        reader.mark = (said.seq, line)
        for kind, known, verb in (("skip", reader.delivered, "got"), ("hole", reader.acked, "confirmed")):
            for span in known.missing(reader.first_seq, said.seq):
                owed = self.ledger.first_owed(said.channel, *span)
                if owed is not None:
                    text = f"the mark of {said.reader} in {said.channel} is {said.seq}, and it never {verb} {owed}"
                    yield (kind, text, (line,))
                    return
