"""The one append log: rotated, pre-allocated files of checksummed records, with one recovery to prove.

The write-ahead log and the acknowledgement log are instances of it. The owner decides when to sync, rotate and trim.

Layout of a file `<name>-<number>.log`: a header of 64 bytes, then records (`holdfast.disk.records`), then zeros.

    0         8     10      12      16         32       40         48        56     60      64
    +---------+-----+-------+-------+----------+--------+----------+---------+------+--------+
    | "HFLOG\\0\\r\\n" | ver | size | flags | store id | number | position | file id | name | crc32c |
    +---------+-----+-------+-------+----------+--------+----------+---------+------+--------+

`position` is the place of the file's first byte in the endless log; the next file begins where this one ends.

Promises:

- `append` then `sync` returned: the records survive a power cut (G1).
- A file is named only after its header is on disk, and the file before it is complete and on disk by then. So only the
  last file can have a torn tail; in any other file, and in any header, a flaw is damage.
- After an I/O error nothing more is appended (G10): every later call raises `StoreFailed`. A full disk is not such an
  error: what was written is cut off again, `DiskFull` is raised, and the log goes on in a new file.
- A log is never continued in a file of an earlier process. `mend` copies the intact records of an unclean last file
  into a new file that replaces it, so that nothing depends on pages that a failed sync may have lost.
- `trim` deletes whole files only, oldest first.
"""

from __future__ import annotations

import errno
import os
import re
import struct
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import zip_longest
from pathlib import Path

import msgspec
import pyarrow as pa

from holdfast.disk import records
from holdfast.disk.checksum import crc32c
from holdfast.disk.filesystem import Bytes, File, Filesystem, Mode, is_full
from holdfast.disk.records import Flaw, Record
from holdfast.errors import CorruptData, DiskFull, HoldfastError, StoreFailed, UnsupportedFormat, again

HEADER_BYTES = 64
VERSION = 1
MAGIC = b"HFLOG\0\r\n"
KIND_CLOSE = 0xFFFF
"""The last record of a log that was closed in order: everything before it is on disk."""

_HEADER = struct.Struct("<8sHHI16sQQQ4s")
_FULL = {errno.ENOSPC, errno.EDQUOT}
_ZEROS = memoryview(bytes(1 << 20))


@dataclass(frozen=True, slots=True)
class LogSpec:
    """What makes one log differ from another."""

    name: str
    rotation_bytes: int
    allocation_bytes: int = 0
    """What a new file reserves at once; 0 for all of `rotation_bytes`."""
    weak: bool = False
    """Answers are given before the sync: after an unclean stop numbers must be skipped, not reused."""


class NewRecord(msgspec.Struct, frozen=True, gc=False):
    """A record to append; `payload_crc` is the checksum of `buffers` in order."""

    kind: int
    buffers: Sequence[Bytes]
    payload_bytes: int
    payload_crc: int

    @classmethod
    def of(cls, kind: int, payload: bytes) -> NewRecord:
        """A record with one small payload."""
        return cls(kind, (payload,), len(payload), crc32c(payload))


@dataclass(frozen=True, slots=True)
class FileHeader:
    """The first 64 bytes of a log file."""

    store_id: bytes
    number: int
    start_position: int
    file_id: int
    weak: bool
    name: str

    def encode(self) -> bytes:
        """The bytes on disk."""
        body = _HEADER.pack(
            MAGIC,
            VERSION,
            HEADER_BYTES,
            int(self.weak),
            self.store_id,
            self.number,
            self.start_position,
            self.file_id,
            self.name.encode(),
        )
        return body + struct.pack("<I", crc32c(body))

    @classmethod
    def decode(cls, path: Path, data: bytes, *, verify: bool = True) -> FileHeader:
        """The header, or the reason why this is no log file. `verify` False does not compare its checksum."""
        if len(data) < HEADER_BYTES or data[:8] != MAGIC:
            raise CorruptData(file=path, offset_bytes=0, reason="not a log file", dump=records.dump(data, offset=0))
        if verify and struct.unpack_from("<I", data, HEADER_BYTES - 4)[0] != crc32c(data[: HEADER_BYTES - 4]):
            raise CorruptData(
                file=path,
                offset_bytes=0,
                reason="checksum of the file header is wrong",
                dump=records.dump(data, offset=0),
            )
        _, version, _, flags, store_id, number, start, file_id, name = _HEADER.unpack_from(data)
        if version > VERSION:
            raise UnsupportedFormat(file=path, found=version, supported=VERSION)
        return cls(store_id, number, start, file_id, bool(flags & 1), name.rstrip(b"\0").decode("ascii", "replace"))


