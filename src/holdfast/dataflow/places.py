"""Which of the processes that share a graph this one is, and where it listens then.

    process k of N             the store core-<k>, and of those that more processes left, core-<m> with m mod N = k
    admin.listening_addr P     with one process its own; otherwise the supervisor's, and the store core-<k> is at P+1+k

Promise: every store below `path` belongs to exactly one process, whatever the number of processes is now and was.
"""

from __future__ import annotations

import socket
from collections.abc import Mapping
from contextlib import ExitStack, closing
from dataclasses import dataclass, replace

from holdfast.dataflow.graph import Graph
from holdfast.dataflow.plugins import NodeKind
from holdfast.dataflow.receivers.settings import ReceiverSettings
from holdfast.dataflow.settings import require_address
from holdfast.errors import CannotListen

Doors = Mapping[str, Mapping[str, str]]
"""Addresses by receiver and by key."""


@dataclass(frozen=True, slots=True)
class Place:
    """Number `core` of `cores` processes."""

    core: int = 0
    cores: int = 1

    @property
    def is_shared(self) -> bool:
        """Whether others run the same graph beside this one."""
        return self.cores > 1

    def adopts(self, core: int) -> bool:
        """Whether a store that no process has as its own belongs to this one."""
        return core >= self.cores and core % self.cores == self.core


def admin_of_core(address: str, core: int) -> str:
    """Where the admin HTTP of one core's store is; the system chooses if it chooses the first one."""
    host, port = require_address(address, key="admin.listening_addr")
    shown = f"[{host}]" if ":" in host else host
    return f"{shown}:{port + 1 + core if port else 0}"


def with_doors(graph: Graph, doors: Doors) -> Graph:
    """The graph with receivers at these addresses."""
    nodes = {
        name: replace(node, settings=replace(node.settings, **doors[name])) if name in doors else node
        for name, node in graph.nodes.items()
    }
    return replace(graph, nodes=nodes)


class Reservation:
    """Holds the ports of all receivers for the processes that will share them, until it is closed.

    A socket that is bound and does not listen gets no connections; it keeps the number, and keeps others away.
    """

    def __init__(self, graph: Graph) -> None:
        self.doors: dict[str, dict[str, str]] = {}
        with ExitStack() as sockets:
            for node in graph.of_kind(NodeKind.RECEIVER):
                assert isinstance(node.settings, ReceiverSettings), node.name
                for key, address in node.settings.doors().items():
                    sock = _reserved(address, key=f"nodes.{node.name}.config.{key}")
                    sockets.enter_context(closing(sock))
                    host = address.rpartition(":")[0]
                    self.doors.setdefault(node.name, {})[key] = f"{host}:{sock.getsockname()[1]}"
            self._sockets = sockets.pop_all()

    def close(self) -> None:
        """Let the ports go."""
        self._sockets.close()


def _reserved(address: str, *, key: str) -> socket.socket:
    host, port = require_address(address, key=key)
    if not hasattr(socket, "SO_REUSEPORT"):
        raise CannotListen(key=key, address=address, reason="this system lets one process have a port; use one core")
    try:
        family, kind, protocol, _, target = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        with closing(socket.socket(family, kind, protocol)) as alone:
            alone.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            alone.bind(target)  # fails if anybody listens there, also one who would share
        sock = socket.socket(family, kind, protocol)
        try:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
            sock.bind(target)
        except OSError:
            sock.close()
            raise
    except OSError as error:
        raise CannotListen(key=key, address=address, reason=str(error)) from None
    return sock
