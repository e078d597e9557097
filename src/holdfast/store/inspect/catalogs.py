"""The catalog, from a copy.

Promise: `catalog.db` and its side files are only read. SQLite writes side files even for a reader, so the database and
its log are copied into a temporary directory and the copy is opened. Both are read until two readings in a row agree:
that state was on disk between them.

A file that was closed in order is compared with its stamp (`holdfast.disk.stamp`). Every row is compared with its
checksum, and SQLite checks its pages, the order of rows, and each index against its table.
What is damaged is left out and listed; the rest can be used. Tables are taken from the file, not from a list.
"""

from __future__ import annotations

import re
import sqlite3
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any, Literal, TypeAlias

import msgspec
import pyarrow as pa

from holdfast.disk.filesystem import Filesystem
from holdfast.disk.local import legible_errors
from holdfast.disk.sqlitelog import LOG_SUFFIX, check_log
from holdfast.disk.stamp import check_stamp
from holdfast.errors import BadRequest, CorruptData, UnsupportedFormat
from holdfast.model.intervals import IntervalSet
from holdfast.store.catalog import VERSION, CatalogChannel, PublishedSegment, segment_of_row
from holdfast.store.catalogcheck import wrong_definitions
from holdfast.store.inspect.copies import Damage, read_whole
from holdfast.store.inspect.logs import columns_of
from holdfast.store.tables import row_crc

READINGS_MAX = 100
"""A store publishes a few times in a second, and a reading takes milliseconds."""

INTEGRITY_LINES_MAX = 20
"""More lines about one broken page tell nobody more."""

_PAGE = re.compile(r"\bpage (\d+)")
_LOCAL_BYTES = 400  # SQLite keeps at least this much of a row in one piece


@dataclass(slots=True)
class CatalogContents:
    """The rows of a catalog that match their checksums, and what is wrong with the others."""

    path: Path
    size_bytes: int = 0
    meta: dict[str, bytes] = field(default_factory=dict)
    channels: dict[int, CatalogChannel] = field(default_factory=dict)
    segments: list[PublishedSegment] = field(default_factory=list)
    slots: dict[bytes, list[tuple[int, int]]] = field(default_factory=dict)
    segment_slots: dict[int, dict[bytes, list[tuple[int, int]]]] = field(default_factory=dict)
    gone: dict[int, IntervalSet] = field(default_factory=dict)
    """Per channel the seqs that no segment holds any more, for a reason that is known."""
    doomed: set[int] = field(default_factory=set)
    """Numbers of evicted segments whose files may still be there."""
    remote: set[int] = field(default_factory=set)
    """Numbers of segments whose files may be missing, since the tier has them."""
    rows: dict[str, int] = field(default_factory=dict)
    damage: list[Damage] = field(default_factory=list)

    @property
    def store_id(self) -> bytes | None:
        """Whose catalog it is."""
        return self.meta.get("store_id")

    def number(self, key: str) -> int | None:
        """A number of the meta table."""
        value = self.meta.get(key)
        return int(value) if value is not None and value.isdigit() else None

    def channel_of(self, segment: PublishedSegment) -> str:
        """The name of a segment's channel."""
        channel = self.channels.get(segment.channel_id)
        return channel.name if channel is not None else segment.meta.channel


@dataclass(frozen=True, slots=True)
class CatalogView:
    """The metadata index."""

    file: str
    size_bytes: int
    meta: dict[str, str | int]
    channels: tuple[dict[str, Any], ...]
    segments: tuple[dict[str, Any], ...]
    rows: dict[str, int]
    damage: tuple[Damage, ...]
    kind: Literal["catalog"] = "catalog"


def inspect_catalog(filesystem: Filesystem, path: Path) -> CatalogView:
    """The catalog's rows."""
    contents = load_catalog(filesystem, path)
    channels = [
        {"name": row.name, "channel_id": row.channel_id, "next_seq": row.next_seq, "columns": _columns(row.schema)}
        for row in contents.channels.values()
    ]
    segments = [
        {
            "segment_seq": row.meta.segment_seq,
            "channel": contents.channel_of(row),
            "first_seq": row.meta.first_seq,
            "last_seq": row.meta.last_seq,
            "rows": row.meta.rows,
            "size_bytes": row.size_bytes,
            "crc32c": f"{row.crc32c:08x}",
            "remote": row.meta.segment_seq in contents.remote,
        }
        for row in contents.segments
    ]
    return CatalogView(
        file=str(path),
        size_bytes=contents.size_bytes,
        meta={key: _shown_meta(key, value) for key, value in contents.meta.items()},
        channels=tuple(channels),
        segments=tuple(segments),
        rows=contents.rows,
        damage=tuple(contents.damage),
    )


