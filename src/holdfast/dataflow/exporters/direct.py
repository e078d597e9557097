"""An exporter fed by a receiver, without a store between: the client waits for the destination.

Promise: rows are accepted when the destination has them. Nothing is kept here: what the destination refuses is the
client's to repeat or to give up.
"""

from __future__ import annotations

import threading
from concurrent.futures import Future

import pyarrow as pa

from holdfast.clock import Clock
from holdfast.dataflow.exporters.parcels import Exporter, ExporterStatistics, Parcel
from holdfast.errors import InvalidBatch, ServerAway
from holdfast.model.frame import Identity

ROWS_BYTES_MAX = 16 << 20


class DirectSink:
    """Takes rows to an exporter at once. Batches of several receivers take turns."""

    def __init__(self, name: str, exporter: Exporter, clock: Clock, *, core: int = 0) -> None:
        self.name = name
        self._core = core
        self.statistics = ExporterStatistics()
        self._exporter = exporter
        self._clock = clock
        self._lock = threading.Lock()
        self._next_seq = clock.wall_ns()  # no start repeats the numbers of another: files are named by them

    @property
    def rows_bytes_max(self) -> int:
        """What one batch may have."""
        return ROWS_BYTES_MAX

    def accept(self, channel: str, rows: pa.RecordBatch, _identity: Identity) -> Future[bool]:
        """Deliver; answered when this returns. Raises `ServerAway` when it should be tried again."""
        with self._lock:
            parcel = self._parcel(channel, rows)
            verdict = self._exporter.deliver(parcel)
            self.statistics.parcels += 1
            self.statistics.refused_records += verdict.refused_records
        if verdict.again:
            self.statistics.retries += 1
            self.statistics.last_failure = verdict.reason
            raise ServerAway(addr=self.name, reason=verdict.reason, waited_s=0.0)
        if verdict.rejected:
            self.statistics.rejected += rows.num_rows
            raise InvalidBatch(channel=channel, reason=verdict.rejected[0][1])
        self.statistics.events += rows.num_rows
        answer: Future[bool] = Future()
        answer.set_result(False)
        return answer

    def _parcel(self, channel: str, rows: pa.RecordBatch) -> Parcel:
        first = self._next_seq
        self._next_seq += rows.num_rows
        now = pa.scalar(self._clock.wall_ns() // 1000, pa.timestamp("us", "UTC"))
        batch = rows.append_column("_seq", pa.array(range(first, self._next_seq), pa.int64()))
        batches = [batch.append_column("_ingested_at", pa.repeat(now, rows.num_rows))]
        return Parcel(channel, first, self._next_seq - 1, batches, self._core)

    def close(self) -> None:
        """Let go of the destination."""
        self._exporter.close()
