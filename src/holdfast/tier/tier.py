"""A tier: the object store behind one store, from opening to closing.

    connect ──► probe, read the manifest ──► restore, if the data directory is empty
       │
       └──► attach a store ──► take over (fencing), reserve numbers ──► turns on one thread ──► close

Promises: before `attach` returned, nothing was written but a probe and the entry that takes over. What `on_durable`
hears is durable (G5). When another process takes over, `failure` says so and nothing more is told. `close` gives what
was published a while to get there; what does not is uploaded by the next process.
"""

from __future__ import annotations

import logging
import os
import random
import threading
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from holdfast.clock import NS_PER_S, Clock
from holdfast.config.tier import TierConfig
from holdfast.disk.filesystem import Filesystem
from holdfast.errors import Closed, DamagedObject, HoldfastError, StoreFailed, TierMismatch
from holdfast.model.backoff import Backoff
from holdfast.store.catalog import PublishedSegment
from holdfast.store.copies import CopiesStatistics
from holdfast.store.tiering import TierPort
from holdfast.telemetry import event
from holdfast.tier.copying import fetch
from holdfast.tier.journal import READERS, Journal, probe
from holdfast.tier.manifest import Entry, ManifestState, SegmentNote
from holdfast.tier.objects import Objects
from holdfast.tier.opening import open_objects
from holdfast.tier.persistence import Persistence
from holdfast.tier.restore import RestoreReport, RestoreSettings, is_empty, restore
from holdfast.tier.uploader import Uploader, UploadSettings, UploadStatistics

DRAIN_S = 10.0
"""How long closing waits for what was published."""
FETCH_LIMIT_S = 30.0
"""How long a reader waits for a segment from a tier that does not answer."""

Told = Callable[[dict[str, int]], None]
_T = TypeVar("_T")


@dataclass(frozen=True, slots=True)
class TierStatistics:
    """A picture for people, metrics and tests."""

    url: str
    fenced: bool
    epoch: int
    entries: int
    segments: int
    bytes: int
    """Of the segments that the manifest lists."""
    remote_segments: int
    """Segments of the store that have no file on its disk."""
    remote_bytes: int
    healed: int
    failures: int
    trouble: str | None
    alarm: str | None
    failed: str | None
    upload: UploadStatistics | None
    cache: CopiesStatistics | None
    durable: dict[str, int]


