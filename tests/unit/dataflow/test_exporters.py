"""Exporters behind a real store: what is acknowledged, what is tried again, what is rejected."""

from __future__ import annotations

import io
import random
import threading
from pathlib import Path
from typing import Any

import grpc  # type: ignore[import-untyped]
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from holdfast import Store
from holdfast.clock import SystemClock
from holdfast.dataflow.exporters import parquet
from holdfast.dataflow.exporters.console import ConsoleExporter
from holdfast.dataflow.exporters.direct import DirectSink
from holdfast.dataflow.exporters.loop import ExportLoop
from holdfast.dataflow.exporters.parcels import SYSTEM, Parcel, Span, Verdict
from holdfast.dataflow.exporters.parquet import ParquetExporter
from holdfast.dataflow.receivers.inflating import inflate
from holdfast.dataflow.settings import ExporterSettings
from holdfast.disk.local import LocalFilesystem
from holdfast.errors import InvalidBatch, ServerAway
from holdfast.wire.otlp.answers import Answer, Refusal, status
from holdfast.wire.otlp.raw import RawRequest, raw_rows
from holdfast.wire.otlp.signals import Signal
from tests.unit.dataflow.flows import EXPORTER, RECEIVER, GrpcServer, HttpServer, RunningFlow, graph_text, until
from tests.unit.dataflow.otlp_samples import logs_request, sample

QUICK = ExporterSettings(retry_initial_ns=10**6, retry_max_ns=4 * 10**6)
STORE = {"segment.max_open_duration": "10ms", "retention.tick": "20ms"}


def raw(*bodies: bytes) -> pa.RecordBatch:
    return raw_rows(Signal.LOGS, [RawRequest(body, "grpc", 1) for body in bodies])


def parcel_of(rows: pa.RecordBatch, first_seq: int = 1, *, channel: str = "otlp.logs", day: int = 0) -> Parcel:
    """A parcel as a store would hand it out; ingested on a day after 2026-05-04."""
    at = pa.scalar((1_777_852_800 + day * 86_400) * 1_000_000, pa.timestamp("us", "UTC"))
    batch = rows.append_column("_seq", pa.array(range(first_seq, first_seq + rows.num_rows), pa.int64()))
    batch = batch.append_column("_ingested_at", pa.repeat(at, rows.num_rows))
    return Parcel(channel, first_seq, first_seq + rows.num_rows - 1, [batch])


class Scripted:
    """An exporter that says what it is told to."""

    def __init__(self, *verdicts: Verdict | Exception) -> None:
        self.verdicts = list(verdicts)
        self.parcels: list[Span] = []
        self.gate = threading.Event()
        self.gate.set()

    def deliver(self, parcel: Parcel) -> Verdict:
        self.gate.wait(30)
        self.parcels.append((parcel.first_seq, parcel.last_seq))
        said = self.verdicts.pop(0) if self.verdicts else Verdict()
        if isinstance(said, Exception):
            raise said
        return said

    def close(self) -> None:
        pass


def looping(store: Store, name: str, exporter: Scripted) -> ExportLoop:
    subscriber = store.subscriber(name, channels=["events"])
    loop = ExportLoop(name, subscriber, exporter, settings=QUICK, chance=random.Random(1))
    loop.start()
    return loop


def outcomes(store: Store, name: str) -> dict[str, int]:
    return next(item.outcomes for item in store.subscribers() if item.name == name)


def numbers(count: int) -> pa.RecordBatch:
    return pa.RecordBatch.from_pydict({"n": list(range(count))})


def test_a_failure_that_may_pass_is_tried_again_until_it_does(tmp_path: Path) -> None:
    exporter = Scripted(*[Verdict(again=[(1, 5)], reason="down")] * 3, OSError("no route"))
    with Store.open(tmp_path, STORE) as store:
        loop = looping(store, "out", exporter)
        store.commit("events", numbers(5))
        until(lambda: outcomes(store, "out")["ack"] == 5)
        loop.stop()
        loop.join()
    assert exporter.parcels == [(1, 5)] * 5
    assert (loop.statistics.retries, loop.statistics.failing) == (4, 0)
    assert loop.statistics.last_failure == "OSError: no route"


