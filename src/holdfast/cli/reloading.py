"""SIGHUP: the settings are read again while the server serves.

    SIGHUP ─► asked ─► a thread: read the file, hash passwords, load certificates, keys, schemas, tokens
                                     │ all of it holds                      │ something does not
                          the loop: server, then sync take it         say so; nothing is changed

Promises: whatever is wrong with a file, the server goes on. The loop waits for no file and for no hash. Either all
settings are taken or none; taking cannot fail. Signals that come while a file is read make it be read once more, so
that the last state of the file counts. What holds only from the next start on is named in the log.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

from holdfast.config.file import OTLP, ConfigFile
from holdfast.config.reading import CHANNELS
from holdfast.config.sync import ACCESS, SyncConfig
from holdfast.config.table import StoreConfig
from holdfast.config.tier import TierConfig
from holdfast.errors import HoldfastError, InvalidConfig
from holdfast.server.server import Prepared, Server
from holdfast.sync import PreparedSync, SyncDesk
from holdfast.telemetry import event

PATTERNS_NAMED_MAX = 20
"""In one line of the log."""


class Reloader:
    """Takes new settings when asked. Made and run on the event loop."""

    def __init__(
        self, server: Server, sync: SyncDesk | None, first: ConfigFile, read: Callable[[], ConfigFile]
    ) -> None:
        """`first` is what the server was started with; `read` gives the settings of now, on a thread."""
        self._server = server
        self._sync = sync
        self._first = first
        self._read = read
        self._asked = asyncio.Event()

    def ask(self) -> None:
        """Read the settings again, soon."""
        self._asked.set()

    async def run(self) -> None:
        """Do what is asked, for ever."""
        while True:
            await self._asked.wait()
            self._asked.clear()
            await self._reload()

    async def _reload(self) -> None:
        try:
            settings, server, sync = await asyncio.to_thread(self._prepare)
        except Exception as error:  # a file may hold anything, and the server must not end over it
            known = isinstance(error, HoldfastError | OSError)
            event("server.reload.refuse", level=logging.ERROR, reason=error if known else repr(error))
            return
        needs_restart = self._server.take(server)
        if self._sync is not None and sync is not None:
            needs_restart += self._sync.take(sync)
        needs_restart += self._fixed(settings)
        event("server.reload", needs_restart=", ".join(needs_restart) or "nothing")

    def _prepare(self) -> tuple[ConfigFile, Prepared, PreparedSync | None]:
        settings = self._read()
        try:
            sync = self._sync.prepare(settings.sync) if self._sync is not None else None
            return settings, self._server.prepare(settings.server), sync
        except InvalidConfig as error:
            raise settings.placed(error) from None

    def _fixed(self, settings: ConfigFile) -> list[str]:
        """What has changed and holds only from the next start on, besides what the server and sync say themselves."""
        first, state = self._first, self._server.state
        found = changed(state.store.config, settings.store)
        found += changed_channels(state.store.config, settings.store)
        found += [OTLP] if first.otlp != settings.otlp else []
        found += changed(state.tier.config if state.tier is not None else TierConfig(), settings.tier)
        if self._sync is None:
            found += changed(first.sync, settings.sync)
            found += [ACCESS] if first.sync.access != settings.sync.access else []
        return found


def changed_channels(old: StoreConfig, new: StoreConfig) -> list[str]:
    """The patterns under `channels` whose settings differ; how many, if there are a lot."""
    before, after = ({item.pattern.text: item.values for item in config.channels} for config in (old, new))
    found = [f"{CHANNELS}.{text}" for text in {**before, **after} if before.get(text) != after.get(text)]
    return found if len(found) <= PATTERNS_NAMED_MAX else [f"{CHANNELS} ({len(found)} patterns)"]


_Settings = StoreConfig | TierConfig | SyncConfig


def changed(old: _Settings, new: _Settings) -> list[str]:
    """The keys of what differs."""
    return [row.key for name, row in new.rows().items() if getattr(old, name) != getattr(new, name)]
