"""Messages that have begun to arrive: their bytes are in memory before there is a message that anybody counts.

A peer may send most of a large message and stop, and so may a thousand peers. What they have sent is counted here.

Promises:

- Unfinished messages of all connections together take `ingest.total_inflight`, one message and what each connection
  reads at once; no more. Above it whoever has just sent is not read any more, except the last one who still is.
- Whoever waits is read again when there is room. One who has sent a part, sends nothing more and keeps others waiting
  is dropped: it is found by the second look at the latest. So is one that drips while others wait, after
  `ingest.idle_timeout`.
- The room that a large message needed is given back when its connection is quiet.

Everything happens on the event loop.
"""

from __future__ import annotations

from collections.abc import Callable

from holdfast.clock import NS_PER_S
from holdfast.disk.local import give_back_pages
from holdfast.server.connection import Connection, Pause

ROOM_KEPT_BYTES = 64 << 10
"""What a quiet connection keeps for its next message."""


class Unfinished:
    """All connections of a door. `bytes_max` is the bound of now."""

    def __init__(self, bytes_max: Callable[[], int]) -> None:
        self._bytes_max = bytes_max
        self._bytes: dict[Connection, int] = {}
        self._waiting: dict[Connection, None] = {}
        self._moved: set[Connection] = set()
        self._held_up: dict[Connection, tuple[int, int]] = {}
        """Who is read while others wait: since when, and how many messages it had sent before."""
        self._rooms: dict[Connection, Callable[[], memoryview]] = {}
        self.total_bytes = 0

    def received(self, connection: Connection, count: int, room: Callable[[], memoryview]) -> None:
        """So many bytes came in, and the messages they finished were handed on. `room` is where the next ones go."""
        tail_bytes, connection.tail_bytes = connection.tail_bytes, -1
        before = self._bytes.get(connection, 0)
        now = tail_bytes if tail_bytes >= 0 else before + count
        self.total_bytes += now - before
        connection.part_bytes = now
        if now:
            self._bytes[connection] = now
        elif before:
            del self._bytes[connection]
        if before + count > ROOM_KEPT_BYTES:
            self._rooms[connection] = room
        self._moved.add(connection)
        if self.total_bytes <= self._bytes_max():
            self._let_go_on()
        elif now and self._is_another_read(connection):
            self._waiting[connection] = None
            connection.pause(Pause.UNFINISHED)

    def gone(self, connection: Connection) -> None:
        """The connection ended."""
        self.total_bytes -= self._bytes.pop(connection, 0)
        for table in (self._waiting, self._rooms, self._held_up):
            table.pop(connection, None)
        self._moved.discard(connection)
        if self.total_bytes <= self._bytes_max():
            self._let_go_on()
        else:
            self._let_one_go_on()

    def sweep(self, now_ns: int, patience_ns: int) -> None:
        """Look after those who stopped; called again and again."""
        moved, self._moved = self._moved, set()
        for connection in [quiet for quiet in self._rooms if quiet not in moved]:
            give_back_pages(self._rooms.pop(connection)())
        if not self._waiting:
            self._held_up.clear()
            return
        self._held_up = {held: self._since(held, now_ns) for held in self._bytes if not held.is_paused}
        for connection, (since_ns, _) in list(self._held_up.items()):
            if connection not in moved:
                connection.abort("sent a part of a message and stopped, while others had no room")
            elif now_ns - since_ns >= patience_ns:
                connection.abort(f"a message took {patience_ns / NS_PER_S:g} s, while others had no room")
        self._let_one_go_on()

    def _since(self, connection: Connection, now_ns: int) -> tuple[int, int]:
        """Since when others wait for the message that it is sending, which comes after so many."""
        before = self._held_up.get(connection)
        return before if before is not None and before[1] == connection.messages else (now_ns, connection.messages)

    def _is_another_read(self, connection: Connection) -> bool:
        return any(other is not connection and not other.is_paused for other in self._bytes)

    def _let_go_on(self) -> None:
        if self._waiting:
            waiting, self._waiting = self._waiting, {}
            for connection in waiting:
                connection.resume(Pause.UNFINISHED)

    def _let_one_go_on(self) -> None:
        """If nobody is read any more, read the one who waits longest."""
        if self._waiting and all(held.is_paused for held in self._bytes):
            connection = next(iter(self._waiting))
            del self._waiting[connection]
            connection.resume(Pause.UNFINISHED)