def test_only_what_must_come_again_comes_again(tmp_path: Path) -> None:
    exporter = Scripted(Verdict(again=[(3, 4)], reason="down"))
    with Store.open(tmp_path, STORE) as store:
        loop = looping(store, "out", exporter)
        store.commit("events", numbers(5))
        until(lambda: outcomes(store, "out")["ack"] == 5)
        loop.stop()
        loop.join()
    assert exporter.parcels == [(1, 5), (3, 4)]


def test_what_never_will_goes_to_the_dead_letters_with_the_reason(tmp_path: Path) -> None:
    exporter = Scripted(Verdict(rejected=[((2, 2), "too old"), ((4, 5), "bad")]))
    with Store.open(tmp_path, STORE) as store:
        loop = looping(store, "out", exporter)
        store.commit("events", numbers(5))
        until(lambda: outcomes(store, "out")["ack"] == 2)
        letters = [row for batch in store.read("events.dead") for row in batch.to_pylist()]
        counts = outcomes(store, "out")
        loop.stop()
        loop.join()
    assert [(row["seq"], row["reason"], row["subscriber"]) for row in letters] == [
        (2, "too old", "out"),
        (4, "bad", "out"),
        (5, "bad", "out"),
    ]
    assert [row["event"]["n"] for row in letters] == [1, 3, 4]
    assert (counts["rejected"], loop.statistics.rejected) == (3, 3)


def test_a_slow_exporter_does_not_hold_a_fast_one(tmp_path: Path) -> None:
    slow, fast = Scripted(), Scripted()
    slow.gate.clear()
    with Store.open(tmp_path, STORE) as store:
        loops = [looping(store, "slow", slow), looping(store, "fast", fast)]
        for _ in range(3):
            store.commit("events", numbers(4))
            store.flush()
        until(lambda: outcomes(store, "fast")["ack"] == 12)
        assert outcomes(store, "slow")["ack"] == 0
        assert store.statistics().segments == 3  # kept for the slow one
        slow.gate.set()
        until(lambda: outcomes(store, "slow")["ack"] == 12)
        until(lambda: store.statistics().segments == 0)
        for loop in loops:
            loop.stop()
            loop.join()


def test_completion_of_each_exporter_survives_a_restart(tmp_path: Path) -> None:
    done, failing = Scripted(), Scripted(*[Verdict(again=[(1, 4)], reason="down")] * 1000)
    with Store.open(tmp_path, STORE) as store:
        loops = [looping(store, "done", done), looping(store, "failing", failing)]
        store.commit("events", numbers(4))
        until(lambda: outcomes(store, "done")["ack"] == 4 and len(failing.parcels) > 1)
        for loop in loops:
            loop.stop()
            loop.join()
    again, mended = Scripted(), Scripted()
    with Store.open(tmp_path, STORE) as store:
        loops = [looping(store, "done", again), looping(store, "failing", mended)]
        until(lambda: outcomes(store, "failing")["ack"] == 4)
        for loop in loops:
            loop.stop()
            loop.join()
    assert (again.parcels, mended.parcels) == ([], [(1, 4)])


# ----------------------------------------------------------------------------------------------------------------- OTLP


def endpoint(server: GrpcServer | HttpServer, kind: str) -> str:
    return f'{kind}_endpoint: "http://127.0.0.1:{server.port}"'


def test_requests_are_sent_on_byte_for_byte_in_order(tmp_path: Path) -> None:
    bodies = [logs_request(first=10 * number).SerializeToString() for number in range(20)]
    with GrpcServer() as server:
        text = graph_text(("next", "otlp", endpoint(server, "grpc") + ", compression_method: gzip, max_in_flight: 1"))
        with RunningFlow(tmp_path, text) as running:
            for body in bodies:
                running.grpc(Signal.LOGS, body)
            running.until(lambda: len(server.taken) == len(bodies))
    assert [body for _, body in server.taken] == bodies


