"""Trying again until the object store does it: the one policy of the tier.

Promise: an action that fails because the store is away, refuses or garbles is repeated, with longer pauses, until it
works or the tier is closed. Trouble that lasts longer than `tier.alarm_after` is an alarm: a log event, a field of the
statistics, and gone when a call works again. What the action does must bear repeating.
"""

from __future__ import annotations

import logging
import random
import threading
from collections.abc import Callable
from typing import TypeVar

from holdfast.clock import NS_PER_S, Clock
from holdfast.errors import Closed, DamagedObject, TierRefused, TierUnavailable
from holdfast.model.backoff import Backoff
from holdfast.telemetry import event

TROUBLE = (TierUnavailable, TierRefused, DamagedObject)
_ATTEMPTS = {TierRefused: 0, DamagedObject: 3}
"""Repeats while somebody waits: a refusal stays one, but bytes may have been garbled on their way."""
_T = TypeVar("_T")


class Persistence:
    """Shared by the threads of a tier."""

    def __init__(
        self,
        clock: Clock,
        chance: random.Random,
        *,
        backoff: Backoff,
        alarm_after_ns: int,
        pause: Callable[[float], bool] | None = None,
    ) -> None:
        """`pause` waits so long and says whether the tier was closed meanwhile; by default it waits for `close`."""
        self._clock = clock
        self._chance = chance
        self._backoff = backoff
        self._alarm_after_ns = alarm_after_ns
        self._closed = threading.Event()
        self._pause = pause or self._closed.wait
        self._lock = threading.Lock()
        self._troubled: dict[int, tuple[int, str]] = {}  # thread -> since when, and why
        self._alarmed = False
        self.failures = 0

    def close(self) -> None:
        """Whoever waits gets `Closed`."""
        self._closed.set()

    @property
    def closed(self) -> bool:
        """Whether nothing is tried any more."""
        return self._closed.is_set()

    def wait(self, seconds: float) -> None:
        """Wait for another reason; `Closed` if the tier was closed."""
        if seconds > 0 and self._pause(seconds):
            raise Closed(what="tier")

    def call(self, action: Callable[[], _T], what: str, *, limit_s: float | None = None) -> _T:
        """Until it works. With `limit_s` somebody waits: what waiting does not mend is raised soon, the rest then."""
        began_ns = self._clock.monotonic_ns()
        for attempt, pause_s in enumerate(self._backoff.pauses(self._chance)):
            if self._closed.is_set():
                raise Closed(what="tier")
            try:
                result = action()
            except TROUBLE as error:
                waited_s = (self._clock.monotonic_ns() - began_ns) / NS_PER_S
                if limit_s is not None and (waited_s >= limit_s or attempt >= _ATTEMPTS.get(type(error), attempt + 1)):
                    self._end_trouble()  # whoever waited is told; nobody goes on trying
                    raise
                self._note(began_ns, error, what)
                if self._pause(pause_s):
                    raise Closed(what="tier") from error
            else:
                self._end_trouble()
                return result
        raise AssertionError("pauses never end")

    @property
    def trouble(self) -> str | None:
        """Why calls fail now, if they do."""
        with self._lock:
            return next((reason for _, reason in self._troubled.values()), None)

    @property
    def alarm(self) -> str | None:
        """The same, once it has lasted too long."""
        with self._lock:
            now_ns = self._clock.monotonic_ns()
            late = (why for since_ns, why in self._troubled.values() if now_ns - since_ns >= self._alarm_after_ns)
            return next(late, None)

    def _note(self, since_ns: int, error: Exception, what: str) -> None:
        with self._lock:
            self.failures += 1
            self._troubled[threading.get_ident()] = (since_ns, f"{what}: {error}")
        event("tier.retry", what=what, reason=error)
        if not self._alarmed and self.alarm is not None:
            self._alarmed = True
            event("tier.alarm", level=logging.ERROR, what=what, reason=error)

    def _end_trouble(self) -> None:
        with self._lock:
            self._troubled.pop(threading.get_ident(), None)
            over = self._alarmed and not self._troubled
            self._alarmed = self._alarmed and not over
        if over:
            event("tier.alarm.over", level=logging.WARNING)
