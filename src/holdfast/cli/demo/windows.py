"""The volumes that Spark computed per symbol and window, and what they must be."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from holdfast.cli.demo.events import TRADES, make_events
from holdfast.cli.demo.watching import table_rows
from holdfast.spark.tables import read_manifest

WINDOW_S = 10
BUSIEST = 5
TOLERANCE = 1e-6
"""Spark adds the same numbers in another order."""


@dataclass(frozen=True, slots=True)
class Volumes:
    """How many sums Spark has closed, how many of them are not what was sent, and the symbols with the largest."""

    windows: int
    wrong: int
    busiest: tuple[tuple[str, int, float], ...]


def check_volumes(folder: Path, *, trades: int) -> Volumes:
    """Compare every sum with the events that were sent, of which there are `trades`."""
    if not table_rows(folder):
        return Volumes(0, 0, ())
    found = pq.ParquetDataset(read_manifest(folder).files).read()
    start = pc.struct_field(found.column("window").combine_chunks(), "start").cast(pa.int64())
    computed = pa.table(
        {"start": start, "symbol": found.column("symbol"), "n": found.column("trades"), "v": found.column("volume")}
    )
    joined = computed.join(_expected(trades), ["start", "symbol"], join_type="left outer")
    same = pc.and_(
        pc.equal(joined.column("n"), joined.column("trades")),
        pc.less_equal(
            pc.abs(pc.subtract(joined.column("v"), joined.column("volume"))),
            pc.multiply(joined.column("volume"), TOLERANCE),
        ),
    )
    wrong = joined.num_rows - (pc.sum(pc.fill_null(same, False)).as_py() or 0)
    doubled = computed.num_rows - computed.group_by(["start", "symbol"]).aggregate([]).num_rows
    return Volumes(computed.num_rows, wrong + doubled, _busiest(computed))


def _expected(trades: int) -> pa.Table:
    events = make_events(TRADES, np.arange(1, trades + 1, dtype=np.int64))
    us, length = events.column("ts").cast(pa.int64()), WINDOW_S * 1_000_000
    volume = pc.multiply(events.column("price"), events.column("qty").cast(pa.float64()))
    table = pa.table(
        {
            "start": pc.multiply(pc.divide(us, length), length),
            "symbol": events.column("symbol"),
            "volume": volume,
        }
    )
    summed = table.group_by(["start", "symbol"]).aggregate([("volume", "sum"), ("volume", "count")])
    return summed.rename_columns({"volume_sum": "volume", "volume_count": "trades"})


def _busiest(computed: pa.Table) -> tuple[tuple[str, int, float], ...]:
    summed = computed.group_by("symbol").aggregate([("n", "sum"), ("v", "sum")]).sort_by([("v_sum", "descending")])
    return tuple((row["symbol"], row["n_sum"], row["v_sum"]) for row in summed.slice(0, BUSIEST).to_pylist())
