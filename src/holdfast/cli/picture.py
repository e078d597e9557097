"""A store as it is now, from copies of its files: channels, segments, subscribers and how far each of them is.

Promise: nothing is written and no lock is taken, so a store that is in use may be looked at; the answer is then a
recent picture. Who follows what, marks, gap sets and limits are worked out by the store's own classes, fed from the
copies.

The logs are read before the catalog: what leaves a log meanwhile is in the catalog by then, and what is in both counts
once. The acknowledgement log counts up to its first flaw, as it does for a store that starts. A flaw of the write-ahead
log that is no torn tail is an error, unless a process has the store open: then it is a group that is being written.

Also here: settings from a file, for the commands that tell or keep limits.
"""

from __future__ import annotations

import difflib
import sqlite3
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

import pyarrow as pa

from holdfast.cli.extras import read_settings
from holdfast.clock import NS_PER_S, Clock, SystemClock
from holdfast.config import StoreConfig
from holdfast.disk import records
from holdfast.disk.appendlog import LogFile
from holdfast.disk.local import LocalFilesystem
from holdfast.errors import BadRequest, CorruptData, SchemaMismatch, UnsupportedFormat
from holdfast.store.catalog import CATALOG_NAME, Catalog, Loss, PublishedSegment
from holdfast.store.channels import Channel, ChannelTable
from holdfast.store.inspect.catalogs import catalog_images
from holdfast.store.inspect.copies import read_log_copy
from holdfast.store.inspect.directory import StoreFiles, list_store, lock_holder
from holdfast.store.inspect.logs import MAKES_NO_SENSE
from holdfast.store.limits import LimitsTree
from holdfast.store.subscribers.acklog import OutcomeRecord, decode_outcomes
from holdfast.store.subscribers.progress import Progress, bytes_owed
from holdfast.store.subscribers.registry import Registry, SubscriberState, total_losses
from holdfast.store.subscribers.subscriber import ChannelLag
from holdfast.store.wal.codec import (
    KIND_FLOORS,
    KIND_FRAME,
    KIND_SCHEMA,
    decode_floors,
    decode_frame,
    decode_schema_note,
)

NAMES_SHOWN_MAX = 10
"""Names that an error lists; `ls` lists all."""

CHANGE_NOTHING: Mapping[str, object] = {"retention.mode": "limits"}
"""Settings under which a store that is opened for one change deletes nothing else."""


# ------------------------------------------------------------------------------------------------------------- settings


def read_config(path: Path | None, *, without: Mapping[str, object] | None = None) -> StoreConfig:
    """The store's settings in a configuration file; `without` one, these."""
    if path is None:
        return StoreConfig.from_mapping(without or {})
    config: StoreConfig = read_settings(path).store
    return config


# -------------------------------------------------------------------------------------------------------------- picture


@dataclass(slots=True)
class Unsealed:
    """Events of a channel that are in the write-ahead log only."""

    first_seq: int
    last_seq: int
    ingested_at_ns: int
    events: int = 0


@dataclass(frozen=True, slots=True)
class Picture:
    """What the files of a store say."""

    directory: Path
    holder_pid: int | None
    clock: Clock
    limits: LimitsTree
    channels: ChannelTable
    registry: Registry
    segments: dict[int, list[PublishedSegment]]
    """By channel id, in the order of their events."""
    unsealed: dict[int, Unsealed]
    losses: list[Loss]

    @property
    def owner(self) -> str:
        """Who has it open, for people."""
        return f"open in process {self.holder_pid}" if self.holder_pid is not None else "not open in any process"

    def channel(self, name: str) -> Channel:
        """The channel, or `BadRequest` with those there are."""
        found = self.channels.get(name)
        if found is None:
            raise _unknown("channel", name, (channel.name for channel in self.channels), directory=self.directory)
        return found

    def all_channels(self) -> list[Channel]:
        """Those that a store would show, by name."""
        shown = [channel for channel in self.channels if not channel.is_closed_off]
        return sorted(shown, key=lambda channel: channel.name)

    def subscriber(self, name: str) -> SubscriberState:
        """The subscriber, or `BadRequest` with those there are."""
        states = {state.note.name: state for state in self.registry.states()}
        if name not in states:
            raise _unknown("subscriber", name, states, directory=self.directory)
        return states[name]

    def followers(self, channel: Channel) -> list[tuple[str, Progress]]:
        """Who reads a channel and how far they are, by name."""
        found = [(state.note.name, progress) for state, progress in self.registry.followers(channel)]
        return sorted(found, key=lambda pair: pair[0])

    def segments_of(self, channel: Channel) -> list[PublishedSegment]:
        """In the order of their events."""
        return self.segments.get(channel.id, [])

    def lag_of(self, state: SubscriberState) -> list[ChannelLag]:
        """How far behind a subscriber is, per channel by name; the same figures as `Subscriber.lag`."""
        return sorted(
            (self._lag(channel, progress) for channel, progress in self.registry.followed(state)),
            key=lambda lag: lag.channel,
        )

    def _lag(self, channel: Channel, progress: Progress) -> ChannelLag:
        unsealed = self.unsealed.get(channel.id)
        owed = progress.owed(1, unsealed.last_seq if unsealed else channel.published_seq)
        segments = self.segments_of(channel)
        waiting = [item.meta.first_ingested_at_ns for item in segments if owed and item.meta.last_seq >= owed[0][0]]
        if owed and unsealed:
            waiting.append(unsealed.ingested_at_ns)
        seconds = max(0.0, (self.clock.wall_ns() - min(waiting)) / NS_PER_S) if waiting else 0.0
        size_bytes = bytes_owed(owed, [(item.meta.first_seq, item.meta.last_seq, item.size_bytes) for item in segments])
        events = sum(last - first + 1 for first, last in owed)
        return ChannelLag(channel.name, progress.mark, tuple(progress.gaps()), events, size_bytes, seconds)


