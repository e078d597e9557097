"""The limits tree: what holds for a channel, and where it comes from."""

from __future__ import annotations

import pytest

from holdfast.config import DAY, GIB, HOUR, KIB, MIB, MS, SECOND, StoreConfig
from holdfast.model.schema import SchemaMode
from holdfast.store.limits import NAMES_CACHED_MAX, ChannelLimits, LimitsTree


def tree_of(**mapping: object) -> LimitsTree:
    """The tree of settings given by keyword."""
    return LimitsTree(StoreConfig.from_mapping(mapping))


def origins(tree: LimitsTree, channel: str) -> dict[str, str | None]:
    """Where each setting of a channel comes from."""
    return {row.key: row.inherited_from for row in tree.describe(channel)}


# -- inheritance ------------------------------------------------------------------------------------------------------


def test_a_channel_without_overrides_has_the_settings_for_all() -> None:
    assert tree_of().resolve("orders") == ChannelLimits(
        max_subs=1000,
        max_msgs=0,
        max_bytes=0,
        max_age_ns=0,
        max_inactivity_ns=0,
        discard="old",
        retention_mode="acked",
        slice_max_msgs=0,
        slice_max_bytes=32 * MIB,
        slice_max_age_ns=0,
        archive_script="",
        schema_mode=SchemaMode.EVOLVE,
        event_time_column="",
        signal="events",
        compression="none",
    )


def test_every_setting_of_a_channel_can_be_its_own() -> None:
    limits = tree_of(
        channels={
            "orders": {
                "max_subs": 1,
                "max_msgs": 2,
                "max_bytes": "3KiB",
                "max_age": "4s",
                "max_inactivity": "5d",
                "discard": "new",
                "retention.mode": "limits",
                "file_slice_max_msgs": 6,
                "file_slice_max_bytes": "7KiB",
                "file_slice_max_age": "8ms",
                "archive_script": "/bin/keep",
                "schema": "strict",
                "event_time": "ts",
                "signal": "logs",
                "segment.compression": "zstd",
            }
        }
    ).resolve("orders")
    assert limits == ChannelLimits(
        max_subs=1,
        max_msgs=2,
        max_bytes=3 * KIB,
        max_age_ns=4 * SECOND,
        max_inactivity_ns=5 * DAY,
        discard="new",
        retention_mode="limits",
        slice_max_msgs=6,
        slice_max_bytes=7 * KIB,
        slice_max_age_ns=8 * MS,
        archive_script="/bin/keep",
        schema_mode=SchemaMode.STRICT,
        event_time_column="ts",
        signal="logs",
        compression="zstd",
    )


def test_each_setting_comes_from_the_narrowest_that_states_it() -> None:
    tree = tree_of(
        max_subs=1,
        max_msgs=1,
        max_bytes=1,
        channels={
            "foo.>": {"max_msgs": 2, "max_bytes": 2, "max_age": "2s"},
            "foo.bar.>": {"max_bytes": 3, "max_age": "3s"},
            "foo.bar.baz": {"max_age": "4s"},
        },
    )
    limits = tree.resolve("foo.bar.baz")
    assert (limits.max_subs, limits.max_msgs, limits.max_bytes, limits.max_age_ns) == (1, 2, 3, 4 * SECOND)
    limits = tree.resolve("foo.bar.other.deep")
    assert (limits.max_subs, limits.max_msgs, limits.max_bytes, limits.max_age_ns) == (1, 2, 3, 3 * SECOND)
    limits = tree.resolve("foo.other")
    assert (limits.max_subs, limits.max_msgs, limits.max_bytes, limits.max_age_ns) == (1, 2, 2, 2 * SECOND)
    limits = tree.resolve("foo")
    assert (limits.max_subs, limits.max_msgs, limits.max_bytes, limits.max_age_ns) == (1, 1, 1, 0)


def test_the_order_in_the_file_does_not_matter() -> None:
    overrides = {"a.b": {"max_msgs": 3}, "a.*": {"max_msgs": 2}, "a.>": {"max_msgs": 1}}
    forward = tree_of(channels=overrides)
    backward = tree_of(channels=dict(reversed(overrides.items())))
    assert forward.tree() == backward.tree()
    assert forward.resolve("a.b").max_msgs == backward.resolve("a.b").max_msgs == 3


