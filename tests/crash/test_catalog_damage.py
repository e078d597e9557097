"""Damage to `catalog.db`: flipped bits and changed bytes of every page, lost, swapped and foreign pages, cut files.

What holds: a start ends in one of two ways. The store holds what it held, in every respect that is compared here, or
`CorruptData` names the catalog. A catalog that was closed in order has a stamp, so any change to it is refused; the
sweeps over pages are made without one, as after a kill. What a start refuses, `holdfast verify` finds. A repair,
which needs nothing but segments and logs, brings all events back.

The tables are small, so that each is one page: a table, and an index of its own, stands for a page.
"""

from __future__ import annotations

import random
import sqlite3
from collections.abc import Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass, fields
from functools import cache

import pyarrow as pa
import pytest

from holdfast.disk.stamp import is_stamped
from holdfast.errors import CorruptData, HoldfastError
from holdfast.model.frame import Entry, EventIds, Guid, SlotFrame
from holdfast.model.positions import Fsn
from holdfast.store.repair import apply_repair, plan_repair
from holdfast.store.verify import verify_store
from holdfast.testing import CrashFilesystem, ManualClock
from tests.crash.sweeps import every, flipped
from tests.unit.store.damaged_store import GUID, ROOT, SLOT, Events, another, marks, open_store, read_all, trade

CATALOG = ROOT / "catalog.db"
PAGE_BYTES = 4096
FRAMES = 15
FREE_TIMES = 41
"""How much thinner the sample is where a page has only zeros: there is room, and no value."""
SAMPLES_MIN = 75
"""As many used bytes of a page are changed at least."""
WRITE_VERSION = 18
"""The byte by which SQLite knows whether it can write a file; who only reads does not look at it."""
STAMP = (*range(60, 64), *range(68, 72))
"""Bytes that say what all others are: with one of them changed, there is no stamp."""
VERIFIED_EVERY = 7
"""Of the catalogs that a start refuses, every so many are verified too; that reads a whole store."""


@cache
def left() -> CrashFilesystem:
    """A store that was closed: segments of three channels, one evicted, a slot, ids, a GUID, two subscribers."""
    disk = CrashFilesystem()
    store = open_store(disk)
    lake, mirror = store.subscriber("lake", ["trades"]), store.subscriber("mirror", ["trades"])
    for fsn in range(1, FRAMES + 1):
        trades = pa.RecordBatch.from_pylist([trade(fsn * 100 + n) for n in range(12)])
        orders = pa.record_batch({"id": [fsn, -fsn]})
        store.commit_frame([Entry("trades", trades), Entry("orders", orders)], identity=SlotFrame(SLOT, Fsn(fsn)))
        if fsn % 5 == 0:
            store.commit("notes", pa.record_batch({"key": [f"key-{fsn}", f"key-{fsn}-b"]}), identity=EventIds("key"))
    store.commit("orders", pa.record_batch({"id": [0]}), identity=Guid(GUID))
    store.flush()
    for lease in (lake.poll(0), lake.poll(0), mirror.poll(0)):
        assert lease is not None
        lease.ack()
    store._keeper.tick()
    store.close()
    return disk.after_kill()


@cache
def stamped() -> bytes:
    """As the process left it that closed the store."""
    return left().read_bytes(CATALOG)


@cache
def data() -> bytes:
    """As a process leaves it that is killed: nothing says what all of it should be."""
    return stamped()[: STAMP[0]] + bytes(4) + stamped()[STAMP[0] + 4 :]


@cache
def pages() -> dict[str, int]:
    """The first byte of the page of each table and index; `schema` is the first page of the file."""
    readable = data()[:18] + b"\1\1" + data()[20:]  # in memory there is no WAL
    with closing(sqlite3.connect(":memory:")) as connection:
        connection.deserialize(readable)
        rows = connection.execute("SELECT name, rootpage FROM sqlite_master WHERE rootpage > 0").fetchall()
    return {"schema": 0, **{str(name): (int(number) - 1) * PAGE_BYTES for name, number in rows}}


