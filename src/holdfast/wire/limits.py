"""How large a frame from the wire may be; every length in a message is held against one of these before it is used."""

from __future__ import annotations

import msgspec

MIB = 1 << 20


class FrameLimits(msgspec.Struct, frozen=True):
    """Bounds of one message. The defaults are those of the QWP reference server, or have their reason beside them."""

    message_bytes: int = 16 * MIB
    rows: int = 1_000_000
    """Of one table block or one Arrow stream."""
    columns: int = 2048
    name_bytes: int = 127
    """Of a QWP table or column."""
    tables: int = 10_000
    entries: int = 1024
    """A store takes no more in one frame."""
    partitions: int = 64
    """A store takes no more in one entry."""
    batches: int = 1024
    """Of one Arrow stream; each costs microseconds whatever its size."""
    decoded_bytes: int = 64 * MIB
    """Of all arrays of a message: compressed and null values take less room in the message than in memory."""
