"""A map from ranges of seqs to values: which delivery holds which messages. Pure.

Promise: `put` and `take` behave as a dictionary from each single seq to its value would; ranges are cut where only a
part of one is taken. A range costs one entry whatever its length, and the usual order of things (put at the end, take
at the front) costs a binary search.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterator
from typing import Generic, TypeVar

V = TypeVar("V")
Part = tuple[int, int, V]


class SpanMap(Generic[V]):
    """Disjoint inclusive ranges, each with a value."""

    __slots__ = ("_firsts", "_lasts", "_values")

    def __init__(self) -> None:
        self._firsts: list[int] = []
        self._lasts: list[int] = []
        self._values: list[V] = []

    def __len__(self) -> int:
        """How many ranges, not how many seqs."""
        return len(self._firsts)

    def __iter__(self) -> Iterator[tuple[int, int, V]]:
        return zip(self._firsts, self._lasts, self._values, strict=True)

    def put(self, first: int, last: int, value: V) -> None:
        """Give a range a value; none of its seqs has one."""
        at = bisect_left(self._lasts, first)
        assert first <= last
        assert at == len(self._firsts) or self._firsts[at] > last, "a part of the range has a value"
        self._firsts.insert(at, first)
        self._lasts.insert(at, last)
        self._values.insert(at, value)

    def overlap(self, first: int, last: int) -> list[tuple[int, int, V]]:
        """The parts of a range that have values, in order."""
        low, high = bisect_left(self._lasts, first), bisect_right(self._firsts, last)
        return [(max(first, self._firsts[n]), min(last, self._lasts[n]), self._values[n]) for n in range(low, high)]

    def take(self, first: int, last: int, *, only: Callable[[V], bool] | None = None) -> list[tuple[int, int, V]]:
        """Take the values of a range away, or only some of them; returns the parts that had them, in order."""
        low, high = bisect_left(self._lasts, first), bisect_right(self._firsts, last)
        if low >= high:
            return []
        taken: list[tuple[int, int, V]] = []
        kept: list[tuple[int, int, V]] = []
        for n in range(low, high):
            start, end, value = self._firsts[n], self._lasts[n], self._values[n]
            if only is not None and not only(value):
                kept.append((start, end, value))
                continue
            taken.append((max(first, start), min(last, end), value))
            if start < first:
                kept.append((start, first - 1, value))
            if end > last:
                kept.append((last + 1, end, value))
        self._firsts[low:high] = [part[0] for part in kept]
        self._lasts[low:high] = [part[1] for part in kept]
        self._values[low:high] = [part[2] for part in kept]
        return taken
