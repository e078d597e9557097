"""The consumer, and the rows that Spark has written: what arrives at the ends while the demo runs."""

from __future__ import annotations

import threading
from contextlib import suppress
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from holdfast import Consumer
from holdfast.cli.demo.check import Found, Ints
from holdfast.cli.demo.events import ids_of, make_events
from holdfast.errors import BadRequest, HoldfastError, NotConfirmed
from holdfast.spark.tables import read_manifest

POLL_S = 0.2


class Listener:
    """A durable consumer of one channel, on a thread; confirms every batch once it is noted."""

    def __init__(self, conf: str, channel: str) -> None:
        self.channel = channel
        self.failure: HoldfastError | None = None
        self._ids: list[Ints] = []
        self._altered = 0
        self._count = 0
        self._stop = threading.Event()
        self._consumer = Consumer.from_conf(conf, channel=channel, durable="demo-consumer", batch_rows=4096)
        self._thread = threading.Thread(target=self._listen, name=f"demo-{channel}", daemon=True)
        self._thread.start()

    def _listen(self) -> None:
        try:
            while not self._stop.is_set():
                for delivery in self._consumer.deliveries(POLL_S):
                    batch = delivery.batch
                    self._altered += different_rows(self.channel, batch)
                    self._ids.append(ids_of(self.channel, batch))
                    self._count += batch.num_rows
                    with suppress(NotConfirmed):  # the server was killed just now: the batch comes again
                        delivery.ack()
        except HoldfastError as error:
            self.failure = error

    @property
    def count(self) -> int:
        """Events so far, repeats included."""
        return self._count

    def close(self) -> Found:
        """Stop; everything that came."""
        self._stop.set()
        self._thread.join()
        self._consumer.close()
        return Found(np.concatenate([np.array([], np.int64), *self._ids]), self._altered)


def table_rows(folder: Path) -> int:
    """Rows of a table that Spark writes; 0 before its first commit."""
    try:
        return read_manifest(folder).rows
    except BadRequest:
        return 0


def table_events(folder: Path) -> dict[str, Found]:
    """Every event of the landing table, by channel."""
    found: dict[str, list[pa.Table]] = {}
    for file in read_manifest(folder).files:
        table = pq.read_table(file)
        for channel in table.column("_channel").unique().to_pylist():
            found.setdefault(channel, []).append(table.filter(pa.compute.equal(table.column("_channel"), channel)))
    return {channel: _events(channel, pa.concat_tables(tables)) for channel, tables in found.items()}


def _events(channel: str, table: pa.Table) -> Found:
    ordered = table.sort_by("_seq")
    altered = sum(different_rows(channel, batch) for batch in ordered.to_batches())
    return Found(ids_of(channel, ordered), altered)


def different_rows(channel: str, batch: pa.RecordBatch) -> int:
    """Rows that are not what belongs to their id."""
    expected = make_events(channel, ids_of(channel, batch))
    names = expected.schema.names
    if batch.select(names).cast(expected.schema).equals(expected):
        return 0
    pairs = zip(batch.select(names).to_pylist(), expected.to_pylist(), strict=True)
    return sum(found != wanted for found, wanted in pairs)
