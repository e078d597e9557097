"""One Spark session for all tests of this folder: two cores, little memory, nothing outside of loopback."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from holdfast.spark import session

SMALL = {
    "spark.driver.memory": "1g",
    "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
    "spark.ui.enabled": "false",
    "spark.sql.shuffle.partitions": "1",
    "spark.log.level": "ERROR",
    "spark.python.authenticate.socketTimeout": "120s",  # a busy machine takes longer than 15 s to start Python
}


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    warehouse = str(tmp_path_factory.mktemp("warehouse"))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ResourceWarning)
        found = session("tests", master="local[2,4]", conf={**SMALL, "spark.sql.warehouse.dir": warehouse})
    yield found
    found.stop()


@pytest.fixture
def out(tmp_path: Path) -> Path:
    return tmp_path / "out"