def look(directory: Path, config: StoreConfig) -> Picture:
    """Take the picture; `BadRequest` if there is no store."""
    filesystem = LocalFilesystem()
    if not directory.is_dir():
        raise BadRequest(f"{directory} is no directory; give that of a store with --data")
    files = list_store(filesystem, directory)
    holder_pid = lock_holder(filesystem, directory)
    notes = _read_wal(files, live=holder_pid is not None)
    outcomes = [outcome for found in _log_files(files.ack_logs) for outcome in _outcomes(found)]
    limits = LimitsTree(config)
    with tempfile.TemporaryDirectory(prefix="holdfast-catalog-") as folder:
        catalog = _copied_catalog(directory / CATALOG_NAME, Path(folder))
        try:
            channels = ChannelTable(limits, channels_max=0)
            registry = Registry(catalog, channels, SystemClock(), lease_timeout_ns=config.lease_timeout_ns)
            segments = _take_catalog(catalog, channels)
            unsealed = _take_wal(notes, channels)
            registry.restore(catalog.subscribers())
            cursor = catalog.cursor("ack") or 0
            registry.apply(outcome for position, outcome in outcomes if position >= cursor)
            losses = total_losses(catalog.losses(), registry.pending_losses())
        except (CorruptData, sqlite3.DatabaseError) as error:
            reason = error.reason if isinstance(error, CorruptData) else str(error)
            raise CorruptData(file=directory / CATALOG_NAME, offset_bytes=0, reason=reason) from error
        finally:
            catalog.close()
    return Picture(directory, holder_pid, SystemClock(), limits, channels, registry, segments, unsealed, losses)


def _unknown(what: str, name: str, names: Iterable[str], *, directory: Path) -> BadRequest:
    known = sorted(names)
    close = difflib.get_close_matches(name, known, n=1)
    more = f" and {len(known) - NAMES_SHOWN_MAX} more" if len(known) > NAMES_SHOWN_MAX else ""
    hint = (
        f"did you mean {close[0]!r}?" if close else f"there are: {', '.join(known[:NAMES_SHOWN_MAX]) or 'none'}{more}"
    )
    return BadRequest(f"there is no {what} {name!r} in {directory}; {hint}")


# ----------------------------------------------------------------------------------------------------------------- logs


@dataclass(slots=True)
class _WalNotes:
    """What the write-ahead log says, oldest first."""

    names: dict[int, str] = field(default_factory=dict)
    schemas: list[tuple[int, pa.Schema]] = field(default_factory=list)
    next_seqs: list[tuple[int, int]] = field(default_factory=list)
    entries: list[tuple[int, int, int, int]] = field(default_factory=list)
    """(channel id, first seq, last seq, ingested at)"""

    def take(self, found: LogFile) -> None:
        """Add the records of one file."""
        for record in found.records:
            if record.kind == KIND_FRAME:
                frame = decode_frame(record.payload)
                self.entries += [
                    (entry.channel_id, entry.first_seq, entry.first_seq + entry.payload.rows - 1, frame.ingested_at_ns)
                    for entry in frame.entries
                ]
            elif record.kind == KIND_SCHEMA:
                note = decode_schema_note(record.payload)
                self.names[note.channel_id] = note.channel
                self.schemas.append((note.channel_id, pa.ipc.read_schema(pa.py_buffer(note.schema))))
            elif record.kind == KIND_FLOORS:
                for channel_id, name, next_seq in decode_floors(record.payload).channels:
                    self.names[channel_id] = name
                    self.next_seqs.append((channel_id, next_seq))


