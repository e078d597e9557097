"""Producers and servers out of a nursery, and the checker of what they promised."""

from __future__ import annotations

import json
import select
import signal
import threading
import urllib.request
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Protocol, Self

from holdfast import Sender, Store
from holdfast.clock import NS_PER_S, SystemClock
from holdfast.testing.history import Happening, Kept, Row, Sent, Stored, require
from tests.e2e.consumer_process import RUN_EVENTS_MAX
from tests.e2e.nursery import Child, Nursery
from tests.e2e.served import PATIENCE_S, free_port


class Published(Protocol):
    """A producer: which run it is, and the last event whose `flush()` has returned; -1 before the first."""

    run: int
    published: int


class Victim:
    """A process out of a nursery and the thread that listens to it; killed at the end, if it lives."""

    _child: Child
    _thread: threading.Thread

    def kill(self) -> None:
        """SIGKILL; what it said until then counts."""
        assert self._child.kill() == -signal.SIGKILL
        self._heard()

    def _heard(self) -> None:
        """It has ended: hear it out."""
        self._thread.join(PATIENCE_S)
        self._child.output.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, _type: type[BaseException] | None, _error: BaseException | None, _trace: TracebackType | None
    ) -> None:
        if self._child.status is None:
            self.kill()


class Producer(Victim):
    """A producer process and the last event it published; of the kind `tracked` also how many have an answer."""

    def __init__(self, nursery: Nursery, conf: str, channel: str, run: int, *, kind: str = "main") -> None:
        self.run = run
        self.published = -1
        self.answered = 0
        self._changed = threading.Condition()
        self._child = nursery.start(f"tests.e2e.producer_process:{kind}", conf, channel, run)
        self._thread = threading.Thread(target=self._listen)
        self._thread.start()

    def _listen(self) -> None:
        for line in self._child.output:
            if line.endswith("\n"):
                published, *answered = map(int, line.split())
                with self._changed:
                    self.published, self.answered = published, *(answered or [0])
                    self._changed.notify_all()

    def until(self, number: int) -> None:
        """Wait until that event is published."""
        with self._changed:
            assert self._changed.wait_for(lambda: self.published >= number, PATIENCE_S), "the producer is stuck"

    def more(self, events: int) -> None:
        """Wait until so many more are."""
        self.until(self.published + events)

    def answers(self, events: int) -> None:
        """Wait until the server has answered for so many more."""
        with self._changed:
            goal = self.answered + events
            assert self._changed.wait_for(lambda: self.answered >= goal, PATIENCE_S), "the server does not answer"

    def stop_dead(self, *, published: int) -> None:
        """The same for one whose disk is gone: it may have ended by itself, and what it said since does not count."""
        self._child.kill()
        self._heard()
        self.published = published


class NursedServer:
    """`holdfast serve`, one process after the other on the same directory and port."""

    def __init__(self, nursery: Nursery, directory: Path, *options: str) -> None:
        self._nursery = nursery
        self._directory = directory
        self._options = options
        self._child: Child | None = None
        self._is_ready = False
        self._clock = SystemClock()
        self._began_ns = 0
        self.start_s = 0.0
        """How long the last start took that came to its end."""
        self.port = free_port()
        self.admin = ""

    def start(self) -> None:
        """Start and wait until it is ready."""
        self.begin()
        assert self.is_ready(PATIENCE_S), "the server does not start"

    def begin(self) -> None:
        """Start, and do not wait."""
        command = ["serve", "--data", str(self._directory), "--listen", f"127.0.0.1:{self.port}"]
        command += ["--admin", "127.0.0.1:0", *self._options]
        self._is_ready = False
        self._began_ns = self._clock.monotonic_ns()
        self._child = self._nursery.start("tests.e2e.command_process:main", command, errors=self._errors)

    def is_ready(self, within_s: float) -> bool:
        """Whether it said so by then."""
        assert self._child is not None
        if self._is_ready or not select.select([self._child.output], [], [], within_s)[0]:
            return self._is_ready
        ready = self._child.output.readline()
        assert ready.startswith("holdfast ready "), self._errors.read_text()
        words = dict(word.split("=", 1) for word in ready.split()[2:])
        self.port, self.admin = int(words["data"].rpartition(":")[2]), words["admin"]
        self._is_ready = True
        self.start_s = (self._clock.monotonic_ns() - self._began_ns) / NS_PER_S
        return True

    @property
    def _errors(self) -> Path:
        return self._directory.parent / f"{self._directory.name}.stderr"

    def start_elsewhere(self) -> int:
        """Start on another port, as while it was away another process may have taken the old one; which it is."""
        self.port = free_port()
        self.start()
        return self.port

    @property
    def pid(self) -> int:
        """Of the process of now."""
        assert self._child is not None
        return self._child.pid

    def last_seq(self, channel: str) -> int:
        """Of the last event that is stored."""
        with urllib.request.urlopen(f"{self.admin}/api/v1/channels/{channel}", timeout=PATIENCE_S) as answer:
            return int(json.load(answer)["data"]["last_seq"])

    def wait(self) -> int:
        """Until it has ended by itself; its exit status."""
        assert self._child is not None
        status = self._child.wait()
        self._child.output.close()
        self._child = None
        return status

    def kill(self) -> None:
        """SIGKILL."""
        self._end(signal.SIGKILL, -signal.SIGKILL)

    def stop_dead(self) -> int:
        """SIGKILL to one whose disk is gone, which may have ended by itself; its exit status."""
        assert self._child is not None
        status = self._child.kill()
        self._child.output.close()
        self._child = None
        return status

    def terminate(self) -> None:
        """SIGTERM; it must end in order."""
        self._end(signal.SIGTERM, 0)

    def _end(self, number: signal.Signals, status: int) -> None:
        assert self._child is not None
        assert self._child.signal(number) == status
        self._child.output.close()
        self._child = None

    def __enter__(self) -> NursedServer:
        self.start()
        return self

    def __exit__(
        self, _type: type[BaseException] | None, _error: BaseException | None, _trace: TracebackType | None
    ) -> None:
        if self._child is not None:
            self.kill()


def check(data: Path, channel: str, producers: Sequence[Published], *, in_turns: bool = True) -> int:
    """Every event whose `flush()` returned is stored exactly once and in order; how many events there are.

    A run sends 0, 1, 2, …, and we know of it only how far it was published: what is stored behind that was sent too, if
    it goes on without a gap. With `in_turns` the producers used one slot, one after the other, so the runs follow one
    another too.
    """
    rows: list[Row] = []
    counts: Counter[int] = Counter()
    with Store.open(data) as store:
        for batch in store.read(channel, columns=["run", "n"], system=["_seq", "_committed_id"]):
            columns = [batch.column(name).to_pylist() for name in ("run", "n", "_seq", "_committed_id")]
            for run, n, seq, committed_id in zip(*columns, strict=True):
                rows.append(Row(channel, seq, run * RUN_EVENTS_MAX + n, committed_id))
                counts[run] += 1
    history: list[Happening] = []
    for producer in producers:
        first, kept = producer.run * RUN_EVENTS_MAX, producer.published + 1
        sent = range(first, first + max(kept, counts[producer.run]))
        source = "the slot" if in_turns else f"run {producer.run}"
        history += [Sent(source, channel, tuple(sent)), Kept(tuple(sent[:kept]))]
    require([*history, Stored(tuple(rows), is_final=True)])
    return len(rows)


def drain(conf: str) -> None:
    """A sender that sends what is in the slot, and ends."""
    with Sender.from_conf(conf) as sender:
        assert sender.drain(PATIENCE_S)
