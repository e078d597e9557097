"""A folder of Parquet files with a manifest, for readers that know no table format.

    data/<identity>/<batch>/<name>.parquet    files; those that no entry lists are of no meaning
    _manifest/<number:012d>.json              one commit: {"crc32c": "<8 hex digits>", "body": {…}}
    _manifest/checkpoint/<number:012d>.json   the sum of all commits up to that number, in the same form

Numbers begin at 1 and have no gaps: if an entry is missing and a later one is there, the table is refused. An entry is
created only if nobody has its number, and is never changed: creating it is the commit. `add` lists files with their
rows and bytes, `identity` and `batch` say whose they are, `schema` is the table's schema (Arrow IPC, base64) if this
commit changed it.
"""

from __future__ import annotations

import base64
import re
from dataclasses import dataclass
from pathlib import Path

import msgspec
import pyarrow as pa

from holdfast.disk.checksum import crc32c
from holdfast.disk.local import LocalFilesystem
from holdfast.errors import BadRequest, CorruptData, DamagedObject, UnsupportedFormat
from holdfast.model.evolution import merge_schemas
from holdfast.spark.tables.commits import Commit, create_in_turn, discard
from holdfast.tier.folder import FolderObjects
from holdfast.tier.objects import Objects

FORMAT = 1
MANIFEST = "_manifest"
CHECKPOINTS = f"{MANIFEST}/checkpoint"
CHECKPOINT_EVERY = 100
"""Entries that a reader opens one by one, at most."""

_ENTRY_KEY = re.compile(rf"{MANIFEST}/\d{{12}}\.json")


class Listed(msgspec.Struct, frozen=True):
    """A file of the table."""

    path: str
    rows: int
    bytes: int


class Entry(msgspec.Struct, frozen=True, omit_defaults=True):
    """One commit, or the sum of many."""

    format: int
    number: int
    add: tuple[Listed, ...]
    schema: str = ""
    identity: str = ""
    batch: int = 0
    last: dict[str, int] = {}
    """In a checkpoint: the last batch of each identity."""


class _Sealed(msgspec.Struct):
    crc32c: str
    body: msgspec.Raw


_SEALED = msgspec.json.Decoder(_Sealed)
_ENTRY = msgspec.json.Decoder(Entry)


@dataclass(frozen=True)
class TableFiles:
    """A table as of one commit. `files` are paths that any Parquet reader takes."""

    number: int
    files: list[str]
    rows: int
    schema: pa.Schema


def read_manifest(path: str | Path) -> TableFiles:
    """The files of a table as of now; a crash or a commit at the same time changes nothing in them."""
    folder = Path(path).absolute()
    if not (folder / MANIFEST).is_dir():
        raise BadRequest(f"{folder} has no {MANIFEST}: it is no table that holdfast has written")
    sums = _Sums(FolderObjects(LocalFilesystem(), folder, create=False))
    sums.refresh()
    files = [str(folder / listed.path) for listed in sums.files]
    return TableFiles(sums.number, files, sum(listed.rows for listed in sums.files), sums.schema)


class ManifestTable:
    """Appends to such a folder."""

    def __init__(self, objects: Objects) -> None:
        self._objects = objects
        self._sums = _Sums(objects)

    def last_batch(self, identity: str) -> int | None:
        """As of now."""
        self._sums.refresh()
        return self._sums.last.get(identity)

    def append(self, commit: Commit) -> bool:
        """Create the next entry."""
        sums = self._sums
        schema = merge_schemas(self._objects.url, sums.schema, commit.schema)
        changed = not schema.equals(sums.schema)
        entry = Entry(
            format=FORMAT,
            number=sums.number + 1,
            add=tuple(Listed(file.key, file.rows, file.size_bytes) for file in commit.files),
            schema=_as_text(schema) if changed else "",
            identity=commit.identity,
            batch=commit.batch,
        )
        if not create_in_turn(self._objects, _entry_key(entry.number), encode(entry)):
            return False
        sums.apply(entry)
        if entry.number % CHECKPOINT_EVERY == 0:
            self._checkpoint()
        return True

    def _checkpoint(self) -> None:
        """Sum up; the one before stays, for readers that have chosen it already."""
        number = self._sums.number
        create_in_turn(self._objects, _checkpoint_key(number), encode(self._sums.as_entry()))
        before = _checkpoint_key(number - CHECKPOINT_EVERY)
        discard(self._objects, [key for key in self._objects.names(CHECKPOINTS) if key < before])


class _Sums:
    """What all entries say together."""

    def __init__(self, objects: Objects) -> None:
        self._objects = objects
        self.number = 0
        self.files: list[Listed] = []
        self.last: dict[str, int] = {}
        self.schema = pa.schema([])

    def refresh(self) -> None:
        """Read what is new."""
        if not self.number:
            newest = max(self._objects.names(CHECKPOINTS), default=None)
            if newest is not None:
                self._start(self._read(newest))
        names = [
            key for key in self._objects.names(MANIFEST, after=_entry_key(self.number)) if _ENTRY_KEY.fullmatch(key)
        ]
        for key in names:
            while _entry_key(self.number) < key:
                self.apply(self._next(before=key))

    def _next(self, *, before: str) -> Entry:
        """The next entry, which is there if a later one is; a list that was made meanwhile may not show it."""
        key = _entry_key(self.number + 1)
        place = Path(f"{self._objects.url}/{key}")
        try:
            entry = self._read(key)
        except DamagedObject as error:
            reason = f"this entry {error.reason}, and {before} is"
            raise CorruptData(file=place, offset_bytes=0, reason=reason) from error
        if entry.number != self.number + 1:
            reason = f"this is entry {entry.number} under another name"
            raise CorruptData(file=place, offset_bytes=0, reason=reason)
        return entry

    def _start(self, entry: Entry) -> None:
        self.apply(entry)
        self.last = dict(entry.last)

    def apply(self, entry: Entry) -> None:
        """One more."""
        self.number = entry.number
        self.files += entry.add
        if entry.schema:
            self.schema = pa.ipc.read_schema(pa.py_buffer(base64.b64decode(entry.schema)))
        if entry.identity:
            self.last[entry.identity] = entry.batch

    def as_entry(self) -> Entry:
        """The sum."""
        schema = _as_text(self.schema)
        return Entry(format=FORMAT, number=self.number, add=tuple(self.files), schema=schema, last=self.last)

    def _read(self, key: str) -> Entry:
        return decode(self._objects.read(key), place=f"{self._objects.url}/{key}")


def _as_text(schema: pa.Schema) -> str:
    return base64.b64encode(schema.serialize()).decode()


def _entry_key(number: int) -> str:
    return f"{MANIFEST}/{number:012d}.json"


def _checkpoint_key(number: int) -> str:
    return f"{CHECKPOINTS}/{number:012d}.json"


def encode(entry: Entry) -> bytes:
    """The bytes of an entry."""
    body = msgspec.json.encode(entry)
    return b'{"crc32c":"%08x","body":%s}' % (crc32c(body), body)


def decode(data: bytes, *, place: str) -> Entry:
    """The entry of a file; `CorruptData` if the bytes are not what was written."""
    try:
        sealed = _SEALED.decode(data)
        if sealed.crc32c != f"{crc32c(bytes(sealed.body)):08x}":
            raise CorruptData(file=Path(place), offset_bytes=0, reason="the checksum of this entry is wrong")
        entry = _ENTRY.decode(sealed.body)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise CorruptData(file=Path(place), offset_bytes=0, reason=str(error)) from None
    if entry.format > FORMAT:
        raise UnsupportedFormat(file=Path(place), found=entry.format, supported=FORMAT)
    return entry
