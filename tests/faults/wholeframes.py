"""Millions of events as one history for the checker: a frame of rows stands for its events.

    rows as they come ──► is each at the place in its frame that it was sent at? ──► frames ──► holdfast.testing.history

Every frame has the same number of rows and a frame is stored as a whole, so row *i* of a frame stands at a seq that is
*i* more than a multiple of that number. Each row that comes is held against that. With it, "frame *f* is at place *p*"
says of each of its events where it is, and the checker, told of frames and places, says of all of them what is lost,
doubled, out of order, at two places, skipped, evicted or confirmed too early.

A frame counts as delivered, confirmed or settled once all of its rows are; a mark inside a frame is before it. Memory
grows with the frames, not with the events.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence

import msgspec
import numpy as np
from numpy.typing import NDArray

from holdfast.model.intervals import IntervalSet
from holdfast.testing.history import (
    Acked,
    Crash,
    Delivered,
    Evicted,
    Happening,
    Kept,
    Mark,
    Row,
    Sent,
    Settled,
    Stored,
    require,
)

Ranges = Sequence[tuple[int, int]]
PRODUCER = 10**15
"""Tells the frames of producers apart."""
UNKNOWN_SESSION = -1


class WholeFrames:
    """What one reader of one channel got and said. One thread reads; any thread may tell of marks and crashes."""

    def __init__(self, channel: str, reader: str, rows: int) -> None:
        self.history: list[Happening] = []
        self.events = 0
        self._channel, self._reader, self._rows = channel, reader, rows
        self._places: dict[int, int] = {}
        """Where each frame was seen first."""
        self._came, self._acked, self._settled = IntervalSet(), IntervalSet(), IntervalSet()
        self._session = (UNKNOWN_SESSION, 0)
        """And the line at which it began: what was settled before may not come in it."""
        self._evicted = 0

    # -- what happens -----------------------------------------------------------------------------------------------

    def deliver(
        self, producers: NDArray[np.int64], numbers: NDArray[np.int64], ranges: Ranges, *, again: bool, session: int
    ) -> None:
        """A delivery came; the session is -1 if it is not known, which it is again when the next one comes."""
        seqs = np.concatenate([np.arange(first, last + 1) for first, last in ranges])
        misplaced = np.flatnonzero((seqs - 1 - numbers) % self._rows)
        assert not len(misplaced), f"event {numbers[misplaced[0]]} is at {seqs[misplaced[0]]}, in the middle of a frame"
        self.events += len(numbers)
        ends = {
            place for first, last in ranges for place in range((first - 1) // self._rows + 1, last // self._rows + 1)
        }
        whole = self._whole(self._came, ranges)
        if session not in (UNKNOWN_SESSION, self._session[0]):
            self._session = (session, len(self.history))
        told_again = again or session == UNKNOWN_SESSION
        frames = (producers * PRODUCER + numbers // self._rows).tolist()
        places = ((seqs - 1) // self._rows + 1).tolist()
        for frame, place in dict.fromkeys(zip(frames, places, strict=True)):
            if place in whole and (told_again or whole[place] or place in ends):  # its first rows alone are not it
                self._places.setdefault(frame, place)
                self._note_delivery(place, frame, again=told_again)

    def _note_delivery(self, place: int, frame: int, *, again: bool) -> None:
        session, since = self._session
        self.history.append(
            Delivered(self._reader, self._channel, place, frame, again=again, session=session, sent_at=since)
        )

    def _whole(self, known: IntervalSet, ranges: Ranges) -> dict[int, bool]:
        """Put these into the set; the places among them that are whole now, and whether they were not before."""
        found: dict[int, bool] = {}
        for first, last in ranges:
            for place in range((first - 1) // self._rows + 1, (last - 1) // self._rows + 2):
                span = (place - 1) * self._rows + 1, place * self._rows
                before = known.covers(*span)
                known.add(max(first, span[0]), min(last, span[1]))
                if known.covers(*span):
                    found[place] = found.get(place, False) or not before
        return found

    def ack(self, ranges: Ranges) -> None:
        """The reader is about to say that it is done with these."""
        for first, last in _runs(self._whole(self._acked, ranges)):
            self.history.append(Acked(self._reader, self._channel, first, last))

    def settle(self, ranges: Ranges) -> None:
        """It was told that this is durable."""
        for first, last in _runs(self._whole(self._settled, ranges)):
            self.history.append(Settled(self._reader, self._channel, first, last))

    def mark(self, seq: int) -> None:
        """The reader's mark was seen."""
        self.history.append(Mark(self._reader, self._channel, seq // self._rows))

    def evict(self, first_seq: int) -> None:
        """The channel begins there; all before is gone, and only what is confirmed may be."""
        last = (first_seq - 1) // self._rows
        if last > self._evicted:
            self.history.append(Evicted(self._channel, self._evicted + 1, last, confirmed=True))
            self._evicted = last

    def crash(self, what: str) -> None:
        """A part died."""
        self.history.append(Crash(what))

    # -- what may happen --------------------------------------------------------------------------------------------

    def judge(self, lives: Mapping[int, Ranges], numbers_of_a_life: int) -> None:
        """All of it, when everything had the time it needs.

        `lives` has for each producer first and last number that each of its processes called published. What came
        behind the last one was sent, too, as far as it goes on without a gap.
        """
        sent = list(self._sent(lives, numbers_of_a_life // self._rows))
        happened = (_later(one, len(sent)) if isinstance(one, Delivered) else one for one in self.history)
        require([*sent, *happened, self._stored()])

    def _sent(self, lives: Mapping[int, Ranges], frames_of_a_life: int) -> Iterator[Happening]:
        seen = set(self._places)
        for producer, spans in lives.items():
            for first, last in spans:
                start, kept = (producer * PRODUCER + number // self._rows for number in (first, last))
                end = kept + 1
                while end in seen and end < start + frames_of_a_life:
                    end += 1
                yield Sent(f"producer {producer}", self._channel, tuple(range(start, end)))
                yield Kept(tuple(range(start, kept + 1)))

    def _stored(self) -> Stored:
        """What the channel held, as the reader has seen it: all of it, as everything was delivered."""
        rows = sorted((place, frame) for frame, place in self._places.items())
        return Stored(tuple(Row(self._channel, place, frame) for place, frame in rows), is_final=True)


def _later(delivered: Delivered, lines: int) -> Delivered:
    assert delivered.sent_at is not None
    return msgspec.structs.replace(delivered, sent_at=delivered.sent_at + lines)


def _runs(places: Iterable[int]) -> Iterator[tuple[int, int]]:
    """Ascending places as ranges."""
    yield from IntervalSet((place, place) for place in places)