@dataclass(frozen=True, slots=True)
class LogFile:
    """A file of a log as found on disk, read to its end or to its first flaw."""

    path: Path
    header: FileHeader
    buffer: pa.Buffer
    records: tuple[Record, ...]
    end_offset: int
    flaw: Flaw | None

    @property
    def end_position(self) -> int:
        """Where the next file begins."""
        return self.header.start_position + self.end_offset

    @property
    def closed(self) -> bool:
        """Whether the process that wrote it ended in order."""
        return self.flaw is None and bool(self.records) and self.records[-1].kind == KIND_CLOSE

    @property
    def synced_position(self) -> int:
        """Up to here the log was on disk when the last of its records was written, as far as they tell."""
        told = max((record.synced for record in self.records), default=self.header.start_position)
        if self.flaw is None:
            return told
        later = records.synced_after(
            self.buffer,
            file_id=self.header.file_id,
            start_position=self.header.start_position,
            offset=self.flaw.offset_bytes,
        )
        return max(told, min(later, self.end_position))

    def cut_at(self, record: Record, reason: str) -> LogFile:
        """The same up to that record: what it says of something else is not true, and nobody was told."""
        offset = record.position - self.header.start_position
        kept = tuple(kept for kept in self.records if kept.position < record.position)
        return LogFile(self.path, self.header, self.buffer, kept, offset, Flaw(offset, reason, torn=True))


@dataclass(frozen=True, slots=True)
class Mended:
    """What recovery did to the last file."""

    path: Path
    cut_at_bytes: int
    cut_bytes: int
    reason: str


def log_path(directory: Path, name: str, number: int) -> Path:
    """Where file `number` of a log is."""
    return directory / f"{name}-{number:010d}.log"


def read_log_file(filesystem: Filesystem, path: Path, *, last: bool, verify: bool = True) -> LogFile:
    """Read one file. Never writes. In a file that is not the last one a tear is damage.

    `verify` False compares no checksums: damaged bytes are then taken for what was written.
    """
    buffer = _map(filesystem, path)
    header = FileHeader.decode(path, buffer.slice(0, min(HEADER_BYTES, buffer.size)).to_pybytes(), verify=verify)
    intact: list[Record] = []
    offset, reason = HEADER_BYTES, ""
    for found in records.scan(
        buffer, file_id=header.file_id, start_position=header.start_position, offset=offset, verify=verify
    ):
        if isinstance(found, str):
            reason = found
        else:
            intact.append(found)
            offset += found.size_bytes
    flaw = (
        records.classify(
            buffer, file_id=header.file_id, start_position=header.start_position, offset=offset, reason=reason
        )
        if reason
        else None
    )
    if flaw is not None and flaw.torn and not last:
        flaw = Flaw(flaw.offset_bytes, f"{flaw.reason}; only the last file of a log may end early", torn=False)
    return LogFile(path, header, buffer, tuple(intact), offset, flaw)


def _map(filesystem: Filesystem, path: Path) -> pa.Buffer:
    file = filesystem.open(path, Mode.READ)
    try:
        return file.map()
    finally:
        file.close()


def log_numbers(filesystem: Filesystem, directory: Path, name: str) -> list[int]:
    """The numbers of the files of a log, ascending."""
    pattern = re.compile(rf"{re.escape(name)}-(\d{{10}})\.log")
    matches = (pattern.fullmatch(entry.name) for entry in filesystem.listdir(directory))
    return sorted(int(match[1]) for match in matches if match)


