"""Names, numbers and schemas of channels."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest

from holdfast.config import StoreConfig
from holdfast.errors import InvalidName, LimitReached, SchemaMismatch, UnknownChannel
from holdfast.store.channels import ANY_VERSIONS_MAX, ChannelTable
from holdfast.store.limits import LimitsTree


def table(*, channels_max: int = 0, **settings: Any) -> ChannelTable:
    return ChannelTable(LimitsTree(StoreConfig(**settings)), channels_max=channels_max)


def batch(**columns: pa.Array) -> pa.RecordBatch:
    return pa.record_batch(columns)


NARROW = batch(n=pa.array([1], pa.int32()))
WIDE = batch(n=pa.array([1], pa.int64()), x=pa.array(["y"]))


def test_name_means_the_same_channel_for_ever() -> None:
    channels = table()
    first = channels.get_or_create("a")
    second = channels.get_or_create("b")
    assert (first.id, second.id) == (1, 2)
    assert channels.get_or_create("a") is first
    assert channels.get("a") is channels.find("a") is channels.by_id(1) is first
    assert [channel.name for channel in channels] == ["a", "b"]
    assert len(channels) == 2


def test_unknown_channel_is_none_or_an_error() -> None:
    channels = table()
    assert channels.get("a") is None
    with pytest.raises(UnknownChannel):
        channels.find("a")


def test_names_that_differ_only_by_case_cannot_both_exist() -> None:
    channels = table()
    channels.get_or_create("Orders")
    with pytest.raises(InvalidName, match="'Orders'"):
        channels.get_or_create("ORDERS")


def test_more_channels_than_allowed_are_refused() -> None:
    channels = table(channels_max=2)
    channels.get_or_create("a")
    channels.get_or_create("b")
    channels.get_or_create("a")
    with pytest.raises(LimitReached, match="max_channels"):
        channels.get_or_create("c")


def test_restored_channel_keeps_its_number_and_new_ones_come_after_it() -> None:
    channels = table()
    assert channels.restore("a", 7) is channels.restore("a", 7)
    assert channels.get_or_create("b").id == 8
    with pytest.raises(ValueError, match="channel id 7"):
        channels.restore("other", 7)


def test_evolving_schema_widens_and_older_batches_fit_the_newer_schema() -> None:
    channels = table()
    channel = channels.get_or_create("a")
    first, _ = channels.fit(channel, NARROW)
    second, _ = channels.fit(channel, WIDE)
    assert first.schema == NARROW.schema
    assert second.schema == WIDE.schema
    third, fitted = channels.fit(channel, NARROW)
    assert third is second
    assert fitted.to_pylist() == [{"n": 1, "x": None}]
    assert channel.version is second


def test_strict_schema_refuses_any_other() -> None:
    channels = table(schema_mode="strict")
    channel = channels.get_or_create("a")
    version, _ = channels.fit(channel, NARROW)
    with pytest.raises(SchemaMismatch):
        channels.fit(channel, WIDE)
    assert channels.fit(channel, NARROW)[0] is version


def test_any_schema_is_kept_as_it_comes() -> None:
    channels = table(schema_mode="any")
    channel = channels.get_or_create("a")
    first, _ = channels.fit(channel, NARROW)
    second, fitted = channels.fit(channel, batch(other=pa.array([True])))
    assert fitted.schema.names == ["other"]
    assert channels.fit(channel, NARROW)[0] is first
    assert first.id != second.id


def test_remembered_schemas_of_mode_any_are_bounded() -> None:
    channels = table(schema_mode="any")
    channel = channels.get_or_create("a")
    for number in range(ANY_VERSIONS_MAX + 50):
        channels.fit(channel, pa.record_batch({f"c{number}": pa.array([1])}))
    assert len(channel.versions) == ANY_VERSIONS_MAX


def test_schema_found_in_the_log_never_narrows_the_channel() -> None:
    channels = table()
    channel = channels.restore("a", 1)
    wide = channels.adopt_schema(channel, WIDE.schema)
    assert channels.adopt_schema(channel, NARROW.schema) is wide
    old = channels.new_version(channel, NARROW.schema)
    assert old.schema == NARROW.schema
    assert channel.version is wide


@pytest.mark.parametrize(
    ("arrow_type", "expected"),
    [
        (pa.int64(), False),
        (pa.dictionary(pa.int32(), pa.string()), True),
        (pa.list_(pa.dictionary(pa.int8(), pa.string())), True),
        (pa.struct([("x", pa.list_(pa.int8()))]), False),
    ],
)
def test_schema_knows_whether_it_has_dictionaries(arrow_type: pa.DataType, expected: bool) -> None:
    channels = table(schema_mode="any")
    channel = channels.get_or_create("a")
    assert channels.adopt_schema(channel, pa.schema([("c", arrow_type)])).has_dictionaries is expected
