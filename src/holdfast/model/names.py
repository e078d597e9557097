"""Which names a channel may have.

A channel's name is a directory's name on three operating systems, so the alphabet is small and closed:
`[A-Za-z0-9][A-Za-z0-9._-]{0,127}`, no `..`, no trailing dot, none of the device names Windows reserves.
"""

from __future__ import annotations

import re

from holdfast.errors import InvalidName

DEAD_SUFFIX = ".dead"
"""Rejected events of channel `x` are kept in channel `x.dead`."""
SUBSCRIBER_NAME = r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}"
_ALLOWED = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}", re.ASCII)
_DEVICES = {"con", "prn", "aux", "nul", *(f"com{n}" for n in range(1, 10)), *(f"lpt{n}" for n in range(1, 10))}


def check_channel_name(name: str) -> None:
    """Raise `InvalidName` unless `name` may be a channel."""
    reason = _objection(name)
    if reason is not None:
        raise InvalidName(what="channel", name=name, reason=reason)


def _objection(name: str) -> str | None:
    if not name:
        return "it is empty"
    if len(name) > 128:
        return f"it has {len(name)} characters, at most 128 are allowed"
    if _ALLOWED.fullmatch(name) is None:
        return "allowed are letters, digits, '.', '_' and '-', the first one a letter or digit"
    if ".." in name or name.endswith("."):
        return "'..' and a trailing '.' are not allowed"
    if name.split(".", 1)[0].lower() in _DEVICES:
        return "it is the name of a device on Windows"
    return None
