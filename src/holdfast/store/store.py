"""The public face of an embedded store.

Promises: one process writes a store (others get `Locked` with its pid). `commit` returns after the events are synced
to disk (or as `wal.flush` says, and the receipt tells). All methods are thread-safe. After an I/O error every call
raises `StoreFailed`; reopening recovers all that was accepted. `close` seals and publishes everything.

`inline=True` starts no threads: every commit is written, and everything cut is sealed, before the call returns. It is
for tests and simulations that must be deterministic; batching several callers into one sync needs the threads.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from types import TracebackType

import pyarrow as pa

from holdfast.clock import Clock, SystemClock
from holdfast.config import StoreConfig
from holdfast.disk.appendlog import LogSpec
from holdfast.disk.filesystem import Filesystem, Lock
from holdfast.disk.local import LocalFilesystem
from holdfast.disk.openfiles import OpenFiles
from holdfast.errors import Backpressure, DiskFull, HoldfastError, again
from holdfast.model.frame import Durability, Entry, EventIds, FrameReceipt, Guid, Identity, PlainFrame, Receipt
from holdfast.model.schema import BatchLimits
from holdfast.store.answer import CommitFuture
from holdfast.store.catalog import Loss, PublishedSegment
from holdfast.store.committer import Committer, Pending, Train
from holdfast.store.dedup import Dedup
from holdfast.store.direct import DirectWriter
from holdfast.store.ground import LOCK_NAME, WAL_DIR, Ground, make_directory
from holdfast.store.lane import Lane
from holdfast.store.listing import Listing
from holdfast.store.originals import Originals, gone
from holdfast.store.prepare import Preparer
from holdfast.store.reading import Position, Reader
from holdfast.store.recovery import Recovered, RecoveryReport, recover
from holdfast.store.retention.evict import Evictor
from holdfast.store.retention.keeper import Keeper, Touched
from holdfast.store.retention.partitions import PartitionFloors
from holdfast.store.retention.timekeeping import TrustedTime
from holdfast.store.scrub import Scrubber
from holdfast.store.sealer import Sealer
from holdfast.store.source import SegmentSource
from holdfast.store.statistics import StoreStatistics
from holdfast.store.subscribers.desk import SubscriberDesk
from holdfast.store.subscribers.handing import HandingPort
from holdfast.store.subscribers.subscriber import Subscriber, SubscriberStatistics
from holdfast.store.tail import Tail
from holdfast.store.tiering import TierPort
from holdfast.store.wal.codec import Floors
from holdfast.store.wal.log import WAL_NAME, Wal
from holdfast.telemetry import event


class Store:
    """An embedded store: a directory that one process owns. Open it with `Store.open`.

    >>> with Store.open("data") as store:
    ...     receipt = store.commit("trades", pa.record_batch({"price": [10.5, 7.25]}))  # synced when it returns
    ...     print(receipt.last_seq, [batch.to_pydict() for batch in store.read("trades")])
    2 [{'price': [10.5, 7.25]}]
    """

    @classmethod
    def open(
        cls,
        path: str | Path,
        config: StoreConfig | Mapping[str, object] | None = None,
        *,
        filesystem: Filesystem | None = None,
        clock: Clock | None = None,
        inline: bool = False,
        truncate_bad_tail: bool = False,
        source: SegmentSource | None = None,
    ) -> Store:
        """Open or create the store in `path`; recovers first if the last process did not end in order.

        `source` is where segments are had again whose files are missing or damaged; a tier is one.

        `truncate_bad_tail` is consent, for this one start, to cut log files that end too early (`repair/truncate.py`).
        """
        if not isinstance(config, StoreConfig):
            config = StoreConfig.from_mapping(config or {})
        filesystem = filesystem or LocalFilesystem()
        directory = Path(path).absolute()
        make_directory(filesystem, directory)
        lock = filesystem.lock(directory / LOCK_NAME)
        try:
            clock = clock or SystemClock()
            state = recover(
                filesystem, directory, config, clock=clock, truncate_bad_tail=truncate_bad_tail, source=source
            )
            return cls(directory, config, state, filesystem=filesystem, clock=clock, lock=lock, inline=inline)
        except BaseException:
            lock.release()
            raise

    def __init__(
        self,
        directory: Path,
        config: StoreConfig,
        state: Recovered,
        *,
        filesystem: Filesystem,
        clock: Clock,
        lock: Lock,
        inline: bool,
    ) -> None:
        self.path = directory
        self.config = config
        self._lock = lock
        self._clock = clock
        self._inline = inline
        self._closed = False
        self._closing = threading.Lock()
        self.recovery: RecoveryReport = state.report
        time = TrustedTime(clock, last_known_ns=int(state.catalog.meta("trusted_time_ns") or 0))
        catalog, channels = self._catalog, self._channels = state.catalog, state.channels
        self._tail = tail = Tail(config, clock, segment_bytes=catalog.totals()[2] - catalog.remote_totals()[1])
        self._ground = Ground(
            filesystem, directory, config, clock, time, state.store_id, catalog, channels, tail, state.source
        )
        self._open_files = OpenFiles(filesystem, config.fds_limit)
        self._reader = Reader(self._ground, self._open_files)
        self._originals = Originals(self._ground, self._reader)
        self._dedup = Dedup(config, clock, catalog=state.catalog, find_original=self._originals.of_frame)
        limits = BatchLimits(rows_max=config.frame_rows_max, bytes_max=config.frame_bytes_max)
        self._preparer = Preparer(self._channels, self._catalog, self._dedup, limits=limits)
        self._next_committed_id = state.next_committed_id
        self._committer: Committer | None = None
        spec = LogSpec(WAL_NAME, config.wal_rotation_bytes, weak=config.wal_flush != "commit")
        self._wal = Wal(
            filesystem,
            directory / WAL_DIR,
            spec=spec,
            store_id=state.store_id,
            number=state.wal_number,
            position=state.wal_position,
            floors=self._floors,
        )
        self._direct = DirectWriter(self._ground, parallel=not inline)
        self._committer = Committer(
            self._ground, self._wal, dedup=self._dedup, next_committed_id=state.next_committed_id, direct=self._direct
        )
        self._sealer = Sealer(
            self._ground, self._wal, settle=self._settle, on_publish=self._published, spent=state.spent.values()
        )
        self._threads: dict[str, threading.Thread] = {}
        self._start(state)

    def _start(self, state: Recovered) -> None:
        log = self._wal.log
        log.sync()
        for number, start_position in state.wal_files.items():
            log.adopt(number, start_position)
        self._tail.restore(state.chunks, wal_bytes=log.size_bytes(), now_ns=self._ground.time.now_ns())
        oldest = self._tail.oldest_file(active=log.number)
        self._catalog.set_meta(wal_cursor=log.file_start(oldest))
        log.trim(keep_from_number=oldest)
        self._tail.note_wal_bytes(log.size_bytes())
        self._remember(state)
        self._touched = Touched(channel.id for channel in self._channels)
        self._desk = SubscriberDesk(
            self._ground,
            self._reader,
            commit=self._commit_letters,
            frame_spans=self._originals.spans,
            settled=self._settled,
        )
        self.recovery = replace(self.recovery, acks_cut=self._desk.cut, acks_damage=self._desk.damage)
        self._evictor = Evictor(self._ground, self._desk, self._open_files, background=not self._inline)
        self._partitions = PartitionFloors(self._catalog, self._reader)
        self.keeper = self._keeper = Keeper(
            self._ground, self._desk, self._evictor, touched=self._touched, partitions=self._partitions
        )
        self._scrubber = Scrubber(self._ground, self._reader)
        committer, registry = self._committer_of(), self._desk.registry
        self.port = TierPort(self._ground, self._reader, self._open_files, committer=committer, registry=registry)
        self.handing = HandingPort(self._ground, self._reader, self._desk)
        self._evictor.evicting = self.port.evicting
        self._sealer.on_seal = self.port.sealed
        self._tail.on_pressure = self._keeper.wake
        if self._inline:
            self._run_inline()
            return
        self._desk.use_thread()
        jobs = {
            "committer": self._committer_of().run,
            "sealer": self._sealer.run,
            "acks": self._desk.writer.run,
            "keeper": self._keeper.run,
        }
        if self.config.scrub_rate_bytes_per_s:
            jobs["scrubber"] = self._scrubber.run
        self._threads = {
            name: threading.Thread(target=job, name=f"holdfast-{name}", daemon=True) for name, job in jobs.items()
        }
        for thread in self._threads.values():
            thread.start()

    def _remember(self, state: Recovered) -> None:
        """Fill the dedup history: GUIDs from segments of the window, then everything in the log, oldest first."""
        now_ns = self._clock.wall_ns()
        for guid, receipt, ingested_at_ns in self._originals.guids_since(now_ns - self.config.dedup_window_ns):
            self._dedup.remember(Guid(guid), receipt, age_ns=now_ns - ingested_at_ns)
        for identity, receipt, ingested_at_ns in state.frames:
            self._dedup.remember(identity, receipt, age_ns=now_ns - ingested_at_ns)

    # -- writing ----------------------------------------------------------------------------------------------------

    def commit(
        self, channel: str, batch: pa.RecordBatch, *, identity: Identity = None, partitions: Sequence[str] = ()
    ) -> Receipt:
        """Store a batch; durable when this returns."""
        receipt = self.commit_async(channel, batch, identity=identity, partitions=partitions).result()
        return receipt.entries[0] if receipt.entries else gone(channel)

    def commit_async(
        self, channel: str, batch: pa.RecordBatch, *, identity: Identity = None, partitions: Sequence[str] = ()
    ) -> CommitFuture:
        """Hand a batch over; the future's result comes when it is durable. Waits only at a bound."""
        return self.commit_frame_async([Entry(channel, batch, tuple(partitions))], identity=identity)

    def commit_frame(self, entries: Sequence[Entry], *, identity: Identity = None) -> FrameReceipt:
        """Store batches of several channels together: all of them or none."""
        return self.commit_frame_async(entries, identity=identity).result()

    def commit_frame_async(
        self,
        entries: Sequence[Entry],
        *,
        identity: Identity = None,
        wait: bool = True,
        lane: Lane | None = None,
        bytes_max: int = 0,
    ) -> CommitFuture:
        """Like `commit_frame`, with a future. `wait=False` raises `Backpressure` instead of waiting (see `blame`).

        Frames of one `lane` are stored in order: once one is refused, so are those behind it. With `bytes_max` a frame
        may be larger than `frame.max_size`, up to that; larger entries are stored as several, with a receipt for each.
        """
        return self._submit(entries, identity, wait=wait, lane=lane, bytes_max=bytes_max)

    def commit_train(self, frames: Sequence[PlainFrame], *, lane: Lane) -> Train | None:
        """Hand over frames of one channel and one schema, each to be stored as if it had come alone; never waits.

        None if they have to go one by one (`commit_frame_async`). `Backpressure` if there is no room for all of them.
        """
        self._tail.check()
        train = self._preparer.train(frames, lane)
        if train is not None:
            self._reserve(train.size_bytes, wait=False, capped=True)
            self._committer_of().submit(train)
            if self._inline:
                self._run_inline()
        return train

    def needs_disk(self, entries: Sequence[Entry], identity: Identity) -> bool:
        """Whether `commit_frame_async` has to read the disk first: to see whether it is a repeat."""
        return self._preparer.needs_disk(entries, identity)

    def has_room(self, size_bytes: int) -> bool:
        """Whether a frame of that size would be taken without waiting; if not, room is being made."""
        return self._tail.has_room(size_bytes, capped=True)

    def on_answered(self, told: Callable[[], None]) -> None:
        """Call `told`, on the committer's thread, each time a group of commits was answered; it must not wait."""
        self._committer_of().on_answered.append(told)

    @property
    def failure(self) -> HoldfastError | None:
        """Why the store stopped, if it did."""
        return self._tail.failure

    def _submit(
        self,
        entries: Sequence[Entry],
        identity: Identity,
        *,
        wait: bool = True,
        capped: bool = True,
        lane: Lane | None = None,
        bytes_max: int = 0,
    ) -> CommitFuture:
        self._tail.check()
        known = self._dedup.find(identity)
        if known is not None:
            future = CommitFuture()
            future.set_result(known)
            return future
        prepared, size, crc = self._preparer.frame(entries, identity, bytes_max=bytes_max)
        if capped:
            self._tail.check_size(size)
        self._reserve(size, wait=wait, capped=capped)
        pending = Pending(prepared, identity, size, crc, CommitFuture(), lane)
        self._committer_of().submit(pending)
        if self._inline:
            self._run_inline()
        return pending.future

    def flush(self) -> None:
        """Seal and publish everything committed so far. Waits while that goes on, `commit_timeout` for each step."""
        self._tail.check()
        self._seal_until(self._tail.settled)

    def seal(self, channel: str) -> None:
        """Publish what a channel has in memory soon, without waiting for its bounds."""
        self._tail.cut_channel(self._channels.find(channel))

    def _seal_until(self, done: Callable[[], bool]) -> None:
        self._tail.cut_all()
        if self._inline:
            self._run_inline()
        sealed, since_ns = self._sealer.segments, self._clock.monotonic_ns()
        while not done():
            if self._sealer.segments != sealed:
                sealed, since_ns = self._sealer.segments, self._clock.monotonic_ns()
            waited_ns = self._clock.monotonic_ns() - since_ns
            if self._tail.failure is not None:
                raise again(self._tail.failure)
            if waited_ns >= self.config.commit_timeout_ns or (self._inline and self._sealer.postponed is not None):
                raise self._sealer.postponed or self._tail.not_sealed(waited_ns)
            with self._tail.lock:
                self._tail.room.wait(0.1)

    def _run_inline(self) -> None:
        """The work of all threads, in the caller's."""
        self._committer_of().step(wait=False)
        self._tail.cut_expired()
        while self._tail.failure is None and self._sealer.step():
            pass
        self._keeper.tick_if_due()
        self._desk.writer.step(wait=False)
        self._scrubber.tick()

    def _settle(self) -> None:
        self._committer_of().settle(inline=self._inline)

    def _commit_letters(self, channel: str, batch: pa.RecordBatch, ids: EventIds) -> None:
        """Dead letters do not wait at the size cap: what they stand for goes only after them."""
        self._submit([Entry(channel, batch)], ids, capped=False).result()

    def _settled(self, channel_id: int) -> None:
        self._touched.add(channel_id)
        if self._tail.is_throttling:
            self._keeper.wake()

    def _published(self, segment: PublishedSegment) -> bool:
        self._touched.add(segment.channel_id)
        return any([self._desk.registry.published(segment.channel_id, segment.meta.channel), self.port.published()])

    def _reserve(self, size_bytes: int, *, wait: bool, capped: bool) -> None:
        """Room in memory, log and under the size cap; a store without threads makes room itself."""
        try:
            if self._inline and not self._tail.has_room(size_bytes, capped=capped):
                self._run_inline()
                self._keeper.tick_safely()
            self._tail.reserve(size_bytes, wait=wait and not self._inline, capped=capped)
        except Backpressure as refusal:
            raise self.blame(refusal) if wait else refusal from None

    def blame(self, refusal: Backpressure) -> Backpressure:
        """The same, with what or who keeps the store full; it may read the disk."""
        postponed, capped = self._sealer.postponed, refusal.bound == "retention.size_cap"
        if postponed is None and not capped:
            return refusal
        return Backpressure(
            bound=refusal.bound,
            used_bytes=refusal.used_bytes,
            cap_bytes=refusal.cap_bytes,
            waited_s=refusal.waited_s,
            slowest=self._keeper.slowest() if capped else "",
            cause="" if postponed is None else f"{postponed.reason} ({postponed.file})",
        )

    # -- subscribers ------------------------------------------------------------------------------------------------

    def subscriber(
        self, name: str, channels: Sequence[str] = ("*",), *, start: Position = "first", newest_first: bool = False
    ) -> Subscriber:
        """Register a subscriber, or open the one of that name again.

        `channels` are names or globs; a channel created later that matches joins by itself. `start` is `"first"`,
        `"new"`, `"last"`, a seq or an aware datetime; it counts only for channels the subscriber does not follow yet.
        """
        self._tail.check()
        patterns = (channels,) if isinstance(channels, str) else tuple(channels)
        state = self._desk.register(name, patterns, start=start, newest_first=newest_first)
        return Subscriber(self._desk, state)

    def deregister(self, name: str) -> int:
        """Remove a subscriber for good: it pins nothing any more. Returns how many events were still owed to it."""
        self._tail.check()
        return self._desk.deregister(name)

    def subscribers(self) -> list[SubscriberStatistics]:
        """All subscribers, with how far each is."""
        self._tail.check()
        return [self._desk.statistics_of(state) for state in self._desk.registry.states()]

    def losses(self) -> list[Loss]:
        """Events that went unconfirmed since the store was created, per channel, subscriber and reason."""
        self._tail.check()
        return self._desk.losses()

    def advance_partition(self, channel: str, partition: str, seq: int) -> None:
        """Say that a partition of a `limits` channel needs no event below `seq`; it never moves back.

        An event goes when all its partitions have advanced past it. `""` stands for events without a partition.
        """
        self._tail.check()
        found = self._channels.find(channel)
        if self._partitions.advance(found, partition, seq):
            self._touched.add(found.id)

    # -- reading ----------------------------------------------------------------------------------------------------

    def channels(self) -> list[str]:
        """Names of all channels, sorted."""
        return sorted(channel.name for channel in self._channels)

    @property
    def listing(self) -> Listing:
        """What the store holds, for those who look from outside."""
        self._tail.check()
        return Listing(self._ground, self._reader)

    def schema(self, channel: str) -> pa.Schema:
        """The channel's schema of now."""
        version = self._channels.find(channel).version
        return version.schema if version is not None else pa.schema([])

    def remove_channel(self, name: str) -> int:
        """Delete all events of a channel, whoever is still owed them, and count the losses; returns how many went.

        What is committed meanwhile goes with it or stays, in order. The name is free again: if it is written to, its
        next event gets the next seq, so no number comes twice.
        """
        self._tail.check()
        channel = self._channels.find(name)
        last_seq = channel.last_seq
        removed = self._keeper.remove(channel, last_seq=last_seq)  # first, since it makes room to seal the rest
        self._seal_until(lambda: channel.published_seq >= last_seq)
        removed += self._keeper.remove(channel, last_seq=last_seq)
        self._keeper.retire_if_empty(channel)
        return removed

    def read(
        self,
        channel: str,
        *,
        start: Position = "first",
        end: Position | None = None,
        columns: Sequence[str] | None = None,
        system: Sequence[str] = (),
    ) -> Iterator[pa.RecordBatch]:
        """Events `start..end`, both included, as of now: from segments and from what is not sealed yet.

        A position is a seq, `"first"`, `"last"`, or an aware datetime (ingestion time; as an end it is not included).
        """
        self._tail.check()
        return self._reader.read(self._channels.find(channel), start=start, end=end, columns=columns, system=system)

    def read_committed(
        self, *, start: int = 1, end: int | None = None, channels: Sequence[str] | None = None
    ) -> Iterator[tuple[str, pa.RecordBatch]]:
        """Events of all channels (or some) in commit order, as (channel, batch); bounds are committed_ids, included."""
        self._tail.check()
        chosen = list(self._channels) if channels is None else [self._channels.find(name) for name in channels]
        last = self._committer_of().next_committed_id - 1 if end is None else end
        return self._reader.read_committed(chosen, first=start, last=last)

    def scrub_step(self, budget_bytes: int) -> int:
        """For a store without threads: read so many bytes of segments again and judge them; returns how many."""
        self._tail.check()
        return self._scrubber.scrub_step(budget_bytes)

    def statistics(self) -> StoreStatistics:
        """A picture for people, metrics and tests."""
        committer = self._committer_of()
        segments, segment_events, segment_bytes = self._catalog.totals()
        failure, postponed = self._tail.failure, self._sealer.postponed
        return StoreStatistics(
            durability=Durability.SYNCED if self.config.wal_flush == "commit" else Durability.WRITTEN,
            failed=str(failure) if failure else None,
            channels=len(self._channels),
            groups=committer.groups,
            frames=committer.frames,
            events=committer.events,
            syncs=committer.syncs,
            next_committed_id=committer.next_committed_id,
            segments=segments,
            segment_events=segment_events,
            segment_bytes=segment_bytes,
            sealed_segments=self._sealer.segments,
            seal_postponed=str(postponed) if postponed else None,
            wal_bytes=self._wal.log.size_bytes(),
            slots=self._dedup.slot_count(),
            guids=self._dedup.guid_count(),
            guids_forgotten_early=self._dedup.guids_forgotten_early,
            tail=self._tail.statistics(),
            retention=self._evictor.statistics(),
            clock_jumps=self._keeper.time.jumps,
            size_emergencies=self._keeper.size_emergencies,
            ack_records=self._desk.writer.records,
            ack_syncs=self._desk.writer.syncs,
            scrub=self._scrubber.statistics(),
            verified=self.config.verify_crc,
        )

    # -- ending -----------------------------------------------------------------------------------------------------

    def close(self) -> None:
        """Commit what is queued, seal and publish everything, release the directory. Idempotent.

        After a failure, or when the disk is full, nothing more is written; what was accepted is in the log. Raises
        `StoreFailed` when the failure comes while closing.
        """
        with self._closing:
            if self._closed:
                return
            failed_before = self._tail.failure
            self._closed = self._tail.closed = True
            self._desk.registry.wake()
            try:
                self._drain()
                self._close_logs()
                self._catalog.close(in_order=self._tail.failure is None)
            finally:
                self._direct.close()
                self._open_files.close()
                self._catalog.close()
                self._lock.release()
            if self._tail.failure is not None and failed_before is None:
                raise again(self._tail.failure)

    def _close_logs(self) -> None:
        for log in (self._desk.writer.log, self._wal.log):
            if self._tail.failure is not None:
                log.stop(self._tail.failure)
            try:
                log.close()
            except DiskFull as error:  # without its last word the log is replayed at the next start
                event("store.close.postpone", log=log.path.name, reason=error)

    def _drain(self) -> None:
        committer = self._committer_of()
        self._scrubber.stop()
        self._keeper.stop()
        self._join("scrubber")
        self._join("keeper")
        committer.close()
        self._join("committer")
        self._tail.cut_all()
        self._sealer.stop()
        self._join("sealer")
        self._desk.writer.close()
        self._join("acks")
        if self._inline and self._tail.failure is None:
            self._run_inline()
        self._evictor.close()

    def _join(self, name: str) -> None:
        if name in self._threads:
            self._threads[name].join()

    def __enter__(self) -> Store:
        return self

    def __exit__(
        self, _type: type[BaseException] | None, _error: BaseException | None, _trace: TracebackType | None
    ) -> None:
        self.close()

    # -- inside -----------------------------------------------------------------------------------------------------

    def _committer_of(self) -> Committer:
        assert self._committer is not None
        return self._committer

    def _floors(self) -> Floors:
        next_committed_id = self._committer.next_committed_id if self._committer else self._next_committed_id
        return Floors(
            next_committed_id,
            self._catalog.segment_seq_floor,
            self._channels.next_id,
            [(channel.id, channel.name, channel.next_seq) for channel in self._channels],
        )
