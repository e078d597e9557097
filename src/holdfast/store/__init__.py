"""The embeddable store: commit Arrow batches durably, read them back.

    caller ──► prepare ──► committer ──► log (sync) ──► tail ──► sealer ──► segment file ──► catalog ──► trim the log
               checks,      group         accepted       open     beside
               encodes      commit                       units    commits

| file | purpose |
|---|---|
| store.py | the public face: open, commit, read, flush, close, statistics |
| prepare.py | what a caller hands over: checked, fitted, encoded; frames that travel together |
| channels.py | names, numbers and schemas of channels |
| answer.py | the answer to come of a commit, cheap until somebody waits |
| lane.py | frames of one producer in flight: none is stored behind a refused one |
| committer.py | group commit on one thread |
| direct.py | large frames, straight into the files of their segments |
| wal/ | the write-ahead log: codec and writing |
| units.py | what a frame brought to a channel, and the segments to be |
| tail.py | committed events that are not in a segment yet; memory and log bounds |
| sealer.py | units become segments; the log is trimmed |
| segments/ | the segment file: writing, reading, checking |
| catalog.py | the metadata index |
| tables.py | its tables, and how their rows change |
| rows.py | what its rows say, as values |
| catalogcheck.py | is it as a whole what was written; what SQLite's errors mean |
| dedup.py | repeats of frames |
| originals.py | where the events of a frame are, long after its answer |
| event_ids.py | repeats of single events |
| reading.py | reading across segments and the tail |
| partitioned.py | reading the events of some partitions, without those of others |
| listing.py | channels, segments and slots for those who look from outside |
| ground.py | what the parts of one open store share |
| grouping.py | one thread that handles what has queued up as a group |
| limits.py | which limits hold for which channel |
| compaction.py | small segments become large ones; no event, number or mark changes |
| subscribers/ | who reads what, how far; the acknowledgement log |
| slicing.py | a batch as several, each within what an entry of a frame may be |
| source.py | where the bytes of a segment are to be had besides its file |
| copies.py | segments that are only there, for readers: a bounded folder of copies |
| tiering.py | what a store shows to an object store behind it |
| retention/ | what goes, when, and how every loss is told |
| recovery.py | opening after any kind of end |
| statistics.py | what a store has done and holds, as one value |
| scrub.py | published segments are read again, slowly, to find decay |
| repair/ | a damaged store becomes a sound one, with all that is still readable |
| inspect/ | what is in a file, for people |
| verify.py | is every byte what was written; never changes anything |
| logreplay.py | do the numbers in the log fit each other and the catalog |

On disk:

    <store>/lock  catalog.db  wal/wal-<number>.log  ack/ack-<number>.log  channels/<name>/seg-<segment_seq>.arrow
            channels/<name>/seg-<segment_seq>.growing
            cache/seg-<segment_seq>-<crc32c>.arrow
"""

from holdfast.store.statistics import StoreStatistics
from holdfast.store.store import Store

__all__ = ["Store", "StoreStatistics"]
