"""Where subscribers meet the store: opening the acknowledgement log, making outcomes durable, dead letters.

The order of an answer, and what a crash leaves (docs/design/durability.md, "Acknowledge"):

    1. (reject) commit the events to the dead-letter channel     the answer was not given: they are rejected again, and
                                                                 the event ids keep the dead letters single
    2. write the outcome, sync                                   the outcome counts
    3. move mark and gap set, answer                             the caller knows
    4. now and then: a checkpoint into the catalog, then older log files are deleted

Damage to the acknowledgement log costs redelivery, never loss: its damaged file is set aside, and marks go on from the
last checkpoint and the records before the damage.
"""

from __future__ import annotations

import sqlite3
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa

from holdfast.clock import NS_PER_S
from holdfast.disk.appendlog import (
    AppendLog,
    LogFile,
    LogSpec,
    Mended,
    log_numbers,
    log_path,
    read_log_file,
    recover_log,
)
from holdfast.disk.filesystem import is_full
from holdfast.errors import (
    BadRequest,
    CorruptData,
    DamagedData,
    DiskFull,
    HoldfastError,
    LimitReached,
    SchemaMismatch,
    StoreFailed,
)
from holdfast.model.frame import EventIds
from holdfast.model.intervals import IntervalSet
from holdfast.model.names import DEAD_SUFFIX
from holdfast.store.catalog import Loss, PublishedSegment
from holdfast.store.channels import Channel
from holdfast.store.ground import ACK_DIR, QUARANTINE_DIR, Ground
from holdfast.store.reading import Position, Reader, chunks_end
from holdfast.store.subscribers.acklog import (
    ACK_NAME,
    NOBODY_ID,
    REASON_CHARS_MAX,
    AckWriter,
    Decision,
    OutcomeRecord,
    PendingOutcomes,
    bounded,
    decode_outcomes,
    encode_snapshot,
)
from holdfast.store.subscribers.deadletters import (
    DEAD_ID,
    ORIGIN_COLUMNS,
    dead_letters,
    in_parts,
    with_opaque_events,
)
from holdfast.store.subscribers.lag import lag_of
from holdfast.store.subscribers.moves import Move, check_start
from holdfast.store.subscribers.progress import Outcome, Progress
from holdfast.store.subscribers.registry import GONE, NOBODY, Claim, Registry, SubscriberState, total_losses
from holdfast.store.subscribers.subscriber import ChannelLag, Spans, SubscriberStatistics
from holdfast.telemetry import event

ALLOCATION_BYTES = 1 << 20
GAPS_MAX = 100_000
"""Ranges one subscriber may have confirmed in one channel: bounds its gap set to some MiB of memory and of snapshot."""
CHECKPOINT_RETRY_NS = NS_PER_S
"""How long a checkpoint waits after the disk was full."""
LOST = ("damage", "unknown")
"""Reasons of the catalog for events that nobody evicted: what damage took, and what nothing tells of any more."""

Commit = Callable[[str, pa.RecordBatch, EventIds], None]
FrameSpans = Callable[[bytes, int], list[tuple[str, int, int]]]
Span = tuple[int, int]


@dataclass(frozen=True, slots=True)
class Going:
    """Events that are about to go: a segment, or the part of one that falls below a limit."""

    first_seq: int
    last_seq: int
    size_bytes: int
    segment_seq: int = 0
    """0 where no segment goes."""


