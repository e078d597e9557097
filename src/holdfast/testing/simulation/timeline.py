"""Virtual time: what happens when, in one thread, and nothing in between.

    Timeline: a queue of (moment, number) ──► the clock is set ──► the action of a process that is still in that life

A `Process` is something that can die: what was scheduled in a life that is over never happens. `ProcessLoop` and
`ProcessPool` show a process to the product as its event loop and its threads: a callback of the loop is an entry of the
queue, and so is the work of a thread, which comes some time later, in any order.

Promise: the same entries in the same order give the same run; moments that are equal go by their number.
"""

from __future__ import annotations

import asyncio
import heapq
import random
from collections.abc import Callable
from concurrent.futures import Executor, Future
from typing import Any, TypeVar

from holdfast.clock import NS_PER_S
from holdfast.errors import HoldfastError
from holdfast.testing.clock import ManualClock

_T = TypeVar("_T")
STEPS_MAX = 100_000
"""A run has some thousand."""
WORK_S_MAX = 0.003
"""How long a thread takes for its work, at the most."""


class Spinning(AssertionError):
    """Something happens again and again, and leads nowhere."""


class Handle:
    """Something that is to happen."""

    __slots__ = ("action", "args", "life", "process")

    def __init__(self, process: Process, action: Callable[..., object], args: tuple[Any, ...]) -> None:
        self.process = process
        self.life = process.life
        self.action: Callable[..., object] | None = action
        self.args = args

    def cancel(self) -> None:
        """It is not to happen any more."""
        self.action = None


class Timeline:
    """What is to happen, and the clock."""

    def __init__(self) -> None:
        self.clock = ManualClock()
        self.steps = 0
        self._failure: Exception | None = None
        self._queue: list[tuple[int, int, Handle]] = []
        self._number = 0

    @property
    def now_ns(self) -> int:
        """The time since the beginning."""
        return self.clock.monotonic_ns()

    def call_at(self, at_ns: int, process: Process, action: Callable[..., object], *args: Any) -> Handle:
        """Let something happen then, if the process still lives this life."""
        handle = Handle(process, action, args)
        self._number += 1
        heapq.heappush(self._queue, (max(at_ns, self.now_ns), self._number, handle))
        return handle

    def run(self, until_ns: int, *, done: Callable[[], bool] = lambda: False) -> None:
        """Let everything happen up to then, or until it is done. May be called while something happens.

        What is wrong ends the run, also if it came up while somebody waited who catches it, or whose life is over.
        """
        while self._queue and self._queue[0][0] <= until_ns and not done():
            at_ns, _, handle = heapq.heappop(self._queue)
            self._set(at_ns)
            if handle.action is not None and handle.process.life == handle.life:
                self.steps += 1
                if self.steps > STEPS_MAX:
                    raise Spinning(f"more than {STEPS_MAX} steps; the last ones are of {handle.process.name}")
                self._do(handle.process, handle.action, handle.args)
        if not done():
            self._set(until_ns)

    def _do(self, process: Process, action: Callable[..., object], args: tuple[Any, ...]) -> None:
        try:
            process.act(action, *args)
        except Exception as error:
            self._failure = self._failure or error
        if self._failure is not None:
            raise self._failure

    def _set(self, at_ns: int) -> None:
        if at_ns > self.now_ns:  # a nested run may have gone further
            self.clock.advance((at_ns - self.now_ns) / NS_PER_S)


class Process:
    """Something that lives, dies and may live again."""

    def __init__(self, name: str, timeline: Timeline) -> None:
        self.name = name
        self.timeline = timeline
        self.life = 0
        self.alive = False

    def later(self, seconds: float, action: Callable[..., object], *args: Any) -> Handle:
        """Do something after a while, in this life."""
        return self.timeline.call_at(self.timeline.now_ns + round(seconds * NS_PER_S), self, action, *args)

    def act(self, action: Callable[..., object], *args: Any) -> None:
        """Do something now."""
        action(*args)

    def end_life(self) -> None:
        """Nothing that was scheduled happens any more."""
        self.alive = False
        self.life += 1


class ProcessLoop:
    """The event loop of a process, as far as the product uses one."""

    def __init__(self, process: Process) -> None:
        self._process = process

    def time(self) -> float:
        """Seconds."""
        return self._process.timeline.now_ns / NS_PER_S

    def call_soon(self, action: Callable[..., object], *args: Any) -> Handle:
        """At the end of this turn."""
        return self._process.later(0.0, action, *args)

    call_soon_threadsafe = call_soon

    def call_later(self, seconds: float, action: Callable[..., object], *args: Any) -> Handle:
        """After a while."""
        return self._process.later(seconds, action, *args)

    def call_at(self, at_s: float, action: Callable[..., object], *args: Any) -> Handle:
        """Then."""
        return self._process.timeline.call_at(round(at_s * NS_PER_S), self._process, action, *args)

    def run(self, action: Callable[..., object], *args: Any) -> None:
        """Call something that asks for the running loop."""
        before = asyncio._get_running_loop()
        asyncio._set_running_loop(self)  # type: ignore[arg-type]
        try:
            action(*args)
        finally:
            asyncio._set_running_loop(before)


class ProcessPool(Executor):
    """The threads of a process: work is done a little later, and nothing is shared with it meanwhile."""

    def __init__(self, process: Process, chance: random.Random) -> None:
        self._process = process
        self._chance = chance

    def submit(self, work: Callable[..., _T], /, *args: Any, **options: Any) -> Future[_T]:
        """Do it soon."""
        future: Future[_T] = Future()
        self._process.later(self._chance.random() * WORK_S_MAX, self._work, future, work, args, options)
        return future

    @staticmethod
    def _work(future: Future[_T], work: Callable[..., _T], args: tuple[Any, ...], options: dict[str, Any]) -> None:
        try:
            result = work(*args, **options)
        except (HoldfastError, OSError) as error:  # anything else is a mistake, and ends the run
            future.set_exception(error)
        else:
            future.set_result(result)

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """There are no threads to end."""
