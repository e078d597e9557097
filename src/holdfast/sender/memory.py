"""The memory behind a ring when there is no slot directory: the same segments, as lists of frames.

Promise: what `Slot` offers a ring, without files. Frames are copied when they are appended, so the caller may reuse
its buffers. Nothing survives the process: unacknowledged frames are lost with it, and refused ones are not kept. The
slot id is random, so its FSNs, from 0, mean nothing to any other sender.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

from holdfast.disk.filesystem import Bytes
from holdfast.sender.recovery import NOTHING
from holdfast.sender.rejected import Rejection
from holdfast.sender.segment import FRAME_HEADER_BYTES, HEADER_BYTES


class MemorySegment:
    """Frames in memory; counts bytes as a file would, so that caps mean the same in both modes."""

    __slots__ = ("_frames", "_used_bytes", "base", "dirty", "pins", "size_bytes")

    def __init__(self, base: int, size_bytes: int) -> None:
        self.base = base
        self.size_bytes = size_bytes
        self.dirty = False
        self.pins = 0
        self._frames: list[bytes] = []
        self._used_bytes = HEADER_BYTES

    @property
    def count(self) -> int:
        """Frames that are here."""
        return len(self._frames)

    @property
    def end(self) -> int:
        """Where the next frame goes: its index."""
        return len(self._frames)

    @property
    def next_fsn(self) -> int:
        """The FSN after the last frame."""
        return self.base + len(self._frames)

    def fits(self, payload_bytes: int) -> bool:
        """Whether a frame with such a payload still fits."""
        return self._used_bytes + FRAME_HEADER_BYTES + payload_bytes <= self.size_bytes

    def rebase(self, base: int) -> None:
        """Give an empty segment its place."""
        self.base = base

    def append(self, parts: Sequence[Bytes], payload_bytes: int) -> None:
        """Add one frame."""
        self._frames.append(b"".join(parts))
        self._used_bytes += FRAME_HEADER_BYTES + payload_bytes

    def forget_tail(self) -> None:
        """An append that fails leaves nothing here."""

    def seal(self) -> None:
        """Nothing stands behind the last frame."""

    def seek(self, fsn: int) -> int:
        """The index of that frame."""
        return fsn - self.base

    def read(self, position: int, end: int) -> tuple[list[memoryview], int]:
        """Frames from that index on."""
        return [memoryview(frame) for frame in self._frames[position:end]], end

    def sync(self) -> None:
        """Memory has nothing to sync."""

    def park(self) -> None:
        """Nothing is open."""


class Memory:
    """What is behind a ring in memory mode."""

    instant = True
    """Making a segment costs nothing, so a ring keeps no spare one and needs no thread."""

    def __init__(self, *, new_id: Callable[[int], bytes] = os.urandom) -> None:
        self.directory = Path("(memory)")
        self.slot_id = new_id(16)
        self.acked_fsn = NOTHING
        self.next_fsn = 0

    def recovered(self) -> list[MemorySegment]:
        """Nothing ever is."""
        return []

    def create(self, base: int, size_bytes: int) -> MemorySegment:
        """An empty segment."""
        return MemorySegment(base, size_bytes)

    def activated(self, base: int) -> None:
        """Nobody needs to know."""

    def acknowledged(self, fsn: int) -> None:
        """Nothing to remember beyond the ring's own number."""

    def remove(self, segments: Sequence[MemorySegment], *, head_base: int) -> None:
        """The ring dropped them; nothing else holds them."""

    def reject(self, rejection: Rejection, frames: Iterable[memoryview]) -> None:
        """There is no place to keep them."""

    def session_of(self, fsn: int) -> tuple[bytes, int | None]:  # noqa: ARG002
        """All frames have one id."""
        return self.slot_id, None

    def close(self, segments: Sequence[MemorySegment], *, acked_fsn: int, next_fsn: int) -> None:
        """What is not acknowledged is lost now."""

    def abandon(self, segments: Sequence[MemorySegment]) -> None:
        """The same."""