PAGES = (
    *("schema", "meta", "channels", "sqlite_autoindex_channels_1", "segments", "segments_by_seq", "slots"),
    *("segment_slots", "event_ids", "subscribers", "progress", "floors", "partition_floors", "doomed", "remote"),
    *("gone", "losses"),
)


@dataclass(frozen=True)
class Picture:
    """What a store says: its events, how far everybody is, what it takes for a repeat, which numbers come next."""

    events: Events
    marks: dict[str, list[tuple[int, tuple[tuple[int, int], ...]]]]
    repeats: tuple[bool, bool, int]
    next_seqs: Mapping[str, int]
    losses: object


def look(disk: CrashFilesystem) -> Picture:
    """Open, read, repeat a frame, a GUID and an id, write."""
    store = open_store(disk)
    events, places, losses = read_all(store), marks(store), store.losses()
    orders = pa.record_batch({"id": [3, -3]})
    slot = store.commit_frame([Entry("orders", orders)], identity=SlotFrame(SLOT, Fsn(3)))
    guid = store.commit("orders", pa.record_batch({"id": [0]}), identity=Guid(GUID))
    noted = store.commit("notes", pa.record_batch({"key": ["key-5"]}), identity=EventIds("key"))
    following = {name: store.commit(name, another(name)).first_seq for name in store.channels()}
    store.close()
    return Picture(events, places, (slot.duplicate, guid.duplicate, noted.first_seq), following, losses)


@cache
def undamaged() -> Picture:
    return look(left().after_kill())


def disk_with(catalog: bytes) -> CrashFilesystem:
    disk = left().after_kill()
    disk.write_bytes(CATALOG, catalog)
    return disk


REFUSED = "refused"


def outcome(catalog: bytes) -> str:
    """`REFUSED`, nothing if the store holds what it held, or what is wrong with it."""
    try:
        found = look(disk_with(catalog))
    except CorruptData as error:
        return REFUSED if error.file == CATALOG else f"refused for {error.file}"
    except (HoldfastError, sqlite3.Error, ArithmeticError, LookupError, TypeError, ValueError) as error:
        return f"{type(error).__name__}: {error}"
    parts = [item.name for item in fields(Picture) if getattr(found, item.name) != getattr(undamaged(), item.name)]
    return f"other {', '.join(parts)}" if parts else ""