def test_an_explicit_zero_is_unlimited_and_an_omission_inherits() -> None:
    tree = tree_of(max_msgs=10, max_age="1h", channels={"a.>": {"max_msgs": 0}, "a.b": {"max_age": 0}, "c": {}})
    assert (tree.resolve("a.x").max_msgs, tree.resolve("a.x").max_age_ns) == (0, HOUR)
    assert (tree.resolve("a.b").max_msgs, tree.resolve("a.b").max_age_ns) == (0, 0)
    assert (tree.resolve("c").max_msgs, tree.resolve("c").max_age_ns) == (10, HOUR)


def test_an_explicit_zero_is_inherited_like_any_value() -> None:
    tree = tree_of(max_msgs=10, channels={"a.>": {"max_msgs": 0}, "a.*": {"max_bytes": 5}})
    assert tree.resolve("a.b").max_msgs == 0


# -- wildcards --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("pattern", "means", "does_not_mean"),
    [
        ("foo", ["foo"], ["foo.bar", "fo", "Foo", "fooo"]),
        ("*", ["foo", "b-r_1"], ["foo.bar"]),
        (">", ["foo", "foo.bar", "a.b.c.d"], []),
        ("foo.*", ["foo.bar"], ["foo", "foo.bar.baz", "bar.foo"]),
        ("foo.>", ["foo.bar", "foo.bar.baz"], ["foo", "foobar", "bar.foo"]),
        ("*.bar", ["foo.bar"], ["bar", "foo.bar.bar", "foo.baz"]),
        ("foo.*.baz", ["foo.bar.baz"], ["foo.baz", "foo.bar.bar.baz"]),
        ("*.*.>", ["a.b.c", "a.b.c.d"], ["a.b", "a"]),
        ("foo.*.>", ["foo.a.b", "foo.a.b.c"], ["foo.a", "foo", "bar.a.b"]),
    ],
)
def test_a_pattern_means_these_channels_and_not_those(pattern: str, means: list[str], does_not_mean: list[str]) -> None:
    tree = tree_of(channels={pattern: {"max_msgs": 7}})
    assert [name for name in [*means, *does_not_mean] if tree.resolve(name).max_msgs == 7] == means


def test_of_patterns_that_overlap_the_leftmost_literal_wins() -> None:
    tree = tree_of(channels={"a.b.>": {"max_msgs": 1}, "a.*.c": {"max_msgs": 2}, "*.b.c": {"max_msgs": 3}})
    assert tree.resolve("a.b.c").max_msgs == 1
    assert tree.resolve("a.x.c").max_msgs == 2
    assert tree.resolve("x.b.c").max_msgs == 3


def test_one_token_is_narrower_than_all_the_rest() -> None:
    tree = tree_of(
        channels={"a.>": {"max_msgs": 1}, "a.*": {"max_msgs": 2}, ">": {"max_msgs": 3}, "*": {"max_msgs": 4}}
    )
    assert [tree.resolve(name).max_msgs for name in ("a.b.c", "a.b", "b.c", "b")] == [1, 2, 3, 4]


# -- slices -----------------------------------------------------------------------------------------------------------


