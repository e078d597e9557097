"""One file of frames, byte for byte the SF01 format, so that other clients read ours and we read theirs.

    0        4         5       6          8       16          24
    +--------+---------+-------+----------+-------+-----------+-------+-------+- - - - - - - +-------
    | "SF01" | version | flags | reserved | base  | created   | frame | frame | zeros        | end of file
    +--------+---------+-------+----------+-------+-----------+-------+-------+- - - - - - - +-------
     u32      u8 = 1    u8      u16 = 0    u64     i64 micros
    frame:  u32 crc32c of length and payload | u32 length | payload

Little-endian. `base` is the FSN of the first frame; the others follow without gaps. Flag bit 0: see `manifest`. The
file is allocated at its full size and zero behind the last frame; zeros are never a frame, because the checksum of a
length of zero is not zero.

A spare file has a header with a provisional base. Its true header is written with its first frame, in one write, so
that a crash leaves either a spare or a segment that says where it belongs.

We write with `pwritev`, not through a mapping. It costs about a microsecond more for a small frame, and for it we
get: errors of the disk as exceptions instead of SIGBUS, the seam through which tests cut the power, and frames being
sent that nobody can unmap.

Promise: `append` returns with the frame where a killed process leaves it; `read` gives frames whose checksum was
just compared. One writer; readers of other threads see what `end` and `count` cover.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from holdfast.disk.checksum import crc32c
from holdfast.disk.filesystem import Bytes, File, Filesystem, Mode
from holdfast.disk.records import dump
from holdfast.errors import CorruptData

MAGIC = b"SF01"
VERSION = 1
FLAG_MANIFEST = 0x01
HEADER_BYTES = 24
FRAME_HEADER_BYTES = 8
PAYLOAD_BYTES_MAX = 2**31 - 1
SEGMENT_BYTES_MIN = HEADER_BYTES + FRAME_HEADER_BYTES + 1
OVERHEAD_BYTES = HEADER_BYTES + FRAME_HEADER_BYTES
"""What a segment needs beside the payload of its only frame."""

WINDOW_BYTES = 256 << 10
"""How much is read at once: many small frames for one call, and little memory for each reader."""
REWRITE_BYTES = 4 << 20
"""Held at a time when a segment is written again."""
MARK_EVERY = 256
"""The place of every so-many-th frame is kept in memory; others are found by walking from there."""

_HEADER = struct.Struct("<4sBBHQq")
_FRAME = struct.Struct("<II")
_LENGTH = struct.Struct("<I")


class Header(NamedTuple):
    """The start of a segment file."""

    base: int
    created_micros: int
    flags: int = 0

    def encode(self) -> bytes:
        """The 24 bytes."""
        return _HEADER.pack(MAGIC, VERSION, self.flags, 0, self.base, self.created_micros)


def decode_header(data: bytes) -> Header | str:
    """The header in these bytes, or why they are none."""
    if len(data) < HEADER_BYTES:
        return f"{len(data)} bytes are less than a header of {HEADER_BYTES}"
    magic, version, flags, reserved, base, created = _HEADER.unpack(data[:HEADER_BYTES])
    if magic != MAGIC:
        return f"magic is {magic.hex()}, not {MAGIC.hex()}"
    if version != VERSION or reserved or flags & ~FLAG_MANIFEST:
        return f"version {version}, flags {flags}, reserved {reserved} are not known"
    if base >= 2**63:
        return f"base {base} is out of range 0..2^63-1"
    return Header(base, created, flags)


class Batch(NamedTuple):
    """Frames read at one place, where the next one starts, and why there is no further one ("" when there may be)."""

    frames: list[memoryview]
    next_offset: int
    flaw: str


def read_batch(file: File, offset: int, end: int, *, window_bytes: int = WINDOW_BYTES) -> Batch:
    """Frames from `offset` on, none reaching beyond `end`; at least one, unless there is a flaw or the end."""
    data = memoryview(file.pread(min(window_bytes, end - offset), offset))
    frames: list[memoryview] = []
    at = 0
    while True:
        if len(data) - at < FRAME_HEADER_BYTES:
            cut_short = offset + at < end < offset + at + FRAME_HEADER_BYTES
            return Batch(frames, offset + at, "the file ends inside a frame header" if cut_short else "")
        crc, length = _FRAME.unpack_from(data, at)
        stop = at + FRAME_HEADER_BYTES + length
        if length > PAYLOAD_BYTES_MAX or offset + stop > end:
            return Batch(frames, offset + at, f"a length of {length} bytes does not fit")
        if stop > len(data):
            if frames:
                return Batch(frames, offset + at, "")
            data = memoryview(file.pread(stop, offset))  # a frame larger than the window, alone
        if crc32c(data[at + 4 : stop]) != crc:
            flaw = f"checksum is not {crc:08x}" if crc or length else "zeros where a frame would start"
            return Batch(frames, offset + at, flaw)
        frames.append(data[at + FRAME_HEADER_BYTES : stop])
        at = stop


@dataclass(frozen=True, slots=True)
class Scan:
    """What a segment file holds."""

    path: Path
    header: Header
    size_bytes: int
    count: int
    end: int
    """Where the next frame would start."""
    marks: tuple[int, ...]
    flaw: str
    """Why there is no frame at `end`, if something is there: a torn write, or damage."""
    intact_after: int
    """Frames behind the flaw that are intact themselves."""

    @property
    def next_fsn(self) -> int:
        """The FSN after the last frame."""
        return self.header.base + self.count


def scan(file: File) -> Scan | str:
    """Walk a segment file to the end of its data; a text when it is no segment."""
    size = file.size_bytes()
    head = file.pread(HEADER_BYTES, 0)
    header = decode_header(head)
    if isinstance(header, str):
        begun = head.startswith(MAGIC) or MAGIC.startswith(head.rstrip(b"\0"))
        if not begun or _has_data(file, HEADER_BYTES, size):
            return header
        header = Header(0, 0)  # a spare whose making was interrupted
    count, offset, marks, flaw = 0, HEADER_BYTES, [HEADER_BYTES], ""
    while offset < size:  # a file may be shorter than its header: its making was interrupted
        batch = read_batch(file, offset, size, window_bytes=4 * WINDOW_BYTES)
        at = offset
        for frame in batch.frames:
            count += 1
            at += FRAME_HEADER_BYTES + len(frame)
            if count % MARK_EVERY == 0:
                marks.append(at)
        offset, flaw = batch.next_offset, batch.flaw
        if flaw or not batch.frames:
            break
    if flaw and not _has_data(file, offset, size):
        flaw = ""
    after = _intact_after(file, offset, size) if flaw else 0
    return Scan(file.path, header, size, count, offset, tuple(marks), flaw, after)


def _has_data(file: File, offset: int, size: int) -> bool:
    """Whether any byte from `offset` on is not zero."""
    zeros = bytes(4 * WINDOW_BYTES)
    while offset < size:
        data = file.pread(min(len(zeros), size - offset), offset)
        if data != zeros[: len(data)]:
            return True
        offset += len(data)
    return False


def _intact_after(file: File, offset: int, size: int) -> int:
    """Frames that follow the bad one at `offset`, if its length leads to them."""
    head = file.pread(FRAME_HEADER_BYTES, offset)
    if len(head) < FRAME_HEADER_BYTES:
        return 0
    at = offset + FRAME_HEADER_BYTES + _FRAME.unpack(head)[1]
    found = 0
    while at < size:
        batch = read_batch(file, at, size)
        found += len(batch.frames)
        at = batch.next_offset
        if batch.flaw or not batch.frames:
            break
    return found


class FileSegment:
    """A segment: appended to while it is active, read until it is trimmed.

    A slot may have thousands, more than a process may have open. `park` closes the file of one that nobody uses; the
    next use opens it again.
    """

    __slots__ = (
        "_filesystem",
        "_header_due",
        "_marks",
        "_open_file",
        "_unsure",
        "_window_bytes",
        "base",
        "count",
        "dirty",
        "end",
        "header",
        "path",
        "pins",
        "size_bytes",
    )

    def __init__(self, filesystem: Filesystem, file: File, header: Header, size_bytes: int) -> None:
        """A fresh file of that size whose header is already written."""
        self._filesystem = filesystem
        self._open_file: File | None = file
        self.path = file.path
        self.header = header
        self.base = header.base
        self.count = 0
        self.end = HEADER_BYTES
        self.size_bytes = size_bytes
        self.dirty = False
        self.pins = 0
        self._marks = {0: HEADER_BYTES}
        self._header_due = False
        self._unsure = False  # an append began and did not end
        self._window_bytes = WINDOW_BYTES

    @classmethod
    def recovered(cls, filesystem: Filesystem, found: Scan) -> FileSegment:
        """A segment of an earlier process."""
        segment = cls(filesystem, filesystem.open(found.path, Mode.WRITE), found.header, found.size_bytes)
        segment.count = found.count
        segment.end = found.end
        segment._marks = dict(enumerate(found.marks))
        segment.dirty = True  # nobody knows whether its pages reached the disk
        return segment

    @property
    def _file(self) -> File:
        if self._open_file is None:
            self._open_file = self._filesystem.open(self.path, Mode.WRITE)
        return self._open_file

    @property
    def next_fsn(self) -> int:
        """The FSN after the last frame."""
        return self.base + self.count

    def fits(self, payload_bytes: int) -> bool:
        """Whether a frame with such a payload still fits."""
        return self.end + FRAME_HEADER_BYTES + payload_bytes <= self.size_bytes

    def rebase(self, base: int) -> None:
        """Give a spare its place; written with its first frame."""
        assert self.count == 0, "only an empty segment can move"
        self.base = base
        self.header = self.header._replace(base=base)
        self._header_due = True

    def append(self, parts: Sequence[Bytes], payload_bytes: int) -> None:
        """Write one frame. An `OSError` leaves the frame out, with unknown bytes where it would be."""
        if self._unsure:
            self.forget_tail()
        crc = crc32c(_LENGTH.pack(payload_bytes))
        for part in parts:
            crc = crc32c(part, crc)
        head = _FRAME.pack(crc, payload_bytes)
        self._unsure = True
        if self._header_due:
            self._file.pwritev([self.header.encode() + head, *parts], 0)
            self._header_due = False
        else:
            self._file.pwritev([head, *parts], self.end)
        end, count = self.end + FRAME_HEADER_BYTES + payload_bytes, self.count + 1
        if count % MARK_EVERY == 0:
            self._marks[count // MARK_EVERY] = end
        self.dirty = True  # no call from here on, so an interrupt finds all of the frame or none
        self.end, self.count, self._unsure = end, count, False

    def forget_tail(self) -> None:
        """Remove what an append that failed or was interrupted may have left behind the last frame."""
        self._file.truncate(self.end)
        self._unsure = False

    def seal(self) -> None:
        """Nothing more is appended: what stands behind the last frame must never be taken for one."""
        if self._unsure:
            self.forget_tail()
            self._file.sync()

    def seek(self, fsn: int) -> int:
        """Where the frame with that FSN starts."""
        mark = (fsn - self.base) // MARK_EVERY
        at = self._marks[mark]
        for _ in range((fsn - self.base) % MARK_EVERY):
            at += FRAME_HEADER_BYTES + int(_FRAME.unpack(self._file.pread(FRAME_HEADER_BYTES, at))[1])
        return at

    def read(self, position: int, end: int) -> tuple[list[memoryview], int]:
        """Frames from `position` on, up to `end` (an earlier value of `self.end`), and where the next one starts."""
        batch = read_batch(self._file, position, end, window_bytes=self._window_bytes)
        read_bytes = batch.next_offset - position
        is_large = len(batch.frames) == 1 and read_bytes > WINDOW_BYTES
        self._window_bytes = read_bytes if is_large else WINDOW_BYTES  # large frames come in rows of one size
        if not batch.frames:
            found = self._file.pread(min(64, end - position), position)
            raise CorruptData(
                file=self.path,
                offset_bytes=position,
                reason=f"a frame that was written can no longer be read: {batch.flaw}",
                dump=dump(found, offset=0),
            )
        return batch.frames, batch.next_offset

    def sync(self) -> None:
        """Make all that is written survive a power cut."""
        self._file.sync_data()

    def rewrite(self) -> None:
        """Write everything once more, where it stands.

        A sync that failed in an earlier process left pages that the system takes for written: a sync of ours would
        pass over them, and a power cut would take frames out of the middle.
        """
        for at in range(0, self.end, REWRITE_BYTES):
            self._file.pwritev([self._file.pread(min(REWRITE_BYTES, self.end - at), at)], at)

    def park(self) -> None:
        """Close the file until it is needed again. Idempotent."""
        file, self._open_file = self._open_file, None  # first forgotten: an interrupt must not leave a closed one
        if file is not None:
            file.close()
