"""The one way a segment goes.

The order, and what a crash leaves (docs/design/durability.md, "Evict"):

    1. for each subscriber that is owed events of it: a `dropped` outcome in the acknowledgement log, synced
                                    the loss is told; the segment is still there and is evicted again, without a second
                                    outcome, since nothing is owed any more
    2. one catalog transaction: the segment leaves, its file is noted as doomed, the loss is added to the totals
                                    readers do not see it any more; the file is deleted at the next start
    3. delete the file, or rename it to `.bak` and call the archive script; sync the directory
                                    a doomed file that is gone is not missed
    4. forget the doomed names

So a segment that was told as dropped never comes back, and one that comes back was not told (G6).
"""

from __future__ import annotations

import json
import subprocess
import threading
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path

from holdfast.disk.filesystem import Filesystem, Mode
from holdfast.disk.openfiles import OpenFiles
from holdfast.model.intervals import IntervalSet
from holdfast.store.catalog import Loss, PublishedSegment
from holdfast.store.channels import Channel
from holdfast.store.ground import Ground
from holdfast.store.subscribers.acklog import OutcomeRecord
from holdfast.store.subscribers.desk import SPANS_MAX, SubscriberDesk
from holdfast.store.subscribers.progress import Outcome
from holdfast.telemetry import event

SCRIPT_TIMEOUT_S = 600
NOBODY = ""
"""Stands for the channel as a whole in the totals: events nobody confirmed, counted once."""


@dataclass(slots=True)
class EvictionStatistics:
    """What went since opening. Losses over all time are in the catalog."""

    evictions: Counter[str] = field(default_factory=Counter)
    evicted_bytes: int = 0
    dropped_segments: int = 0
    subscriber_dropped_segments: int = 0
    archived: int = 0
    archive_failures: int = 0


