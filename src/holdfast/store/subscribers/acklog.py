"""The acknowledgement log: one shared, checksummed, append-only log of what became of events for each subscriber.

| kind | record | payload (MessagePack array) |
|---|---|---|
| 1 | SNAPSHOT | opens every file: all subscribers with their progress, so that each file stands alone |
| 2 | OUTCOME | time, subscriber id, channel id, outcome, segment number or 0, ranges of seq, reason |

Promises:

- `record` returned: the outcomes survive a power cut. Many callers share one sync.
- What a power cut takes was never answered: it costs redelivery, never a lost or advanced mark (G7).
- Outcomes stay distinguishable in the log until it is trimmed, and in the catalog's totals after that.
- Replay at start is bounded: from the last checkpoint on, at most `ack.checkpoint_records` records or
  `ack.checkpoint_interval` of them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import Future

import msgspec
import pyarrow as pa

from holdfast.disk.appendlog import AppendLog, NewRecord
from holdfast.disk.checksum import crc32c
from holdfast.errors import DiskFull, StoreFailed
from holdfast.store.grouping import GroupWorker
from holdfast.store.subscribers.notes import Snapshot

ACK_NAME = "ack"
KIND_SNAPSHOT = 1
KIND_OUTCOME = 2
REASON_CHARS_MAX = 1000


class OutcomeRecord(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """One line of the log."""

    at_ns: int
    subscriber_id: int
    channel_id: int
    outcome: int
    segment_seq: int
    ranges: tuple[tuple[int, int], ...]
    reason: str = ""


def encode_snapshot(snapshot: Snapshot) -> NewRecord:
    """The record that opens a file."""
    return NewRecord.of(KIND_SNAPSHOT, msgspec.msgpack.encode(snapshot))


def decode_snapshot(payload: pa.Buffer) -> Snapshot:
    """The content of a SNAPSHOT record."""
    return msgspec.msgpack.decode(memoryview(payload), type=Snapshot)


def decode_outcome(payload: pa.Buffer) -> OutcomeRecord:
    """The content of an OUTCOME record."""
    return msgspec.msgpack.decode(memoryview(payload), type=OutcomeRecord)


def encode_outcome(record: OutcomeRecord) -> NewRecord:
    """One outcome."""
    payload = msgspec.msgpack.encode(record)
    return NewRecord(KIND_OUTCOME, (payload,), len(payload), crc32c(payload))


class PendingOutcomes(msgspec.Struct):
    """Outcomes of one caller, answered together."""

    outcomes: Sequence[OutcomeRecord]
    future: Future[None]


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
        """`due(records)` is in how many seconds a checkpoint should be made, given the records since the last one."""
        super().__init__("ack log")
        self.log = log
        self._apply = apply
        self._fail = fail
        self._due = due
        self._checkpoint = checkpoint
        self.records_since_checkpoint = 0
        self.records = self.syncs = 0

    def item_bytes(self, item: PendingOutcomes) -> int:
        """Roughly; outcomes are small."""
        return 100 * len(item.outcomes)

    def seconds_until_due(self) -> float | None:
        """When the next checkpoint is due."""
        return self._due(self.records_since_checkpoint) if self.records_since_checkpoint else None

    def tick(self, *, closing: bool) -> None:
        """Make a checkpoint when it is due."""
        due = self.records_since_checkpoint and (closing or self._due(self.records_since_checkpoint) <= 0)
        if due and self.log.failure is None:
            try:
                self._checkpoint()
            except StoreFailed as failure:
                self._fail(failure)
            self.records_since_checkpoint = 0

    def process(self, group: list[PendingOutcomes]) -> None:
        """Write, sync, apply, answer."""
        outcomes = [outcome for item in group for outcome in item.outcomes]
        try:
            self._write([encode_outcome(outcome) for outcome in outcomes])
        except (DiskFull, StoreFailed) as error:
            if isinstance(error, StoreFailed):
                self._fail(error)
            for item in group:
                item.future.set_exception(error)
            return
        self._apply(outcomes)
        self.records += len(outcomes)
        self.records_since_checkpoint += len(outcomes)
        for item in group:
            item.future.set_result(None)

    def _write(self, records: list[NewRecord]) -> None:
        if not self.log.fits(sum(record.payload_bytes + 64 for record in records)):
            self.log.rotate()
        self.log.append(records)
        self.log.sync()
        self.syncs += 1
