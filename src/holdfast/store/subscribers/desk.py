"""Where subscribers meet the store: opening the acknowledgement log, making outcomes durable, dead letters, lag.

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

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future
from datetime import datetime
from pathlib import Path

import pyarrow as pa

from holdfast.clock import NS_PER_S
from holdfast.disk.appendlog import AppendLog, LogFile, LogSpec, log_numbers, log_path, recover_log
from holdfast.errors import BadRequest, CorruptData
from holdfast.model.frame import EventIds
from holdfast.model.intervals import IntervalSet
from holdfast.model.names import DEAD_SUFFIX
from holdfast.store.catalog import Loss, PublishedSegment
from holdfast.store.channels import Channel
from holdfast.store.ground import ACK_DIR, QUARANTINE_DIR, Ground
from holdfast.store.reading import Position, Reader
from holdfast.store.subscribers.acklog import (
    ACK_NAME,
    KIND_OUTCOME,
    KIND_SNAPSHOT,
    REASON_CHARS_MAX,
    AckWriter,
    OutcomeRecord,
    PendingOutcomes,
    decode_outcome,
    decode_snapshot,
    encode_snapshot,
)
from holdfast.store.subscribers.progress import Outcome, Progress
from holdfast.store.subscribers.registry import Claim, Registry, SubscriberState
from holdfast.store.subscribers.subscriber import ChannelLag, SubscriberStatistics
from holdfast.telemetry import event

ALLOCATION_BYTES = 1 << 20
SPANS_MAX = 10_000
"""Ranges in one answer: bounds a record of the log to a few hundred KiB."""

LOST = ("damage", "unknown")
"""Reasons of the catalog for events that nobody evicted: what damage took, and what nothing tells of any more."""

Commit = Callable[[str, pa.RecordBatch, EventIds], None]
FrameSpans = Callable[[bytes, int], list[tuple[str, int, int]]]


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
        """`settled(channel_id)` is called after events of a channel were settled for somebody."""
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
        self.registry = Registry(
            ground.catalog, ground.channels, ground.clock, lease_timeout_ns=ground.config.lease_timeout_ns
        )
        self.registry.restore(ground.catalog.subscribers())
        self.damage: CorruptData | None = None
        self._lost: Counter[tuple[int, int, str]] = Counter()
        self._inline = True
        log = self._open_log()
        self.writer = AckWriter(
            log, apply=self._apply, fail=ground.tail.fail, due=self._checkpoint_due, checkpoint=self.checkpoint
        )
        self._checkpoint_at_ns = self._clock.monotonic_ns()
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
            for found, _ in recover_log(
                filesystem, folder, spec=spec, store_id=store_id, from_position=cursor, verify=self._config.verify_crc
            ):
                records += self._replay(found, cursor or 0)
                old[found.header.number] = found.header.start_position
                number, position = found.header.number + 1, found.end_position
        except CorruptData as damage:
            number, position = self._set_aside(folder, spec, damage)
            old = {}
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
        event("store.recovery.acks", files=len(old), records=records)
        return log

    def _replay(self, found: LogFile, cursor: int) -> int:
        replayed = 0
        for record in found.records:
            if record.position < cursor:
                continue
            replayed += 1
            if record.kind == KIND_SNAPSHOT:
                self.registry.restore(decode_snapshot(record.payload))
            elif record.kind == KIND_OUTCOME:
                outcome = decode_outcome(record.payload)
                self.registry.apply([outcome])
                self._count_lost([outcome])
        return replayed

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
        """Events that are in no segment any more are owed to nobody: their loss was counted when they went."""
        for channel in self._channels:
            with self.registry.lock:
                followers = self.registry.followers(channel)
            if followers:
                there = IntervalSet(self._catalog.segment_spans(channel.id))
                self._drop(channel, followers, list(there.missing(1, channel.published_seq)))

    def drop_what_is_gone(self, state: SubscriberState) -> None:
        """Tell one that starts in the past at once what is not there any more, so that its mark can pass it."""
        with self.registry.lock:
            followed = self.registry.followed(state)
        for channel, progress in followed:
            end = channel.published_seq
            gone = [(first, min(last, end)) for first, last, _ in self._catalog.gone(channel.id) if first <= end]
            self._drop(channel, [(state, progress)], gone)

    def _drop(
        self, channel: Channel, followers: list[tuple[SubscriberState, Progress]], gone: list[tuple[int, int]]
    ) -> None:
        """Settle what is gone as dropped. If damage took it, that is a loss, and counted here."""
        with self.registry.lock:
            everyone = [(state, IntervalSet(_still_owed(progress, gone))) for state, progress in followers]
        concerned = [(state, owed) for state, owed in everyone if owed]
        damaged = [part for part in self._catalog.gone(channel.id) if part[2] in LOST] if concerned else []
        for state, owed in concerned:
            lost = [(*span, reason) for first, last, reason in damaged for span in owed.overlap(first, last)]
            for first, last, _ in lost:
                owed.discard(first, last)
            for reason in (*LOST, "gone"):
                spans = list(owed) if reason == "gone" else [span[:2] for span in lost if span[2] == reason]
                if spans:
                    self.settle(state, None, outcome=Outcome.DROPPED, channel=channel.name, spans=spans, reason=reason)

    def _count_lost(self, outcomes: Iterable[OutcomeRecord]) -> None:
        """Each such outcome is counted once, by the checkpoint that the log position passes it with."""
        for record in outcomes:
            if record.outcome == Outcome.DROPPED and record.reason in LOST:
                key = (record.channel_id, record.subscriber_id, record.reason)
                self._lost[key] += sum(last - first + 1 for first, last in record.ranges)

    def _take_losses(self) -> list[Loss]:
        lost, self._lost = self._lost, Counter()
        names = {state.note.subscriber_id: state.note.name for state in self.registry.states()}
        channels = {channel.id: channel.name for channel in self._channels}
        return [
            Loss(channels[channel_id], names[subscriber_id], reason, segments=0, events=events, bytes=0)
            for (channel_id, subscriber_id, reason), events in lost.items()
            if subscriber_id in names and channel_id in channels
        ]

    # -- answers ----------------------------------------------------------------------------------------------------

    def settle(
        self,
        state: SubscriberState,
        claim: Claim | None,
        *,
        outcome: Outcome,
        channel: str,
        spans: Sequence[tuple[int, int]],
        reason: str,
    ) -> None:
        """Make an outcome durable and let it take effect. Settled events stay as they are."""
        found = self._channels.find(channel)
        with self.registry.lock:
            progress = self.registry.progress(state, found)
        if progress is None:
            raise BadRequest(f"subscriber {state.note.name!r} does not follow channel {channel!r}")
        owed = _still_owed(progress, _checked(found, spans))
        if not owed:
            return
        if outcome is Outcome.REJECTED:
            self._bury(state, channel, owed, reason)
        segment_seq = claim.segment.meta.segment_seq if claim is not None else 0
        self.record([
            OutcomeRecord(self._clock.wall_ns(), state.note.subscriber_id, found.id, int(outcome), segment_seq,
                          tuple(owed[at : at + SPANS_MAX]), reason[:REASON_CHARS_MAX])
            for at in range(0, len(owed), SPANS_MAX)
        ])  # fmt: skip

    def record(self, outcomes: Sequence[OutcomeRecord]) -> None:
        """Write outcomes to the log and wait for the sync they share with others."""
        pending = PendingOutcomes(outcomes, Future())
        self.writer.submit(pending)
        if self._inline:
            self.writer.step(wait=False)
        pending.future.result()

    def _apply(self, outcomes: list[OutcomeRecord]) -> None:
        self.registry.apply(outcomes)
        self._count_lost(outcomes)
        for channel_id in {record.channel_id for record in outcomes}:
            self._settled(channel_id)

    def _bury(self, state: SubscriberState, channel: str, spans: Sequence[tuple[int, int]], reason: str) -> None:
        """Copy events to the dead-letter channel. Their ids make a second burial harmless."""
        if channel.endswith(DEAD_SUFFIX):
            return
        for first, last in spans:
            for batch in self.read_span(
                channel, first, last, columns=None, system=("_seq", "_committed_id", "_ingested_at")
            ):
                dead = dead_letters(
                    batch, channel, subscriber=state.note.name, reason=reason, at_ns=self._clock.wall_ns()
                )
                self._commit(channel + DEAD_SUFFIX, dead, EventIds("dead_id"))

    # -- checkpoints ------------------------------------------------------------------------------------------------

    def _checkpoint_due(self, records: int) -> float:
        if records >= self._config.ack_checkpoint_records:
            return 0.0
        passed_ns = self._clock.monotonic_ns() - self._checkpoint_at_ns
        return max(0.0, (self._config.ack_checkpoint_interval_ns - passed_ns) / NS_PER_S)

    def checkpoint(self) -> None:
        """Keep all progress in the catalog, then forget the log up to here."""
        position = self.writer.log.end_position
        self._catalog.checkpoint(self.registry.take_dirty(), self._take_losses(), ack_cursor=position)
        self.writer.log.trim(keep_from_number=self.writer.log.number)
        self._checkpoint_at_ns = self._clock.monotonic_ns()

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
        """Its file."""
        return self._reader.segment_path(segment.meta.channel, segment)

    def start_seq(self, channel: Channel, start: Position) -> int:
        """A start position as the first seq owed, clamped to what exists."""
        if start == "new":
            return channel.next_seq
        first = min(self._catalog.first_seq(channel.id) or channel.published_seq + 1, channel.next_seq)
        return min(max(first, self._reader.resolve(channel, start)), channel.next_seq)

    def statistics_of(self, state: SubscriberState) -> SubscriberStatistics:
        """What people ask about a subscriber."""
        lags = self.lag_of(state)
        with self.registry.lock:
            outcomes = {outcome.name.lower(): 0 for outcome in Outcome}
            for (_, outcome), events in state.outcomes.items():
                outcomes[outcome.name.lower()] += events
            return SubscriberStatistics(
                name=state.note.name,
                patterns=state.note.patterns,
                newest_first=state.note.newest_first,
                created_at_ns=state.note.created_at_ns,
                leases=len(state.claims),
                waiting=len(state.waiting),
                outcomes=outcomes,
                channels=tuple(lags),
            )

    def lag_of(self, state: SubscriberState) -> list[ChannelLag]:
        """How far behind it is, per channel."""
        with self.registry.lock:
            followed = [(channel, progress.mark, tuple(progress.gaps()), progress.unconfirmed(channel.next_seq - 1))
                        for channel, progress in self.registry.followed(state)]  # fmt: skip
        now_ns = self._clock.wall_ns()
        lags = []
        for channel, mark, gaps, events in followed:
            size_bytes, oldest_ns = self._catalog.backlog(channel.id, after_seq=mark) if events else (0, None)
            seconds = max(0.0, (now_ns - oldest_ns) / NS_PER_S) if oldest_ns is not None else 0.0
            lags.append(ChannelLag(channel.name, mark, gaps, events, size_bytes, seconds))
        return lags


def dead_letters(batch: pa.RecordBatch, channel: str, *, subscriber: str, reason: str, at_ns: int) -> pa.RecordBatch:
    """Events with why they were rejected, by whom, and where they were."""
    names = [name for name in batch.schema.names if not name.startswith("_")]
    rows = batch.num_rows
    seqs = batch.column("_seq")
    events = pa.StructArray.from_arrays(
        [batch.column(name) for name in names], fields=[batch.schema.field(name) for name in names]
    )
    columns = {
        "dead_id": pa.array([f"{subscriber}/{channel}/{seq}" for seq in seqs.to_pylist()]),
        "reason": pa.repeat(pa.scalar(reason[:REASON_CHARS_MAX]), rows),
        "subscriber": pa.repeat(pa.scalar(subscriber), rows),
        "channel": pa.repeat(pa.scalar(channel), rows),
        "seq": seqs,
        "committed_id": batch.column("_committed_id"),
        "ingested_at": batch.column("_ingested_at"),
        "rejected_at": pa.repeat(pa.scalar(at_ns // 1000, pa.timestamp("us", "UTC")), rows),
        "event": events,
    }
    return pa.RecordBatch.from_arrays(list(columns.values()), names=list(columns))


def parse_start(start: Position) -> Position:
    """Refuse what is no start position before anything is registered."""
    ok = start in ("first", "last", "new") if isinstance(start, str) else isinstance(start, int | datetime)
    if not ok or isinstance(start, bool):
        raise BadRequest(f"start={start!r} is no position: 'first', 'new', 'last', a seq or an aware datetime")
    return start


def _checked(channel: Channel, spans: Sequence[tuple[int, int]]) -> Sequence[tuple[int, int]]:
    for first, last in spans:
        if not 1 <= first <= last < channel.next_seq:
            raise BadRequest(f"channel {channel.name!r} has events 1..{channel.next_seq - 1}, not {first}..{last}")
    return spans


def _still_owed(progress: Progress, spans: Sequence[tuple[int, int]]) -> list[tuple[int, int]]:
    return [owed for first, last in spans for owed in progress.owed(first, last)]
