"""A data directory from a manifest: what comes back after a wipe, and for a look at an earlier time.

The order, and what a crash leaves:

    1. the marker `restoring` in the directory, synced      a start finds it and begins again
    2. every segment, or the newest of them as far as `retention.local` says, fetched, compared, synced, renamed
                                                            files that no catalog knows; fetched again
    3. the catalog, in one transaction
    4. the marker goes, synced                              the directory is a store

Promises:

- Only what the manifest lists comes back, so every frame is there as a whole or not at all; dedup knows exactly those.
- Numbers start behind all that may have been given out (`manifest.py`), also for channels the manifest does not know.
- A segment that was not fetched is noted as being in the tier only, and is read from there.
- An object that is gone is damage only if the manifest still lists it when it is read once more: a server that lives
  may have let it go meanwhile.
- Subscribers come back with the marks that were kept; what they confirmed after that comes to them again.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path

import msgspec

from holdfast.disk.filesystem import Filesystem, Mode
from holdfast.errors import BadRequest, DamagedObject
from holdfast.model.intervals import IntervalSet
from holdfast.store.catalog import CATALOG_NAME, VERSION, Catalog, CatalogChannel, Publication, PublishedSegment
from holdfast.store.ground import CACHE_DIR, CHANNELS_DIR, LOCK_NAME, WAL_DIR, make_directory
from holdfast.store.repair.amend import Amendment, amend
from holdfast.store.subscribers.notes import Snapshot
from holdfast.telemetry import event
from holdfast.tier.copying import fetch
from holdfast.tier.manifest import ChannelNote, ManifestState, SegmentNote
from holdfast.tier.objects import Objects

MARKER = "restoring"
CALM = frozenset({LOCK_NAME, CACHE_DIR, "access"})
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
    fetched: int
    """Segments with a file; the others are only in the tier."""


def is_empty(filesystem: Filesystem, directory: Path) -> bool:
    """Whether there is no store in a directory, or one whose restore did not end."""
    if not filesystem.exists(directory) or filesystem.exists(directory / MARKER):
        return True
    return all(entry.name in CALM for entry in filesystem.listdir(directory))


@dataclass(frozen=True, slots=True)
class RestoreSettings:
    """How much to fetch, and how."""

    workers: int
    """Threads; 0 fetches one after the other."""
    keep_bytes: int = 0
    """So many bytes of the newest segments are fetched; 0 is all."""
    refresh: Callable[[], None] | None = None
    """Reads the manifest on, into the same state; None for an earlier time, where that would tell nothing."""


def restore(
    objects: Objects,
    state: ManifestState,
    filesystem: Filesystem,
    directory: Path,
    *,
    persist: Callable[[Callable[[], None], str], None],
    settings: RestoreSettings,
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
        here = _fetch_all(objects, state, filesystem, directory, persist=persist, settings=settings)
        ids = {note.segment_seq: _ids(objects, note, persist) for note in state.segments.values() if note.ids_key}
        _write_catalog(objects.url, state, filesystem, directory, here=here, ids=ids)
        filesystem.unlink(directory / MARKER)
        filesystem.sync_dir(directory)
    finally:
        lock.release()
    report = _report(state, fetched=len(here))
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
    folder = directory / CHANNELS_DIR
    filesystem.makedir(folder)
    filesystem.sync_dir(directory)
    for entry in filesystem.listdir(folder):  # of a restore that was interrupted; the manifest may have gone on since
        for left in filesystem.listdir(folder / entry.name):
            filesystem.unlink(folder / entry.name / left.name)


def _fetch_all(
    objects: Objects,
    state: ManifestState,
    filesystem: Filesystem,
    directory: Path,
    *,
    persist: Callable[[Callable[[], None], str], None],
    settings: RestoreSettings,
) -> set[int]:
    """Fetch what is to lie here; returns the numbers of those segments."""
    folder = directory / CHANNELS_DIR
    there: dict[int, Path] = {}

    def one(note: SegmentNote) -> None:
        target = folder / note.meta.channel / f"seg-{note.segment_seq}.arrow"
        persist(lambda: fetch(objects, note, filesystem, target), f"fetch {note.key}")
        there[note.segment_seq] = target

    while True:
        wanted = [note for note in _newest(state, settings.keep_bytes) if note.segment_seq not in there]
        _make_folders(filesystem, folder, wanted)
        try:
            if settings.workers:
                with ThreadPoolExecutor(settings.workers, "holdfast-restore") as pool:
                    list(pool.map(one, wanted))
            else:
                for note in wanted:
                    one(note)
        except DamagedObject as error:
            if settings.refresh is None:
                raise
            settings.refresh()
            if any(note.key == error.key for note in state.segments.values()):
                raise
            continue
        for number in [number for number in there if number not in state.segments]:
            filesystem.unlink(there.pop(number))
        return set(there)


def _newest(state: ManifestState, keep_bytes: int) -> list[SegmentNote]:
    """The newest segments that fit, at least one; all of them without a limit."""
    notes = sorted(state.segments.values(), key=lambda note: note.segment_seq, reverse=True)
    if not keep_bytes:
        return notes
    sizes = list(accumulate(note.size_bytes for note in notes))
    return notes[: max(1, bisect_right(sizes, keep_bytes))]


def _make_folders(filesystem: Filesystem, folder: Path, notes: list[SegmentNote]) -> None:
    for channel in sorted({note.meta.channel for note in notes}):
        filesystem.makedir(folder / channel)
    filesystem.sync_dir(folder)


def _write_catalog(
    url: str,
    state: ManifestState,
    filesystem: Filesystem,
    directory: Path,
    *,
    here: set[int],
    ids: dict[int, list[tuple[bytes, int]]],
) -> None:
    assert state.reserved is not None
    Catalog(filesystem, directory).close()  # makes the tables
    channels = {note.channel_id: _channel(note, state) for note in state.channels.values()}
    publications = [
        Publication(_segment(note), channels[note.channel_id], _slots(note), ids.get(note.segment_seq, []))
        for note in state.segments.values()
    ]
    amendment = Amendment(
        meta={
            "store_id": bytes.fromhex(state.store_id),
            "version": VERSION,
            "segment_seq_reserved": state.reserved.segment_seq,
            "committed_id_floor": state.reserved.committed_id,
            "birth_seq": state.reserved.birth_seq + state.reserved.window,
            "tier_url": url.encode(),
            "tier_number": state.number,
            "tier_nonce": b"",  # no process with this directory has written an entry yet
        },
        publications=publications,
        channels=list(channels.values()),
        gone={channel_id: _gone(channel, state) for channel_id, channel in channels.items()},
        readers=_readers(state, channels),
        slots={bytes.fromhex(slot_id): list(ranges) for slot_id, ranges in state.slots.items()},
        floors={note.channel_id: note.first_seq for note in state.channels.values() if note.first_seq > 1},
        remote=sorted(set(state.segments) - here),
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


def _ids(
    objects: Objects, note: SegmentNote, persist: Callable[[Callable[[], None], str], None]
) -> list[tuple[bytes, int]]:
    data: list[bytes] = []
    persist(lambda: data.append(objects.read(note.ids_key)), f"read {note.ids_key}")
    try:
        return msgspec.msgpack.decode(data[0], type=list[tuple[bytes, int]])
    except msgspec.MsgspecError as error:
        raise DamagedObject(url=objects.url, key=note.ids_key, reason=str(error)) from error


def _gone(channel: CatalogChannel, state: ManifestState) -> list[tuple[int, int, str]]:
    """What is in no segment: below the last one it was evicted, unless it was skipped; above it it is skipped now."""
    there = IntervalSet(
        (note.meta.first_seq, note.meta.last_seq)
        for note in state.segments.values()
        if note.channel_id == channel.channel_id
    )
    last = there.highest or 0
    holes = IntervalSet(there.missing(1, last))
    skipped = IntervalSet(part for span in state.channels[channel.channel_id].skipped for part in holes.overlap(*span))
    for span in skipped:
        holes.discard(*span)
    skipped.add(last + 1, channel.next_seq - 1)
    return sorted([*((*span, "evicted") for span in holes), *((*span, "skipped") for span in skipped)])


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


def _report(state: ManifestState, *, fetched: int) -> RestoreReport:
    segments = state.segments.values()
    return RestoreReport(
        state.number,
        state.at_ns,
        len(state.channels),
        len(segments),
        sum(note.meta.rows for note in segments),
        sum(note.size_bytes for note in segments),
        len(state.readers.subscribers) if state.readers is not None else 0,
        fetched,
    )
