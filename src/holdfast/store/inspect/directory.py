"""A store: its files by what they are, its channels, and who has it open.

Promise: log and catalog are read in full, segments are only listed (`verify` reads them). Files that come and go while
a live store is looked at are no error.
"""

from __future__ import annotations

import os
import re
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Literal

from holdfast.config.server import ACCESS_DIR
from holdfast.disk.filesystem import DirEntry, Filesystem
from holdfast.errors import BadRequest
from holdfast.store.catalog import CATALOG_NAME, PublishedSegment
from holdfast.store.ground import ACK_DIR, CACHE_DIR, CHANNELS_DIR, LOCK_NAME, QUARANTINE_DIR, WAL_DIR, WITNESS_NAME
from holdfast.store.inspect.catalogs import CatalogContents, load_catalog
from holdfast.store.inspect.copies import Damage, read_whole
from holdfast.store.inspect.logs import FrameContent, LogView, inspect_log
from holdfast.store.segments.growing import GROWING_SUFFIX

LOG_FILE_NAME = re.compile(r"[a-z]+-\d{10}\.log")

_SEGMENT_FILE_NAME = re.compile(r"seg-\d+\.arrow")
_TOP_FILES = {LOCK_NAME, WITNESS_NAME, CATALOG_NAME, f"{CATALOG_NAME}-wal", f"{CATALOG_NAME}-shm"}
_TOP_FOLDERS = {WAL_DIR, ACK_DIR, CHANNELS_DIR, QUARANTINE_DIR}


@dataclass(frozen=True, slots=True)
class StoreFiles:
    """The files of a store by what they are."""

    directory: Path
    has_catalog: bool
    logs: tuple[Path, ...]
    """Of the write-ahead log, oldest first."""
    ack_logs: tuple[Path, ...]
    segments: tuple[Path, ...]
    unfinished: tuple[Path, ...]
    """`.tmp`: being written, or left by a crash; the next start removes them."""
    growing: tuple[Path, ...]
    """Segments that are being filled; the log refers to them."""
    set_aside: tuple[Path, ...]
    """Damaged files that a start moved away."""
    archived: tuple[Path, ...]
    """`.bak`: evicted segments and their descriptions, for the archive script."""
    unknown: tuple[Path, ...]


@dataclass(frozen=True, slots=True)
class ChannelView:
    """A channel: what is published, and what only the log holds."""

    name: str
    first_seq: int
    next_seq: int
    segments: int
    segment_events: int
    segment_bytes: int
    log_events: int


@dataclass(frozen=True, slots=True)
class LogSummary:
    """A log file in one line."""

    file: str
    size_bytes: int
    records: int
    frames: int
    closed: bool


@dataclass(frozen=True, slots=True)
class StoreView:
    """A store in one page."""

    directory: str
    store_id: str
    holder_pid: int | None
    channels: tuple[ChannelView, ...]
    logs: tuple[LogSummary, ...]
    catalog_rows: dict[str, int]
    unfinished: tuple[str, ...]
    set_aside: tuple[str, ...]
    archived: tuple[str, ...]
    unknown: tuple[str, ...]
    damage: tuple[Damage, ...]
    kind: Literal["store"] = "store"


def inspect_store(filesystem: Filesystem, directory: Path) -> StoreView:
    """Channels, log files and what is odd."""
    files = list_store(filesystem, directory)
    contents = catalog_of(filesystem, files)
    logs: list[LogSummary] = []
    damage = list(contents.damage)
    tally = _Tally(contents)
    for path in (*files.logs, *files.ack_logs):
        with suppress(FileNotFoundError):  # trimmed while we looked
            view = inspect_log(filesystem, path)
            logs.append(LogSummary(str(path), view.size_bytes, len(view.records), tally.log(view), view.closed))
            damage += view.damage
    damage += _missing_segments(filesystem, files, contents)
    return StoreView(
        directory=str(directory),
        store_id=(contents.store_id or b"").hex(),
        holder_pid=lock_holder(filesystem, directory),
        channels=tuple(tally.channels()),
        logs=tuple(logs),
        catalog_rows=contents.rows,
        unfinished=tuple(map(str, (*files.unfinished, *files.growing))),
        set_aside=tuple(map(str, files.set_aside)),
        archived=tuple(map(str, files.archived)),
        unknown=tuple(map(str, files.unknown)),
        damage=tuple(damage),
    )


def catalog_of(filesystem: Filesystem, files: StoreFiles) -> CatalogContents:
    """The catalog's contents; that it is missing is damage."""
    path = files.directory / CATALOG_NAME
    if files.has_catalog:
        return load_catalog(filesystem, path)
    return CatalogContents(path, damage=[Damage(str(path), 0, "the catalog is missing")])


def segment_path(directory: Path, contents: CatalogContents, segment: PublishedSegment) -> Path:
    """Where a published segment is."""
    return directory / CHANNELS_DIR / contents.channel_of(segment) / segment.file_name


def _missing_segments(filesystem: Filesystem, files: StoreFiles, contents: CatalogContents) -> Iterator[Damage]:
    listed = set(files.segments)
    for segment in contents.segments:
        path = segment_path(files.directory, contents, segment)
        known = path in listed or segment.meta.segment_seq in contents.remote
        if not known and not filesystem.exists(path):
            yield Damage(str(path), 0, "a published segment is missing")


