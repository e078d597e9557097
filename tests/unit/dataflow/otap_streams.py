"""A client of OTAP that sends what it is told, and a server that answers as it is told."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from queue import SimpleQueue
from types import TracebackType
from typing import Any

import grpc  # type: ignore[import-untyped]
import pyarrow as pa

from holdfast.wire.otap.decode import decode
from holdfast.wire.otap.encode import encode
from holdfast.wire.otap.limits import Limits
from holdfast.wire.otap.messages import Batch, Status, method, path, read_batch, read_status, service, write_status
from holdfast.wire.otap.reading import StreamReader
from holdfast.wire.otap.writing import StreamWriter
from holdfast.wire.otlp.decode import decode_rows
from holdfast.wire.otlp.signals import Signal
from tests.unit.dataflow.flows import EXPORTER, PATIENCE_S, PERSISTENCE
from tests.unit.dataflow.otlp_samples import sample

RECEIVER = """
  otap_receiver:
    kind: receiver
    plugin_urn: "urn:otel:otap:receiver"
    out_ports: {out_port: {destinations: [persistence]}}
    config: {listening_addr: "127.0.0.1:0", %s}
"""
LIMITS = Limits(20 << 20)


def otap_text(receiver: str = "payload: columns", persistence: str = "") -> str:
    """A graph with an OTAP receiver whose store keeps everything."""
    sink = EXPORTER % ("sink", "console", "rows: 0, channels: [nothing]")
    return "nodes:" + RECEIVER % receiver + PERSISTENCE % ("sink", persistence) + sink


def stored(signal: Signal, *messages: Any) -> pa.RecordBatch:
    """The rows that an OTLP receiver stores of some requests."""
    found = messages or (sample(signal),)
    return decode_rows(signal, pa.array([message.SerializeToString() for message in found], pa.binary()))


class OtapClient:
    """One stream to a server."""

    def __init__(
        self, address: str, signal: Signal = Signal.LOGS, *, compression: str = "none", **metadata: str
    ) -> None:
        self.signal = signal
        self.writer = StreamWriter(signal, compression=compression)
        self._channel = grpc.insecure_channel(address)
        self._outbox: SimpleQueue[bytes | None] = SimpleQueue()
        requests: Iterator[bytes | None] = iter(self._outbox.get, None)
        pairs = [(name.replace("_", "-"), value) for name, value in metadata.items()]
        self.call = self._channel.stream_stream(path(signal))(requests, timeout=PATIENCE_S, metadata=pairs)

    def send(self, data: bytes) -> None:
        """Send any bytes."""
        self._outbox.put(data)

    def send_rows(self, rows: pa.RecordBatch, key: str = "") -> int:
        """Send a batch; its id."""
        batch_id, data = self.writer.write(encode(self.signal, rows), key=key)
        self.send(data)
        return batch_id

    def status(self) -> Status:
        """The next status."""
        return read_status(next(self.call))

    def finish(self) -> list[Status]:
        """Send nothing more; the statuses that are left. Raises what the stream ended with."""
        self._outbox.put(None)
        return [read_status(data) for data in self.call]

    def failed(self) -> tuple[list[Status], Any]:
        """The statuses until the stream fails, and the failure."""
        found: list[Status] = []
        try:
            while True:
                found.append(self.status())
        except grpc.RpcError as error:
            return found, error

    def __enter__(self) -> OtapClient:
        return self

    def __exit__(
        self, _type: type[BaseException] | None, _error: BaseException | None, _trace: TracebackType | None
    ) -> None:
        self._outbox.put(None)
        self.call.cancel()
        self._channel.close()


class OtapServer:
    """Answers with the next of `codes`, a status for each batch, or ends the stream with the next of `ends`."""

    def __init__(self) -> None:
        self.taken: list[tuple[Signal, Batch, pa.RecordBatch]] = []
        self.streams = 0
        self.codes: list[int] = []
        """The next statuses; nothing means OK."""
        self.ends: list[grpc.StatusCode] = []
        """How the next streams end, at their first batch."""
        self.hold = 0
        """So many batches are read and get no status."""
        self.rows_max = 1 << 20
        """A batch with more rows ends the stream, as a message that is too large does."""
        self.gate = threading.Event()
        self.gate.set()
        self._pool = ThreadPoolExecutor(16)
        self._server = grpc.server(self._pool)
        for signal in Signal:
            handler = grpc.stream_stream_rpc_method_handler(self._serve(signal))
            self._server.add_generic_rpc_handlers(
                (grpc.method_handlers_generic_handler(service(signal), {method(signal): handler}),)
            )
        self.port = self._server.add_insecure_port("127.0.0.1:0")
        self._server.start()

    def _serve(self, signal: Signal) -> Any:
        def serve(requests: Iterator[bytes], context: Any) -> Iterator[bytes]:
            self.streams += 1
            reader = StreamReader(signal, LIMITS)
            for data in requests:
                if self.ends:
                    context.abort(self.ends.pop(0), "as told")
                batch = read_batch(data)
                rows = decode(signal, reader.read(batch), LIMITS).rows
                if rows.num_rows > self.rows_max:
                    context.abort(grpc.StatusCode.RESOURCE_EXHAUSTED, "too large")
                if self.hold:
                    self.hold -= 1
                    continue
                self.gate.wait(PATIENCE_S)
                code = self.codes.pop(0) if self.codes else 0
                if code == 0:
                    self.taken.append((signal, batch, rows))
                yield write_status(Status(batch.batch_id, code, "as told" if code else ""))

        return serve

    def rows(self, signal: Signal = Signal.LOGS) -> pa.RecordBatch:
        """Everything that was taken of a signal."""
        return pa.concat_batches([rows for found, _, rows in self.taken if found is signal])

    def __enter__(self) -> OtapServer:
        return self

    def __exit__(
        self, _type: type[BaseException] | None, _error: BaseException | None, _trace: TracebackType | None
    ) -> None:
        self.gate.set()
        self._server.stop(None).wait()
        self._pool.shutdown()