def read_log(
    filesystem: Filesystem,
    directory: Path,
    *,
    spec: LogSpec,
    store_id: bytes,
    from_position: int | None,
    verify: bool = True,
) -> Iterator[LogFile]:
    """The files that hold `from_position` and later, in order, each checked against its neighbours. Never writes.

    `from_position` None says that the log may not have been begun. Raises `CorruptData` at the first damage. A torn
    tail of the last file is left to the caller, in `flaw`.
    """
    headers = read_headers(filesystem, directory, spec=spec, store_id=store_id, verify=verify)
    if from_position is not None and (not headers or headers[0].start_position > from_position):
        begin = f"the oldest file begins at position {headers[0].start_position}" if headers else "there is no file"
        raise CorruptData(
            file=directory,
            offset_bytes=0,
            reason=f"log {spec.name!r} is needed from position {from_position} on, but {begin}",
        )
    needed = [
        header
        for header, after in zip_longest(headers, headers[1:])
        if after is None or after.start_position > (from_position or 0)
    ]
    for header, after in zip_longest(needed, needed[1:]):
        path = log_path(directory, spec.name, header.number)
        found = read_log_file(filesystem, path, last=after is None, verify=verify)
        if found.flaw is not None and not found.flaw.torn:
            raise CorruptData(
                file=path,
                offset_bytes=found.flaw.offset_bytes,
                reason=found.flaw.reason,
                dump=records.dump(found.buffer, offset=found.flaw.offset_bytes),
            )
        if after is not None and after.start_position != found.end_position:
            raise CorruptData(
                file=log_path(directory, spec.name, after.number),
                offset_bytes=0,
                reason=f"begins at position {after.start_position}, the file before it ends at "
                f"{found.end_position}: a file is missing or cut",
            )
        yield found


def read_headers(
    filesystem: Filesystem, directory: Path, *, spec: LogSpec, store_id: bytes, verify: bool = True
) -> list[FileHeader]:
    """The headers of all files of a log, ascending, each checked to belong here."""
    headers = []
    for number in log_numbers(filesystem, directory, spec.name):
        path = log_path(directory, spec.name, number)
        buffer = _map(filesystem, path)
        header = FileHeader.decode(path, buffer.slice(0, min(HEADER_BYTES, buffer.size)).to_pybytes(), verify=verify)
        if header.store_id != store_id:
            raise CorruptData(
                file=path,
                offset_bytes=0,
                reason=f"belongs to store {header.store_id.hex()}, this is store {store_id.hex()}",
            )
        if header.name != spec.name or header.number != number:
            raise CorruptData(
                file=path, offset_bytes=0, reason=f"is file {header.number} of log {header.name!r} under another name"
            )
        headers.append(header)
    return headers


def mend(filesystem: Filesystem, found: LogFile, *, file_id: int) -> Mended | None:
    """Replace an unclean last file by a copy of its intact records, on disk when this returns. None if it was clean."""
    if found.closed:
        return None
    header = FileHeader(
        found.header.store_id,
        found.header.number,
        found.header.start_position,
        file_id,
        found.header.weak,
        found.header.name,
    )
    temporary = found.path.with_suffix(".tmp")
    _discard(filesystem, temporary)
    file = filesystem.open(temporary, Mode.CREATE)
    try:
        file.pwritev([header.encode()], 0)
        offset = HEADER_BYTES
        for record in found.records:
            before, after = records.encode(
                record.kind,
                record.payload.size,
                crc32c(record.payload),
                file_id=file_id,
                position=header.start_position + offset,
                synced=header.start_position + offset,
            )
            file.pwritev([before, record.payload, after], offset)
            offset += records.record_bytes(record.payload.size)
        file.sync()
    except OSError as error:
        if not is_full(error):
            raise
        _discard(filesystem, temporary)  # a start that failed leaves the disk no fuller than it was
        raise DiskFull(file=temporary, reason=os.strerror(error.errno or 0)) from error
    finally:
        file.close()
    filesystem.rename(temporary, found.path)
    filesystem.sync_dir(found.path.parent)
    cut = found.buffer.size - found.end_offset if found.flaw else 0
    return Mended(found.path, found.end_offset, cut, found.flaw.reason if found.flaw else "stopped without closing")


