"""The slot directory `<sf_dir>/<sender_id>/` of one sender: lock, recovery, segments, watermark, identity, dead
letters.

    .lock               locked while a process owns the slot; empty; never deleted
    .lock.pid           that process, for the error of the next one
    .slot-id            ids of its frames, and the lowest next FSN (identity.py); ours alone
    .ack-watermark      how far the server acknowledged (watermark.py)
    sf-<n>.sfa          segments, n in 16 hex digits in order of allocation (segment.py)
    .failed             this slot can never be sent; leave it to a person. Holds the reason
    .last_error         what ended the last attempt to send it; try again
    rejected/           frames that a server refused for good (rejected.py)
    *.corrupt, *.cut    what recovery set aside
    sf-manifest.bin, .symbol-dict   of other clients (manifest.py, symboldict.py)

A `Slot` is the disk behind a `Ring`: it opens, recovers and closes, and does single steps in the order that survives
a crash. When to do them, and for how long a segment is needed, is the ring's business.

The order of a trim, so that a power cut at any point costs at most a replay: the watermark is written and synced,
then the directory is synced, then the manifest moves if there is one, then files are deleted oldest first, then the
directory is synced again. A clean close of a slot without unacknowledged frames does the same and leaves only the
names that start with a dot.

The lock is taken before anything else is touched and released after everything else is done. Errors: `Locked` names
the process; `CorruptData` names file and byte, and then nothing was changed; `SlotFailed` for errors of the disk;
`DiskFull`.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from pathlib import Path

from holdfast.clock import Clock
from holdfast.disk.filesystem import Filesystem, Lock, Mode
from holdfast.disk.smallfiles import read_whole, replace_whole
from holdfast.errors import Locked
from holdfast.sender import manifest, rejected, symboldict, watermark
from holdfast.sender.fate import disk_errors
from holdfast.sender.identity import Identity, Session, write_identity
from holdfast.sender.manifest import Manifest
from holdfast.sender.recovery import Survey, segment_name, settle, survey
from holdfast.sender.rejected import Rejection
from holdfast.sender.segment import FLAG_MANIFEST, FileSegment, Header
from holdfast.sender.watermark import Watermark
from holdfast.telemetry import event

LOCK = ".lock"
LOCK_PID = ".lock.pid"
FAILED = ".failed"
LAST_ERROR = ".last_error"
PID_BYTES_MAX = 64
"""How much of `.lock.pid` is read: other clients write little more than the number."""
_REASON_BYTES_MAX = 64 << 10


def slot_directory(sf_dir: Path, sender_id: str) -> Path:
    """Where a sender's slot is."""
    return sf_dir / sender_id


