"""The log of committed events in a store: what an event is as a row, how it is written, found and read.

A sync channel is an ordinary channel. Its columns:

    id              string            the client's; unique in the channel
    partitions      list<string>      sorted, each once
    type            string
    payload         string            JSON, as it was sent
    client_id       string            who was authenticated, whatever the event says
    project_id      string            null outside of projects
    user_id         string            null if none was named
    schema_version  int64             null if none was named
    meta            string            JSON, as it was sent; null if there was none
    server_ts       timestamp(ms)     when it was taken
    dialect         string            how it came in

The store keeps the scopes of an event as partitions of its frame's entry, so that catching up reads only what it needs
and an event goes only when all its scopes have advanced. All calls may wait for the disk.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import groupby

import pyarrow as pa

from holdfast.errors import StoreFailed
from holdfast.model.frame import Entry, EventIds
from holdfast.store.store import Store
from holdfast.sync.snapshots import Snapshots
from holdfast.wire.sync import PROJECT_PREFIX, Committed, Item, Page, Read, ReadKind, Snapshot, Submit

SCHEMA = pa.schema(
    [
        ("id", pa.string()),
        ("partitions", pa.list_(pa.string())),
        ("type", pa.string()),
        ("payload", pa.string()),
        ("client_id", pa.string()),
        ("project_id", pa.string()),
        ("user_id", pa.string()),
        ("schema_version", pa.int64()),
        ("meta", pa.string()),
        ("server_ts", pa.timestamp("ms", "UTC")),
        ("dialect", pa.string()),
    ]
)
IDENTITY = EventIds("id")
PAGE_BYTES_MAX = 4 << 20
"""JSON of one page, about; a page of large events ends early and says that there is more."""
NEAR_SEQS = 64
"""Events whose places are closer than this are read together."""

New = tuple[Item, Submit]


class EventLog:
    """One sync channel. One thread appends; any may read."""

    def __init__(self, store: Store, channel: str, snapshots: Snapshots) -> None:
        self._store = store
        self._channel = channel
        self._snapshots = snapshots
        self._reader = store.listing.partition_reader()
        self._border = (1, 0)  # a seq, and the committed_id before that of the event there

    def last_committed_id(self) -> int:
        """Of the newest event; of the whole store when the channel is empty, so that no old cursor is in the future."""
        if self._channel in self._store.channels():
            start = self._last_given_seq()
            for batch in self._store.read(self._channel, start=start, columns=["id"], system=["_committed_id"]):
                if batch.num_rows:
                    return int(batch.column("_committed_id")[-1].as_py())
        return self._store.statistics().next_committed_id - 1

    def _last_given_seq(self) -> int:
        """Of the newest event: a log that was restored goes on behind numbers that no event has."""
        seq = self._store.listing.channel(self._channel).next_seq - 1
        for first, last in sorted(self._store.listing.skipped(self._channel), reverse=True):
            if last < seq:
                break
            seq = min(seq, first - 1)
        return max(1, seq)

    # -- writing ----------------------------------------------------------------------------------------------------

    def append(self, new: Sequence[New], now_ms: int) -> list[Committed]:
        """Commit events, all or none; they are durable when this returns, with their committed_ids."""
        batch = _as_batch(new, now_ms)
        entries, start = [], 0
        for scopes, group in groupby(new, key=lambda pair: pair[0].scopes):
            rows = sum(1 for _ in group)
            entries.append(Entry(self._channel, batch.slice(start, rows), scopes))
            start += rows
        receipt = self._store.commit_frame(entries, identity=IDENTITY)
        if any(entry.duplicate_events for entry in receipt.entries):
            reason = f"somebody else writes to channel {self._channel!r}: an id came twice"
            raise StoreFailed(file=self._store.path, reason=reason)
        numbers = [
            entry.first_committed_id + offset
            for entry in receipt.entries
            for offset in range(entry.last_seq - entry.first_seq + 1)
        ]
        return [as_committed(item, submit, number, now_ms) for (item, submit), number in zip(new, numbers, strict=True)]

    # -- finding ----------------------------------------------------------------------------------------------------

    def find(self, ids: Sequence[str]) -> dict[str, Committed]:
        """The events that have these ids, as far as they are retained."""
        if not ids:
            return {}
        wanted = pa.RecordBatch.from_arrays([pa.array(ids, pa.string())], ["id"])
        seqs = self._reader.event_seqs(self._channel, wanted, "id")
        found = sorted({seq for seq in seqs if seq is not None})
        events = {event.id: event for event in self._at(found)}
        return {event_id: events[event_id] for event_id in ids if event_id in events}

    def let_go(self, scope: str, *, upto: int) -> None:
        """Nobody needs the events of a scope up to this one; those of other scopes stay."""
        found = self.events(frozenset([scope]), since=upto - 1, upto=upto, limit=1)
        wanted = pa.RecordBatch.from_arrays([pa.array([event.id for event in found], pa.string())], ["id"])
        for seq in self._reader.event_seqs(self._channel, wanted, "id"):
            if seq is not None:
                self._store.advance_partition(self._channel, scope, seq + 1)

    def _at(self, seqs: Sequence[int]) -> Iterator[Committed]:
        for first, last in _spans(seqs):
            for batch in self._store.read(self._channel, start=first, end=last, system=["_committed_id"]):
                yield from as_events(batch.column("_committed_id").to_pylist(), batch)

    # -- reading ----------------------------------------------------------------------------------------------------

    def read(self, read: Read) -> Page:
        """What a session asked for."""
        if read.kind is ReadKind.LAST:
            return Page(last_committed_id=self._reader.last_committed_id(self._channel, read.scopes))
        pruned_to = self._pruned_to(read) if read.kind is ReadKind.PAGE else 0
        snapshots = self._snapshots_for(read) if read.wants_snapshots or pruned_to else []
        since = read.since
        if len(snapshots) == len(read.scopes):
            since = max(since, min(found.committed_id for found in snapshots))
        events: list[Committed] = []
        size_bytes = 0
        for event in self.events(read.scopes, since=since, upto=read.upto, limit=read.limit + 1):
            size_bytes += event.size_bytes
            if events and (len(events) == read.limit or size_bytes > PAGE_BYTES_MAX):
                return Page(events, has_more=True, pruned_to=pruned_to, snapshots=snapshots)
            events.append(event)
        return Page(events, pruned_to=pruned_to, snapshots=snapshots)

    def _pruned_to(self, read: Read) -> int:
        """Up to where events of the scopes may be gone, if the read asks for any of those."""
        if self._channel not in self._store.channels():
            return 0
        seq = self._first_needed(read.scopes)
        if seq <= 1:
            return 0
        if seq != self._border[0]:
            self._border = (seq, self._last_before(seq, read.upto))
        pruned_to = self._border[1]
        return pruned_to if read.since < pruned_to else 0

    def _first_needed(self, scopes: frozenset[str]) -> int:
        """Events of the scopes from this seq on are there: one has advanced to it, or limits took all before it."""
        seq = self._reader.first_needed(self._channel, scopes)
        channel = self._store.listing.channel(self._channel)
        limits = channel.limits
        if limits.max_msgs or limits.max_bytes or limits.max_age_ns or limits.max_inactivity_ns:
            seq = max(seq, channel.first_seq)
        return seq

    def _last_before(self, seq: int, upto: int) -> int:
        """committed_id before that of the first event from a seq on."""
        for batch in self._store.read(self._channel, start=seq, columns=["id"], system=["_committed_id"]):
            if batch.num_rows:
                return int(batch.column("_committed_id")[0].as_py()) - 1
        return upto

    def _snapshots_for(self, read: Read) -> list[Snapshot]:
        """Of partitions that have one which says more than the client knows."""
        found = (
            self._snapshots.latest((scope, scope), upto=read.upto)
            for scope in sorted(read.scopes)
            if not scope.startswith(PROJECT_PREFIX)
        )
        return [snapshot for snapshot in found if snapshot is not None and snapshot.committed_id > read.since]

    def events(self, scopes: frozenset[str], *, since: int, upto: int, limit: int) -> Iterator[Committed]:
        """Events of any of the scopes in commit order, after `since`, up to `upto`."""
        rows = self._reader.read(self._channel, scopes, first=since + 1, last=upto, rows_max=limit)
        for numbers, batch in rows:
            yield from as_events(numbers.tolist(), batch)


def as_committed(item: Item, submit: Submit, committed_id: int, now_ms: int) -> Committed:
    """An item that got its number."""
    return Committed(
        committed_id,
        item.id,
        item.partitions,
        item.type,
        item.payload,
        submit.client_id,
        now_ms,
        item.project_id,
        item.user_id,
        item.schema_version,
        item.meta,
        item.scopes,
        submit.session,
    )


def as_events(numbers: Sequence[int], batch: pa.RecordBatch) -> Iterator[Committed]:
    """Rows of the log as events."""
    columns = [batch.column(name) for name in SCHEMA.names]
    texts = (pa.types.is_string(field.type) and field.name in {"payload", "meta"} for field in SCHEMA)
    lists = [
        (
            column.cast(pa.binary()) if is_text else column.cast(pa.int64()) if name == "server_ts" else column
        ).to_pylist()
        for column, is_text, name in zip(columns, texts, SCHEMA.names, strict=True)
    ]
    for number, row in zip(numbers, zip(*lists, strict=True), strict=True):
        event_id, partitions, kind, payload, client_id, project_id, user_id, version, meta, server_ts, dialect = row
        if event_id is None or partitions is None or kind is None or payload is None:
            continue  # a row that somebody else wrote
        names = tuple(partitions)
        scopes = (PROJECT_PREFIX + project_id,) if dialect == "2x" else names
        yield Committed(
            number,
            event_id,
            names,
            kind,
            payload,
            client_id,
            server_ts,
            project_id or "",
            user_id or "",
            version or 0,
            meta or b"",
            scopes,
        )


def _as_batch(new: Sequence[New], now_ms: int) -> pa.RecordBatch:
    items = [item for item, _ in new]
    columns: list[Iterable[object]] = [
        [item.id for item in items],
        [item.partitions for item in items],
        [item.type for item in items],
        [item.payload.decode() for item in items],
        [submit.client_id for _, submit in new],
        [item.project_id or None for item in items],
        [item.user_id or None for item in items],
        [item.schema_version or None for item in items],
        [item.meta.decode() if item.meta else None for item in items],
        [now_ms] * len(items),
        [submit.family for _, submit in new],
    ]
    arrays = [pa.array(values, field.type) for values, field in zip(columns, SCHEMA, strict=True)]
    return pa.RecordBatch.from_arrays(arrays, schema=SCHEMA)


def _spans(seqs: Sequence[int]) -> Iterator[tuple[int, int]]:
    """Places that lie close together, as first and last."""
    start = 0
    for place in range(1, len(seqs) + 1):
        if place == len(seqs) or seqs[place] - seqs[place - 1] > NEAR_SEQS:
            yield seqs[start], seqs[place - 1]
            start = place
