"""Graphs that run: how they begin, what they show, how they end."""

from __future__ import annotations

import errno
import json
import logging
import urllib.error
import urllib.request
from pathlib import Path
from typing import cast

import grpc  # type: ignore[import-untyped]
import pytest

from holdfast import Store
from holdfast.dataflow.running import Seams
from holdfast.disk.filesystem import File, Mode
from holdfast.disk.local import LocalFilesystem
from holdfast.errors import CannotListen, Locked, StoreFailed
from holdfast.wire.otlp.signals import Signal
from tests.unit.dataflow.flows import RunningFlow, graph_text
from tests.unit.dataflow.otlp_samples import logs_request, sample

SINK = ("sink", "console", "rows: 0, channels: [nothing]")
ADMIN = '\nadmin: {listening_addr: "127.0.0.1:0"}\n'


class FailingFile:
    """A file of a disk that may begin to fail."""

    def __init__(self, file: File, disk: FailingFilesystem) -> None:
        self._file = file
        self._disk = disk

    def sync_data(self) -> None:
        if self._disk.broken:
            raise OSError(errno.EIO, "input/output error")
        self._file.sync_data()

    def __getattr__(self, name: str) -> object:
        return getattr(self._file, name)


class FailingFilesystem(LocalFilesystem):
    """A real disk whose syncs fail once it is broken."""

    broken = False

    def open(self, path: Path, mode: Mode) -> File:  # type: ignore[override]
        return cast(File, FailingFile(super().open(path, mode), self))


@pytest.mark.guarantee("G10")
def test_a_store_that_fails_ends_the_graph_and_tells_clients_to_come_again(tmp_path: Path) -> None:
    disk = FailingFilesystem()
    with RunningFlow(tmp_path, graph_text(SINK), seams=Seams(filesystem=disk)) as running:
        running.grpc(Signal.LOGS, logs_request().SerializeToString())
        disk.broken = True
        with pytest.raises(grpc.RpcError) as caught:
            running.grpc(Signal.LOGS, logs_request().SerializeToString())
        assert caught.value.code() is grpc.StatusCode.UNAVAILABLE
        running.until(lambda: running.failure is not None)
    assert isinstance(running.failure, StoreFailed)
    with Store.open(tmp_path / "data" / "core-0") as store:
        assert sum(batch.num_rows for batch in store.read("otlp.logs")) >= 1


def test_an_address_that_is_taken_is_named_with_its_node(tmp_path: Path) -> None:
    with RunningFlow(tmp_path / "one", graph_text(SINK)) as running:
        taken = running.addresses["otlp_receiver.http"]
        text = graph_text(SINK).replace('http_listening_addr: "127.0.0.1:0"', f'http_listening_addr: "{taken}"')
        with pytest.raises(CannotListen, match=r"nodes\.otlp_receiver\.config\.http_listening_addr"):
            RunningFlow(tmp_path / "two", text).__enter__()
        taken = running.addresses["otlp_receiver.grpc"]
        text = graph_text(SINK).replace('{listening_addr: "127.0.0.1:0"', f'{{listening_addr: "{taken}"')
        with pytest.raises(CannotListen, match=r"nodes\.otlp_receiver\.config\.listening_addr"):
            RunningFlow(tmp_path / "three", text).__enter__()


def test_a_store_in_use_is_not_opened_by_a_second_graph(tmp_path: Path) -> None:
    with RunningFlow(tmp_path, graph_text(SINK)), pytest.raises(Locked):
        RunningFlow(tmp_path, graph_text(SINK)).__enter__()


def test_an_exporter_that_left_the_file_is_told_of(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    other = ("other", "console", "rows: 0")
    with RunningFlow(tmp_path, graph_text(SINK, other)):
        pass
    with caplog.at_level(logging.WARNING, "holdfast"), RunningFlow(tmp_path, graph_text(SINK)):
        pass
    assert any("dataflow.subscriber.orphan" in text and "subscriber=other" in text for text in caplog.messages)


def test_segments_carry_the_signal_of_their_channel(tmp_path: Path) -> None:
    with RunningFlow(tmp_path, graph_text(SINK)) as running:
        for signal in Signal:
            running.grpc(signal, sample(signal).SerializeToString())
        store = running.flow.stores["persistence"]
        store.flush()
        found = {segment.meta.channel: segment.meta.signal for name in store.channels()
                 for segment in store.listing.segments(name, from_seq=1, limit=10)}  # fmt: skip
    assert found == {f"otlp.{signal.value}": signal.value for signal in Signal}


def test_metrics_and_health_are_shown_where_the_file_says(tmp_path: Path) -> None:
    with RunningFlow(tmp_path, graph_text(SINK) + ADMIN) as running:
        running.grpc(Signal.LOGS, logs_request(3).SerializeToString())
        admin = running.addresses["admin"]
        text = fetched(f"{admin}/metrics")
        assert 'holdfast_receiver_records_total{node="otlp_receiver",signal="logs"} 3.0' in text
        for name in (
            "holdfast_exporter_failing",
            "holdfast_ingest_throttle_total",
            "holdfast_subscriber_gaps",
            "holdfast_ack_records_total",
            "holdfast_gc_evictions_total",
            "holdfast_subscriber_dropped_segments_total",
            "holdfast_segment_dropped_total",
            "holdfast_core_bytes",
            "holdfast_core_cap_fraction",
            "holdfast_retention_size_emergency_total",
        ):
            assert f"# TYPE {name.removesuffix('_total')}" in text, name
        assert fetched(f"{admin}/metrics/persistence") != ""
        assert json.loads(fetched(f"{admin}/healthz"))["status"] == "ok"
        assert "otlp.logs" in fetched(f"{admin}/api/v1/channels")
        with pytest.raises(urllib.error.HTTPError, match="404"):
            fetched(f"{admin}/metrics/nobody")


def fetched(url: str) -> str:
    with urllib.request.urlopen(url, timeout=30) as answer:
        text: str = answer.read().decode()
        return text
