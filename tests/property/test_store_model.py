"""The store against a model of it: whatever is done in whatever order, both hold the same events.

The store runs on the crash disk, so the rules can close it, kill it and cut the power, between calls and inside them.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from holdfast import Store
from holdfast.clock import NS_PER_S
from holdfast.errors import Closed, SchemaMismatch, UnknownChannel
from holdfast.model.frame import Entry, EventIds, FrameReceipt, Guid, Identity, SlotFrame
from holdfast.model.positions import Fsn
from holdfast.testing import CrashFilesystem, ManualClock, PowerCut

TINY: dict[str, object] = {
    "segment.target_size": "4KiB",
    "segment.direct_size": "1KiB",
    "wal.rotation_size": "64KiB",
    "wal.max_size": "1MiB",
    "memory_limit": "64KiB",
    "frame.max_size": "32KiB",
}
WINDOW_NS = 300 * NS_PER_S
CHANNELS = ("a", "b", "c")

pytestmark = [pytest.mark.guarantee("G1"), pytest.mark.guarantee("G3"), pytest.mark.guarantee("G4")]

# --- the model ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Stored:
    """One event."""

    n: int
    committed_id: int
    ingested_at_ns: int
    slot_id: bytes | None
    fsn: int | None


@dataclass
class Model:
    """What a store is, without a disk."""

    channels: dict[str, list[Stored]] = field(default_factory=dict)
    next_committed_id: int = 1
    answers: dict[Identity, tuple[int, list[tuple[str, int, int, int]]]] = field(default_factory=dict)
    """Identity to the time and the positions of the first answer."""

    def known(self, identity: Identity, now_ns: int) -> list[tuple[str, int, int, int]] | None:
        if identity not in self.answers:
            return None
        at_ns, positions = self.answers[identity]
        expired = isinstance(identity, Guid) and now_ns >= at_ns + WINDOW_NS
        return None if expired else positions

    def commit(
        self, frame: dict[str, list[int]], identity: Identity, now_ns: int
    ) -> tuple[list[tuple[str, int, int, int]], bool]:
        """Positions of the entries, and whether the frame was a repeat."""
        known = self.known(identity, now_ns)
        if known is not None:
            return known, True
        positions = [self._append(channel, numbers, identity, now_ns) for channel, numbers in frame.items()]
        if identity is not None and any(frame.values()):
            self.answers[identity] = (now_ns, positions)
        return positions, False

    def _append(self, channel: str, numbers: list[int], identity: Identity, now_ns: int) -> tuple[str, int, int, int]:
        if not numbers:
            return (channel, 0, 0, 0)
        events = self.channels.setdefault(channel, [])
        first_seq, first_id = len(events) + 1, self.next_committed_id
        slot_id, fsn = (identity.slot_id, int(identity.fsn)) if isinstance(identity, SlotFrame) else (None, None)
        events += [Stored(n, first_id + offset, now_ns, slot_id, fsn) for offset, n in enumerate(numbers)]
        self.next_committed_id += len(numbers)
        return (channel, first_seq, len(events), first_id)

    def in_commit_order(self) -> list[tuple[str, int]]:
        ordered = sorted(
            (event.committed_id, channel, event.n) for channel in self.channels for event in self.channels[channel]
        )
        return [(channel, n) for _, channel, n in ordered]


# --- the machine ----------------------------------------------------------------------------------------------------

SHAPES = ("narrow", "wide", "words")
counts = st.integers(0, 5)
frames = st.dictionaries(st.sampled_from(CHANNELS), counts, min_size=1)
identities: st.SearchStrategy[Identity] = st.one_of(
    st.none(),
    st.builds(SlotFrame, st.sampled_from((b"s" * 16, b"t" * 16)), st.integers(0, 12).map(Fsn)),
    st.builds(Guid, st.sampled_from([bytes([n]) * 16 for n in range(6)])),
)


def batch(numbers: list[int], shape: str, padding: int) -> pa.RecordBatch:
    """Events in one of the shapes that a channel's schema grows through."""
    columns: dict[str, pa.Array] = {
        "n": pa.array(numbers, pa.int32() if shape == "narrow" else pa.int64()),
        "pad": pa.array([b"%d" % n * padding for n in numbers], pa.binary()),
    }
    if shape == "words":
        words = pa.array([f"w{n % 7}" for n in numbers], pa.string())
        columns["word"] = words.dictionary_encode()
    return pa.record_batch(columns)


