"""Starting a Spark session that reads channels without further settings, and our package on executors that lack it.

What `session` sets, each because Spark's own default is slower or fails here:

| setting | why |
|---|---|
| `JAVA_HOME`, if there is no Java | the one of the extra `jre` |
| `PYSPARK_PYTHON` = `spark.pyspark.python`, or this Python | otherwise workers run `python3` from PATH |
| `spark.sql.streaming.checkpointFileManagerClass` = the one over FileSystem | the default starts a process per file |
| `spark.python.unix.domain.socket.enabled` | 40 ms less per Python stage than TCP; on YARN its paths are too long |
| `spark.master` = `local[*,4]` | without the 4 a failed task is not tried again |
| `spark.driver.host` = 127.0.0.1 with a local master | nothing listens outside of this machine |
| `spark.sql.shuffle.partitions` = the cores, with a local master | 200 are for clusters |
| `spark.ui.showConsoleProgress` = false | it writes over what a program prints |

Settings that the caller gives win.
"""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
import zipfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from py4j.protocol import Py4JError  # type: ignore[import-untyped]  # it has none
from pyspark import SparkFiles
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

import holdfast
from holdfast.errors import BadRequest, SparkNotStarted
from holdfast.spark.java import provide_java
from holdfast.spark.reasons import reason_of
from holdfast.spark.source import HoldfastSource

CHECKPOINTS = "org.apache.spark.sql.execution.streaming.checkpointing.FileSystemBasedCheckpointFileManager"
LOCAL_MASTER = "local[*,4]"
YARN = "yarn"
PACKAGES = ("holdfast", "pyspark_holdfast")
PLANNER_FOLDER = "streaming_job"


def session(
    app_name: str = "holdfast", *, master: str | None = None, conf: Mapping[str, str] | None = None
) -> SparkSession:
    """The session of this process, made if there is none, with `holdfast` registered.

    What reaches the command line of the JVM, such as `spark.driver.memory`, counts for the first session only.
    """
    check_planner(conf or {})
    provide_java(os.environ)
    os.environ.setdefault("PYSPARK_DRIVER_PYTHON", sys.executable)
    chosen = {"spark.master": master or LOCAL_MASTER, **(conf or {})}
    settings = {**_defaults(chosen["spark.master"]), **chosen}
    builder = SparkSession.Builder().appName(app_name)
    for key, value in settings.items():
        builder = builder.config(key, value)
    try:
        with _python_of_workers(_python(conf or {})):
            spark = builder.getOrCreate()
    except (PySparkException, Py4JError) as error:
        raise SparkNotStarted(master=chosen["spark.master"], reason=_reason(error, chosen["spark.master"])) from error
    register(spark)
    return spark


@contextmanager
def _python_of_workers(python: str) -> Iterator[None]:
    """Spark looks at the variable as a session starts; one that is asked for by `conf` is for that session only."""
    before = os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    os.environ["PYSPARK_PYTHON"] = python
    try:
        yield
    finally:
        os.environ["PYSPARK_PYTHON"] = before


def _python(conf: Mapping[str, str]) -> str:
    return conf.get("spark.pyspark.python") or os.environ.get("PYSPARK_PYTHON") or sys.executable


def check_planner(conf: Mapping[str, str]) -> None:
    """Refuse a Python for executors that is not here: Spark runs it on the driver too, to plan what a source reads."""
    python = _python(conf)
    if shutil.which(python) is None:
        raise BadRequest(
            f"PYSPARK_PYTHON {python!r}: there is none here, and Spark runs it on the driver too; give a path that is "
            "right on all machines, or unpack the archive of spark.archives here as well"
        )


def _reason(error: Exception, master: str) -> str:
    if master == YARN and not (os.environ.get("HADOOP_CONF_DIR") or os.environ.get("YARN_CONF_DIR")):
        return "it needs HADOOP_CONF_DIR or YARN_CONF_DIR, the folder of yarn-site.xml"
    return reason_of(error)


def _defaults(master: str) -> dict[str, str]:
    settings = {
        "spark.sql.streaming.checkpointFileManagerClass": CHECKPOINTS,
        "spark.python.unix.domain.socket.enabled": str(master != YARN).lower(),
        "spark.ui.showConsoleProgress": "false",
    }
    if is_local(master):
        os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
        settings |= {
            "spark.driver.host": "127.0.0.1",
            "spark.driver.bindAddress": "127.0.0.1",
            "spark.sql.shuffle.partitions": str(os.cpu_count() or 1),
        }
    return settings


def is_local(master: str) -> bool:
    """Whether tasks run in the driver's own process and Python."""
    return master == "local" or master.startswith("local[")


def register(spark: SparkSession) -> None:
    """Make `format("holdfast")` known to a session; on a cluster, send our package to its executors.

    Executors need pyarrow, numpy, msgspec and crc32c of their own; what we send is our Python code.
    """
    context = spark.sparkContext
    if not is_local(context.master or ""):
        archive = package_zip(Path(tempfile.mkdtemp(prefix="holdfast-package-")))
        context.addPyFile(str(archive))
        _give_to_planner(archive)
    spark.dataSource.register(HoldfastSource)


def _give_to_planner(archive: Path) -> None:
    """Put our package where the Python that plans streams looks for it: on the driver, but not the driver's own Python.

    It is `PYSPARK_PYTHON`, the one of the executors, and lacks our package as they do. Spark 4.3 has it look for what
    was sent in a folder that only Spark Connect fills.
    """
    folder = Path(SparkFiles.getRootDirectory()) / PLANNER_FOLDER
    folder.mkdir(exist_ok=True)
    shutil.copyfile(archive, folder / archive.name)


def package_zip(folder: Path) -> Path:
    """Our packages as a file that Spark can send."""
    target = folder / "holdfast.zip"
    root = Path(holdfast.__file__).parent.parent
    with zipfile.ZipFile(target, "w", zipfile.ZIP_DEFLATED) as archive:
        for package in PACKAGES:
            for path in sorted((root / package).rglob("*.py")):
                archive.write(path, path.relative_to(root))
    return target
