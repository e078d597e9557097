"""The OTLP receiver over real sockets, into a real store."""

from __future__ import annotations

import gzip
import http.client
import json
import ssl
import threading
import zlib
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

import grpc  # type: ignore[import-untyped]
import pyarrow as pa
import pytest
import trustme

from holdfast.dataflow.graph import problems
from holdfast.dataflow.receivers.inflating import inflate
from holdfast.dataflow.running import Seams
from holdfast.errors import Backpressure, InvalidConfig, LimitReached, WireError
from holdfast.wire.otlp.answers import retry_delay_s
from holdfast.wire.otlp.signals import Signal
from tests.unit.dataflow.flows import LOOP_THREAD, RunningFlow, graph_text
from tests.unit.dataflow.otlp_samples import logs_request, sample, traces_request
from tests.unit.dataflow.test_otlp_json import otlp_json
from tests.unit.server.watched import WatchedFilesystem

SIGNALS = pytest.mark.parametrize("signal", list(Signal), ids=lambda signal: signal.value)
SINK = ("sink", "console", "rows: 0, channels: [nothing]")
"""An exporter that leaves everything in the store."""


def flow(tmp_path: Path, receiver: str = "", persistence: str = "", seams: Seams | None = None) -> RunningFlow:
    return RunningFlow(tmp_path, graph_text(SINK, receiver=receiver, persistence=persistence), seams=seams)


@SIGNALS
def test_requests_of_both_doors_and_kinds_are_stored_as_they_came(tmp_path: Path, signal: Signal) -> None:
    body = sample(signal).SerializeToString()
    with flow(tmp_path) as running:
        assert running.grpc(signal, body) == b""
        assert running.post(signal, body)[::2] == (200, b"")
        status, headers, answer = running.post(signal, otlp_json(sample(signal)).encode(), "application/json")
        assert (status, headers["content-type"], answer) == (200, "application/json", b"{}")
        rows = running.rows(f"otlp.{signal.value}")
    assert rows.column("protocol").to_pylist() == ["grpc", "http/protobuf", "http/json"]
    assert rows.column("request").to_pylist()[:2] == [body, body]
    assert signal.request.FromString(rows.column("request")[2].as_py()) == sample(signal)
    assert rows.column("records").to_pylist() == [rows.column("records")[0].as_py()] * 3


@SIGNALS
def test_late_persistence_stores_columns(tmp_path: Path, signal: Signal) -> None:
    with flow(tmp_path, "payload: columns, channels: {logs: app.logs}") as running:
        running.grpc(signal, sample(signal).SerializeToString())
        name = "app.logs" if signal is Signal.LOGS else f"otlp.{signal.value}"
        rows = running.rows(name)
    assert set(rows.column("service_name").to_pylist()) == {"shop"}


@pytest.mark.parametrize("payload", ["raw", "columns"])
def test_spans_without_ids_are_told_as_a_partial_success(tmp_path: Path, payload: str) -> None:
    request = traces_request(3)
    request.resource_spans[0].scope_spans[0].spans[1].span_id = b""
    with flow(tmp_path, f"payload: {payload}") as running:
        answer = Signal.TRACES.response.FromString(running.grpc(Signal.TRACES, request.SerializeToString()))
        _, _, text = running.post(Signal.TRACES, otlp_json(request).encode(), "application/json")
        figures = running.flow.receiver_statistics()["otlp_receiver"]
    assert answer.partial_success.rejected_spans == 1
    assert "trace id of 16 bytes" in answer.partial_success.error_message
    assert json.loads(text)["partialSuccess"]["rejectedSpans"] == "1"
    assert (figures.records, figures.refused_records) == ({"traces": 4}, {"traces": 2})


@pytest.mark.parametrize("payload", ["raw", "columns"])
def test_an_empty_request_is_accepted_and_not_kept(tmp_path: Path, payload: str) -> None:
    envelope = Signal.LOGS.request()
    envelope.resource_logs.add().scope_logs.add()
    with flow(tmp_path, f"payload: {payload}") as running:
        assert running.grpc(Signal.LOGS, b"") == b""
        assert running.post(Signal.LOGS, envelope.SerializeToString())[0] == 200
        assert running.flow.stores["persistence"].channels() == []


@pytest.mark.parametrize(
    ("encoding", "packed"),
    [
        ("gzip", gzip.compress),
        ("deflate", zlib.compress),
        ("zstd", lambda body: pa.Codec("zstd").compress(body, asbytes=True)),
    ],
)
def test_compressed_bodies_are_opened(tmp_path: Path, encoding: str, packed: object) -> None:
    body = logs_request().SerializeToString()
    with flow(tmp_path) as running:
        status, _, _ = running.post(Signal.LOGS, packed(body), content_encoding=encoding)  # type: ignore[operator]
        assert status == 200
        assert running.rows("otlp.logs").column("request").to_pylist() == [body]


