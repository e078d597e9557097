"""The reference pages say what the code says, and the examples can be run."""

from __future__ import annotations

from pathlib import Path

import pytest

from holdfast.dataflow.graph import problems
from holdfast.dataflow.pages import dataflow_markdown, schema_markdown
from holdfast.wire.otlp.signals import Signal
from tests.tidy.tree import ROOT
from tests.unit.dataflow.flows import RunningFlow
from tests.unit.dataflow.otlp_samples import sample

EXAMPLES = sorted((ROOT / "examples" / "dataflow").glob("*.yaml"))


@pytest.mark.parametrize(("name", "page"), [("dataflow", dataflow_markdown), ("otlp-schema", schema_markdown)])
def test_reference_page_is_what_the_code_prints(name: str, page: object) -> None:
    text = (ROOT / "docs" / "reference" / f"{name}.md").read_text(encoding="utf-8")
    assert text == page(), f"refresh it: python -m holdfast.dataflow.pages {name} > docs/reference/{name}.md"  # type: ignore[operator]


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda path: path.name)
def test_every_example_graph_takes_requests(tmp_path: Path, example: Path) -> None:
    assert problems(example) == []
    text = example.read_text(encoding="utf-8").replace("../../data", "./data")
    for port in (4317, 4318, 9001):
        text = text.replace(f"127.0.0.1:{port}", "127.0.0.1:0")
    with RunningFlow(tmp_path, text) as running:
        for signal in Signal:
            running.grpc(signal, sample(signal).SerializeToString())
        running.until(lambda: bool(list(tmp_path.rglob("otlp.logs/date=*/part-*.parquet"))))
