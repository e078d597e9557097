"""Any patterns, any settings: the limits tree agrees with a model, and nothing but `InvalidConfig` is ever raised."""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import partial
from typing import Any

from hypothesis import assume, given
from hypothesis import strategies as st

from holdfast.config import SETTINGS, Kind, Pattern, StoreConfig
from holdfast.errors import InvalidConfig
from holdfast.store.limits import LimitsTree

PER_CHANNEL = [row for row in SETTINGS if row.per_channel]

# Few tokens, so that patterns and names meet often.
TOKENS = st.sampled_from(["a", "b", "c"])
NAMES = st.lists(TOKENS, min_size=1, max_size=4).map(".".join)
PATTERNS = st.builds(
    lambda body, rest: ".".join([*body, *rest]),
    st.lists(st.sampled_from(["a", "b", "c", "*"]), max_size=3),
    st.sampled_from([["a"], ["b"], ["*"], [">"]]),
)
MODEL_KEYS = ("max_subs", "max_msgs", "max_bytes")
OVERRIDES = st.dictionaries(PATTERNS, st.dictionaries(st.sampled_from(MODEL_KEYS), st.integers(0, 1000)), max_size=8)

NO_VALUE = st.one_of(
    st.none(),
    st.floats(),
    st.binary(max_size=5),
    st.lists(st.integers(), max_size=3),
    st.tuples(st.text(max_size=3)),
    st.dictionaries(st.text(max_size=5), st.integers(), max_size=2),
    st.complex_numbers(),
    st.just(object()),
    st.builds(lambda: 10**5000),  # has no text: Python refuses to print it
    st.integers(max_value=-1),
)
"""What no setting takes, whatever its kind."""
ANYTHING = st.recursive(
    st.one_of(NO_VALUE, st.booleans(), st.integers(), st.text(max_size=10), st.from_regex(r"-?[0-9.]+ ?[a-zA-Z]*")),
    lambda inner: st.dictionaries(
        st.one_of(
            st.sampled_from([row.key for row in SETTINGS] + ["channels", "wal", "retention"]), PATTERNS, st.text()
        ),
        inner,
        max_size=4,
    ),
    max_leaves=10,
)


def regex_of(pattern: str) -> re.Pattern[str]:
    """The same pattern for `re`."""
    return re.compile(pattern.replace(".", r"\.").replace("*", r"[^.]+").replace(">", r".+"))


def is_narrower(left: str, right: str) -> bool:
    """Whether `left` goes before `right` for a channel that both mean: the first difference decides."""
    for one, other in zip(left.split("."), right.split("."), strict=False):
        if one != other:
            return other == ">" or (other == "*" and one != ">")
    raise AssertionError("two patterns that mean one channel differ somewhere")


def narrowest(patterns: list[str]) -> str | None:
    """The one that is narrower than all others."""
    winners = [one for one in patterns if all(is_narrower(one, other) for other in patterns if other != one)]
    assert len(winners) == (1 if patterns else 0)
    return winners[0] if winners else None


def outcome(read: Callable[..., Any], *arguments: object) -> Any:
    """What a reader gives, or how it refuses; any other exception is a failure."""
    try:
        return read(*arguments)
    except InvalidConfig as error:
        return error


def refused_key(read: Callable[..., Any], *arguments: object) -> str:
    """The key that a refusal names."""
    error = outcome(read, *arguments)
    assert isinstance(error, InvalidConfig)
    return error.key


# -- patterns ---------------------------------------------------------------------------------------------------------


@given(pattern=PATTERNS, name=NAMES)
def test_a_pattern_means_what_its_regular_expression_means(pattern: str, name: str) -> None:
    assert Pattern.parse(pattern).matches(name) == bool(regex_of(pattern).fullmatch(name))


@given(wide=PATTERNS, narrow=PATTERNS)
def test_a_pattern_covers_another_exactly_if_it_means_all_its_channels(wide: str, narrow: str) -> None:
    literal = narrow.replace("*", "new")  # a token that no pattern has stands for every other
    witnesses = {literal.replace(">", "new"), literal.replace(">", "new.new")}
    covers = Pattern.parse(wide).covers(Pattern.parse(narrow))
    assert covers == all(Pattern.parse(wide).matches(name) for name in witnesses)


@given(narrow=PATTERNS, stars=st.sets(st.integers(0, 3)), cut=st.integers(0, 4))
def test_what_a_pattern_covers_comes_after_it_in_order(narrow: str, stars: set[int], cut: int) -> None:
    tokens = ["*" if index in stars and token != ">" else token for index, token in enumerate(narrow.split("."))]
    wide = ".".join([*tokens[:cut], ">"] if cut < len(tokens) else tokens)
    first, second = Pattern.parse(wide), Pattern.parse(narrow)
    assert first.covers(second)
    assert first.order < second.order or wide == narrow
    assert not second.covers(first) or wide == narrow