def test_a_grpc_client_may_compress(tmp_path: Path) -> None:
    body = logs_request().SerializeToString()
    with flow(tmp_path) as running:
        target = running.addresses["otlp_receiver.grpc"]
        with grpc.insecure_channel(target, compression=grpc.Compression.Gzip) as channel:
            channel.unary_unary(Signal.LOGS.method)(body, timeout=30)
        assert running.rows("otlp.logs").column("request").to_pylist() == [body]


@pytest.mark.parametrize("encoding", ["gzip", "zstd"])
def test_a_body_that_grows_beyond_the_limit_is_refused_for_good(tmp_path: Path, encoding: str) -> None:
    bomb = bytes(64 << 20)
    packed = gzip.compress(bomb, 1) if encoding == "gzip" else pa.Codec("zstd").compress(bomb, asbytes=True)
    with flow(tmp_path, "max_request_size: 1MiB") as running:
        status, headers, _ = running.post(Signal.LOGS, packed, content_encoding=encoding)
        assert (status, "retry-after" in headers) == (413, False)
        status, _, _ = running.post(Signal.LOGS, bomb[: 2 << 20])
        assert status == 413


def test_a_grpc_message_that_grows_beyond_the_limit_is_refused_for_good(tmp_path: Path) -> None:
    with flow(tmp_path, "max_request_size: 1MiB") as running:
        for compression in (grpc.Compression.NoCompression, grpc.Compression.Gzip):
            with grpc.insecure_channel(running.addresses["otlp_receiver.grpc"], compression=compression) as channel:
                with pytest.raises(grpc.RpcError) as caught:
                    channel.unary_unary(Signal.LOGS.method)(bytes(16 << 20), timeout=30)
                assert caught.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED


def test_bodies_under_way_are_bounded_together(tmp_path: Path) -> None:
    with flow(tmp_path, "max_inflight_size: 1MiB, max_request_size: 1MiB") as running:
        address = running.addresses["otlp_receiver.http"]
        door = running.flow._receivers["otlp_receiver"]._http
        slow = http.client.HTTPConnection(address, timeout=30)  # announces a large body and sends most of it
        slow.putrequest("POST", "/v1/logs")
        slow.putheader("content-type", "application/x-protobuf")
        slow.putheader("content-length", str(1 << 20))
        slow.endheaders()
        slow.send(bytes(700 << 10))
        running.until(lambda: door._reading_bytes == 700 << 10)
        status, headers, _ = running.post(Signal.LOGS, bytes(700 << 10))
        assert (status, headers["retry-after"]) == (429, "1")
        slow.close()
        running.until(lambda: door._reading_bytes == 0)


@pytest.mark.parametrize("bytes_max", [0, 999, 1000])
@pytest.mark.parametrize("encoding", ["", "gzip", "zstd"])
def test_inflating_stops_at_the_limit(encoding: str, bytes_max: int) -> None:
    data = b"a" * 1000
    packed = {"": data, "gzip": gzip.compress(data), "zstd": pa.Codec("zstd").compress(data, asbytes=True)}[encoding]
    if bytes_max >= 1000:
        assert inflate(packed, encoding, bytes_max=bytes_max) == data
    else:
        with pytest.raises(LimitReached):
            inflate(packed, encoding, bytes_max=bytes_max)


@pytest.mark.parametrize("encoding", ["gzip", "deflate", "zstd", "br"])
def test_a_body_that_is_not_what_it_says_is_a_wire_error(encoding: str) -> None:
    with pytest.raises(WireError):
        inflate(b"plain text that nobody compressed", encoding, bytes_max=1 << 20)


def test_a_compressed_body_that_ends_early_is_a_wire_error() -> None:
    with pytest.raises(WireError, match="ends too early"):
        inflate(gzip.compress(b"abc" * 1000)[:-9], "gzip", bytes_max=1 << 20)


@pytest.mark.parametrize("payload", ["raw", "columns"])
def test_a_bad_request_is_refused_and_its_neighbours_are_kept(tmp_path: Path, payload: str) -> None:
    good, bad = logs_request().SerializeToString(), b"\x0a\xff\xff"
    with flow(tmp_path, f"payload: {payload}") as running, ThreadPoolExecutor(8) as pool:
        answers = list(pool.map(lambda body: running.post(Signal.LOGS, body)[0], [good, bad] * 8))
        assert answers == [200, 400] * 8
        with pytest.raises(grpc.RpcError) as caught:
            running.grpc(Signal.LOGS, bad)
        assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT
        assert running.post(Signal.LOGS, b"{", "application/json")[0] == 400
        assert running.post(Signal.LOGS, b"", "text/plain")[0] == 415
        rows = running.rows("otlp.logs")
    assert rows.num_rows == (8 if payload == "raw" else 24)


