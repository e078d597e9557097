"""Two stores share a size cap: the oldest confirmed segment of both goes first, losses are told, the sum holds."""

from __future__ import annotations

from pathlib import Path

import pytest

from holdfast import Store
from holdfast.errors import Backpressure
from holdfast.store.retention.sharedroom import LOOK_S, SharedRoom, prepare_room
from holdfast.testing import CrashFilesystem, ManualClock
from tests.unit.store.subscribers.small_store import SMALL, batch

CAP = 2400 << 10
EVENT, EVENTS = 3000, 5
FRAME_BYTES = 2 * EVENT * EVENTS
ROOM = Path("/data/room")
UNITS = 64
REFUSALS_MAX = 10
KEPT: dict[str, object] = {**SMALL, "memory_limit": "128KiB", "commit_timeout": "0s", "retention.size_cap": CAP}


class Pair:
    """Two stores on one disk, without threads, in time that moves by hand."""

    def __init__(self, **settings: object) -> None:
        self.disk, self.clock = CrashFilesystem(), ManualClock()
        prepare_room(self.disk, ROOM, range(2), units=UNITS)
        config = {**KEPT, **{key.replace("__", "."): value for key, value in settings.items()}}
        self.stores = [
            Store.open(Path(f"/data/core-{core}"), config, filesystem=self.disk, clock=self.clock, inline=True)
            for core in range(2)
        ]
        self.rooms = [SharedRoom(self.disk, ROOM, self.clock, core=core, units=UNITS) for core in range(2)]
        for store, room in zip(self.stores, self.rooms, strict=True):
            store.keeper.share(room)

    def look(self) -> None:
        """Time passes, and both keepers look."""
        self.clock.advance(LOOK_S)
        for store in self.stores:
            store.keeper.tick()

    def fill(self, core: int, *, frames_max: int = 1000) -> int:
        """Commit until a few looks of both did not make room; how many frames were accepted."""
        frames, refused = 0, 0
        while frames < frames_max and refused < REFUSALS_MAX:
            try:
                self.stores[core].commit("trades", batch(EVENTS, size=EVENT))
                frames, refused = frames + 1, 0
            except Backpressure:
                refused += 1
                self.look()
            assert self.used_bytes() <= CAP + 2 * FRAME_BYTES
        return frames

    def used_bytes(self) -> int:
        """Of both."""
        figures = [store.statistics() for store in self.stores]
        return sum(item.segment_bytes + item.wal_bytes for item in figures)

    def confirm(self, core: int, subscriber: str = "reader") -> None:
        """All that is sealed."""
        self.stores[core].flush()
        with self.stores[core].subscriber(subscriber, ["*"]) as found:
            for lease in found.drain():
                lease.ack()


@pytest.mark.guarantee("G11")
def test_a_busy_store_gets_most_of_the_cap_beside_an_idle_one() -> None:
    pair = Pair()
    pair.stores[0].subscriber("reader", ["*"])
    assert pair.fill(0) * EVENT * EVENTS > CAP * 2 // 3  # an even share would be half
    assert pair.rooms[0].units > 2 * pair.rooms[1].units
    with pytest.raises(Backpressure, match=r"retention\.size_cap"):
        pair.stores[0].commit("trades", batch(EVENTS, size=EVENT))


@pytest.mark.guarantee("G6")
def test_confirmed_segments_of_the_other_store_go_when_this_one_needs_room() -> None:
    pair = Pair(retention__steady_state_headroom=CAP - 1)  # only the cap lets confirmed segments go
    for store in pair.stores:
        store.subscriber("reader", ["*"])
    kept = pair.fill(1, frames_max=40)
    pair.confirm(1)
    pair.look()
    before = pair.stores[1].statistics().segments
    assert before > 0
    assert pair.fill(0) > kept
    figures = pair.stores[1].statistics()
    assert figures.segments < before
    assert figures.retention.evictions["acked"] > 0
    assert [store.losses() for store in pair.stores] == [[], []]
    oldest = pair.stores[1]._catalog.segments(pair.stores[1]._channels.find("trades").id)
    assert next(iter(oldest)).meta.segment_seq > 1 if figures.segments else True


@pytest.mark.guarantee("G6")
def test_under_drop_oldest_the_oldest_of_both_stores_goes_and_is_counted_at_its_owner() -> None:
    pair = Pair(retention__size_cap_policy="drop_oldest")
    for store in pair.stores:
        store.subscriber("reader", ["*"])
    pair.fill(1, frames_max=30)  # older than all that follows
    pair.stores[1].flush()
    assert pair.fill(0, frames_max=200) == 200  # intake goes on
    lost = {loss.reason: loss.segments for loss in pair.stores[1].losses() if loss.subscriber == "reader"}
    assert lost["size"] > 0
    assert pair.stores[1].keeper.size_emergencies == lost["size"]
