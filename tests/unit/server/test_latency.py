"""How waits are counted."""

from __future__ import annotations

from itertools import pairwise

from holdfast.server.latency import BOUNDS_S, Latencies


def test_wait_is_counted_in_the_class_that_ends_at_or_above_it() -> None:
    latencies = Latencies()
    for seconds in (0.0, BOUNDS_S[0], BOUNDS_S[0] * 1.01, BOUNDS_S[-1], 1000.0):
        latencies.note(seconds)
    counts = latencies.statistics().counts
    assert (counts[0], counts[1], counts[-2], counts[-1]) == (2, 1, 1, 1)
    assert sum(counts) == 5
    assert len(counts) == len(BOUNDS_S) + 1


def test_neighbouring_classes_are_half_as_much_again_apart() -> None:
    assert list(BOUNDS_S) == sorted(set(BOUNDS_S))
    assert all(1.4 < high / low < 1.6 for low, high in pairwise(BOUNDS_S))
