"""Deliveries between the I/O thread and the application.

Bounded by the subscription: the server sends no more than `max_inflight` messages that were not answered. What a lost
connection brought and nobody took yet is dropped, since the server hands it out again.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from contextlib import suppress

from holdfast.consumer.messages import Delivery
from holdfast.errors import HoldfastError, again

WAIT_SLICE_S = 0.1
"""How long a thread waits before it looks at signals again."""


class Hopper:
    """Thread-safe. `take` gives deliveries until the end; then it raises why, once there is a reason, or gives None."""

    def __init__(self) -> None:
        self._items: deque[Delivery] = deque()
        self._changed = threading.Condition()
        self._ended = False
        self._error: HoldfastError | None = None
        self._waiters: list[Callable[[], None]] = []

    def put(self, delivery: Delivery) -> None:
        """On the I/O thread."""
        with self._changed:
            self._items.append(delivery)
            self._tell()

    def clear(self) -> None:
        """The connection that brought them is gone."""
        with self._changed:
            self._items.clear()

    def end(self, error: HoldfastError | None = None) -> None:
        """Nothing more comes."""
        with self._changed:
            if not self._ended:
                self._ended, self._error = True, error
                self._items.clear()
            self._tell()

    @property
    def is_ended(self) -> bool:
        """Whether nothing more comes."""
        return self._ended

    def take(self, timeout_s: float | None, now_s: Callable[[], float]) -> Delivery | None:
        """The next delivery; None when the time is up or there is an end without a reason."""
        deadline_s = None if timeout_s is None else now_s() + timeout_s
        with self._changed:
            while not self._items:
                if self._ended:
                    self._raise()
                    return None
                left_s = WAIT_SLICE_S if deadline_s is None else deadline_s - now_s()
                if left_s <= 0:
                    return None
                self._changed.wait(min(WAIT_SLICE_S, left_s))
            return self._items.popleft()

    def poll(self, when_changed: Callable[[], None]) -> Delivery | None:
        """The next delivery if there is one; otherwise `when_changed` is called once there may be."""
        with self._changed:
            if self._items:
                return self._items.popleft()
            if self._ended:
                self._raise()
            else:
                self._waiters.append(when_changed)
            return None

    def _raise(self) -> None:
        if self._error is not None:
            raise again(self._error)

    def _tell(self) -> None:
        self._changed.notify_all()
        waiters, self._waiters = self._waiters, []
        for told in waiters:
            with suppress(RuntimeError):  # the event loop of somebody who waited has ended
                told()
