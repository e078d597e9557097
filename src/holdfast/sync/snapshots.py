"""States of partitions, kept beside the log: a first sync, and the server itself after a start, need not read it all.

Snapshots are rows of a channel of their own:

    scope, partition   string       whose state it is
    committed_id       int64        the last event it holds
    state              string       JSON
    model_version      int64
    taken_at           timestamp(ms)

Promises: only committed events are in a snapshot. Older snapshots of a partition may go once there is a newer one.
Everything here may wait for the disk; `take` is for one thread, the rest for any.
"""

from __future__ import annotations

import threading
from dataclasses import dataclass

import pyarrow as pa

from holdfast.errors import UnknownChannel
from holdfast.store.store import Store
from holdfast.sync.validation import Key
from holdfast.wire.sync import PROJECT_PREFIX, Snapshot

SCHEMA = pa.schema(
    [
        ("scope", pa.string()),
        ("partition", pa.string()),
        ("committed_id", pa.int64()),
        ("state", pa.string()),
        ("model_version", pa.int64()),
        ("taken_at", pa.timestamp("ms", "UTC")),
    ]
)

PARTITION_CHARS_MAX = 256
"""What a store allows."""


@dataclass(frozen=True, slots=True)
class _Place:
    committed_id: int
    seq: int
    taken_at_ms: int


class Snapshots:
    """The newest snapshot of each partition."""

    def __init__(self, store: Store, channel: str) -> None:
        self._store = store
        self._channel = channel
        self._lock = threading.Lock()
        self._places: dict[Key, _Place] = {}
        self._load()

    def _load(self) -> None:
        if self._channel not in self._store.channels():
            return
        names = [name for name in SCHEMA.names if name != "state"]
        for batch in self._store.read(self._channel, columns=names, system=["_seq"]):
            columns = [batch.column(name).to_pylist() for name in (*names[:3], "_seq")]
            times_ms = batch.column("taken_at").cast(pa.int64()).to_pylist()
            for scope, partition, committed_id, seq, taken_at_ms in zip(*columns, times_ms, strict=True):
                self._places[scope, partition] = _Place(committed_id, seq, taken_at_ms)

    # -- reading ----------------------------------------------------------------------------------------------------

    def latest(self, key: Key, *, upto: int) -> Snapshot | None:
        """The newest snapshot of a partition that holds no event after `upto`."""
        with self._lock:
            place = self._places.get(key)
        if place is None or place.committed_id > upto:
            return None
        try:
            batches = list(self._store.read(self._channel, start=place.seq, end=place.seq))
        except UnknownChannel:
            return None
        for batch in batches:
            if batch.num_rows:
                state, version = batch.column("state")[0].as_py(), batch.column("model_version")[0].as_py()
                return Snapshot(key[1], place.committed_id, state.encode(), version)
        return None

    # -- writing ----------------------------------------------------------------------------------------------------

    def take(self, key: Key, snapshot: Snapshot, now_ms: int) -> None:
        """Keep a snapshot, and let go of the one before."""
        state = snapshot.state.decode()
        values = (*key, snapshot.committed_id, state, snapshot.model_version, now_ms)
        arrays = [pa.array([value], field.type) for value, field in zip(values, SCHEMA, strict=True)]
        batch = pa.RecordBatch.from_arrays(arrays, schema=SCHEMA)
        name = "/".join(key)[:PARTITION_CHARS_MAX]
        seq = self._store.commit(self._channel, batch, partitions=[name]).first_seq
        with self._lock:
            self._places[key] = _Place(snapshot.committed_id, seq, now_ms)
        self._store.advance_partition(self._channel, name, seq)

    def older_than(self, time_ms: int) -> list[tuple[str, int]]:
        """Scopes whose snapshot is that old, and the last event it holds.

        A project is several partitions, so a snapshot does not stand for it.
        """
        with self._lock:
            return [
                (scope, place.committed_id)
                for (scope, _), place in self._places.items()
                if place.taken_at_ms <= time_ms and not scope.startswith(PROJECT_PREFIX)
            ]
