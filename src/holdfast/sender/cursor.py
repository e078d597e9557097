"""Reading a ring in FSN order, from any unacknowledged frame on, while others append, acknowledge and trim.

Promise: no frame is skipped or repeated across segments; what `next` returned stays valid for as long as it is held,
also after the cursor moved on, the segment was deleted or the ring was closed. The segment a cursor stands in is
pinned: it is not deleted meanwhile. The place is decided under the ring's lock; the disk is read without it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from typing import TYPE_CHECKING

from holdfast.sender.substrate import Frame, Segment

if TYPE_CHECKING:
    from holdfast.sender.ring import Ring


class Cursor:
    """Reads frames in FSN order. Belongs to one thread; close it, also after an error."""

    def __init__(self, ring: Ring, fsn: int) -> None:
        self._ring = ring
        self._batch: deque[memoryview] = deque()
        self._open = True
        self.fsn = fsn
        """The next frame's."""
        with ring.lock:
            self._segment: Segment = ring.pin(ring.segment_at(fsn))
            self._position = self._segment.seek(fsn) if fsn < self._segment.next_fsn else self._segment.end

    def next(self) -> Frame | None:
        """The next frame; None when there is none yet, and then the ring calls `on_published` once there is."""
        if not self._batch and not self._fill():
            return None
        frame = Frame(self.fsn, self._batch.popleft())
        self.fsn += 1
        return frame

    def until(self, last_fsn: int) -> Iterator[Frame]:
        """Frames up to and including `last_fsn`, as far as they are published."""
        while self.fsn <= last_fsn and (frame := self.next()) is not None:
            yield frame

    def _fill(self) -> bool:
        ring = self._ring
        with ring.lock:
            while self.fsn >= self._segment.next_fsn:
                following = ring.segment_after(self._segment)
                if following is None:
                    return False
                ring.unpin(self._segment)
                self._segment = ring.pin(following)
                self._position = following.seek(following.base)
            segment, end = self._segment, self._segment.end
        frames, self._position = segment.read(self._position, end)
        self._batch.extend(frames)
        return True

    def close(self) -> None:
        """Let the segment go. Idempotent; frames that were read stay valid."""
        if self._open:
            self._open = False
            with self._ring.lock:
                self._ring.unpin(self._segment)

    def __enter__(self) -> Cursor:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
