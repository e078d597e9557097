"""Channels whose events are unique by some columns: `dedup_keys`."""

from __future__ import annotations

from datetime import UTC, datetime
from decimal import Decimal
from itertools import pairwise
from pathlib import Path

import pyarrow as pa
import pytest

from holdfast import Store
from holdfast.errors import InvalidBatch, InvalidConfig
from holdfast.model.frame import Entry, SlotFrame
from holdfast.model.positions import Fsn
from holdfast.store.event_ids import digests_of, id_column_of
from holdfast.testing import CrashFilesystem

KEYED = {"channels": {"trades": {"dedup_keys": "at, pair"}}}
NOON = datetime(2024, 1, 1, 12, tzinfo=UTC)


def trades(*rows: tuple[datetime | None, str | None, int]) -> pa.RecordBatch:
    return pa.record_batch(
        {
            "at": pa.array([row[0] for row in rows], pa.timestamp("us", "UTC")),
            "pair": pa.array([row[1] for row in rows]).dictionary_encode(),
            "price": pa.array([row[2] for row in rows], pa.int64()),
        }
    )


def prices(store: Store) -> list[int]:
    return [price for batch in store.read("trades", columns=["price"]) for price in batch.column(0).to_pylist()]


@pytest.mark.guarantee("G3")
def test_event_that_equals_a_stored_one_in_its_keys_is_left_out(tmp_path: Path) -> None:
    with Store.open(tmp_path, KEYED) as store:
        store.commit("trades", trades((NOON, "ETH", 1), (NOON, "BTC", 2)))
        receipt = store.commit("trades", trades((NOON, "ETH", 99), (NOON, "XRP", 3), (NOON, "XRP", 4)))
        assert receipt.duplicate_events == 1
        assert not receipt.duplicate
        assert store.commit("trades", trades((NOON, "BTC", 5))).duplicate
        assert prices(store) == [1, 2, 3]


@pytest.mark.guarantee("G3")
@pytest.mark.parametrize("sealed", [False, True])
def test_keys_are_known_after_a_restart(tmp_path: Path, sealed: bool) -> None:
    disk = CrashFilesystem()
    store = Store.open(tmp_path, KEYED, filesystem=disk, inline=True)
    store.commit("trades", trades((NOON, "ETH", 1)))
    if sealed:
        store.flush()
    with Store.open(tmp_path, KEYED, filesystem=disk.after_power_cut(0), inline=True) as again:
        again.commit("trades", trades((NOON, "ETH", 2), (NOON, "BTC", 3)))
        assert prices(again) == [1, 3]


def test_keys_stay_the_same_when_a_column_gets_wider(tmp_path: Path) -> None:
    with Store.open(tmp_path, {"channels": {"trades": {"dedup_keys": "price"}}}) as store:
        store.commit("trades", pa.record_batch({"price": pa.array([1, 2], pa.int8())}))
        store.commit("trades", pa.record_batch({"price": pa.array([2, 3], pa.int64())}))
        assert prices(store) == [1, 2, 3]


ROWS = [5, 0, None, -7]
WIDENINGS = [
    *[(pa.null(), kind) for kind in (pa.int8(), pa.float64(), pa.string(), pa.date32(), pa.decimal128(5, 1))],
    *pairwise([pa.int8(), pa.int16(), pa.int32(), pa.int64()]),
    *pairwise([pa.uint8(), pa.uint16(), pa.uint32(), pa.uint64()]),
    *[(pa.uint8(), pa.int16()), (pa.uint16(), pa.int32()), (pa.uint32(), pa.int64())],
    *[(pa.int8(), pa.float32()), (pa.int16(), pa.float32()), (pa.int32(), pa.float64()), (pa.int8(), pa.float64())],
    *[(pa.uint8(), pa.float32()), (pa.uint16(), pa.float32()), (pa.uint32(), pa.float64())],
    *pairwise([pa.float16(), pa.float32(), pa.float64()]),
    *[(pa.decimal128(5, 1), pa.decimal128(9, 1)), (pa.decimal128(9, 1), pa.decimal256(50, 1))],
    *[(pa.decimal32(5, 1), pa.decimal64(9, 1)), (pa.decimal64(9, 1), pa.decimal128(20, 1))],
    *pairwise([pa.string_view(), pa.string(), pa.large_string()]),
    *pairwise([pa.binary_view(), pa.binary(), pa.large_binary()]),
    *[(pa.dictionary(pa.int32(), kind), kind) for kind in (pa.string(), pa.int16(), pa.float64())],
    (pa.dictionary(pa.int32(), pa.string()), pa.large_string()),
    (pa.dictionary(pa.int16(), pa.string()), pa.dictionary(pa.int64(), pa.string())),
]
"""Every step of `model/evolution.py` between types of which a column may be a key."""


def column_of(kind: pa.DataType) -> pa.Array:
    """The same values in any type."""
    if kind == pa.null():
        return pa.nulls(len(ROWS))
    if kind.id == pa.lib.Type_DICTIONARY:
        return column_of(kind.value_type).dictionary_encode().cast(kind)
    values: list[object] = [None if row is None else abs(row) for row in ROWS]
    if kind in (pa.string(), pa.large_string(), pa.string_view()):
        values = [None if row is None else str(row) for row in values]
    elif kind in (pa.binary(), pa.large_binary(), pa.binary_view()):
        values = [None if row is None else str(row).encode() for row in values]
    elif pa.types.is_floating(kind):
        values = [None if row is None else float(str(row)) for row in values]
    elif pa.types.is_decimal(kind):
        values = [None if row is None else Decimal(str(row)) for row in values]
    return pa.array(values, kind)