class Throttle:
    """A sink that is full until it is told otherwise."""

    rows_bytes_max = 1 << 20

    def __init__(self) -> None:
        self.full = True
        self.accepted = 0

    def accept(self, _channel: str, _rows: pa.RecordBatch, _identity: object) -> Future[bool]:
        if self.full:
            raise Backpressure(bound="memory_limit", used_bytes=1, cap_bytes=1, waited_s=0)
        self.accepted += 1
        answer: Future[bool] = Future()
        answer.set_result(False)
        return answer


def test_a_full_store_is_told_with_a_hint_when_to_come_again(tmp_path: Path) -> None:
    sink = Throttle()
    body = logs_request().SerializeToString()
    with flow(tmp_path, "retry_after: 1500ms") as running:
        running.flow._receivers["otlp_receiver"]._intake._sink = sink
        with pytest.raises(grpc.RpcError) as caught:
            running.grpc(Signal.LOGS, body)
        assert caught.value.code() is grpc.StatusCode.UNAVAILABLE
        metadata = dict(caught.value.trailing_metadata())
        assert retry_delay_s(metadata["grpc-status-details-bin"]) == pytest.approx(1.5)
        assert metadata["google.rpc.retryinfo-bin"] in metadata["grpc-status-details-bin"]
        status, headers, _ = running.post(Signal.LOGS, body)
        assert (status, headers["retry-after"]) == (503, "2")
        sink.full = False
        assert running.grpc(Signal.LOGS, body) == b""
        figures = running.flow.receiver_statistics()["otlp_receiver"]
    assert (figures.throttled, sink.accepted) == (2, 1)


class Held:
    """A sink that answers when it is told to."""

    rows_bytes_max = 1 << 20

    def __init__(self) -> None:
        self.futures: list[Future[bool]] = []
        self.came = threading.Semaphore(0)

    def accept(self, _channel: str, _rows: pa.RecordBatch, _identity: object) -> Future[bool]:
        self.futures.append(Future())
        self.came.release()
        return self.futures[-1]


def test_a_request_is_answered_only_after_its_commit(tmp_path: Path) -> None:
    sink = Held()
    with flow(tmp_path) as running, ThreadPoolExecutor(1) as pool:
        running.flow._receivers["otlp_receiver"]._intake._sink = sink
        answer = pool.submit(running.grpc, Signal.LOGS, logs_request().SerializeToString())
        assert sink.came.acquire(timeout=30)
        with pytest.raises(TimeoutError):
            answer.result(0.05)
        sink.futures[0].set_result(False)
        assert answer.result(30) == b""


def test_more_requests_than_may_wait_are_told_to_come_again(tmp_path: Path) -> None:
    sink = Held()
    body = logs_request().SerializeToString()
    with flow(tmp_path, "response_stream_channel_size: 1") as running, ThreadPoolExecutor(1) as pool:
        running.flow._receivers["otlp_receiver"]._intake._sink = sink
        first = pool.submit(running.post, Signal.LOGS, body)
        assert sink.came.acquire(timeout=30)
        status, headers, _ = running.post(Signal.LOGS, body)
        assert (status, headers["retry-after"]) == (429, "1")
        sink.futures[0].set_result(False)
        assert first.result(30)[0] == 200


@pytest.mark.parametrize("payload", ["raw", "columns"])
def test_an_idempotency_key_makes_a_repeat_harmless(tmp_path: Path, payload: str) -> None:
    body = logs_request(3).SerializeToString()
    with flow(tmp_path, f"payload: {payload}") as running:
        running.grpc(Signal.LOGS, body, idempotency_key="batch-1")
        assert running.post(Signal.LOGS, body, idempotency_key="batch-1")[0] == 200
        running.grpc(Signal.LOGS, body, idempotency_key="batch-2")
        rows = running.rows("otlp.logs").num_rows
        duplicates = running.flow.receiver_statistics()["otlp_receiver"].duplicates
    with flow(tmp_path, f"payload: {payload}") as running:  # also after a restart
        running.grpc(Signal.LOGS, body, idempotency_key="batch-2")
        assert running.rows("otlp.logs").num_rows == rows
    assert (rows, duplicates) == (2 if payload == "raw" else 6, 1)


def test_keys_of_different_signals_do_not_meet(tmp_path: Path) -> None:
    with flow(tmp_path) as running:
        for signal in Signal:
            running.grpc(signal, sample(signal).SerializeToString(), idempotency_key="same")
        assert len(running.flow.stores["persistence"].channels()) == 3