@given(text=st.text(alphabet="ab.*>_- é\n", max_size=12))
def test_any_text_is_a_pattern_or_a_value_error(text: str) -> None:
    try:
        pattern = Pattern.parse(text)
    except ValueError:
        return
    assert ".".join(pattern.tokens) == pattern.text == text


# -- the tree ---------------------------------------------------------------------------------------------------------


@given(overrides=OVERRIDES, name=NAMES)
def test_each_limit_is_what_the_narrowest_pattern_states(overrides: dict[str, dict[str, int]], name: str) -> None:
    config = StoreConfig.from_mapping({"max_subs": 5, "max_msgs": 6, "channels": overrides})
    tree = LimitsTree(config)
    meant = [pattern for pattern in overrides if regex_of(pattern).fullmatch(name)]
    found = {row.key: row for row in tree.describe(name)}
    for key in MODEL_KEYS:
        winner = narrowest([pattern for pattern in meant if key in overrides[pattern]])
        expected = overrides[winner][key] if winner is not None else getattr(config, key)
        assert getattr(tree.resolve(name), key) == expected == found[key].value
        if winner is not None:
            assert found[key].inherited_from == (None if winner == name else winner)


@given(overrides=OVERRIDES, name=NAMES)
def test_tree_and_description_agree_on_channels_named_in_full(overrides: dict[str, dict[str, int]], name: str) -> None:
    tree = LimitsTree(StoreConfig.from_mapping({"channels": {**overrides, name: {"max_msgs": 3}}}))
    assert [row for row in tree.tree() if row.pattern == name] == tree.describe(name)


@given(overrides=OVERRIDES, name=NAMES)
def test_a_channel_that_no_pattern_means_is_untouched(overrides: dict[str, dict[str, int]], name: str) -> None:
    assume(not any(regex_of(pattern).fullmatch(name) for pattern in overrides))
    assert LimitsTree(StoreConfig.from_mapping({"channels": overrides})).resolve(name) == LimitsTree(
        StoreConfig()
    ).resolve(name)


SLICE_KEYS = ("max_msgs", "max_bytes", "file_slice_max_msgs", "file_slice_max_bytes")


@given(
    common=st.dictionaries(st.sampled_from(SLICE_KEYS), st.integers(0, 2**40)),
    own=st.dictionaries(st.sampled_from(SLICE_KEYS), st.integers(0, 2**40)),
)
def test_a_slice_is_bounded_and_never_empty(common: dict[str, int], own: dict[str, int]) -> None:
    config = StoreConfig.from_mapping({**common, "channels": {"a": own}})
    limits = LimitsTree(config).resolve("a")
    assert 0 < limits.slice_max_bytes <= config.segment_target_bytes
    stated = {**common, **own}
    if not stated.get("file_slice_max_msgs") and not stated.get("file_slice_max_bytes") and limits.max_msgs:
        assert limits.slice_max_msgs == max(1, limits.max_msgs // 4)
    else:
        assert limits.slice_max_msgs == stated.get("file_slice_max_msgs", 0)


# -- any value --------------------------------------------------------------------------------------------------------


@given(raw=NO_VALUE)
def test_a_value_of_a_wrong_type_is_refused_by_every_key(raw: Any) -> None:
    for row in SETTINGS:
        assert refused_key(StoreConfig.from_mapping, {row.key: raw}) == row.key


@given(pattern=PATTERNS, raw=NO_VALUE)
def test_a_wrong_value_in_an_override_is_refused_by_pattern_and_key(pattern: str, raw: Any) -> None:
    for row in PER_CHANNEL:
        mapping = {"channels": {pattern: {row.key: raw}}}
        assert refused_key(StoreConfig.from_mapping, mapping) == f"channels.{pattern}.{row.key}"


@given(raw=NO_VALUE)
def test_a_program_that_makes_settings_itself_is_refused_alike(raw: Any) -> None:
    for name, row in StoreConfig.rows().items():
        assert refused_key(partial(StoreConfig, **{name: raw})) == row.key


@given(raw=ANYTHING)
def test_every_row_gives_a_value_of_its_kind_or_its_key(raw: Any) -> None:
    kinds = {Kind.FLAG: bool, Kind.TEXT: str, Kind.CHOICE: str}
    for row in SETTINGS:
        value = outcome(row.parse, raw)
        if isinstance(value, InvalidConfig):
            assert value.key == row.key
        else:
            assert type(value) is kinds.get(row.kind, int)
            row.check(value)


@given(raw=ANYTHING)
def test_any_mapping_is_read_or_refused_as_settings(raw: Any) -> None:
    config = outcome(StoreConfig.from_mapping, raw)
    if isinstance(config, InvalidConfig):
        assert config.key
    else:
        LimitsTree(config).tree()
