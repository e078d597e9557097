"""What the demo sends: a small exchange with trades and quotes, and its log.

Promise: every event follows from its channel and id alone, with integer arithmetic, so that a reader can compute what
must have arrived. Ids of a channel are 1, 2, 3 … in the order of sending; a frame has `ROWS` of them, so its number
says which.
"""

from __future__ import annotations

from typing import TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

TRADES, QUOTES, LOGS = "trades", "quotes", "otlp.logs"
ROWS = {TRADES: 100, QUOTES: 100, LOGS: 20}
"""Events of each channel in a frame."""

SYMBOLS = pa.array(["AAPL", "AMZN", "ASML", "BAYN", "GOOG", "META", "MSFT", "NVDA", "SAP", "SIE", "TSLA", "TTE"])
LEVELS, LOG_TEXTS = pa.array(["INFO", "WARN"]), pa.array([" filled", " filled late"])
SIDES = pa.array(["buy", "sell"])
SERVICE = "matching-engine"
FIRST_TIME_US = 1_767_346_200_000_000  # 2026-01-02 09:30 UTC

Ints: TypeAlias = npt.NDArray[np.int64]


def make_frame(channel: str, fsn: int) -> pa.RecordBatch:
    """The events of the frame with that number, from 0."""
    first = fsn * ROWS[channel] + 1
    return make_events(channel, np.arange(first, first + ROWS[channel], dtype=np.int64))


def ids_of(channel: str, batch: pa.RecordBatch | pa.Table) -> Ints:
    """The ids in a batch that was read; a log record has it in its text."""
    if channel != LOGS:
        found: Ints = batch.column("id").to_numpy()
        return found
    digits = pc.replace_substring_regex(batch.column("body"), r"\D", "")
    logged: Ints = digits.cast(pa.int64()).to_numpy(zero_copy_only=False)
    return logged


def make_events(channel: str, ids: Ints) -> pa.RecordBatch:
    """The events with these ids."""
    if channel == LOGS:
        return _make_logs(ids)
    noise = _mixed(ids)
    symbol = noise % len(SYMBOLS)
    cents = 2_500 + 4_700 * symbol + np.abs(ids // 50 % 2_000 - 1_000) + noise // 16 % 40
    common = {
        "id": pa.array(ids),
        "ts": pa.array(FIRST_TIME_US + ids * 250, pa.timestamp("us", "UTC")),
        "symbol": SYMBOLS.take(pa.array(symbol)),
    }
    return pa.RecordBatch.from_pydict(common | _own_columns(channel, cents, noise))


def _make_logs(ids: Ints) -> pa.RecordBatch:
    slow = _mixed(ids) % 16 == 0
    texts = pa.array(ids).cast(pa.string())
    return pa.RecordBatch.from_pydict(
        {
            "time": pa.array((FIRST_TIME_US + ids * 250) * 1000, pa.timestamp("ns", "UTC")),
            "severity_number": pa.array(np.where(slow, 13, 9), pa.int32()),
            "severity_text": LEVELS.take(pa.array(slow.astype(np.int64))),
            "body": pc.binary_join_element_wise("order ", texts, LOG_TEXTS.take(pa.array(slow.astype(np.int64))), ""),
            "service_name": pa.array([SERVICE] * len(ids)),
        }
    )


def _own_columns(channel: str, cents: Ints, noise: Ints) -> dict[str, pa.Array]:
    lots = pa.array((1 + noise // 1_024 % 40) * 25, pa.int32())
    if channel == QUOTES:
        return {"bid": pa.array((cents - 2) / 100), "ask": pa.array((cents + 2) / 100), "size": lots}
    side = SIDES.take(pa.array(noise // 65_536 % 2))
    return {"price": pa.array(cents / 100), "qty": lots, "side": side}


def _mixed(ids: Ints) -> Ints:
    """Numbers that look random and follow from the id (the finalizer of SplitMix64), as 0..2^31-1."""
    x = ids.astype(np.uint64) * np.uint64(0x9E3779B97F4A7C15)
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return (x >> np.uint64(33)).astype(np.int64)
