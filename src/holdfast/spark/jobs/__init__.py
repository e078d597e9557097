"""Jobs over channels: export, replay, statistics; and compaction, which the store itself does.

    range of a channel ──► parts by seq ──► an engine runs each part ──► a file, or frames, each written once
                           the same parts   this process, or the
                           whatever the cut  Python workers of Spark

A part is a range of seqs, so it is the same part after a restart, after a compaction, and in whichever process it runs.
That is what makes jobs resumable. Bytes go from segments to their target in Python workers and never through the JVM.

| file | purpose |
|---|---|
| parts.py | a range of a channel, cut into parts |
| engine.py | parts run in this process or by Spark |
| exporting.py | events to Parquet files, and to a Delta table made of them |
| replaying.py | events to another channel or server, each once |
| apart.py | whether two addresses are those of one server |
| figures.py | what a channel consists of, and what compaction would win |
| compacting.py | compaction asked of a directory or of a server, step by step |
"""

from holdfast.spark.jobs.compacting import compact_directory, compact_server
from holdfast.spark.jobs.exporting import Export, export
from holdfast.spark.jobs.figures import ChannelFigures, figures
from holdfast.spark.jobs.replaying import Replay, replay

__all__ = [
    "ChannelFigures",
    "Export",
    "Replay",
    "compact_directory",
    "compact_server",
    "export",
    "figures",
    "replay",
]