def _shown_meta(key: str, value: bytes) -> str | int:
    if key == "store_id":
        return value.hex()
    return int(value) if value.isdigit() else value.decode(errors="replace")


def _columns(schema: bytes) -> dict[str, str]:
    try:
        return columns_of(schema)
    except (pa.ArrowException, ValueError):
        return {}


# -------------------------------------------------------------------------------------------------------------- copying


def load_catalog(filesystem: Filesystem, path: Path) -> CatalogContents:
    """Copy the catalog, open the copy, read every table. Damage is collected, not raised."""
    images = catalog_images(filesystem, path)
    contents = CatalogContents(path, size_bytes=sum(map(len, images.values())))
    contents.damage += _stamp_damage(path, images)
    with tempfile.TemporaryDirectory(prefix="holdfast-catalog-") as folder:
        for name, image in images.items():
            (Path(folder) / name).write_bytes(image)
        with closing(sqlite3.connect(Path(folder) / path.name, isolation_level=None)) as connection:
            _read_tables(connection, contents, images)
            contents.damage += islice(_integrity(connection, path, images), INTEGRITY_LINES_MAX)
            contents.damage += list(_definitions(connection, contents))
    version = contents.number("version")
    if version is not None and version > VERSION:
        contents.damage.append(Damage.of(UnsupportedFormat(file=path, found=version, supported=VERSION)))
    return contents


def _stamp_damage(path: Path, images: dict[str, bytes]) -> Iterator[Damage]:
    """Whether a file that was closed has changed since, or SQLite's log that would count before it is damaged."""
    beside = f"{path.name}{LOG_SUFFIX}"
    try:
        if log := images.get(beside):
            check_log(path.with_name(beside), log)
        else:
            check_stamp(path, [images[path.name]])
    except CorruptData as error:
        yield Damage.of(error)


def catalog_images(filesystem: Filesystem, path: Path) -> dict[str, bytes]:
    """The database and its log by file name, as they were at one moment; `FileNotFoundError` if there is none."""
    before: dict[str, bytes] = {}
    for _ in range(READINGS_MAX):
        images = {path.name: read_whole(filesystem, path)}
        with suppress(FileNotFoundError):
            images[f"{path.name}-wal"] = read_whole(filesystem, path.with_name(f"{path.name}-wal"))
        if images == before:
            return images
        before = images
    raise BadRequest(f"{path} changes too fast to be read; repeat when its process is less busy, or stop it")


# -------------------------------------------------------------------------------------------------------------- reading

Row: TypeAlias = Sequence[Any]
Take: TypeAlias = Callable[[CatalogContents, Row], None]


def _read_tables(connection: sqlite3.Connection, contents: CatalogContents, images: dict[str, bytes]) -> None:
    try:
        with legible_errors():
            found = connection.execute("SELECT name FROM sqlite_master WHERE type = 'table' ORDER BY rowid").fetchall()
    except sqlite3.Error as error:
        contents.damage.append(_sqlite_damage(contents.path, images, str(error)))
        return
    for table in [name for (name,) in found if _TABLE_NAME.fullmatch(name)]:
        contents.rows[table] = 0
        try:
            with legible_errors():
                _read_table(connection, contents, images, table=table)
        except sqlite3.Error as error:
            contents.damage.append(_sqlite_damage(contents.path, images, f"table {table}: {error}"))


def _read_table(
    connection: sqlite3.Connection, contents: CatalogContents, images: dict[str, bytes], *, table: str
) -> None:
    """A table whose last column is called `crc` keeps there the checksum of the others."""
    rows = connection.execute(f"SELECT * FROM {table}")  # noqa: S608  the name is one word
    has_crc = rows.description[-1][0] == "crc"
    for row in rows:
        contents.rows[table] += 1
        reason = _take_row(contents, table, row, has_crc=has_crc)
        if reason:
            contents.damage.append(_row_damage(contents.path, images, row, reason=reason))