def test_channel_limits_alone_give_slices_of_a_quarter() -> None:
    limits = tree_of(max_msgs=1000, max_bytes="4MiB", max_age="1h").resolve("a")
    assert (limits.slice_max_msgs, limits.slice_max_bytes, limits.slice_max_age_ns) == (250, MIB, HOUR // 4)


def test_automatic_slices_are_never_empty() -> None:
    limits = tree_of(max_msgs=3, max_bytes=2, max_age="2s").resolve("a")
    assert (limits.slice_max_msgs, limits.slice_max_bytes, limits.slice_max_age_ns) == (1, 1, SECOND)


def test_only_limits_that_exist_make_automatic_slices() -> None:
    limits = tree_of(channels={"a": {"max_age": "8s"}}).resolve("a")
    assert (limits.slice_max_msgs, limits.slice_max_bytes, limits.slice_max_age_ns) == (0, 32 * MIB, 2 * SECOND)


@pytest.mark.parametrize(
    ("key", "value", "expected"),
    [
        ("file_slice_max_msgs", 7, (7, 32 * MIB, 0)),
        ("file_slice_max_bytes", "1MiB", (0, MIB, 0)),
        ("file_slice_max_age", "3s", (0, 32 * MIB, 3 * SECOND)),
    ],
)
def test_one_slice_limit_switches_automatic_slices_off(key: str, value: object, expected: tuple[int, int, int]) -> None:
    limits_of = {"max_msgs": 1000, "max_bytes": "4MiB", "max_age": "1h"}
    for tree in (tree_of(**limits_of, **{key: value}), tree_of(**limits_of, channels={"*": {key: value}})):
        limits = tree.resolve("a")
        assert (limits.slice_max_msgs, limits.slice_max_bytes, limits.slice_max_age_ns) == expected


def test_the_default_slice_size_counts_only_where_an_override_states_it() -> None:
    assert tree_of(max_msgs=1000, file_slice_max_bytes="64MiB").resolve("a").slice_max_msgs == 250
    stated = tree_of(max_msgs=1000, channels={"a": {"file_slice_max_bytes": "64MiB"}})
    assert stated.resolve("a").slice_max_msgs == 0
    assert stated.resolve("b").slice_max_msgs == 250


def test_slice_limits_set_to_zero_are_none_and_slices_automatic() -> None:
    tree = tree_of(max_msgs=1000, file_slice_max_msgs=10, channels={"a": {"file_slice_max_msgs": 0}})
    assert tree.resolve("a").slice_max_msgs == 250
    assert tree.resolve("b").slice_max_msgs == 10


@pytest.mark.parametrize("slice_size", [0, "64MiB", "2MiB", "1GiB"])
def test_target_size_bounds_the_bytes_of_a_slice_always(slice_size: object) -> None:
    tree = tree_of(segment={"target_size": "1MiB"}, file_slice_max_bytes=slice_size, max_bytes=GIB)
    assert tree.resolve("a").slice_max_bytes == MIB


# -- telling ----------------------------------------------------------------------------------------------------------


def test_describe_says_where_each_value_comes_from() -> None:
    tree = tree_of(max_msgs=100, channels={"a.>": {"max_age": "1h"}, "a.b": {"max_bytes": "1KiB"}})
    found = origins(tree, "a.b")
    assert found["max_bytes"] is None
    assert found["max_age"] == "a.>"
    assert found["max_msgs"] == "(all channels)"
    assert found["max_subs"] == "(default)"
    assert found["file_slice_max_msgs"] == "(automatic)"
    assert origins(tree, "c")["file_slice_max_bytes"] == "(segment.target_size)"


def test_describe_shows_values_as_people_write_them() -> None:
    texts = {row.key: row.text for row in tree_of(max_bytes="1MiB", max_age="90m").describe("a")}
    assert texts["max_bytes"] == "1MiB"
    assert texts["max_age"] == "90m"
    assert texts["max_msgs"] == "unlimited"
    assert texts["max_inactivity"] == "never"
    assert texts["discard"] == "old"


def test_tree_lists_patterns_widest_first_with_what_they_inherit() -> None:
    tree = tree_of(
        max_msgs=5,
        channels={
            "foo.bar": {"max_subs": 4},
            "foo.*": {"max_msgs": 3},
            "foo.bar.>": {},
            "foo.>": {"max_msgs": 2},
            "*.bar": {"max_msgs": 9},
        },
    )
    rows = [(row.pattern, row.value, row.inherited_from) for row in tree.tree() if row.key == "max_msgs"]
    assert rows == [
        ("(all channels)", 5, None),
        ("*.bar", 9, None),
        ("foo.>", 2, None),
        ("foo.*", 3, None),
        ("foo.bar", 3, "foo.*"),
        ("foo.bar.>", 2, "foo.>"),
    ]


def test_tree_of_an_untouched_store_is_all_defaults() -> None:
    rows = tree_of().tree()
    assert {row.pattern for row in rows} == {"(all channels)"}
    assert {row.inherited_from for row in rows} == {"(default)", "(segment.target_size)"}


# -- cost -------------------------------------------------------------------------------------------------------------


def test_channels_with_the_same_overrides_share_one_answer() -> None:
    tree = tree_of(channels={"a.*": {"max_msgs": 1}})
    assert tree.resolve("a.b") is tree.resolve("a.c") is tree.resolve("a.b")
    assert tree.resolve("a.b") is not tree.resolve("b")


def test_more_names_than_are_remembered_still_get_their_limits() -> None:
    tree = tree_of(channels={"last": {"max_msgs": 1}})
    for number in range(NAMES_CACHED_MAX + 1):
        tree.resolve(f"c{number}")
    assert (tree.resolve("c0").max_msgs, tree.resolve("last").max_msgs) == (0, 1)
