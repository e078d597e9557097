"""Which server is tried when, while there is no connection. Pure: time is a `Clock`, chance a `random.Random`.

All hosts of the list are tried in turn; after a round without one, and after a connection that broke early, comes a
pause that doubles up to its maximum. A consumer that was connected once never gives up.
"""

from __future__ import annotations

import random

from holdfast.clock import NS_PER_S, Clock
from holdfast.errors import HoldfastError, NotConnected
from holdfast.model.backoff import Backoff
from holdfast.sender.conf import SenderConfig
from holdfast.sender.core import DialFailure, Outcome
from holdfast.sender.happenings import ConnectionEvent, EventKind
from holdfast.sender.hosts import HostTable

_MS_PER_S = 1000
SETTLED_NS = NS_PER_S
"""A connection that lived this long was a good one: the next attempt comes at once."""


class Redialing:
    """See the module. Not thread-safe."""

    def __init__(self, config: SenderConfig, *, clock: Clock, chance: random.Random) -> None:
        self.attempts = 0
        """Since the connection was lost."""
        self.is_online = False
        self.connected_to = ""
        self._config = config
        self._clock = clock
        self._chance = chance
        self._hosts = HostTable(len(config.addr))
        first_s, most_s = config.reconnect_initial_backoff_millis, config.reconnect_max_backoff_millis
        self._backoff = Backoff(first_s / _MS_PER_S, most_s / _MS_PER_S)
        self._host = -1
        self._was_connected = False
        self._failures: list[str] = []
        self._failed = 0  # rounds and short-lived connections in a row
        self._resume_at_ns = 0
        self._lost_at_ns = self._opened_at_ns = clock.monotonic_ns()

    def next_host(self) -> int | None:
        """The host to try now; None while there is a pause."""
        if self._clock.monotonic_ns() < self._resume_at_ns:
            return None
        host = self._hosts.pick()
        assert host is not None, "a round ends with its last failure"
        return host

    @property
    def pause_s(self) -> float:
        """How long the pause lasts from now."""
        return max(0.0, (self._resume_at_ns - self._clock.monotonic_ns()) / NS_PER_S)

    def failed(self, host: int, failure: DialFailure) -> tuple[list[ConnectionEvent], HoldfastError | None]:
        """The attempt came to nothing; the error is there when there will be no other."""
        self.attempts += 1
        events = [self._event(EventKind.ENDPOINT_ATTEMPT_FAILED, host, reason=failure.reason)]
        if failure.outcome in {Outcome.REFUSED, Outcome.INCOMPATIBLE}:
            return [*events, self._event(EventKind.AUTH_FAILED, host, reason=failure.reason)], failure.error
        if failure.outcome is Outcome.UNREACHABLE:
            self._hosts.failed(host)
        else:
            self._hosts.rejected_role(host, transient=failure.outcome is Outcome.ROLE_SOON)
        self._failures.append(f"{self._address(host)}: {failure.reason}")
        if self._hosts.pick() is not None:
            return events, None
        failures, self._failures = self._failures, []
        events.append(self._event(EventKind.ALL_ENDPOINTS_UNREACHABLE, -1, reason="; ".join(failures)))
        if self._is_start_over():
            return events, NotConnected(failures=failures, waited_s=self.outage_s)
        self._pause()
        self._hosts.begin_round(forget=True)
        return events, None

    def opened(self, host: int) -> ConnectionEvent:
        """The server took the connection."""
        self.attempts += 1
        kind = EventKind.CONNECTED
        if self._was_connected:
            kind = EventKind.RECONNECTED if host == self._host else EventKind.FAILED_OVER
        event = self._event(kind, host, previous=self._host, outage_s=self.outage_s)
        self._hosts.succeeded(host)
        self._host, self._failures, self.attempts = host, [], 0
        self.is_online = self._was_connected = True
        self.connected_to = self._address(host)
        self._opened_at_ns = self._clock.monotonic_ns()
        return event

    def closed(self, reason: str) -> ConnectionEvent:
        """The connection is gone."""
        now_ns = self._clock.monotonic_ns()
        self.is_online = False
        self._lost_at_ns = now_ns
        self._hosts.broke(self._host)
        self._hosts.begin_round(forget=False)
        if now_ns - self._opened_at_ns >= SETTLED_NS:
            self._failed = 0
        else:
            self._pause()
        return self._event(EventKind.DISCONNECTED, self._host, reason=reason)

    def restored(self) -> ConnectionEvent:
        """Everything is as it was before the connection was lost."""
        return self._event(EventKind.STATE_RESTORED, self._host)

    def wait(self) -> None:
        """The server took the connection and cannot serve yet: pause before the next attempt."""
        self._pause()

    @property
    def outage_s(self) -> float:
        """How long there has been no connection."""
        return (self._clock.monotonic_ns() - self._lost_at_ns) / NS_PER_S

    def _is_start_over(self) -> bool:
        start = self._config.initial_connect_retry
        if self._was_connected or start == "async":
            return False
        return start == "off" or self.outage_s * _MS_PER_S >= self._config.reconnect_max_duration_millis

    def _pause(self) -> None:
        self._failed += 1
        pause_s = self._backoff.pause_s(self._failed, self._chance)
        self._resume_at_ns = self._clock.monotonic_ns() + round(pause_s * NS_PER_S)

    def _address(self, host: int) -> str:
        return str(self._config.addr[host]) if host >= 0 else ""

    def _event(
        self, kind: EventKind, host: int, *, reason: str = "", previous: int = -1, outage_s: float = 0.0
    ) -> ConnectionEvent:
        return ConnectionEvent(
            kind=kind,
            address=self._address(host),
            previous_address=self._address(previous),
            reason=reason,
            attempts=self.attempts,
            outage_s=outage_s,
            at_ns=self._clock.wall_ns(),
        )
