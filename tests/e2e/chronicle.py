"""What producers, consumers and looks into the store said, as one history for the checker.

    Producer ── published, answered ──┐
    Reader ──── got, acks, told ──────┼──► in the order of their clocks ──► holdfast.testing.history ──► findings
    look ────── rows, marks ──────────┘

Promise: `judge` names every event that was answered for or kept and is not there, stands twice or at another place than
before, came out of order, or came again after its acknowledgement was told as durable; every mark that moved back or
covers what never came or was never acknowledged; every number that was given out twice. The time grows with what was
said and with the sizes of the looks.
"""

from __future__ import annotations

import heapq
import json
import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from operator import itemgetter
from pathlib import Path
from typing import Any, Protocol

import pyarrow as pa

from holdfast import Store
from holdfast.clock import SystemClock
from holdfast.config.table import StoreConfig
from holdfast.testing.history import (
    Accepted,
    Acked,
    Crash,
    Delivered,
    Happening,
    Kept,
    Mark,
    Row,
    Sent,
    Settled,
    Stored,
)
from holdfast.testing.history import check as findings_of
from tests.e2e.consumer_process import RUN_EVENTS_MAX
from tests.e2e.nursed import Published, Victim
from tests.e2e.nursery import Nursery
from tests.e2e.producer_process import rows_at
from tests.e2e.served import PATIENCE_S

SESSIONS_MAX = 1_000_000
"""Tells the connections of processes apart."""
FINDINGS_SHOWN = 20
SYSTEM = ("_seq", "_committed_id")
_BUSY = {
    "segment": {"target_size": "16KiB", "max_open_duration": "200ms"},
    "wal": {"rotation_size": "64KiB", "max_size": "1MiB"},
    "frame": {"max_size": "32KiB"},
    "ack": {"rotation_size": "4KiB", "checkpoint_records": 200},
    "retention": {"mode": "limits"},
}
BUSY = StoreConfig.from_mapping(_BUSY)
"""A store that seals, rotates, trims and checkpoints all the time, and deletes nothing."""
BUSY_YAML = json.dumps({**_BUSY, "ingest": {"max_batch_size": "32KiB"}})
"""The same for a server; JSON is YAML."""


class Answered(Published, Protocol):
    """A producer that also knows how many of its events have an answer."""

    answered: int


class Reader(Victim):
    """A consumer process and what it said."""

    def __init__(self, nursery: Nursery, conf: str, channel: str, durable: str, *, run: int, group: str = "") -> None:
        self.run = run
        self.durable = durable
        self.group = group
        self.lines: list[list[Any]] = []
        """As tests/e2e/consumer_process.py says them."""
        self._changed = threading.Condition()
        self._nursery, self._subscription = nursery, (conf, channel, durable, group)
        self._start("main", run)

    def _start(self, kind: str, argument: int) -> None:
        self._child = self._nursery.start(f"tests.e2e.consumer_process:{kind}", *self._subscription, argument)
        self._thread = threading.Thread(target=self._listen)
        self._thread.start()

    def _listen(self) -> None:
        for line in self._child.output:
            if line.endswith("\n"):
                with self._changed:
                    self.lines.append(json.loads(line))
                    self._changed.notify_all()

    def until(self, lines: int, within_s: float = PATIENCE_S) -> bool:
        """Wait until it said so many lines, or for that long."""
        with self._changed:
            return self._changed.wait_for(lambda: len(self.lines) >= lines, within_s)

    def finish(self, last_seq: int) -> None:
        """Another process, after a kill: it takes what is owed up to that seq, and ends."""
        self._start("finish", last_seq)
        assert self._child.wait() == 0
        self._heard()


@dataclass(frozen=True, slots=True)
class Look:
    """A store while no server has it."""

    at_ns: int
    answered: dict[int, range]
    """Per run what had an answer since the look before."""
    rows: pa.Table
    marks: dict[str, int]

    def happenings(self, channel: str, *, is_final: bool) -> Iterator[Happening]:
        """What it shows."""
        for run, numbers in self.answered.items():
            yield Accepted(channel, tuple(run * RUN_EVENTS_MAX + n for n in numbers))
        yield Crash("server")
        columns = [self.rows.column(name).to_pylist() for name in ("_seq", "run", "n", "_committed_id")]
        rows = (
            Row(channel, seq, run * RUN_EVENTS_MAX + n, committed)
            for seq, run, n, committed in zip(*columns, strict=True)
        )
        yield Stored(tuple(rows), is_final=is_final)
        for durable, mark in self.marks.items():
            yield Mark(durable, channel, mark)


def _spoken(reader: Reader) -> Iterator[tuple[int, Reader | None, list[Any] | Look]]:
    return ((line[1], reader, line) for line in reader.lines)