class Evictor:
    """Deletes segments; used by one thread at a time."""

    def __init__(self, ground: Ground, desk: SubscriberDesk, open_files: OpenFiles, *, background: bool) -> None:
        """`background`: archive scripts run on a thread of their own; otherwise they are waited for."""
        self._ground = ground
        self._desk = desk
        self._open_files = open_files
        self._background = background
        self._scripts: list[threading.Thread] = []
        self.statistics = EvictionStatistics()

    def evict(self, channel: Channel, segments: Sequence[PublishedSegment], *, reason: str, script: str) -> int:
        """Tell, forget and delete; returns the bytes freed."""
        if not segments:
            return 0
        losses = self._tell(channel, segments, reason)
        self._ground.catalog.evict(segments, losses)
        freed = sum(segment.size_bytes for segment in segments)
        self._ground.tail.evicted(channel, events=sum(segment.meta.rows for segment in segments), size_bytes=freed)
        self.statistics.evictions[reason] += len(segments)
        self.statistics.evicted_bytes += freed
        event("store.segment.evict", channel=channel.name, count=len(segments), bytes=freed, reason=reason)
        for segment in segments:
            self._remove(channel.name, segment, script)
        self._ground.filesystem.sync_dir(self._ground.channels_directory / channel.name)
        self._ground.catalog.forget_doomed([segment.meta.segment_seq for segment in segments])
        return freed

    def tell_dropped(self, channel: Channel, first_seq: int, last_seq: int, *, reason: str) -> None:
        """Events below a channel's new floor are gone for everybody who is still owed them."""
        losses = self._settle_dropped(channel, [(first_seq, last_seq)], reason, segments=0, size_bytes=0)
        if losses:
            self._ground.catalog.add_losses(losses)

    def _tell(self, channel: Channel, segments: Sequence[PublishedSegment], reason: str) -> list[Loss]:
        losses: list[Loss] = []
        for segment in segments:
            span = (segment.meta.first_seq, segment.meta.last_seq)
            found = self._settle_dropped(channel, [span], reason, segments=1, size_bytes=segment.size_bytes)
            losses += found
            self.statistics.dropped_segments += bool(found)
            self.statistics.subscriber_dropped_segments += sum(1 for loss in found if loss.subscriber != NOBODY)
        return losses

    def _settle_dropped(
        self, channel: Channel, spans: list[tuple[int, int]], reason: str, *, segments: int, size_bytes: int
    ) -> list[Loss]:
        """Write `dropped` for everybody who is owed events of `spans`; returns the losses, once per subscriber."""
        registry, clock = self._desk.registry, self._ground.clock
        total = sum(last - first + 1 for first, last in spans)
        lost = IntervalSet()
        outcomes: list[OutcomeRecord] = []
        losses: list[Loss] = []
        with registry.lock:
            owed = [
                (state, [part for first, last in spans for part in progress.owed(first, last)])
                for state, progress in registry.followers(channel)
            ]
        for state, parts in owed:
            if not parts:
                continue
            outcomes += [
                OutcomeRecord(clock.wall_ns(), state.note.subscriber_id, channel.id, int(Outcome.DROPPED), 0,
                              tuple(parts[at : at + SPANS_MAX]), reason)
                for at in range(0, len(parts), SPANS_MAX)
            ]  # fmt: skip
            events = sum(last - first + 1 for first, last in parts)
            share = size_bytes * events // total
            losses.append(Loss(channel.name, state.note.name, reason, segments=segments, events=events, bytes=share))
            for first, last in parts:
                lost.add(first, last)
        if not outcomes:
            return []
        self._desk.record(outcomes)
        events = sum(last - first + 1 for first, last in lost)
        share = size_bytes * events // total
        losses.append(Loss(channel.name, NOBODY, reason, segments=segments, events=events, bytes=share))
        return losses

    # -- files ------------------------------------------------------------------------------------------------------

    def _remove(self, channel: str, segment: PublishedSegment, script: str) -> None:
        path = self._ground.channels_directory / channel / segment.file_name
        self._open_files.discard(path)
        if not self._ground.filesystem.exists(path):
            return
        if script:
            self._archive(channel, path, segment, script)
        else:
            self._ground.filesystem.unlink(path)

    def _archive(self, channel: str, path: Path, segment: PublishedSegment, script: str) -> None:
        """Rename the segment and its description to `.bak` and hand them to the script, whose job they are then."""
        filesystem = self._ground.filesystem
        data = path.with_name(path.name + ".bak")
        described = path.with_name(path.stem + ".json.bak")
        _write(filesystem, described, json.dumps(asdict(segment.meta), indent=2).encode())
        filesystem.rename(path, data)
        filesystem.sync_dir(path.parent)
        if not self._background:
            self._call(script, channel, data, described)
            return
        self._scripts = [thread for thread in self._scripts if thread.is_alive()]
        thread = threading.Thread(target=self._call, args=(script, channel, data, described), name="holdfast-archive")
        thread.start()
        self._scripts.append(thread)

    def _call(self, script: str, channel: str, data: Path, described: Path) -> None:
        try:
            done = subprocess.run(  # noqa: S603  the operator's own script, named in the configuration
                [script, channel, str(data), str(described)], capture_output=True, text=True, errors="replace",
                timeout=SCRIPT_TIMEOUT_S, check=False,
            )  # fmt: skip
            failed, output = done.returncode != 0, (done.stdout + done.stderr)[-2000:]
        except (OSError, subprocess.SubprocessError) as error:
            failed, output = True, str(error)
        if failed:
            self.statistics.archive_failures += 1
        else:
            self.statistics.archived += 1
        event("store.segment.archive", channel=channel, file=data.name, failed=failed, output=output)

    def close(self) -> None:
        """Wait for archive scripts under way."""
        for thread in self._scripts:
            thread.join()


def _write(filesystem: Filesystem, path: Path, data: bytes) -> None:
    if filesystem.exists(path):
        filesystem.unlink(path)
    file = filesystem.open(path, Mode.CREATE)
    try:
        file.pwritev([data], 0)
        file.sync()
    finally:
        file.close()