class SubscriberDesk:
    """Implements `subscriber.Desk` for one store."""

    def __init__(
        self,
        ground: Ground,
        reader: Reader,
        *,
        commit: Commit,
        frame_spans: FrameSpans,
        settled: Callable[[int], None],
    ) -> None:
        """`settled(channel_id)` is called when less of a channel is owed than before."""
        self._ground = ground
        self._config = ground.config
        self._clock = ground.clock
        self._catalog = ground.catalog
        self._channels = ground.channels
        self._reader = reader
        self._commit = commit
        self._settled = settled
        self.frame_spans = frame_spans
        self.check_open = ground.tail.check
        self.membership = threading.Lock()
        """Held while subscribers come and go, and while events go: who is told of a loss is who was there."""
        self.registry = Registry(
            ground.catalog, ground.channels, ground.clock, lease_timeout_ns=ground.config.lease_timeout_ns
        )
        self.registry.restore(ground.catalog.subscribers())
        self.damage: CorruptData | None = None
        self.cut: Mended | None = None
        self._inline = True
        log = self._open_log()
        self.writer = AckWriter(
            log, apply=self._apply, fail=ground.tail.fail, due=self._checkpoint_due, checkpoint=self.checkpoint
        )
        self._checkpoint_at_ns = self._clock.monotonic_ns()
        self._postponed_until_ns = 0
        # After an unclean stop of a weak flush policy the next events do not follow the last ones that are there.
        self._skipped = {channel.id: channel.next_seq - 1 for channel in self._channels}
        self._drop_what_is_gone()
        self.checkpoint()

    def use_thread(self) -> None:
        """From now on the writer has a thread of its own."""
        self._inline = False

    # -- opening ----------------------------------------------------------------------------------------------------

    def _open_log(self) -> AppendLog:
        filesystem, store_id = self._ground.filesystem, self._ground.store_id
        folder = self._ground.directory / ACK_DIR
        filesystem.makedir(folder)
        filesystem.sync_dir(self._ground.directory)
        spec = LogSpec(ACK_NAME, self._config.ack_rotation_bytes, allocation_bytes=ALLOCATION_BYTES)
        cursor = self._catalog.cursor("ack")
        number, position, records = 1, 0, 0
        old: dict[int, int] = {}
        try:
            for found, mended in recover_log(
                filesystem, folder, spec=spec, store_id=store_id, from_position=cursor, verify=self._config.verify_crc
            ):
                records += self._replay(found, cursor or 0)
                old[found.header.number] = found.header.start_position
                number, position = found.header.number + 1, found.end_position
                self.cut = mended if mended is not None and mended.cut_bytes else None
        except CorruptData as damage:
            records += self._replay_intact(folder, without=set(old), cursor=cursor or 0)
            number, position = self._set_aside(folder, spec, damage)
            old = {}
        self.registry.crashed()
        log = AppendLog(
            filesystem,
            folder,
            spec=spec,
            store_id=store_id,
            number=number,
            position=position,
            prologue=lambda: [encode_snapshot(self.registry.snapshot())],
        )
        log.sync()
        for older, start in old.items():
            log.adopt(older, start)
        cut_bytes = self.cut.cut_bytes if self.cut else 0
        event("store.recovery.acks", files=len(old), records=records, cut_bytes=cut_bytes)
        return log

    def _replay(self, found: LogFile, cursor: int) -> int:
        """Take the outcomes from the cursor on; all before, and who is subscribed, is in the catalog."""
        fresh = [record for record in found.records if record.position >= cursor]
        for record in fresh:
            self.registry.apply(decode_outcomes(record), again=True)
        return len(fresh)

    def _replay_intact(self, folder: Path, *, without: set[int], cursor: int) -> int:
        """Of a damaged log: what stands before the damage in each file. Outcomes are facts, so their order is none."""
        records = 0
        for number in set(log_numbers(self._ground.filesystem, folder, ACK_NAME)) - without:
            with suppress(DamagedData):  # not even its header can be read
                found = read_log_file(self._ground.filesystem, log_path(folder, ACK_NAME, number), last=True)
                if found.header.store_id == self._ground.store_id:
                    records += self._replay(found, cursor)
        return records

    def _set_aside(self, folder: Path, spec: LogSpec, damage: CorruptData) -> tuple[int, int]:
        """Move the log away, keep what was read of it, and go on behind it."""
        self.damage = damage
        event("store.recovery.ack_damage", file=damage.file, offset_bytes=damage.offset_bytes, reason=damage.reason)
        filesystem = self._ground.filesystem
        quarantine = self._ground.directory / QUARANTINE_DIR
        filesystem.makedir(quarantine)
        numbers = log_numbers(filesystem, folder, spec.name)
        sizes = {entry.name: entry.size_bytes for entry in filesystem.listdir(folder)}
        for number in numbers:
            path = log_path(folder, spec.name, number)
            filesystem.rename(path, quarantine / f"{path.stem}-{self._clock.wall_ns()}.log")
        for directory in (folder, quarantine, self._ground.directory):
            filesystem.sync_dir(directory)
        # no record of the files set aside can be at or above this position
        end = (self._catalog.cursor("ack") or 0) + sum(sizes.values()) + self._config.ack_rotation_bytes
        return max(numbers, default=0) + 1, end

    def _drop_what_is_gone(self) -> None:
        """Events that are in no file any more are owed to nobody."""
        for channel in self._channels:
            with self.registry.lock:
                followers = self.registry.followers(channel)
            gone = self._gone(channel) if followers else []
            for state, progress in followers:
                self._drop(state, channel, progress, gone)

    def _drop(self, state: SubscriberState, channel: Channel, progress: Progress, gone: Sequence[Span]) -> None:
        """Settle what is gone as dropped. Damage took some of it: that is a loss. Evictions were counted before."""
        with self.registry.lock:
            owed = IntervalSet(_still_owed(progress, gone))
        parts: dict[str, list[Span]] = {reason: [] for reason in LOST}
        for first, last, reason in self._lost_parts(channel) if owed else ():
            parts[reason] += owed.overlap(first, last)
        for span in (span for spans in parts.values() for span in spans):
            owed.discard(*span)
        parts[GONE] = list(owed)
        at_ns, number = self._clock.wall_ns(), state.note.subscriber_id
        for reason, spans in parts.items():
            for ranges in bounded(spans):
                self._record([[OutcomeRecord(at_ns, number, channel.id, Outcome.DROPPED, 0, ranges, reason)]])

    def _gone(self, channel: Channel) -> list[Span]:
        """Seqs that were given out, or skipped, and are not there: evicted, below a limit, lost, never used."""
        border, chunks = self._ground.tail.snapshot(channel)  # first: what leaves it is in the catalog by then
        there = IntervalSet((chunk.run.first_seq, chunk.run.first_seq + chunk.run.rows - 1) for chunk in chunks)
        for first, last, _ in self._catalog.segment_spans(channel.id, first_seq=channel.first_seq, last_seq=border - 1):
            there.add(first, last)
        if channel.first_seq > 1:
            there.discard(1, channel.first_seq - 1)
        return list(there.missing(1, max(chunks_end(chunks, border), self._skipped.get(channel.id, 0))))

    # -- who --------------------------------------------------------------------------------------------------------

    def register(self, name: str, channels: Sequence[str], *, start: Position, newest_first: bool) -> SubscriberState:
        """The subscriber of that name, made or changed as asked."""
        check_start(start)
        patterns = tuple(channels)
        known = self.registry.registered(name, patterns, newest_first=newest_first)
        if known is not None:
            return known

        def change() -> SubscriberState:
            with self._typed_errors():
                return self.registry.register(
                    name, patterns, newest_first=newest_first, start=lambda channel: self._join(channel, start)
                )

        with self.membership:
            state = self._change_in_turn(change) if self.registry.has(name) else change()
            with self.registry.lock:
                followed = self.registry.followed(state)
            for channel, progress in followed:
                self._drop(state, channel, progress, [part[:2] for part in self._lost_parts(channel)])
        self._settled_everywhere()
        return state

    def _change_in_turn(self, change: Callable[[], SubscriberState]) -> SubscriberState:
        """Change a subscriber in its turn in the log, at the beginning of a file, behind a checkpoint.

        Otherwise a start, or a repair, would take an ack from before it left a channel for one from after it came back.
        """
        answer: Future[SubscriberState] = Future()

        def decide() -> Decision:
            try:
                self.writer.log.rotate()
                self.writer.log.sync()
                self.checkpoint()
                answer.set_result(change())
            except StoreFailed:
                raise
            except HoldfastError as error:
                answer.set_exception(error)
            return []

        self._record(decide)
        return answer.result()

    def reset(self, name: str, channel: str | None, *, to: Position) -> list[Move]:
        """Put a subscriber at another place, in one channel or in all it follows; returns what that changed."""
        moved: list[Move] = []

        def change() -> SubscriberState:
            state = self.registry.find(name)
            moves, places = self.places(state, channel, to)
            with self._typed_errors():
                self.registry.reset(state, places)
            moved.extend(moves)
            with suppress(DiskFull):  # the catalog has it; a repair without the catalog needs it in the log, too
                self.writer.log.rotate()
                self.writer.log.sync()
                self.checkpoint()
            return state

        with self.membership:
            self._change_in_turn(change)
        self._settled_everywhere()
        return moved

    def places(
        self, state: SubscriberState, channel: str | None, to: Position
    ) -> tuple[list[Move], dict[int, Progress]]:
        """Where a subscriber would be, by channel id. Losses it was told of before are not owed to it again."""
        check_start(to)
        chosen = self._channels.find(channel) if channel is not None else None
        if chosen is not None:
            self._progress_of(state, chosen)
        with self.registry.lock:
            followed = self.registry.followed(state)
        moves: list[Move] = []
        places: dict[int, Progress] = {}
        for found, progress in followed:
            if chosen is None or found is chosen:
                place = places[found.id] = self._join(found, to)
                for first, last, _ in self._lost_parts(found):
                    place.settle(first, last)
                with self.registry.lock:
                    moves.append(Move.between(found.name, progress, place, found.last_seq))
        return moves, places

    def _lost_parts(self, channel: Channel) -> list[tuple[int, int, str]]:
        """What damage took of a channel; whoever starts before it is told."""
        return [part for part in self._catalog.gone(channel.id) if part[2] in LOST]

    def deregister(self, name: str) -> int:
        """Forget a subscriber; returns how many events were still owed to it."""
        with self.membership, self._typed_errors():
            owed = self.registry.deregister(name)
        self._settled_everywhere()
        event("store.subscriber.remove", subscriber=name, owed=owed)
        return owed

    def _settled_everywhere(self) -> None:
        for channel in self._channels.known():
            self._settled(channel.id)

    def _join(self, channel: Channel, start: Position) -> Progress:
        """What is owed from a start position on, clamped to what exists."""
        gone = IntervalSet(self._gone(channel))
        first, last = gone.end_of_run(1) + 1, channel.last_seq
        wanted = last + 1 if start == "new" else self._reader.resolve(channel, start)
        progress = Progress(min(max(first, wanted), last + 1))
        for first_seq, last_seq, _ in self._lost_parts(channel):
            gone.discard(first_seq, last_seq)
        for first_seq, last_seq in gone:
            progress.settle(first_seq, last_seq)
        return progress

    # -- answers ----------------------------------------------------------------------------------------------------

    def settle(
        self, state: SubscriberState, claim: Claim | None, *, outcome: Outcome, spans: Spans, reason: str
    ) -> None:
        """Make an outcome durable and let it take effect. Settled events stay as they are."""
        self._settle(state, claim, outcome=outcome, spans=spans, reason=reason).result()

    def settle_later(
        self, state: SubscriberState, *, outcome: Outcome, spans: Spans, reason: str
    ) -> Future[list[OutcomeRecord]]:
        """The same without waiting for the sync; not for rejections, which wait for their letters."""
        return self._settle(state, None, outcome=outcome, spans=spans, reason=reason)

    def _settle(
        self, state: SubscriberState, claim: Claim | None, *, outcome: Outcome, spans: Spans, reason: str
    ) -> Future[list[OutcomeRecord]]:
        owed: dict[Channel, list[Span]] = {}
        for channel, first, last in spans:
            found = self._channels.find(channel)
            progress = self._progress_of(state, found)
            if not 1 <= first <= last <= found.last_seq:
                raise BadRequest(f"channel {channel!r} has events 1..{found.last_seq}, not {first}..{last}")
            with self.registry.lock:
                parts = progress.owed(first, last)
                if outcome.settles:
                    _check_gaps(state, found, progress, parts)
                owed.setdefault(found, []).extend(parts)
        reason = reason[:REASON_CHARS_MAX]
        if outcome is Outcome.REJECTED:
            for found, parts in owed.items():
                self.bury(found.name, parts, subscriber=state.note.name, reason=reason)
        segment_seq = claim.segment.meta.segment_seq if claim is not None else 0
        at_ns, number = self._clock.wall_ns(), state.note.subscriber_id
        together = [
            OutcomeRecord(at_ns, number, found.id, outcome, segment_seq, ranges, reason)
            for found, parts in owed.items()
            for ranges in bounded(parts)
        ]
        return self._submit([together] if together else [])

    def _progress_of(self, state: SubscriberState, channel: Channel) -> Progress:
        with self.registry.lock:
            progress = self.registry.progress(state, channel)
        if progress is None:
            raise BadRequest(f"subscriber {state.note.name!r} does not follow channel {channel.name!r}")
        return progress

    def tell_going(self, channel: Channel, going: Sequence[Going], *, reason: str) -> list[OutcomeRecord]:
        """Write `dropped` for everybody who is owed some of it; returns what was written, synced."""
        return self._record(lambda: [lines for item in going if (lines := self._dropped(channel, item, reason))])

    def unread(self, channel: Channel, going: Sequence[Going], *, reason: str) -> list[Loss]:
        """The loss where nobody reads, in a channel that keeps events for whoever would have come.

        No outcome tells of it, so the transaction that lets the events go counts it.
        """
        with self.registry.lock:
            if channel.limits.retention_mode != "acked" or self.registry.followers(channel):
                return []
        segments = sum(bool(item.segment_seq) for item in going)
        events = sum(item.last_seq - item.first_seq + 1 for item in going)
        size_bytes = sum(item.size_bytes for item in going)
        return [Loss(channel.name, NOBODY, reason, segments=segments, events=events, bytes=size_bytes)]

    def owes(self, channel: Channel, segment: PublishedSegment) -> bool:
        """Whether anybody is owed some of it."""
        first, last = segment.meta.first_seq, segment.meta.last_seq
        with self.registry.lock:
            return any(not progress.is_settled(first, last) for _, progress in self.registry.followers(channel))

    def _dropped(self, channel: Channel, going: Going, reason: str) -> list[OutcomeRecord]:
        """Who loses what when these events go; once more for the channel as a whole."""
        at_ns, rows = self._clock.wall_ns(), going.last_seq - going.first_seq + 1
        lost = IntervalSet()
        parts: dict[int, list[Span]] = {}
        with self.registry.lock:
            for state, progress in self.registry.followers(channel):
                parts[state.note.subscriber_id] = progress.owed(going.first_seq, going.last_seq)
        for spans in parts.values():
            for first, last in spans:
                lost.add(first, last)
        parts[NOBODY_ID] = list(lost)
        lines = []
        for number, spans in parts.items():
            share = going.size_bytes * sum(last - first + 1 for first, last in spans) // rows
            segment_seq = going.segment_seq
            for ranges in bounded(spans):
                lines.append(
                    OutcomeRecord(at_ns, number, channel.id, Outcome.DROPPED, segment_seq, ranges, reason, bytes=share)
                )
                segment_seq = share = 0  # counted with the first of them
        return lines

    def _record(self, decision: Decision | Callable[[], Decision]) -> list[OutcomeRecord]:
        """Write outcomes to the log and wait for the sync they share with others."""
        return self._submit(decision).result()

    def _submit(self, decision: Decision | Callable[[], Decision]) -> Future[list[OutcomeRecord]]:
        decide = decision if callable(decision) else lambda: decision
        pending = PendingOutcomes(decide, callable(decision), Future())
        if not decision:  # nothing to write, nothing to wait for
            pending.future.set_result([])
            return pending.future
        self.writer.submit(pending)
        if self._inline:
            self.writer.step(wait=False)
        return pending.future

    def _apply(self, outcomes: list[OutcomeRecord]) -> None:
        self.registry.apply(outcomes)
        for channel_id in {record.channel_id for record in outcomes if Outcome(record.outcome).settles}:
            self._settled(channel_id)

    def bury(self, channel: str, spans: Sequence[Span], *, subscriber: str, reason: str) -> None:
        """Copy events to the dead-letter channel. Their ids make a second burial harmless."""
        if channel.endswith(DEAD_SUFFIX):
            return
        for first, last in spans:
            for batch in self.read_span(channel, first, last, columns=None, system=ORIGIN_COLUMNS):
                for part in in_parts(batch, bytes_max=self._config.frame_bytes_max // 2):
                    letters = dead_letters(
                        part, channel, subscriber=subscriber, reason=reason, at_ns=self._clock.wall_ns()
                    )
                    try:
                        self._commit(channel + DEAD_SUFFIX, letters, EventIds(DEAD_ID))
                    except SchemaMismatch:
                        self._commit(channel + DEAD_SUFFIX, with_opaque_events(letters), EventIds(DEAD_ID))

    # -- checkpoints ------------------------------------------------------------------------------------------------

    def _checkpoint_due(self, records: int) -> float:
        now_ns = self._clock.monotonic_ns()
        due_ns = self._checkpoint_at_ns + self._config.ack_checkpoint_interval_ns
        if records >= self._config.ack_checkpoint_records:
            due_ns = now_ns
        return max(0.0, (max(due_ns, self._postponed_until_ns) - now_ns) / NS_PER_S)

    def checkpoint(self) -> None:
        """Keep all progress in the catalog, then forget the log up to here. `DiskFull`: the log is kept longer."""
        self._postponed_until_ns = self._clock.monotonic_ns() + CHECKPOINT_RETRY_NS
        position = self.writer.log.synced_position  # all that has taken effect is below it
        with self._typed_errors(), self.registry.lock:
            self._catalog.checkpoint(*self.registry.unsaved(), ack_cursor=position)
            self.registry.saved()
        self.writer.log.trim(keep_from_number=self.writer.log.number)
        self._checkpoint_at_ns = self._clock.monotonic_ns()
        self._postponed_until_ns = 0

    @contextmanager
    def _typed_errors(self) -> Iterator[None]:
        """A full disk is told as such; any other error of the catalog ends the store."""
        try:
            yield
        except sqlite3.Error as error:
            if is_full(error):
                raise DiskFull(file=self._catalog.path, reason=str(error)) from error
            failure = StoreFailed(file=self._catalog.path, reason=str(error))
            self._ground.tail.fail(failure)
            raise failure from error

    # -- reading ----------------------------------------------------------------------------------------------------

    def read_span(
        self, channel: str, first_seq: int, last_seq: int, *, columns: Sequence[str] | None, system: Sequence[str]
    ) -> Iterator[pa.RecordBatch]:
        """Events of a channel."""
        found = self._channels.find(channel)
        return self._reader.read(found, start=first_seq, end=last_seq, columns=columns, system=system)

    def find_segment(self, segment_seq: int) -> PublishedSegment:
        """A published segment by its number."""
        segment = self._catalog.segment(segment_seq)
        if segment is None:
            raise BadRequest(f"there is no segment {segment_seq}")
        return segment

    def segment_path(self, segment: PublishedSegment) -> Path:
        """Its file, or a copy of it."""
        return self._reader.readable_path(segment)

    def losses(self) -> list[Loss]:
        """All losses since the store was created."""
        with self.registry.lock:  # between the two a checkpoint would count some twice
            return total_losses(self._catalog.losses(), self.registry.pending_losses())

    def statistics_of(self, state: SubscriberState) -> SubscriberStatistics:
        """What people ask about a subscriber."""
        lags = self.lag_of(state)
        with self.registry.lock:
            return SubscriberStatistics(
                name=state.note.name,
                patterns=state.note.patterns,
                newest_first=state.note.newest_first,
                created_at_ns=state.note.created_at_ns,
                leases=len(state.claims),
                waiting=len(state.waiting),
                outcomes={outcome.name.lower(): state.outcomes[outcome] for outcome in Outcome if outcome.is_answer},
                channels=tuple(lags),
            )

    def lag_of(self, state: SubscriberState) -> list[ChannelLag]:
        """How far behind it is, per channel."""
        return lag_of(self._ground, self.registry, state)


def _check_gaps(state: SubscriberState, channel: Channel, progress: Progress, parts: list[Span]) -> None:
    """Refuse answers that leave more holes behind than a subscriber may have."""
    confirmed, mark = progress.confirmed, progress.mark
    islands = sum(1 for first, last in parts if first - 1 not in confirmed and last + 1 not in confirmed)
    if islands and parts[0][0] > mark + 1 and len(confirmed) + islands > GAPS_MAX:
        what = f"subscriber {state.note.name!r} has {len(confirmed)} ranges confirmed in channel {channel.name!r}"
        raise LimitReached(what=what, limit="ranges", allowed=GAPS_MAX)


def _still_owed(progress: Progress, spans: Sequence[Span]) -> list[Span]:
    return [owed for first, last in spans for owed in progress.owed(first, last)]
