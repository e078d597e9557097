"""Names of channels."""

from __future__ import annotations

import pytest

from holdfast.errors import InvalidName
from holdfast.model.names import check_channel_name


@pytest.mark.parametrize("name", ["a", "A9", "orders.eu", "a-b_c.d", "0", "x" * 128, "con-tact", "aux1", "com10"])
def test_name_of_the_allowed_alphabet_is_accepted(name: str) -> None:
    check_channel_name(name)


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("", "empty"),
        ("x" * 129, "129 characters"),
        (".hidden", "the first one a letter or digit"),
        ("-x", "the first one a letter or digit"),
        ("a/b", "allowed are"),
        ("a\\b", "allowed are"),
        ("a b", "allowed are"),
        ("a\0b", "allowed are"),
        ("a\n", "allowed are"),
        ("ümlaut", "allowed are"),
        ("a٣", "allowed are"),
        ("a..b", "'..'"),
        ("a.", "trailing"),
        ("..", "allowed are"),
        ("con", "device"),
        ("NUL.txt", "device"),
        ("Com1", "device"),
    ],
)
def test_name_that_could_leave_the_directory_is_refused(name: str, reason: str) -> None:
    with pytest.raises(InvalidName, match="channel name") as caught:
        check_channel_name(name)
    assert reason in caught.value.reason
    assert (caught.value.what, caught.value.name) == ("channel", name)
