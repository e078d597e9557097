"""The one way a segment goes.

The order, and what a crash leaves (docs/design/durability.md, "Evict"):

    1. a `dropped` outcome in the acknowledgement log for everybody who is owed events of it, in one record, synced
                                    the loss is told and counted; the segment is still there and is evicted again,
                                    without a second outcome, since nothing is owed any more
    2. one catalog transaction: the segment leaves, its file is noted as doomed
                                    readers do not see it any more; the file is removed at the next start
    3. delete the file; or rename it to `.bak`, write its description beside it, and call the archive script; sync the
       directory                    a doomed file that is gone is not missed; a script that did not end is called again
    4. forget the doomed name

So a segment that was told as dropped never comes back, and one that comes back was not told (G6).

A segment that the tier has may also lose only its file: it is noted as remote, then the file is deleted. A file that a
crash leaves with such a note is a local copy again (docs/design/durability.md, "Let the local copy go").
"""

from __future__ import annotations

import json
import subprocess
import threading
from collections import Counter
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, nullcontext
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from holdfast.disk.filesystem import Filesystem, Mode
from holdfast.disk.openfiles import OpenFiles
from holdfast.errors import DamagedData
from holdfast.store.catalog import Loss, PublishedSegment, segment_file_name
from holdfast.store.channels import Channel
from holdfast.store.ground import Ground
from holdfast.store.segments.metadata import SegmentMeta
from holdfast.store.segments.reader import SegmentReader
from holdfast.store.subscribers.acklog import NOBODY_ID
from holdfast.store.subscribers.desk import Going, SubscriberDesk
from holdfast.telemetry import event

SCRIPT_TIMEOUT_S = 600
SCRIPTS_AT_ONCE = 4
"""More would compete with the store for the same disk."""
ACKED = "acked"
"""The one reason that is no loss."""
PASSED, INACTIVE = "passed", "inactive"
REMOTE_AGE, REMOTE_SIZE = "remote_age", "remote_size"
HARMLESS = (ACKED, PASSED, INACTIVE, REMOTE_AGE, REMOTE_SIZE)
"""Reasons for which nothing goes that is owed to a subscriber."""


@dataclass(slots=True)
class EvictionStatistics:
    """What went since opening. Losses over all time are in the catalog."""

    evictions: Counter[str] = field(default_factory=Counter)
    evicted_bytes: int = 0
    dropped_segments: int = 0
    subscriber_dropped_segments: int = 0
    archived: int = 0
    archive_failures: int = 0
    released_segments: int = 0
    """Local copies that went because the tier has them."""
    released_bytes: int = 0