def _take_row(contents: CatalogContents, table: str, row: Row, *, has_crc: bool) -> str:
    """Put a row into `contents`, or say why not."""
    key = row[0].hex() if isinstance(row[0], bytes) else repr(row[0])
    try:
        if has_crc and row_crc(row[:-1]) != row[-1]:
            return f"row {key} of table {table} does not match its checksum"
        if table in _TAKERS:
            _TAKERS[table](contents, row)
    except (ValueError, TypeError, IndexError) as error:
        return f"row {key} of table {table} makes no sense: {error}"
    return ""


def _take_meta(contents: CatalogContents, row: Row) -> None:
    contents.meta[row[0]] = bytes(row[1])


def _take_channel(contents: CatalogContents, row: Row) -> None:
    contents.channels[row[0]] = CatalogChannel(*row[:-1])


def _take_segment(contents: CatalogContents, row: Row) -> None:
    contents.segments.append(segment_of_row(tuple(row)))


def _take_slot(contents: CatalogContents, row: Row) -> None:
    contents.slots[row[0]] = msgspec.msgpack.decode(row[1], type=list[tuple[int, int]])


def _take_segment_slot(contents: CatalogContents, row: Row) -> None:
    slot_id, first_fsn, segment_seq, last_fsn, _ = row
    contents.segment_slots.setdefault(segment_seq, {}).setdefault(slot_id, []).append((first_fsn, last_fsn))


def _take_doomed(contents: CatalogContents, row: Row) -> None:
    contents.doomed.add(int(row[0]))


def _take_remote(contents: CatalogContents, row: Row) -> None:
    contents.remote.add(int(row[0]))


def _take_gone(contents: CatalogContents, row: Row) -> None:
    contents.gone.setdefault(row[0], IntervalSet()).add(row[1], row[2])


_TAKERS: dict[str, Take] = {
    "meta": _take_meta,
    "channels": _take_channel,
    "segments": _take_segment,
    "slots": _take_slot,
    "segment_slots": _take_segment_slot,
    "doomed": _take_doomed,
    "remote": _take_remote,
    "gone": _take_gone,
}
"""What is read of the other tables is their checksums and their number of rows."""

_TABLE_NAME = re.compile(r"[a-z]\w*", re.ASCII)


# --------------------------------------------------------------------------------------------------------------- places


def _integrity(connection: sqlite3.Connection, path: Path, images: dict[str, bytes]) -> Iterator[Damage]:
    """What SQLite itself finds wrong; some releases see nulls in tables without rowid where there are none."""
    try:
        with legible_errors():
            for (text,) in connection.execute("PRAGMA integrity_check(1000000)"):
                for line in str(text).splitlines():
                    if line != "ok" and not line.startswith(("***", "NULL value in ")):
                        yield _sqlite_damage(path, images, line)
    except sqlite3.Error as error:
        yield _sqlite_damage(path, images, str(error))


def _definitions(connection: sqlite3.Connection, contents: CatalogContents) -> Iterator[Damage]:
    """Tables of ours that are not defined as they should be: the checksums may not be looked at then."""
    try:
        with legible_errors():
            for flaw in wrong_definitions(lambda sql, values: connection.execute(sql, values).fetchall()):
                yield Damage(str(contents.path), 0, flaw)
    except sqlite3.Error as error:
        if not contents.damage:  # else the integrity check has told it
            yield Damage(str(contents.path), 0, str(error))


def _sqlite_damage(path: Path, images: dict[str, bytes], reason: str) -> Damage:
    """SQLite names pages; a page is a place."""
    match = _PAGE.search(reason)
    page_bytes = int.from_bytes(images[path.name][16:18], "big")
    page_bytes = 65_536 if page_bytes == 1 else page_bytes
    return Damage(str(path), (int(match[1]) - 1) * page_bytes if match else 0, reason)


def _row_damage(path: Path, images: dict[str, bytes], row: Row, *, reason: str) -> Damage:
    """Where the longest value of the row is. SQLite's log has the newer pages, so it is searched first."""
    values = [value.encode() if isinstance(value, str) else value for value in row if isinstance(value, str | bytes)]
    needle = max(values, key=len, default=b"")[:_LOCAL_BYTES]
    for name in (f"{path.name}-wal", path.name):
        place = images.get(name, b"").rfind(needle) if needle else -1
        if place >= 0:
            return Damage(str(path.with_name(name)), place, reason)
    return Damage(str(path), 0, reason)
