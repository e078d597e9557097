"""Reading published segments again, slowly and for ever, to find decay while there is still a copy somewhere.

Promise: at most `scrub.rate` bytes in a second, a burst of one second at the most. Segments take turns, by number; one
that is damaged is reported (`StoreStatistics.scrub`, log event `store.scrub.damage`) and from then on refused to
readers of this process, even if they have read it before (G9). Nothing is written and nothing is deleted: `repair` does
that, with consent. A segment that is found intact again, because somebody put a good copy there, is given to readers
again.

`scrub_step` is the whole of it and depends on nothing but its budget; `run` calls it as time passes.
"""

from __future__ import annotations

import logging
import sqlite3
import threading
from dataclasses import dataclass
from pathlib import Path

from holdfast.clock import NS_PER_S
from holdfast.disk.checksum import crc32c
from holdfast.disk.filesystem import File, Mode
from holdfast.errors import CorruptData, HoldfastError
from holdfast.store.catalog import PublishedSegment
from holdfast.store.ground import Ground
from holdfast.store.reading import Reader
from holdfast.store.segments.reader import verify_segment
from holdfast.telemetry import event

READ_BYTES = 1 << 20
TICK_S = 0.25
"""How often the thread reads its share; short, so that the disk is asked for little at once."""
FINDINGS_MAX = 1000
"""Damaged segments remembered; a disk that has more is beyond scrubbing."""


@dataclass(frozen=True, slots=True)
class ScrubFinding:
    """A published segment that is not what was written."""

    channel: str
    segment_seq: int
    first_seq: int
    last_seq: int
    file: str
    offset_bytes: int
    reason: str
    found_at_ns: int


@dataclass(frozen=True, slots=True)
class ScrubStatistics:
    """What scrubbing has done since the store was opened, and what is damaged now."""

    rate_bytes_per_s: int
    bytes: int
    segments: int
    passes: int
    findings: tuple[ScrubFinding, ...]


class Scrubber:
    """One thread uses it; `statistics` and `stop` may be called from any."""

    def __init__(self, ground: Ground, reader: Reader) -> None:
        self._ground = ground
        self._reader = reader
        self._rate = ground.config.scrub_rate_bytes_per_s
        self._segment: PublishedSegment | None = None
        self._file: File | None = None
        self._offset = self._crc = self._after = 0
        self._allowance_ns = 0
        self._counted_ns = ground.clock.monotonic_ns()
        self._findings: dict[int, ScrubFinding] = {}
        self._stop = threading.Event()
        self._bytes = self._segments = self._passes = 0

    # -- when -------------------------------------------------------------------------------------------------------

    def run(self) -> None:
        """Scrub until stopped or until the store fails."""
        while not self._stop.wait(TICK_S) and self._ground.tail.failure is None:
            try:
                self.tick()
            except (HoldfastError, OSError, sqlite3.Error) as error:  # the next tick may have more luck
                event("store.scrub.fail", level=logging.WARNING, reason=error)
        self._close_file()

    def stop(self) -> None:
        """`run` returns after the current step."""
        self._stop.set()

    def tick(self) -> None:
        """Read as much as the time since the last tick allows."""
        now_ns = self._ground.clock.monotonic_ns()
        self._allowance_ns = min(NS_PER_S, self._allowance_ns + now_ns - self._counted_ns)
        self._counted_ns = now_ns
        budget_bytes = self._rate * self._allowance_ns // NS_PER_S
        if budget_bytes:
            self.scrub_step(budget_bytes)
            self._allowance_ns = 0

    # -- what -------------------------------------------------------------------------------------------------------

    def scrub_step(self, budget_bytes: int) -> int:
        """Read up to so many bytes, going on where the last step ended; returns how many. Ends with a pass, too."""
        used = 0
        while used < budget_bytes:
            if self._segment is None and not self._begin():
                break
            used += self._read(min(READ_BYTES, budget_bytes - used))
        self._bytes += used
        return used

    def statistics(self) -> ScrubStatistics:
        """A picture of now."""
        findings = tuple(self._findings[number] for number in sorted(tuple(self._findings)))
        return ScrubStatistics(self._rate, self._bytes, self._segments, self._passes, findings)

    def _begin(self) -> bool:
        """Take the next segment; False at the end of a pass."""
        segment = self._ground.catalog.local_segment_after(self._after)  # without a file there is no decay
        if segment is None:
            self._passes += self._after > 0
            self._after = 0
            return False
        self._segment, self._after = segment, segment.meta.segment_seq
        self._offset = self._crc = 0
        try:
            self._file = self._ground.filesystem.open(self._path(segment), Mode.READ)
        except FileNotFoundError:
            self._end(self._damage(segment, 0, "a published segment is missing"))
        except OSError as error:
            self._end(self._damage(segment, 0, f"cannot be opened: {error.strerror or error}"))
        return True

    def _read(self, count: int) -> int:
        if self._segment is None or self._file is None:
            return 0
        try:
            data = self._file.pread(count, self._offset)
        except OSError as error:
            self._end(self._damage(self._segment, self._offset, f"cannot be read: {error.strerror or error}"))
            return 0
        self._crc = crc32c(data, self._crc)
        self._offset += len(data)
        if not data or self._offset >= self._segment.size_bytes:
            self._end(self._verdict(self._segment, self._file))
        return len(data)

    def _verdict(self, segment: PublishedSegment, file: File) -> CorruptData | None:
        if self._offset == segment.size_bytes == file.size_bytes() and self._crc == segment.crc32c:
            return None
        try:
            verify_segment(file, segment.crc32c)  # says where
        except CorruptData as damage:
            return damage
        except OSError as error:
            return self._damage(segment, 0, f"cannot be read: {error.strerror or error}")
        return self._damage(segment, 0, "was not the same when it was read twice")

    def _damage(self, segment: PublishedSegment, offset_bytes: int, reason: str) -> CorruptData:
        return CorruptData(file=self._path(segment), offset_bytes=offset_bytes, reason=reason)

    def _path(self, segment: PublishedSegment) -> Path:
        return self._reader.segment_path(segment.meta.channel, segment)

    def _end(self, damage: CorruptData | None) -> None:
        """Done with a segment. One that was evicted, or lost its local copy, meanwhile is nobody's concern."""
        segment, self._segment = self._segment, None
        self._close_file()
        assert segment is not None
        number = segment.meta.segment_seq
        self._segments += 1
        catalog = self._ground.catalog
        moot = damage is not None and (catalog.segment(number) is None or catalog.is_remote(number))
        if damage is None or moot:
            if self._findings.pop(number, None) is not None:
                self._reader.judge(number, None)
            return
        if self._reader.heal(segment):
            self._findings.pop(number, None)
            return
        self._reader.judge(number, damage)
        if number in self._findings or len(self._findings) >= FINDINGS_MAX:
            return
        self._findings[number] = ScrubFinding(
            segment.meta.channel,
            number,
            segment.meta.first_seq,
            segment.meta.last_seq,
            str(damage.file),
            damage.offset_bytes,
            damage.reason,
            self._ground.clock.wall_ns(),
        )
        place = {"file": damage.file, "offset_bytes": damage.offset_bytes}
        event("store.scrub.damage", level=logging.WARNING, **place, reason=damage.reason)

    def _close_file(self) -> None:
        if self._file is not None:
            self._file.close()
            self._file = None
