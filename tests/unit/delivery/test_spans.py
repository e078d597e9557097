"""Ranges with values behave as a dictionary from each single seq would."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from holdfast.delivery.spans import SpanMap

STEPS = st.lists(st.tuples(st.booleans(), st.integers(1, 30), st.integers(0, 12), st.integers(0, 3)), max_size=40)


@given(STEPS)
def test_spans_behave_as_a_dictionary_of_single_seqs(steps: list[tuple[bool, int, int, int]]) -> None:
    spans: SpanMap[int] = SpanMap()
    model: dict[int, int] = {}
    for is_put, first, length, value in steps:
        last = first + length
        if is_put:
            for low, high, _ in spans.take(first, last):
                for seq in range(low, high + 1):
                    del model[seq]
            spans.put(first, last, value)
            model |= dict.fromkeys(range(first, last + 1), value)
        else:
            taken = spans.take(first, last, only=lambda found, wanted=value: found == wanted)  # type: ignore[misc]
            gone = {seq: found for low, high, found in taken for seq in range(low, high + 1)}
            expected = {seq: found for seq, found in model.items() if first <= seq <= last and found == value}
            assert gone == expected
            for seq in gone:
                del model[seq]
        assert {seq: found for low, high, found in spans for seq in range(low, high + 1)} == model
        parts = spans.overlap(5, 15)
        assert {seq for low, high, _ in parts for seq in range(low, high + 1)} == {s for s in model if 5 <= s <= 15}


def test_a_batch_taken_from_the_front_keeps_one_range() -> None:
    spans: SpanMap[str] = SpanMap()
    spans.put(1, 1000, "a")
    for seq in range(1, 900):
        assert spans.take(seq, seq) == [(seq, seq, "a")]
    assert list(spans) == [(900, 1000, "a")]
