"""Numbers in addresses, headers and positions."""

from __future__ import annotations

import pytest

from holdfast.cli.tail import position
from holdfast.config.values import whole_number
from holdfast.errors import HoldfastError


@pytest.mark.parametrize("text", ["0", "7", "007", "9223372036854775807"])
def test_ascii_digits_are_the_number_they_spell(text: str) -> None:
    assert whole_number(text) == int(text)


@pytest.mark.parametrize("text", ["", "-1", "+1", " 1", "1_0", "²", "٣", "9223372036854775808", "1" * 20, "0" * 5000])
def test_other_texts_are_no_numbers_and_never_raise(text: str) -> None:
    assert whole_number(text) is None


def test_numbers_out_of_the_range_are_none() -> None:
    assert [whole_number(text, least=1, most=3) for text in "01234"] == [None, 1, 2, 3, None]


def test_position_of_too_many_digits_is_refused_and_not_cut() -> None:
    assert position("seq:17") == 17
    with pytest.raises(HoldfastError, match="is no position"):
        position("seq:" + "1" * 20)
