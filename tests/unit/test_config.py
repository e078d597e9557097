"""Settings are read once, strictly, and name the key when they are wrong."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import pytest

from holdfast.config import (
    GIB,
    HOUR,
    MIB,
    MS,
    SECOND,
    SETTINGS,
    Kind,
    Pattern,
    Setting,
    StoreConfig,
    format_value,
    parse_size,
    parse_time,
    settings_markdown,
)
from holdfast.config.reading import WILDCARDS_MAX, ChannelOverride
from holdfast.config.tier import TierConfig
from holdfast.config.values import split_url
from holdfast.errors import InvalidConfig

NUMBERS = [row for row in SETTINGS if row.kind in (Kind.SIZE, Kind.TIME, Kind.COUNT)]
PER_CHANNEL = [row for row in SETTINGS if row.per_channel]
STORE_WIDE = [row for row in SETTINGS if not row.per_channel]


def read(**mapping: object) -> StoreConfig:
    """Settings from keywords."""
    return StoreConfig.from_mapping(mapping)


def refusal(mapping: Any) -> InvalidConfig:
    """How a mapping is refused."""
    with pytest.raises(InvalidConfig) as caught:
        StoreConfig.from_mapping(mapping)
    return caught.value


# -- values -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "size"),
    [("32MB", 32_000_000), ("64MiB", 64 * MIB), ("1.5GiB", 3 * GIB // 2), ("4096", 4096), ("7 kb", 7000), (12, 12)],
)
def test_sizes_take_decimal_and_binary_units(text: object, size: int) -> None:
    assert parse_size(text) == size


@pytest.mark.parametrize(
    ("text", "time_ns"), [("25ms", 25 * MS), ("72h", 72 * HOUR), ("0.5s", SECOND // 2), ("0", 0), (0, 0), ("0s", 0)]
)
def test_times_take_units_and_a_bare_zero(text: object, time_ns: int) -> None:
    assert parse_time(text) == time_ns


@pytest.mark.parametrize("raw", [5, "5", 1.5, False, None, "5 parsecs", "1e3s", "²s"])
def test_times_without_a_known_unit_are_refused(raw: object) -> None:
    with pytest.raises(ValueError, match="is not a number with one of the units ns, us, ms, s, m, h, d"):
        parse_time(raw)


@pytest.mark.parametrize("text", ["http://h:9[01", "http://[::1", "s3://]", "http://h:90x", "http://h:99999"])
def test_texts_that_are_no_urls_have_no_scheme(text: str) -> None:
    assert split_url(text).scheme == ""
    with pytest.raises(InvalidConfig, match="does not begin with one of"):
        TierConfig(url=text)


@pytest.mark.parametrize(
    ("raw", "flag"), [(True, True), (False, False), ("yes", True), ("No", False), ("TRUE", True), ("false", False)]
)
def test_a_flag_is_yes_no_true_or_false(raw: object, flag: bool) -> None:
    assert read(verify_crc=raw).verify_crc is flag


@pytest.mark.parametrize("raw", [0, 1, "on", "", None, "y"])
def test_a_flag_is_nothing_else(raw: object) -> None:
    assert refusal({"verify_crc": raw}).key == "verify_crc"


@pytest.mark.parametrize("row", SETTINGS, ids=lambda row: row.key)
def test_every_default_is_read_back_from_its_own_text(row: Setting) -> None:
    assert row.parse(row.default_text) == row.default


@pytest.mark.parametrize("row", NUMBERS, ids=lambda row: row.key)
def test_both_ends_of_every_range_are_allowed_and_no_more(row: Setting) -> None:
    assert row.parse(format_value(row.kind, row.low)) == row.low
    assert row.parse(format_value(row.kind, row.high)) == row.high
    for outside in (row.high + 1, row.low - 1):
        if not (outside == 0 and row.zero):
            with pytest.raises(InvalidConfig):
                row.parse(format_value(row.kind, outside))


@pytest.mark.parametrize("row", NUMBERS, ids=lambda row: row.key)
def test_a_negative_number_is_refused_by_key(row: Setting) -> None:
    unit = "s" if row.kind is Kind.TIME else ""
    for raw in (f"-1{unit}", -1):
        with pytest.raises(InvalidConfig) as caught:
            row.parse(raw)
        assert caught.value.key == row.key


def test_a_negative_limit_says_what_zero_means() -> None:
    assert str(refusal({"max_msgs": -1})) == "setting max_msgs: -1 is negative; 0 means unlimited"


@pytest.mark.parametrize("text", ["a\nb", "\x00", "\ud800", "x" * 5000])
def test_a_text_is_short_and_printable(text: str) -> None:
    assert refusal({"archive_script": text}).key == "archive_script"


@pytest.mark.parametrize("raw", ["9" * 5000, 10**5000, ["x"] * 10_000], ids=["text", "int", "list"])
def test_a_huge_value_gives_a_short_error(raw: object) -> None:
    assert len(str(refusal({"max_msgs": raw}))) < 200


def test_verify_crc_says_loudly_what_it_gives_up() -> None:
    row = next(row for row in SETTINGS if row.key == "verify_crc")
    assert row.default is True
    assert "GIVES UP G9" in row.why


# -- mappings ---------------------------------------------------------------------------------------------------------


def test_the_example_of_the_persistence_node_is_read() -> None:
    config = read(
        segment={"target_size": "32MB"},
        wal={"max_size": "4GB", "flush_interval": "25ms"},
        retention={"max_retain_after_ingestion_hours": 72, "size_cap": "500GB", "size_cap_policy": "drop_oldest"},
    )
    assert config.segment_target_bytes == 32_000_000
    assert config.wal_max_bytes == 4_000_000_000
    assert config.wal_flush_interval_ns == 25 * MS
    assert config.retention_max_retain_after_ingestion_hours == 72
    assert config.retention_max_retain_ns == 72 * HOUR
    assert config.retention_size_cap_bytes == 500_000_000_000
    assert config.retention_size_cap_policy == "drop_oldest"


def test_hours_may_be_a_number_or_its_text() -> None:
    key = "retention.max_retain_after_ingestion_hours"
    assert StoreConfig.from_mapping({key: "72"}) == StoreConfig.from_mapping({key: 72})


def test_flat_and_nested_mappings_mean_the_same() -> None:
    nested = {"wal": {"max_size": "1GiB"}, "channels": {"a.*": {"segment": {"compression": "zstd"}}}}
    flat = {"wal.max_size": "1GiB", "channels": {"a.*": {"segment.compression": "zstd"}}}
    assert StoreConfig.from_mapping(nested) == StoreConfig.from_mapping(flat)


def test_an_empty_mapping_gives_the_defaults() -> None:
    assert StoreConfig.from_mapping({}) == StoreConfig() == read(wal={}, channels={})


def test_a_key_given_twice_is_refused() -> None:
    error = refusal({"wal.max_size": "1GiB", "wal": {"max_size": "2GiB"}})
    assert (error.key, error.reason) == ("wal.max_size", "is given twice, flat and nested")


@pytest.mark.parametrize(
    ("mapping", "key", "hint"),
    [
        ({"wal": {"max_sise": 1}}, "wal.max_sise", "did you mean wal.max_size?"),
        ({"wall": {}}, "wall", "did you mean wal?"),
        ({"wal": None}, "wal", "it is a section with the settings wal.max_size, wal.rotation_size"),
        ({"zzzzzz": 1}, "zzzzzz", "known are ack.checkpoint_interval"),
        ({"channels.orders": {"max_msgs": 1}}, "channels.orders", "mapping from pattern to settings under the key"),
        ({1: 2}, "1", "known are"),
        pytest.param({10**5000: 2}, "this int", "known are", id="huge"),
    ],
)
def test_an_unknown_key_is_named_with_a_hint(mapping: object, key: str, hint: str) -> None:
    error = refusal(mapping)
    assert error.key == key
    assert error.reason.startswith("unknown setting")
    assert hint in error.reason


@pytest.mark.parametrize("value", [{}, {"a": 1}])
def test_a_mapping_where_a_value_belongs_is_refused(value: object) -> None:
    assert refusal({"max_msgs": value}).key == "max_msgs"


def test_a_mapping_that_contains_itself_is_refused() -> None:
    loop: dict[str, object] = {}
    loop["wal"] = loop
    assert refusal(loop).key == "wal.wal"


@pytest.mark.parametrize("raw", [None, [], "wal", 5])
def test_settings_that_are_no_mapping_are_refused(raw: object) -> None:
    assert refusal(raw).key == "(all)"


# -- relations --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("mapping", "key"),
    [
        ({"wal.max_size": "100MiB"}, "wal.max_size"),
        ({"frame.max_size": "33MiB"}, "frame.max_size"),
        ({"segment.target_size": "65MiB"}, "segment.target_size"),
        ({"retention.size_cap": "575MiB"}, "retention.size_cap"),
        ({"retention.size_cap_policy": "drop_oldest"}, "retention.size_cap_policy"),
        (
            {"retention.size_cap": "1GiB", "retention.steady_state_headroom": "1GiB"},
            "retention.steady_state_headroom",
        ),
        ({"retention.time_basis": "event"}, "retention.time_basis"),
        ({"max_channels": 1, "channels": {"a": {}, "b": {}}}, "max_channels"),
    ],
)
def test_settings_that_contradict_are_refused(mapping: object, key: str) -> None:
    assert refusal(mapping).key == key


def test_a_small_size_cap_is_told_the_smallest_one() -> None:
    assert "must be at least 576MiB" in refusal({"retention.size_cap": "500MiB"}).reason
    assert read(retention={"size_cap": "576MiB"}).retention_size_cap_bytes == 576 * MIB


def test_event_time_of_one_channel_is_enough_for_age_by_event_time() -> None:
    config = read(retention={"time_basis": "event"}, channels={"logs.>": {"event_time": "ts"}})
    assert config.retention_time_basis == "event"


def test_patterns_with_wildcards_do_not_count_as_channels() -> None:
    assert read(max_channels=1, channels={"a": {}, "b.*": {}, "c.>": {}}).max_channels == 1
    assert len(read(max_channels=0, channels={f"c{n}": {} for n in range(50)}).channels) == 50


# -- overrides --------------------------------------------------------------------------------------------------------


def test_overrides_keep_only_what_was_written() -> None:
    config = read(channels={"orders.eu": {"retention": {"mode": "limits"}, "max_msgs": 0}, "orders.>": {}})
    assert config.channels == (
        ChannelOverride(Pattern.parse("orders.>"), ()),
        ChannelOverride(Pattern.parse("orders.eu"), (("max_msgs", 0), ("retention.mode", "limits"))),
    )


@pytest.mark.parametrize("row", PER_CHANNEL, ids=lambda row: row.key)
def test_every_channel_setting_may_stand_in_an_override(row: Setting) -> None:
    config = read(channels={"a.*": {row.key: row.default_text}})
    assert dict(config.channels[0].values) == {row.key: row.default}


@pytest.mark.parametrize("row", STORE_WIDE, ids=lambda row: row.key)
def test_a_store_wide_setting_in_an_override_is_refused_as_such(row: Setting) -> None:
    error = refusal({"channels": {"a.*": {row.key: "whatever"}}})
    assert error.key == f"channels.a.*.{row.key}"
    assert error.reason == f"{row.key} is store-wide; it cannot be set for a channel"


def test_an_unknown_setting_in_an_override_is_named_with_its_pattern() -> None:
    error = refusal({"channels": {"orders.>": {"max_massages": 1}}})
    assert error.key == "channels.orders.>.max_massages"
    assert "did you mean max_msgs?" in error.reason


def test_a_negative_limit_in_an_override_is_named_with_its_pattern() -> None:
    error = refusal({"channels": {"orders.*": {"max_msgs": -1}}})
    assert str(error) == "setting channels.orders.*.max_msgs: -1 is negative; 0 means unlimited"


@pytest.mark.parametrize(
    ("pattern", "reason"),
    [
        ("", "empty"),
        ("a..b", "empty"),
        (".a", "empty"),
        ("a.", "empty"),
        ("a.>.b", "last token"),
        (">.>", "last token"),
        ("a*", "neither"),
        ("a.b>", "neither"),
        ("a.**", "neither"),
        ("a b", "neither"),
        ("a/b", "neither"),
        ("é", "neither"),
        ("-a", "begins with a letter or a digit"),
        ("a" * 129, "at most 128 characters"),
        (5, "in quotes"),
        (None, "in quotes"),
        (True, "in quotes"),
    ],
)
def test_a_bad_pattern_is_refused_by_name(pattern: object, reason: str) -> None:
    error = refusal({"channels": {pattern: {"max_msgs": 1}}})
    assert error.key == f"channels.{pattern}"
    assert reason in error.reason


@pytest.mark.parametrize("raw", [None, [], "a", 5])
def test_overrides_that_are_no_mapping_are_refused(raw: object) -> None:
    assert refusal({"channels": raw}).key == "channels"
    assert refusal({"channels": {"a": raw}}).key == "channels.a"


def test_too_many_wildcards_are_refused() -> None:
    patterns: dict[str, object] = {f"c{n}.*": {} for n in range(WILDCARDS_MAX + 1)}
    assert refusal({"channels": patterns}).key == "channels"
    patterns.popitem()
    assert len(read(channels=patterns).channels) == WILDCARDS_MAX


@pytest.mark.parametrize(
    ("channels", "key"),
    [
        ({"a": {"max_msgs": 1}}, "channels"),
        (("a",), "channels"),
        ((ChannelOverride(Pattern.parse("a"), ()),) * 2, "channels.a"),
        ((ChannelOverride(Pattern.parse("a"), (("max_msgs", "5"),)),), "channels.a.max_msgs"),
        ((ChannelOverride(Pattern.parse("a"), (("max_channels", 5),)),), "channels.a.max_channels"),
        ((ChannelOverride(Pattern.parse("a"), (("nothing", 5),)),), "channels.a.nothing"),
    ],
)
def test_overrides_made_by_a_program_are_checked_too(channels: Any, key: str) -> None:
    with pytest.raises(InvalidConfig) as caught:
        StoreConfig(channels=channels)
    assert caught.value.key == key


# -- page -------------------------------------------------------------------------------------------------------------


def test_the_module_prints_the_settings_page() -> None:
    printed = subprocess.run([sys.executable, "-m", "holdfast.config"], capture_output=True, text=True, check=True)
    assert printed.stdout == settings_markdown()


def test_the_page_sorts_settings_by_scope() -> None:
    store, channel = settings_markdown().split("## Per channel")
    assert all(f"\n| `{row.key}` |" in store for row in STORE_WIDE)
    assert all(f"\n| `{row.key}` |" in channel for row in PER_CHANNEL)
