"""Published segments into the tier, and the word that they are there.

    a turn:  border in commit order ─► new segments ─► upload, read back ─► entry in the manifest ─► watermarks told
             evicted segments ─► `remove` entry ─► objects deleted          reservation renewed, marks kept
             evicted before they were listed ─► their frames in the entry
             now and then: objects that nobody lists are swept

One thread takes turns; a small pool moves bytes. A turn does what can be done now and waits for nothing but the
manifest.

Promises:

- A watermark is told after every event below it is in an object that was read back and is listed, or was evicted and
  its frame is known to the manifest (G5): after a wipe no repeat of it is stored again (G3).
- Every step may be repeated: a process that was killed anywhere is followed by one that goes on from the manifest.
- Memory is bounded: a few segments are mapped at a time, the rest are names.
- A segment that cannot be read here, and is not in the tier, holds back what comes after it; it is reported, and tried
  again. Nothing is ever told as durable to get past it.
"""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from typing import Literal

import msgspec

from holdfast.clock import NS_PER_S, Clock
from holdfast.disk.checksum import crc32c
from holdfast.disk.filesystem import Bytes
from holdfast.errors import Closed, FencedOut
from holdfast.model.intervals import IntervalSet
from holdfast.store.catalog import PublishedSegment
from holdfast.store.tiering import ChannelPicture, Slots, TierPort
from holdfast.telemetry import event
from holdfast.tier.copying import digest, store
from holdfast.tier.journal import Journal
from holdfast.tier.ledger import Ledger
from holdfast.tier.manifest import (
    CHECKPOINT_EVERY,
    FORMAT,
    RESERVED_NUMBERS,
    SEGMENT_NUMBERS,
    ChannelNote,
    Entry,
    ManifestState,
    Reserved,
    SegmentNote,
    segment_key,
)
from holdfast.tier.objects import Objects
from holdfast.tier.pacing import TokenBucket
from holdfast.tier.persistence import Persistence
from holdfast.tier.sweeping import Sweeper

REMOVED_PER_ENTRY = 1000
READERS_EVERY_NS = 10 * NS_PER_S
"""How often marks of subscribers are kept; after a restore they get again what they confirmed since."""
BLOCKED_AGAIN_NS = 60 * NS_PER_S
"""How often a segment that cannot be read is tried again: somebody may have put a good copy there."""
TIED_NS = 10 * NS_PER_S
"""How long segments wait for those that share frames with them, before all that is open is sealed at one moment. Where
every frame touches several channels, their segments may overlap without an end; more often would make small ones."""
SLOTS_PER_ENTRY = 1000
IDLE_S = 1.0
"""How long a turn is put off at the most."""


@dataclass(frozen=True, slots=True)
class UploadSettings:
    """How hard to try."""

    concurrency: int = 4
    """0 uploads inside the turn: for tests that must be deterministic."""
    max_delay_ns: int = NS_PER_S
    bandwidth_bytes_per_s: int = 0
    sweep_ns: int = 0


@dataclass(frozen=True, slots=True)
class UploadStatistics:
    """How far it is."""

    uploaded_segments: int
    uploaded_bytes: int
    removed_segments: int
    pending_segments: int
    pending_bytes: int
    lag_s: float
    entries: int
    swept_objects: int
    blocked: dict[int, str]