@dataclass
class Chronicle:
    """All of a run."""

    data: Path
    channel: str
    config: StoreConfig
    producers: list[Answered] = field(default_factory=list)
    readers: list[Reader] = field(default_factory=list)
    looks: list[Look] = field(default_factory=list)
    delivered: int = 0
    """How often an event came to a reader."""
    again: int = 0
    """Of these, how often the server said that it came before."""
    untold: int = 0
    """Came before, and the server did not say so: it had died meanwhile."""
    _answered: dict[int, int] = field(default_factory=dict)
    _seen: dict[str, set[int]] = field(default_factory=dict)

    @property
    def last_seq(self) -> int:
        """Of the last look."""
        return int(self.looks[-1].rows.num_rows)

    def look(self) -> Look:
        """Read everything; the server must be dead."""
        answered = {}
        for producer in self.producers:
            before = self._answered.get(producer.run, 0)
            self._answered[producer.run] = max(before, producer.answered)
            answered[producer.run] = range(before, self._answered[producer.run])
        with Store.open(self.data, self.config) as store:
            batches = list(store.read(self.channel, columns=["run", "n"], system=list(SYSTEM)))
            rows = pa.Table.from_batches(batches)
            marks = {
                found.name: lag.mark
                for found in store.subscribers()
                for lag in found.channels
                if lag.channel == self.channel
            }
            found = Look(SystemClock().monotonic_ns(), answered, rows, marks)
        self.looks.append(found)
        return found

    def judge(self) -> None:
        """After the last look: everything is stored and delivered, and nothing happened that must not."""
        final = self.looks[-1]
        assert set(final.marks) == {reader.durable for reader in self.readers}
        assert set(final.marks.values()) <= {self.last_seq}, f"{final.marks} of {self.last_seq}"
        findings = [f"{finding.kind}: {finding.text}" for finding in findings_of(self._history())]
        findings += self._unordered()
        assert not findings, "\n".join(findings[:FINDINGS_SHOWN])

    def _history(self) -> Iterator[Happening]:
        yield from self._sent()
        looks: Iterator[tuple[int, Reader | None, list[Any] | Look]] = ((look.at_ns, None, look) for look in self.looks)
        for _, reader, said in heapq.merge(*map(_spoken, self.readers), looks, key=itemgetter(0)):
            if isinstance(said, Look):
                yield from said.happenings(self.channel, is_final=said is self.looks[-1])
            else:
                assert reader is not None
                yield from self._said(reader, said)

    def _sent(self) -> Iterator[Happening]:
        """Frames as producers make them; what is stored behind the last one that was told was sent too."""
        counts = {row["values"]: row["counts"] for row in self.looks[-1].rows.column("run").value_counts().to_pylist()}
        for producer in self.producers:
            n, first, kept = 0, producer.run * RUN_EVENTS_MAX, producer.published + 1
            while n < max(kept, counts.get(producer.run, 0)):
                ids = range(first + n, first + n + rows_at(n))
                yield Sent(f"run {producer.run}", self.channel, tuple(ids), frame=f"{producer.run} {n}")
                n += rows_at(n)
            yield Kept(tuple(range(first, first + kept)))

    def _said(self, reader: Reader, line: Sequence[Any]) -> Iterator[Happening]:
        what, _, *values = line
        name, channel = reader.durable, self.channel
        if what == "got":
            connection, again, ranges, ids = values
            session = reader.run * SESSIONS_MAX + connection
            seqs = [seq for first, last in ranges for seq in range(first, last + 1)]
            self._count(name, seqs, again=again)
            for seq, one in zip(seqs, ids, strict=True):
                yield Delivered(name, channel, seq, one, again=again or connection < 0, session=session)
        elif what == "mark":
            yield Mark(name, channel, values[0])
        else:
            kind = {"acks": Acked, "told": Settled}[what]
            for first, last in values[0]:
                yield kind(name, channel, first, last)

    def _count(self, durable: str, seqs: Sequence[int], *, again: bool) -> None:
        before = self._seen.setdefault(durable, set())
        self.delivered += len(seqs)
        self.again += len(seqs) if again else 0
        self.untold += 0 if again else len(before.intersection(seqs))
        before.update(seqs)

    def _unordered(self) -> Iterator[str]:
        """To members of a group, who read at the same time, comes in order what is new to all."""
        for reader in self.readers:
            last = (0, 0)
            for _, _, connection, again, ranges, _ in (line for line in reader.lines if line[0] == "got"):
                if again or connection < 0:
                    continue
                if last[0] == connection and ranges[0][0] <= last[1]:
                    yield f"reorder: {reader.durable} run {reader.run} got {ranges[0][0]} as new, after {last[1]}"
                last = (connection, ranges[-1][1])
