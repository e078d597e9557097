"""The words that rings, segments and what keeps them share: protocols, options, values.

A `Backing` keeps segments: `slot.Slot` on disk, `memory.Memory` without. A `Segment` holds consecutive frames. What
`position` and `end` count is the segment's own business (bytes in a file, frames in memory); they only grow.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NamedTuple, Protocol, TypeAlias

from holdfast.clock import NS_PER_S
from holdfast.disk.filesystem import Bytes
from holdfast.sender.rejected import Rejection

Stamp: TypeAlias = Callable[[memoryview, int], None]
"""Writes the FSN into the first part of a frame, in place."""


class Outage(NamedTuple):
    """The connection is gone since then, and this is the number of the attempt to get it back."""

    since_wall_ns: int
    attempts: int
    last_error: str = ""

    def __str__(self) -> str:
        since = datetime.fromtimestamp(self.since_wall_ns // NS_PER_S, UTC).isoformat(timespec="seconds")
        return f"since {since}, attempt {self.attempts}" + (
            f", last error: {self.last_error}" if self.last_error else ""
        )


LinkState: TypeAlias = Callable[[], Outage | None]
"""None while the connection stands."""


class Segment(Protocol):
    """What the ring needs of a segment; `position` and `end` mean something to the segment only."""

    base: int
    size_bytes: int
    dirty: bool
    pins: int

    @property
    def count(self) -> int: ...
    @property
    def end(self) -> int: ...
    @property
    def next_fsn(self) -> int: ...
    def fits(self, payload_bytes: int) -> bool: ...
    def rebase(self, base: int) -> None: ...
    def append(self, parts: Sequence[Bytes], payload_bytes: int) -> None: ...
    def forget_tail(self) -> None: ...
    def seal(self) -> None: ...
    def seek(self, fsn: int) -> int: ...
    def read(self, position: int, end: int) -> tuple[list[memoryview], int]: ...
    def sync(self) -> None: ...
    def park(self) -> None: ...


class Backing(Protocol):
    """What keeps the segments: `Slot` or `Memory`."""

    directory: Path
    """What errors name when the disk names no file."""
    instant: bool
    """Making a segment costs nothing, so no spare is kept and no thread is needed."""
    slot_id: bytes
    acked_fsn: int
    next_fsn: int

    def recovered(self) -> list[Any]: ...
    def create(self, base: int, size_bytes: int) -> Any: ...
    def activated(self, base: int) -> None: ...
    def acknowledged(self, fsn: int) -> None: ...
    def remove(self, segments: Sequence[Any], *, head_base: int) -> None: ...
    def reject(self, rejection: Rejection, frames: Iterable[memoryview]) -> Path | None: ...
    def session_of(self, fsn: int) -> tuple[bytes, int | None]: ...
    def close(self, segments: Sequence[Any], *, acked_fsn: int, next_fsn: int) -> None: ...
    def abandon(self, segments: Sequence[Any]) -> None: ...


class RingOptions(NamedTuple):
    """How a ring behaves; the connect string has these."""

    segment_bytes: int = 4 << 20
    cap_bytes: int = 128 << 20
    append_deadline_ms: int = 30_000
    durability: str = "memory"
    """memory, periodic, flush or append."""
    sync_interval_ms: int = 5_000


class RingStatistics(NamedTuple):
    """The ring at one moment."""

    published_fsn: int
    acked_fsn: int
    synced_fsn: int
    used_bytes: int
    cap_bytes: int
    segments: int
    stalls: int
    """Appends that had to wait for room."""
    trimmed_segments: int
    syncs: int


class Frame(NamedTuple):
    """One frame as it was published."""

    fsn: int
    payload: memoryview


def connected() -> Outage | None:
    """The link state of a ring without a link: never to blame."""
    return None
