"""A pipeline on Kubernetes, through a real API server: executors are pods, lack our package, and are killed."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.faults.needs import skip
from tests.spark.kubernetes import Kubernetes, lacks
from tests.spark.stores import made
from tests.spark.test_pipeline_cluster import check, pipeline, run

pytestmark = [pytest.mark.long, pytest.mark.timeout(900)]


@pytest.fixture(autouse=True)
def needed() -> None:
    """What a machine must have for it; written down if it is not there."""
    if what := lacks():
        skip("spark", *what)


@pytest.mark.guarantee("G8")
def test_a_pod_is_killed_and_the_output_has_every_event_once(tmp_path: Path) -> None:
    made(tmp_path / "d", segments=4, events=10)
    with Kubernetes(tmp_path) as kubernetes:
        pipeline(tmp_path, batch=10, conf=kubernetes.settings())
        assert run(kubernetes, tmp_path, kills=1) == 0, (tmp_path / "errors").read_text()
    check(tmp_path, 40)
