"""The page of keys and the examples agree with the code."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from holdfast.errors import BadPipeline
from holdfast.spark.pipeline import Pipeline
from holdfast.spark.pipeline.metrics import _COUNTERS, _GAUGES
from holdfast.spark.pipeline.reading import _VERBS
from tests.tidy.tree import ROOT

PAGE = (ROOT / "docs" / "reference" / "pipelines.md").read_text(encoding="utf-8")
EXAMPLES = sorted((ROOT / "examples" / "pipelines").glob("*.yaml"))
STRANGE = """\
sources: {t: {channel: t, path: d, x: 1}}
steps:
  - {filter: a, x: 1}
  - {watermark: {column: a, delay: 1s, x: 1}}
  - {window: {column: a, length: 1s, x: 1}, aggregate: {values: {n: count(*)}, x: 1}}
  - {deduplicate: {columns: [a], x: 1}}
outputs: {o: {from: t, format: console, x: 1}}
restart: {x: 1}
checkpoint: c
x: 1
"""


def keys() -> set[str]:
    """All that a file may have, as the errors of a file with strange keys list them."""
    with pytest.raises(BadPipeline) as caught:
        Pipeline.from_mapping(_values())
    reasons = [problem.reason for problem in caught.value.problems if problem.key.rpartition(".")[2] == "x"]
    assert len(reasons) == 9
    return {key for reason in reasons for key in reason.rpartition("there are ")[2].split(", ")}


def _values() -> dict[str, object]:
    import yaml  # noqa: PLC0415  # only to save typing

    found: dict[str, object] = yaml.safe_load(STRANGE)
    return found


def test_the_page_has_every_key() -> None:
    found = keys()
    assert {"sources", "watermark", "within_watermark", "reset_after", "py_files"} <= found
    assert {key for key in found | set(_VERBS) if f"`{key}`" not in PAGE and f"`{key}:" not in PAGE} == set()


def test_the_page_has_every_metric() -> None:
    names = [*_GAUGES, *(f"{name}_total" for name in _COUNTERS)]
    assert [name for name in names if f"`…_{name}`" not in PAGE and f"`holdfast_pipeline_{name}`" not in PAGE] == []


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_every_example_fits_together_and_can_be_drawn(path: Path) -> None:
    pipeline = Pipeline.from_file(path)
    assert len(re.findall(r"\[\w+\]", pipeline.graph())) == len(pipeline.spec.outputs)
