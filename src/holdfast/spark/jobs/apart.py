"""Whether two addresses are those of one server (pure). Names are not looked up; those of this machine are known.

It errs to one side: one server under two names of a network counts as two.
"""

from __future__ import annotations

from collections.abc import Iterable
from ipaddress import ip_address

from holdfast.config.values import split_url


def is_among(addr: str, servers: Iterable[str]) -> bool:
    """Whether an admin address is one of these."""
    return _place(addr) in map(_place, servers)


def _place(addr: str) -> tuple[str, int]:
    parts = split_url(addr)
    host = (parts.hostname or "").rstrip(".")
    return "localhost" if _is_here(host) else host, parts.port or (443 if parts.scheme == "https" else 80)


def _is_here(host: str) -> bool:
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
