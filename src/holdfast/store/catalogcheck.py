"""Is the catalog, as a whole, what was written? And what an error of SQLite says about that.

A row that is found is compared with its checksum wherever it is read. That does not help for one that is not found: an
index entry that points elsewhere, a key that changed its place, a page with one row less. So a catalog is proven once,
when it is opened, before anything in it is believed:

1. Closed in order, it has a stamp over all its bytes (`holdfast.disk.stamp`); that it fits is proof enough.
2. Otherwise (after a kill) SQLite's log beside it must be whole but for a tear at its end (`holdfast.disk.sqlitelog`);
   SQLite looks at its pages, the order of keys, and each index against its table; the tables must be those of
   `tables.py`, and every row is compared with its checksum.

Promise: after either, each table holds the rows that were written to it, no less and no more, until the file changes
(G9). Costs, per 10,000 segments: 2 ms for the first, 40 ms for the second; 1.5 s for the second with 1,000,000 event
ids.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from functools import cache
from pathlib import Path
from typing import NamedTuple, TypeAlias

import msgspec

from holdfast.disk.checksum import crc32c
from holdfast.disk.filesystem import Database, SqlRow, SqlValue
from holdfast.errors import CorruptData
from holdfast.store.tables import TABLES

Query: TypeAlias = Callable[[str, Sequence[SqlValue]], list[SqlRow]]

ROWS_PER_PAGE = 10_000
"""Fetched at a time: a megabyte or two."""

_PASSED_ON = frozenset(
    (
        sqlite3.SQLITE_PERM,
        sqlite3.SQLITE_ABORT,
        sqlite3.SQLITE_BUSY,
        sqlite3.SQLITE_LOCKED,
        sqlite3.SQLITE_NOMEM,
        sqlite3.SQLITE_INTERRUPT,
        sqlite3.SQLITE_IOERR,
        sqlite3.SQLITE_FULL,
        sqlite3.SQLITE_CANTOPEN,
        sqlite3.SQLITE_PROTOCOL,
        sqlite3.SQLITE_NOLFS,
        sqlite3.SQLITE_AUTH,
    )
)
"""What the machine says, or another process: the file may be in order. Their extended codes say the same."""


def is_damage(error: sqlite3.Error) -> bool:
    """Whether the file is to blame, since our statements are right.

    A file that may be written and is "readonly" has a format number that SQLite does not know; the extended codes of
    `SQLITE_READONLY` are about the directory and the log beside it.
    """
    if isinstance(error, sqlite3.ProgrammingError | sqlite3.InterfaceError | sqlite3.NotSupportedError):
        return False  # of a caller: it was closed, or a value cannot be stored
    code = getattr(error, "sqlite_errorcode", None)
    if code is None:
        return not isinstance(error, sqlite3.OperationalError)  # raised here or by the disk, in SQLite's name
    return code & 0xFF not in _PASSED_ON and (code & 0xFF != sqlite3.SQLITE_READONLY or code == sqlite3.SQLITE_READONLY)


@contextmanager
def translated(path: Path) -> Iterator[None]:
    """SQLite's words for a damaged file become ours. All else passes: locked, full, a disk that fails."""
    try:
        yield
    except sqlite3.Error as error:
        if not is_damage(error):
            raise
        raise CorruptData(file=path, offset_bytes=0, reason=str(error)) from error


def check_pages(database: Database) -> None:
    """Pages, order of keys and indexes; `sqlite3.DatabaseError` if something is wrong.

    Some releases of SQLite see nulls in tables without rowid where there are none, so all lines are asked for.
    """
    for (text,) in database.query("PRAGMA integrity_check(1000000)"):
        for line in str(text).splitlines():
            if line != "ok" and not line.startswith(("***", "NULL value in ")):
                raise sqlite3.DatabaseError(line)


def check_tables(database: Database) -> None:
    """Definitions of tables and indexes, then every row; `sqlite3.DatabaseError` if something is wrong."""
    for flaw in wrong_definitions(database.query):
        raise sqlite3.DatabaseError(flaw)
    for name in sorted(table_names(database.query) & expected_tables().keys()):
        _check_rows(database, name, expected_tables()[name].key)


def wrong_definitions(query: Query) -> Iterator[str]:
    """What is wrong with the tables and indexes themselves.

    A table may be missing, since an earlier release has not made it, or be one too many, of a later release. Not both:
    then it has another name than it should have.
    """
    ours, names = expected_tables(), table_names(query)
    missing, unknown = sorted(ours.keys() - names), sorted(names - ours.keys())
    if missing and unknown:
        yield f"table {missing[0]} is missing, and nobody made table {unknown[0]}"
    for name in sorted(names & ours.keys()):
        found = _table(query, name)
        if found.columns != ours[name].columns:
            yield f"table {name} has columns {_told(found)}, expected {_told(ours[name])}"
        elif found != ours[name]:
            yield f"table {name} has other indexes than it should have"


def table_names(query: Query) -> set[str]:
    """Tables, without those of SQLite."""
    rows = query("SELECT name FROM sqlite_master WHERE type = 'table' AND name NOT LIKE 'sqlite%'", ())
    return {str(name) for (name,) in rows}


class Table(NamedTuple):
    """A definition, as SQLite understands it."""

    columns: list[SqlRow]
    indexes: list[SqlRow]

    @property
    def key(self) -> list[int]:
        """Which columns are the primary key, in the order of the key."""
        places = [(row[-1], at) for at, row in enumerate(self.columns) if row[-1]]
        return [at for _, at in sorted(places)]


@cache
def expected_tables() -> dict[str, Table]:
    """The tables of this release."""
    with closing(sqlite3.connect(":memory:")) as connection:
        connection.executescript(TABLES)
        names = connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'").fetchall()
        return {name: _table(lambda sql, values: connection.execute(sql, values).fetchall(), name) for (name,) in names}


def _table(query: Query, name: str) -> Table:
    columns = query('SELECT name, type, "notnull", hidden, pk FROM pragma_table_xinfo(?) ORDER BY cid', (name,))
    indexes = query(
        'SELECT i.name, i."unique", i.origin, i.partial, c.seqno, c.name, c."desc", c.coll, c.key '
        "FROM pragma_index_list(?) AS i, pragma_index_xinfo(i.name) AS c ORDER BY i.name, c.seqno",
        (name,),
    )
    return Table(columns, indexes)


def _told(table: Table) -> str:
    return ", ".join(f"{name} {kind}" for name, kind, *_ in table.columns)


def _check_rows(database: Database, table: str, key: Sequence[int]) -> None:
    """By pages, in the order of the key, so that memory stays bounded."""
    names = [expected_tables()[table].columns[at][0] for at in key]
    order, marks = ", ".join(names), ", ".join("?" * len(names))
    encode = msgspec.msgpack.Encoder().encode
    where, after = "", ()
    while True:
        sql = f"SELECT * FROM {table} {where} ORDER BY {order} LIMIT {ROWS_PER_PAGE}"  # noqa: S608  names of ours
        rows = database.query(sql, after)
        for row in rows:
            if crc32c(encode(row[:-1])) != row[-1]:
                raise sqlite3.DatabaseError(f"row {row[0]!r} of table {table} does not match its checksum")
        if len(rows) < ROWS_PER_PAGE:
            return
        where, after = f"WHERE ({order}) > ({marks})", tuple(rows[-1][at] for at in key)
