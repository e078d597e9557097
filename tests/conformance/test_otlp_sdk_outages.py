"""OpenTelemetry's SDK keeps sending while the receiver is killed and started again: nothing it sent is lost.

Duplicates are what OTLP's own at-least-once allows: a batch that was committed, and killed before its answer. Process
death (SIGKILL), not power loss.
"""

from __future__ import annotations

import logging
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from holdfast import Store
from holdfast.wire.otlp.raw import decoded
from tests.conformance.test_otlp_sdk import DOORS, WHY, part, resource
from tests.e2e.flowprocess import FlowProcess
from tests.e2e.served import free_port
from tests.unit.dataflow.flows import graph_text, until

pytest.importorskip("opentelemetry.sdk", reason=WHY)

LOGS, KILLS, PER_BATCH = 3000, 3, 50


class Watched:
    """An exporter of the SDK, and what it said of its batches."""

    def __init__(self, exporter: Any) -> None:
        self._exporter = exporter
        self.accepted = 0
        self.given_up = 0

    def export(self, batch: Any) -> Any:
        """Export a batch."""
        result = self._exporter.export(batch)
        if result.name == "SUCCESS":
            self.accepted += len(batch)
        else:
            self.given_up += len(batch)
        return result

    def __getattr__(self, name: str) -> Any:
        return getattr(self._exporter, name)


@pytest.mark.long
@pytest.mark.guarantee("G1")
@DOORS
def test_logs_of_the_sdk_survive_kills_of_the_receiver(
    tmp_path: Path, door: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.CRITICAL, "opentelemetry")
    ports = {"grpc": free_port(), "http": free_port()}
    text = graph_text(("sink", "console", "rows: 0, channels: [nothing]"))
    text = text.replace('http_listening_addr: "127.0.0.1:0"', f'http_listening_addr: "127.0.0.1:{ports["http"]}"')
    text = text.replace('{listening_addr: "127.0.0.1:0"', f'{{listening_addr: "127.0.0.1:{ports["grpc"]}"')
    file = tmp_path / "graph.yaml"
    file.write_text(text, encoding="utf-8")
    module = part(f"exporter.otlp.proto.{door}._log_exporter")
    if door == "grpc":
        exporter = module.OTLPLogExporter(endpoint=f"127.0.0.1:{ports['grpc']}", insecure=True, timeout=120)
    else:
        exporter = module.OTLPLogExporter(endpoint=f"http://127.0.0.1:{ports['http']}/v1/logs", timeout=120)
    watched = Watched(exporter)
    provider = part("sdk._logs").LoggerProvider(resource=resource())
    provider.add_log_record_processor(
        part("sdk._logs.export").BatchLogRecordProcessor(
            watched, schedule_delay_millis=10, max_export_batch_size=PER_BATCH, max_queue_size=2 * LOGS
        )
    )
    logger, record = provider.get_logger("shop"), part("_logs").LogRecord
    flow = FlowProcess(file).start()
    for number in range(LOGS):
        logger.emit(record(timestamp=1, body=f"order {number}"))
        if number and number % (LOGS // (KILLS + 1)) == 0:
            until(lambda: watched.accepted > 0)  # the SDK itself gives up after six attempts: one outage at a time
            watched.accepted = 0
            flow.kill()
            flow.start()
    assert provider.force_flush(120_000)
    provider.shutdown()
    flow.kill()
    with Store.open(tmp_path / "data" / "core-0") as store:
        rows = [decoded(batch, channel="otlp.logs") for batch in store.read("otlp.logs")]
    kept = Counter(body for batch in rows for body in batch.column("body").to_pylist())
    assert set(kept) == {f"order {number}" for number in range(LOGS)}
    repeated = sum(count - 1 for count in kept.values())
    assert repeated <= KILLS * PER_BATCH
    assert watched.given_up == 0