def recover_log(
    filesystem: Filesystem,
    directory: Path,
    *,
    spec: LogSpec,
    store_id: bytes,
    from_position: int | None,
    verify: bool = True,
    settle: Callable[[LogFile], LogFile] = lambda found: found,
) -> Iterator[tuple[LogFile, Mended | None]]:
    """`read_log` for a process that goes on writing: unfinished files are removed, an unclean last file is mended.

    `settle` gives each file as it shall be taken over; only in an unclean last one it may change records or cut them.
    """
    for entry in filesystem.listdir(directory):
        if entry.name.endswith(".tmp"):
            filesystem.unlink(directory / entry.name)
    newest = max(log_numbers(filesystem, directory, spec.name), default=0)
    for found in read_log(
        filesystem, directory, spec=spec, store_id=store_id, from_position=from_position, verify=verify
    ):
        mended = None
        settled = settle(found)
        if found.header.number == newest:
            mended = mend(filesystem, settled, file_id=int.from_bytes(os.urandom(8), "little") | 1)
        yield (found if mended is None else read_log_file(filesystem, found.path, last=True)), mended


def _discard(filesystem: Filesystem, path: Path) -> None:
    if filesystem.exists(path):
        filesystem.unlink(path)


class AppendLog:
    """The writing end. One thread uses it; only `trim` and `size_bytes` may be called from another."""

    def __init__(
        self,
        filesystem: Filesystem,
        directory: Path,
        *,
        spec: LogSpec,
        store_id: bytes,
        number: int,
        position: int,
        prologue: Callable[[], list[NewRecord]],
        entropy: Callable[[int], bytes] = os.urandom,
    ) -> None:
        """Begin file `number` at `position`; `prologue` gives the records that open every file."""
        self._filesystem = filesystem
        self._directory = directory
        self._spec = spec
        self._store_id = store_id
        self._prologue = prologue
        self._entropy = entropy
        self._failure: HoldfastError | None = None
        self._starts: dict[int, int] = {}
        self._file, self._header = self._create(number, position)
        self._publish(self._header)
        self._end = position + HEADER_BYTES
        self._synced = self._end
        self._zeroed = 0
        self._cut = False
        self.append(prologue())

    @property
    def end_position(self) -> int:
        """Where the next record goes."""
        return self._end

    @property
    def synced_position(self) -> int:
        """Everything below survives a power cut."""
        return self._synced

    @property
    def number(self) -> int:
        """The file being written."""
        return self._header.number

    @property
    def failure(self) -> HoldfastError | None:
        """Why the log stopped, if it did."""
        return self._failure

    def fits(self, size_bytes: int) -> bool:
        """Whether records of that size in all still go into the current file."""
        return not self._cut and self._end + size_bytes <= self._header.start_position + self._spec.rotation_bytes

    def adopt(self, number: int, start_position: int) -> None:
        """Count an older file, found at start, among those `trim` may delete."""
        self._starts[number] = start_position

    def size_bytes(self) -> int:
        """Bytes from the start of the oldest file kept to the end."""
        return self._end - min(tuple(self._starts.values()), default=self._header.start_position)

    def file_start(self, number: int) -> int:
        """Where file `number` begins in the endless log."""
        return self._starts.get(number, self._header.start_position)

    def append(self, new: Sequence[NewRecord]) -> list[int]:
        """Write records; returns the position of each. Not yet safe: `sync`."""
        self._check()
        buffers: list[Bytes] = []
        positions: list[int] = []
        end, file_id, synced = self._end, self._header.file_id, self._synced
        for record in new:
            size = record.payload_bytes
            before, after = records.encode(
                record.kind, size, record.payload_crc, file_id=file_id, position=end, synced=synced
            )
            buffers += (before, *record.buffers, after)
            positions.append(end)
            end += records.record_bytes(size)
        zeroed = self._zero_ahead(end, buffers)
        try:
            self._file.pwritev(buffers, self._end - self._header.start_position)
        except OSError as error:
            raise self._write_failed(error) from error
        self._end, self._zeroed = end, zeroed
        return positions

    def _zero_ahead(self, end: int, buffers: list[Bytes]) -> int:
        """Write zeros behind small records: a sync that changes no extents is a third cheaper. Returns their end."""
        if end <= self._zeroed or end - self._end > len(_ZEROS) // 4:
            return self._zeroed
        room = self._header.start_position + self._spec.rotation_bytes - end
        if room <= 0:
            return self._zeroed
        buffers.append(_ZEROS[: min(room, len(_ZEROS))])
        return end + min(room, len(_ZEROS))

    def sync(self) -> None:
        """Make everything appended survive a power cut."""
        self._check()
        if self._synced == self._end:
            return
        try:
            self._file.sync_data()
        except OSError as error:
            raise self._fail(error, "sync failed") from error
        self._synced = self._end

    def stop(self, failure: HoldfastError) -> None:
        """Take nothing more: what the records speak of, outside of the log, may be lost."""
        self._failure = self._failure or failure

    def rotate(self) -> None:
        """Go on in a new file. The old one is complete and on disk before the new one has a name."""
        self._check()
        old = self._header
        file, header = self._create(old.number + 1, self._end)
        try:
            self._file.truncate(self._end - old.start_position)
            self._file.sync()
            self._file.close()
            self._synced = self._end
            self._publish(header)
        except OSError as error:
            file.close()
            raise self._fail(error, "rotation failed") from error
        self._starts[old.number] = old.start_position
        self._file, self._header = file, header
        self._end = self._synced = header.start_position + HEADER_BYTES
        self._zeroed, self._cut = 0, False
        self.append(self._prologue())

    def trim(self, *, keep_from_number: int) -> list[Path]:
        """Delete every file older than that number, oldest first; returns what was deleted."""
        self._check()
        doomed = [number for number in sorted(self._starts) if number < keep_from_number]
        paths = [log_path(self._directory, self._spec.name, number) for number in doomed]
        try:
            for path in paths:
                self._filesystem.unlink(path)
            if paths:
                self._filesystem.sync_dir(self._directory)
        except OSError as error:
            raise self._fail(error, "trim failed") from error
        for number in doomed:
            self._starts.pop(number, None)
        return paths

    def close(self) -> None:
        """Sync, say that the log ended in order, and let go."""
        try:
            if self._failure is None:
                self.append([NewRecord.of(KIND_CLOSE, b"")])
                self.sync()
                self._file.truncate(self._end - self._header.start_position)
                self._file.sync()
        except OSError as error:
            raise self._fail(error, "close failed") from error
        finally:
            self._file.close()

    def _create(self, number: int, position: int) -> tuple[File, FileHeader]:
        file_id = int.from_bytes(self._entropy(8), "little") | 1
        header = FileHeader(self._store_id, number, position, file_id, self._spec.weak, self._spec.name)
        temporary = log_path(self._directory, self._spec.name, number).with_suffix(".tmp")
        try:
            _discard(self._filesystem, temporary)
            file = self._filesystem.open(temporary, Mode.CREATE)
        except OSError as error:
            raise self._creation_failed(error, temporary) from error
        try:
            file.allocate(self._spec.allocation_bytes or self._spec.rotation_bytes)
            file.pwritev([header.encode()], 0)
            file.sync()
        except OSError as error:
            file.close()
            raise self._creation_failed(error, temporary) from error
        return file, header

    def _publish(self, header: FileHeader) -> None:
        path = log_path(self._directory, self._spec.name, header.number)
        self._filesystem.rename(path.with_suffix(".tmp"), path)
        self._filesystem.sync_dir(self._directory)

    def _creation_failed(self, error: OSError, path: Path) -> DiskFull | StoreFailed:
        if error.errno not in _FULL:
            return self._fail(error, "creating a log file failed")
        try:
            _discard(self._filesystem, path)
        except OSError as second:
            return self._fail(second, "removing an unfinished log file failed")
        return DiskFull(file=path, reason=os.strerror(error.errno or 0))

    def _write_failed(self, error: OSError) -> DiskFull | StoreFailed:
        """A full disk: cut off what was written of this call, so that it cannot come back, and go on in a new file."""
        if error.errno not in _FULL:
            return self._fail(error, "write failed")
        try:
            self._file.truncate(self._end - self._header.start_position)
            self._file.sync()
        except OSError as second:
            return self._fail(second, "cutting off a partial write failed")
        self._synced, self._cut = self._end, True
        return DiskFull(file=self.path, reason=os.strerror(error.errno or 0))

    @property
    def path(self) -> Path:
        """The file being written."""
        return log_path(self._directory, self._spec.name, self._header.number)

    def _fail(self, error: OSError, what: str) -> StoreFailed:
        file = self.path if hasattr(self, "_header") else self._directory
        self._failure = failure = StoreFailed(file=file, reason=f"{what}: {error}")
        return failure

    def _check(self) -> None:
        if self._failure is not None:
            raise again(self._failure)