def test_a_request_whose_rows_are_larger_than_a_frame_is_kept_in_parts(tmp_path: Path) -> None:
    request = logs_request(2)
    for number in range(3000):
        record = request.resource_logs[0].scope_logs[0].log_records.add(time_unix_nano=1)
        record.body.string_value = f"{number} " + "x" * 100
    with flow(tmp_path, "payload: columns", "frame: {max_size: 256KiB}") as running:
        running.grpc(Signal.LOGS, request.SerializeToString(), idempotency_key="large")
        running.grpc(Signal.LOGS, request.SerializeToString(), idempotency_key="large")
        assert running.rows("otlp.logs").num_rows == 3002


def test_the_event_loop_never_touches_the_disk(tmp_path: Path) -> None:
    watched = WatchedFilesystem()
    with flow(tmp_path, seams=Seams(filesystem=watched)) as running:
        for signal in Signal:
            running.grpc(signal, sample(signal).SerializeToString())
            running.post(signal, sample(signal).SerializeToString())
    assert watched.touched_by
    assert LOOP_THREAD not in watched.touched_by


def test_a_wrong_token_is_refused(tmp_path: Path) -> None:
    (tmp_path / "token").write_text("s3cret\n")
    body = logs_request().SerializeToString()
    with flow(tmp_path, "token_file: token") as running:
        assert running.post(Signal.LOGS, body)[0] == 401
        with pytest.raises(grpc.RpcError) as caught:
            running.grpc(Signal.LOGS, body, authorization="Bearer wrong")
        assert caught.value.code() is grpc.StatusCode.UNAUTHENTICATED
        assert running.post(Signal.LOGS, body, authorization="Bearer s3cret")[0] == 200
        assert running.grpc(Signal.LOGS, body, authorization="Bearer s3cret") == b""


def test_a_channel_does_not_mix_requests_and_columns(tmp_path: Path) -> None:
    with flow(tmp_path) as running:
        running.grpc(Signal.LOGS, logs_request().SerializeToString())
    with pytest.raises(InvalidConfig, match=r"nodes\.otlp_receiver\.config\.payload.*holds raw requests"):
        flow(tmp_path, "payload: columns").__enter__()


@pytest.fixture
def certificates(tmp_path: Path) -> Path:
    authority = trustme.CA()
    server, client = authority.issue_cert("127.0.0.1", "localhost"), authority.issue_cert("client@example.org")
    authority.cert_pem.write_to_path(tmp_path / "ca.pem")
    for name, found in (("server", server), ("client", client)):
        found.private_key_pem.write_to_path(tmp_path / f"{name}.key")
        found.cert_chain_pems[0].write_to_path(tmp_path / f"{name}.pem")
    return tmp_path


def test_with_tls_only_clients_with_a_certificate_are_let_in(certificates: Path) -> None:
    body = logs_request().SerializeToString()
    authority = (certificates / "ca.pem").read_bytes()
    pair = (certificates / "client.key").read_bytes(), (certificates / "client.pem").read_bytes()
    with flow(certificates, "tls: {cert: server.pem, key: server.key, client_ca: ca.pem}") as running:
        target = running.addresses["otlp_receiver.grpc"]
        with grpc.secure_channel(target, grpc.ssl_channel_credentials(authority, *pair)) as channel:
            assert channel.unary_unary(Signal.LOGS.method)(body, timeout=30) == b""
        stranger = grpc.ssl_channel_credentials(authority)
        with grpc.secure_channel(target, stranger) as channel, pytest.raises(grpc.RpcError):
            channel.unary_unary(Signal.LOGS.method)(body, timeout=30)
        context = ssl.create_default_context(cafile=str(certificates / "ca.pem"))
        with pytest.raises((ssl.SSLError, ConnectionError, http.client.RemoteDisconnected)):
            post_securely(running, body, context)
        context.load_cert_chain(certificates / "client.pem", certificates / "client.key")
        assert post_securely(running, body, context) == 200


def post_securely(running: RunningFlow, body: bytes, context: ssl.SSLContext) -> int:
    address = running.addresses["otlp_receiver.http"]
    connection = http.client.HTTPSConnection(address, timeout=30, context=context)
    try:
        connection.request("POST", "/v1/logs", body, {"content-type": "application/x-protobuf"})
        return connection.getresponse().status
    finally:
        connection.close()


@pytest.mark.parametrize(
    ("settings", "allowed"),
    [
        ("", False),
        ("token_file: token", False),
        ("tls: {cert: a, key: b}", False),
        ("token_file: token, tls: {cert: a, key: b}", True),
        ("tls: {cert: a, key: b, client_ca: c}", True),
        ("insecure: yes", True),
    ],
)
def test_a_public_address_needs_tls_and_a_credential(tmp_path: Path, settings: str, allowed: bool) -> None:
    text = graph_text(SINK, receiver=settings).replace("127.0.0.1:0", "0.0.0.0:0", 1)
    (tmp_path / "graph.yaml").write_text(text)
    assert ["insecure: yes" in found.reason for found in problems(tmp_path / "graph.yaml")] == [True] * (not allowed)