def damages(start: int, step: int) -> Iterator[tuple[int, bytes]]:
    """Bytes of a page, once with a bit flipped and once inverted; all used ones if they are few, free ones rarely."""
    used = [at for at in range(start, start + PAGE_BYTES) if data()[at]]
    free = [at for at in range(start, start + PAGE_BYTES) if not data()[at]]
    used = used[:: min(step, max(1, len(used) // SAMPLES_MIN))]
    for at in sorted([*used, *free[:: 1 if step == 1 else step * FREE_TIMES]]):
        yield at, flipped(data(), at)
        yield at, flipped(data(), at, mask=0xFF)


@cache
def outcomes(page: str, step: int) -> tuple[tuple[int, str, bytes], ...]:
    """(byte, outcome, the catalog) for each damage of a page."""
    return tuple((at, outcome(changed), changed) for at, changed in damages(pages()[page], step))


def is_found_by_verify(catalog: bytes) -> bool:
    report = verify_store(disk_with(catalog), ROOT, live=False)
    return any(item.severity == "damage" and item.file == str(CATALOG) for item in report.findings)


def test_catalog_has_the_pages_that_are_damaged_here() -> None:
    assert pages().keys() == set(PAGES)
    assert sorted(pages().values()) == list(range(0, len(data()), PAGE_BYTES))
    assert look(left().after_kill()) == undamaged()
    assert undamaged().repeats[:2] == (True, True)
    assert undamaged().marks["mirror"] != undamaged().marks["lake"]
    assert not is_found_by_verify(data())
    assert not is_found_by_verify(stamped())


@pytest.mark.guarantee("G9")
@pytest.mark.parametrize("page", PAGES)
@every(7)
def test_changed_byte_of_the_catalog_is_refused_or_harmless(page: str, step: int) -> None:
    assert {at: found for at, found, _ in outcomes(page, step) if found not in {"", REFUSED}} == {}


@pytest.mark.guarantee("G9")
@pytest.mark.parametrize("page", PAGES)
@every(7)
def test_changed_byte_of_the_catalog_that_is_refused_is_found_by_verify(page: str, step: int) -> None:
    refused = [(at, changed) for at, found, changed in outcomes(page, step) if found == REFUSED]
    some = [item for item in refused if item[0] == WRITE_VERSION] + refused[::VERIFIED_EVERY]
    assert [at for at, changed in some if not is_found_by_verify(changed)] == []


@pytest.mark.guarantee("G9")
@every(7)
def test_any_changed_byte_of_a_catalog_that_was_closed_is_refused_or_leaves_no_stamp(step: int) -> None:
    disk = CrashFilesystem()
    disk.write_bytes(CATALOG, stamped())
    assert is_stamped(disk, CATALOG)
    for at in sorted({*range(0, len(stamped()), step), *STAMP}):
        for mask in (None, 0xFF):
            disk.write_bytes(CATALOG, flipped(stamped(), at, mask=mask))
            if at in STAMP:
                assert not is_stamped(disk, CATALOG)
                continue
            with pytest.raises(CorruptData):
                is_stamped(disk, CATALOG)


@pytest.mark.guarantee("G9")
def test_changed_byte_of_a_catalog_that_was_closed_is_refused_by_start_and_verify_and_repaired() -> None:
    """Also where nothing stands: somebody else has written to the file."""
    free = max(at for at in range(len(data())) if not data()[at])
    for at in (free, WRITE_VERSION, pages()["event_ids"] + PAGE_BYTES - 1):
        changed = flipped(stamped(), at)
        assert outcome(changed) == REFUSED
        assert is_found_by_verify(changed)
        disk = disk_with(changed)
        apply_repair(disk, plan_repair(disk, ROOT), clock=ManualClock())
        assert read_all(open_store(disk)) == undamaged().events


# --- whole pages ----------------------------------------------------------------------------------------------------


def lost_pages() -> Iterator[tuple[str, bytes]]:
    """The catalog without one of its pages, with garbage or another page in its place, or cut before it."""
    for page, start in pages().items():
        other = (start + PAGE_BYTES) % len(data())
        pieces = {
            "zero": bytes(PAGE_BYTES),
            "garbage": random.Random(start).randbytes(PAGE_BYTES),
            "its neighbour": data()[other : other + PAGE_BYTES],
        }
        for name, piece in pieces.items():
            yield f"{page}: {name}", data()[:start] + piece + data()[start + PAGE_BYTES :]
        yield f"{page}: cut inside of it", data()[: start + 512]


@pytest.mark.guarantee("G9")
def test_lost_page_of_the_catalog_is_refused_or_harmless_and_found_by_verify_and_repaired() -> None:
    """Whatever repair is asked to mend, no event is lost by it: segments and logs hold them all."""
    missed, repaired = [], 0
    for name, changed in lost_pages():
        found = outcome(changed)
        if found not in {"", REFUSED} or (found and not is_found_by_verify(changed)):
            missed.append((name, found))
        disk = disk_with(changed)
        plan = plan_repair(disk, ROOT)
        if plan.needed:
            apply_repair(disk, plan, clock=ManualClock())
            assert verify_store(disk, ROOT, live=False).intact, name
            assert read_all(open_store(disk)) == undamaged().events, name
            repaired += 1
    assert missed == []
    assert repaired > 40
