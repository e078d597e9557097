"""Rows of OTLP columns to a server that takes OTLP over HTTP, from `foreachBatch`.

    frame ──► tasks: Arrow batches ──► requests of at most `ROWS_MAX` records ──► POST /v1/logs | traces | metrics

Promise: every row is sent at least once. A request carries an `Idempotency-Key` made of (query, batch, partition, its
place in the task), the same for a task or a batch that runs again; a Holdfast receiver stores such a repeat once. A
server that is away or full is waited for; then Spark tries the task again. A request that the server refuses as wrong
ends the query. Records that it refuses one by one (partial success) are logged.

The columns are those of `docs/reference/otlp-schema.md`, of one signal and all of them, or requests as they came.
"""

from __future__ import annotations

import http.client
import logging
import random
import ssl
import threading
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from urllib.parse import urlsplit

import pyarrow as pa
from google.protobuf.message import DecodeError  # type: ignore[import-untyped]
from pyspark import TaskContext
from pyspark.sql import DataFrame

from holdfast.clock import NS_PER_S, Clock, SystemClock
from holdfast.errors import BadRequest, ServerAway
from holdfast.model.backoff import Backoff
from holdfast.spark.columns import conform
from holdfast.spark.worker import settle
from holdfast.telemetry import event
from holdfast.wire.otlp.decode import SCHEMAS
from holdfast.wire.otlp.encode import encode
from holdfast.wire.otlp.raw import REQUEST
from holdfast.wire.otlp.raw import SCHEMA as RAW
from holdfast.wire.otlp.signals import Signal

ROWS_MAX = 8192
"""Records of one request; what collectors send at most."""
TIMEOUT_S = 15.0
PATIENCE_S = 300.0
"""How long a task waits for a server that is away or full, before Spark tries the task again."""
PAUSES = Backoff(first_s=0.1, most_s=5.0)
NEVER = frozenset({400, 411, 413, 414, 415, 422, 431})
"""The server says that the request itself is wrong; everything else may pass."""
ANSWER_BYTES_MAX = 1 << 20


@dataclass(frozen=True)
class OtlpTarget:
    """A server and the credential for it. `addr` has no `/v1/logs` at its end."""

    addr: str
    token: str = field(default="", repr=False)
    token_file: str = ""

    def headers(self) -> dict[str, str]:
        """The credential, if there is one; the file is read for every task."""
        token = Path(self.token_file).read_text(encoding="utf-8").strip() if self.token_file else self.token
        return {"Authorization": f"Bearer {token}"} if token else {}


def check_columns(names: Iterable[str]) -> None:
    """`BadRequest` unless rows with these columns are telemetry."""
    found = set(names)
    if found.issuperset((REQUEST, "signal")) or any(found.issuperset(schema.names) for schema in SCHEMAS.values()):
        return
    near = min(SCHEMAS, key=lambda signal: len(set(SCHEMAS[signal].names) - found))
    lacking = [name for name in SCHEMAS[near].names if name not in found]
    raise BadRequest(
        f"these rows are no OTLP {near.value}: they lack {', '.join(lacking[:5])} ({len(lacking)} columns)"
    )


def writer(target: OtlpTarget) -> Callable[[DataFrame, int], None]:
    """What `foreachBatch` takes."""

    def write(frame: DataFrame, batch: int) -> None:
        identity = frame.sparkSession.sparkContext.getLocalProperty("sql.streaming.queryId")
        if not identity:
            raise BadRequest("OTLP is written in foreachBatch, where Spark says which query a batch belongs to")
        check_columns(frame.columns)
        sent = frame.mapInArrow(partial(_send_task, target, f"{identity}/{batch}"), "records long")
        records = sum(row.records for row in sent.collect())
        event("spark.otlp.batch", addr=target.addr, batch=batch, records=records)

    return write


