"""Spark Declarative Pipelines on a Holdfast store, twice in a row: the second run reads only what is new.

    pip install "holdfast[spark]" "pyspark[pipelines]"
    python examples/declarative/run.py [FOLDER]

It makes a store with some trades, copies the project beside this file to FOLDER, and calls `spark-pipelines run`, as
you would. Spark finds the format `holdfast` by itself.
"""

import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import pyarrow as pa
import pyarrow.dataset as ds

from holdfast import Store

PROJECT = Path(__file__).parent
SETTINGS = {
    "spark.sql.catalogImplementation": "hive",
    "spark.driver.memory": "1g",
    "spark.ui.enabled": "false",
    "spark.log.level": "ERROR",
}


def trade(folder: Path, first: int, count: int) -> None:
    """Store some trades; they are in a segment when the store is closed."""
    ids = range(first, first + count)
    with Store.open(folder / "store") as store:
        store.commit("trades", pa.record_batch({"id": list(ids), "symbol": [("BTC", "ETH")[n % 2] for n in ids]}))


def set_up(folder: Path) -> None:
    """The project with its paths filled in."""
    shutil.copytree(PROJECT / "transformations", folder / "transformations", dirs_exist_ok=True)
    text = (PROJECT / "spark-pipeline.yml").read_text(encoding="utf-8")
    (folder / "spark-pipeline.yml").write_text(text.replace("FOLDER", str(folder)), encoding="utf-8")


def run(folder: Path) -> int:
    """One triggered run; returns how many trades the table holds."""
    command = [str(Path(sys.executable).with_name("spark-pipelines")), "run", "--spec", "spark-pipeline.yml"]
    for key, value in SETTINGS.items():
        command += ["--conf", f"{key}={value}"]
    environ = {**os.environ, "PYSPARK_PYTHON": sys.executable, "SPARK_LOCAL_IP": "127.0.0.1"}
    subprocess.run(command, cwd=folder, env=environ, check=True)  # noqa: S603  # the command above
    return int(ds.dataset(folder / "spark-warehouse" / "trades", format="parquet").count_rows())


def main(folder: Path) -> None:
    """Twice, with new trades between."""
    set_up(folder)
    trade(folder, first=1, count=1000)
    print(f"first run: {run(folder)} trades")  # noqa: T201
    trade(folder, first=1001, count=500)
    print(f"second run: {run(folder)} trades")  # noqa: T201


if __name__ == "__main__":
    chosen = sys.argv[1] if len(sys.argv) > 1 else tempfile.mkdtemp(prefix="holdfast-declarative-")
    main(Path(chosen).absolute())
