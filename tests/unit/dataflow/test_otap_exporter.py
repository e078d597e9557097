"""The OTAP exporter over real streams: what arrives, what comes again and what never will."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import grpc  # type: ignore[import-untyped]
import pyarrow as pa
import pytest

from holdfast.clock import SystemClock
from holdfast.dataflow.exporters import otapbatches
from holdfast.dataflow.exporters.links import Fate, Outcome
from holdfast.dataflow.exporters.otap import OtapExporter, make, read_settings
from holdfast.dataflow.exporters.otapbatches import batches_of
from holdfast.dataflow.exporters.parcels import Parcel, Span, Verdict
from holdfast.dataflow.exporters.window import send_all
from holdfast.disk.local import LocalFilesystem
from holdfast.errors import InvalidConfig
from holdfast.wire.otlp.signals import Signal
from tests.unit.dataflow.flows import RunningFlow, graph_text
from tests.unit.dataflow.otap_streams import OtapServer, otap_text, stored
from tests.unit.dataflow.otlp_samples import logs_request, sample
from tests.unit.dataflow.test_exporters import parcel_of, raw

SIGNALS = pytest.mark.parametrize("signal", list(Signal), ids=lambda signal: signal.value)
OK = 0
DONE = Verdict([], [])


def exporter(server: OtapServer, **settings: object) -> OtapExporter:
    """An exporter to a server."""
    found = read_settings({"grpc_endpoint": f"http://127.0.0.1:{server.port}", **settings}, Path())
    return make(found, filesystem=LocalFilesystem(), clock=SystemClock())


def delivered(server: OtapServer, *parcels: Parcel, **settings: object) -> list[Verdict]:
    """What an exporter says of some parcels."""
    found = exporter(server, **settings)
    try:
        return [found.deliver(parcel) for parcel in parcels]
    finally:
        found.close()


def rows_parcel(count: int, first_seq: int = 1) -> Parcel:
    """Log records as columns."""
    return parcel_of(stored(Signal.LOGS, logs_request(count, first=first_seq)), first_seq)


# -------------------------------------------------------------------------------------------------------- what arrives


@SIGNALS
@pytest.mark.parametrize(("sent", "kept"), [("raw", "columns"), ("columns", "raw")])
def test_a_graph_hands_on_to_another_what_otlp_would_store(
    tmp_path: Path, signal: Signal, sent: str, kept: str
) -> None:
    body, rows = sample(signal).SerializeToString(), stored(signal)
    with RunningFlow(tmp_path / "to", otap_text(f"payload: {kept}")) as to:
        out = f"grpc_endpoint: 'http://{to.addresses['otap_receiver.grpc']}', compression_method: zstd"
        text = graph_text(("out", "urn:otel:otap:exporter", out), receiver=f"payload: {sent}")
        with RunningFlow(tmp_path / "from", text) as source:
            source.grpc(signal, body)
            arrived = {signal.value: rows.num_rows}
            source.until(lambda: to.flow.receiver_statistics()["otap_receiver"].records == arrived)
        batches = list(to.flow.stores["persistence"].read(f"otlp.{signal.value}"))
        if kept == "raw":
            requests = [request for batch in batches for request in batch.column("request").to_pylist()]
            batches = [stored(signal, signal.request.FromString(request)) for request in requests]
        found = pa.concat_batches([batch.select(rows.schema.names) for batch in batches])
    assert found.equals(rows)


def test_batches_of_a_signal_share_one_stream_and_its_dictionaries() -> None:
    with OtapServer() as server:
        verdicts = delivered(
            server, rows_parcel(4), rows_parcel(4, 5), parcel_of(raw(sample(Signal.LOGS).SerializeToString()))
        )
        assert verdicts == [DONE] * 3
        assert server.streams == 1
        schemas = [
            payload.schema_id for _, batch, _ in server.taken for payload in batch.payloads if payload.kind == 30
        ]
        assert schemas == ["logs/1"] * 3
        assert server.rows().num_rows == 11


@pytest.mark.parametrize("compression", [{"compression_method": "gzip"}, {"arrow": {"payload_compression": "lz4"}}])
def test_both_places_of_compression_are_understood(compression: dict[str, object]) -> None:
    with OtapServer() as server:
        assert delivered(server, rows_parcel(3), **compression) == [DONE]
        assert server.rows().equals(stored(Signal.LOGS, logs_request(3, first=1)))


def test_headers_go_with_every_stream(tmp_path: Path) -> None:
    (tmp_path / "to").mkdir()
    (tmp_path / "to" / "token").write_text("secret")
    with RunningFlow(tmp_path / "to", otap_text("payload: columns, token_file: token")) as to:
        out = f"grpc_endpoint: 'http://{to.addresses['otap_receiver.grpc']}', headers: ['authorization: Bearer secret']"
        with RunningFlow(tmp_path / "from", graph_text(("out", "otap", out))) as source:
            source.grpc(Signal.LOGS, sample(Signal.LOGS).SerializeToString())
            source.until(lambda: source.flow.exporter_statistics()["out"].events == 1)


def test_small_requests_share_a_batch_and_a_large_one_becomes_several(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(otapbatches, "ROWS_MAX", 5)
    bodies = [logs_request(count).SerializeToString() for count in (2, 2, 2, 12)]
    records = pa.array([2, 2, 2, 12], pa.int64())
    rows = raw(*bodies)
    rows = rows.set_column(rows.schema.get_field_index("records"), "records", records)
    found = list(batches_of(parcel_of(rows)))
    assert [(batch.span, batch.rows.num_rows) for batch in found] == [
        ((1, 2), 4),
        ((3, 3), 2),
        ((4, 4), 5),
        ((4, 4), 5),
        ((4, 4), 2),
    ]
    assert len({batch.key for batch in found}) == 5


def test_batches_of_large_records_are_small_and_cut_alike_when_the_rest_comes_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(otapbatches, "BATCH_BYTES", 20_000)
    rows = stored(Signal.LOGS, logs_request(40))
    bodies = pa.array(["x" * (3000 * (number % 3)) for number in range(40)])
    rows = rows.set_column(rows.schema.get_field_index("body"), "body", bodies)
    whole = list(batches_of(parcel_of(rows)))
    assert [batch.span[0] for batch in whole[1:]] == [batch.span[1] + 1 for batch in whole[:-1]]
    assert whole[-1].span[1] == 40
    assert max(batch.rows.column("body").nbytes for batch in whole) < 25_000 < bodies.nbytes
    seq = whole[2].span[0]
    rest = list(batches_of(parcel_of(rows.slice(seq - 1), seq)))
    assert [(batch.span, batch.key) for batch in rest] == [(batch.span, batch.key) for batch in whole[2:]]


def test_rows_that_only_look_like_telemetry_are_rejected() -> None:
    rows = stored(Signal.LOGS)
    bad = rows.set_column(rows.schema.get_field_index("body_type"), "body_type", pa.array([5] * 3, pa.int8()))
    with OtapServer() as server:
        found = delivered(server, parcel_of(bad), parcel_of(rows, 4))
        assert [span for span, _ in found[0].rejected] == [(1, 3)]
        assert "cannot be encoded" in found[0].rejected[0][1]
        assert found[1] == DONE


def test_a_key_is_that_of_the_same_events_only() -> None:
    def key(parcel: Parcel) -> str:
        (batch,) = batches_of(parcel)
        return batch.key

    first = key(rows_parcel(3))
    assert key(rows_parcel(3)) == first
    others = [
        rows_parcel(4),
        parcel_of(stored(Signal.LOGS, logs_request(3, first=1)), 2),
        parcel_of(stored(Signal.LOGS, logs_request(3, first=2)), 1),
        parcel_of(stored(Signal.LOGS, logs_request(3, first=1, service="bank")), 1),
        parcel_of(stored(Signal.LOGS, logs_request(3, first=1)), 1, channel="otap.logs"),
        parcel_of(stored(Signal.LOGS, logs_request(3, first=1)), 1, day=1),
    ]
    assert len({first, *map(key, others)}) == 7


# ----------------------------------------------------------------------------------------------- again, and never again


@pytest.mark.parametrize("code", [1, 4, 7, 8, 10, 14, 16])
def test_a_status_that_passes_brings_the_batch_again(code: int) -> None:
    with OtapServer() as server:
        server.codes = [code]
        verdict, after = delivered(server, rows_parcel(3), rows_parcel(3))
        assert (verdict.again, verdict.rejected) == ([(1, 3)], [])
        assert "as told" in verdict.reason
        assert after == DONE
        assert server.streams == 1


@pytest.mark.parametrize("code", [3, 13, 2, 99])
def test_a_status_that_does_not_pass_rejects_that_batch_alone(code: int) -> None:
    with OtapServer() as server:
        server.codes = [OK, code, OK]
        parcels = [rows_parcel(3), rows_parcel(3, 4), rows_parcel(3, 7)]
        found = delivered(server, *parcels)
        assert found[0] == found[2] == DONE
        (span, reason) = found[1].rejected[0]
        assert (span, "as told" in reason, found[1].again) == ((4, 6), True, [])


@pytest.mark.parametrize("code", [grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.UNIMPLEMENTED, grpc.StatusCode.ABORTED])
def test_a_stream_that_ends_brings_its_batches_again_on_a_new_one(code: grpc.StatusCode) -> None:
    with OtapServer() as server:
        found = exporter(server)
        assert found.deliver(rows_parcel(3)) == DONE
        server.ends = [code]
        assert found.deliver(rows_parcel(3, 4)).again == [(4, 6)]
        assert found.deliver(rows_parcel(3, 4)) == DONE
        found.close()
        assert server.streams == 2
        assert server.rows().equals(stored(Signal.LOGS, logs_request(3, first=1), logs_request(3, first=4)))


def two_batches(first: int, second: int) -> Parcel:
    """A parcel of two batches with so many records."""
    rows = [stored(Signal.LOGS, logs_request(first)), stored(Signal.LOGS, logs_request(second))]
    parcel = [parcel_of(rows[0], 1), parcel_of(rows[1], first + 1)]
    return Parcel("otlp.logs", 1, first + second, [*parcel[0].batches, *parcel[1].batches])


def test_of_several_batches_only_the_one_that_is_too_large_is_rejected() -> None:
    with OtapServer() as server:
        server.hold, server.rows_max = 1, 10
        found = exporter(server)
        parcel = two_batches(3, 50)
        verdicts = [found.deliver(parcel), found.deliver(parcel)]
        found.close()
    assert (verdicts[0].again, verdicts[0].rejected) == ([(1, 3), (4, 53)], [])
    ((span, reason),) = verdicts[1].rejected
    assert (span, "RESOURCE_EXHAUSTED" in reason, verdicts[1].again) == ((4, 53), True, [])
    assert server.rows().num_rows == 3


def test_a_server_that_is_silent_loses_its_stream() -> None:
    with OtapServer() as server:
        server.gate.clear()
        found = exporter(server, timeout="50ms")
        verdict = found.deliver(rows_parcel(3))
        assert (verdict.again, verdict.reason) == ([(1, 3)], "no status after 0.05 s")
        server.gate.set()
        found.close()


def test_a_server_that_is_away_is_tried_again(tmp_path: Path) -> None:
    text = graph_text(("out", "otap", "grpc_endpoint: 'http://127.0.0.1:1'"))
    with RunningFlow(tmp_path / "flow", text) as running:
        running.grpc(Signal.LOGS, sample(Signal.LOGS).SerializeToString())
        running.until(lambda: running.flow.exporter_statistics()["out"].failing > 2)
        figures = running.flow.exporter_statistics()["out"]
    assert (figures.events, figures.rejected) == (0, 0)
    assert "UNAVAILABLE" in figures.last_failure


def test_a_refused_batch_is_in_the_dead_letters_with_the_reason(tmp_path: Path) -> None:
    with OtapServer() as server:
        server.codes = [3]
        text = graph_text(("out", "otap", f"grpc_endpoint: 'http://127.0.0.1:{server.port}'"))
        with RunningFlow(tmp_path / "flow", text) as running:
            running.grpc(Signal.LOGS, sample(Signal.LOGS).SerializeToString())
            running.until(lambda: running.flow.exporter_statistics()["out"].rejected == 1)
            letters = running.rows("otlp.logs.dead").to_pylist()
    assert [letter["reason"] for letter in letters] == ["INVALID_ARGUMENT: as told"]


def test_rows_that_are_not_telemetry_are_rejected() -> None:
    with OtapServer() as server:
        (verdict,) = delivered(server, parcel_of(pa.record_batch({"n": [1, 2]})))
        ((span, reason),) = verdict.rejected
        assert (span, "neither" in reason) == ((1, 2), True)


class Said:
    """A message whose outcome is known."""

    def __init__(self, fate: Fate) -> None:
        self._fate = fate

    def result(self) -> Outcome:
        """What became of it."""
        return Outcome(self._fate, self._fate.value)


@pytest.mark.parametrize(
    ("fates", "rejected", "again"),
    [
        ("dd", [], []),
        ("dn", [((1, 9), "never")], []),
        ("nn", [((1, 9), "never")], []),
        ("na", [], [(1, 9)]),
        ("an", [], [(1, 9)]),
    ],
)
def test_events_in_several_messages_have_one_fate(
    fates: str, rejected: list[tuple[Span, str]], again: list[Span]
) -> None:
    said = {"d": Fate.DONE, "n": Fate.NEVER, "a": Fate.AGAIN}
    messages: list[tuple[Span, Any]] = [((1, 9), lambda fate=fate: Said(said[fate])) for fate in fates]
    verdict = send_all(messages, max_in_flight=5)
    assert (list(verdict.rejected), list(verdict.again)) == (rejected, again)


@pytest.mark.parametrize(
    ("settings", "key"),
    [
        ({}, "grpc_endpoint"),
        ({"grpc_endpoint": "host:4319"}, "grpc_endpoint"),
        ({"grpc_endpoint": "http://host:1", "headers": ["token"]}, "headers"),
        ({"grpc_endpoint": "http://host:1", "compression_method": "brotli"}, "compression_method"),
    ],
)
def test_settings_that_cannot_work_are_refused(settings: dict[str, object], key: str) -> None:
    with pytest.raises(InvalidConfig) as caught:
        read_settings(settings, Path())
    assert caught.value.key == key
