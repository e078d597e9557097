"""The course of a demo: start a writer, kill it, start it again, and at the end compare.

Promise: the writer gets no warning, and the moments of the kills are drawn from the seed before it starts. A writer
that ends by itself is a failure, not a kill. The store is removed, whatever happens, unless it is to be kept.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import IO

import msgspec
import numpy as np
import pyarrow as pa

from holdfast.cli.answer import ExitCode, answer_json
from holdfast.cli.demo.check import ChannelResult, StoredRows, compare
from holdfast.cli.demo.events import ROWS, make_events
from holdfast.cli.demo.ledger import EVENTS_PER_FRAME, Ledger
from holdfast.cli.demo.show import Show
from holdfast.cli.demo.writer import CONFIG, Answered, Closed, Message, Opened
from holdfast.clock import NS_PER_S, Clock, SystemClock
from holdfast.disk.local import LocalFilesystem
from holdfast.errors import BadRequest
from holdfast.store.store import Store
from holdfast.store.verify import VerifyReport, verify_store

START_S_MAX = 60.0
"""A writer that has not answered its first frame by then will not; a busy machine takes a few seconds."""
TICK_S = 0.1


@dataclass(frozen=True, slots=True)
class Life:
    """One writer, from its start to its end."""

    number: int
    killed: bool
    seconds: float
    opened: Opened
    accepted_events: int
    unanswered_frames: int
    resent_frames: int
    duplicate_frames: int


@dataclass(frozen=True, slots=True)
class DemoResult:
    """What happened, and whether the promise held. Counts are events unless they say frames."""

    held: bool
    seed: int
    directory: str | None
    kills: int
    writing_seconds: float
    sent: int
    accepted: int
    stored: int
    lost: int
    duplicated: int
    out_of_order: int
    changed: int
    resent_frames: int
    duplicate_frames: int
    accepted_per_second: float
    read_per_second: float
    lives: tuple[Life, ...]
    channels: tuple[ChannelResult, ...]
    verify: VerifyReport


def run(*, seconds: float, kills: int, directory: Path | None, keep: bool, seed: int | None, as_json: bool) -> ExitCode:
    """Run the demo and show it; NO if anything accepted is not there once, in order, as it was sent."""
    seed = int.from_bytes(os.urandom(2), "little") if seed is None else seed
    show = Show(quiet=as_json)
    with _place(directory, keep=keep) as store:
        show.begin(store, seconds=seconds, kills=kills, seed=seed)
        demo = _Demo(store, show, clock=SystemClock())
        with show.moving(seconds):
            demo.write(_phases(seconds, kills, Random(seed)))
        result = demo.result(seed=seed, kept=keep)
        show.result(result)
        if keep:
            show.keep(store)
    if as_json:
        answer_json("demo", result, ok=result.held)
    return ExitCode.DONE if result.held else ExitCode.NO


@contextmanager
def _place(directory: Path | None, *, keep: bool) -> Iterator[Path]:
    """A directory that was not there or was empty."""
    if directory is None:
        place = Path(tempfile.mkdtemp(prefix="holdfast-demo-"))
    else:
        if directory.exists() and (not directory.is_dir() or any(directory.iterdir())):
            raise BadRequest(f"{directory} is not an empty directory; give another --dir")
        directory.mkdir(parents=True, exist_ok=True)
        place = directory.absolute()
    try:
        yield place
    finally:
        if not keep:
            shutil.rmtree(place, ignore_errors=True)


def _phases(seconds: float, kills: int, chance: Random) -> list[float]:
    """How long each life writes: random parts of the whole, none shorter than a third of the mean."""
    weights = [chance.uniform(0.5, 1.5) for _ in range(kills + 1)]
    return [seconds * weight / sum(weights) for weight in weights]


class _Demo:
    """The parent of all writers."""

    def __init__(self, store: Path, show: Show, *, clock: Clock) -> None:
        self._store = store
        self._show = show
        self._clock = clock
        self._ledger = Ledger()
        self._lives: list[Life] = []

    def write(self, phases: list[float]) -> None:
        """One life after the other; all but the last end by a kill."""
        for number, phase in enumerate(phases, start=1):
            life = self._live(number, phase, kill=number < len(phases))
            self._lives.append(life)
            self._show.ended(life)

    def _live(self, number: int, phase: float, *, kill: bool) -> Life:
        ledger = self._ledger
        before = (ledger.answered_fsn, ledger.resent, ledger.duplicates)
        with tempfile.TemporaryFile() as errors:
            writer = _Writer(self._store, before[0] + 1, errors, note=ledger.note)
            try:
                opened = writer.wait_until_writing()
                self._show.opened(number, opened)
                started_ns = self._clock.monotonic_ns()
                self._watch(number, writer, until_ns=started_ns + int(phase * NS_PER_S))
                writer.end(kill=kill)
            finally:
                writer.destroy()
        return Life(
            number=number,
            killed=kill,
            seconds=round((self._clock.monotonic_ns() - started_ns) / NS_PER_S, 2),
            opened=opened,
            accepted_events=(ledger.answered_fsn - before[0]) * EVENTS_PER_FRAME,
            unanswered_frames=ledger.sent_fsn - ledger.answered_fsn,
            resent_frames=ledger.resent - before[1],
            duplicate_frames=ledger.duplicates - before[2],
        )

    def _watch(self, number: int, writer: _Writer, *, until_ns: int) -> None:
        before_ns = self._clock.monotonic_ns()
        while (left_ns := until_ns - self._clock.monotonic_ns()) > 0:
            if writer.ended.wait(min(TICK_S, left_ns / NS_PER_S)):
                raise writer.failure()
            now_ns = self._clock.monotonic_ns()
            self._show.progress(
                number, accepted=self._ledger.answered_fsn * EVENTS_PER_FRAME, seconds=(now_ns - before_ns) / NS_PER_S
            )
            before_ns = now_ns

    # -- checking ---------------------------------------------------------------------------------------------------

    def result(self, *, seed: int, kept: bool) -> DemoResult:
        """Verify every byte, then read everything back and compare."""
        report = verify_store(LocalFilesystem(), self._store)
        started_ns = self._clock.monotonic_ns()
        with Store.open(self._store, CONFIG) as store:
            channels = tuple(self._compare(store, channel) for channel in ROWS)
        reading_s = (self._clock.monotonic_ns() - started_ns) / NS_PER_S
        writing_s = sum(life.seconds for life in self._lives)
        accepted, stored = sum(row.accepted for row in channels), sum(row.stored for row in channels)
        return DemoResult(
            held=report.intact and accepted > 0 and all(row.flawless for row in channels),
            seed=seed,
            directory=str(self._store) if kept else None,
            kills=sum(life.killed for life in self._lives),
            writing_seconds=round(writing_s, 2),
            sent=sum(row.sent for row in channels),
            accepted=accepted,
            stored=stored,
            lost=sum(row.lost for row in channels),
            duplicated=sum(row.duplicated for row in channels),
            out_of_order=sum(row.out_of_order for row in channels),
            changed=sum(row.moved + row.altered + row.invented for row in channels),
            resent_frames=self._ledger.resent,
            duplicate_frames=self._ledger.duplicates,
            accepted_per_second=round(accepted / max(writing_s, 1e-9)),
            read_per_second=round(stored / max(reading_s, 1e-9)),
            lives=tuple(self._lives),
            channels=channels,
            verify=report,
        )

    def _compare(self, store: Store, channel: str) -> ChannelResult:
        stored = read_back(store, channel) if channel in store.channels() else StoredRows(_NONE, _NONE)
        sent, accepted = self._ledger.sent_events(channel), self._ledger.accepted(channel)
        return compare(channel, sent=sent, accepted=accepted, stored=stored)


_NONE = np.array([], dtype=np.int64)


def read_back(store: Store, channel: str) -> StoredRows:
    """Every event of a channel; its value is compared with the one that belongs to its id."""
    ids, seqs, altered = [_NONE], [_NONE], 0
    for batch in store.read(channel, system=["_seq"]):
        ids.append(batch.column("id").to_numpy())
        seqs.append(batch.column("_seq").to_numpy())
        expected = make_events(channel, ids[-1])
        if not batch.select(expected.schema.names).equals(expected):
            altered += count_different(batch, expected)
    return StoredRows(np.concatenate(ids), np.concatenate(seqs), altered)


def count_different(batch: pa.RecordBatch, expected: pa.RecordBatch) -> int:
    """Rows in which any column differs."""
    names = expected.schema.names
    pairs = zip(batch.select(names).to_pylist(), expected.to_pylist(), strict=True)
    return sum(found != wanted for found, wanted in pairs)


class _Writer:
    """A writer process and the thread that reads its pipe."""

    def __init__(self, store: Path, first_fsn: int, errors: IO[bytes], *, note: Callable[[Message], None]) -> None:
        self._note = note
        self._errors = errors
        self._writing = threading.Event()
        self._closed = False
        self._broken: Exception | None = None
        self._opened: Opened | None = None
        self.ended = threading.Event()
        self._process = subprocess.Popen(  # noqa: S603  our own module
            [sys.executable, "-m", "holdfast.cli.demo.writer", str(store), str(first_fsn)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=errors,
        )
        self._reader = threading.Thread(target=self._read, name="demo-reader", daemon=True)
        self._reader.start()

    def _read(self) -> None:
        decoder = msgspec.json.Decoder(type=Message)
        assert self._process.stdout is not None
        try:
            for line in self._process.stdout:
                self._take(decoder.decode(line))
        except (msgspec.DecodeError, ChildProcessError) as error:
            self._broken = error
        finally:
            self.ended.set()
            self._writing.set()

    def _take(self, message: Message) -> None:
        self._note(message)
        if isinstance(message, Opened):
            self._opened = message
        elif isinstance(message, Answered):
            self._writing.set()
        elif isinstance(message, Closed):
            self._closed = True

    def wait_until_writing(self) -> Opened:
        """Return once the first frame was answered: what the writer found when it opened the store."""
        if not self._writing.wait(START_S_MAX) or self.ended.is_set() or self._opened is None:
            raise self.failure()
        return self._opened

    def end(self, *, kill: bool) -> None:
        """Kill without warning, or close the writer's input and let it end in order; then read what is in the pipe."""
        assert self._process.stdin is not None
        if kill:
            self._process.kill()
        else:
            self._process.stdin.close()
        self._reader.join(START_S_MAX)
        code = self._process.wait(START_S_MAX)
        if self._broken is not None or (not kill and (code != 0 or not self._closed)):
            raise self.failure()

    def failure(self) -> ChildProcessError:
        """Why the writer did not do its part."""
        self.destroy()
        self._errors.seek(0)
        lines = self._errors.read().decode(errors="replace").strip().splitlines()
        said = str(self._broken) if self._broken else lines[-1] if lines else "it said nothing"
        return ChildProcessError(f"the demo's writer ended by itself with code {self._process.returncode}: {said}")

    def destroy(self) -> None:
        """End the process and its pipes, in whatever state they are. Idempotent."""
        self._process.kill()
        self._process.wait()
        self._reader.join()
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                pipe.close()