class Uploader:
    """Fills a tier from a store. `turn` and `take_over` belong to one thread."""

    def __init__(
        self,
        port: TierPort,
        objects: Objects,
        journal: Journal,
        *,
        state: ManifestState,
        persistence: Persistence,
        clock: Clock,
        settings: UploadSettings,
        on_durable: Callable[[dict[str, int]], None],
    ) -> None:
        self._port = port
        self._objects = objects
        self._journal = journal
        self._state = state
        self._persist = persistence.call
        self._persistence = persistence
        self._clock = clock
        self._settings = settings
        self._on_durable = on_durable
        self._ledger = Ledger()
        self._bucket = TokenBucket(settings.bandwidth_bytes_per_s, clock.monotonic_ns())
        self._pool = ThreadPoolExecutor(settings.concurrency, "holdfast-tier") if settings.concurrency else None
        self._lock = threading.Lock()  # the bucket, the counters and the queues that threads share
        self._seen = 0  # the last segment number that was looked at
        self._queue: deque[PublishedSegment] = deque()
        self._running: set[int] = set()
        self._done: deque[SegmentNote] = deque()
        self._evicted: deque[SegmentNote | PublishedSegment] = deque()
        self._blocked: dict[int, tuple[int, str, PublishedSegment]] = {}
        self._versions: dict[int, int] = {}
        self._listed_ends: dict[int, int] = {}  # by channel, where its last listed segment ends
        self._gone: deque[tuple[PublishedSegment, Slots]] = deque()
        self._passing = True  # whether an earlier process may have evicted events that no turn saw
        self._recalled = False
        self._start_end = 0
        self._tied_at_ns: int | None = None
        self._unknown: set[str] = set()  # channels with listed segments that the store does not know
        self._readers_at_ns = clock.monotonic_ns()
        self._picture: tuple[int, int, int | None] = (0, 0, None)
        self._sweeper = Sweeper(objects, state, every_ns=settings.sweep_ns, now_ns=clock.monotonic_ns())
        self._looked: deque[frozenset[str]] = deque()
        self._uploaded_segments = self._uploaded_bytes = self._removed = self._entries = self._swept = 0
        self.wake = threading.Event()

    # -- the beginning ----------------------------------------------------------------------------------------------

    def take_over(self, check: Callable[[ManifestState], None]) -> None:
        """Become the one writer of the tier. `check` raises if the manifest is not that of this store."""
        while True:
            check(self._state)
            entry = self._entry("open", epoch=self._state.epoch + 1, renew=True, readers=True)
            try:
                self._append(entry)
                break
            except FencedOut:  # another process was there first
                self._persist(lambda: self._journal.refresh(self._state), "read the manifest")
        self._adopt()
        self._port.on_publish(self.wake.set)
        self._port.on_evict(self._note_evicted)
        self._start_end = self._port.present_end()
        self.wake.set()

    def _adopt(self) -> None:
        """What the manifest lists needs no upload; what was evicted while nobody told the tier is removed."""
        for note in list(self._state.segments.values()):
            self._listed(note)
            if self._port.is_published(note.segment_seq):
                self._ledger.settle(note)
            elif self._port.was_evicted(note.channel_id, note.meta.first_seq, note.meta.last_seq):
                self._evicted.append(note)
            else:  # put together with others, or lost to damage
                self._unknown.add(note.meta.channel)

    def _listed(self, note: SegmentNote) -> None:
        end = self._listed_ends.get(note.channel_id, 0)
        self._listed_ends[note.channel_id] = max(end, note.meta.last_seq)

    # -- a turn -----------------------------------------------------------------------------------------------------

    def turn(self) -> None:
        """Do what can be done now. Raises `FencedOut` when another process has taken over."""
        committed_end = self._port.committed_end()  # first: what is found after it covers it
        channels = self._port.channels() if self._passing else []  # before looking, too
        self._discover()
        self._upload_some()
        self._collect()
        self._forget_evicted()
        self._look()
        border = self._ledger.border(committed_end)
        self._untie()
        self._list(border)
        self._recall()
        if (
            border >= self._start_end
        ):  # before, parts of frames evicted in part by an earlier process may be on their way
            self._pass_evicted(channels)
        news = self._ledger.news()
        if news:
            self._on_durable(news)
        self._look()
        self._remove_evicted()
        self._sweep()

    def _list(self, border: int) -> None:
        """All that is before the border, in one entry, so that no frame lies in two."""
        notes, passing = self._ledger.listable(border), self._ledger.passable(border)
        slots = self._unknown_slots(passing.values())
        readers = self._readers_are_due()
        if notes or slots or readers or self._must_renew():
            replaced = self._replaced(notes)
            entry = self._entry(
                "progress",
                epoch=self._state.epoch,
                added=notes,
                removed=[note.segment_seq for note in replaced],
                renew=self._must_renew(),
                readers=readers,
                slots=slots,
            )
            self._append(entry)
            for note in notes:
                self._ledger.settle(note)
                self._listed(note)
            for note in replaced:
                self._delete(note)
        for number in passing:
            self._ledger.let_go(number)

    def _unknown_slots(self, passing: Iterable[Slots]) -> Slots:
        """Frames of evicted segments that the manifest does not know."""
        unknown: dict[str, IntervalSet] = {}
        for slots in passing:
            for slot_id, ranges in slots.items():
                known = self._state.slots.get(slot_id, IntervalSet())
                for span in (part for first, last in ranges for part in known.missing(first, last)):
                    unknown.setdefault(slot_id, IntervalSet()).add(*span)
        return {slot_id: list(ranges) for slot_id, ranges in unknown.items()}

    def _untie(self) -> None:
        """Where frames tie segments together for too long, all that is open is sealed: what comes then shares none."""
        now_ns = self._clock.monotonic_ns()
        if not self._ledger.is_tied:
            self._tied_at_ns = None
        elif self._tied_at_ns is None:
            self._tied_at_ns = now_ns
        elif now_ns - self._tied_at_ns >= TIED_NS:
            self._port.cut_open_units(older_than_ns=0)
            self._tied_at_ns = None

    def _recall(self) -> None:
        """Once: name the frames that an earlier process evicted before their segments, or this store's tier, were."""
        if self._recalled:
            return
        gone = list(self._port.frames_gone(self._state.slots).items())
        for at in range(0, len(gone), SLOTS_PER_ENTRY):
            slots = dict(gone[at : at + SLOTS_PER_ENTRY])
            self._append(self._entry("progress", epoch=self._state.epoch, slots=slots))
        self._recalled = True

    def _look(self) -> None:
        """Take the picture that other threads may see."""
        ledger = self._ledger
        with self._lock:
            self._picture = (ledger.pending, ledger.pending_bytes, ledger.oldest_ingested_at_ns)

    def keep_readers(self) -> None:
        """Keep the marks of subscribers now, if they changed."""
        if self._port.readers() != self._state.readers:
            self._append(self._entry("progress", epoch=self._state.epoch, readers=True))

    def seconds_to_wait(self, *, awaited: bool) -> float:
        """Until the next turn, unless something wakes it."""
        return min(IDLE_S, self._settings.max_delay_ns / NS_PER_S / 4) if awaited else IDLE_S

    def seal_late(self) -> None:
        """Somebody waits for durability: what is open for too long is sealed."""
        self._port.cut_open_units(older_than_ns=self._settings.max_delay_ns)

    @property
    def is_idle(self) -> bool:
        """Whether all that was published is listed."""
        return not (self._ledger.pending or self._queue or self._running)

    def watermarks(self) -> dict[str, int]:
        """Per channel the last seq that is durable, as far as it was told."""
        return self._ledger.watermarks()

    def statistics(self) -> UploadStatistics:
        """A picture."""
        with self._lock:
            pending, pending_bytes, oldest_ns = self._picture
            return UploadStatistics(
                self._uploaded_segments,
                self._uploaded_bytes,
                self._removed,
                pending,
                pending_bytes,
                max(0, self._clock.wall_ns() - oldest_ns) / NS_PER_S if oldest_ns is not None else 0.0,
                self._entries,
                self._swept,
                {number: reason for number, (_, reason, _) in self._blocked.items()},
            )

    def close(self) -> None:
        """End the pool; what is on its way is given up."""
        if self._pool is not None:
            self._pool.shutdown(wait=True, cancel_futures=True)

    # -- uploading --------------------------------------------------------------------------------------------------

    def _discover(self) -> None:
        for segment in self._port.segments_after(self._seen):
            self._seen = segment.meta.segment_seq
            if self._seen not in self._state.segments:
                self._ledger.add(segment, self._port.frame_bounds(self._seen))
                self._queue.append(segment)
        now_ns = self._clock.monotonic_ns()
        for number, (since_ns, _, segment) in list(self._blocked.items()):
            if now_ns - since_ns >= BLOCKED_AGAIN_NS:
                del self._blocked[number]
                self._queue.append(segment)

    def _upload_some(self) -> None:
        if self._pool is None:
            while self._queue:
                self._upload(self._queue.popleft())
            return
        with self._lock:
            while self._queue and len(self._running) < 2 * self._settings.concurrency:
                segment = self._queue.popleft()
                self._running.add(segment.meta.segment_seq)
                self._pool.submit(self._upload, segment).add_done_callback(self._uploaded)

    def _uploaded(self, done: Future[None]) -> None:
        error = done.exception() if not done.cancelled() else None
        if error is not None and not isinstance(error, Closed):
            event("tier.upload.fail", level=logging.ERROR, error=type(error).__name__, reason=error)
        self.wake.set()

    def _upload(self, segment: PublishedSegment) -> None:
        number = segment.meta.segment_seq
        try:
            self._done.append(self._copy(segment))
        except Closed:
            raise
        except Exception as error:  # whatever it is, a segment that nobody tries again would hold back all others
            if self._port.is_published(number):
                with self._lock:
                    self._blocked[number] = (self._clock.monotonic_ns(), str(error), segment)
                event("tier.upload.blocked", level=logging.ERROR, segment_seq=number, reason=error)
        finally:
            with self._lock:
                self._running.discard(number)

    def _copy(self, segment: PublishedSegment) -> SegmentNote:
        """Into the tier, read back, and described."""
        with self._port.lend(segment) as file:
            sha256 = digest(file, size_bytes=segment.size_bytes, expected_crc32c=segment.crc32c)
            key = segment_key(segment.meta.channel, segment.meta.segment_seq, sha256)
            with self._lock:
                wait_s = self._bucket.wait_s(segment.size_bytes, self._clock.monotonic_ns())
            self._persistence.wait(wait_s)
            data = file.map()
            self._store(key, data, segment.crc32c)
        note = SegmentNote(
            segment.channel_id,
            key,
            segment.size_bytes,
            segment.crc32c,
            sha256,
            segment.has_guids,
            segment.meta,
            self._port.slots(segment),
            self._store_ids(segment, sha256),
        )
        with self._lock:
            self._uploaded_segments += 1
            self._uploaded_bytes += segment.size_bytes
        return note

    def _store_ids(self, segment: PublishedSegment, sha256: str) -> str:
        ids = self._port.event_ids(segment)
        if not ids:
            return ""
        data = msgspec.msgpack.encode(ids)
        key = segment_key(segment.meta.channel, segment.meta.segment_seq, sha256, "ids")
        self._store(key, data, crc32c(data))
        return key

    def _store(self, key: str, data: Bytes, crc: int) -> None:
        view = memoryview(data)
        self._persist(
            lambda: store(self._objects, key, view, size_bytes=view.nbytes, expected_crc32c=crc), f"store {key}"
        )

    def _collect(self) -> None:
        while self._done:
            self._ledger.verify(self._done.popleft())

    # -- the manifest -----------------------------------------------------------------------------------------------

    def _entry(
        self,
        kind: Literal["open", "progress", "remove"],
        *,
        epoch: int,
        added: Sequence[SegmentNote] = (),
        removed: Sequence[int] = (),
        renew: bool = False,
        readers: bool = False,
        slots: Slots | None = None,
    ) -> Entry:
        reserved = self._reservation() if renew else None  # before the channels are read: they may only be further
        return Entry(
            self._state.number + 1,
            kind,
            self._port.store_id,
            epoch,
            self._journal.nonce,
            self._clock.wall_ns(),
            FORMAT,
            tuple(added),
            tuple(removed),
            self._changed_channels(added, all_of_them=renew),
            reserved,
            self._port.readers() if readers else None,
            slots or {},
        )

    def _reservation(self) -> Reserved:
        return Reserved(
            RESERVED_NUMBERS,
            self._port.next_committed_id + RESERVED_NUMBERS,
            self._port.segment_seq_floor + SEGMENT_NUMBERS,
            self._port.birth_seq,
        )

    def _changed_channels(self, added: Sequence[SegmentNote], *, all_of_them: bool) -> tuple[ChannelNote, ...]:
        """Channels that are new, have another schema or a hole; when numbers are reserved, also those that went on."""
        notes = []
        holed = self._with_holes(added)
        for picture in self._port.channels():
            known = self._state.channels.get(picture.channel_id)
            version = picture.version
            grown = version is not None and self._versions.get(picture.channel_id) != version.id
            moved = known is not None and (known.next_seq, known.first_seq) != (picture.next_seq, picture.first_seq)
            has_hole = picture.channel_id in holed
            if known is None or grown or has_hole or (moved and all_of_them):
                schema = version.schema.serialize().to_pybytes() if version is not None and grown else b""
                skipped = self._port.skipped(picture.channel_id) if has_hole else []
                notes.append(
                    ChannelNote(picture.channel_id, picture.name, picture.next_seq, picture.first_seq, schema, skipped)
                )
                if version is not None:
                    self._versions[picture.channel_id] = version.id
        return tuple(notes)

    def _with_holes(self, added: Sequence[SegmentNote]) -> set[int]:
        """Channels in which one of these segments does not begin where the one before it in the manifest ends."""
        ends = dict(self._listed_ends)
        holed = set()
        for note in sorted(added, key=lambda note: note.meta.first_seq):
            if note.meta.first_seq != ends.get(note.channel_id, 0) + 1:
                holed.add(note.channel_id)
            ends[note.channel_id] = note.meta.last_seq
        return holed

    def _must_renew(self) -> bool:
        reserved = self._state.reserved
        return reserved is None or reserved.committed_id - self._port.next_committed_id < RESERVED_NUMBERS // 2

    def _readers_are_due(self) -> bool:
        now_ns = self._clock.monotonic_ns()
        if now_ns - self._readers_at_ns < READERS_EVERY_NS:
            return False
        self._readers_at_ns = now_ns
        return self._port.readers() != self._state.readers

    def _append(self, entry: Entry) -> None:
        appended = self._persist(lambda: self._journal.append(self._state, entry), f"append entry {entry.number}")
        self._entries += 1
        self._port.note(tier_number=appended.number)
        if entry.reserved is not None:
            self._port.hold_below(entry.reserved.committed_id)
        if self._state.number // CHECKPOINT_EVERY > self._state.previous // CHECKPOINT_EVERY:
            self._persist(lambda: self._journal.write_checkpoint(self._state), "write a checkpoint")

    def _replaced(self, notes: Sequence[SegmentNote | PublishedSegment]) -> list[SegmentNote]:
        """Listed segments that the store has put together into one of these: one entry swaps them, as the store did."""
        spans: dict[int, IntervalSet] = {}
        for note in notes:
            channel = note.meta.channel
            if note.meta.first_seq <= self._ledger.reached(channel) or channel in self._unknown:  # nearly all are new
                spans.setdefault(note.channel_id, IntervalSet()).add(note.meta.first_seq, note.meta.last_seq)
        return [
            known
            for known in (self._state.segments.values() if spans else ())
            if known.channel_id in spans
            and spans[known.channel_id].covers(known.meta.first_seq, known.meta.last_seq)
            and not self._port.is_published(known.segment_seq)
        ]

    # -- what goes --------------------------------------------------------------------------------------------------

    def _note_evicted(self, segment: PublishedSegment, slots: Slots) -> None:
        """On any thread."""
        self._gone.append((segment, slots))
        self._evicted.append(segment)
        self.wake.set()

    def _forget_evicted(self) -> None:
        """What was evicted before it was listed is not uploaded; that it was there must still be known."""
        with self._port.eviction:  # what left the catalog before this turn looked has been told
            gone = [self._gone.popleft() for _ in range(len(self._gone))]
        for segment, slots in gone:
            number = segment.meta.segment_seq
            if number in self._state.segments:
                continue
            if not self._ledger.is_pending(number):  # it came and went between two turns
                self._ledger.add(segment, self._port.frame_bounds(number))
            note = self._ledger.forget(number, slots)
            if note is not None:
                self._delete(note)

    def _pass_evicted(self, channels: Sequence[ChannelPicture]) -> None:
        """Let marks pass events that an earlier process evicted: nobody will ever upload them.

        `channels` is a picture from before the turn looked for segments, so what it calls published was found, if it
        was still there.
        """
        waiting = self._ledger.waiting() if channels else ()
        self._passing = not channels and self._passing
        for picture in channels:
            reached, end = self._ledger.reached(picture.name), picture.published_seq
            if picture.name in waiting:
                self._passing = True  # later
            elif end > reached:
                start = max(reached + 1, picture.first_seq)
                if start > end or not self._port.is_owed(picture.channel_id, start, end):
                    self._ledger.passed(picture.name, end)

    def _remove_evicted(self) -> None:
        """First the manifest forgets them, then the objects go."""
        count = min(len(self._evicted), REMOVED_PER_ENTRY)
        evicted = [self._evicted[n] for n in range(count)]
        listed = self._state.segments
        going = [listed[item.meta.segment_seq] for item in evicted if item.meta.segment_seq in listed]
        going += self._replaced([item for item in evicted if item.meta.segment_seq not in listed])
        if going:
            removed = [note.segment_seq for note in going]
            self._append(self._entry("remove", epoch=self._state.epoch, removed=removed))
            for note in going:
                self._delete(note)
            with self._lock:
                self._removed += len(going)
        for _ in range(count):
            self._evicted.popleft()

    def _delete(self, note: SegmentNote) -> None:
        for key in filter(None, (note.key, note.ids_key)):
            self._persist(partial(self._objects.remove, key), f"remove {key}")

    def _sweep(self) -> None:
        """A look takes as long as the bucket is large, so that a thread of the pool does it."""
        if self._sweeper.is_due(self._clock.monotonic_ns()):
            if self._pool is None:
                self._look_around()
            else:
                self._pool.submit(self._look_around).add_done_callback(self._uploaded)
        while self._looked:
            condemned = self._sweeper.condemn(self._looked.popleft(), is_pending=self._ledger.is_pending)
            if condemned:  # an entry proves that the tier is still ours: to one who was replaced, all is nobody's
                self._append(self._entry("progress", epoch=self._state.epoch))
            for key in condemned:
                event("tier.sweep", key=key)
                self._persist(partial(self._objects.remove, key), f"remove {key}")
                with self._lock:
                    self._swept += 1

    def _look_around(self) -> None:
        self._looked.append(self._persist(self._sweeper.look, "look for objects that nobody lists"))
