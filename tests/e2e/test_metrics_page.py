"""The page about metrics, compared with what a real server exports."""

from __future__ import annotations

import urllib.request
from pathlib import Path

from prometheus_client.parser import text_string_to_metric_families

from holdfast import Sender
from tests.e2e.served import PATIENCE_S, ServedProcess
from tests.tidy.metrics_reference import sections

OF_A_SERVER = ("A server", "Its store", "Consumers", "Sync", "The tier")
ENDS = {"counter": "_total", "info": "_info"}


def test_server_exports_exactly_the_metrics_of_the_page(tmp_path: Path) -> None:
    (tmp_path / "holdfast.yaml").write_text(f"tier: {{url: 'file://{tmp_path}/tier'}}\n", encoding="utf-8")
    (tmp_path / "tier").mkdir()
    with ServedProcess(tmp_path / "data", "-c", str(tmp_path / "holdfast.yaml")) as server:
        with Sender(addr=f"127.0.0.1:{server.port}") as sender:
            sender.send("t", {"n": 1})
            assert sender.drain(PATIENCE_S)
        with urllib.request.urlopen(f"{server.admin}/metrics", timeout=PATIENCE_S) as answer:
            families = list(text_string_to_metric_families(answer.read().decode()))
        found = {family.name + ENDS.get(family.type, ""): family for family in families}
        assert server.terminate() == 0
    told = {row.name: row for title in OF_A_SERVER for row in sections()[title]}
    assert {name: family.type for name, family in found.items()} == {name: row.kind for name, row in told.items()}
    labels = {name: set(sample.labels) - {"le"} for name, family in found.items() for sample in family.samples}
    assert labels == {name: set(told[name].labels) for name in labels}
