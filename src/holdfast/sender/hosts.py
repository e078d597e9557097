"""Which server of the list to try next: what each attempt taught, in rounds.

    state of a host   healthy < unknown < transient reject < transport error < topology reject

`pick` gives the best host that was not tried in this round, the earlier one of equals; None ends the round. A host
that answered is healthy until its connection breaks. A new round tries all of them again; one that `forgets` treats
everything but healthy hosts alike, because what was true before a pause may not be true after it.

Pure. One table belongs to one connection loop; `copy` gives another loop what this one knows.
"""

from __future__ import annotations

from enum import IntEnum

import msgspec


class HostState(IntEnum):
    """How promising a host is; lower is better."""

    HEALTHY = 1
    UNKNOWN = 2
    TRANSIENT_REJECT = 3  # will take writes soon, it says
    TRANSPORT_ERROR = 4
    TOPOLOGY_REJECT = 5  # takes no writes


class _Host(msgspec.Struct):
    state: HostState = HostState.UNKNOWN
    is_attempted: bool = False
    is_role_reject: bool = False


class HostTable:
    """The hosts of one list, by their place in it."""

    def __init__(self, count: int) -> None:
        if count < 1:
            raise ValueError("a list of hosts has at least one")
        self._hosts = [_Host() for _ in range(count)]

    def copy(self) -> HostTable:
        """What is known of the hosts, for a loop of its own, at the start of a round."""
        other = HostTable(len(self._hosts))
        for mine, theirs in zip(self._hosts, other._hosts, strict=True):
            theirs.state = mine.state
        return other

    def state(self, host: int) -> HostState:
        """What is known of one host."""
        return self._hosts[host].state

    def pick(self) -> int | None:
        """The best host that was not tried in this round; None when all were."""
        left = [(host.state, place) for place, host in enumerate(self._hosts) if not host.is_attempted]
        return min(left)[1] if left else None

    def succeeded(self, host: int) -> None:
        """The host took the connection."""
        self._attempted(host, HostState.HEALTHY)

    def rejected_role(self, host: int, *, transient: bool) -> None:
        """The host answered that it takes no writes: not yet, or not at all."""
        self._attempted(host, HostState.TRANSIENT_REJECT if transient else HostState.TOPOLOGY_REJECT)
        self._hosts[host].is_role_reject = True

    def failed(self, host: int) -> None:
        """The host could not be reached, or answered something that is no answer."""
        self._attempted(host, HostState.TRANSPORT_ERROR)

    def broke(self, host: int) -> None:
        """A connection that stood is gone. Call this before `begin_round`, so that another host goes first."""
        self._hosts[host].state = HostState.TRANSPORT_ERROR

    def refused_writes(self, host: int) -> None:
        """A connection that stood was answered that the server does not take writes."""
        self._hosts[host].state = HostState.TRANSIENT_REJECT

    def begin_round(self, *, forget: bool) -> None:
        """Every host may be tried again."""
        for host in self._hosts:
            host.is_attempted = host.is_role_reject = False
            if forget and host.state is not HostState.HEALTHY:
                host.state = HostState.UNKNOWN

    @property
    def is_all_role_reject(self) -> bool:
        """Whether every host of this round answered that it takes no writes: nothing is broken, so waiting is short."""
        return all(host.is_role_reject for host in self._hosts)

    def _attempted(self, host: int, state: HostState) -> None:
        self._hosts[host].state = state
        self._hosts[host].is_attempted = True
