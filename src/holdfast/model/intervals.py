"""A set of integers kept as disjoint inclusive ranges: seen fsns, confirmed seqs.

Promise: `add` of any ranges in any order gives the same set as a set of integers; adjacent ranges merge, so a producer
that counts up costs one range for ever. Adding at the end is O(1); elsewhere O(log n) to find plus the shift of a list.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator


class IntervalSet:
    """Disjoint, sorted, non-adjacent inclusive ranges."""

    __slots__ = ("_firsts", "_lasts")

    def __init__(self, ranges: Iterable[tuple[int, int]] = ()) -> None:
        self._firsts: list[int] = []
        self._lasts: list[int] = []
        for first, last in ranges:
            self.add(first, last)

    def add(self, first: int, last: int) -> None:
        """Put every integer of `first..last` into the set."""
        if last < first:
            raise ValueError(f"range {first}..{last} is upside down")
        if self._lasts and first == self._lasts[-1] + 1:
            self._lasts[-1] = last
            return
        # Ranges low..high-1 touch or overlap the new one and melt into it.
        low = bisect_left(self._lasts, first - 1)
        high = bisect_right(self._firsts, last + 1)
        if low < high:
            first = min(first, self._firsts[low])
            last = max(last, self._lasts[high - 1])
        self._firsts[low:high] = [first]
        self._lasts[low:high] = [last]

    def discard(self, first: int, last: int) -> None:
        """Take every integer of `first..last` out of the set."""
        if last < first:
            raise ValueError(f"range {first}..{last} is upside down")
        low = bisect_left(self._lasts, first)
        high = bisect_right(self._firsts, last)
        if low >= high:
            return
        kept = [(self._firsts[low], first - 1), (last + 1, self._lasts[high - 1])]
        kept = [(start, end) for start, end in kept if start <= end]
        self._firsts[low:high] = [start for start, _ in kept]
        self._lasts[low:high] = [end for _, end in kept]

    def __contains__(self, value: int) -> bool:
        index = bisect_left(self._lasts, value)
        return index < len(self._lasts) and self._firsts[index] <= value

    def __iter__(self) -> Iterator[tuple[int, int]]:
        """The ranges, ascending."""
        return iter(zip(self._firsts, self._lasts, strict=True))

    def __len__(self) -> int:
        """How many ranges, not how many integers."""
        return len(self._firsts)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, IntervalSet):
            return NotImplemented
        return self._firsts == other._firsts and self._lasts == other._lasts

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return f"IntervalSet({list(self)!r})"

    @property
    def highest(self) -> int | None:
        """The largest integer in the set."""
        return self._lasts[-1] if self._lasts else None

    def end_of_run(self, start: int) -> int:
        """The last integer of the run that begins at `start`; `start - 1` when `start` is absent."""
        index = bisect_left(self._lasts, start)
        if index < len(self._lasts) and self._firsts[index] <= start:
            return self._lasts[index]
        return start - 1

    def overlap(self, first: int, last: int) -> list[tuple[int, int]]:
        """The parts of `first..last` that are in the set, ascending."""
        low, high = bisect_left(self._lasts, first), bisect_right(self._firsts, last)
        return [(max(first, self._firsts[n]), min(last, self._lasts[n])) for n in range(low, high)]

    def covers(self, first: int, last: int) -> bool:
        """Whether every integer of `first..last` is in the set."""
        return first > last or self.end_of_run(first) >= last

    def lowest_missing(self, first: int, last: int) -> tuple[int, int] | None:
        """The lowest range of `first..last` that is not in the set."""
        return next(self.missing(first, last), None)

    def highest_missing(self, first: int, last: int) -> tuple[int, int] | None:
        """The highest range of `first..last` that is not in the set."""
        index = bisect_right(self._firsts, last) - 1
        while index >= 0 and self._lasts[index] >= last >= first:
            last = self._firsts[index] - 1
            index -= 1
        if last < first:
            return None
        below = self._lasts[index] + 1 if index >= 0 else first
        return max(first, below), last

    def count(self, first: int, last: int) -> int:
        """How many integers of `first..last` are in the set."""
        missing = sum(high - low + 1 for low, high in self.missing(first, last))
        return max(0, last - first + 1) - missing

    def missing(self, first: int, last: int) -> Iterator[tuple[int, int]]:
        """The ranges of `first..last` that are not in the set, ascending."""
        cursor = first
        for index in range(bisect_left(self._lasts, first), len(self._firsts)):
            if self._firsts[index] > last:
                break
            if self._firsts[index] > cursor:
                yield cursor, self._firsts[index] - 1
            cursor = self._lasts[index] + 1
        if cursor <= last:
            yield cursor, last
