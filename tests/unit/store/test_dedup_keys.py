"""Channels whose events are unique by some columns: `dedup_keys`."""

from __future__ import annotations

from datetime import UTC, datetime
from decimal import Decimal
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
