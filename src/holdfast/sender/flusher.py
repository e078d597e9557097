"""The timer behind `auto_flush_interval`: rows leave after this time also when no further call comes.

One daemon thread, started by the first row. It is woken only when it had nothing to wait for; after that it looks by
itself once per interval, so that a producer that flushes all the time does not pay for waking it.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable

from holdfast.clock import NS_PER_S, Clock
from holdfast.errors import HoldfastError
from holdfast.telemetry import event

QUIET_ROUNDS_MAX = 10
"""Intervals without a row after which the thread sleeps until it is woken."""


class Flusher:
    """Calls `flush` once rows are older than the interval."""

    def __init__(self, flush: Callable[[], object], *, interval_ms: int, clock: Clock) -> None:
        self._flush = flush
        self._interval_s = interval_ms / 1000
        self._clock = clock
        self._changed = threading.Condition()
        self._oldest_ns: int | None = None
        self._asleep = True
        self._closed = False
        self._thread: threading.Thread | None = None
        self._told = ""

    def waiting(self) -> None:
        """A row came; the first one since `emptied` counts."""
        if self._oldest_ns is None:
            self._oldest_ns = self._clock.monotonic_ns()
            if self._asleep:
                self._awake()

    def emptied(self) -> None:
        """No row waits any more."""
        self._oldest_ns = None

    def _awake(self) -> None:
        with self._changed:
            self._asleep = False
            if self._thread is None and not self._closed:
                self._thread = threading.Thread(target=self._run, name="holdfast-flusher", daemon=True)
                self._thread.start()
            self._changed.notify()

    def _run(self) -> None:
        quiet = 0
        while True:
            with self._changed:
                if quiet > QUIET_ROUNDS_MAX:
                    self._asleep = True
                    if self._oldest_ns is not None:  # looked at after `_asleep`, which `waiting` looks at last
                        self._asleep = False
                while self._asleep and not self._closed:
                    self._changed.wait()
                    quiet = 0
                if self._closed:
                    return
                self._changed.wait(self._left_s())
                if self._closed:
                    return
            quiet = quiet + 1 if self._oldest_ns is None else 0
            if self._is_due():
                self._attempt()

    def _left_s(self) -> float:
        oldest_ns = self._oldest_ns
        if oldest_ns is None:
            return self._interval_s
        return max(0.0, self._interval_s - (self._clock.monotonic_ns() - oldest_ns) / NS_PER_S)

    def _is_due(self) -> bool:
        return self._oldest_ns is not None and self._left_s() <= 0

    def _attempt(self) -> None:
        try:
            self._flush()
        except HoldfastError as error:  # the rows stay; the next call of the producer is told
            if str(error) != self._told:
                self._told = str(error)
                event("sender.flush.fail", level=logging.WARNING, error=error)
            self._oldest_ns = self._clock.monotonic_ns()

    def close(self) -> None:
        """Stop; a flush that waits for room ends with the ring, and `join` waits for that."""
        with self._changed:
            self._closed = True
            self._changed.notify()

    def join(self, timeout_s: float) -> None:
        """Until the thread has ended, but not longer than this."""
        if self._thread is not None:
            self._thread.join(timeout_s)
