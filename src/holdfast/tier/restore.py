"""A data directory from a manifest: what comes back after a wipe, and for a look at an earlier time.

The order, and what a crash leaves:

    1. the marker `restoring` in the directory, synced      a start finds it and begins again
    2. every segment, fetched, compared, synced, renamed    files that no catalog knows; fetched again
    3. the catalog, in one transaction
    4. the marker goes, synced                              the directory is a store

Promises:

- Only what the manifest lists comes back, so every frame is there as a whole or not at all; dedup knows exactly those.
- Numbers start behind all that may have been given out (`manifest.py`), also for channels the manifest does not know.
- Subscribers come back with the marks that were kept; what they confirmed after that comes to them again.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import msgspec

from holdfast.disk.filesystem import Filesystem, Mode
from holdfast.errors import BadRequest, DamagedObject
from holdfast.model.intervals import IntervalSet
from holdfast.store.catalog import CATALOG_NAME, VERSION, Catalog, CatalogChannel, Publication, PublishedSegment
from holdfast.store.ground import CHANNELS_DIR, LOCK_NAME, WAL_DIR, make_directory
from holdfast.store.repair.amend import Amendment, amend
from holdfast.store.subscribers.notes import Snapshot
from holdfast.telemetry import event
from holdfast.tier.copying import fetch
from holdfast.tier.manifest import ChannelNote, ManifestState, SegmentNote
from holdfast.tier.objects import Objects

MARKER = "restoring"
CALM = frozenset({LOCK_NAME, "access"})
"""Names that may be in a directory without making it a store."""


@dataclass(frozen=True, slots=True)
class RestoreReport:
    """What came back."""

    number: int
    """The last manifest entry that counted."""
    at_ns: int
    channels: int
    segments: int
    events: int
    bytes: int
    subscribers: int


def is_empty(filesystem: Filesystem, directory: Path) -> bool:
    """Whether there is no store in a directory, or one whose restore did not end."""
    if not filesystem.exists(directory) or filesystem.exists(directory / MARKER):
        return True
    return all(entry.name in CALM for entry in filesystem.listdir(directory))


def restore(
    objects: Objects,
    state: ManifestState,
    filesystem: Filesystem,
    directory: Path,
    *,
    persist: Callable[[Callable[[], None], str], None],
    workers: int,
) -> RestoreReport:
    """Make the directory the store of the manifest. `BadRequest` if there is a store already, or none in the tier."""
    if state.reserved is None:
        raise BadRequest(f"tier {objects.url} holds no store; there is nothing to restore")
    if not is_empty(filesystem, directory):
        raise BadRequest(f"{directory} is not empty; a restore needs an empty directory, or one that is not there")
    make_directory(filesystem, directory)
    lock = filesystem.lock(directory / LOCK_NAME)
    try:
        _begin(filesystem, directory)
        _fetch_all(objects, state, filesystem, directory, persist=persist, workers=workers)
        _write_catalog(objects, state, filesystem, directory)
        filesystem.unlink(directory / MARKER)
        filesystem.sync_dir(directory)
    finally:
        lock.release()
    report = _report(state)
    event("tier.restore", directory=directory, number=report.number, segments=report.segments, events=report.events)
    return report


def _begin(filesystem: Filesystem, directory: Path) -> None:
    if not filesystem.exists(directory / MARKER):
        file = filesystem.open(directory / MARKER, Mode.CREATE)
        file.sync()
        file.close()
        filesystem.sync_dir(directory)
    for entry in filesystem.listdir(directory):
        if entry.name.startswith(CATALOG_NAME):
            filesystem.unlink(directory / entry.name)
    filesystem.makedir(directory / CHANNELS_DIR)
    filesystem.sync_dir(directory)


def _fetch_all(
    objects: Objects,
    state: ManifestState,
    filesystem: Filesystem,
    directory: Path,
    *,
    persist: Callable[[Callable[[], None], str], None],
    workers: int,
) -> None:
    folder = directory / CHANNELS_DIR
    for channel in sorted({note.meta.channel for note in state.segments.values()}):
        filesystem.makedir(folder / channel)
    filesystem.sync_dir(folder)

    def one(note: SegmentNote) -> None:
        target = folder / note.meta.channel / f"seg-{note.segment_seq}.arrow"
        persist(lambda: fetch(objects, note, filesystem, target), f"fetch {note.key}")

    with ThreadPoolExecutor(workers, "holdfast-restore") as pool:
        list(pool.map(one, state.segments.values()))


def _write_catalog(objects: Objects, state: ManifestState, filesystem: Filesystem, directory: Path) -> None:
    assert state.reserved is not None
    Catalog(filesystem, directory).close()  # makes the tables
    channels = {note.channel_id: _channel(note, state) for note in state.channels.values()}
    publications = [
        Publication(_segment(note), channels[note.channel_id], _slots(note), _ids(objects, note))
        for note in state.segments.values()
    ]
    amendment = Amendment(
        meta={
            "store_id": bytes.fromhex(state.store_id),
            "version": VERSION,
            "segment_seq_reserved": state.reserved.segment_seq,
            "committed_id_floor": state.reserved.committed_id,
            "birth_seq": state.reserved.birth_seq + state.reserved.window,
            "tier_url": objects.url.encode(),
            "tier_number": state.number,
            "tier_nonce": b"",  # no process with this directory has written an entry yet
        },
        publications=publications,
        channels=list(channels.values()),
        gone={channel_id: _gone(channel, state) for channel_id, channel in channels.items()},
        readers=_readers(state, channels),
        slots={bytes.fromhex(slot_id): list(ranges) for slot_id, ranges in state.slots.items()},
        floors={note.channel_id: note.first_seq for note in state.channels.values() if note.first_seq > 1},
    )
    database = filesystem.database(directory / CATALOG_NAME)
    try:
        amend(database, amendment)
    finally:
        database.close()
    filesystem.makedir(directory / WAL_DIR)
    filesystem.sync_dir(directory)


def _channel(note: ChannelNote, state: ManifestState) -> CatalogChannel:
    assert state.reserved is not None
    return CatalogChannel(note.channel_id, note.name, note.next_seq + state.reserved.window, note.schema)


def _segment(note: SegmentNote) -> PublishedSegment:
    return PublishedSegment(note.channel_id, note.meta, note.has_guids, note.size_bytes, note.crc32c)


def _slots(note: SegmentNote) -> dict[bytes, list[tuple[int, int]]]:
    return {bytes.fromhex(slot_id): ranges for slot_id, ranges in note.slots.items()}


def _ids(objects: Objects, note: SegmentNote) -> list[tuple[bytes, int]]:
    if not note.ids_key:
        return []
    try:
        return msgspec.msgpack.decode(objects.read(note.ids_key), type=list[tuple[bytes, int]])
    except msgspec.MsgspecError as error:
        raise DamagedObject(url=objects.url, key=note.ids_key, reason=str(error)) from error


def _gone(channel: CatalogChannel, state: ManifestState) -> list[tuple[int, int, str]]:
    """What is in no segment: below the last one it was evicted, above it the numbers are skipped."""
    there = IntervalSet(
        (note.meta.first_seq, note.meta.last_seq)
        for note in state.segments.values()
        if note.channel_id == channel.channel_id
    )
    last = there.highest or 0
    holes = [(first, end, "evicted") for first, end in there.missing(1, last)]
    return [*holes, (last + 1, channel.next_seq - 1, "skipped")]


def _readers(state: ManifestState, channels: dict[int, CatalogChannel]) -> Snapshot | None:
    """Marks do not wait for numbers that nobody will ever fill."""
    if state.readers is None:
        return None
    progress = []
    for note in state.readers.progress:
        if note.channel_id not in channels:
            continue  # the number of a channel that was new then; another may get it now
        settled = IntervalSet(note.ranges)
        for first, last, _ in _gone(channels[note.channel_id], state):
            if last >= note.start_seq:
                settled.add(max(first, note.start_seq), last)
        progress.append(msgspec.structs.replace(note, ranges=tuple(settled)))
    return msgspec.structs.replace(state.readers, progress=tuple(progress))


def _report(state: ManifestState) -> RestoreReport:
    segments = state.segments.values()
    return RestoreReport(
        state.number,
        state.at_ns,
        len(state.channels),
        len(segments),
        sum(note.meta.rows for note in segments),
        sum(note.size_bytes for note in segments),
        len(state.readers.subscribers) if state.readers is not None else 0,
    )
