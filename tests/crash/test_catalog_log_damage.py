"""Damage to SQLite's own log beside `catalog.db`, as a kill leaves it: each field of each frame, each byte, tears.

SQLite takes what does not fit for the torn end of its log, and goes on with an older catalog. What holds: a start is
refused, naming the log, or the store holds what it held: what the last transaction said comes again from our own logs
and segments. What a start refuses, `holdfast verify` finds; a repair brings all events back.

This needs the real SQLite on a real disk; the crash disk has a database without a log. The process is not killed here:
its files are copied between two calls, and are what a kill would leave there.
"""

from __future__ import annotations

import shutil
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields
from pathlib import Path

import pyarrow as pa
import pytest

from holdfast import Store
from holdfast.disk.local import LocalFilesystem
from holdfast.disk.sqlitelog import check_log
from holdfast.errors import CorruptData
from holdfast.model.frame import Entry, EventIds, Guid, SlotFrame
from holdfast.model.positions import Fsn
from holdfast.store.repair import apply_repair, plan_repair
from holdfast.store.verify import verify_store
from holdfast.testing import ManualClock
from tests.crash.sweeps import every, flipped
from tests.faults import figures
from tests.unit.store.damaged_store import CONFIG, GUID, SLOT, Events, another, marks, read_all, trade

AREA = "catalog"
LOG = "catalog.db-wal"
HEADER_BYTES, FRAME_BYTES = 32, 24 + 4096
FIELDS = {"page": 3, "size": 7, "salt 1": 8, "salt 2": 15, "sum 1": 16, "sum 2": 23, "first": 24, "middle": 2000}
"""A byte of each part of a frame, by its place in the frame."""
LAST = {"last": FRAME_BYTES - 1}
REFUSED, SAME = "refused", "the same"


def open_store(directory: Path) -> Store:
    return Store.open(directory, CONFIG, filesystem=LocalFilesystem(), clock=ManualClock(), inline=True)


def send(store: Store, fsns: range) -> None:
    for fsn in fsns:
        trades = pa.RecordBatch.from_pylist([trade(fsn * 100 + n) for n in range(12)])
        orders = pa.record_batch({"id": [fsn, -fsn]})
        store.commit_frame([Entry("trades", trades), Entry("orders", orders)], identity=SlotFrame(SLOT, Fsn(fsn)))
        if fsn % 5 == 0:
            store.commit("notes", pa.record_batch({"key": [f"key-{fsn}", f"key-{fsn}-b"]}), identity=EventIds("key"))


def ack(store: Store, name: str, leases: int = 1) -> None:
    subscriber = store.subscriber(name, ["trades"])
    for _ in range(leases):
        lease = subscriber.poll(0)
        assert lease is not None
        lease.ack()


def first_life(directory: Path) -> None:
    """Closed in order: the catalog's file has all of it. One segment was evicted."""
    store = open_store(directory)
    for name in ("lake", "mirror"):
        store.subscriber(name, ["trades"])
    send(store, range(1, 16))
    store.commit("orders", pa.record_batch({"id": [0]}), identity=Guid(GUID))
    for name in ("lake", "mirror"):
        ack(store, name)
    store._keeper.tick()
    store.close()


def second_life(directory: Path, *, ends_with: str) -> Store:
    """Killed: SQLite's log has segments, marks, losses; and what it ends with."""
    store = open_store(directory)
    send(store, range(16, 34))
    ack(store, "lake", 2)
    store._desk.checkpoint()
    store.subscriber("third", ["trades", "orders"])
    send(store, range(34, 40))
    store.flush()
    send(store, range(40, 43))
    if ends_with == "a subscriber":
        store.subscriber("late", ["orders"])
    elif ends_with == "a change of a subscriber":
        store.subscriber("mirror", ["trades", "notes"])
    elif ends_with == "a checkpoint":
        ack(store, "lake")
        store._desk.checkpoint()
    else:
        assert ends_with == "segments"
    return store


ENDS = ("segments", "a checkpoint", "a subscriber", "a change of a subscriber")


@dataclass(frozen=True)
class Picture:
    """What a store says: its events, how far everybody is, what it takes for a repeat, which numbers come next."""

    events: Events
    marks: dict[str, list[tuple[int, tuple[tuple[int, int], ...]]]]
    repeats: tuple[bool, ...]
    next_seqs: Mapping[str, int]
    losses: object


def look(directory: Path) -> Picture:
    store = open_store(directory)
    events, places, losses = read_all(store), marks(store), store.losses()
    orders = [Entry("orders", pa.record_batch({"id": [3, -3]}))]
    repeats = [store.commit_frame(orders, identity=SlotFrame(SLOT, Fsn(fsn))).duplicate for fsn in (3, 20, 38, 42)]
    repeats.append(store.commit("orders", pa.record_batch({"id": [0]}), identity=Guid(GUID)).duplicate)
    for key in ("key-5", "key-20", "key-40"):
        noted = store.commit("notes", pa.record_batch({"key": [key]}), identity=EventIds("key"))
        repeats.append(noted.first_seq in events["notes"])
    following = {name: store.commit(name, another(name)).first_seq for name in store.channels()}
    store.close()
    return Picture(events, places, tuple(repeats), following, losses)


