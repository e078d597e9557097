"""Where the events of an accepted frame are, long after the answer was given: in memory, or in segments.

Promise: as long as an event of a frame is stored here, its receipt can be given again. Parts whose events are gone, or
are only in the tier, are left out of it: those who ask are on the way of a commit, which waits for no network. Nobody
waits for such a part to become durable: it is.
"""

from __future__ import annotations

from collections.abc import Iterator

from holdfast.model.frame import Durability, FrameReceipt, Receipt, SlotFrame
from holdfast.model.positions import CommittedId, Fsn, Seq
from holdfast.store.ground import Ground
from holdfast.store.reading import Reader
from holdfast.store.segments.runs import Run


class Originals:
    """Looks frames up. Thread-safe."""

    def __init__(self, ground: Ground, reader: Reader) -> None:
        self._ground = ground
        self._reader = reader

    def of_frame(self, frame: SlotFrame, *, waits: bool = False) -> FrameReceipt:
        """The receipt of a frame that was accepted long ago; empty when its events are gone.

        One who `waits` also gets parts that are only in the tier.
        """
        receipts = []
        for channel in self._ground.channels:  # before the segments: what leaves memory meanwhile is found there
            _, chunks = self._ground.tail.snapshot(channel)
            receipts += [
                _receipt(channel.name, chunk.run)
                for chunk in chunks
                if (chunk.run.slot_id, chunk.run.fsn) == (frame.slot_id, frame.fsn)
            ]
        for segment in self._ground.catalog.segments_of_frame(frame.slot_id, frame.fsn):
            if segment.remote and not waits:
                continue
            runs = self._reader.run_table(segment, segment.meta.channel)
            found = runs.find_fsn(frame.slot_id, frame.fsn) if runs is not None else ()
            receipts += [_receipt(segment.meta.channel, run) for run in found]
        return _frame_receipt(receipts)

    def spans(self, slot_id: bytes, fsn: int) -> list[tuple[str, int, int]]:
        """Channel, first and last seq of each part of a frame."""
        receipt = self.of_frame(SlotFrame(slot_id, Fsn(fsn)), waits=True)
        return [(entry.channel, entry.first_seq, entry.last_seq) for entry in receipt.entries]

    def guids_since(self, time_ns: int) -> Iterator[tuple[bytes, FrameReceipt, int]]:
        """GUID, receipt and ingestion time of the frames in segments that came in since, oldest first."""
        receipts: dict[bytes, list[Receipt]] = {}
        times_ns: dict[bytes, int] = {}
        for segment in self._ground.catalog.guid_segments(since_ns=time_ns):
            runs = self._reader.run_table(segment, segment.meta.channel)
            for guid, run in runs.guids() if runs is not None else ():
                receipts.setdefault(guid, []).append(_receipt(segment.meta.channel, run))
                times_ns[guid] = run.ingested_at_ns
        for guid in sorted(times_ns, key=times_ns.__getitem__):
            yield guid, _frame_receipt(receipts[guid]), times_ns[guid]


def gone(channel: str) -> Receipt:
    """The answer to a repeat whose events were evicted."""
    return Receipt(channel, Seq(0), Seq(0), CommittedId(0), duplicate=True, durability=Durability.SYNCED)


def _receipt(channel: str, run: Run) -> Receipt:
    first, last = Seq(run.first_seq), Seq(run.first_seq + run.rows - 1)
    position = CommittedId(run.first_committed_id)
    return Receipt(channel, first, last, position, duplicate=False, durability=Durability.SYNCED)


def _frame_receipt(receipts: list[Receipt]) -> FrameReceipt:
    unique = sorted(set(receipts), key=lambda receipt: receipt.first_committed_id)
    return FrameReceipt(tuple(unique), duplicate=False, durability=Durability.SYNCED)
