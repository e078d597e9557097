"""Large frames are written once: straight into the file of their segment, while the log only refers to them.

The committer's part of it (`segments/growing.py` has the file). For each group with a large frame:

    1. pin      the open units of the channels concerned: nobody cuts them until the group has ended
    2. plan     follow the units as the tail will fill them; which chunk goes into which file
    3. write    what waits in a unit before a large frame, and the frame; the log has not heard of it yet
    4. (log)    the committer appends its records, with references
    5. sync     the files, beside the log
    6. settle   after the group was accepted; or give up, if the disk was full

Large is what has at least `segment.direct_size` bytes. It goes the ordinary way all the same

- under a weak flush policy; on Windows, which neither cuts nor renames a file that is mapped;
- in channels whose segments are compressed or have dictionaries: their bytes there are not those of the frame;
- if Arrow would write the batch with other bytes than those that came;
- behind more than `BACKLOG_BYTES_MAX` of small frames, which would have to be written first;
- while `FILES_MAX` files are open, or if there is no room for one more.
"""

from __future__ import annotations

import sqlite3
import sys
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field

import pyarrow as pa
from msgspec.structs import replace

from holdfast.disk.checksum import crc32c
from holdfast.disk.filesystem import is_full
from holdfast.errors import DiskFull
from holdfast.store.channels import Channel
from holdfast.store.ground import Ground
from holdfast.store.segments.growing import GrowingSegment
from holdfast.store.units import Chunk, Unit
from holdfast.store.wal.codec import FORM_MESSAGE, POOL, Payload, Reference, decode_pieces

BACKLOG_BYTES_MAX = 4 << 20
"""What a large frame may have to wait for; more would be felt as latency."""
FILES_MAX = 16
"""Open at a time, each with the room of a whole segment; channels beyond go through the log."""
ROOM_FOR_FOOTER_BYTES = 1 << 16
NEVER = 1 << 62
ALIGN_BYTES = 8


@dataclass(slots=True)
class _Course:
    """A channel's open unit as it will be when the tail has taken the group so far."""

    channel: Channel
    unit: Unit | None
    growing: GrowingSegment | None = None
    backlog: list[Chunk] = field(default_factory=list)
    backlog_bytes: int = 0
    bytes: int = 0
    rows: int = 0
    end_seq: int = 0
    version: object = None

    def __post_init__(self) -> None:
        unit = self.unit
        if unit is None:
            return
        self.growing = unit.growing
        self.bytes, self.rows, self.end_seq, self.version = unit.bytes, unit.rows, unit.end_seq, unit.version
        written_to = unit.growing.end_seq if unit.growing is not None else unit.first_seq
        for chunk in reversed(unit.chunks):
            if chunk.run.first_seq < written_to or self.backlog_bytes > BACKLOG_BYTES_MAX:
                break
            self.wait(chunk)
        self.backlog.reverse()

    def wait(self, chunk: Chunk) -> None:
        """The chunk is in the unit, and not in its file."""
        self.backlog.append(chunk)
        self.backlog_bytes += chunk.payload.buffer.size

    def end(self) -> None:
        """The unit is full, or something else comes: the next chunk opens a new one."""
        self.growing, self.backlog, self.backlog_bytes, self.bytes, self.rows = None, [], 0, 0, 0

    def goes_on_with(self, chunk: Chunk) -> bool:
        """Whether the chunk belongs into the same unit."""
        return self.rows == 0 or (self.version is chunk.version and self.end_seq == chunk.run.first_seq)

    def take(self, chunk: Chunk) -> None:
        """The unit has one more."""
        self.bytes += chunk.payload.buffer.size
        self.rows += chunk.run.rows
        self.end_seq, self.version = chunk.run.first_seq + chunk.run.rows, chunk.version


