"""JSON from strangers: taken as it is, or refused with a reason, and never a crash."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.wire.sync.jsontext import DEPTH_MAX, BadJson, canonical, elements, members, parse

STRANGE = {
    "nan": b'{"a": NaN}',
    "infinity": b'{"a": -Infinity}',
    "a number beyond a double": b'{"a": 1e400}',
    "an integer beyond a double": b'{"a": ' + b"9" * 400 + b"}",
    "an integer of many digits": b'{"a": ' + b"9" * 5000 + b"}",
    "two members of one name": b'{"a": 1, "b": {"c": 1, "c": 2}}',
    "half a surrogate pair": b'{"a": "\\ud800"}',
    "half a pair as a name": b'{"\\udc00x": 1}',
    "a depth bomb of arrays": b"[" * 100_000,
    "a depth bomb of objects": b'{"a":' * 100_000,
    "a closed depth bomb": b"[" * 5000 + b"]" * 5000,
    "one level too many": b"[" * (DEPTH_MAX + 1) + b"]" * (DEPTH_MAX + 1),
    "not utf-8": b'{"a": "\xff"}',
    "utf-16": '{"a": 1}'.encode("utf-16"),
    "a byte order mark": b'\xef\xbb\xbf{"a": 1}',
    "nothing": b"",
    "two values": b"{} {}",
    "a raw control character": b'{"a": "\x01"}',
    "a comma too many": b'{"a": 1,}',
}


@pytest.mark.parametrize("data", STRANGE.values(), ids=STRANGE.keys())
def test_strange_texts_are_refused_with_a_reason(data: bytes) -> None:
    with pytest.raises(BadJson) as caught:
        parse(data)
    assert str(caught.value)


def test_one_name_that_comes_twice_is_found_among_very_many() -> None:
    """Looking at each pair of names would keep the loop for minutes."""
    names = b",".join(b'"%d":1' % number for number in range(200_000))
    with pytest.raises(BadJson, match="'199999' comes twice"):
        parse(b"{%s,%s}" % (names, b'"199999":1'))


def test_deepest_allowed_text_is_taken() -> None:
    assert parse(b"[" * DEPTH_MAX + b"]" * DEPTH_MAX)


def test_whole_pairs_and_escaped_backslashes_are_taken() -> None:
    assert parse(b'{"a": "\\ud83d\\ude00", "b": "\\\\ud800"}') == {"a": "\U0001f600", "b": "\\ud800"}


@given(st.binary(max_size=200))
def test_no_bytes_raise_anything_but_bad_json(data: bytes) -> None:
    try:
        value = parse(data)
    except BadJson:
        return
    canonical(value)


@given(st.text(max_size=60).map(lambda text: ('{"a": ' + text + "}").encode("utf-8", "surrogatepass")))
def test_no_text_raises_anything_but_bad_json(data: bytes) -> None:
    try:
        members(data) if isinstance(parse(data), dict) else None
    except BadJson:
        return


def test_values_keep_the_text_they_were_sent_with() -> None:
    sent = b'{"payload": {"n": 1.0, "m": 1e2, "big": 123456789012345678901234567890 }, "list": [1.50, "\\u00e9"]}'
    parse(sent)
    assert members(sent)["payload"] == b'{"n": 1.0, "m": 1e2, "big": 123456789012345678901234567890 }'
    assert elements(members(sent)["list"]) == [b"1.50", b'"\\u00e9"']


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ('{"a": 1, "b": 2}', '{"b":2,"a":1.0}'),
        ('{"a": "\\u00e9"}', '{"a": "é"}'),
        ('{"a": 100}', '{"a": 1e2}'),
        ('{"a": 1e21}', '{"a": 1000000000000000000000}'),
        ('{"a": -0.0}', '{"a": 0}'),
    ],
)
def test_spellings_of_one_value_compare_equal(one: str, other: str) -> None:
    assert canonical(parse(one.encode())) == canonical(parse(other.encode()))


@pytest.mark.parametrize(
    ("one", "other"), [('{"a": 1}', '{"a": "1"}'), ('{"a": true}', '{"a": 1}'), ("[1,2]", "[2,1]"), ("{}", "[]")]
)
def test_different_values_compare_as_different(one: str, other: str) -> None:
    assert canonical(parse(one.encode())) != canonical(parse(other.encode()))


JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**60), 2**60)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4),
    max_leaves=20,
)


@given(JSON)
def test_any_value_survives_the_way_in(value: Any) -> None:
    text = json.dumps(value).encode()
    assert parse(text) == value
    assert canonical(parse(text)) == canonical(parse(json.dumps(value, ensure_ascii=False, indent=1).encode()))