def _read_wal(files: StoreFiles, *, live: bool) -> _WalNotes:
    notes = _WalNotes()
    for found in _log_files(files.logs):
        try:
            notes.take(found)
        except MAKES_NO_SENSE as error:
            reason = f"a record is intact but makes no sense: {error}"
            raise CorruptData(file=found.path, offset_bytes=0, reason=reason) from error
        flaw = found.flaw
        if flaw is not None and not flaw.torn and not live:
            dump = records.dump(found.buffer, offset=flaw.offset_bytes)
            raise CorruptData(file=found.path, offset_bytes=flaw.offset_bytes, reason=flaw.reason, dump=dump)
    return notes


def _log_files(paths: tuple[Path, ...]) -> Iterator[LogFile]:
    for path in paths:
        with suppress(FileNotFoundError):  # trimmed while we looked: the catalog has it by now
            yield read_log_copy(LocalFilesystem(), path, last=path == paths[-1])


def _outcomes(found: LogFile) -> list[tuple[int, OutcomeRecord]]:
    """Outcomes with their positions in the log."""
    return [(record.position, outcome) for record in found.records for outcome in decode_outcomes(record)]


def _take_wal(notes: _WalNotes, channels: ChannelTable) -> dict[int, Unsealed]:
    """Channels, schemas and events that are not in the catalog yet."""
    for channel_id, name in notes.names.items():
        channels.restore(name, channel_id)
    for channel_id, next_seq in notes.next_seqs:
        channel = channels.by_id(channel_id)
        channel.next_seq = max(channel.next_seq, next_seq)
    for channel_id, schema in notes.schemas:
        with suppress(SchemaMismatch):  # a store that keeps any schema, looked at without its settings
            channels.adopt_schema(channels.by_id(channel_id), schema)
    unsealed: dict[int, Unsealed] = {}
    for channel_id, first_seq, last_seq, ingested_at_ns in notes.entries:
        channel = channels.by_id(channel_id)
        channel.active_at_ns = max(channel.active_at_ns, ingested_at_ns)
        new_seq = max(first_seq, channel.published_seq + 1)
        if new_seq <= last_seq:
            known = unsealed.setdefault(channel_id, Unsealed(new_seq, last_seq, ingested_at_ns))
            known.last_seq = last_seq
            known.events += last_seq - new_seq + 1
            channel.next_seq = max(channel.next_seq, last_seq + 1)
    return unsealed


# -------------------------------------------------------------------------------------------------------------- catalog


def _copied_catalog(path: Path, folder: Path) -> Catalog:
    """A catalog that may be opened: SQLite writes even when it reads."""
    try:
        images = catalog_images(LocalFilesystem(), path)
    except FileNotFoundError:
        raise CorruptData(file=path, offset_bytes=0, reason="the catalog is missing") from None
    for name, image in images.items():
        (folder / name).write_bytes(image)
    try:
        return Catalog(LocalFilesystem(), folder)
    except UnsupportedFormat as error:
        raise UnsupportedFormat(file=path, found=error.found, supported=error.supported) from error
    except (CorruptData, sqlite3.DatabaseError) as error:
        raise CorruptData(file=path, offset_bytes=0, reason=str(error)) from error


def _take_catalog(catalog: Catalog, channels: ChannelTable) -> dict[int, list[PublishedSegment]]:
    """Channels and their segments as a starting store would take them."""
    last_seqs, floors = catalog.last_seqs(), catalog.floors()
    for row in catalog.channels():
        channel = channels.restore(row.name, row.channel_id)
        channel.first_seq = floors.get(row.channel_id, 1)
        channel.published_seq = max(last_seqs.get(row.channel_id, 0), row.next_seq - 1)
        channel.next_seq = channel.published_seq + 1
        channels.adopt_schema(channel, pa.ipc.read_schema(pa.py_buffer(row.schema)))
    segments: dict[int, list[PublishedSegment]] = {}
    for segment in catalog.all_segments():
        segments.setdefault(segment.channel_id, []).append(segment)
    for channel_id, found in segments.items():
        found.sort(key=lambda segment: segment.meta.first_seq)
        channel = channels.by_id(channel_id)
        channel.active_at_ns = max(segment.meta.last_ingested_at_ns for segment in found)
        channel.segment_bytes = sum(segment.size_bytes for segment in found)
        channel.segment_events = sum(segment.meta.rows for segment in found)
    return segments
