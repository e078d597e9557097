"""A store that was killed, to be damaged and repaired again and again, and what must hold afterwards.

Made once, on the crash disk: three channels, a slot, GUIDs, events with ids, two subscribers, segments that were
evicted, several log files and an open tail.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path

import pyarrow as pa

from holdfast import Store
from holdfast.disk.appendlog import LogFile, read_log_file
from holdfast.model.frame import Entry, EventIds, Guid, SlotFrame
from holdfast.model.positions import Fsn
from holdfast.store.repair import RepairPlan, apply_repair, plan_repair
from holdfast.store.verify import verify_store
from holdfast.store.wal.codec import KIND_FRAME, KIND_SCHEMA, decode_frame, decode_schema_note
from holdfast.testing import CrashFilesystem, ManualClock

ROOT = Path("/data/store")
CONFIG: dict[str, object] = {
    "segment.target_size": "8KiB",
    "segment.max_open_duration": "1h",
    "wal.rotation_size": "64KiB",
    "wal.max_size": "1MiB",
    "frame.max_size": "32KiB",
    "memory_limit": "1MiB",
    "lease_timeout": "1h",
}
SLOT = b"slot of producer"
GUID = b"guid of one call"
FRAMES = 87
Events = dict[str, dict[int, object]]


def open_store(disk: CrashFilesystem, **settings: object) -> Store:
    return Store.open(ROOT, {**CONFIG, **settings}, filesystem=disk, clock=ManualClock(), inline=True)


def trade(number: int) -> dict[str, object]:
    return {"id": number, "text": f"trade {number} " + "x" * (60 + number % 40)}


def fill(store: Store) -> None:
    """Frames of a slot with three channels, now and then something else."""
    for fsn in range(1, FRAMES + 1):
        trades = pa.RecordBatch.from_pylist([trade(fsn * 100 + n) for n in range(12)])
        orders = pa.record_batch({"id": [fsn, -fsn]})
        store.commit_frame([Entry("trades", trades), Entry("orders", orders)], identity=SlotFrame(SLOT, Fsn(fsn)))
        if fsn % 7 == 0:
            store.commit("notes", pa.record_batch({"key": [f"key-{fsn}", f"key-{fsn}-b"]}), identity=EventIds("key"))
    store.commit("orders", pa.record_batch({"id": [0]}), identity=Guid(GUID))


@cache
def left() -> CrashFilesystem:
    """What the killed process left. `lake` acked the first two segments, `mirror` the second: it was evicted."""
    disk = CrashFilesystem()
    store = open_store(disk)
    lake, mirror = store.subscriber("lake", ["trades"]), store.subscriber("mirror", ["trades"])
    fill(store)
    leases = [lake.poll(0), lake.poll(0)]
    assert all(lease is not None for lease in leases)
    for lease in leases:
        assert lease is not None
        lease.ack()
    first, second = mirror.poll(0), mirror.poll(0)
    assert first is not None
    assert second is not None
    second.ack()
    store._keeper.tick()
    return disk.after_kill()


def damaged(*changes: Callable[[CrashFilesystem], object]) -> CrashFilesystem:
    disk = left().after_kill()
    for change in changes:
        change(disk)
    return disk


def read_all(store: Store) -> Events:
    """Channel to seq to value."""
    found: Events = {}
    for channel in store.channels():
        for batch in store.read(channel, system=["_seq"]):
            for row in batch.to_pylist():
                seq = row.pop("_seq")
                found.setdefault(channel, {})[seq] = row
    return found


@cache
def original() -> Events:
    return read_all(open_store(left().after_kill()))


@cache
def stored() -> Events:
    """What was ever stored, evicted or not."""
    store = open_store(CrashFilesystem())
    fill(store)
    return read_all(store)


@cache
def next_seqs() -> dict[str, int]:
    store = open_store(left().after_kill())
    return {name: store.commit(name, another(name)).first_seq for name in store.channels()}


def another(channel: str) -> pa.RecordBatch:
    """An event that the channel takes."""
    rows = {"trades": trade(0), "orders": {"id": 1}, "notes": {"key": "another"}}
    return pa.RecordBatch.from_pylist([rows[channel]])


def paths(disk: CrashFilesystem, part: str) -> list[Path]:
    """Files of the store below a folder, the logs oldest first, segments by number."""
    found = [path for path in disk.paths() if path.is_relative_to(ROOT / part)]
    return sorted(found, key=lambda path: (len(path.name), path.name))


def flip(disk: CrashFilesystem, path: Path, offset: int, *, bit: int = 0) -> None:
    data = bytearray(disk.read_bytes(path))
    data[offset] ^= 1 << bit
    disk.write_bytes(path, bytes(data))


def log_of(path: Path) -> LogFile:
    """A log file of the undamaged store."""
    return read_log_file(left().after_kill(), path, last=True)


def repair(disk: CrashFilesystem, *, rebuild_catalog: bool = False) -> RepairPlan:
    plan = plan_repair(disk, ROOT, rebuild_catalog=rebuild_catalog)
    apply_repair(disk, plan, clock=ManualClock())
    return plan


def ranges(plan: RepairPlan, reason: str = "damage") -> list[tuple[str, int, int]]:
    return [(item.channel, item.first_seq, item.last_seq) for item in plan.missing if item.reason == reason]


def missing_seqs(plan: RepairPlan) -> set[tuple[str, int]]:
    return {(item.channel, seq) for item in plan.missing for seq in range(item.first_seq, item.last_seq + 1)}


def check(disk: CrashFilesystem, plan: RepairPlan, *, exact: bool = True) -> Store:
    """After a repair: verify is content, the store opens, what is there is right, and what is not was said."""
    report = verify_store(disk, ROOT, live=False)
    assert report.intact, [finding for finding in report.findings if finding.severity == "damage"]
    assert not plan_repair(disk, ROOT).needed
    store = open_store(disk)
    found = read_all(store)
    gone = {
        (channel, seq) for channel, events in original().items() for seq in events if seq not in found.get(channel, {})
    }
    if exact:
        assert gone == missing_seqs(plan)
    else:
        assert gone <= missing_seqs(plan) or plan.uncertain or store.recovery.cut
    for channel, events in found.items():
        for seq, value in events.items():
            assert stored()[channel][seq] == value, f"{channel} {seq} is not what was stored"
            assert plan.rebuild_catalog or not exact or seq in original()[channel], f"{channel} {seq} was evicted"
    return store


def check_numbers(store: Store) -> None:
    """No seq that was ever given out is given out again."""
    for channel, before in next_seqs().items():
        if channel in store.channels():
            assert store.commit(channel, another(channel)).first_seq >= before


@cache
def records() -> list[tuple[Path, int, int, set[tuple[str, int]]]]:
    """(file, offset, kind, events) of every record of the undamaged write-ahead log."""
    return [record for path in paths(left(), "wal") for record in records_of(path)]


def records_of(path: Path) -> Iterator[tuple[Path, int, int, set[tuple[str, int]]]]:
    names: dict[int, str] = {}
    found = log_of(path)
    for record in found.records:
        events: set[tuple[str, int]] = set()
        if record.kind == KIND_SCHEMA:
            note = decode_schema_note(record.payload)
            names[note.channel_id] = note.channel
        if record.kind == KIND_FRAME:
            for entry in decode_frame(record.payload).entries:
                seqs = range(entry.first_seq, entry.first_seq + entry.payload.rows)
                events |= {(names[entry.channel_id], seq) for seq in seqs}
        yield path, record.position - found.header.start_position, record.kind, events


def lost_from(store: Store) -> set[tuple[str, int]]:
    found = read_all(store)
    return {(channel, seq) for channel, rows in original().items() for seq in rows if seq not in found.get(channel, {})}


@cache
def published_up_to() -> dict[str, int]:
    store = open_store(left().after_kill())
    return {channel.name: channel.published_seq for channel in store._channels}


def published(channel: str, seq: int) -> bool:
    return seq <= published_up_to().get(channel, 0)


def closed() -> CrashFilesystem:
    """The same events, closed in order: only segments hold them."""
    disk = left().after_kill()
    open_store(disk).close()
    return disk.after_kill()


def without_catalog(disk: CrashFilesystem) -> None:
    disk.unlink(ROOT / "catalog.db")


def marks(store: Store) -> dict[str, list[tuple[int, tuple[tuple[int, int], ...]]]]:
    return {item.name: [(lag.mark, lag.gaps) for lag in item.channels] for item in store.subscribers()}


def missing_seqs_of(plan: RepairPlan, channel: str) -> set[int]:
    return {seq for name, seq in missing_seqs(plan) if name == channel}
