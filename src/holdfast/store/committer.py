"""Group commit: many callers, one write and one sync.

One thread owns the write-ahead log. It takes what has queued up, gives out the numbers, writes everything with one
call, syncs once, makes the events readable, and only then answers. While it waits for the disk, callers encode and
queue more.

The order of a group, and what a crash leaves at each step (docs/design/durability.md, "Commit"):

    1. make room (rotate the log)      nothing of the group is on disk
    2. give out seq and committed_id   in memory only; taken back if the disk is full
    3. write                           any part of the group may be on disk; nobody was answered. Large frames go into
                                       the files of their segments, the log refers to them (`direct.py`)
    4. sync                            the group survives a power cut
    5. append to the tail, remember    readers see it
    6. answer                          accepted

With `wal.flush: interval` or `bytes`, step 4 comes later and the receipt says `WRITTEN`; a group that creates a
channel is synced at once, so that a name never gets a second number. The sealer has everything synced before it seals
(`settle`), so that a segment never knows more than the log: a power cut takes a frame from all its channels or none.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import msgspec
import pyarrow as pa

from holdfast.clock import NS_PER_S
from holdfast.disk.appendlog import NewRecord
from holdfast.disk.checksum import crc32c
from holdfast.errors import Backpressure, ChannelFull, Closed, DiskFull, HoldfastError, StoreFailed, again
from holdfast.model.frame import Durability, EventIds, FrameReceipt, Identity, PlainFrame, Receipt
from holdfast.model.positions import CommittedId, Seq
from holdfast.store.answer import CommitFuture
from holdfast.store.channels import Channel
from holdfast.store.dedup import Dedup, as_duplicate
from holdfast.store.direct import DirectWriter
from holdfast.store.event_ids import keep_rows
from holdfast.store.ground import Ground
from holdfast.store.grouping import GroupWorker
from holdfast.store.lane import Lane
from holdfast.store.units import Chunk, make_run
from holdfast.store.wal.codec import (
    NO_OPTIONS,
    EntryOptions,
    EntryPlace,
    Payload,
    Reference,
    encode_batch,
    encode_frame,
    encode_plain,
)
from holdfast.store.wal.log import SchemaVersion, Wal

UNSYNCED_EVENTS_MAX = 1_000_000
"""With a weak flush policy, never more events than this wait for a sync; recovery skips as many numbers."""
IDLE_SYNC_NS = NS_PER_S
"""With `wal.flush: bytes`, a quiet log is synced after this long."""


NONE_KNOWN: Sequence[int] = ()
_Begun = tuple[int, int, dict[Channel, int]]  # a frame: when, its committed_id if it has parts, its first seqs


class PreparedEntry(msgspec.Struct, gc=False):
    """One channel's part of a frame, checked and encoded by the caller's thread."""

    channel: Channel
    version: SchemaVersion
    payload: Payload
    options: EntryOptions
    batch: pa.RecordBatch
    ids: tuple[bytes, ...] = ()
    known_ids: dict[bytes, int] = msgspec.field(default_factory=dict)
    looked_up_at_seq: int = 0


class Pending(msgspec.Struct):
    """A frame for its group; without entries, a request to sync. The collector sees it: errors may lead back to it."""

    entries: list[PreparedEntry]
    identity: Identity
    size_bytes: int
    payload_crc: int
    future: CommitFuture
    lane: Lane | None = None


class TrainReceipt(msgspec.Struct, frozen=True):
    """What became of a lane's frames on a train: receipts of the first ones, and why the others are not stored, if they
    are not."""

    receipts: list[FrameReceipt]
    refusal: HoldfastError | None = None


class Train(msgspec.Struct):
    """Frames of one channel and one schema, in order, that were checked together (`prepare`). `lane` may be several."""

    channel: Channel
    version: SchemaVersion
    frames: Sequence[PlainFrame]
    payloads: list[Payload]
    crcs: list[int]
    size_bytes: int
    lane: Lane
    answers: Sequence[TrainReceipt] = ()
    """One for each lane. Set once, by the committer, before it tells the lanes and those who asked (`on_answered`)."""

    def done(self) -> bool:
        """Whether the answers are there."""
        return bool(self.answers)

    def refuse(self, error: HoldfastError) -> None:
        """Nothing of it is stored."""
        self.answers = [TrainReceipt([], error) for _ in self.lane.shares(len(self.frames))]


class _Draft(msgspec.Struct, gc=False):
    """The record of a frame with a large entry, before it is known which of its bytes the log holds."""

    places: list[EntryPlace]
    first_chunk: int
    """Where the chunk of its first entry is in the group; the others follow."""
    identity: Identity
    first_committed_id: int
    payload_crc: int

    def encode(self, references: dict[int, Reference], ingested_at_ns: int) -> NewRecord:
        """The record; the bytes of entries with a reference are elsewhere."""
        places, crc = self.places, self.payload_crc
        found = [references.get(self.first_chunk + n) for n in range(len(places))]
        if any(found):
            crc = 0
            for n, (place, reference) in enumerate(zip(self.places, found, strict=True)):
                if reference is not None:
                    places[n] = msgspec.structs.replace(place, payload=reference.payload(place.payload.rows))
                crc = crc32c(places[n].payload.buffer, crc)
        return encode_frame(
            places,
            identity=self.identity,
            first_committed_id=self.first_committed_id,
            ingested_at_ns=ingested_at_ns,
            payload_crc=crc,
        )


@dataclass(slots=True)
class _Group:
    """What one turn of the committer writes and answers."""

    chunks: list[tuple[Channel, Chunk]] = field(default_factory=list)
    answers: list[tuple[Pending, FrameReceipt]] = field(default_factory=list)
    trains: list[tuple[Train, list[TrainReceipt]]] = field(default_factory=list)
    refusals: list[tuple[Pending, HoldfastError]] = field(default_factory=list)
    fresh: dict[Identity, FrameReceipt] = field(default_factory=dict)
    next_seqs: dict[Channel, int] = field(default_factory=dict)
    added_events: Counter[Channel] = field(default_factory=Counter)
    added_bytes: Counter[Channel] = field(default_factory=Counter)
    """What the group adds to channels that refuse new events at a limit."""
    new_ids: list[tuple[Channel, bytes]] = field(default_factory=list)
    creates_channel: bool = False
    has_large: bool = False


class Committer(GroupWorker[Pending | Train]):
    """Owns the log and the next numbers."""

    def __init__(self, ground: Ground, wal: Wal, *, dedup: Dedup, next_committed_id: int, direct: DirectWriter) -> None:
        super().__init__("store")
        self._config = ground.config
        self._clock = ground.clock
        self._stamp_ns = ground.time.stamp_ns
        self._tail = ground.tail
        self._catalog = ground.catalog
        self._channels = ground.channels
        self._wal = wal
        self._dedup = dedup
        self._direct = direct
        self._durability = Durability.SYNCED if self._config.wal_flush == "commit" else Durability.WRITTEN
        self._unsynced_events = 0
        self._sync_due_ns: int | None = None
        self._ended = threading.Event()
        self.on_answered: list[Callable[[], None]] = []
        self.next_committed_id = next_committed_id
        self.committed_id_ceiling: int | None = None
        """Numbers from here on are not given out; a tier reserves them first."""
        self.groups = self.frames = self.events = self.syncs = 0

    def submit(self, item: Pending | Train) -> None:
        """Queue a frame, or a train of them, whose bytes are reserved in the tail."""
        try:
            super().submit(item)
        except Closed:
            self._tail.release(item.size_bytes)
            raise

    def settle(self, *, inline: bool) -> None:
        """When this returns, everything in the tail survives a power cut. For the sealer, under a weak flush policy."""
        end = self._wal.log.end_position
        if self._wal.log.synced_position >= end:
            return
        barrier = Pending([], None, 0, 0, CommitFuture())
        try:
            self.submit(barrier)
        except Closed:
            if inline:
                self._sync_late()
            else:
                self._ended.wait()  # the last turn syncs
            return
        if inline:
            self.step(wait=False)
        barrier.future.result()
        if self._tail.failure is not None:
            raise again(self._tail.failure)

    def run(self) -> None:
        """Commit groups until closed."""
        try:
            super().run()
        finally:
            self._ended.set()

    def item_bytes(self, item: Pending | Train) -> int:
        """What it adds to the log."""
        return item.size_bytes

    def seconds_until_due(self) -> float | None:
        """When the sync of a weak flush policy is due."""
        if self._sync_due_ns is None:
            return None
        return max(0.0, (self._sync_due_ns - self._clock.monotonic_ns()) / NS_PER_S)

    def tick(self, *, closing: bool) -> None:
        """Sync what was answered before its sync, when that is due."""
        if self._sync_due_ns is not None and (closing or self._clock.monotonic_ns() >= self._sync_due_ns):
            self._sync_late()

    def process(self, pendings: list[Pending | Train]) -> None:
        """Commit one group and answer it."""
        for pending in [item for item in pendings if isinstance(item, Pending) and not item.entries]:
            pendings.remove(pending)
            self._sync_late()
            pending.future.set_result(FrameReceipt((), duplicate=False, durability=Durability.SYNCED))
        if not pendings:
            return
        group = _Group()
        first_committed_id = self.next_committed_id
        try:
            self._write(pendings, group)
        except DiskFull as error:
            self._take_back(group, first_committed_id)
            self._refuse(pendings, again(error))
        except Exception as error:
            failure = again(error) if isinstance(error, StoreFailed) else _as_failure(error, self._wal)
            self._wal.log.stop(failure)  # no later record may say that this group is on disk
            self._tail.fail(failure)
            self._refuse(pendings, failure)
        else:
            self._apply(pendings, group)
        for lane in [item.lane for item in pendings if item.lane is not None]:
            lane.tell()
        for told in self.on_answered:
            told()

    def _write(self, pendings: list[Pending | Train], group: _Group) -> None:
        self._wal.make_room(sum([item.size_bytes for item in pendings]), _versions(pendings), _count_frames(pendings))
        ingested_at_ns = self._stamp_ns()
        records: list[NewRecord | _Draft] = []
        for pending in pendings:
            if isinstance(pending, Train):
                records += self._place_train(pending, group, ingested_at_ns)
                continue
            known = self._find(pending.identity, group)
            if known is not None:
                group.answers.append((pending, known))
                continue
            refusal = self._refusal(pending, group)
            if refusal is not None:
                group.refusals.append((pending, refusal))
                continue
            record = self._place(pending, group, ingested_at_ns)
            if record is not None:
                records.append(record)
        if not records:
            return
        references = self._direct.write(group.chunks) if group.has_large else {}
        encoded = [item.encode(references, ingested_at_ns) if isinstance(item, _Draft) else item for item in records]
        self._wal.log.append([*self._wal.notes(chunk.version for _, chunk in group.chunks), *encoded])
        if self._must_sync(group):
            if references:
                self._direct.sync(self._wal.log.sync)
            else:
                self._wal.log.sync()
            self._synced()

    def _refusal(self, pending: Pending, group: _Group) -> HoldfastError | None:
        """Why the frame is not stored; those behind it in its lane are not either."""
        lane = pending.lane
        rows = sum([entry.payload.rows for entry in pending.entries])
        if lane is None:
            return self._beyond_ceiling(rows) or self._full_channel(pending, group)
        if lane.refusal is None:
            lane.refusal = self._beyond_ceiling(rows) or self._full_channel(pending, group)
        return lane.refusal

    def _beyond_ceiling(self, rows: int) -> Backpressure | None:
        """Why a frame gets no numbers: the tier was away for so long that all it had reserved are used."""
        ceiling = self.committed_id_ceiling
        if ceiling is None:
            return None
        end = self.next_committed_id + rows
        if end <= ceiling:
            return None
        return Backpressure(bound="tier.reservation", used_bytes=end, cap_bytes=ceiling, waited_s=0)

    def _full_channel(self, pending: Pending, group: _Group) -> ChannelFull | None:
        """The limit that a frame would pass, of a channel that refuses new events."""
        refusing = [entry for entry in pending.entries if entry.channel.limits.discard == "new"]
        if not refusing:
            return None
        events, size_bytes = Counter(group.added_events), Counter(group.added_bytes)
        for entry in refusing:
            channel, limits = entry.channel, entry.channel.limits
            if (rows := _new_events(entry)) == 0:
                continue
            events[channel] += rows
            size_bytes[channel] += entry.payload.buffer.size
            stored_events, stored_bytes = self._tail.stored(channel)
            if limits.max_msgs and stored_events + events[channel] > limits.max_msgs:
                return ChannelFull(channel=channel.name, limit="max_msgs", allowed=limits.max_msgs)
            if limits.max_bytes and stored_bytes + size_bytes[channel] > limits.max_bytes:
                return ChannelFull(channel=channel.name, limit="max_bytes", allowed=limits.max_bytes)
        return None

    def _find(self, identity: Identity, group: _Group) -> FrameReceipt | None:
        """The receipt of an earlier frame with this identity, in this group or before it."""
        if identity is None or isinstance(identity, EventIds):
            return None
        known = group.fresh.get(identity)
        return as_duplicate(known) if known is not None else self._dedup.find(identity)

    def _place(self, pending: Pending, group: _Group, ingested_at_ns: int) -> NewRecord | _Draft | None:
        """Give the frame its numbers; returns its record, or None when nothing of it is new."""
        first_committed_id, first_chunk = self.next_committed_id, len(group.chunks)
        places: list[EntryPlace] = []
        receipts: list[Receipt] = []
        firsts: dict[Channel, int] = {}
        identity, crc = pending.identity, pending.payload_crc
        for entry in pending.entries:
            known_seqs = self._drop_known_events(entry) if entry.ids else NONE_KNOWN
            if entry.ids:
                crc = -1  # some of its events may have been left out
            if not entry.payload.rows:
                receipts.append(self._nothing_new(entry.channel, known_seqs))
                continue
            shared_id = first_committed_id if len(pending.entries) > 1 else 0
            chunk = self._number(entry, group, identity, (ingested_at_ns, shared_id, firsts))
            first, rows = chunk.run.first_seq, chunk.run.rows
            places.append(EntryPlace(entry.channel.id, entry.version.id, first, entry.payload, entry.options))
            receipts.append(
                Receipt(
                    entry.channel.name,
                    Seq(first),
                    Seq(first + rows - 1),
                    CommittedId(chunk.run.first_committed_id),
                    duplicate=False,
                    durability=self._durability,
                    duplicate_events=len(known_seqs),
                )
            )
        receipt = FrameReceipt(tuple(receipts), not places and _all_known(receipts), self._durability)
        group.answers.append((pending, receipt))
        if not places:
            return None
        if identity is not None and not isinstance(identity, EventIds):
            group.fresh[identity] = receipt
        if crc < 0 or len(places) != len(pending.entries):
            crc = 0
            for place in places:
                crc = crc32c(place.payload.buffer, crc)
        draft = _Draft(places, first_chunk, identity, first_committed_id, crc)
        if pending.size_bytes >= self._direct.large_bytes:
            group.has_large = True
            return draft
        return draft.encode({}, ingested_at_ns)

    def _place_train(self, train: Train, group: _Group, ingested_at_ns: int) -> list[NewRecord | _Draft]:
        """Give each frame its numbers; returns the records of those that are new. A lane ends at its first refusal."""
        records: list[NewRecord | _Draft] = []
        answers: list[TrainReceipt] = []
        channel, version, log_number, durability = train.channel, train.version, self._wal.log.number, self._durability
        channel_id, version_id, name = channel.id, version.id, channel.name
        large_bytes = self._direct.large_bytes
        self._note_first_seq(channel, group, ingested_at_ns)
        may_repeat = self._dedup.any_known(train.frames) or not group.fresh.keys().isdisjoint(
            [frame.identity for frame in train.frames]
        )
        wagons, start = list(zip(train.frames, train.payloads, train.crcs, strict=True)), 0
        for lane, count in train.lane.shares(len(wagons)):
            receipts: list[FrameReceipt] = []
            for frame, payload, crc in wagons[start : start + count]:
                identity, rows = frame.identity, frame.rows
                known = self._find(identity, group) if may_repeat else None
                if known is not None:
                    receipts.append(known)
                    continue
                if lane.refusal is None:
                    lane.refusal = self._beyond_ceiling(rows)
                if lane.refusal is not None:
                    break
                seq, at = channel.next_seq, self.next_committed_id
                channel.next_seq, self.next_committed_id = seq + rows, at + rows
                run = make_run(
                    seq, rows, committed_id=at, ingested_at_ns=ingested_at_ns, identity=identity, partitions=()
                )
                group.chunks.append((channel, Chunk(run, payload, version, log_number)))
                receipt = Receipt(name, Seq(seq), Seq(seq + rows - 1), CommittedId(at), False, durability)
                receipts.append(FrameReceipt((receipt,), False, durability))
                if identity is not None:
                    group.fresh[identity] = receipts[-1]
                place = EntryPlace(channel_id, version_id, seq, payload, NO_OPTIONS)
                if payload.buffer.size >= large_bytes:
                    group.has_large = True
                    records.append(_Draft([place], len(group.chunks) - 1, identity, at, crc))
                    continue
                records.append(
                    encode_plain(place, identity, first_committed_id=at, ingested_at_ns=ingested_at_ns, payload_crc=crc)
                )
            start += count
            answers.append(TrainReceipt(receipts, lane.refusal if len(receipts) < count else None))
        if records and channel.retired:
            self._channels.revive(channel)
        group.trains.append((train, answers))
        return records

    def _note_first_seq(self, channel: Channel, group: _Group, ingested_at_ns: int) -> None:
        """Before a channel's first event of a group: where to go back to, and whether it is its first ever."""
        if channel not in group.next_seqs:
            group.next_seqs[channel] = channel.next_seq
            group.creates_channel |= channel.next_seq == channel.born_seq
        channel.active_at_ns = ingested_at_ns

    def _nothing_new(self, channel: Channel, known_seqs: Sequence[int]) -> Receipt:
        """The receipt of an entry of which nothing is stored: it is empty, or all of it is known."""
        return Receipt(
            channel.name,
            Seq(min(known_seqs, default=0)),
            Seq(max(known_seqs, default=0)),
            CommittedId(0),
            duplicate=bool(known_seqs),
            durability=self._durability,
            duplicate_events=len(known_seqs),
        )

    def _number(self, entry: PreparedEntry, group: _Group, identity: Identity, frame: _Begun) -> Chunk:
        """Give an entry's events their numbers."""
        ingested_at_ns, frame_committed_id, firsts = frame
        channel, rows = entry.channel, entry.payload.rows
        if channel.limits.discard == "new":
            group.added_events[channel] += rows
            group.added_bytes[channel] += entry.payload.buffer.size
        self._note_first_seq(channel, group, ingested_at_ns)
        first_seq, committed_id = channel.next_seq, self.next_committed_id
        channel.next_seq = first_seq + rows
        self.next_committed_id = committed_id + rows
        if channel.retired:
            self._channels.revive(channel)
        run = make_run(
            first_seq,
            rows,
            committed_id=committed_id,
            ingested_at_ns=ingested_at_ns,
            identity=identity,
            partitions=entry.options.partitions,
            frame_offset=first_seq - firsts.setdefault(channel, first_seq),
        )
        chunk = Chunk(run, entry.payload, entry.version, self._wal.log.number, entry.ids, frame_committed_id)
        group.chunks.append((channel, chunk))
        for offset, digest in enumerate(entry.ids):
            channel.unpublished_ids[digest] = first_seq + offset
            group.new_ids.append((channel, digest))
        return chunk

    def _drop_known_events(self, entry: PreparedEntry) -> list[int]:
        """Leave out the events whose ids are stored; returns where those are."""
        unpublished = [entry.channel.unpublished_ids.get(digest) for digest in entry.ids]
        known = entry.known_ids
        # After the ids in memory: what the sealer took out of there is published by now.
        if entry.channel.published_seq != entry.looked_up_at_seq:
            known = self._catalog.event_seqs(entry.channel.id, entry.ids)
        keep: list[bool] = []
        seqs: list[int] = []
        seen: set[bytes] = set()
        for digest, waiting_seq in zip(entry.ids, unpublished, strict=True):
            seq = known.get(digest) or waiting_seq
            if seq is not None:
                seqs.append(seq)
            keep.append(seq is None and digest not in seen)
            seen.add(digest)
        if not all(keep):
            batch = keep_rows(entry.batch, keep)
            entry.payload = encode_batch(batch, has_dictionaries=entry.version.has_dictionaries)
            entry.ids = tuple(digest for digest, kept in zip(entry.ids, keep, strict=True) if kept)
        return seqs

    def _must_sync(self, group: _Group) -> bool:
        self._unsynced_events += sum(chunk.run.rows for _, chunk in group.chunks)
        if self._config.wal_flush == "commit" or group.creates_channel or self._unsynced_events >= UNSYNCED_EVENTS_MAX:
            return True
        log = self._wal.log
        if self._config.wal_flush == "bytes" and log.end_position - log.synced_position >= self._config.wal_flush_bytes:
            return True
        if self._sync_due_ns is None:
            delay_ns = self._config.wal_flush_interval_ns if self._config.wal_flush == "interval" else IDLE_SYNC_NS
            self._sync_due_ns = self._clock.monotonic_ns() + delay_ns
        return False

    def _sync_late(self) -> None:
        try:
            self._wal.log.sync()
        except StoreFailed as failure:
            self._tail.fail(failure)
        self._synced()

    def _synced(self) -> None:
        self.syncs += 1
        self._unsynced_events = 0
        self._sync_due_ns = None

    def _apply(self, pendings: list[Pending | Train], group: _Group) -> None:
        size = sum([item.size_bytes for item in pendings])
        if group.has_large:
            self._direct.settle()
        self._tail.append(group.chunks, queued_bytes=size, wal_bytes=self._wal.log.size_bytes())
        self._dedup.remember_all(group.fresh)
        self.groups += 1
        self.frames += _count_frames(pendings)
        self.events += sum(chunk.run.rows for _, chunk in group.chunks)
        for pending, receipt in group.answers:
            pending.future.set_result(receipt)
        for train, answers in group.trains:
            train.answers = answers
        for pending, refusal in group.refusals:
            pending.future.set_exception(refusal)

    def _take_back(self, group: _Group, first_committed_id: int) -> None:
        for channel, next_seq in group.next_seqs.items():
            channel.next_seq = next_seq
        for channel, digest in group.new_ids:
            channel.unpublished_ids.pop(digest, None)
        self.next_committed_id = first_committed_id
        if group.has_large:
            self._direct.give_up()

    def _refuse(self, pendings: list[Pending | Train], error: HoldfastError) -> None:
        for pending in pendings:
            self._tail.release(pending.size_bytes)
            if pending.lane is not None:
                pending.lane.refuse(error)
            if isinstance(pending, Train):
                pending.refuse(error)
            else:
                pending.future.set_exception(error)


def _versions(pendings: list[Pending | Train]) -> list[SchemaVersion]:
    found: list[SchemaVersion] = []
    for item in pendings:
        if isinstance(item, Train):
            found.append(item.version)
        else:
            found += [entry.version for entry in item.entries]
    return found


def _count_frames(pendings: list[Pending | Train]) -> int:
    return sum([len(item.frames) if isinstance(item, Train) else 1 for item in pendings])


def _all_known(receipts: list[Receipt]) -> bool:
    return all(receipt.duplicate for receipt in receipts)


def _new_events(entry: PreparedEntry) -> int:
    """How many events the entry would add, as far as its ids tell now."""
    if not entry.ids:
        return entry.payload.rows
    known, unpublished = entry.known_ids, entry.channel.unpublished_ids
    return len({digest for digest in entry.ids if digest not in known and digest not in unpublished})


def _as_failure(error: Exception, wal: Wal) -> StoreFailed:
    return StoreFailed(file=wal.log.path, reason=f"{type(error).__name__}: {error}")
