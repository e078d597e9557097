"""What a commit is, and the rule that makes a repeat harmless.

Promise: `commit` adds the files of a batch to a table once. Batches of one identity come in order, as Spark runs them:
a batch that is not above the last one is a repeat, and its new files are removed again.
"""

from __future__ import annotations

import hashlib
import re
import threading
from contextlib import suppress
from dataclasses import dataclass
from typing import Protocol

import pyarrow as pa

from holdfast.disk.filesystem import Bytes
from holdfast.errors import Locked, TierUnavailable
from holdfast.telemetry import event
from holdfast.tier.objects import Objects

DATA = "data"


@dataclass(frozen=True)
class DataFile:
    """A Parquet file of the table; `key` is relative to the table's folder."""

    key: str
    rows: int
    size_bytes: int


@dataclass(frozen=True)
class Commit:
    """The files of one batch."""

    identity: str
    batch: int
    schema: pa.Schema
    files: tuple[DataFile, ...]


class Table(Protocol):
    """A table that can be appended to. Used by one thread."""

    def last_batch(self, identity: str) -> int | None:
        """The last batch of a writer that is in the table, as of now."""

    def append(self, commit: Commit) -> bool:
        """Add the files at one moment. False if another writer came between, and nothing was done: look again."""


CONFLICTS_MAX = 100
"""Others that come between, one after the other; each of them has made progress."""
TURNS_MAX, TURN_S = 200, 0.05
"""Tasks of one batch take names in a folder one after the other, each in a moment."""


def commit(table: Table, objects: Objects, change: Commit) -> bool:
    """Whether the batch was added; False for a repeat, whose files are removed."""
    for _ in range(CONFLICTS_MAX):
        last = table.last_batch(change.identity)
        if last is not None and last >= change.batch:
            discard(objects, [file.key for file in change.files])
            event("spark.table.repeat", table=objects.url, identity=change.identity, batch=change.batch)
            return False
        if table.append(change):
            _sweep(objects, change)
            return True
    raise TierUnavailable(url=objects.url, action="commit", reason=f"{CONFLICTS_MAX} other writers came between")


def folder_of(identity: str, batch: int) -> str:
    """Where the files of a batch are; one identity never shares it with another."""
    digest = hashlib.sha256(identity.encode()).hexdigest()[:12]
    readable = re.sub(r"[^A-Za-z0-9-]", "-", identity)[:40]
    return f"{DATA}/{readable}-{digest}/{batch:012d}"


def create_in_turn(objects: Objects, key: str, data: Bytes) -> bool:
    """Create an object, after those that are being created at this moment by others."""
    for _ in range(TURNS_MAX):
        try:
            return objects.create(key, data)
        except TierUnavailable as error:
            if not isinstance(error.__cause__, Locked):
                raise
        threading.Event().wait(TURN_S)
    return objects.create(key, data)


def discard(objects: Objects, keys: list[str]) -> None:
    """Remove files that are in no table. What cannot be removed now is only room on the disk."""
    for key in keys:
        with suppress(TierUnavailable):
            objects.remove(key)


def _sweep(objects: Objects, change: Commit) -> None:
    """Remove what earlier attempts of this batch left: they were killed before their commit."""
    listed = {file.key for file in change.files}
    with suppress(TierUnavailable):
        left = [name for name in objects.names(folder_of(change.identity, change.batch)) if name not in listed]
        discard(objects, left)