def positions(receipt: FrameReceipt) -> list[tuple[str, int, int, int]]:
    return [(entry.channel, entry.first_seq, entry.last_seq, entry.first_committed_id) for entry in receipt.entries]


class StoreMachine(RuleBasedStateMachine):
    """A store and its model, kept in step."""

    def __init__(self) -> None:
        super().__init__()
        self.clock = ManualClock()
        self.disk = CrashFilesystem()
        self.model = Model()
        self.shapes: dict[str, str] = {}
        self.next_n = 1000  # above the numbers of events with ids
        self.store = self.open()

    def open(self) -> Store:
        return Store.open("/store", TINY, filesystem=self.disk, clock=self.clock, inline=True)

    def entries(self, frame: dict[str, int], shape: str, padding: int) -> tuple[list[Entry], dict[str, list[int]]]:
        numbers: dict[str, list[int]] = {}
        for channel, count in frame.items():
            numbers[channel] = list(range(self.next_n, self.next_n + count))
            self.next_n += count
        return [Entry(channel, batch(ns, shape, padding)) for channel, ns in numbers.items()], numbers

    # -- writing

    @rule(frame=frames, identity=identities, shape=st.sampled_from(SHAPES), padding=st.sampled_from((0, 1, 200)))
    def commit(self, frame: dict[str, int], identity: Identity, shape: str, padding: int) -> None:
        entries, numbers = self.entries(frame, shape, padding)
        receipt = self.store.commit_frame(entries, identity=identity)
        expected, duplicate = self.model.commit(numbers, identity, self.clock.wall_ns())
        found = positions(receipt)
        if duplicate:  # entries without events are not kept, so a repeat may answer without them
            found, expected = [item for item in found if item[1]], [item for item in expected if item[1]]
        assert (found, receipt.duplicate) == (expected, duplicate)

    @rule(ids=st.lists(st.integers(1, 40), min_size=1, max_size=6, unique=True))
    def commit_events_with_ids(self, ids: list[int]) -> None:
        """Ids that are stored are left out, the others are stored."""
        stored = {event.n for event in self.model.channels.get("ids", [])}
        fresh = [n for n in ids if n not in stored]
        receipt = self.store.commit("ids", batch(ids, "wide", 1), identity=EventIds("n"))
        expected, _ = self.model.commit({"ids": fresh}, None, self.clock.wall_ns())
        assert receipt.duplicate == (not fresh)
        assert receipt.duplicate_events == len(ids) - len(fresh)
        if fresh:
            assert (receipt.first_seq, receipt.last_seq) == expected[0][1:3]

    @rule(channel=st.sampled_from(CHANNELS))
    def refuse_a_column_of_another_type(self, channel: str) -> None:
        if channel in self.model.channels:
            with pytest.raises(SchemaMismatch):
                self.store.commit(channel, pa.record_batch({"n": pa.array(["text"])}))

    @rule(seconds=st.sampled_from((0.001, 1, 10, 299, 300)))
    def wait(self, seconds: float) -> None:
        self.clock.advance(seconds)

    @rule()
    def flush(self) -> None:
        self.store.flush()

    # -- ending

    @rule()
    def close_and_reopen(self) -> None:
        self.store.close()
        with pytest.raises(Closed):
            self.store.read("a")
        self.store = self.open()
        assert self.store.recovery.recovered_events == 0

    @rule()
    def kill_and_reopen(self) -> None:
        """Process death between two calls."""
        self.disk = self.disk.after_kill()
        self.store = self.open()

    @rule(seed=st.integers(0, 1000))
    def cut_the_power_and_reopen(self, seed: int) -> None:
        """Power loss between two calls."""
        self.disk = self.disk.after_power_cut(seed)
        self.store = self.open()

    @rule(frame=frames, identity=identities, calls=st.integers(1, 14), seed=st.integers(0, 1000))
    def cut_the_power_inside_a_commit(self, frame: dict[str, int], identity: Identity, calls: int, seed: int) -> None:
        """Power loss inside a call: the frame is there as a whole or not at all."""
        entries, numbers = self.entries(frame, "wide", 100)
        self.disk.cut_at(self.disk.calls + calls)
        self.until_power_goes(lambda: self.store.commit_frame(entries, identity=identity))
        self.disk = self.disk.after_power_cut(seed)
        self.store = self.open()
        duplicate = self.model.known(identity, self.clock.wall_ns()) is not None
        first = next((ns[0] for ns in numbers.values() if ns), None)
        if first is not None and not duplicate and self.holds(first):
            self.model.commit(numbers, identity, self.clock.wall_ns())

    def until_power_goes(self, action: Callable[[], Any]) -> None:
        """The action, then flushes, until there is no power any more."""
        with suppress(PowerCut):
            action()
            while True:
                self.store.flush()
                self.store.close()
                self.store = self.open()

    def holds(self, n: int) -> bool:
        return any(n in found.column("n").to_pylist() for _, found in self.store.read_committed())

    # -- reading

    @invariant()
    def both_hold_the_same_events(self) -> None:
        found = [(channel, n) for channel, part in self.store.read_committed() for n in part.column("n").to_pylist()]
        assert found == self.model.in_commit_order()

    @precondition(lambda self: self.model.channels)
    @rule(data=st.data())
    def read_a_range(self, data: st.DataObject) -> None:
        channel = data.draw(st.sampled_from(sorted(self.model.channels)))
        events = self.model.channels[channel]
        start = data.draw(st.integers(0, len(events) + 2))
        end = data.draw(st.one_of(st.none(), st.integers(0, len(events) + 2)))
        system = ("_seq", "_committed_id", "_slot_id", "_fsn", "_channel")
        rows = [
            row
            for part in self.store.read(channel, start=start, end=end, columns=["n"], system=system)
            for row in part.to_pylist()
        ]
        last = len(events) if end is None else min(end, len(events))
        found = [tuple(row.values()) for row in rows]
        assert found == [
            (event.n, seq, event.committed_id, event.slot_id, event.fsn, channel)
            for seq, event in enumerate(events, 1)
            if max(1, start) <= seq <= last
        ]

    @precondition(lambda self: self.model.channels)
    @rule(data=st.data())
    def read_by_time(self, data: st.DataObject) -> None:
        channel = data.draw(st.sampled_from(sorted(self.model.channels)))
        events = self.model.channels[channel]
        times = sorted({event.ingested_at_ns for event in events} | {self.clock.wall_ns()})
        start_ns = data.draw(st.sampled_from(times))
        end_ns = data.draw(st.sampled_from(times))
        found = self.store.read(channel, start=moment(start_ns), end=moment(end_ns))
        expected = [event.n for event in events if start_ns <= event.ingested_at_ns < end_ns]
        assert [n for part in found for n in part.column("n").to_pylist()] == expected

    @rule(channel=st.sampled_from(CHANNELS))
    def read_the_last_event(self, channel: str) -> None:
        if channel in self.model.channels:
            (part,) = self.store.read(channel, start="last")
            assert part.column("n").to_pylist() == [self.model.channels[channel][-1].n]

    @rule(start=st.integers(0, 200), count=st.integers(0, 60))
    def read_by_committed_id(self, start: int, count: int) -> None:
        found = [
            (channel, n)
            for channel, part in self.store.read_committed(start=start, end=start + count)
            for n in part.column("n").to_pylist()
        ]
        expected = sorted(
            (event.committed_id, channel, event.n)
            for channel, events in self.model.channels.items()
            for event in events
            if start <= event.committed_id <= start + count
        )
        assert found == [(channel, n) for _, channel, n in expected]

    @rule()
    def read_a_channel_that_does_not_exist(self) -> None:
        with pytest.raises(UnknownChannel):
            self.store.read("never")


def moment(time_ns: int) -> datetime:
    """Nanoseconds as a moment; our times are whole microseconds."""
    return datetime(1970, 1, 1, tzinfo=UTC) + timedelta(microseconds=time_ns // 1000)


TestStoreModel: Any = StoreMachine.TestCase
TestStoreModel.settings = settings(stateful_step_count=25)