@pytest.mark.parametrize("compression", ["none", "gzip", "zstd"])
def test_requests_are_sent_on_over_http(tmp_path: Path, compression: str) -> None:
    with HttpServer() as server:
        server.answers = [(503, {"retry-after": "0"}), (429, {})]
        text = graph_text(("next", "otlp", endpoint(server, "http") + f", compression_method: {compression}"))
        with RunningFlow(tmp_path, text) as running:
            for signal in Signal:
                running.grpc(signal, sample(signal).SerializeToString())
            running.until(lambda: len(server.taken) == 3)
    bodies = {path: inflate(body, headers.get("content-encoding", ""), bytes_max=1 << 20)
              for path, headers, body in server.taken}  # fmt: skip
    assert bodies == {signal.path: sample(signal).SerializeToString() for signal in Signal}


def test_columns_are_sent_on_as_requests(tmp_path: Path) -> None:
    with GrpcServer() as server:
        text = graph_text(("next", "otlp", endpoint(server, "grpc")), receiver="payload: columns")
        with RunningFlow(tmp_path, text) as running:
            for signal in Signal:
                running.grpc(signal, sample(signal).SerializeToString())
            running.until(lambda: len(server.taken) == 3)
    found = {signal: signal.request.FromString(body) for signal, body in server.taken}
    assert found[Signal.METRICS] == sample(Signal.METRICS)
    spans = found[Signal.TRACES].resource_spans[0].scope_spans[0].spans
    assert list(spans) == list(sample(Signal.TRACES).resource_spans[0].scope_spans[0].spans)


def rows_of(store: Store, channel: str) -> list[dict[str, Any]]:
    """All events of a channel; none while it is not there."""
    if channel not in store.channels():
        return []
    return [row for batch in store.read(channel) for row in batch.to_pylist()]


def test_a_request_that_the_server_refuses_is_rejected_alone(tmp_path: Path) -> None:
    bodies = [logs_request(first=10 * number).SerializeToString() for number in range(3)]
    with GrpcServer() as server:
        server.gate.clear()
        server.answers = [(grpc.StatusCode.INVALID_ARGUMENT, "bad record", ())]
        text = graph_text(("next", "otlp", endpoint(server, "grpc") + ", max_in_flight: 1"))
        with RunningFlow(tmp_path, text) as running:
            for body in bodies:
                running.grpc(Signal.LOGS, body)
            server.gate.set()
            running.until(lambda: len(server.taken) == 2)
            store = running.flow.stores["persistence"]
            running.until(lambda: bool(rows_of(store, "otlp.logs.dead")))
            letters = rows_of(store, "otlp.logs.dead")
    assert [(row["reason"], row["event"]["request"]) for row in letters] == [
        ("INVALID_ARGUMENT: bad record", bodies[0])
    ]
    assert [body for _, body in server.taken] == bodies[1:]


@pytest.mark.parametrize(
    "code",
    [
        grpc.StatusCode.UNAVAILABLE,
        grpc.StatusCode.DEADLINE_EXCEEDED,
        grpc.StatusCode.ABORTED,
        grpc.StatusCode.UNAUTHENTICATED,
        grpc.StatusCode.UNIMPLEMENTED,
    ],
    ids=lambda code: code.name,
)
def test_a_server_that_cannot_now_gets_the_request_again(tmp_path: Path, code: grpc.StatusCode) -> None:
    with GrpcServer() as server:
        server.answers = [(code, "not now", ())] * 3
        with RunningFlow(tmp_path, graph_text(("next", "otlp", endpoint(server, "grpc")))) as running:
            running.grpc(Signal.LOGS, logs_request().SerializeToString())
            running.until(lambda: len(server.taken) == 1)
            figures = running.flow.exporter_statistics()["next"]
            assert (figures.retries, figures.rejected) == (3, 0)


def test_an_exhausted_server_gets_it_again_only_if_it_says_when(tmp_path: Path) -> None:
    hint = (("grpc-status-details-bin", status(Answer(Refusal.LATER, "", retry_after_s=0.001))),)
    with GrpcServer() as server:
        server.answers = [(grpc.StatusCode.RESOURCE_EXHAUSTED, "wait", hint)]
        with RunningFlow(tmp_path, graph_text(("next", "otlp", endpoint(server, "grpc")))) as running:
            running.grpc(Signal.LOGS, logs_request().SerializeToString())
            running.until(lambda: len(server.taken) == 1)
            server.answers = [(grpc.StatusCode.RESOURCE_EXHAUSTED, "too large", ())]
            running.grpc(Signal.LOGS, logs_request().SerializeToString())
            running.until(lambda: running.flow.exporter_statistics()["next"].rejected == 1)
    assert len(server.taken) == 1


