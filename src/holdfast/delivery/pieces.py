"""Events near the places where consumers read, and their encoded form, shared by all who want the same. Bounded.

Promise: a piece is read, and a body is encoded, once for all feeds that follow each other closely; the live tail is so
served from memory. What is kept is bounded by bytes; a slow consumer finds its pieces gone and reads segments instead,
and nothing is kept because of it. Thread-safe.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable
from typing import Generic, TypeVar

import pyarrow as pa

from holdfast.store.subscribers.handing import HandingPort, LazyPiece

PIECES_BYTES_MAX = 64 << 20
"""Of pieces; those of segments are views of mapped files."""
BODIES_BYTES_MAX = 16 << 20
PIECES_PER_CHANNEL_MAX = 8

V = TypeVar("V")


class _Kept(Generic[V]):
    """Least recently used, by bytes."""

    def __init__(self, bytes_max: int) -> None:
        self._bytes_max = bytes_max
        self._items: OrderedDict[Hashable, tuple[V, int]] = OrderedDict()
        self.bytes = 0

    def get(self, key: Hashable) -> V | None:
        found = self._items.get(key)
        if found is None:
            return None
        self._items.move_to_end(key)
        return found[0]

    def put(self, key: Hashable, value: V, size_bytes: int) -> None:
        before = self._items.pop(key, None)
        self.bytes += size_bytes - (before[1] if before is not None else 0)
        self._items[key] = (value, size_bytes)
        while self.bytes > self._bytes_max and self._items:
            _, (_, size) = self._items.popitem(last=False)
            self.bytes -= size


class Pieces:
    """What was read lately."""

    def __init__(self, port: HandingPort) -> None:
        self._port = port
        self._lock = threading.Lock()
        self._channels: _Kept[tuple[LazyPiece, ...]] = _Kept(PIECES_BYTES_MAX)
        self._bodies: _Kept[pa.Buffer] = _Kept(BODIES_BYTES_MAX)

    @property
    def bytes(self) -> int:
        """What is kept."""
        return self._channels.bytes + self._bodies.bytes

    def at(self, channel: str, seq: int, *, remote: bool = True) -> LazyPiece | None:
        """The first piece with events at or above a seq; None if there are none. Without `remote`, see `InTier`."""
        with self._lock:
            for piece in self._channels.get(channel) or ():
                if piece.first_seq <= seq <= piece.last_seq:
                    return piece
        found = self._port.pieces(channel, seq, remote=remote)
        if not found:
            return None
        with self._lock:
            kept = (*(self._channels.get(channel) or ()), *found)[-PIECES_PER_CHANNEL_MAX:]
            self._channels.put(channel, kept, sum(piece.batch.nbytes for piece in kept))
        return found[0]

    def body(self, key: Hashable, make: Callable[[], pa.Buffer]) -> pa.Buffer:
        """An encoded body, made if nobody had it made lately."""
        with self._lock:
            found = self._bodies.get(key)
        if found is None:
            found = make()
            with self._lock:
                self._bodies.put(key, found, found.size)
        return found
