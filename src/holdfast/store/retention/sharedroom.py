"""The size cap of several stores, shared by the processes that own them, through files in one directory.

The cap is cut into `UNITS` units, and a unit is a file. Its name says whose it is, so taking one is a `rename` that
succeeds for one process only, and nothing has to be undone when a process is killed.

    free-007             a unit that nobody has
    core-1-007           a unit that the store core-1 has
    offer-1              what core-1 could let go, oldest first; written again and again while no unit is free
    claim-1-42           somebody needs the room of segment 42 of core-1; its owner lets it go

A store uses no more than the units it has. Each look of its keeper (`balance`):

    1. claims on its segments are carried out
    2. units that it does not need go back; units that it needs are taken
    3. if it is short, and none was free for `ASK_NS`: the oldest confirmed segments of all stores are claimed, as many
       as it is short of; if there are none, under `drop_oldest`, the oldest segments of all

Promises:

- Together the stores use no more than the cap, but for what no bound holds back: a segment that is being sealed, per
  store, and the parts of a unit that round up.
- A claim binds nobody but the owner of the segment, who does it in its next look whether or not the claimer lives. The
  offers of an owner that has stopped looking are not believed after `STALE_NS`, so others claim elsewhere.
- Nothing is deleted by a process that does not own it, and a loss is told as any other (`evict.py`).
- A store that is idle keeps room for one segment; the rest is for those that need it.

None of this is synced: after a power cut `prepare_room` makes every unit be there once.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping, Set
from contextlib import suppress
from itertools import islice
from pathlib import Path
from typing import Protocol

import msgspec

from holdfast.clock import NS_PER_S, Clock
from holdfast.disk.filesystem import Filesystem, Mode
from holdfast.disk.smallfiles import read_whole, replace_whole
from holdfast.store.ground import make_directory
from holdfast.telemetry import event

UNITS = 512
"""A fifth of a percent of the cap each: what rounding up costs a store; few enough to list in a millisecond."""
LOOK_S = 0.1
"""How soon an owner sees a claim."""
ASK_NS = int(2 * LOOK_S * NS_PER_S)
"""How long no unit must have been free before segments are claimed: every store that lives has made its offer then."""
STALE_NS = 3 * NS_PER_S
"""An offer that old is of a process that hangs or is dead."""
OFFERED_MAX = 64
"""Segments named in an offer; when these are gone the next offer names others."""
_UNIT = re.compile(r"(free|core-(\d+))-(\d{3})")
_CLAIM = re.compile(r"claim-(\d+)-(\d+)")
_OFFER = re.compile(r"offer-(\d+)")


class Candidate(msgspec.Struct, frozen=True):
    """A segment that could go."""

    time_ns: int
    """When its last event came in."""
    number: int
    size_bytes: int
    confirmed: bool


class Offer(msgspec.Struct, frozen=True):
    """What a store could let go, oldest first, at a time of the monotonic clock."""

    at_ns: int
    candidates: list[Candidate]


class Tenant(Protocol):
    """The store that uses the room."""

    @property
    def cap_bytes(self) -> int:
        """The cap that is shared."""

    @property
    def may_drop(self) -> bool:
        """Whether unconfirmed segments may go."""

    def needed_bytes(self) -> int:
        """What it uses, and room for what comes next."""

    def allow(self, bytes_max: int, *, if_fits: bool) -> bool:
        """It may use so much from now on. `if_fits`: unless it uses more already, which is said."""

    def candidates(self) -> Iterable[Candidate]:
        """What could go, oldest first."""

    def let_go(self, number: int, *, drop: bool) -> None:
        """Evict a segment, if it is there and confirmed, or in any case with `drop`."""


def choose(
    offers: Mapping[int, Offer], claimed: Set[tuple[int, int]], *, short_bytes: int, may_drop: bool
) -> list[tuple[int, int]]:
    """Which segments of which cores to claim: the oldest that are confirmed; if there is none, the oldest of all.

    What is claimed already counts.
    """
    offered = [(core, item) for core, offer in offers.items() for item in offer.candidates]
    found = sorted(offered, key=lambda pair: (pair[1].time_ns, pair[0], pair[1].number))
    confirmed = [(core, item) for core, item in found if item.confirmed]
    chosen: list[tuple[int, int]] = []
    for core, item in confirmed or (found if may_drop else []):
        if short_bytes <= 0:
            break
        short_bytes -= item.size_bytes
        if (core, item.number) not in claimed:
            chosen.append((core, item.number))
    return chosen


def prepare_room(filesystem: Filesystem, directory: Path, cores: Collection[int], *, units: int = UNITS) -> None:
    """Make every unit be there once, free or with one of the cores, and forget what was claimed.

    Before the first of the processes starts.
    """
    make_directory(filesystem, directory)
    seen: set[int] = set()
    for entry in filesystem.listdir(directory):  # sorted: of a unit in two places, the core's is seen first
        unit = _UNIT.fullmatch(entry.name)
        number = int(unit[3]) if unit is not None else units
        is_owned = unit is not None and (unit[1] == "free" or int(unit[2]) in cores)
        if number < units and is_owned and number not in seen:
            seen.add(number)
        else:
            filesystem.unlink(directory / entry.name)
    for number in set(range(units)) - seen:
        filesystem.open(directory / f"free-{number:03d}", Mode.CREATE).close()
    filesystem.sync_dir(directory)


class SharedRoom:
    """One store's part of the room. Used by one thread at a time."""

    def __init__(self, filesystem: Filesystem, directory: Path, clock: Clock, *, core: int, units: int = UNITS) -> None:
        self._filesystem = filesystem
        self._directory = directory
        self._clock = clock
        self._core = core
        self._units = units
        self._held: set[int] = set()
        self._free: set[int] = set()
        self._claims: set[tuple[int, int]] = set()
        self._offering: set[int] = set()
        self._dry_since_ns: int | None = None

    @property
    def units(self) -> int:
        """How many units it has, as of the last look."""
        return len(self._held)

    def balance(self, tenant: Tenant) -> None:
        """One look."""
        unit_bytes = max(1, tenant.cap_bytes // self._units)
        self._look()
        for core, number in sorted(self._claims):
            if core == self._core:
                if not self._free:  # otherwise nobody needs it any more
                    tenant.let_go(number, drop=tenant.may_drop)
                self._remove(f"claim-{core}-{number}")
        goal = -(-tenant.needed_bytes() // unit_bytes)
        if len(self._held) > goal:
            self._give_back(tenant, goal, unit_bytes)
        while len(self._held) < goal and self._free:
            self._take()
        tenant.allow(max(1, len(self._held) * unit_bytes), if_fits=False)
        self._offer(tenant)
        if len(self._held) < goal and self._is_dry_for_long():
            self._claim(tenant, (goal - len(self._held)) * unit_bytes)

    def _is_dry_for_long(self) -> bool:
        """Whether no unit is free, and others have had the time to say what they could let go."""
        now_ns = self._clock.monotonic_ns()
        if self._free:
            self._dry_since_ns = None
            return False
        if self._dry_since_ns is None:
            self._dry_since_ns = now_ns
        return now_ns - self._dry_since_ns >= ASK_NS

    # -- what there is ----------------------------------------------------------------------------------------------

    def _look(self) -> None:
        self._held, self._free, self._claims, self._offering = set(), set(), set(), set()
        for entry in self._filesystem.listdir(self._directory):
            if (unit := _UNIT.fullmatch(entry.name)) is not None:
                if unit[1] == "free":
                    self._free.add(int(unit[3]))
                elif int(unit[2]) == self._core:
                    self._held.add(int(unit[3]))
            elif (claim := _CLAIM.fullmatch(entry.name)) is not None:
                self._claims.add((int(claim[1]), int(claim[2])))
            elif (offer := _OFFER.fullmatch(entry.name)) is not None:
                self._offering.add(int(offer[1]))

    def _offers(self) -> dict[int, Offer]:
        """Those that are believed."""
        now_ns, found = self._clock.monotonic_ns(), {}
        for core in self._offering:
            data = read_whole(self._filesystem, self._directory / f"offer-{core}")
            if data is not None:
                offer = msgspec.json.decode(data, type=Offer)
                if 0 <= now_ns - offer.at_ns <= STALE_NS:
                    found[core] = offer
        return found

    # -- units ------------------------------------------------------------------------------------------------------

    def _take(self) -> None:
        """The next free unit; another process may be quicker."""
        number = min(self._free)
        self._free.discard(number)
        if self._rename(f"free-{number:03d}", self._own(number)):
            self._held.add(number)

    def _give_back(self, tenant: Tenant, goal: int, unit_bytes: int) -> None:
        """The store is bound to less first; only then others may have the units."""
        if not tenant.allow(max(1, goal * unit_bytes), if_fits=True):
            return
        for number in sorted(self._held, reverse=True)[: len(self._held) - goal]:
            self._held.discard(number)
            if self._rename(self._own(number), f"free-{number:03d}"):
                self._free.add(number)

    def _own(self, number: int) -> str:
        return f"core-{self._core}-{number:03d}"

    def _rename(self, old: str, new: str) -> bool:
        try:
            self._filesystem.rename(self._directory / old, self._directory / new)
        except FileNotFoundError:
            return False
        return True

    # -- segments ---------------------------------------------------------------------------------------------------

    def _offer(self, tenant: Tenant) -> None:
        """Say what could go while somebody may have to ask for it."""
        if self._free:
            if self._core in self._offering:
                self._remove(f"offer-{self._core}")
            return
        offer = Offer(self._clock.monotonic_ns(), list(islice(tenant.candidates(), OFFERED_MAX)))
        path = self._directory / f"offer-{self._core}"
        replace_whole(self._filesystem, path, msgspec.json.encode(offer), synced=False)
        self._offering.add(self._core)

    def _claim(self, tenant: Tenant, short_bytes: int) -> None:
        chosen = choose(self._offers(), self._claims, short_bytes=short_bytes, may_drop=tenant.may_drop)
        for core, number in chosen:
            if core == self._core:
                tenant.let_go(number, drop=tenant.may_drop)
                continue
            with suppress(FileExistsError):  # another one was quicker
                self._filesystem.open(self._directory / f"claim-{core}-{number}", Mode.CREATE).close()
                event("store.room.claim", core=self._core, of_core=core, segment=number)

    def _remove(self, name: str) -> None:
        with suppress(FileNotFoundError):
            self._filesystem.unlink(self._directory / name)
