"""Parts run one after the other in this process, or by the Python workers of Spark.

Promise: results come as parts are done, in order. The function and its argument are pickled for Spark; a part that
fails is run again there as often as Spark tries tasks, so what it does must bear repeating. The first error ends the
job; what was done stays, and the job can be started again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TypeVar

from pyspark.sql import SparkSession

from holdfast.spark.jobs.parts import Part
from holdfast.spark.starting import session

PARTS_PER_TASK = 1
_T = TypeVar("_T")


def run_parts(work: Callable[[Part], _T], parts: Sequence[Part], *, master: str | None) -> Iterator[_T]:
    """What `work` gives for each part. Without a master no Spark is started: for a few files it is the quicker way.

    A session that is there is used as it is, and left as it was.
    """
    if master is None:
        yield from map(work, parts)
        return
    own = SparkSession.getActiveSession() is None
    spark = session("holdfast-job", master=master, conf={"spark.ui.enabled": "false"})
    try:
        yield from on_spark(spark, work, parts)
    finally:
        if own:
            spark.stop()


def on_spark(spark: SparkSession, work: Callable[[Part], _T], parts: Sequence[Part]) -> Iterator[_T]:
    """The same in a session that is there: a task for each part."""
    if not parts:
        return
    tasks = spark.sparkContext.parallelize(list(parts), -(-len(parts) // PARTS_PER_TASK))
    yield from tasks.map(work).toLocalIterator(prefetchPartitions=True)
