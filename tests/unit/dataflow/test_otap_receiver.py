"""The OTAP receiver over real streams: what is stored, what each batch is told, and how streams end."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path

import grpc  # type: ignore[import-untyped]
import pyarrow as pa
import pytest

from holdfast.wire.otap.messages import ArrowPayload, Batch, Payload, Status, write_batch
from holdfast.wire.otlp.answers import retry_delay_s
from holdfast.wire.otlp.raw import decoded
from holdfast.wire.otlp.signals import Signal
from tests.unit.dataflow.flows import EXPORTER, PERSISTENCE, RECEIVER, RunningFlow, until
from tests.unit.dataflow.otap_streams import RECEIVER as OTAP_RECEIVER
from tests.unit.dataflow.otap_streams import OtapClient, otap_text, stored
from tests.unit.dataflow.otlp_samples import logs_request, sample, traces_request
from tests.unit.dataflow.test_receiver import Held, Throttle

SIGNALS = pytest.mark.parametrize("signal", list(Signal), ids=lambda signal: signal.value)
OK, INVALID, UNAVAILABLE = 0, 3, 14


@contextlib.contextmanager
def receiving(tmp_path: Path, receiver: str = "payload: columns", persistence: str = "") -> Iterator[RunningFlow]:
    """A running graph with an OTAP receiver."""
    with RunningFlow(tmp_path / "flow", otap_text(receiver, persistence)) as running:
        yield running


def client(running: RunningFlow, signal: Signal = Signal.LOGS, **more: str) -> OtapClient:
    """A stream to it."""
    return OtapClient(running.addresses["otap_receiver.grpc"], signal, **more)


def kept(running: RunningFlow, signal: Signal = Signal.LOGS) -> pa.RecordBatch:
    """What the store has, as columns."""
    found = pa.concat_batches(list(running.flow.stores["persistence"].read(f"otlp.{signal.value}")))
    return found.select(stored(signal).schema.names)


@SIGNALS
def test_batches_are_stored_as_otlp_stores_them_and_told_in_order(tmp_path: Path, signal: Signal) -> None:
    rows = stored(signal)
    with receiving(tmp_path) as running, client(running, signal, compression="zstd") as stream:
        for _ in range(3):
            stream.send_rows(rows)
        assert stream.finish() == [Status(1), Status(2), Status(3)]
        assert kept(running, signal).equals(pa.concat_batches([rows] * 3))
        figures = running.flow.receiver_statistics()["otap_receiver"]
    assert figures.records == {signal.value: 3 * rows.num_rows}
    assert figures.requests == {signal.value: 3}


def test_a_channel_of_requests_is_shared_with_an_otlp_receiver(tmp_path: Path) -> None:
    sink = EXPORTER % ("sink", "console", "rows: 0, channels: [nothing]")
    receivers = RECEIVER % ("persistence", "round_robin", "") + OTAP_RECEIVER % ""
    text = "nodes:" + receivers + PERSISTENCE % ("sink", "") + sink
    rows = stored(Signal.LOGS)
    with RunningFlow(tmp_path / "flow", text) as running, client(running) as stream:
        running.grpc(Signal.LOGS, sample(Signal.LOGS).SerializeToString())
        stream.send_rows(rows)
        assert stream.finish() == [Status(1)]
        found = pa.concat_batches(list(running.flow.stores["persistence"].read("otlp.logs")))
    assert found.column("protocol").to_pylist() == ["grpc", "otap"]
    assert found.column("records").to_pylist() == [3, 3]
    assert decoded(found, channel="otlp.logs").equals(pa.concat_batches([rows, rows]))


def test_a_batch_is_told_only_after_its_commit(tmp_path: Path) -> None:
    sink = Held()
    with receiving(tmp_path) as running, client(running) as stream:
        running.flow._receivers["otap_receiver"]._intake._sink = sink
        for _ in range(2):
            stream.send_rows(stored(Signal.LOGS))
            assert sink.came.acquire(timeout=30)
        sink.futures[1].set_result(False)
        assert stream.status() == Status(2)
        sink.futures[0].set_result(False)
        assert stream.status() == Status(1)


def test_a_bad_batch_is_refused_and_its_neighbours_are_kept(tmp_path: Path) -> None:
    rows = stored(Signal.LOGS)
    with receiving(tmp_path) as running, client(running) as stream:
        stream.send_rows(rows)
        stream.send(write_batch(Batch(50, [ArrowPayload("x", 99, b"")])))
        stream.send(write_batch(Batch(51, [ArrowPayload("x", Payload.SPANS, b"")])))
        stream.send(write_batch(Batch(52, [])))
        stream.send_rows(rows)
        found = {status.batch_id: status for status in stream.finish()}
        assert kept(running).num_rows == 2 * rows.num_rows
    assert {batch_id: status.code for batch_id, status in found.items()} == {
        1: OK,
        50: INVALID,
        51: INVALID,
        52: OK,
        2: OK,
    }
    assert "payload type 99" in found[50].message
    assert "SPANS" in found[51].message


def test_spans_without_ids_are_counted_in_the_message(tmp_path: Path) -> None:
    rows = stored(Signal.TRACES, traces_request())
    short = pa.array([None, *rows.column("span_id").to_pylist()[1:]], pa.string())
    with receiving(tmp_path) as running, client(running, Signal.TRACES) as stream:
        stream.send_rows(rows.set_column(1, "span_id", short))
        (status,) = stream.finish()
        assert kept(running, Signal.TRACES).num_rows == rows.num_rows - 1
        figures = running.flow.receiver_statistics()["otap_receiver"]
    assert status.code == OK
    assert "spans without" in status.message
    assert figures.refused_records == {"traces": 1}


def test_broken_arrow_is_told_and_ends_the_stream_so_that_the_rest_comes_again(tmp_path: Path) -> None:
    rows = stored(Signal.LOGS)
    with receiving(tmp_path, "payload: columns, retry_after: 1500ms") as running, client(running) as stream:
        stream.send_rows(rows)
        assert stream.status() == Status(1)
        batch = Batch(9, [ArrowPayload("logs/1", Payload.LOGS, b"junk")])
        stream.send(write_batch(batch))
        stream.send_rows(rows)
        found, error = stream.failed()
        assert (found[0].batch_id, found[0].code) == (9, INVALID)
        assert all((status.batch_id, status.code) == (2, UNAVAILABLE) for status in found[1:])
        assert error.code() is grpc.StatusCode.UNAVAILABLE
        details = dict(error.trailing_metadata())["grpc-status-details-bin"]
        assert retry_delay_s(details) == pytest.approx(1.5)
        with client(running) as again:
            again.send_rows(rows)
            assert again.finish() == [Status(1)]
        assert kept(running).num_rows == 2 * rows.num_rows


def test_what_is_no_batch_ends_the_stream(tmp_path: Path) -> None:
    with receiving(tmp_path) as running, client(running) as stream:
        stream.send(b"\xff\xff\xff")
        with pytest.raises(grpc.RpcError) as caught:
            stream.status()
    assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT


def test_an_id_that_is_under_way_twice_ends_the_stream_after_the_first_is_told(tmp_path: Path) -> None:
    sink = Held()
    with receiving(tmp_path) as running, client(running) as stream:
        running.flow._receivers["otap_receiver"]._intake._sink = sink
        stream.send_rows(stored(Signal.LOGS))
        assert sink.came.acquire(timeout=30)
        stream.send(write_batch(Batch(1, [])))
        (serving,) = running.flow._receivers["otap_receiver"]._streams._open
        until(serving._ended.done)
        sink.futures[0].set_result(False)
        found, error = stream.failed()
    assert found == [Status(1)]
    assert error.code() is grpc.StatusCode.INVALID_ARGUMENT
    assert "already under way" in error.details()


def test_an_id_may_be_used_again_once_it_was_told(tmp_path: Path) -> None:
    with receiving(tmp_path) as running, client(running) as stream:
        for _ in range(2):
            stream.send(write_batch(Batch(7, [])))
            assert stream.status() == Status(7)


def test_a_full_store_is_told_and_the_stream_goes_on(tmp_path: Path) -> None:
    sink = Throttle()
    rows = stored(Signal.LOGS)
    with receiving(tmp_path) as running, client(running) as stream:
        running.flow._receivers["otap_receiver"]._intake._sink = sink
        stream.send_rows(rows)
        status = stream.status()
        assert (status.code, "memory_limit is full" in status.message) == (UNAVAILABLE, True)
        sink.full = False
        stream.send_rows(rows)  # builds on the dictionaries of the batch that was refused
        assert stream.finish() == [Status(2)]
    assert sink.accepted == 1


def test_while_too_many_batches_wait_nothing_more_is_read(tmp_path: Path) -> None:
    sink = Held()
    with (
        receiving(tmp_path, "payload: columns, response_stream_channel_size: 2") as running,
        client(running) as stream,
    ):
        intake = running.flow._receivers["otap_receiver"]._intake
        intake._sink = sink
        for _ in range(6):
            stream.send_rows(stored(Signal.LOGS))
        for _ in range(2):
            assert sink.came.acquire(timeout=30)
        assert not sink.came.acquire(timeout=0.2)
        assert intake._waiting == 2
        found = []
        for number in range(6):
            until(lambda number=number: len(sink.futures) > number)  # type: ignore[misc]
            sink.futures[number].set_result(False)
            found.append(stream.status().batch_id)
    assert found == [1, 2, 3, 4, 5, 6]


def test_a_message_larger_than_the_limit_ends_the_stream_for_good(tmp_path: Path) -> None:
    with receiving(tmp_path, "payload: columns, max_request_size: 4KiB") as running, client(running) as stream:
        stream.send_rows(stored(Signal.LOGS, logs_request(200)))
        with pytest.raises(grpc.RpcError) as caught:
            stream.status()
    assert caught.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED


def test_a_batch_that_inflates_beyond_the_limit_is_refused_and_ends_the_stream(tmp_path: Path) -> None:
    rows = stored(Signal.LOGS, logs_request(2))
    rows = rows.set_column(5, "body", pa.array(["x" * (1 << 20)] * 2))
    with (
        receiving(tmp_path, "payload: columns, max_request_size: 64KiB") as running,
        client(running, compression="zstd") as stream,
    ):
        stream.send_rows(rows)
        status = stream.status()
        assert (status.code, "inflated" in status.message) == (INVALID, True)
        with pytest.raises(grpc.RpcError) as caught:
            stream.status()
    assert caught.value.code() is grpc.StatusCode.UNAVAILABLE


def test_a_key_makes_a_repeat_on_another_stream_harmless(tmp_path: Path) -> None:
    rows = stored(Signal.LOGS)
    with receiving(tmp_path) as running:
        for _ in range(2):
            with client(running) as stream:
                stream.send_rows(rows, "a key")
                assert stream.finish() == [Status(1)]
        assert kept(running).num_rows == rows.num_rows
        assert running.flow.receiver_statistics()["otap_receiver"].duplicates == 1


def test_a_stream_without_the_token_is_refused(tmp_path: Path) -> None:
    (tmp_path / "flow").mkdir()
    (tmp_path / "flow" / "token").write_text("secret\n")
    with receiving(tmp_path, "payload: columns, token_file: token") as running:
        with client(running) as stream, pytest.raises(grpc.RpcError) as caught:
            stream.status()
        assert caught.value.code() is grpc.StatusCode.UNAUTHENTICATED
        with client(running, authorization="Bearer secret") as stream:
            stream.send_rows(stored(Signal.LOGS))
            assert stream.finish() == [Status(1)]


def test_more_streams_than_allowed_are_told_to_come_again(tmp_path: Path) -> None:
    with receiving(tmp_path, "payload: columns, max_streams: 1") as running, client(running) as first:
        first.send_rows(stored(Signal.LOGS))
        assert first.status() == Status(1)
        with client(running) as second, pytest.raises(grpc.RpcError) as caught:
            second.status()
        assert caught.value.code() is grpc.StatusCode.UNAVAILABLE
        assert first.finish() == []
        with client(running) as third:
            third.send_rows(stored(Signal.LOGS))
            assert third.finish() == [Status(1)]


def test_a_receiver_that_stops_ends_its_streams_after_their_last_status(tmp_path: Path) -> None:
    with contextlib.ExitStack() as streams:
        with receiving(tmp_path) as running:
            stream = streams.enter_context(client(running))
            stream.send_rows(stored(Signal.LOGS))
            assert stream.status() == Status(1)
        with pytest.raises(grpc.RpcError) as caught:
            stream.status()
    assert caught.value.code() is grpc.StatusCode.UNAVAILABLE
    assert "stops" in caught.value.details()


def test_a_client_that_goes_away_leaves_nothing_behind(tmp_path: Path) -> None:
    with receiving(tmp_path) as running:
        with client(running) as stream:
            stream.send_rows(stored(Signal.LOGS))
            assert stream.status() == Status(1)
        streams = running.flow._receivers["otap_receiver"]._streams
        until(lambda: not streams._open)
