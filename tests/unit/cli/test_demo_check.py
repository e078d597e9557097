"""The demo's proof can fail: each kind of planted flaw is counted as what it is."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest

from holdfast.cli.demo.check import Comparison, Found, compare
from holdfast.cli.demo.events import ROWS, ids_of, make_events, make_frame
from holdfast.cli.demo.watching import different_rows


def compared(*ids: int, promised: int = 5, sent: int = 5, altered: int = 0) -> Comparison:
    """Events 1 to `promised` must be there; `ids` are, in that order."""
    found = Found(np.array(ids, dtype=np.int64), altered)
    return compare("trades", "store", promised=promised, sent=sent, found=found)


def flaws(result: Comparison) -> dict[str, int]:
    names = ("lost", "duplicated", "out_of_order", "altered", "invented")
    return {name: getattr(result, name) for name in names if getattr(result, name)}


def test_everything_there_once_and_in_order_is_flawless() -> None:
    result = compared(1, 2, 3, 4, 5)
    assert flaws(result) == {}
    assert result.flaws(may_repeat=False) == 0


@pytest.mark.parametrize(
    ("ids", "planted"),
    [
        ((1, 2, 4, 5), {"lost": 1}),
        ((), {"lost": 5}),
        ((1, 2, 2, 3, 4, 5, 5, 5), {"duplicated": 3}),
        ((1, 3, 2, 4, 5), {"out_of_order": 1}),
        ((1, 2, 3, 4, 5, 6), {"invented": 1}),
        ((0, 1, 2, 3, 4, 5), {"invented": 1}),
    ],
)
def test_each_flaw_is_counted_as_what_it_is(ids: tuple[int, ...], planted: dict[str, int]) -> None:
    result = compared(*ids)
    assert flaws(result) == planted
    assert result.flaws(may_repeat=False) > 0


def test_event_that_was_sent_and_never_promised_may_be_there_or_not() -> None:
    assert flaws(compared(1, 2, 3, promised=3, sent=5)) == {}
    assert flaws(compared(1, 2, 3, 4, promised=3, sent=5)) == {}


def test_repeat_is_no_flaw_where_an_event_may_come_again() -> None:
    result = compared(1, 2, 3, 2, 3, 4, 5)
    assert (result.flaws(may_repeat=True), result.flaws(may_repeat=False) > 0) == (0, True)
    assert compared(1, 2, 2, 4, 5).flaws(may_repeat=True) == 1


def test_altered_values_are_flaws_everywhere() -> None:
    result = compared(1, 2, 3, 4, 5, altered=2)
    assert (result.flaws(may_repeat=True), result.flaws(may_repeat=False)) == (2, 2)


@pytest.mark.parametrize("channel", ROWS)
def test_frame_has_the_next_ids_and_their_values_follow_from_them(channel: str) -> None:
    frame = make_frame(channel, 3)
    rows = ROWS[channel]
    ids = ids_of(channel, frame)
    assert ids.tolist() == list(range(3 * rows + 1, 4 * rows + 1))
    assert frame.equals(make_events(channel, ids))
    assert different_rows(channel, frame) == 0


def test_row_with_another_value_is_found() -> None:
    frame = make_frame("trades", 0)
    prices = frame.column("price").to_pylist()
    prices[7] += 0.01
    changed = frame.set_column(frame.schema.get_field_index("price"), "price", pa.array(prices))
    assert different_rows("trades", changed) == 1
