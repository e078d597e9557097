"""What moves on a connection, for whoever has asked the peer whether it lives: the answer waits behind a large message.

    before = traffic_of(transport), then ask ─► no answer in time ─► traffic_of(transport).has_moved_since(before)

Promise: on Linux the kernel counts, so that a slow line counts however much of a message it holds. Elsewhere only what
leaves our own buffer does. What went out on a line that was free is no sign of life: a peer's system takes it, whether
or not its process runs.
"""

from __future__ import annotations

import socket
import struct
from typing import Any, NamedTuple

_TCP_INFO = getattr(socket, "TCP_INFO", None)
_TCP_INFO_BYTES_MAX = 256
_COUNTS = struct.Struct("=120xQQ8xI")
"""Of Linux' `tcp_info`: bytes that the peer's system has confirmed, bytes that came, bytes that were not sent yet."""


class Traffic(NamedTuple):
    """A connection at one moment."""

    received_bytes: int
    taken_bytes: int
    """How far the peer's system has taken what was sent."""
    is_waiting: bool
    """Whether something waits for the line."""

    def has_moved_since(self, before: Traffic) -> bool:
        """Whether anything came, or left that had to wait for the line."""
        return self.received_bytes > before.received_bytes or self.has_left_since(before)

    def has_left_since(self, before: Traffic) -> bool:
        """Whether some of what waited for the line has left."""
        return before.is_waiting and self.taken_bytes > before.taken_bytes


def traffic_of(transport: Any) -> Traffic:
    """What has moved so far, over a transport of asyncio."""
    held_bytes: int = transport.get_write_buffer_size()
    counts = _counts_of(transport.get_extra_info("socket"))
    if counts is None:
        return Traffic(0, -held_bytes, held_bytes > 0)
    taken_bytes, received_bytes, unsent_bytes = counts
    return Traffic(received_bytes, taken_bytes, held_bytes + unsent_bytes > 0)


def _counts_of(connection: Any) -> tuple[int, int, int] | None:
    if connection is None or _TCP_INFO is None:
        return None
    try:
        info = connection.getsockopt(socket.IPPROTO_TCP, _TCP_INFO, _TCP_INFO_BYTES_MAX)
    except (OSError, ValueError):  # it is closed
        return None
    if len(info) < _COUNTS.size:
        return None
    taken_bytes, received_bytes, unsent_bytes = _COUNTS.unpack_from(info)
    return taken_bytes, received_bytes, unsent_bytes
