"""The acknowledgement log: one shared, checksummed, append-only log of what became of events for each subscriber.

| kind | record | payload (MessagePack array) |
|---|---|---|
| 1 | SNAPSHOT | opens every file: all subscribers with their progress, for a catalog that must be rebuilt |
| 2 | OUTCOME | time, subscriber id, channel id, outcome, segment number or 0, ranges of seq, reason, bytes |
| 3 | OUTCOMES | several of these that count together or not at all: a loss, with everybody who was owed the events |

Subscriber 0 is nobody in particular: in a loss it stands for the channel, and its ranges count each event once.

Promises:

- `record` returned: the outcomes survive a power cut. Many callers share one sync.
- A loss is decided on the writer's thread, after everything before it has taken effect, so it counts exactly what was
  still owed (G6). Of two final outcomes of one event the first counts.
- What a power cut takes was never answered: it costs redelivery, never a lost or advanced mark (G7).
- Outcomes stay distinguishable in the log until it is trimmed, and in the catalog's totals after that.
- Replay at start is bounded: from the last checkpoint on, at most `ack.checkpoint_records` records and one group, or
  `ack.checkpoint_interval` of them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future

import msgspec
import pyarrow as pa

from holdfast.disk.appendlog import AppendLog, NewRecord
from holdfast.disk.records import Record
from holdfast.errors import DiskFull, HoldfastError, StoreFailed
from holdfast.store.grouping import GroupWorker
from holdfast.store.subscribers.notes import Snapshot

ACK_NAME = "ack"
KIND_SNAPSHOT = 1
KIND_OUTCOME = 2
KIND_OUTCOMES = 3
REASON_CHARS_MAX = 1000
NOBODY_ID = 0
"""No subscriber has this number."""
SPANS_MAX = 10_000
"""Ranges in one record: bounds it to a few hundred KiB."""


class OutcomeRecord(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """One line of the log."""

    at_ns: int
    subscriber_id: int
    channel_id: int
    outcome: int
    segment_seq: int
    ranges: tuple[tuple[int, int], ...]
    reason: str = ""
    bytes: int = 0
    """Of a loss: what the events took on disk."""

    @property
    def events(self) -> int:
        """How many events."""
        return sum(last - first + 1 for first, last in self.ranges)


Decision = list[list[OutcomeRecord]]
"""Records to write; each inner list counts as a whole or not at all."""


def bounded(spans: Sequence[tuple[int, int]]) -> Iterator[tuple[tuple[int, int], ...]]:
    """Ranges in parts that one record may have."""
    for at in range(0, len(spans), SPANS_MAX):
        yield tuple(spans[at : at + SPANS_MAX])


def encode_snapshot(snapshot: Snapshot) -> NewRecord:
    """The record that opens a file."""
    return NewRecord.of(KIND_SNAPSHOT, msgspec.msgpack.encode(snapshot))


def decode_snapshot(payload: pa.Buffer) -> Snapshot:
    """The content of a SNAPSHOT record."""
    return msgspec.msgpack.decode(memoryview(payload), type=Snapshot)


def encode_outcomes(together: Sequence[OutcomeRecord]) -> NewRecord:
    """Outcomes that count together."""
    if len(together) == 1:
        return NewRecord.of(KIND_OUTCOME, msgspec.msgpack.encode(together[0]))
    return NewRecord.of(KIND_OUTCOMES, msgspec.msgpack.encode(together))


def decode_outcomes(record: Record) -> list[OutcomeRecord]:
    """The content of an OUTCOME or OUTCOMES record; nothing of any other."""
    if record.kind == KIND_OUTCOME:
        return [msgspec.msgpack.decode(memoryview(record.payload), type=OutcomeRecord)]
    if record.kind == KIND_OUTCOMES:
        return msgspec.msgpack.decode(memoryview(record.payload), type=list[OutcomeRecord])
    return []


class PendingOutcomes(msgspec.Struct):
    """What one caller wants written, decided when its turn comes."""

    decide: Callable[[], Decision]
    alone: bool
    """Whether the decision depends on what others settle: then all before it takes effect first."""
    future: Future[list[OutcomeRecord]]


class AckWriter(GroupWorker[PendingOutcomes]):
    """Owns the log. `apply` is called with the outcomes of a group after its sync, before the answers."""

    def __init__(
        self,
        log: AppendLog,
        *,
        apply: Callable[[list[OutcomeRecord]], None],
        fail: Callable[[StoreFailed], None],
        due: Callable[[int], float],
        checkpoint: Callable[[], None],
    ) -> None:
        """`due(records)` is in how many seconds a checkpoint should be made, given the records since the last one.

        `checkpoint` raises `DiskFull` to be called again later.
        """
        super().__init__("ack log")
        self.log = log
        self._apply = apply
        self._fail = fail
        self._due = due
        self._checkpoint = checkpoint
        self.records_since_checkpoint = 0
        self.records = self.syncs = 0

    def item_bytes(self, item: PendingOutcomes) -> int:  # noqa: ARG002  decided later
        """Roughly; outcomes are small."""
        return 100

    def seconds_until_due(self) -> float | None:
        """When the next checkpoint is due."""
        return self._due(self.records_since_checkpoint) if self.records_since_checkpoint else None

    def tick(self, *, closing: bool) -> None:
        """Make a checkpoint when it is due."""
        due = self.records_since_checkpoint and (closing or self._due(self.records_since_checkpoint) <= 0)
        if not due or self.log.failure is not None:
            return
        try:
            self._checkpoint()
        except DiskFull:
            return
        except Exception as error:  # whatever it is, a writer that stopped in silence would leave callers waiting
            self._fail(self._as_failure(error))
        self.records_since_checkpoint = 0

    def process(self, group: list[PendingOutcomes]) -> None:
        """Decide, write, sync, apply, answer."""
        for together in _turns(group):
            self._take_turn(together)

    def _take_turn(self, items: list[PendingOutcomes]) -> None:
        try:
            decided = [item.decide() for item in items]
            records = [encode_outcomes(together) for decision in decided for together in decision]
            if records:
                self._write(records)
            answers = [[outcome for together in decision for outcome in together] for decision in decided]
            self._apply([outcome for answer in answers for outcome in answer])
        except DiskFull as error:
            _refuse(items, error)
        except Exception as error:  # a caller that waits for an answer gets one
            failure = self._as_failure(error)
            self._fail(failure)
            _refuse(items, failure)
        else:
            self.records += len(records)
            self.records_since_checkpoint += len(records)
            for item, answer in zip(items, answers, strict=True):
                item.future.set_result(answer)

    def _write(self, records: list[NewRecord]) -> None:
        if not self.log.fits(sum(record.payload_bytes + 64 for record in records)):
            self.log.rotate()
        self.log.append(records)
        self.log.sync()
        self.syncs += 1

    def _as_failure(self, error: Exception) -> StoreFailed:
        if isinstance(error, StoreFailed):
            return error
        return StoreFailed(file=self.log.path, reason=f"{type(error).__name__}: {error}")


def _turns(group: list[PendingOutcomes]) -> Iterator[list[PendingOutcomes]]:
    """Items that may share a sync."""
    turn: list[PendingOutcomes] = []
    for item in group:
        if item.alone and turn:
            yield turn
            turn = []
        turn.append(item)
        if item.alone:
            yield turn
            turn = []
    if turn:
        yield turn


def _refuse(items: list[PendingOutcomes], error: HoldfastError) -> None:
    for item in items:
        item.future.set_exception(error)
