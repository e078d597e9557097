"""The rows of a catalog that can still be believed, table by table, from a copy.

Promise: `catalog.db` is only read. A row is given only if it matches its checksum. Reading stops at the first page of a
table that SQLite refuses.
"""

from __future__ import annotations

import sqlite3
import tempfile
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path

import msgspec

from holdfast.disk.filesystem import Filesystem, SqlRow
from holdfast.disk.local import legible_errors
from holdfast.store.catalog import Loss
from holdfast.store.inspect.catalogs import CatalogContents, catalog_images
from holdfast.store.subscribers.notes import ProgressNote, Snapshot, SubscriberNote
from holdfast.store.tables import row_crc

PAGE_ROWS = 10_000


class OldRows:
    """The tables that `CatalogContents` only counts."""

    def __init__(self, connection: sqlite3.Connection | None, contents: CatalogContents) -> None:
        self._connection = connection
        notes = [msgspec.msgpack.decode(row[1], type=SubscriberNote) for row in self._rows("subscribers")]
        progress = [msgspec.msgpack.decode(row[2], type=ProgressNote) for row in self._rows("progress")]
        following = contents.number("next_subscriber_id") or max((note.subscriber_id for note in notes), default=0) + 1
        self.readers = Snapshot(following, tuple(notes), tuple(progress))
        self.floors: dict[int, int] = {row[0]: row[1] for row in self._rows("floors")}
        self.partition_floors: list[tuple[int, str, int]] = [row[:3] for row in self._rows("partition_floors")]
        self.doomed: dict[int, int] = {row[0]: row[1] for row in self._rows("doomed")}
        self.losses = [Loss(*row[:-1]) for row in self._rows("losses")]
        self.gone: dict[int, list[tuple[int, int, str]]] = {}
        for channel_id, first, last, reason, _ in self._rows("gone"):
            self.gone.setdefault(channel_id, []).append((first, last, reason))

    def event_ids(self) -> Iterator[list[SqlRow]]:
        """The rows of `event_ids`, a page at a time."""
        page: list[SqlRow] = []
        for row in self._rows("event_ids"):
            page.append(row)
            if len(page) == PAGE_ROWS:
                yield page
                page = []
        yield page

    def _rows(self, table: str) -> Iterator[SqlRow]:
        if self._connection is None:
            return
        with suppress(sqlite3.Error), legible_errors():
            for row in self._connection.execute(f"SELECT * FROM {table}"):  # noqa: S608  the name stands in this module
                if row_crc(row[:-1]) == row[-1]:
                    yield row


@contextmanager
def old_rows(filesystem: Filesystem, path: Path, contents: CatalogContents) -> Iterator[OldRows]:
    """Open a copy of the catalog for as long as the block lasts; without a catalog there are no rows."""
    if not filesystem.exists(path):
        yield OldRows(None, contents)
        return
    with tempfile.TemporaryDirectory(prefix="holdfast-catalog-") as folder:
        for name, image in catalog_images(filesystem, path).items():
            (Path(folder) / name).write_bytes(image)
        with closing(sqlite3.connect(Path(folder) / path.name, isolation_level=None)) as connection:
            yield OldRows(connection, contents)