class Tier:
    """One object store, one store. Thread-safe unless said otherwise."""

    def __init__(
        self,
        config: TierConfig,
        objects: Objects,
        *,
        filesystem: Filesystem,
        clock: Clock,
        chance: random.Random,
        pause: Callable[[float], bool] | None = None,
        inline: bool = False,
    ) -> None:
        """Use `connect`; this is for tests that bring their own objects.

        `inline` starts no threads for reading either: every request is made by the caller, in order.
        """
        self._config = config
        self._objects = objects
        self._filesystem = filesystem
        self._clock = clock
        self._persistence = Persistence(
            clock,
            chance,
            backoff=Backoff(config.retry_first_ns / NS_PER_S, config.retry_max_ns / NS_PER_S, spread=-0.5),
            alarm_after_ns=config.alarm_after_ns,
            pause=pause,
        )
        self._inline = inline
        nonce = chance.randbytes(16) if inline else os.urandom(16)
        self._journal = Journal(objects, nonce=nonce.hex(), readers=0 if inline else READERS)
        self.state = ManifestState()
        self._uploader: Uploader | None = None
        self._port: TierPort | None = None
        self._thread: threading.Thread | None = None
        self._listeners: list[Told] = []
        self._waiting = 0
        self._counting = threading.Lock()
        self._closing = False
        self._lagging = False
        self._healed = 0
        self.failure: HoldfastError | None = None

    @classmethod
    def connect(
        cls,
        config: TierConfig,
        *,
        filesystem: Filesystem,
        clock: Clock,
        chance: random.Random,
        until: Callable[[Entry], bool] = lambda _entry: True,
    ) -> Tier:
        """Reach the object store and read its manifest; a store that refuses us is an error at once.

        With `until`, only the first entries count for which that holds: to restore an earlier time.
        """
        tier = cls(config, open_objects(config, filesystem), filesystem=filesystem, clock=clock, chance=chance)
        tier.load(until)
        return tier

    def load(self, until: Callable[[Entry], bool] = lambda _entry: True) -> None:
        """Probe, and read the manifest."""
        limit_s = self._config.connect_timeout_ns / NS_PER_S
        call = self._persistence.call
        call(
            lambda: probe(self._objects, nonce=self._journal.nonce, fencing=self._config.fencing),
            "probe",
            limit_s=limit_s,
        )
        self.state = call(lambda: self._journal.load(until=until), "read the manifest", limit_s=limit_s)
        event("tier.open", url=self._objects.url, entries=self.state.number, segments=len(self.state.segments))

    @property
    def config(self) -> TierConfig:
        """The settings in effect; others need another process."""
        return self._config

    @property
    def url(self) -> str:
        """Where it is."""
        return self._objects.url

    # -- restore and heal -------------------------------------------------------------------------------------------

    def restore_if_empty(self, directory: Path, *, keep_bytes: int = 0) -> RestoreReport | None:
        """Bring the store back if the tier has one and the directory has none.

        So many bytes of the newest segments are fetched, 0 is all; the others are read from the tier.
        """
        if not self.state.number or not is_empty(self._filesystem, directory):
            return None
        return self.restore(directory, keep_bytes=keep_bytes)

    def restore(self, directory: Path, *, keep_bytes: int = 0, as_of_now: bool = True) -> RestoreReport:
        """Make the directory the store of the manifest as it was read.

        Without `as_of_now` it was read up to an earlier entry, and what has gone since is missing.
        """

        def refresh() -> None:
            self._call(lambda: self._journal.refresh(self.state), "read the manifest")

        workers = 0 if self._inline else 2 * self._config.concurrency
        return restore(
            self._objects,
            self.state,
            self._filesystem,
            directory,
            persist=self._call,
            settings=RestoreSettings(workers, keep_bytes, refresh if as_of_now else None),
        )

    def fetch(self, segment: PublishedSegment, target: Path) -> bool:
        """A segment whose file is missing or damaged, from the tier; False if the tier does not have it (G9)."""
        note = self._note_of(segment)
        if note is None:
            return False
        self._call(lambda: fetch(self._objects, note, self._filesystem, target), f"fetch {note.key}")
        with self._counting:
            self._healed += 1
        event("tier.heal", level=logging.WARNING, file=target, key=note.key)
        return True

    # -- reading through --------------------------------------------------------------------------------------------

    @property
    def cache_bytes(self) -> int:
        """How much of the disk copies for readers may take."""
        return self._config.cache_bytes

    @property
    def held_bytes(self) -> int:
        """The size of all segments in the tier."""
        return self.state.bytes

    def holds(self, segment: PublishedSegment) -> bool:
        """Whether the segment is listed and this process is the tier's one writer, so that its local copy may go."""
        return self._port is not None and self.failure is None and self._note_of(segment) is not None

    def copy(self, segment: PublishedSegment, target: Path) -> None:
        """A segment for readers, whole and compared."""
        note = self._needed(segment)
        self._call(lambda: fetch(self._objects, note, self._filesystem, target, durable=False), f"fetch {note.key}")

    def part(self, segment: PublishedSegment, start: int, end: int) -> bytes:
        """Some bytes of a segment for readers."""
        note = self._needed(segment)
        return self._call(lambda: self._objects.range(note.key, start, end), f"read {note.key}")

    def _needed(self, segment: PublishedSegment) -> SegmentNote:
        note = self._note_of(segment)
        if note is None:
            key = f"segment {segment.meta.segment_seq} of channel {segment.meta.channel!r}"
            raise DamagedObject(url=self.url, key=key, reason="is not in the manifest")
        return note

    def _note_of(self, segment: PublishedSegment) -> SegmentNote | None:
        note = self.state.segments.get(segment.meta.segment_seq)
        if note is None or (note.size_bytes, note.crc32c) != (segment.size_bytes, segment.crc32c):
            return None
        return note

    def _call(self, action: Callable[[], _T], what: str) -> _T:
        """For one who waits: not for ever."""
        return self._persistence.call(action, what, limit_s=FETCH_LIMIT_S)

    # -- uploading --------------------------------------------------------------------------------------------------

    def attach(self, port: TierPort, *, threads: bool = True) -> None:
        """Take over the tier for this store and begin. Without `threads` somebody calls `turn`."""
        settings = UploadSettings(
            self._config.concurrency if threads else 0,
            self._config.max_delay_ns,
            self._config.bandwidth_bytes_per_s,
            self._config.sweep_ns,
        )
        self._uploader = Uploader(
            port,
            self._objects,
            self._journal,
            state=self.state,
            persistence=self._persistence,
            clock=self._clock,
            settings=settings,
            on_durable=self._tell,
        )
        self._uploader.take_over(lambda state: self._check(port, state))
        self._port = port
        if threads:
            self._thread = threading.Thread(target=self._run, name="holdfast-tier", daemon=True)
            self._thread.start()

    def _check(self, port: TierPort, state: ManifestState) -> None:
        """Raise unless the manifest is that of this store, and this directory is not older; note who we are."""
        url, number = port.noted("tier_url"), int(port.noted("tier_number") or 0)
        if url != self.url.encode() and not state.number:
            number = 0  # a new tier for an old store
        reason = ""
        if state.store_id not in {"", port.store_id}:
            reason = (
                f"the tier holds store {state.store_id}, the directory store {port.store_id}: give each store a "
                "tier.prefix of its own, or start with an empty directory to restore the one in the tier"
            )
        elif state.number < number:
            reason = f"the manifest ends at entry {state.number}, this store has written {number}: objects are missing"
        elif state.number > number and not (
            # the one entry that was appended when this directory's last process was killed before it noted so
            state.previous == number and state.nonce.encode() == port.noted("tier_nonce")
        ):
            reason = (
                f"the tier is at entry {state.number}, this directory at {number}: another process has used the tier "
                "since; start with an empty directory to restore, or give this store another tier.prefix"
            )
        reason = reason or self._missing(port, state)
        if reason:
            raise TierMismatch(url=self.url, directory=port.directory, reason=reason)
        port.note(tier_url=self.url.encode(), tier_number=state.number, tier_nonce=self._journal.nonce.encode())

    def _missing(self, port: TierPort, state: ManifestState) -> str:
        """What is wrong if the directory counts on segments that are not in this tier."""
        missing = [number for number in port.remote() if number not in state.segments]
        if not missing:
            return ""
        return (
            f"{len(missing)} segments of the directory are only in the tier it was used with before, the first is "
            f"{missing[0]}; go on with tier {(port.noted('tier_url') or b'').decode()}"
        )

    def turn(self) -> None:
        """One turn of the uploader, for a tier without threads."""
        assert self._uploader is not None
        if self._waiting:
            self._uploader.seal_late()
        self._uploader.turn()
        self._note_lag()

    def _run(self) -> None:
        assert self._uploader is not None
        try:
            while not self._closing:
                self._uploader.wake.wait(self._uploader.seconds_to_wait(awaited=bool(self._waiting)))
                self._uploader.wake.clear()
                self.turn()
            self._drain(self._uploader)
        except Closed:
            return
        except Exception as error:  # a tier that stopped in silence would let producers wait for ever
            failure = error if isinstance(error, HoldfastError) else self._as_failure(error)
            event("tier.fail", level=logging.ERROR, error=type(error).__name__, reason=error)
            self.failure = failure

    def _as_failure(self, error: Exception) -> StoreFailed:
        return StoreFailed(file=Path(self.url), reason=f"the tier stopped: {type(error).__name__}: {error}")

    def _drain(self, uploader: Uploader) -> None:
        end_ns = self._clock.monotonic_ns() + int(DRAIN_S * NS_PER_S)
        uploader.turn()
        while not uploader.is_idle and self._clock.monotonic_ns() < end_ns:
            uploader.wake.wait(0.1)
            uploader.wake.clear()
            uploader.turn()
        uploader.keep_readers()

    # -- durability -------------------------------------------------------------------------------------------------

    def on_durable(self, told: Told) -> None:
        """Call `told` with channels and seqs whenever more is durable, on the tier's thread; it must not wait."""
        self._listeners.append(told)

    def durable(self) -> dict[str, int]:
        """Per channel the last seq that is durable."""
        return self._uploader.watermarks() if self._uploader is not None else {}

    def _tell(self, news: dict[str, int]) -> None:
        for told in self._listeners:
            told(news)

    def begin_waiting(self) -> None:
        """Somebody waits for durability from now on: what is open is sealed after `tier.max_delay`."""
        with self._counting:
            self._waiting += 1
        if self._uploader is not None:
            self._uploader.wake.set()

    def end_waiting(self) -> None:
        """One waits no longer."""
        with self._counting:
            self._waiting -= 1

    def statistics(self) -> TierStatistics:
        """A picture of now; cheap, since health checks ask for it."""
        remote = self._port.remote_totals() if self._port is not None else (0, 0)
        return TierStatistics(
            url=self.url,
            fenced=self._config.fencing == "conditional",
            epoch=self.state.epoch,
            entries=self.state.number,
            segments=len(self.state.segments),
            bytes=self.held_bytes,
            remote_segments=remote[0],
            remote_bytes=remote[1],
            healed=self._healed,
            failures=self._persistence.failures,
            trouble=self._persistence.trouble,
            alarm=self._alarm(),
            failed=str(self.failure) if self.failure is not None else None,
            upload=self._uploader.statistics() if self._uploader is not None else None,
            cache=self._port.copies() if self._port is not None else None,
            durable=self.durable(),
        )

    def _alarm(self) -> str | None:
        return self._persistence.alarm or self._lag()

    def _lag(self) -> str | None:
        """What is wrong although the object store answers: it is too slow, or segments cannot be read here."""
        if self._uploader is None:
            return None
        statistics = self._uploader.statistics()
        if statistics.blocked:
            return f"segments that cannot be read are not in the tier: {next(iter(statistics.blocked.values()))}"
        if statistics.lag_s * NS_PER_S >= self._config.alarm_after_ns:
            return f"the oldest event that is not durable has waited {statistics.lag_s:.0f} s"
        return None

    def _note_lag(self) -> None:
        """Once when it begins, and once when it is over."""
        lag = self._lag()
        if lag is not None and not self._lagging:
            event("tier.alarm", level=logging.ERROR, what="lag", reason=lag)
        elif lag is None and self._lagging:
            event("tier.alarm.over", level=logging.WARNING, what="lag")
        self._lagging = lag is not None

    def close(self) -> None:
        """Let what was published get there, for a while, and end. Idempotent."""
        self._closing = True
        if self._uploader is None:
            self._persistence.close()
            return
        self._uploader.wake.set()
        if self._thread is not None:
            self._thread.join(DRAIN_S)
        self._persistence.close()
        if self._thread is not None:
            self._thread.join()
        self._uploader.close()
