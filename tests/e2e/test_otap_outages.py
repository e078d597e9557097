"""Two graphs joined by OTAP, killed in turns while logs flow: nothing is lost, and nothing is stored twice.

OTAP is at least once, and a batch that was committed and killed before its status comes again. Its key makes the repeat
harmless: the events of a batch, and so its key, are the same after a restart of either side. Process death (SIGKILL),
not power loss.
"""

from __future__ import annotations

import urllib.request
from collections import Counter
from pathlib import Path

import grpc  # type: ignore[import-untyped]
import pytest

from holdfast import Store
from holdfast.wire.otlp.signals import Signal
from tests.e2e.flowprocess import FlowProcess
from tests.e2e.served import free_port
from tests.unit.dataflow.flows import PATIENCE_S, graph_text, until
from tests.unit.dataflow.otap_streams import otap_text
from tests.unit.dataflow.otlp_samples import logs_request

REQUESTS, PER_REQUEST, KILLED_AT = 60, 20, (15, 35)


def send(address: str, number: int) -> None:
    """One OTLP request, as often as it takes; its key makes that harmless too."""
    body = logs_request(PER_REQUEST, first=number * PER_REQUEST).SerializeToString()

    def accepted() -> bool:
        try:
            with grpc.insecure_channel(address) as channel:
                channel.unary_unary(Signal.LOGS.method)(
                    body, timeout=PATIENCE_S, metadata=[("idempotency-key", f"request {number}")]
                )
        except grpc.RpcError:
            return False
        return True

    until(accepted)


def owed(admin: str) -> float:
    """Events that the exporter has not brought away yet."""
    with urllib.request.urlopen(f"{admin}/metrics", timeout=PATIENCE_S) as response:
        lines = response.read().decode().splitlines()
    return sum(float(line.split()[-1]) for line in lines if line.startswith("holdfast_subscriber_lag_events{"))


def bodies(directory: Path) -> Counter[str]:
    """What the second graph has stored."""
    with Store.open(directory / "data" / "core-0") as store:
        return Counter(body for batch in store.read("otlp.logs") for body in batch.column("body").to_pylist())


@pytest.mark.long
@pytest.mark.timeout(600)
@pytest.mark.guarantee("G1")
@pytest.mark.parametrize("victim", ["receiver", "exporter"])
def test_nothing_is_lost_or_doubled_when_either_side_is_killed(tmp_path: Path, victim: str) -> None:
    ports = {"from": free_port(), "to": free_port()}
    to, source = tmp_path / "to", tmp_path / "from"
    for directory in (to, source):
        directory.mkdir()
    listening = 'listening_addr: "127.0.0.1:0"'
    (to / "graph.yaml").write_text(otap_text().replace(listening, f'listening_addr: "127.0.0.1:{ports["to"]}"'))
    out = f"grpc_endpoint: 'http://127.0.0.1:{ports['to']}', compression_method: zstd"
    text = graph_text(("out", "otap", out), receiver="payload: columns")
    text = text.replace("{" + listening, f'{{listening_addr: "127.0.0.1:{ports["from"]}"')
    (source / "graph.yaml").write_text('admin: {listening_addr: "127.0.0.1:0"}\n' + text)
    with FlowProcess(to / "graph.yaml") as second, FlowProcess(source / "graph.yaml") as first:
        for number in range(REQUESTS):
            send(f"127.0.0.1:{ports['from']}", number)
            if number in KILLED_AT:
                killed = second if victim == "receiver" else first
                killed.kill()
                killed.start()
        until(lambda: owed(first.addresses["admin"]) == 0)
        second.terminate()
    kept = bodies(to)
    assert set(kept) == {f"order {number}" for number in range(REQUESTS * PER_REQUEST)}
    assert max(kept.values()) == 1
