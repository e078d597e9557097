"""How many different channels a principal may ever write to, counted so that what is refused uses up nothing.

    claim ─► noted on disk ─► the frame is stored ──► accepted: counted for ever
                          └─► the frame is refused ─► given back, unless another frame made the channel its own

A frame whose outcome is unknown, because the store failed, counts as stored.

Promises: a claim takes all channels of a frame or none. A channel is on disk before a frame for it can be stored, so a
principal never has more than its limit, also after a power cut and with many frames at the same time. A channel that
only refused frames named is given back in memory at once and on disk soon (`tidy`); a power cut between these keeps it.

`claim` and `tidy` wait for the disk, and take turns; `accept` and `refuse` never do. Any thread.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable

from holdfast.server.access.bindings import Bindings


class ChannelQuota:
    """The channels of all principals that have a limit."""

    def __init__(self, bindings: Bindings) -> None:
        self._bindings = bindings
        self._turn = threading.Lock()
        self._lock = threading.Lock()  # nothing waits for the disk while it holds this one
        self._claimed: dict[tuple[str, str], int] = {}
        self._given_back: set[tuple[str, str]] = set()

    def claim(
        self, principal: str, channels: Iterable[str], *, allowed: int, check: Callable[[str], None]
    ) -> list[str] | str:
        """Take them all: those that frames must still be stored for, before they count for good. Or none: the first
        that is one too many. `check` raises why a new channel cannot be."""
        with self._turn:
            known = self._bindings.channels_of(principal)
            fresh = [channel for channel in dict.fromkeys(channels) if channel not in known]
            for channel in fresh:
                check(channel)
            with self._lock:
                if fresh and len(known) + len(fresh) > allowed:
                    return fresh[max(0, allowed - len(known))]
                known.update(fresh)
                self._claimed.update({(principal, channel): 0 for channel in fresh})
                claimed = [channel for channel in dict.fromkeys(channels) if (principal, channel) in self._claimed]
                for channel in claimed:
                    self._claimed[principal, channel] += 1
            try:
                self._write([(principal, channel) for channel in fresh])
            except BaseException:
                self.refuse(principal, claimed)
                raise
            return claimed

    def accept(self, principal: str, channels: Iterable[str]) -> None:
        """A frame for them was stored."""
        with self._lock:
            for channel in channels:
                self._claimed.pop((principal, channel), None)

    def refuse(self, principal: str, channels: Iterable[str]) -> None:
        """A frame for them was not stored."""
        with self._lock:
            for channel in channels:
                key = principal, channel
                frames = self._claimed.get(key)
                if frames is None:
                    continue  # another frame for it was stored
                self._claimed[key] = frames - 1
                if frames == 1:
                    del self._claimed[key]
                    self._bindings.loaded_channels_of(principal).discard(channel)
                    self._given_back.add(key)

    def tidy(self) -> None:
        """Write down what was given back."""
        if self._given_back:
            with self._turn:
                self._write([])

    def _write(self, noted: list[tuple[str, str]]) -> None:
        with self._lock:
            given_back, self._given_back = self._given_back.difference(noted), set()
        try:
            self._bindings.change_channels(noted, given_back)
        except BaseException:
            with self._lock:
                self._given_back |= given_back
            raise
