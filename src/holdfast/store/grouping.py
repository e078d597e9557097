"""One thread that takes what has queued up and handles it as a group: the engine of every group commit.

Subclasses say what a group does. While `process` waits for the disk, callers queue more, so one sync serves many.
A worker runs on a thread (`run`) or, without one, as often as its owner calls `step`.
"""

from __future__ import annotations

import threading
from collections import deque
from typing import Generic, TypeVar

from holdfast.errors import Closed

GROUP_BYTES_MAX = 8 << 20
"""A group beyond this gains nothing from one more item and only delays its answers."""
GROUP_ITEMS_MAX = 4096
LINGER_S = 0.002
"""How long a group waits for the company it had the last time. Each turn costs two syscalls and two changes of thread,
so a crowd gains a third from sharing them; a lone caller never waits."""

Item = TypeVar("Item")


class GroupWorker(Generic[Item]):
    """Thread-safe for `submit` and `close`; everything else belongs to the worker's thread."""

    def __init__(self, what: str) -> None:
        self._what = what
        self._queue: deque[Item] = deque()
        self._turn = threading.Condition()
        self._closed = False
        self._awaited = 1  # how many items in the queue wake the worker
        self._goal = 1  # how many items a group should have

    def process(self, group: list[Item]) -> None:
        """Handle a group, and answer each of its items."""
        raise NotImplementedError

    def item_bytes(self, item: Item) -> int:
        """What an item adds to its group."""
        raise NotImplementedError

    def seconds_until_due(self) -> float | None:
        """When `tick` has something to do without an item; None for never."""
        return None

    def tick(self, *, closing: bool) -> None:
        """Called after every turn."""

    def submit(self, item: Item) -> None:
        """Queue an item; `Closed` once the worker takes no more."""
        with self._turn:
            if self._closed:
                raise Closed(what=self._what)
            self._queue.append(item)
            if len(self._queue) == self._awaited:
                self._turn.notify()

    def close(self) -> None:
        """Take no more items; `run` returns after the queued ones."""
        with self._turn:
            self._closed = True
            self._turn.notify()

    def run(self) -> None:
        """Handle groups until closed."""
        while self.step(wait=True):
            pass

    def step(self, *, wait: bool) -> bool:
        """One group; False once closed and empty."""
        group = self._take(wait=wait)
        if group:
            self.process(group)
        self.tick(closing=self._closed)
        return bool(group) or not self._closed

    def _take(self, *, wait: bool) -> list[Item]:
        group: list[Item] = []
        size = 0
        with self._turn:
            if wait and not self._closed:
                self._gather()
            while self._queue and len(group) < GROUP_ITEMS_MAX:
                size += self.item_bytes(self._queue[0])
                if group and size > GROUP_BYTES_MAX:
                    break
                group.append(self._queue.popleft())
        return group

    def _gather(self) -> None:
        """Wait for an item, then a moment for as many as came the last time.

        While callers are faster than the disk the goal doubles; a group that stays below it sets it to its own size. So
        a lone caller never waits for company, and a crowd shares the cost of a turn.
        """
        if not self._queue:
            self._turn.wait(self.seconds_until_due())
        elif len(self._queue) >= self._goal:
            self._goal = min(2 * self._goal, GROUP_ITEMS_MAX)
        if 0 < len(self._queue) < self._goal and not self._closed:
            self._awaited = self._goal
            self._turn.wait(LINGER_S)
            self._awaited = 1
        if len(self._queue) < self._goal:
            self._goal = max(1, len(self._queue))