class DirectWriter:
    """Used by the committer's thread only."""

    def __init__(self, ground: Ground, *, parallel: bool) -> None:
        """`parallel`: sync the files on a thread beside the log's."""
        self._ground = ground
        self._config = ground.config
        self._tail = ground.tail
        self._pool = ThreadPoolExecutor(2, "holdfast-sync") if parallel else None
        self._files: set[GrowingSegment] = set()
        self._touched: list[GrowingSegment] = []
        self._syncs: list[Future[None]] = []
        possible = self._config.wal_flush == "commit" and sys.platform != "win32"
        self.large_bytes = self._config.segment_direct_bytes if possible else NEVER
        """A payload of so many bytes is worth a look."""
        self.frames = 0

    # -- 1 to 3 -----------------------------------------------------------------------------------------------------

    def write(self, chunks: list[tuple[Channel, Chunk]]) -> dict[int, Reference]:
        """Write the large ones among the chunks of a group, and replace those; returns where each of them is."""
        self._touched, self._syncs = [], []
        self._files = {growing for growing in self._files if not growing.broken}
        large = {
            place
            for place, (channel, chunk) in enumerate(chunks)
            if chunk.payload.buffer.size >= self.large_bytes and _is_plain(channel, chunk)
        }
        wanted = list(dict.fromkeys(chunks[place][0] for place in sorted(large)))
        units = self._tail.pin(wanted)
        courses = {channel: _Course(channel, unit) for channel, unit in zip(wanted, units, strict=True)}
        references: dict[int, Reference] = {}
        homes: dict[int, GrowingSegment] = {}
        for place, (channel, chunk) in enumerate(chunks):
            course = courses.get(channel)
            if course is None:
                continue
            if not course.goes_on_with(chunk):
                course.end()
            growing = self._home(course, chunk) if place in large else None
            if growing is None:
                course.wait(chunk)
            else:
                references[place], homes[place] = _add(growing, course, chunk), growing
            course.take(chunk)
            if self._tail.is_full(channel, size_bytes=course.bytes, rows=course.rows):
                course.end()
        self._write_out()
        for place, growing in homes.items():
            channel, chunk = chunks[place]
            chunks[place] = channel, _in_file(chunk, growing, references[place])
        self.frames += len(homes)
        return references

    def _home(self, course: _Course, chunk: Chunk) -> GrowingSegment | None:
        """The file for a large chunk; None if it goes the ordinary way."""
        if course.backlog_bytes > BACKLOG_BYTES_MAX:
            return None
        growing = course.growing
        if growing is None:
            growing = course.growing = self._create(course.channel, chunk)
            if growing is not None:
                first = course.backlog[0] if course.backlog else chunk
                growing.begin(first.run.first_seq)
        if growing is None or growing.broken:
            return None
        if growing not in self._touched:
            self._touched.append(growing)
        return growing

    def _create(self, channel: Channel, chunk: Chunk) -> GrowingSegment | None:
        if len(self._files) >= FILES_MAX:
            return None
        try:
            growing = GrowingSegment.create(
                self._ground.filesystem,
                self._ground.channel_directory(channel.name),
                self._ground.catalog.next_segment_seq(),
                schema=chunk.version.schema,
                allocate_bytes=self._config.segment_target_bytes + ROOM_FOR_FOOTER_BYTES,
            )
        except (OSError, sqlite3.Error) as error:
            if is_full(error):
                return None
            raise
        self._files.add(growing)
        return growing

    def _write_out(self) -> None:
        for growing in self._touched:
            try:
                growing.write()
            except OSError as error:
                if is_full(error):
                    raise DiskFull(file=growing.path, reason=str(error)) from error
                raise
            if self._pool is not None:
                self._syncs.append(self._pool.submit(growing.sync))

    # -- 5, 6 -------------------------------------------------------------------------------------------------------

    def sync(self, sync_log: Callable[[], None]) -> None:
        """Everything the log refers to, and the log, are on disk when this returns."""
        try:
            if self._pool is None:
                for growing in self._touched:
                    growing.sync()
            sync_log()
        finally:
            failures = [sync.exception() for sync in self._syncs]
        for failure in failures:
            if failure is not None:
                raise failure

    def settle(self) -> None:
        """The group was accepted. Before the tail takes it."""
        for growing in self._touched:
            growing.settle()
        self._touched = []

    def give_up(self) -> None:
        """The group was refused for lack of space, and no record of it is left."""
        for sync in self._syncs:
            sync.exception()
        for growing in self._touched:
            growing.give_up()
        self._touched = []
        self._tail.unpin()

    def close(self) -> None:
        """Let go of everything."""
        if self._pool is not None:
            self._pool.shutdown()
        for growing in self._files:
            growing.close()


def _is_plain(channel: Channel, chunk: Chunk) -> bool:
    """Whether the chunk's bytes are what the segment will hold."""
    payload, version = chunk.payload, chunk.version
    if payload.form != FORM_MESSAGE or payload.buffer.size % ALIGN_BYTES or version.has_dictionaries:
        return False
    if channel.limits.compression != "none":
        return False
    return bool(pa.ipc.get_record_batch_size(payload.decode(version.schema)) == payload.buffer.size)


def _add(growing: GrowingSegment, course: _Course, chunk: Chunk) -> Reference:
    """Stage what waits before the chunk, and the chunk."""
    schema = chunk.version.schema
    for rows, make in decode_pieces((waiting.payload for waiting in course.backlog), schema):
        growing.add(make().serialize(memory_pool=POOL), rows, make)
    course.backlog, course.backlog_bytes = [], 0
    message, crc = chunk.payload.buffer, chunk.payload.crc
    if crc < 0:
        crc = crc32c(message)
    return Reference(growing.segment_seq, growing.add(message, chunk.run.rows), message.size, crc)


def _in_file(chunk: Chunk, growing: GrowingSegment, reference: Reference) -> Chunk:
    """The same chunk, read from the file from now on: its memory is free."""
    view = growing.view(reference.offset_bytes, reference.size_bytes)
    return replace(chunk, payload=Payload(view, FORM_MESSAGE, chunk.run.rows), growing=growing, filed=True)
