"""Which principal owns a slot, and which channels a principal wrote to, on disk: `access/bindings.db`, SQLite.

Promise: whoever first binds a slot owns it for ever, also after a power cut: the binding is on disk before `bind`
returns. So nobody can write frames under another's slot id and make the owner's own frames look like repeats. What was
looked up once is answered from memory. Thread-safe. The file is made when it is first needed.

| table | holds |
|---|---|
| slots | slot id, the principal that owns it, since when |
| channels | principal, channel: only for principals with a limit of channels |
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path

from holdfast.clock import Clock
from holdfast.disk.filesystem import Database, Filesystem
from holdfast.store.ground import make_directory

KNOWN_MAX = 100_000
"""Bindings remembered in memory; others are looked up."""

_TABLES = (
    "CREATE TABLE IF NOT EXISTS slots (slot_id BLOB PRIMARY KEY, principal TEXT NOT NULL, bound_at_ns INTEGER NOT NULL)"
    " WITHOUT ROWID",
    "CREATE TABLE IF NOT EXISTS channels (principal TEXT NOT NULL, channel TEXT NOT NULL,"
    " PRIMARY KEY (principal, channel)) WITHOUT ROWID",
)


@dataclass(frozen=True, slots=True)
class Binding:
    """A slot and its owner."""

    slot_id: bytes
    principal: str
    bound_at_ns: int


class Bindings:
    """The database in one directory."""

    def __init__(self, filesystem: Filesystem, directory: Path, clock: Clock) -> None:
        self.path = directory / "bindings.db"
        self._filesystem = filesystem
        self._clock = clock
        self._lock = threading.Lock()
        self._database: Database | None = None
        self._owners: OrderedDict[bytes, str] = OrderedDict()
        self._channels: dict[str, set[str]] = {}

    def bind(self, slot_id: bytes, principal: str) -> str:
        """Who owns a slot; `principal`, if nobody did."""
        with self._lock:
            owner = self._owners.get(slot_id)
            if owner is None:
                owner = self._bind(slot_id, principal)
                self._owners[slot_id] = owner
                if len(self._owners) > KNOWN_MAX:
                    self._owners.popitem(last=False)
            return owner

    def _bind(self, slot_id: bytes, principal: str) -> str:
        database = self._opened()
        found = database.query("SELECT principal FROM slots WHERE slot_id = ?", (slot_id,))
        if not found:
            with database.transaction() as change:
                change.execute("INSERT INTO slots VALUES (?, ?, ?)", (slot_id, principal, self._clock.wall_ns()))
            return principal
        return str(found[0][0])

    def release(self, slot_id: bytes) -> str | None:
        """Forget who owns a slot; returns who did."""
        with self._lock:
            if not self._exists():
                return None
            found = self._opened().query("SELECT principal FROM slots WHERE slot_id = ?", (slot_id,))
            with self._opened().transaction() as change:
                change.execute("DELETE FROM slots WHERE slot_id = ?", (slot_id,))
            self._owners.pop(slot_id, None)
            return str(found[0][0]) if found else None

    def page(self, *, after: bytes, limit: int) -> list[Binding]:
        """Bindings by slot id, those above `after`."""
        with self._lock:
            if not self._exists():
                return []
            rows = self._opened().query(
                "SELECT slot_id, principal, bound_at_ns FROM slots WHERE slot_id > ? ORDER BY slot_id LIMIT ?",
                (after, limit),
            )
            return [Binding(bytes(slot_id), principal, bound_at_ns) for slot_id, principal, bound_at_ns in rows]

    def channels_of(self, principal: str) -> set[str]:
        """The channels a principal ever wrote to, as far as they were noted."""
        with self._lock:
            known = self._channels.get(principal)
            if known is None:
                rows = (
                    self._opened().query("SELECT channel FROM channels WHERE principal = ?", (principal,))
                    if self._exists()
                    else []
                )
                known = self._channels[principal] = {channel for (channel,) in rows}
            return known

    def loaded_channels_of(self, principal: str) -> set[str]:
        """The set that `channels_of` has given out for it; quota.py keeps it."""
        return self._channels[principal]

    def change_channels(self, noted: Collection[tuple[str, str]], forgotten: Collection[tuple[str, str]]) -> None:
        """Write down which principal writes to which channel, and does not. On disk only."""
        if noted or forgotten:
            with self._lock, self._opened().transaction() as change:
                for pair in forgotten:
                    change.execute("DELETE FROM channels WHERE principal = ? AND channel = ?", pair)
                for pair in noted:
                    change.execute("INSERT OR IGNORE INTO channels VALUES (?, ?)", pair)

    def close(self) -> None:
        """Idempotent."""
        with self._lock:
            if self._database is not None:
                self._database.close()
                self._database = None

    def _exists(self) -> bool:
        return self._database is not None or self._filesystem.exists(self.path)

    def _opened(self) -> Database:
        if self._database is None:
            make_directory(self._filesystem, self.path.parent)
            database = self._filesystem.database(self.path)
            with database.transaction() as change:
                for statement in _TABLES:
                    change.execute(statement)
            self._database = database
        return self._database
