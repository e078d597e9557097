"""Dead letters: frames that a server refused for good are copied to `<slot>/rejected/` before the sender goes on.

    <slot>/rejected/<slot id>-fsn-<first>-<last>/
      sf-0000000000000000.sfa     the frames, with their FSNs and payloads unchanged
      .ack-watermark              before the first of them
      .slot-id                    the ids they are known under
      .symbol-dict                a copy, if the slot has one
      rejection.json              who said no, when and why

So a span is a slot of its own: what reads, drains or exports slots does the same with it.

Promise: when `keep` returns, the copy survives a power cut, whole. It is built in a directory whose name begins with
`.tmp-` and renamed; a leftover of that name is removed at the next start. Keeping the same span again changes
nothing, so a crash between the copy and the acknowledgement costs nothing.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import msgspec

from holdfast.disk.filesystem import Filesystem, Mode
from holdfast.disk.smallfiles import read_whole, replace_whole
from holdfast.errors import CorruptData
from holdfast.sender import symboldict
from holdfast.sender.identity import Identity, write_identity
from holdfast.sender.segment import FileSegment, Header
from holdfast.sender.watermark import Watermark

DIRECTORY = "rejected"
REJECTION = "rejection.json"
_PART = ".tmp-"
_SIZE_BYTES = 2**62  # a copy is not allocated ahead, so it has no size to fit into


class Rejection(msgspec.Struct, frozen=True, kw_only=True):
    """Why frames were given up."""

    first_fsn: int
    last_fsn: int
    category: str
    message: str
    policy: str = "drop"
    status: int = -1
    channel: str | None = None
    detected_at_ns: int = 0


class RejectedSpan(msgspec.Struct, frozen=True):
    """A kept span: a slot directory, and why it is there."""

    path: Path
    rejection: Rejection


def keep(
    filesystem: Filesystem,
    slot: Path,
    rejection: Rejection,
    frames: Iterable[memoryview],
    *,
    identity: Identity,
) -> Path:
    """Copy a span; returns its directory."""
    session = identity.of(rejection.first_fsn)
    owner = session.slot_id.hex() if session else "unknown"
    parent = slot / DIRECTORY
    target = parent / f"{owner}-fsn-{rejection.first_fsn}-{rejection.last_fsn}"
    if filesystem.exists(target):
        return target
    filesystem.makedir(parent)
    filesystem.sync_dir(slot)
    part = parent / f"{_PART}{target.name}"
    _remove(filesystem, part)
    filesystem.makedir(part)
    _write_frames(filesystem, part, rejection, frames)
    _write_watermark(filesystem, part, rejection.first_fsn - 1)
    _copy_symbols(filesystem, slot, part)
    replace_whole(filesystem, part / REJECTION, msgspec.json.encode(rejection))
    write_identity(filesystem, part, identity.within(rejection.first_fsn, rejection.last_fsn + 1))
    filesystem.rename(part, target)
    filesystem.sync_dir(parent)
    return target


def read_rejected(filesystem: Filesystem, slot: Path) -> list[RejectedSpan]:
    """Every kept span of a slot, by name; `CorruptData` if one does not say why it is there."""
    parent = slot / DIRECTORY
    if not filesystem.exists(parent):
        return []
    found = []
    for entry in filesystem.listdir(parent):
        if entry.is_dir and not entry.name.startswith(_PART):
            path = parent / entry.name
            found.append(RejectedSpan(path, decode(path / REJECTION, read_whole(filesystem, path / REJECTION) or b"")))
    return found


def decode(file: Path, data: bytes) -> Rejection:
    """What such a file says."""
    try:
        return msgspec.json.decode(data, type=Rejection)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise CorruptData(file=file, offset_bytes=0, reason=f"is not a whole rejection: {error}") from None


def remove_unfinished(filesystem: Filesystem, slot: Path) -> None:
    """Delete what a crash left of copies that were not finished. The caller holds the slot's lock."""
    parent = slot / DIRECTORY
    if filesystem.exists(parent):
        for entry in filesystem.listdir(parent):
            if entry.name.startswith(_PART):
                _remove(filesystem, parent / entry.name)


def _remove(filesystem: Filesystem, directory: Path) -> None:
    if filesystem.exists(directory):
        for entry in filesystem.listdir(directory):
            filesystem.unlink(directory / entry.name)
        filesystem.rmdir(directory)


def _write_frames(filesystem: Filesystem, part: Path, rejection: Rejection, frames: Iterable[memoryview]) -> None:
    file = filesystem.open(part / "sf-0000000000000000.sfa", Mode.CREATE)
    try:
        header = Header(rejection.first_fsn, rejection.detected_at_ns // 1000)
        file.pwritev([header.encode()], 0)
        segment = FileSegment(filesystem, file, header, _SIZE_BYTES)
        for frame in frames:
            segment.append([frame], len(frame))
        assert segment.next_fsn == rejection.last_fsn + 1, "the span and its frames differ"
        file.sync()
    finally:
        file.close()


def _write_watermark(filesystem: Filesystem, part: Path, fsn: int) -> None:
    watermark = Watermark.open(filesystem, part)
    try:
        watermark.write(fsn)
        watermark.sync()
    finally:
        watermark.close()


def _copy_symbols(filesystem: Filesystem, slot: Path, part: Path) -> None:
    symbols = read_whole(filesystem, slot / symboldict.NAME)
    if symbols is not None:
        replace_whole(filesystem, part / symboldict.NAME, symbols)
