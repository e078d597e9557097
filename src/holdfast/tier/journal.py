"""The manifest as a log in an object store, with one writer at a time.

Promises:

- An entry is there as a whole or not at all, and is never overwritten: each is a conditional create of the next number,
  and counts once it was read back.
- **Fencing.** A process that takes over reads to the end and appends an `open` entry with the next epoch. Whoever had
  the tier before finds its next number taken, learns so, and stops (`FencedOut`). So a process that was thought dead
  can never say that something is durable after another has taken over.
- An append that failed without an answer is repeated with the same bytes; if it had happened, the entry found there has
  this process's nonce and counts as success.
- What was garbled on its way is read again. What is stored and is no entry was written by somebody who never read it
  back: at the end of the log it is passed over, and the next entry says so (`manifest.py`); anywhere else it is damage.
  Nothing is removed, so that no entry can go that somebody else has read.
- A list that does not show the newest entries is no harm: after the last one listed, the next are asked for by name.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from holdfast.errors import DamagedObject, FencedOut, TierRefused, TierUnavailable
from holdfast.telemetry import event
from holdfast.tier.manifest import (
    MANIFEST,
    Entry,
    ManifestState,
    Torn,
    checkpoint_key,
    decode,
    encode,
    entry_key,
)
from holdfast.tier.objects import Objects

READERS = 16
"""Entries fetched at a time; each is small and waits for the network."""
READINGS = 8
"""An object that is no entry, and is the same so often, is stored like that. Fewer could be wrong on their way."""
_CHECKPOINTS = f"{MANIFEST}/checkpoint-"
_ENTRY_KEY = re.compile(rf"{MANIFEST}/(\d{{16}})\.json")
_T = TypeVar("_T")
Persist = Callable[[Callable[[], _T], str], _T]
"""Calls until it works; the text says what is being tried."""


class Journal:
    """Reads and appends. One thread uses it."""

    def __init__(self, objects: Objects, *, nonce: str, readers: int = READERS) -> None:
        """`readers`: threads that read entries, where there are many; 0 reads them one after the other."""
        self._objects = objects
        self._readers = readers
        self.nonce = nonce

    # -- reading ----------------------------------------------------------------------------------------------------

    def load(self, *, until: Callable[[Entry], bool] = lambda _entry: True) -> ManifestState:
        """The sum of the manifest; with `until`, of its first entries for which that holds."""
        checkpoint = self._last_checkpoint(until)
        start = checkpoint.number if checkpoint is not None else 0
        state = ManifestState.of([checkpoint] if checkpoint is not None else [])
        self._extend(state, start, until)
        return state

    def refresh(self, state: ManifestState) -> None:
        """Add what others have appended since."""
        self._extend(state, state.number, lambda _entry: True)

    def _extend(self, state: ManifestState, after: int, until: Callable[[Entry], bool]) -> None:
        torn: list[DamagedObject] = []
        for found in self._entries(after):
            if isinstance(found, DamagedObject):
                torn.append(found)
                continue
            if found.torn < len(torn):  # nobody passed over it, so it was an entry once
                raise torn[-1]
            if not until(found):
                return
            self._apply(state, found)
            torn.clear()
        state.torn = len(torn)
        for damage in torn:
            self._tell_torn(damage)

    def _last_checkpoint(self, until: Callable[[Entry], bool]) -> Entry | None:
        for key in reversed(list(self._objects.names(MANIFEST, after=_CHECKPOINTS))):
            try:
                entry = self._read(key)
            except DamagedObject as error:  # it only saves time: an older one and the entries say the same
                event("tier.checkpoint.damage", level=logging.WARNING, key=key, reason=error)
                continue
            if until(entry):
                return entry
        return None

    def _entries(self, after: int) -> list[Entry | DamagedObject]:
        listed = map(_ENTRY_KEY.fullmatch, self._objects.names(MANIFEST, after=entry_key(after)))
        last = max((int(found[1]) for found in listed if found is not None), default=after)
        keys = [entry_key(number) for number in range(after + 1, last + 1)]
        if self._readers and len(keys) > self._readers:
            with ThreadPoolExecutor(self._readers, "holdfast-tier-manifest") as pool:
                entries = list(pool.map(self._look, keys))
        else:
            entries = [self._look(key) for key in keys]
        while (entry := self._find(after + len(entries) + 1)) is not None:
            entries.append(entry)
        return entries

    def _find(self, number: int) -> Entry | DamagedObject | None:
        try:
            return self._look(entry_key(number))
        except DamagedObject as error:
            if error.reason == "is not there":
                return None
            raise

    def _read(self, key: str) -> Entry:
        found = self._look(key)
        if isinstance(found, DamagedObject):
            raise found
        return found

    def _look(self, key: str) -> Entry | DamagedObject:
        """The entry of an object; the error, not raised, if what is stored is none."""
        seen: dict[bytes, str] = {}
        for _ in range(READINGS):
            data = self._objects.read(key)
            try:
                return decode(data)
            except Torn as error:
                seen[data] = str(error)
            except ValueError as error:
                raise DamagedObject(url=self._objects.url, key=key, reason=str(error)) from error
        if len(seen) > 1:
            raise TierUnavailable(url=self._objects.url, action=f"read {key}", reason="it is different each time")
        return DamagedObject(url=self._objects.url, key=key, reason=seen.popitem()[1])

    def _tell_torn(self, damage: DamagedObject) -> None:
        event("tier.manifest.torn", level=logging.WARNING, key=damage.key, reason=damage.reason)

    def _apply(self, state: ManifestState, entry: Entry) -> None:
        try:
            state.apply(entry)
        except ValueError as error:
            raise DamagedObject(url=self._objects.url, key=entry_key(entry.number), reason=str(error)) from error

    # -- writing ----------------------------------------------------------------------------------------------------

    def append(self, state: ManifestState, entry: Entry) -> Entry:
        """Append once, read it back and add it to the state; the entry, with the number it got.

        Repeat it after an error. `FencedOut` if another process has that number.
        """
        entry = state.as_next(entry)
        key, data = entry_key(entry.number), encode(entry)
        self._objects.create(key, data)
        found = entry if self._objects.read(key) == data else self._look(key)
        if isinstance(found, DamagedObject):
            self._tell_torn(found)
            state.torn += 1
            reason = "what is stored is no entry; the next number is tried"
            raise TierUnavailable(url=self._objects.url, action=f"create {key}", reason=reason)
        if found is not entry and encode(found) != data:  # else it was garbled on its way when it was read back
            raise FencedOut(url=self._objects.url, epoch=entry.epoch, later_epoch=found.epoch)
        state.apply(entry)
        return entry

    def write_checkpoint(self, state: ManifestState) -> None:
        """The sum so far as one object; one that is there already says the same."""
        self._objects.create(checkpoint_key(state.number), encode(state.checkpoint()))


def probe(objects: Objects, *, nonce: str, fencing: str) -> None:
    """Find out whether the store refuses to overwrite, as fencing needs it; `TierRefused` if it does not."""
    if fencing == "none":
        event("tier.unfenced", url=objects.url, gives_up="two servers of one tier would overwrite each other unseen")
        return
    key = f"probe/{nonce}"
    objects.create(key, b"holdfast")
    refuses = not all([objects.create(key, b"holdfast") for _ in range(2)])  # twice: one answer may be an accident
    objects.remove(key)
    if not refuses:
        raise TierRefused(
            url=objects.url,
            reason="it overwrites objects that should only be created (If-None-Match is ignored), so a process that "
            "was replaced could destroy what its successor wrote; use a store that has conditional writes, or set "
            "tier.fencing: none and see to it that only one server ever uses this tier",
        )
