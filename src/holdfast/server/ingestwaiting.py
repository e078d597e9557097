"""A message between its arrival and its answer, and whether its frame is handed over on the event loop.

What a message costs does not show in its size: a bit may be a row, and compressed bytes any number of bytes. So it is
decoded on the loop only if it stays within small bounds while that goes on (`FrameReader.read(at_once=True)`), and its
frame is handed to the store there only if it is small as Arrow, and few channels share it.
"""

from __future__ import annotations

import msgspec

from holdfast.wire.ingest import AT_ONCE, Frame, Ticket

INLINE_BYTES_MAX = 512 << 10
"""Frames up to this, as Arrow, are handed over on the event loop: a thread would cost more, and others can wait a
millisecond."""


class Waiting(msgspec.Struct):
    """A frame on its way: decoded, and submitted unless the store was full. Or several, as a train."""

    ticket: Ticket
    frame: Frame | None
    size_bytes: int
    since_ns: int = 0
    frames: int = 1
    share: int = 0
    """Which of the train's answers is theirs."""
    frame_bytes: int = 0
    """What the frame takes in memory."""
    extra_bytes: int = 0
    """How much of that is beyond the message's own bytes."""

    def measure(self) -> None:
        """Note how large the frame is, once it is decoded."""
        self.frame_bytes = self.frame.size_bytes if self.frame is not None else 0
        self.extra_bytes = max(0, self.frame_bytes - self.size_bytes)

    @property
    def is_quick(self) -> bool:
        """Whether handing it over takes no time worth a thread."""
        return self.frame is None or (
            self.frame_bytes <= INLINE_BYTES_MAX and len(self.frame.entries) <= AT_ONCE.entries
        )
