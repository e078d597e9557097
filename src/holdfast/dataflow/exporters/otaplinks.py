"""A way to an OTAP server: one gRPC stream for each signal, opened when it is needed and again after it ended.

    send ──► write: Arrow streams ──► stream ──► server            a stream that ends answers all that waits on it
    Sent ◄────── by batch id ◄────── statuses ◄──┘

| the server says of a batch | what becomes of it |
|---|---|
| OK | done |
| CANCELED, DEADLINE_EXCEEDED, ABORTED, RESOURCE_EXHAUSTED, UNAVAILABLE | again: servers say these under load |
| PERMISSION_DENIED, UNAUTHENTICATED | again: it refuses us, not the data |
| INVALID_ARGUMENT, INTERNAL, anything else | never |

A stream that ends with a status that passes, or without a reason, answers its batches with again. One that ends with
another status, a message that was too large for example, does not say whose fault it was: if a single batch was under
way it was that one; if there were more, they come again one by one.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping
from concurrent.futures import Future
from queue import SimpleQueue
from typing import Any

import grpc  # type: ignore[import-untyped]
import pyarrow as pa

from holdfast.dataflow.exporters.links import GRPC_AGAIN, Fate, Outcome, grpc_channel
from holdfast.errors import WireError
from holdfast.wire.otap.encode import encode
from holdfast.wire.otap.messages import Status, path, read_status
from holdfast.wire.otap.writing import StreamWriter
from holdfast.wire.otlp.answers import retry_delay_s
from holdfast.wire.otlp.signals import Signal

_NAMES: dict[int, str] = {code.value[0]: code.name for code in grpc.StatusCode}
BATCH_AGAIN = {1, 4, 7, 8, 10, 14, 16}
"""Codes of a batch that pass, or that are about us."""


class OtapLink:
    """Streams to one server. Used by one thread."""

    def __init__(
        self,
        endpoint: str,
        *,
        grpc_compression: str,
        arrow_compression: str,
        timeout_s: float,
        headers: Mapping[str, str],
    ) -> None:
        self._channel = grpc_channel(endpoint)
        self._grpc_compression = grpc.Compression.Gzip if grpc_compression == "gzip" else grpc.Compression.NoCompression
        self._arrow_compression = arrow_compression
        self._timeout_s = timeout_s
        self._metadata = tuple((name.lower(), value) for name, value in headers.items())
        self._streams: dict[Signal, _Stream] = {}
        self.is_unclear = False
        """Whether a stream ended because of one of several batches."""

    def send(self, signal: Signal, rows: pa.RecordBatch, key: str) -> Sent:
        """Send a batch on the stream of its signal."""
        stream = self._streams.get(signal)
        if stream is None or stream.ended:
            stream = self._streams[signal] = self._open(signal)
        return Sent(self, stream, stream.send(rows, key), self._timeout_s)

    def _open(self, signal: Signal) -> _Stream:
        outbox: SimpleQueue[bytes | None] = SimpleQueue()
        requests: Iterator[bytes | None] = iter(outbox.get, None)
        call = self._channel.stream_stream(path(signal))(
            requests, metadata=self._metadata, compression=self._grpc_compression
        )
        return _Stream(call, outbox, StreamWriter(signal, compression=self._arrow_compression))

    def close(self) -> None:
        """End the streams and the channel."""
        for stream in self._streams.values():
            stream.close("the exporter stops")
        self._channel.close()


class Sent:
    """A batch under way."""

    def __init__(self, link: OtapLink, stream: _Stream, future: Future[Outcome], timeout_s: float) -> None:
        self._link = link
        self._stream = stream
        self._future = future
        self._timeout_s = timeout_s

    def result(self) -> Outcome:
        """What became of it; a server that is silent for too long loses its stream."""
        try:
            outcome = self._future.result(self._timeout_s)
        except TimeoutError:
            self._stream.close(f"no status after {self._timeout_s:g} s")
            outcome = self._future.result()
        if self._stream.is_unclear:
            self._link.is_unclear = True
        return outcome


class _Stream:
    """One gRPC stream: a thread reads statuses, gRPC's own takes batches from the outbox."""

    def __init__(self, call: Any, outbox: SimpleQueue[bytes | None], writer: StreamWriter) -> None:
        self.ended = False
        self.is_unclear = False
        """Whether it ended because of one of several batches."""
        self._call = call
        self._outbox = outbox
        self._writer = writer
        self._why = ""
        self._waiting: dict[int, Future[Outcome]] = {}
        self._lock = threading.Lock()
        self._thread = threading.Thread(target=self._read, name="holdfast-otap-statuses", daemon=True)
        self._thread.start()

    def send(self, rows: pa.RecordBatch, key: str) -> Future[Outcome]:
        """Write a batch; its outcome comes with its status, or with the end of the stream."""
        answer: Future[Outcome] = Future()
        try:
            tables = encode(self._writer.signal, rows)
        except (ValueError, OverflowError) as error:  # rows that only look like telemetry, and always will
            answer.set_result(Outcome(Fate.NEVER, f"the rows cannot be encoded: {error}"))
            return answer
        try:
            batch_id, data = self._writer.write(tables, key=key)
        except BaseException:
            self.close("a batch could not be written")  # what was written of it never reaches the server
            raise
        with self._lock:
            if self.ended:
                answer.set_result(Outcome(Fate.AGAIN, self._why))
                return answer
            self._waiting[batch_id] = answer
        self._outbox.put(data)
        return answer

    def close(self, why: str) -> None:
        """End it; returns when everything that waited has its outcome."""
        self._why = self._why or why
        self._outbox.put(None)
        self._call.cancel()
        self._thread.join()

    def _read(self) -> None:
        try:
            for data in self._call:
                self._settle(read_status(data))
            end = Outcome(Fate.AGAIN, self._why or "the server ended the stream")
        except grpc.RpcError:
            end = self._end()
        except WireError as error:
            end = Outcome(Fate.AGAIN, str(error))
        with self._lock:
            self.ended = True
            self._why = end.reason
            waiting, self._waiting = list(self._waiting.values()), {}
        if end.fate is Fate.NEVER and len(waiting) != 1:
            self.is_unclear = len(waiting) > 1
            end = Outcome(Fate.AGAIN, end.reason, end.after_s)
        self._outbox.put(None)
        for future in waiting:
            future.set_result(end)

    def _settle(self, status: Status) -> None:
        with self._lock:
            future = self._waiting.pop(status.batch_id, None)
        if future is None:
            return  # a status for a batch that nobody waits for changes nothing
        if status.code == 0:
            future.set_result(Outcome(Fate.DONE, status.message))
            return
        fate = Fate.AGAIN if status.code in BATCH_AGAIN else Fate.NEVER
        future.set_result(Outcome(fate, f"{_NAMES.get(status.code, status.code)}: {status.message}"))

    def _end(self) -> Outcome:
        code = self._call.code()
        details = dict(self._call.trailing_metadata() or ()).get("grpc-status-details-bin", b"")
        after_s = retry_delay_s(details)
        reason = self._why or f"{code.name}: {self._call.details()}"
        passes = bool(self._why) or code in GRPC_AGAIN or after_s is not None
        return Outcome(Fate.AGAIN if passes else Fate.NEVER, reason, after_s or 0.0)
