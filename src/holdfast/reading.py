"""Events as a table, in one call: from a running server, or from the directory of a store.

    import holdfast
    trades = holdfast.read("trades")                       # a server on this machine
    trades = holdfast.read("trades", path="./data")        # a store
    trades.to_pandas(); trades.to_polars(); trades.table   # pyarrow

Promise: what is given is the channel as of the call, from segments and from what is not sealed yet, without a gap or a
repeat. All of it is in memory: for more than that read with Spark, or in batches with `Store.read`. A directory is only
looked at (`store/inspect/events.py`): nothing in it changes, whatever state it is in, and a server may have it open.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import pyarrow as pa

from holdfast.consumer.adminclient import AdminClient, ServerAt
from holdfast.errors import BadRequest, CorruptData

if TYPE_CHECKING:
    import pandas as pd  # type: ignore[import-untyped]
    import polars as pl

    from holdfast.store.inspect.events import StoreEvents

Answer = TypeVar("Answer")

ADDR_DEFAULT = "http://127.0.0.1:9001"
PATIENCE_S = 5.0
"""How long a server may be away."""
PICTURES_MAX = 5
"""What is evicted or put together between looking and reading is looked for again; not again and again."""


@dataclass(frozen=True, slots=True)
class Events:
    """Events of a channel. Anything that takes Arrow data takes it as it is."""

    table: pa.Table

    def to_pandas(self) -> pd.DataFrame:
        """As a pandas data frame."""
        return self.table.to_pandas()

    def to_polars(self) -> pl.DataFrame:
        """As a polars data frame."""
        import polars  # noqa: PLC0415  # only who asks for it needs it

        frame = polars.from_arrow(self.table)
        assert isinstance(frame, polars.DataFrame), "a table is a frame"
        return frame

    def __len__(self) -> int:
        rows: int = self.table.num_rows
        return rows

    def __arrow_c_stream__(self, requested_schema: object = None) -> Any:
        return self.table.__arrow_c_stream__(requested_schema)


def read(
    channel: str,
    *,
    addr: str = "",
    path: str | Path | None = None,
    start: int | str | datetime = "first",
    end: int | str | datetime | None = None,
    columns: Sequence[str] | None = None,
    system: Sequence[str] = (),
    token: str | Path = "",
) -> Events:
    """The events of a channel; `start` and `end` are seqs, `first`, `last`, or times with their zone.

    >>> trades = holdfast.read("trades", addr="http://127.0.0.1:9001", columns=["price"])
    >>> trades.table.to_pydict()
    {'price': [12.5, 7.0]}

    Without `addr` and `path` it is the server on this machine. `token` is the credential for the server; a `Path` is a
    file that holds it.
    """
    if path is not None:
        if addr:
            raise BadRequest("addr and path are two places; give one of them")
        return Events(_from_store(path, channel, (start, end), columns=columns, system=system))
    client = _client(addr, token)
    query = {"start": _text(start)}
    if end is not None:
        query["end"] = _text(end)
    if columns is not None:
        query["columns"] = ",".join(columns)
    if system:
        query["system"] = ",".join(system)
    return Events(client.events(channel, **query))


def channels(*, addr: str = "", path: str | Path | None = None, token: str | Path = "") -> list[str]:
    """The names of the channels that a server shows to the caller, or that a store has; sorted."""
    if path is not None:
        return _looking(path, lambda store: store.channels())
    return [item["name"] for item in _client(addr, token).pages("channels")]


def _client(addr: str, token: str | Path) -> AdminClient:
    text, file = ("", str(token)) if isinstance(token, Path) else (token, "")
    return AdminClient(ServerAt(addr or ADDR_DEFAULT, text, file), patience_s=PATIENCE_S)


def _text(position: int | str | datetime) -> str:
    return position.isoformat() if isinstance(position, datetime) else str(position)


def _from_store(
    path: str | Path,
    channel: str,
    span: tuple[Any, Any],
    *,
    columns: Sequence[str] | None,
    system: Sequence[str],
) -> pa.Table:
    def read_all(store: StoreEvents) -> pa.Table:
        batches = list(store.read(channel, start=span[0], end=span[1], columns=columns, system=system))
        schema = batches[0].schema if batches else store.schema(channel)
        table = pa.Table.from_batches(batches, schema)
        return table if batches or columns is None else table.select(list(columns))

    return _looking(path, read_all)


def _looking(path: str | Path, ask: Callable[[StoreEvents], Answer]) -> Answer:
    """Ask a picture of a store; if somebody else had the store open meanwhile, a newer one if it is out of date."""
    from holdfast.store.inspect.events import is_open, store_events  # noqa: PLC0415  # a client of a server lacks it

    directory = Path(path)
    for left in reversed(range(PICTURES_MAX)):
        was_open = is_open(directory)
        try:
            with store_events(directory) as store:
                return ask(store)
        except (FileNotFoundError, CorruptData):
            if not left or not (was_open or is_open(directory)):
                raise
    raise AssertionError("the last picture was returned, or its error raised")
