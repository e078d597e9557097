"""A real graph on a thread of the test's process, its clients, and servers that answer as they are told."""

from __future__ import annotations

import asyncio
import http.client
import http.server
import threading
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import TracebackType
from typing import Any

import grpc  # type: ignore[import-untyped]
import pyarrow as pa

from holdfast.dataflow.graph import load
from holdfast.dataflow.running import Flow, Seams
from holdfast.wire.otlp.signals import Signal

PATIENCE_S = 30.0
LOOP_THREAD = "test-flow-loop"

RECEIVER = """
  otlp_receiver:
    kind: receiver
    plugin_urn: "urn:otel:otlp:receiver"
    out_ports: {out_port: {destinations: [%s], dispatch_strategy: %s}}
    config: {listening_addr: "127.0.0.1:0", http_listening_addr: "127.0.0.1:0", %s}
"""
PERSISTENCE = """
  persistence:
    kind: processor
    plugin_urn: "urn:otap:processor:persistence"
    out_ports: {out_port: {destinations: [%s]}}
    config: {path: ./data, segment: {target_size: 1MiB, max_open_duration: 20ms}, retention: {tick: 50ms}, %s}
"""
EXPORTER = """
  %s: {kind: exporter, plugin_urn: %s, config: {retry: {initial_interval: 5ms, max_interval: 20ms}, %s}}
"""


def graph_text(*exporters: tuple[str, str, str], receiver: str = "", persistence: str = "") -> str:
    """A receiver, persistence, and exporters given as name, plugin and settings."""
    names = ", ".join(name for name, _, _ in exporters)
    nodes = RECEIVER % ("persistence", "round_robin", receiver) + PERSISTENCE % (names, persistence)
    return "nodes:" + nodes + "".join(EXPORTER % item for item in exporters)


class RunningFlow:
    """A graph that runs until the block ends."""

    def __init__(self, directory: Path, text: str, *, seams: Seams | None = None) -> None:
        directory.mkdir(exist_ok=True)
        self.directory = directory
        self.file = directory / "graph.yaml"
        self.file.write_text(text, encoding="utf-8")
        self.flow: Flow
        self.addresses: Mapping[str, str] = {}
        self.failure: BaseException | None = None
        self._seams = seams
        self._loop: asyncio.AbstractEventLoop
        self._ready = threading.Event()
        self._thread = threading.Thread(target=self._run, name=LOOP_THREAD)

    def _run(self) -> None:
        try:
            with asyncio.Runner() as runner:
                runner.run(self._serve())
        except BaseException as error:
            self.failure = error
        finally:
            self._ready.set()

    async def _serve(self) -> None:
        self._loop = asyncio.get_running_loop()
        self.flow = Flow(load(self.file), self._seams)
        await self.flow.run(self._told)

    def _told(self, addresses: Mapping[str, str]) -> None:
        self.addresses = addresses
        self._ready.set()

    def __enter__(self) -> RunningFlow:
        self._thread.start()
        assert self._ready.wait(PATIENCE_S)
        if self.failure is not None:
            self._thread.join()
            raise self.failure
        return self

    def __exit__(
        self, _type: type[BaseException] | None, _error: BaseException | None, _trace: TracebackType | None
    ) -> None:
        if self.failure is None:
            self._loop.call_soon_threadsafe(self.flow.stop)
        self._thread.join(PATIENCE_S)
        assert not self._thread.is_alive(), "the graph did not end"

    def grpc(self, signal: Signal, body: bytes, **metadata: str) -> bytes:
        """Send a request over gRPC; the answer, or `grpc.RpcError`."""
        pairs = [(name.replace("_", "-"), value) for name, value in metadata.items()]
        with grpc.insecure_channel(self.addresses["otlp_receiver.grpc"]) as channel:
            answer: bytes = channel.unary_unary(signal.method)(body, timeout=PATIENCE_S, metadata=pairs)
            return answer

    def post(
        self, signal: Signal, body: bytes, kind: str = "application/x-protobuf", **headers: str
    ) -> tuple[int, dict[str, str], bytes]:
        """Send a request over HTTP: status, headers and body of the answer."""
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        connection = http.client.HTTPConnection(self.addresses["otlp_receiver.http"], timeout=PATIENCE_S)
        try:
            connection.request("POST", signal.path, body, {"content-type": kind, **named})
            response = connection.getresponse()
            return response.status, {key.lower(): value for key, value in response.getheaders()}, response.read()
        finally:
            connection.close()

    def rows(self, channel: str, node: str = "persistence") -> pa.Table:
        """What the store holds now."""
        return pa.Table.from_batches(list(self.flow.stores[node].read(channel)))

    def until(self, condition: Callable[[], bool]) -> None:
        """Wait until a condition holds."""
        until(condition)


def until(condition: Callable[[], bool], *, patience_s: float = PATIENCE_S) -> None:
    """Wait until a condition holds, looking often."""
    pause = threading.Event()
    for _ in range(int(patience_s / 0.005)):
        if condition():
            return
        pause.wait(0.005)
    raise AssertionError("the condition never held")


class GrpcServer:
    """An OTLP server over gRPC that answers as it is told, and keeps what it took."""

    def __init__(self) -> None:
        self.taken: list[tuple[Signal, bytes]] = []
        self.answers: list[tuple[grpc.StatusCode, str, tuple[tuple[str, bytes], ...]]] = []
        """The next answers; nothing means OK."""
        self.response = b""
        self.gate = threading.Event()
        self.gate.set()
        self.calls = 0
        self._pool = ThreadPoolExecutor(8)
        self._server = grpc.server(self._pool)
        for signal in Signal:
            handler = grpc.unary_unary_rpc_method_handler(self._export(signal))
            self._server.add_generic_rpc_handlers(
                (grpc.method_handlers_generic_handler(signal.service, {"Export": handler}),)
            )
        self.port = self._server.add_insecure_port("127.0.0.1:0")
        self._server.start()

    def _export(self, signal: Signal) -> Callable[[bytes, Any], bytes]:
        def export(body: bytes, context: Any) -> bytes:
            self.calls += 1
            self.gate.wait(PATIENCE_S)
            if self.answers:
                code, text, details = self.answers.pop(0)
                context.set_trailing_metadata(details)
                context.abort(code, text)
            self.taken.append((signal, body))
            return self.response

        return export

    def __enter__(self) -> GrpcServer:
        return self

    def __exit__(
        self, _type: type[BaseException] | None, _error: BaseException | None, _trace: TracebackType | None
    ) -> None:
        self.gate.set()
        self._server.stop(None).wait()
        self._pool.shutdown()


class HttpServer:
    """The same over HTTP."""

    def __init__(self) -> None:
        self.taken: list[tuple[str, dict[str, str], bytes]] = []
        self.answers: list[tuple[int, dict[str, str]]] = []
        outer = self

        class Handler(http.server.BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["content-length"]))
                status, headers = outer.answers.pop(0) if outer.answers else (200, {})
                if status == 200:
                    outer.taken.append((self.path, {k.lower(): v for k, v in self.headers.items()}, body))
                self.send_response(status)
                for name, value in {**headers, "content-length": "0"}.items():
                    self.send_header(name, value)
                self.end_headers()

            def log_message(self, *_args: object) -> None:
                pass

        self._server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self.port = self._server.server_address[1]
        self._thread = threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.01})
        self._thread.start()

    def __enter__(self) -> HttpServer:
        return self

    def __exit__(
        self, _type: type[BaseException] | None, _error: BaseException | None, _trace: TracebackType | None
    ) -> None:
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()
