"""What makes a repeat harmless: which frames were accepted, and where they went.

Promises (G3):

- A frame of a slot is recognised for ever: per slot the accepted frame numbers are a set of ranges, in memory for the
  slots heard of last and for those with frames that are not published yet, in the catalog for all others. A slot is
  forgotten here only after the catalog was asked and has all of its ranges; when it is heard of again, they are read
  back.
- A GUID is recognised for `dedup.window` after it was accepted, also across restarts, unless more than
  `dedup.max_guids` came since; those forgotten early are counted.
- The answer to a repeat is the original receipt. Recent ones are kept; older ones are found in the segments.

State is rebuilt from log and segments at start; nothing here is the only copy. Time is monotonic: a jump of the wall
clock forgets nothing.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Iterable, Sequence
from typing import TypeAlias

from msgspec.structs import replace

from holdfast.clock import Clock
from holdfast.config import StoreConfig
from holdfast.model.frame import FrameReceipt, Guid, Identity, PlainFrame, SlotFrame
from holdfast.model.intervals import IntervalSet
from holdfast.store.catalog import Catalog

RECENT_MAX = 65_536
"""Receipts of slot frames kept in memory: more than a sender has in flight when it reconnects."""
SLOTS_MAX = 65_536
"""Slots whose ranges are kept in memory, about 25 MiB: six times the connections a server takes, each with a slot. Each
opening of a producer makes a new one (decision 0008), so nothing else bounds their number. Those with frames in the
tail are kept beyond it; the tail is bounded by `memory_limit`."""
LOOKS = 2
"""How many of the oldest slots are looked at for each that is heard of: one more than come."""

FindOriginal = Callable[[SlotFrame], FrameReceipt]
Row: TypeAlias = tuple[bytes, int, int]
"""Slot, first and last frame number of frames that came one after the other."""


class Dedup:
    """Written by the committer; looked up by any thread."""

    def __init__(self, config: StoreConfig, clock: Clock, *, catalog: Catalog, find_original: FindOriginal) -> None:
        self._window_ns = config.dedup_window_ns
        self._guids_max = config.dedup_guids_max
        self._clock = clock
        self._catalog = catalog
        self._find_original = find_original
        self._lock = threading.Lock()  # a set of ranges that takes one in is two lists of unequal length for a moment
        self._slots: OrderedDict[bytes, IntervalSet] = OrderedDict()
        """Those heard of last are at the end."""
        self._unpublished: set[bytes] = set()
        """Slots with ranges that the catalog may not have."""
        self._forgotten = 0
        self._recent: OrderedDict[SlotFrame, FrameReceipt] = OrderedDict()
        self._guids: OrderedDict[bytes, tuple[int, FrameReceipt]] = OrderedDict()
        self.guids_forgotten_early = 0

    def find(self, identity: Identity) -> FrameReceipt | None:
        """The receipt of the first time, marked as a duplicate; None if this is the first time."""
        if isinstance(identity, SlotFrame):
            return self._find_slot_frame(identity)
        if isinstance(identity, Guid):
            entry = self._guids.get(identity.value)
            if entry is not None and entry[0] > self._clock.monotonic_ns():
                return as_duplicate(entry[1])
        return None

    def needs_disk(self, identity: Identity) -> bool:
        """Whether `find` would read the disk: the slot is not in memory, or the receipt is an old one."""
        if not isinstance(identity, SlotFrame):
            return False
        with self._lock:
            seen = self._slots.get(identity.slot_id)
            if seen is None:
                return True
            self._slots.move_to_end(identity.slot_id)  # so that it is still there for `find`
            return identity.fsn in seen and identity not in self._recent

    def any_known(self, frames: Sequence[PlainFrame]) -> bool:
        """Whether one of them may be a repeat, also of another of them, or it takes the disk to tell."""
        identities = [frame.identity for frame in frames if frame.identity is not None]
        rows, others = _in_rows(identities)
        if (others or len(rows) > 1) and len(set(identities)) < len(identities):
            return True
        if any([isinstance(identity, Guid) and identity.value in self._guids for identity in others]):
            return True
        with self._lock:
            for slot_id, first, last in rows:
                seen = self._slots.get(slot_id)
                if seen is None or seen.overlap(first, last):
                    return True
        return False

    def _find_slot_frame(self, frame: SlotFrame) -> FrameReceipt | None:
        seen = self._ranges_of(frame.slot_id)
        with self._lock:
            if frame.fsn not in seen:
                return None
        receipt = self._recent.get(frame)
        return as_duplicate(receipt if receipt is not None else self._find_original(frame))

    def _ranges_of(self, slot_id: bytes, *, to_add: bool = False) -> IntervalSet:
        """The ranges of a slot, read back if they are not in memory; they stay there if somebody is `to_add` some."""
        loaded, loaded_at = None, -1
        while True:
            with self._lock:
                seen = self._slots.get(slot_id)
                if seen is None and loaded is not None and loaded_at == self._forgotten:
                    seen = self._slots[slot_id] = loaded
                if seen is not None:
                    if to_add:
                        self._unpublished.add(slot_id)
                    self._slots.move_to_end(slot_id)
                    self._forget_oldest()
                    return seen
                loaded_at = self._forgotten  # if one is forgotten meanwhile, it may be this one, with more in it
            loaded = IntervalSet(self._catalog.slot_ranges(slot_id))

    def _forget_oldest(self) -> None:
        """Keep within the bound, as far as old slots are known to be in the catalog. Under the lock."""
        for _ in range(LOOKS):
            if len(self._slots) <= SLOTS_MAX:
                return
            slot_id = next(iter(self._slots))
            if slot_id in self._unpublished:
                self._slots.move_to_end(slot_id)
            else:
                del self._slots[slot_id]
                self._forgotten += 1

    def _compare_oldest(self, count: int) -> None:
        """Ask the catalog which of the oldest slots it has by now. Only the committer does, and only it adds ranges: so
        nobody adds some meanwhile."""
        for _ in range(count):
            with self._lock:
                if len(self._slots) <= SLOTS_MAX:
                    return
                slot_id, seen = next(iter(self._slots.items()))
            if slot_id in self._unpublished:
                published = IntervalSet(self._catalog.slot_ranges(slot_id))
                if all([published.covers(first, last) for first, last in seen]):
                    self._unpublished.discard(slot_id)
            with self._lock:
                self._forget_oldest()

    def remember(self, identity: Identity, receipt: FrameReceipt, *, age_ns: int = 0) -> None:
        """Note an accepted frame. `age_ns` is how long ago that was, for frames found at start."""
        if isinstance(identity, SlotFrame):
            self._remember_rows([(identity.slot_id, identity.fsn, identity.fsn)], {identity: receipt})
        elif isinstance(identity, Guid):
            self._remember_guid(identity.value, receipt, max(0, age_ns))

    def remember_all(self, accepted: dict[Identity, FrameReceipt]) -> None:
        """Note the frames of a group."""
        rows, others = _in_rows(accepted)
        for identity in others:
            self.remember(identity, accepted[identity])
        if rows:
            self._remember_rows(rows, {i: r for i, r in accepted.items() if type(i) is SlotFrame})

    def _remember_rows(self, rows: list[Row], receipts: dict[SlotFrame, FrameReceipt]) -> None:
        self._recent.update(receipts)  # first: whoever finds a frame in its slot finds its receipt
        slots, unpublished = self._slots, self._unpublished
        for slot_id, first, last in rows:
            with self._lock:
                seen = slots.get(slot_id)
                if seen is not None:
                    seen.add(first, last)
                    unpublished.add(slot_id)
                    slots.move_to_end(slot_id)
                    continue
            seen = self._ranges_of(slot_id, to_add=True)
            with self._lock:
                seen.add(first, last)
        if len(self._slots) > SLOTS_MAX:
            self._compare_oldest(LOOKS * len(rows))
        while len(self._recent) > RECENT_MAX:
            self._recent.popitem(last=False)

    def _remember_guid(self, guid: bytes, receipt: FrameReceipt, age_ns: int) -> None:
        now_ns = self._clock.monotonic_ns()
        if age_ns >= self._window_ns:
            return
        self._guids.pop(guid, None)  # one that expired and came again moves to the end
        self._guids[guid] = (now_ns + self._window_ns - age_ns, receipt)
        while self._guids and next(iter(self._guids.values()))[0] <= now_ns:
            self._guids.popitem(last=False)
        if len(self._guids) > self._guids_max:
            self._guids.popitem(last=False)
            self.guids_forgotten_early += 1

    def slot_count(self) -> int:
        """How many slots are in memory."""
        return len(self._slots)

    def guid_count(self) -> int:
        """How many GUIDs are remembered."""
        return len(self._guids)


def _in_rows(identities: Iterable[Identity]) -> tuple[list[Row], list[Identity]]:
    """Frames that a producer sent one after the other, as rows; and all that are no frames of slots."""
    rows: list[Row] = []
    others: list[Identity] = []
    slot_id, first, last = b"", 0, -1
    for identity in identities:
        if type(identity) is not SlotFrame:
            others.append(identity)
        elif identity.fsn == last + 1 and identity.slot_id == slot_id:
            last += 1
        else:
            if first <= last:
                rows.append((slot_id, first, last))
            slot_id, first, last = identity.slot_id, identity.fsn, identity.fsn
    if first <= last:
        rows.append((slot_id, first, last))
    return rows, others


def as_duplicate(receipt: FrameReceipt) -> FrameReceipt:
    """The same positions, said a second time."""
    return replace(receipt, duplicate=True, entries=tuple(replace(entry, duplicate=True) for entry in receipt.entries))


def merge_ranges(numbers: Iterable[int]) -> list[tuple[int, int]]:
    """Single numbers as ranges."""
    merged = IntervalSet()
    for number in sorted(numbers):
        merged.add(number, number)
    return list(merged)