@pytest.mark.guarantee("G3")
@pytest.mark.parametrize(("narrow", "wide"), WIDENINGS, ids=str)
def test_key_is_the_same_before_and_after_its_column_widens(
    tmp_path: Path, narrow: pa.DataType, wide: pa.DataType
) -> None:
    with Store.open(tmp_path, {"channels": {"trades": {"dedup_keys": "key"}}}) as store:
        before, after = column_of(narrow), column_of(wide)
        store.commit("trades", pa.record_batch({"key": before}))
        assert store.commit("trades", pa.record_batch({"key": before})).duplicate
        new = 0 if narrow != pa.null() else len(ROWS) - ROWS.count(None)
        assert store.commit("trades", pa.record_batch({"key": after})).duplicate_events == len(ROWS) - new
        assert store.commit("trades", pa.record_batch({"key": before})).duplicate


def test_equal_floats_are_one_key_whatever_their_sign_or_bits(tmp_path: Path) -> None:
    huge = [1e300, -1e300, float(1 << 63), -float(1 << 63), float("inf"), -float("inf"), 0.5]
    with Store.open(tmp_path, {"channels": {"trades": {"dedup_keys": "key"}}}) as store:
        first = store.commit("trades", pa.record_batch({"key": pa.array([0.0, float("nan"), *huge])}))
        again = store.commit("trades", pa.record_batch({"key": pa.array([-0.0, -float("nan"), *huge])}))
        assert (first.duplicate_events, again.duplicate_events) == (0, 9)


def test_events_are_left_out_of_batches_with_views_too(tmp_path: Path) -> None:
    def rows(*keys: int) -> pa.RecordBatch:
        texts = [f"a text that is too long for a view {key}" for key in keys]
        return pa.record_batch({"key": list(keys), "text": pa.array(texts, pa.string_view())})

    with Store.open(tmp_path, {"channels": {"trades": {"dedup_keys": "key"}}}) as store:
        store.commit("trades", rows(2, 5))
        for keys in ([1, 2, 3, 4, 5], [5, 6, 2], [6, 2]):
            store.commit("trades", rows(*keys))
        found = [row for batch in store.read("trades") for row in batch.select(["key", "text"]).to_pylist()]
        assert found == rows(2, 5, 1, 3, 4, 6).to_pylist()


def test_null_in_a_key_equals_a_null(tmp_path: Path) -> None:
    with Store.open(tmp_path, KEYED) as store:
        store.commit("trades", trades((NOON, None, 1), (None, "ETH", 2)))
        store.commit("trades", trades((NOON, None, 3), (None, "ETH", 4), (None, None, 5)))
        assert prices(store) == [1, 2, 5]


def test_other_channels_and_frames_with_an_identity_are_not_looked_at(tmp_path: Path) -> None:
    batch = trades((NOON, "ETH", 1))
    with Store.open(tmp_path, KEYED) as store:
        store.commit("quotes", batch)
        assert not store.commit("quotes", batch).duplicate
        store.commit("trades", batch)
        frame = SlotFrame(bytes(range(16)), Fsn(1))
        assert not store.commit_frame([Entry("trades", batch)], identity=frame).duplicate
        assert prices(store) == [1, 1]


def test_batch_without_a_key_column_is_refused_by_name(tmp_path: Path) -> None:
    with Store.open(tmp_path, KEYED) as store, pytest.raises(InvalidBatch, match="'at'"):
        store.commit("trades", pa.record_batch({"price": [1]}))


def test_key_of_a_type_that_is_no_plain_value_is_refused() -> None:
    batch = pa.record_batch({"list": pa.array([[1]])})
    with pytest.raises(InvalidBatch, match=r"'list'.*cannot be one of dedup_keys"):
        digests_of(batch, id_column_of(None, ["list"]))


@pytest.mark.parametrize(
    "array",
    [
        pa.array([1, 2, None], pa.int8()),
        pa.array([0.5, float("nan"), None], pa.float64()),
        pa.array([True, False, None]),
        pa.array(["a", "", None]),
        pa.array([b"a", b"", None], pa.large_binary()),
        pa.array([bytes(16), bytes(range(16)), None], pa.binary(16)),
        pa.array([Decimal("1.50"), Decimal("2.00"), None], pa.decimal128(10, 2)),
        pa.array([1, 2, None], pa.date32()),
        pa.array([1, 2, None], pa.time32("ms")),
        pa.array([1, 2, None], pa.duration("s")),
        pa.array([1, 2, None], pa.timestamp("ns")),
    ],
    ids=lambda array: str(array.type),
)
def test_every_plain_type_gives_one_digest_per_value(array: pa.Array) -> None:
    column = id_column_of(None, ["key"])
    first = digests_of(pa.record_batch({"key": array}), column)
    assert len(set(first)) == 3
    assert digests_of(pa.record_batch({"key": array}), column) == first


def test_digest_depends_on_which_column_holds_what() -> None:
    column = id_column_of(None, ["a", "b"])
    batches = [pa.record_batch({"a": [a], "b": [b]}) for a, b in (("x", "y"), ("y", "x"), ("xy", ""), ("", "xy"))]
    assert len({digests_of(batch, column) for batch in batches}) == 4


def test_keys_that_are_not_a_text_are_refused() -> None:
    with pytest.raises(InvalidConfig, match="dedup_keys"):
        Store.open("unused", {"channels": {"trades": {"dedup_keys": ["at"]}}})
