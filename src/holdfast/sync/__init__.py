"""Sync: committed events for offline-first clients, over WebSocket at `/v1/sync`.

    connection ─► handler ─► hub ─► Session (wire/sync) ─► Submit ─► writer ─► eventlog ─► store
                              ▲                        └─► Read ───────────────┘
                              └── answers, then broadcasts, after the commit

| file | purpose |
|---|---|
| handler.py | one connection: messages, backpressure, peers that do not read |
| desk.py | what all connections share on the event loop: threads, time |
| access.py | who a client is, which partitions and projects it may use |
| hub.py | where sessions meet: the queue of submissions, answers, broadcasts (pure) |
| recent.py | the newest events in memory |
| writer.py | repeats, validation, commit; on one thread |
| eventlog.py | events as rows of a channel: appending, finding, reading |
| snapshots.py | states of partitions beside the log |
| chores.py | snapshots and pruning, between commits |
| validation/ | whether an event may be committed |
"""

from holdfast.sync.desk import PreparedSync, SyncDesk
from holdfast.sync.handler import attach

__all__ = ["PreparedSync", "SyncDesk", "attach"]
