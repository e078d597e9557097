"""Any order of events, kills among them: stores together stay within the cap, and nobody is stuck."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.store.retention.sharedroom import LOOK_S, STALE_NS, Candidate, SharedRoom, prepare_room
from holdfast.testing import CrashFilesystem, ManualClock

ROOM = Path("/data/room")
UNITS, UNIT_BYTES, SEGMENT_BYTES = 24, 10, 15
CAP_BYTES = UNITS * UNIT_BYTES


@dataclass
class ModelStore:
    """A store of segments of one size, which may use as much as it is allowed to."""

    core: int
    may_drop: bool = False
    allowed_bytes: int = 1
    segments: dict[int, Candidate] = field(default_factory=dict)
    gone: list[Candidate] = field(default_factory=list)
    cap_bytes: int = CAP_BYTES

    @property
    def used_bytes(self) -> int:
        return sum(segment.size_bytes for segment in self.segments.values())

    def write(self, number: int, *, confirmed: bool) -> bool:
        """Add a segment if there is room; two in a row may have one time."""
        if self.used_bytes + SEGMENT_BYTES > self.allowed_bytes:
            return False
        self.segments[number] = Candidate(number // 2, number, SEGMENT_BYTES, confirmed)
        return True

    def confirm_all(self) -> None:
        self.segments = {
            number: Candidate(item.time_ns, number, item.size_bytes, True) for number, item in self.segments.items()
        }

    def needed_bytes(self) -> int:
        return self.used_bytes + SEGMENT_BYTES

    def allow(self, bytes_max: int, *, if_fits: bool) -> bool:
        if if_fits and self.used_bytes > bytes_max:
            return False
        self.allowed_bytes = bytes_max
        return True

    def candidates(self) -> Iterator[Candidate]:
        ordered = sorted(self.segments.values(), key=lambda item: item.number)
        yield from (item for item in ordered if item.confirmed)
        yield from (item for item in ordered if not item.confirmed and self.may_drop)

    def let_go(self, number: int, *, drop: bool) -> None:
        item = self.segments.get(number)
        if item is not None and (item.confirmed or drop):
            self.gone.append(self.segments.pop(number))


class Interleaved(CrashFilesystem):
    """Before a call that changes names, somebody else may act: what happens between two calls of a process."""

    def __init__(self) -> None:
        super().__init__()
        self.between: Callable[[], None] = lambda: None

    def rename(self, source: Path, target: Path) -> None:
        self._let_others()
        super().rename(source, target)

    def unlink(self, path: Path) -> None:
        self._let_others()
        super().unlink(path)

    def _let_others(self) -> None:
        act, self.between = self.between, lambda: None
        act()


class House:
    """Stores in one room."""

    def __init__(self, stores: int, *, may_drop: bool = False) -> None:
        self.disk, self.clock = Interleaved(), ManualClock()
        prepare_room(self.disk, ROOM, range(stores), units=UNITS)
        self.stores = [ModelStore(core, may_drop) for core in range(stores)]
        self.rooms = [self._room(core) for core in range(stores)]
        self._times = iter(range(1, 1 << 60))

    def _room(self, core: int) -> SharedRoom:
        return SharedRoom(self.disk, ROOM, self.clock, core=core, units=UNITS)

    def look(self, core: int, *, between: int | None = None) -> None:
        """One look of a store; another one looks in the middle of it."""
        self.clock.advance(LOOK_S)
        if between is not None and between != core:
            self.disk.between = lambda: self.rooms[between].balance(self.stores[between])
        self.rooms[core].balance(self.stores[core])
        self.disk.between = lambda: None

    def write(self, core: int, *, confirmed: bool) -> bool:
        return self.stores[core].write(next(self._times), confirmed=confirmed)

    def kill(self, core: int) -> None:
        """The process dies, and a new one finds what is there."""
        self.rooms[core] = self._room(core)

    def check(self) -> None:
        """Every unit is in one place, and nobody uses more than is his."""
        names = [entry.name for entry in self.disk.listdir(ROOM)]
        numbers = [int(name[-3:]) for name in names if name.startswith(("free-", "core-"))]
        assert sorted(numbers) == list(range(UNITS))
        for store in self.stores:
            owned = sum(name.startswith(f"core-{store.core}-") for name in names)
            assert store.allowed_bytes <= max(1, owned * UNIT_BYTES)
            assert store.used_bytes <= max(store.allowed_bytes, owned * UNIT_BYTES)
        assert sum(store.used_bytes for store in self.stores) <= CAP_BYTES


CORES = st.integers(0, 2)
STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("write"), CORES, st.booleans()),
        st.tuples(st.just("look"), CORES, st.one_of(st.none(), CORES)),
        st.tuples(st.just("confirm"), CORES, st.none()),
        st.tuples(st.just("kill"), CORES, st.none()),
        st.tuples(st.just("wait"), CORES, st.none()),
    ),
    max_size=120,
)


@pytest.mark.guarantee("G11")
@given(STEPS, st.booleans())
@settings(deadline=None)
def test_stores_together_never_use_more_than_the_cap(steps: list[tuple[str, int, int | None]], may_drop: bool) -> None:
    house = House(3, may_drop=may_drop)
    for act, core, detail in steps:
        if act == "write":
            house.write(core, confirmed=bool(detail))
        elif act == "look":
            house.look(core, between=detail)
        elif act == "confirm":
            house.stores[core].confirm_all()
        elif act == "kill":
            house.kill(core)
        else:
            house.clock.advance(STALE_NS / 1e9 / 2)
        house.check()
    if not may_drop:
        assert all(item.confirmed for store in house.stores for item in store.gone)  # G6


@given(STEPS, CORES)
@settings(deadline=None)
def test_a_store_gets_room_while_others_hold_confirmed_segments(
    steps: list[tuple[str, int, int | None]], needy: int
) -> None:
    house = House(3)
    for act, core, detail in steps:
        if act == "write":
            house.write(core, confirmed=True)
        elif act == "look":
            house.look(core, between=detail)
        elif act == "kill":
            house.kill(core)
    for _ in range(2 * UNITS):
        for core in range(3):
            house.look(core)
        if house.write(needy, confirmed=False):
            break
    else:
        raise AssertionError("the store never got room")


def fill(house: House, core: int, *, confirmed: bool) -> int:
    """Write and look until there is no room; how many segments it wrote."""
    written = 0
    for _ in range(4 * UNITS):
        house.look(core)
        written += house.write(core, confirmed=confirmed)
    return written


def test_an_idle_store_leaves_the_cap_to_a_busy_one() -> None:
    house = House(3)
    for core in range(3):
        house.look(core)
    assert fill(house, 0, confirmed=False) * SEGMENT_BYTES >= CAP_BYTES - 2 * 2 * UNIT_BYTES - SEGMENT_BYTES


def test_the_oldest_confirmed_segment_of_all_stores_goes_first() -> None:
    house = House(2)
    for core in (1, 0, 1, 0):
        house.look(core)
        assert house.write(core, confirmed=True)
    went: list[int] = []
    for _ in range(4 * UNITS):
        for core in (1, 0):
            house.look(core)
            went += sorted({item.number for store in house.stores for item in store.gone} - set(went))
        house.write(0, confirmed=False)
    assert went == [1, 2, 3, 4]
    assert [len(store.gone) for store in house.stores] == [2, 2]


@pytest.mark.guarantee("G6")
def test_unconfirmed_segments_go_only_where_they_may_and_only_as_the_last() -> None:
    for may_drop in (False, True):
        house = House(2, may_drop=may_drop)
        house.look(1)
        assert house.write(1, confirmed=False)
        assert house.write(1, confirmed=False) is False  # it did not look for more room
        house.look(1)
        assert house.write(1, confirmed=True)
        fill(house, 0, confirmed=False)
        for _ in range(UNITS):
            house.look(1)
            house.look(0)
            house.write(0, confirmed=False)
        gone = house.stores[1].gone
        assert [item.confirmed for item in gone] == ([True, False] if may_drop else [True])


def claims(house: House) -> list[str]:
    return [entry.name for entry in house.disk.listdir(ROOM) if entry.name.startswith("claim-")]


def test_a_claim_is_carried_out_although_the_claimer_is_dead() -> None:
    house = House(2)
    house.look(1)
    assert house.write(1, confirmed=True)
    fill(house, 0, confirmed=False)
    house.look(1)  # it offers
    house.look(0)  # it is claimed
    assert claims(house) == ["claim-1-1"]
    house.kill(0)
    house.look(1)
    assert [item.number for item in house.stores[1].gone] == [1]
    assert claims(house) == []


def test_a_claim_on_a_dead_core_holds_nobody_up_and_is_settled_when_it_returns() -> None:
    house = House(3)
    house.look(1)
    assert house.write(1, confirmed=True)  # the oldest, of a core that dies now
    for _ in range(3):
        house.look(2)
        assert house.write(2, confirmed=True)
    fill(house, 0, confirmed=False)
    house.look(1)
    house.look(0)
    assert claims(house) == ["claim-1-1"]
    house.clock.advance(STALE_NS / 1e9 + 1)  # its offer is not believed any more
    wrote = 0
    for _ in range(UNITS):
        house.look(2)
        house.look(0)
        wrote += house.write(0, confirmed=False)
    assert wrote
    assert house.stores[2].gone
    house.kill(1)
    house.look(1)
    assert claims(house) == []
    house.check()


@pytest.mark.parametrize("seed", range(12))
def test_after_a_power_cut_every_unit_is_there_once(seed: int) -> None:
    house = House(2)
    fill(house, 0, confirmed=True)
    house.look(1)
    disk = house.disk.after_power_cut(seed)
    prepare_room(disk, ROOM, range(2), units=UNITS)
    numbers = sorted(int(entry.name[-3:]) for entry in disk.listdir(ROOM))
    assert numbers == list(range(UNITS))