def _send_task(target: OtlpTarget, batch_key: str, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """On an executor: everything is sent when this ends."""
    settle()
    task = TaskContext.get()
    assert task is not None, "this runs in tasks"
    records = send(target, requests_of(batches), key=f"{batch_key}/{task.partitionId()}")
    yield pa.record_batch({"records": pa.array([records], pa.int64())})


def requests_of(batches: Iterable[pa.RecordBatch]) -> Iterator[tuple[Signal, bytes, int]]:
    """Rows as requests, in order, each with its number of records (raw requests count as one)."""
    for batch in batches:
        if set(batch.schema.names).issuperset((REQUEST, "signal")):
            rows = conform(batch, RAW, channel="otlp")
            for body, signal in zip(rows.column(REQUEST), rows.column("signal").to_pylist(), strict=True):
                yield Signal(signal), body.as_py(), 1
            continue
        signal = next(signal for signal, schema in SCHEMAS.items() if set(schema.names) <= set(batch.schema.names))
        rows = conform(batch, SCHEMAS[signal], channel=f"otlp.{signal.value}")
        for start in range(0, rows.num_rows, ROWS_MAX):
            part = rows.slice(start, ROWS_MAX)
            yield signal, encode(signal, part), part.num_rows


def send(
    target: OtlpTarget,
    requests: Iterable[tuple[Signal, bytes, int]],
    *,
    key: str,
    patience_s: float = PATIENCE_S,
    clock: Clock | None = None,
) -> int:
    """Send requests one after the other; returns how many records they had."""
    link = _Link(target, patience_s=patience_s, clock=clock or SystemClock())
    records = 0
    try:
        for number, (signal, body, count) in enumerate(requests):
            link.post(signal, body, key=f"{key}/{number}")
            records += count
    finally:
        link.close()
    return records


class _Link:
    """One connection of one task."""

    def __init__(self, target: OtlpTarget, *, patience_s: float, clock: Clock) -> None:
        self._target = target
        self._patience_s = patience_s
        self._clock = clock
        self._pause = threading.Event()
        self._parts = urlsplit(target.addr)
        self._chance = random.Random()
        host, port = self._parts.hostname or "", self._parts.port
        self._connection: http.client.HTTPConnection
        if self._parts.scheme == "https":
            context = ssl.create_default_context()
            self._connection = http.client.HTTPSConnection(host, port, timeout=TIMEOUT_S, context=context)
        else:
            self._connection = http.client.HTTPConnection(host, port, timeout=TIMEOUT_S)

    def post(self, signal: Signal, body: bytes, *, key: str) -> None:
        """Until the server has it."""
        start_ns = self._clock.monotonic_ns()
        for pause_s in PAUSES.pauses(self._chance):
            reason = self._attempt(signal, body, key)
            if not reason:
                return
            waited_s = (self._clock.monotonic_ns() - start_ns) / NS_PER_S
            if waited_s >= self._patience_s:
                raise ServerAway(addr=self._target.addr, reason=reason, waited_s=waited_s)
            self._pause.wait(min(pause_s, max(0.01, self._patience_s - waited_s)))

    def _attempt(self, signal: Signal, body: bytes, key: str) -> str:
        """Why it must be sent again; empty if it need not."""
        headers = {"Content-Type": "application/x-protobuf", "Idempotency-Key": key, **self._target.headers()}
        try:
            self._connection.request("POST", self._parts.path.rstrip("/") + signal.path, body, headers)
            response = self._connection.getresponse()
            answer = response.read(ANSWER_BYTES_MAX)
            response.read()
        except (OSError, http.client.HTTPException) as error:
            self._connection.close()
            return str(error) or type(error).__name__
        if response.status == 200:
            self._tell_refused(signal, answer)
            return ""
        reason = f"{response.status} {response.reason}"
        if response.status in NEVER:
            text = answer[:200].decode(errors="replace")
            raise BadRequest(f"{self._target.addr}{signal.path}: {reason}: {text}")
        return reason

    def _tell_refused(self, signal: Signal, answer: bytes) -> None:
        try:
            success = signal.response.FromString(answer).partial_success
        except DecodeError:  # 200 says that it was taken
            return
        refused = getattr(success, signal.rejected_field)
        if refused:
            reason = success.error_message
            event("spark.otlp.refused", level=logging.WARNING, addr=self._target.addr, records=refused, reason=reason)

    def close(self) -> None:
        """End the connection."""
        self._connection.close()