class _Tally:
    """Adds up channels from the catalog and from log files, given oldest first."""

    def __init__(self, contents: CatalogContents) -> None:
        self._next_seq = {channel.name: channel.next_seq for channel in contents.channels.values()}
        self._first_seq: dict[str, int] = {}
        self._segments: Counter[str] = Counter()
        self._events: Counter[str] = Counter()
        self._bytes: Counter[str] = Counter()
        self._log_events: Counter[str] = Counter()
        for segment in contents.segments:
            name = contents.channel_of(segment)
            self._first_seq[name] = min(self._first_seq.get(name, segment.meta.first_seq), segment.meta.first_seq)
            self._segments[name] += 1
            self._events[name] += segment.meta.rows
            self._bytes[name] += segment.size_bytes

    def log(self, view: LogView) -> int:
        """Count what is not published yet; returns how many frames the file has."""
        frames = [record.content for record in view.records if isinstance(record.content, FrameContent)]
        for entry in (entry for frame in frames for entry in frame.entries):
            if entry.first_seq >= self._next_seq.get(entry.channel, 1):
                self._first_seq.setdefault(entry.channel, entry.first_seq)
                self._next_seq[entry.channel] = entry.last_seq + 1
                self._log_events[entry.channel] += entry.rows
        return len(frames)

    def channels(self) -> Iterator[ChannelView]:
        for name in sorted(self._next_seq):
            yield ChannelView(
                name=name,
                first_seq=self._first_seq.get(name, self._next_seq[name]),
                next_seq=self._next_seq[name],
                segments=self._segments[name],
                segment_events=self._events[name],
                segment_bytes=self._bytes[name],
                log_events=self._log_events[name],
            )


# ---------------------------------------------------------------------------------------------------------------- files


def list_store(filesystem: Filesystem, directory: Path) -> StoreFiles:
    """Sort the files of a directory; `BadRequest` if it is no store."""
    top = filesystem.listdir(directory)
    names = {entry.name for entry in top}
    if not names & {CATALOG_NAME, WAL_DIR, CHANNELS_DIR}:
        raise BadRequest(f"{directory} is not a store: it has no {CATALOG_NAME}; give the directory of one")
    kinds: dict[str, list[Path]] = {field.name: [] for field in fields(StoreFiles)[2:]}
    for entry in top:
        if entry.name not in (_TOP_FOLDERS | {ACCESS_DIR, CACHE_DIR} if entry.is_dir else _TOP_FILES):
            kinds["unknown"].append(directory / entry.name)
    for path, entry in _below(filesystem, directory, names & _TOP_FOLDERS):
        kinds[_kind(path.relative_to(directory), entry)].append(path)
    return StoreFiles(directory, CATALOG_NAME in names, **{kind: tuple(paths) for kind, paths in kinds.items()})


def _kind(place: Path, entry: DirEntry) -> str:
    """The field of `StoreFiles` to which a file belongs."""
    folder, depth = place.parts[0], len(place.parts)
    for kind, fits in (
        ("unknown", entry.is_dir),
        ("set_aside", folder == QUARANTINE_DIR),
        ("unfinished", entry.name.endswith(".tmp")),
        ("growing", folder == CHANNELS_DIR and depth == 3 and entry.name.endswith(GROWING_SUFFIX)),
        ("archived", folder == CHANNELS_DIR and depth == 3 and entry.name.endswith(".bak")),
        ("segments", folder == CHANNELS_DIR and depth == 3 and _SEGMENT_FILE_NAME.fullmatch(entry.name)),
        ("logs", folder == WAL_DIR and LOG_FILE_NAME.fullmatch(entry.name)),
        ("ack_logs", folder == ACK_DIR and LOG_FILE_NAME.fullmatch(entry.name)),
    ):
        if fits:
            return kind
    return "unknown"


def _below(filesystem: Filesystem, directory: Path, folders: set[str]) -> Iterator[tuple[Path, DirEntry]]:
    """What is in our directories, in those of channels, and anywhere in quarantine."""
    for name in sorted(folders):
        for entry in filesystem.listdir(directory / name):
            path = directory / name / entry.name
            if name == CHANNELS_DIR and entry.is_dir:
                yield from ((path / inner.name, inner) for inner in filesystem.listdir(path))
            elif name == QUARANTINE_DIR and entry.is_dir:
                yield from _all_below(filesystem, path)
            else:
                yield path, entry


def _all_below(filesystem: Filesystem, folder: Path) -> Iterator[tuple[Path, DirEntry]]:
    for entry in filesystem.listdir(folder):
        if entry.is_dir:
            yield from _all_below(filesystem, folder / entry.name)
        else:
            yield folder / entry.name, entry


# ---------------------------------------------------------------------------------------------------------------- owner


def lock_holder(filesystem: Filesystem, directory: Path) -> int | None:
    """The pid of the process that has the store open, if it lives. Reads the lock file and never takes the lock."""
    try:
        text = read_whole(filesystem, directory / LOCK_NAME).strip()
    except FileNotFoundError:
        return None
    return int(text) if text.isdigit() and _is_alive(int(text)) else None


def _is_alive(pid: int) -> bool:
    if os.name == "nt":  # there is no harmless question; a store that was closed in order left no pid
        return True
    try:
        os.kill(pid, 0)
    except (ProcessLookupError, OverflowError):
        return False
    except PermissionError:  # it lives and is someone else's
        return True
    return True