class Slot:
    """A slot that this process owns. Calls are not thread-safe; a ring takes turns."""

    instant = False
    """Making a segment takes time, so a ring keeps a spare one."""

    def __init__(
        self, directory: Path, *, filesystem: Filesystem, clock: Clock, lock: Lock, found: Survey, durable: bool
    ) -> None:
        self.directory = directory
        self.recovery = found
        self.acked_fsn = found.acked_fsn
        self.next_fsn = found.next_fsn
        self.identity = found.identity or Identity()
        self.slot_id = b""
        self._filesystem = filesystem
        self._clock = clock
        self._lock = lock
        self._durable = durable
        self._generation = found.next_generation
        self._watermark: Watermark | None = None
        self._manifest: Manifest | None = None
        self._segments: list[FileSegment] = []

    @classmethod
    def open(
        cls,
        directory: Path,
        *,
        filesystem: Filesystem,
        clock: Clock,
        durable: bool = False,
        writing: bool = True,
        new_id: Callable[[int], bytes] = os.urandom,
    ) -> Slot:
        """Lock, recover and take over the slot. The parent of `<sf_dir>` must exist.

        `durable`: what is recovered and every new segment is synced, as all modes but `sf_durability=memory` need.
        `writing`: frames will be appended, under an id of their own; without it the slot is only drained.
        """
        with disk_errors(directory):
            for path in (directory.parent, directory):
                if not filesystem.exists(path):
                    filesystem.makedir(path)
                    filesystem.sync_dir(path.parent)
            lock = _take_lock(filesystem, directory)
            try:
                found = survey(filesystem, directory)
                settle(filesystem, found)
                rejected.remove_unfinished(filesystem, directory)
                slot = cls(directory, filesystem=filesystem, clock=clock, lock=lock, found=found, durable=durable)
                slot._take_over(writing=writing, new_id=new_id)
            except BaseException:
                lock.release()
                raise
        _report(found)
        return slot

    def _take_over(self, *, writing: bool, new_id: Callable[[int], bytes]) -> None:
        found, filesystem = self.recovery, self._filesystem
        known = Identity(floor=self.identity.floor) if found.foreign else self.identity
        start = self.acked_fsn + 1
        identity = known.adopt(start, self.next_fsn, new_id(16))
        if writing:
            self.slot_id = new_id(16)
            identity = identity.begin(self.next_fsn, self.slot_id).limited(new_id(16))
        if identity != self.identity or found.identity is None:
            write_identity(filesystem, self.directory, identity)
        self.identity = identity
        self._manifest = Manifest.open(filesystem, self.directory)
        self._watermark = Watermark.open(filesystem, self.directory)
        for item in found.segments:
            segment = FileSegment.recovered(filesystem, item)
            self._segments.append(segment)
            if self._durable:
                if item is found.segments[-1]:  # the others were synced before the next one had a frame
                    segment.rewrite()
                segment.sync()
                segment.dirty = False
            segment.park()
        if self._durable:
            filesystem.sync_dir(self.directory)

    # what a ring asks for

    def recovered(self) -> list[FileSegment]:
        """The segments that were here, oldest first; the last one may be appended to."""
        return self._segments

    def create(self, base: int, size_bytes: int) -> FileSegment:
        """A new file of that size. `base` is where it belongs, or a lower number that it is given up for later."""
        path = self.directory / segment_name(self._generation)
        self._generation += 1
        file = self._filesystem.open(path, Mode.CREATE)
        try:
            flags = FLAG_MANIFEST if self._manifest is not None else 0
            header = Header(base, self._clock.wall_ns() // 1000, flags)
            file.allocate(size_bytes)
            file.pwritev([header.encode()], 0)
            if self._durable:
                file.sync()
                self._filesystem.sync_dir(self.directory)
        except OSError:
            file.close()
            with suppress(OSError):  # the error that brought us here is the one to tell
                self._filesystem.unlink(path)
            raise
        return FileSegment(self._filesystem, file, header, size_bytes)

    def activated(self, base: int) -> None:
        """The segment with that base is the one appended to from now on."""
        if self._manifest is not None:
            self._manifest.move(active_base=base)

    def acknowledged(self, fsn: int) -> None:
        """Remember that the server has everything up to `fsn`; survives a kill."""
        assert self._watermark is not None
        self._watermark.write(fsn)

    def remove(self, segments: Sequence[FileSegment], *, head_base: int) -> None:
        """Delete segments, oldest first, all of whose frames are acknowledged. `head_base`: what is the oldest then."""
        assert self._watermark is not None
        self._watermark.sync()  # `acknowledged` wrote it before the segments could go
        self._filesystem.sync_dir(self.directory)
        if self._manifest is not None:
            self._manifest.move(head_base=head_base)
        for segment in segments:
            segment.park()
            self._filesystem.unlink(segment.path)
        self._filesystem.sync_dir(self.directory)

    def reject(self, rejection: Rejection, frames: Iterable[memoryview]) -> Path:
        """Keep a copy of frames that a server refused for good."""
        return rejected.keep(self._filesystem, self.directory, rejection, frames, identity=self.identity)

    def close(self, segments: Sequence[FileSegment], *, acked_fsn: int, next_fsn: int) -> None:
        """Close all files, delete them if everything is acknowledged, release the lock last, whatever happens."""
        assert self._watermark is not None
        try:
            drained = acked_fsn + 1 >= next_fsn
            kept = Identity() if drained else self.identity.within(acked_fsn + 1, next_fsn)
            write_identity(self._filesystem, self.directory, Identity(acked_fsn + 1, kept.sessions))
            if drained:
                self.remove(segments, head_base=next_fsn)
                self._close_side_files()
                for name in (manifest.NAME, symboldict.NAME, watermark.NAME, LAST_ERROR):
                    with suppress(FileNotFoundError):
                        self._filesystem.unlink(self.directory / name)
            else:
                for segment in segments:
                    if not segment.count:
                        segment.park()
                        self._filesystem.unlink(segment.path)
            self._filesystem.sync_dir(self.directory)
        finally:
            self.abandon(segments)

    def abandon(self, segments: Sequence[FileSegment]) -> None:
        """Close all files and release the lock, without writing anything."""
        for segment in segments:
            segment.park()
        self._close_side_files()
        self._lock.release()

    def _close_side_files(self) -> None:
        if self._watermark is not None:
            self._watermark.close()
        if self._manifest is not None:
            self._manifest.close()

    # what a link and an orphan's drainer ask for

    def session_of(self, fsn: int) -> tuple[bytes, int | None]:
        """The id under which servers know this frame, and the first FSN that has another one (None: none has).

        A connection whose upgrade request names the slot id sends frames of one session, then connects again.
        """
        session = self.identity.of(fsn)
        assert isinstance(session, Session), f"FSN {fsn} was never in this slot"
        return session.slot_id, self.identity.end_of(session)

    def symbols(self) -> list[str]:
        """Symbols by id, for frames of another client that name them by number."""
        return symboldict.read_symbols(self._filesystem, self.directory)

    def note_error(self, reason: str) -> None:
        """Say what ended this attempt; a later start tries again."""
        _note(self._filesystem, self.directory / LAST_ERROR, reason)


def mark_failed(filesystem: Filesystem, directory: Path, reason: str) -> None:
    """Say that a slot can never be sent, so that nobody adopts it again. Nobody else may have it open."""
    _note(filesystem, directory / FAILED, reason)


def _note(filesystem: Filesystem, path: Path, reason: str) -> None:
    with disk_errors(path):
        replace_whole(filesystem, path, reason.encode()[:_REASON_BYTES_MAX])


# --- lock -----------------------------------------------------------------------------------------------------------


def _take_lock(filesystem: Filesystem, directory: Path) -> Lock:
    """The slot's lock. The pid is in a file of its own, where other clients look for it and leave theirs."""
    path = directory / LOCK
    try:
        lock = filesystem.lock(path)
    except Locked as error:
        raise Locked(file=path, holder_pid=holder_pid(filesystem, directory)) from error
    try:
        file = filesystem.open(path, Mode.WRITE)
        file.truncate(0)
        file.close()
        replace_whole(filesystem, directory / LOCK_PID, b"%d\n" % os.getpid(), synced=False)
    except BaseException:
        lock.release()
        raise
    return lock


def holder_pid(filesystem: Filesystem, directory: Path) -> int | None:
    """The process that owned the slot last, as far as `.lock.pid` says."""
    text = (read_whole(filesystem, directory / LOCK_PID) or b"")[:PID_BYTES_MAX].strip()
    return int(text) if text.isdigit() else None


def _report(found: Survey) -> None:
    event(
        "sender.slot.opened",
        level=logging.INFO,
        slot=found.directory,
        segments=len(found.segments),
        frames=found.frames,
        unacknowledged=found.unacknowledged,
        acked_fsn=found.acked_fsn,
        next_fsn=found.next_fsn,
    )
