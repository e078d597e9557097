"""QuestDB's client beside our Sender: the same rows to the same server, in the ways it has.

A row at a time it hands over to a queue of its own, in memory or in a slot, as our Sender does. A table it sends over a
connection of its own and returns when all of it is committed, with a slot or without.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pyarrow as pa

from bench.workload import Budget, Timing, one_caller

FLUSH_ROWS = 1_000
"""What it flushes by itself, and our Sender too."""
PATIENCE_MS = 120_000


def is_installed() -> bool:
    """Whether the peer can be measured."""
    return find_spec("questdb") is not None


@contextmanager
def opened(address: str, slots: Path | None = None) -> Iterator[Any]:
    """Their sender, with a slot if it has a place for it."""
    slot = f"sf_dir={slots};sender_id=questdb;" if slots else ""
    conf = f"ws::addr={address};auto_flush=off;close_flush_timeout_millis={PATIENCE_MS};{slot}"
    client = import_module("questdb").Sender.from_conf(conf)
    client.establish()
    try:
        yield client
    finally:
        client.close()


def flush_one(client: Any, row: dict[str, Any], budget: Budget) -> Timing:
    """A row and a flush, again and again; nothing is on its way when it returns."""
    columns = {name: value for name, value in row.items() if name != "source"}
    put = partial(client.row, "questdb", symbols={"source": row["source"]}, columns=columns, at=_at())

    def once() -> None:
        put()
        client.flush()

    timing = one_caller(once, budget)
    _drain(client)
    return timing


def hand_over_rows(client: Any, row: dict[str, Any], budget: Budget) -> tuple[Timing, float]:
    """Rows in a loop, a flush for each thousand; and how many a second were accepted."""
    put = partial(client.row, "questdb-rows", columns=row, at=_at())

    def once() -> None:
        for _ in range(FLUSH_ROWS):
            put()
        client.flush()

    started = time.perf_counter()
    timing = one_caller(once, budget)
    _drain(client)
    rows = timing.calls * FLUSH_ROWS
    return Timing(rows, timing.seconds), rows / (time.perf_counter() - started)


def send_tables(address: str, table: pa.Table, budget: Budget) -> Timing:
    """Rows by `dataframe()`, each call answered when all of its rows are committed."""
    pool = import_module("questdb").connect(f"ws::addr={address};query_pool_min=0;")
    try:
        send = partial(pool.dataframe, table, table_name="questdb-table", at=_at())
        send()  # opens the connection
        timing = one_caller(send, budget)
    finally:
        pool.close()
    return Timing(timing.calls * table.num_rows, timing.seconds)


def _at() -> Any:
    return import_module("questdb").TimestampNanos(1_700_000_000_000_000_000)


def _drain(client: Any) -> None:
    assert client.await_acked_fsn(client.published_fsn(), PATIENCE_MS), "not everything was accepted"
