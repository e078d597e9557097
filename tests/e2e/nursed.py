"""Producers and servers out of a nursery, and the checker of what they promised."""

from __future__ import annotations

import signal
import threading
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Protocol

from holdfast import Sender, Store
from tests.e2e.nursery import Child, Nursery
from tests.e2e.served import PATIENCE_S


class Published(Protocol):
    """A producer: which run it is, and the last event whose `flush()` has returned; -1 before the first."""

    run: int
    published: int


class Producer:
    """A producer process and the last event it published."""

    def __init__(self, nursery: Nursery, conf: str, channel: str, run: int, *, kind: str = "main") -> None:
        self.run = run
        self.published = -1
        self._changed = threading.Condition()
        self._child: Child = nursery.start(f"tests.e2e.producer_process:{kind}", conf, channel, run)
        self._thread = threading.Thread(target=self._listen)
        self._thread.start()

    def _listen(self) -> None:
        for line in self._child.output:
            if line.endswith("\n"):
                with self._changed:
                    self.published = int(line)
                    self._changed.notify_all()

    def until(self, number: int) -> None:
        """Wait until that event is published."""
        with self._changed:
            assert self._changed.wait_for(lambda: self.published >= number, PATIENCE_S), "the producer is stuck"

    def more(self, events: int) -> None:
        """Wait until so many more are."""
        self.until(self.published + events)

    def kill(self) -> None:
        """SIGKILL; what it said until then counts."""
        assert self._child.kill() == -signal.SIGKILL
        self._thread.join(PATIENCE_S)
        self._child.output.close()

    def __enter__(self) -> Producer:
        return self

    def __exit__(
        self, _type: type[BaseException] | None, _error: BaseException | None, _trace: TracebackType | None
    ) -> None:
        if self._child.status is None:
            self.kill()


class NursedServer:
    """`holdfast serve`, one process after the other on the same directory and port."""

    def __init__(self, nursery: Nursery, directory: Path) -> None:
        self._nursery = nursery
        self._directory = directory
        self._child: Child | None = None
        self.port = 0

    def start(self) -> None:
        """Start and wait until it is ready."""
        command = ["serve", "--data", str(self._directory), "--listen", f"127.0.0.1:{self.port}"]
        errors = self._directory.parent / f"{self._directory.name}.stderr"
        self._child = self._nursery.start("holdfast.cli.main:app", [*command, "--admin", "127.0.0.1:0"], errors=errors)
        ready = self._child.output.readline()
        assert ready.startswith("holdfast ready "), errors.read_text()
        words = dict(word.split("=", 1) for word in ready.split()[2:])
        self.port = int(words["data"].rpartition(":")[2])

    def kill(self) -> None:
        """SIGKILL."""
        self._end(signal.SIGKILL, -signal.SIGKILL)

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

    Each run is stored from 0 on, without a gap or a repeat, at least as far as it was published. With `in_turns` the
    producers used one slot, one after the other, so the runs follow one another too.
    """
    stored: dict[int, list[int]] = {}
    order: list[int] = []
    with Store.open(data) as store:
        for batch in store.read(channel, columns=["run", "n"]):
            runs = batch.column("run").to_pylist()
            order += runs
            for run, n in zip(runs, batch.column("n").to_pylist(), strict=True):
                stored.setdefault(run, []).append(n)
    assert set(stored) <= {producer.run for producer in producers}, "events that nobody sent"
    for producer in producers:
        found = stored.get(producer.run, [])
        assert found == list(range(len(found))), f"run {producer.run}: lost, doubled or out of order"
        assert len(found) > producer.published, f"run {producer.run}: published {producer.published}, lost"
    assert not in_turns or order == sorted(order), "a later run overtook an earlier one"
    return len(order)


def drain(conf: str) -> None:
    """A sender that sends what is in the slot, and ends."""
    with Sender.from_conf(conf) as sender:
        assert sender.drain(PATIENCE_S)