def test_records_that_a_server_leaves_out_are_counted(tmp_path: Path) -> None:
    with GrpcServer() as server:
        response = Signal.LOGS.response()
        response.partial_success.rejected_log_records = 2
        server.response = response.SerializeToString()
        with RunningFlow(tmp_path, graph_text(("next", "otlp", endpoint(server, "grpc")))) as running:
            running.grpc(Signal.LOGS, logs_request().SerializeToString())
            running.until(lambda: running.flow.exporter_statistics()["next"].refused_records == 2)
            assert running.flow.exporter_statistics()["next"].retries == 0


def test_without_persistence_the_client_waits_for_the_destination(tmp_path: Path) -> None:
    with GrpcServer() as server:
        server.answers = [(grpc.StatusCode.UNAVAILABLE, "down", ())]
        text = "nodes:" + RECEIVER % ("next", "round_robin", "") + EXPORTER % ("next", "otlp", endpoint(server, "grpc"))
        with RunningFlow(tmp_path, text) as running:
            body = logs_request().SerializeToString()
            with pytest.raises(grpc.RpcError) as caught:
                running.grpc(Signal.LOGS, body)
            assert caught.value.code() is grpc.StatusCode.UNAVAILABLE
            running.grpc(Signal.LOGS, body)
            assert [taken for _, taken in server.taken] == [body]
            assert not (tmp_path / "data").exists()


def test_broadcast_brings_everything_to_all_and_turns_to_one(tmp_path: Path) -> None:
    for strategy, expected in (("broadcast", (4, 4)), ("round_robin", (2, 2))):
        with GrpcServer() as one, GrpcServer() as two:
            nodes = EXPORTER % ("one", "otlp", endpoint(one, "grpc")) + EXPORTER % (
                "two",
                "otlp",
                endpoint(two, "grpc"),
            )
            with RunningFlow(tmp_path, "nodes:" + RECEIVER % ("one, two", strategy, "") + nodes) as running:
                for _ in range(4):
                    running.grpc(Signal.LOGS, logs_request().SerializeToString())
            assert (len(one.taken), len(two.taken)) == expected


def test_a_direct_exporter_says_what_the_destination_said() -> None:
    sink = DirectSink("next", Scripted(Verdict(again=[(1, 1)], reason="down"), Verdict(rejected=[((2, 2), "bad")])),
                      SystemClock())  # fmt: skip
    with pytest.raises(ServerAway, match="down"):
        sink.accept("otlp.logs", numbers(1), None)
    with pytest.raises(InvalidBatch, match="bad"):
        sink.accept("otlp.logs", numbers(1), None)
    assert sink.accept("otlp.logs", numbers(1), None).result() is False


# -------------------------------------------------------------------------------------------------------------- Parquet


def parquet_exporter(tmp_path: Path, **settings: str) -> ParquetExporter:
    return parquet.make(
        parquet.Settings(path=str(tmp_path / "out"), **settings),  # type: ignore[arg-type]
        filesystem=LocalFilesystem(),
        clock=SystemClock(),
    )


def files(tmp_path: Path) -> list[str]:
    return sorted(str(path.relative_to(tmp_path / "out")) for path in (tmp_path / "out").rglob("*") if path.is_file())


def bodies_in(tmp_path: Path) -> list[str]:
    table = pq.read_table(tmp_path / "out", partitioning="hive")
    return sorted(table.column("body").to_pylist())


def test_requests_become_files_by_channel_and_date(tmp_path: Path) -> None:
    exporter = parquet_exporter(tmp_path)
    exporter.deliver(parcel_of(raw(logs_request(2).SerializeToString(), logs_request(3).SerializeToString())))
    exporter.deliver(parcel_of(raw(logs_request(1, first=7).SerializeToString()), 3, day=1))
    assert files(tmp_path) == [
        "otlp.logs/date=2026-05-04/part-00000000000000000001-00000000000000000002.parquet",
        "otlp.logs/date=2026-05-05/part-00000000000000000003-00000000000000000003.parquet",
    ]
    table = pq.read_table(tmp_path / "out" / "otlp.logs", partitioning="hive")
    assert table.column("body").to_pylist() == ["order 0", "order 1", "order 0", "order 1", "order 2", "order 7"]
    assert table.column("_seq").to_pylist() == [1, 1, 2, 2, 2, 3]
    assert set(map(str, table.column("date").to_pylist())) == {"2026-05-04", "2026-05-05"}