class Left:
    """What the killed process left, to be damaged again and again."""

    def __init__(self, directory: Path, ends_with: str) -> None:
        self.ends_with = ends_with
        self._left, self._trial = directory / "left", directory / "trial"
        first_life(directory / "store")
        store = second_life(directory / "store", ends_with=ends_with)
        shutil.copytree(directory / "store", self._left)
        store.close()
        self.log = (self._left / LOG).read_bytes()
        self.frames = (len(self.log) - HEADER_BYTES) // FRAME_BYTES
        self.undamaged = look(self.with_log(self.log))

    def last_transaction(self) -> int:
        """Its first frame."""
        ends = [at for at in range(self.frames) if self.log[HEADER_BYTES + at * FRAME_BYTES :][4:8] != bytes(4)]
        assert ends[-1] == self.frames - 1
        return ends[-2] + 1

    def with_log(self, log: bytes) -> Path:
        shutil.rmtree(self._trial, ignore_errors=True)
        shutil.copytree(self._left, self._trial)
        (self._trial / LOG).write_bytes(log)
        return self._trial

    def outcome(self, log: bytes) -> str:
        """`REFUSED`, `SAME`, or what is wrong."""
        try:
            found = look(self.with_log(log))
        except CorruptData as error:
            return REFUSED if error.file.name == LOG else f"refused for {error}"
        parts = [
            item.name for item in fields(Picture) if getattr(found, item.name) != getattr(self.undamaged, item.name)
        ]
        return f"other {', '.join(parts)}" if parts else SAME

    def is_found_by_verify(self, log: bytes) -> bool:
        report = verify_store(LocalFilesystem(), self.with_log(log), live=False)
        return any(item.severity == "damage" and Path(item.file).name == LOG for item in report.findings)

    def damages(self) -> Iterator[tuple[int, str, bytes]]:
        """Frame, part of it, and the log with a bit of that changed; frame -1 is the header of the log."""
        for at in range(0, HEADER_BYTES, 4):
            yield -1, str(at), flipped(self.log, at)
        for frame in range(self.frames):
            for name, at in (FIELDS | LAST).items():
                yield frame, name, flipped(self.log, HEADER_BYTES + frame * FRAME_BYTES + at)


@pytest.fixture(scope="module", params=ENDS)
def left(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Left:
    return Left(tmp_path_factory.mktemp("catalog"), request.param)


def test_killed_store_leaves_a_log_of_many_transactions(left: Left) -> None:
    assert left.frames > 30
    assert left.undamaged.repeats == (True,) * len(left.undamaged.repeats)
    assert "third" in left.undamaged.marks
    assert left.undamaged.events["trades"].keys() != left.undamaged.events["orders"].keys()
    assert not left.is_found_by_verify(left.log)


@pytest.mark.guarantee("G9")
@every(37)
def test_damage_to_any_field_of_any_frame_is_refused_or_takes_nothing_back(left: Left, step: int) -> None:
    wrong, counts, last = [], Counter[str](), left.last_transaction()
    for number, (frame, field, changed) in enumerate(left.damages()):
        if number % (step if frame < last else min(step, 5)):
            continue
        found = left.outcome(changed)
        counts[found] += 1
        if found != REFUSED and (frame < last or found != SAME):
            wrong.append((frame, field, found))
    assert wrong == []
    if step == 1:
        claim = f"a damaged log of SQLite beside the catalog takes nothing back: ends with {left.ends_with}"
        figures.note(AREA, claim, profile="long", frames=left.frames, refused=counts[REFUSED], harmless=counts[SAME])


@pytest.mark.guarantee("G9")
def test_damage_that_is_refused_is_found_by_verify_and_repaired(left: Left) -> None:
    last, repaired = left.last_transaction(), 0
    for number, (frame, field, changed) in enumerate(left.damages()):
        if frame >= last or number % 97:
            continue
        assert left.is_found_by_verify(changed), (frame, field)
        directory, disk = left.with_log(changed), LocalFilesystem()
        plan = plan_repair(disk, directory)
        assert plan.needed
        apply_repair(disk, plan, clock=ManualClock())
        assert verify_store(disk, directory, live=False).intact, (frame, field)
        store = open_store(directory)
        assert read_all(store) == left.undamaged.events, (frame, field)
        store.close()
        repaired += 1
    assert repaired > 2


@pytest.mark.guarantee("G9")
def test_last_transaction_that_is_torn_takes_nothing_back(left: Left) -> None:
    """As after a power cut: any of its frames are missing. It was never answered for, or our own logs have it."""
    last = left.last_transaction()
    for frame in range(last, left.frames):
        start, end = (HEADER_BYTES + at * FRAME_BYTES for at in (frame, frame + 1))
        assert left.outcome(left.log[:start] + bytes(FRAME_BYTES) + left.log[end:]) == SAME
        assert left.outcome(left.log[: start + 100]) == SAME


@pytest.mark.guarantee("G9")
@pytest.mark.parametrize("step", [997, pytest.param(3, marks=[pytest.mark.long, pytest.mark.timeout(7200)])])
def test_changed_byte_ahead_of_the_last_transaction_is_refused(left: Left, step: int) -> None:
    """By the check that each start makes first; `tests/unit/disk/test_sqlitelog.py` has every byte of a small log."""
    border = HEADER_BYTES + left.last_transaction() * FRAME_BYTES
    passed = [at for at in range(0, border, step) if not is_refused(flipped(left.log, at))]
    assert passed == []
    if step < 997:
        claim = f"any changed byte of SQLite's log ahead of its last transaction is refused: ends with {left.ends_with}"
        figures.note(AREA, claim, profile="long", bytes_changed=len(range(0, border, step)), of=border)


def is_refused(log: bytes) -> bool:
    try:
        check_log(Path(LOG), log)
    except CorruptData:
        return True
    return False
