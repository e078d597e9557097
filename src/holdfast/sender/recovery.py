"""What a slot directory holds after whatever happened to it, and what must be done before it is used again.

`survey` reads everything and changes nothing; `settle` does what the survey found to be due. So a slot that must be
refused is left exactly as it was found. The caller holds the slot's lock for `settle`; a tool may survey without it.

The steps of `survey`:

1. Every `*.sfa` file: header, then frame by frame with its checksum. The first place without an intact frame is the
   end. A file that is no segment is set aside later; a file without frames and with nothing behind its header is a
   spare.
2. Files with frames, sorted by base, must follow each other without a gap (below the watermark one is what a trim
   left), and agree with the manifest if there is one. Otherwise the slot is refused: `CorruptData` names the file
   and the byte.
3. The acknowledged FSN is the higher of "before the oldest frame" and the watermark. A watermark beyond the last
   frame is ignored and reported: frames are missing which the server has.
4. Which ids the frames are known under (`identity`).

The steps of `settle`: damaged files are renamed `.corrupt`, spares deleted, and the last segment is cut behind its
last frame and zero from there on, so that no older frame can ever appear behind a new one. If intact frames stand
behind the place of the cut, the cut bytes are kept in a file `.cut`.

Every error of the disk ends the recovery; none is taken for a damaged file.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import NoReturn

from holdfast.disk.filesystem import Filesystem, Mode
from holdfast.disk.smallfiles import replace_whole
from holdfast.errors import CorruptData, UnsupportedFormat
from holdfast.sender import manifest, symboldict, watermark
from holdfast.sender.identity import NAME as SLOT_ID
from holdfast.sender.identity import Identity, read_identity
from holdfast.sender.manifest import Span, check_span, read_manifest
from holdfast.sender.segment import FLAG_MANIFEST, HEADER_BYTES, MAGIC, VERSION, Scan, read_batch, scan
from holdfast.sender.watermark import read_watermark
from holdfast.telemetry import event

SUFFIX = ".sfa"
LEGACY_FIRST = "sf-initial.sfa"
"""What some clients call their first segment."""
NOTHING = -1
"""The FSN before the first one: nothing published, nothing acknowledged."""

_GENERATION = re.compile(r"sf-([0-9a-f]{16})\.sfa")


def segment_name(generation: int) -> str:
    """File name of the segment that was allocated as number `generation`."""
    return f"sf-{generation:016x}{SUFFIX}"


@dataclass(frozen=True, slots=True)
class Damage:
    """A file that is not what its name says."""

    path: Path
    reason: str


@dataclass(frozen=True, slots=True)
class Survey:
    """What a slot directory holds."""

    directory: Path
    segments: tuple[Scan, ...]
    """Files with frames, oldest first; the last one is appended to."""
    spares: tuple[Scan, ...]
    """Files that hold nothing any more: prepared and not used, or acknowledged and on their way out."""
    damaged: tuple[Damage, ...]
    acked_fsn: int
    watermark_ignored: str
    span: Span | None
    identity: Identity | None
    """None when `.slot-id` is damaged."""
    next_fsn: int
    next_generation: int
    foreign: bool
    """Whether another client has been here since, so that what `identity` says of the frames cannot be trusted."""
    missing: range
    """FSNs below the oldest frame that nothing here calls acknowledged: frames lost in a power cut, or by hand."""

    @property
    def frames(self) -> int:
        """Frames that are here, acknowledged or not."""
        return sum(found.count for found in self.segments)

    @property
    def unacknowledged(self) -> int:
        """Frames that a server still has to acknowledge."""
        return self.next_fsn - 1 - self.acked_fsn if self.segments else 0

    @property
    def torn(self) -> Scan | None:
        """The last segment, if something that is no frame stands behind its last frame."""
        return self.segments[-1] if self.segments and self.segments[-1].flaw else None


# --- looking --------------------------------------------------------------------------------------------------------


def survey(filesystem: Filesystem, directory: Path) -> Survey:
    """Read a slot directory; `CorruptData` when it may not be used."""
    names = [entry.name for entry in filesystem.listdir(directory) if not entry.is_dir]
    found: list[Scan] = []
    damaged: list[Damage] = []
    for name in names:
        if name.endswith(SUFFIX):
            item = _scan_file(filesystem, directory / name)
            (found if isinstance(item, Scan) else damaged).append(item)  # type: ignore[arg-type]
    damaged += [Damage(item.path, f"no intact frame: {item.flaw}") for item in found if not item.count and item.flaw]
    marked = read_watermark(filesystem, directory)
    mark = marked.values[0] if marked else NOTHING
    ordered = sorted((item for item in found if item.count), key=lambda item: item.header.base)
    leftovers, segments = _contiguous(ordered, mark)
    spares = tuple(item for item in found if not item.count and not item.flaw)
    span = _checked_span(filesystem, directory, segments)
    identity = read_identity(filesystem, directory)
    if segments:
        next_fsn, before = segments[-1].next_fsn, segments[0].header.base - 1
        ignored = f"it says {mark}, but the last frame is {next_fsn - 1}" if mark >= next_fsn else ""
        acked = before if ignored else max(before, mark)
    else:
        next_fsn, ignored = max(identity.floor if identity else 0, mark + 1), ""
        acked = next_fsn - 1
    foreign = span is not None or symboldict.NAME in names or LEGACY_FIRST in names
    floor = max(mark + 1, identity.floor if identity else 0)
    ours = identity is not None and bool(identity.sessions) and not foreign and not ignored
    generations = [int(match[1], 16) for match in map(_GENERATION.match, names) if match]
    return Survey(
        directory=directory,
        segments=segments,
        spares=(*leftovers, *spares),
        damaged=tuple(damaged),
        acked_fsn=acked,
        watermark_ignored=ignored,
        span=span,
        identity=identity,
        next_fsn=next_fsn,
        next_generation=max(generations, default=-1) + 1,
        foreign=foreign,
        missing=range(floor, segments[0].header.base if segments and ours else floor),
    )


def _scan_file(filesystem: Filesystem, path: Path) -> Scan | Damage:
    file = filesystem.open(path, Mode.READ)
    try:
        head = file.pread(HEADER_BYTES, 0)
        if len(head) == HEADER_BYTES and head.startswith(MAGIC) and head[4] > VERSION:
            raise UnsupportedFormat(file=path, found=head[4], supported=VERSION)
        found = scan(file)
    finally:
        file.close()
    return Damage(path, found) if isinstance(found, str) else found


def _contiguous(ordered: list[Scan], mark: int) -> tuple[tuple[Scan, ...], tuple[Scan, ...]]:
    """Leftovers of a trim, and the segments that follow each other without a gap.

    A trim deletes several files and syncs their names once, so a power cut may bring an older one back without a newer
    one. All are below the watermark, which was synced first; a gap there means nothing. Any other gap is fatal.
    """
    start = 0
    for place, (before, after) in enumerate(pairwise(ordered), start=1):
        if before.next_fsn == after.header.base:
            continue
        if before.next_fsn <= mark + 1 <= ordered[-1].next_fsn and before.next_fsn < after.header.base:
            start = place
        else:
            _refuse_gap(before, after)
    return tuple(ordered[:start]), tuple(ordered[start:])


def _refuse_gap(before: Scan, after: Scan) -> NoReturn:
    kind = "overlaps" if before.next_fsn > after.header.base else "does not follow"
    reason = (
        f"non-contiguous recovered segment sequence: it starts at FSN {after.header.base} and {kind} "
        f"{before.path.name}, which ends before FSN {before.next_fsn} at byte {before.end}"
        + (f" ({before.flaw})" if before.flaw else "")
        + "; nothing was changed"
    )
    raise CorruptData(file=after.path, offset_bytes=8, reason=reason)


def _checked_span(filesystem: Filesystem, directory: Path, segments: tuple[Scan, ...]) -> Span | None:
    span = read_manifest(filesystem, directory)
    if span is None:
        marked = next((item for item in segments if item.header.flags & FLAG_MANIFEST), None)
        if marked is not None:
            reason = f"its flags ask for {manifest.NAME}, which is not there; nothing was changed"
            raise CorruptData(file=marked.path, offset_bytes=5, reason=reason)
        return None
    if segments:
        check_span(directory, span, lowest_base=segments[0].header.base, end=segments[-1].next_fsn)
    return span


def frames_of(filesystem: Filesystem, found: Survey, *, start_fsn: int = 0) -> Iterator[tuple[int, memoryview]]:
    """FSN and payload of every frame of a surveyed slot from `start_fsn` on; for tools."""
    for segment in found.segments:
        if segment.next_fsn <= start_fsn:
            continue
        file = filesystem.open(segment.path, Mode.READ)
        try:
            fsn, offset = segment.header.base, HEADER_BYTES
            while offset < segment.end:
                batch = read_batch(file, offset, segment.end)
                if not batch.frames:
                    raise CorruptData(file=segment.path, offset_bytes=offset, reason=batch.flaw)
                offset = batch.next_offset
                for frame in batch.frames:
                    if fsn >= start_fsn:
                        yield fsn, frame
                    fsn += 1
        finally:
            file.close()


# --- setting right --------------------------------------------------------------------------------------------------


def settle(filesystem: Filesystem, found: Survey) -> None:
    """Do what the survey found to be due; all of it survives a power cut when this returns."""
    for damage in found.damaged:
        _set_aside(filesystem, damage)
    if found.identity is None:
        _set_aside(filesystem, Damage(found.directory / SLOT_ID, "its checksum is wrong"))
    for spare in found.spares:
        filesystem.unlink(spare.path)
    if not found.segments:
        with suppress(FileNotFoundError):
            filesystem.unlink(found.directory / watermark.NAME)
    if found.torn is not None:
        _cut(filesystem, found.torn)
    if found.watermark_ignored:
        event("sender.watermark.ignored", level=logging.WARNING, slot=found.directory, reason=found.watermark_ignored)
    if found.missing:
        event(
            "sender.frames.missing",
            level=logging.WARNING,
            slot=found.directory,
            first_fsn=found.missing.start,
            last_fsn=found.missing.stop - 1,
        )
    filesystem.sync_dir(found.directory)


def _set_aside(filesystem: Filesystem, damage: Damage) -> None:
    target = damage.path.with_name(f"{damage.path.name}.corrupt")
    event("sender.slot.damaged", level=logging.WARNING, file=damage.path, reason=damage.reason, kept_as=target.name)
    filesystem.rename(damage.path, target)


def _cut(filesystem: Filesystem, torn: Scan) -> None:
    """Make the file zero behind its last frame."""
    kept = torn.path.with_name(f"{torn.path.name}.cut") if torn.intact_after else None
    event(
        "sender.slot.torn",
        level=logging.WARNING,
        file=torn.path,
        offset_bytes=torn.end,
        reason=torn.flaw,
        intact_frames_after=torn.intact_after,
        kept_as=kept.name if kept else "(nothing)",
    )
    file = filesystem.open(torn.path, Mode.WRITE)
    try:
        if kept is not None:
            replace_whole(filesystem, kept, file.pread(torn.size_bytes - torn.end, torn.end).rstrip(b"\0"))
        file.truncate(torn.end)
        file.sync()
        file.allocate(torn.size_bytes)
        file.sync()
    finally:
        file.close()