def test_event_dates_name_the_folder_when_asked(tmp_path: Path) -> None:
    parquet_exporter(tmp_path, date="event").deliver(parcel_of(raw(logs_request(2).SerializeToString())))
    assert [Path(name).parent.name for name in files(tmp_path)] == ["date=2023-11-14"]


@pytest.mark.parametrize("portions", [[(1, 4)], [(1, 2), (3, 4)], [(2, 3), (1, 4)]])
def test_what_comes_again_in_other_portions_is_written_once(tmp_path: Path, portions: list[Span]) -> None:
    rows = raw(*(logs_request(1, first=number).SerializeToString() for number in range(4)))
    parquet_exporter(tmp_path).deliver(parcel_of(rows.slice(0, 3)))
    again = parquet_exporter(tmp_path)  # a new process
    for first, last in portions:
        again.deliver(parcel_of(rows.slice(first - 1, last - first + 1), first))
        again.deliver(parcel_of(rows.slice(first - 1, last - first + 1), first))
    assert bodies_in(tmp_path) == ["order 0", "order 1", "order 2", "order 3"]


def test_a_request_that_cannot_be_opened_is_rejected_alone(tmp_path: Path) -> None:
    good = [logs_request(1, first=number).SerializeToString() for number in range(3)]
    verdict = parquet_exporter(tmp_path).deliver(parcel_of(raw(good[0], b"\xff\xff", *good[1:])))
    assert [span for span, _ in verdict.rejected] == [(2, 2)]
    assert bodies_in(tmp_path) == ["order 0", "order 1", "order 2"]


def test_requests_of_no_signal_of_otlp_are_rejected(tmp_path: Path) -> None:
    rows = raw(b"x", b"y").set_column(1, "signal", pa.array(["profiles", "profiles"]))
    verdict = parquet_exporter(tmp_path).deliver(parcel_of(rows))
    assert [span for span, _ in verdict.rejected] == [(1, 2)]
    assert not (tmp_path / "out").exists()


def test_columns_are_written_as_they_are(tmp_path: Path) -> None:
    parquet_exporter(tmp_path).deliver(parcel_of(numbers(3), channel="events"))
    assert pq.read_table(tmp_path / "out" / "events").column("n").to_pylist() == [0, 1, 2]


def test_a_file_that_was_not_finished_is_made_again(tmp_path: Path) -> None:
    folder = tmp_path / "out" / "otlp.logs" / "date=2026-05-04"
    folder.mkdir(parents=True)
    unfinished = folder / ".part-00000000000000000001-00000000000000000001.parquet.tmp"
    unfinished.write_bytes(b"half")
    parquet_exporter(tmp_path).deliver(parcel_of(raw(logs_request(1).SerializeToString())))
    assert not unfinished.exists()
    assert bodies_in(tmp_path) == ["order 0"]


# -------------------------------------------------------------------------------------------------------------- console


def test_the_console_shows_a_line_and_the_first_records() -> None:
    out = io.StringIO()
    ConsoleExporter(2, out).deliver(parcel_of(raw(logs_request(5).SerializeToString())))
    lines = out.getvalue().splitlines()
    assert lines[0] == "channel=otlp.logs seqs=1..1 events=1"
    assert len(lines) == 3
    assert '"body":"order 0"' in lines[1]


def test_the_console_shows_why_a_request_cannot_be_opened() -> None:
    out = io.StringIO()
    ConsoleExporter(2, out).deliver(parcel_of(raw(b"\xff\xff")))
    assert '"error"' in out.getvalue()


def test_a_verdict_leaves_the_rest_as_done() -> None:
    verdict = Verdict(rejected=[((3, 4), "x")], again=[(8, 9), (1, 1)])
    assert verdict.done(1, 10) == [(2, 2), (5, 7), (10, 10)]
    assert Verdict().done(1, 3) == [(1, 3)]
    assert SYSTEM == ("_seq", "_ingested_at")
