"""A pipeline on a real YARN: containers lack our package, are killed, and may get their Python as an archive."""

from __future__ import annotations

import shutil
import tarfile
from pathlib import Path

import pytest

from tests.faults.needs import skip
from tests.spark.cluster import python_without_us
from tests.spark.stores import made
from tests.spark.test_pipeline_cluster import check, pipeline, run
from tests.spark.yarn import Yarn, lacks

pytestmark = [pytest.mark.long, pytest.mark.timeout(900)]


@pytest.fixture(autouse=True)
def needed() -> None:
    """What a machine must have for it; written down if it is not there."""
    if what := lacks():
        skip("spark", *what)


@pytest.mark.guarantee("G8")
def test_an_executor_on_yarn_is_killed_and_the_output_has_every_event_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made(tmp_path / "d", segments=4, events=10)
    with Yarn(tmp_path) as yarn:
        monkeypatch.setenv("HADOOP_CONF_DIR", str(yarn.conf))
        pipeline(tmp_path, batch=10, conf=yarn.settings())
        assert run(yarn, tmp_path, kills=1) == 0, (tmp_path / "errors").read_text()
    check(tmp_path, 40)


def test_python_comes_to_yarn_as_an_archive(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made(tmp_path / "d", segments=2, events=10)
    python = tmp_path / "env" / "bin" / "python"
    python.parent.mkdir(parents=True)
    shutil.move(python_without_us(tmp_path), python)
    with tarfile.open(tmp_path / "env.tar.gz", "w:gz") as archive:
        archive.add(python, "bin/python")
    with Yarn(tmp_path) as yarn:
        monkeypatch.setenv("HADOOP_CONF_DIR", str(yarn.conf))
        sent = {"spark.archives": f"{tmp_path}/env.tar.gz#env", "spark.pyspark.python": "./env/bin/python"}
        pipeline(tmp_path, batch=10, conf=yarn.settings() | sent)
        assert run(yarn, tmp_path, kills=0) == 0, (tmp_path / "errors").read_text()
    check(tmp_path, 20)
