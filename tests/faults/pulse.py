"""Whether a server still answers those who want nothing of its disk: a ping, and GET /healthz."""

from __future__ import annotations

import http.client
from urllib.parse import urlsplit

from holdfast.clock import NS_PER_S, SystemClock
from tests.e2e.nursed import NursedServer
from tests.unit.server.harness import PATIENCE_S, PING, PONG, RawClient

PING_NS_MAX = NS_PER_S
"""What a ping may take while a disk is slow or stands still; for long profiles, as it is a time of the machine, too."""


class Pulse:
    """Both round trips, again and again, on one connection that sends nothing else; a failed one fails the test."""

    def __init__(self, server: NursedServer, idle: RawClient) -> None:
        self._admin = urlsplit(server.admin)
        self._idle = idle
        self._clock = SystemClock()
        self.beats = 0
        self.slowest_ns = 0

    @property
    def slowest_ms(self) -> int:
        """Of the slowest round trip, for the figures."""
        return round(self.slowest_ns / NS_PER_S * 1000)

    def feel(self) -> None:
        """One of each; the longer of the two counts."""
        begin_ns = self._clock.monotonic_ns()
        connection = http.client.HTTPConnection(self._admin.hostname or "", self._admin.port, timeout=PATIENCE_S)
        connection.request("GET", "/healthz")
        assert connection.getresponse().status == 200
        connection.close()
        between_ns = self._clock.monotonic_ns()
        self._idle.send(b"there?", opcode=PING)
        while self._idle.receive() != (PONG, b"there?"):
            pass
        end_ns = self._clock.monotonic_ns()
        self.slowest_ns = max(self.slowest_ns, between_ns - begin_ns, end_ns - between_ns)
        self.beats += 1
