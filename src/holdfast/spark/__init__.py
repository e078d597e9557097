"""Spark: channels as tables and streams, through PySpark's Python data source API (G8).

    spark = holdfast.spark.session()
    spark.readStream.format("holdfast").option("addr", "http://127.0.0.1:9001").option("channel", "trades").load()

    driver      options ──► access: which channels, how far ──► admission: how much ──► planning: tasks
    executors   a task ──► access: its segments, proven ──► columns: cast ──► slices of Arrow batches

The source follows seqs, never file names, and reads published segments only. Its subscriber on the server confirms what
Spark has surely committed, so that nothing is evicted before.

| file | purpose |
|---|---|
| source.py | the class that Spark finds by name |
| making.py | the readers and writers that it makes |
| options.py | the options, read once and checked as a whole |
| stream.py | a stream: offsets, micro-batches, confirmations |
| batch.py | a batch: one range |
| resolving.py | positions and schemas of the channels that exist now |
| admission.py | how much of what is there a micro-batch takes |
| planning.py | from a range of offsets to tasks, and what is missing in it |
| reading.py | what a task does |
| losses.py | what a query has found to be lost, and how its reports say so |
| worker.py | the Python process that a task runs in: cheap to use again, and not silent |
| pruning.py | filters of a batch, to leave segments out |
| descriptors.py | segments described, instead of their events |
| landing.py | segments into tables without passing the JVM |
| landed.py | the events of described segments, in the task that writes them |
| tables/ | Parquet, Delta and Iceberg tables |
| columns.py | channel columns as Spark columns |
| naming.py | which stored column a name means |
| otlp.py | OTLP requests that were kept as they came, opened on executors |
| otlpsink.py | rows of OTLP columns to a server over HTTP, from `foreachBatch` |
| access.py | what the source needs of a store, wherever it is |
| embedded.py | access to the store in a directory |
| remote.py | access to the store of a running server; the subscriber there |
| many.py | several servers in one query |
| waiting.py | a store that may be away, waited for |
| tiered.py | access to the object store of a server, alone or behind another access |
| sink.py | rows into a channel, once |
| sinkoptions.py | the options of what is written |
| frames.py | the rows of a task as frames |
| progress.py | what a progress report says of a query |
| reporting.py | queries told to the consoles of their servers |
| reasons.py | what an exception of Spark says, and whether to try again |
| java.py | a Java for Spark, from the wheel where there is none |
| jobs/ | export, replay, figures of channels; compaction asked of a server |
| pipeline/ | pipelines from YAML or a program: read, checked, run, watched |
| starting.py | a session with the settings that work best, and our package on executors |
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from holdfast.spark.landing import land
    from holdfast.spark.reporting import Reporting, report
    from holdfast.spark.sink import write_batch
    from holdfast.spark.starting import register, session

__all__ = ["Reporting", "land", "register", "report", "session", "write_batch"]

_HOMES = {
    "Reporting": "holdfast.spark.reporting",
    "land": "holdfast.spark.landing",
    "register": "holdfast.spark.starting",
    "report": "holdfast.spark.reporting",
    "session": "holdfast.spark.starting",
    "write_batch": "holdfast.spark.sink",
}

if not TYPE_CHECKING:

    def __getattr__(name: str) -> Any:
        """Import a public name when it is first used: Spark imports this package in sessions that never use it."""
        if name not in _HOMES:
            raise AttributeError(f"module 'holdfast.spark' has no attribute {name!r}")
        return getattr(import_module(_HOMES[name]), name)