class Evictor:
    """Deletes segments; used by one thread at a time."""

    def __init__(self, ground: Ground, desk: SubscriberDesk, open_files: OpenFiles, *, background: bool) -> None:
        """`background`: archive scripts run on threads of their own; otherwise they are waited for."""
        self._ground = ground
        self._desk = desk
        self._open_files = open_files
        self._scripts = ThreadPoolExecutor(SCRIPTS_AT_ONCE, "holdfast-archive") if background else None
        self._counting = threading.Lock()
        self._statistics = EvictionStatistics()
        self.evicting: Callable[[Sequence[PublishedSegment]], AbstractContextManager[None]] = lambda _: nullcontext()

    def statistics(self) -> EvictionStatistics:
        """A picture."""
        with self._counting:
            return replace(self._statistics, evictions=Counter(self._statistics.evictions))

    def evict(self, channel: Channel, segments: Sequence[PublishedSegment], *, reason: str, told: bool = False) -> int:
        """Tell, unless that is done, forget and delete; returns the bytes freed."""
        with self._desk.membership:
            if reason in HARMLESS:  # somebody may have come since they were found to be owed to nobody
                segments = [item for item in segments if not self._desk.owes(channel, item)]
            if not segments:
                return 0
            going = [
                Going(item.meta.first_seq, item.meta.last_seq, item.size_bytes, item.meta.segment_seq)
                for item in segments
            ]
            losses = [] if told else self.tell(channel, going, reason=reason)
            local = [segment for segment in segments if not self._ground.catalog.is_remote(segment.meta.segment_seq)]
            with self.evicting(segments):
                self._ground.catalog.evict(segments, losses)
        freed = sum(segment.size_bytes for segment in segments)
        self._ground.tail.evicted(
            channel,
            events=sum(segment.meta.rows for segment in segments),
            size_bytes=freed,
            local_bytes=sum(segment.size_bytes for segment in local),
        )
        with self._counting:
            self._statistics.evictions[reason] += len(segments)
            self._statistics.evicted_bytes += freed
        event("store.segment.evict", channel=channel.name, count=len(segments), bytes=freed, reason=reason)
        self._remove(channel, {segment.meta.segment_seq: segment.meta for segment in segments})
        return freed

    def release(self, segments: Sequence[PublishedSegment]) -> None:
        """Let local copies go of segments that the tier has; the segments stay."""
        self._ground.catalog.release(segments)
        freed = sum(segment.size_bytes for segment in segments)
        self._ground.tail.released(freed)
        with self._counting:
            self._statistics.released_segments += len(segments)
            self._statistics.released_bytes += freed
        event("store.segment.release", count=len(segments), bytes=freed)
        paths = [self._ground.channels_directory / item.meta.channel / item.file_name for item in segments]
        for path in paths:
            self._open_files.discard(path)
            if self._ground.filesystem.exists(path):
                self._ground.filesystem.unlink(path)
        for folder in sorted({path.parent for path in paths}):
            if self._ground.filesystem.exists(folder):
                self._ground.filesystem.sync_dir(folder)

    def tell(self, channel: Channel, going: Sequence[Going], *, reason: str) -> list[Loss]:
        """Tell everybody who is owed what goes. Returns the loss where that is nobody, to be counted as it goes.

        The caller holds `membership` until it is gone: one who came in between would be owed it, and never told.
        """
        if reason == ACKED:
            return []
        losses = self._desk.unread(channel, going, reason=reason)
        told = self._desk.tell_going(channel, going, reason=reason)
        with self._counting:
            self._statistics.dropped_segments += sum(loss.segments for loss in losses)
            for outcome in told:
                if outcome.segment_seq and outcome.subscriber_id == NOBODY_ID:
                    self._statistics.dropped_segments += 1
                elif outcome.segment_seq:
                    self._statistics.subscriber_dropped_segments += 1
        return losses

    # -- files ------------------------------------------------------------------------------------------------------

    def finish_doomed(self) -> None:
        """What was evicted before a crash, and may have left its file, is removed or archived now."""
        left: dict[int, list[int]] = {}
        for segment_seq, channel_id in self._ground.catalog.doomed().items():
            left.setdefault(channel_id, []).append(segment_seq)
        for channel_id, numbers in left.items():
            channel = self._ground.channels.get_by_id(channel_id)
            if channel is not None:
                self._remove(channel, dict.fromkeys(numbers))

    def _remove(self, channel: Channel, segments: dict[int, SegmentMeta | None]) -> None:
        folder = self._ground.channels_directory / channel.name
        filesystem, script = self._ground.filesystem, channel.limits.archive_script
        archived: list[int] = []
        for number, meta in segments.items():
            path = folder / segment_file_name(number)
            self._open_files.discard(path)
            if script and self._set_aside(path, meta):
                archived.append(number)
            elif filesystem.exists(path):
                filesystem.unlink(path)
        if filesystem.exists(folder):
            filesystem.sync_dir(folder)
        self._ground.catalog.forget_doomed(set(segments) - set(archived))
        for number in archived:
            if self._scripts is None:
                self._archive(script, channel.name, number)
            else:
                self._scripts.submit(self._archive, script, channel.name, number)

    def _set_aside(self, path: Path, meta: SegmentMeta | None) -> bool:
        """Rename a segment to `.bak`, described beside it; False if there is none. Done again after a crash."""
        filesystem = self._ground.filesystem
        data, described = _set_aside_names(path)
        if filesystem.exists(path):
            description = asdict(meta) if meta is not None else _read_description(filesystem, path)
            _write(filesystem, described, json.dumps(description, indent=2).encode())
            filesystem.rename(path, data)
        return filesystem.exists(data)

    def _archive(self, script: str, channel: str, number: int) -> None:
        """Hand a segment and its description to the script, whose job they are then."""
        data, described = _set_aside_names(self._ground.channels_directory / channel / segment_file_name(number))
        try:
            done = subprocess.run(  # noqa: S603  the operator's own script, named in the configuration
                [script, channel, str(data), str(described)], capture_output=True, text=True, errors="replace",
                timeout=SCRIPT_TIMEOUT_S, check=False, stdin=subprocess.DEVNULL,
            )  # fmt: skip
            failed, output = done.returncode != 0, (done.stdout + done.stderr)[-2000:]
        except (OSError, subprocess.SubprocessError) as error:
            failed, output = True, str(error)
        with self._counting:
            self._statistics.archive_failures += failed
            self._statistics.archived += not failed
        event("store.segment.archive", channel=channel, file=data.name, failed=failed, output=output)
        self._ground.catalog.forget_doomed([number])

    def close(self) -> None:
        """Wait for archive scripts under way."""
        if self._scripts is not None:
            self._scripts.shutdown()


def _set_aside_names(path: Path) -> tuple[Path, Path]:
    return path.with_name(path.name + ".bak"), path.with_name(path.stem + ".json.bak")


def _read_description(filesystem: Filesystem, path: Path) -> dict[str, Any]:
    file = filesystem.open(path, Mode.READ)
    try:
        return asdict(SegmentReader.open(file).meta)
    except DamagedData as damage:
        return {"damaged": str(damage)}
    finally:
        file.close()


def _write(filesystem: Filesystem, path: Path, data: bytes) -> None:
    if filesystem.exists(path):
        filesystem.unlink(path)
    file = filesystem.open(path, Mode.CREATE)
    try:
        file.pwritev([data], 0)
        file.sync()
    finally:
        file.close()
