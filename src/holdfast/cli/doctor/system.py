"""Limits, memory, clock and ports of this machine."""

from __future__ import annotations

import ctypes
import errno
import os
import socket
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from holdfast.cli.display import size
from holdfast.cli.doctor.finding import Finding

if TYPE_CHECKING:
    from holdfast.config.file import ConfigFile

DESCRIPTORS_MIN = 8192
"""A connection is one, and so is an open segment."""
MEMORY_BYTES_MIN = 512 << 20
_CLOCK_UNSYNCHRONISED = 5
PORTS = {"server.listen": 9000, "server.admin": 9001}
OTLP_PORTS = {"otlp.listening_addr": 4317, "otlp.http_listening_addr": 4318}


def check_system(*, ports: dict[str, int] | None = None) -> Iterator[Finding]:
    """All of them."""
    yield from _descriptors()
    yield from _memory()
    yield from _clock()
    for key, port in (ports or PORTS).items():
        yield port_finding(key, port)


def ports_of(settings: ConfigFile) -> dict[str, int]:
    """The ports that a server with these settings would listen on; 0 is any."""
    found = {"server.listen": settings.server.listen_address[1], "server.admin": settings.server.admin_address[1]}
    if settings.otlp is not None:
        given = {key: str(settings.otlp.get(key.partition(".")[2]) or "") for key in OTLP_PORTS}
        written = {key: int(text.rpartition(":")[2]) for key, text in given.items() if text}
        found |= written or OTLP_PORTS
    return {key: port for key, port in found.items() if port}


def _descriptors() -> Iterator[Finding]:
    if sys.platform == "win32":
        return
    import resource  # noqa: PLC0415  # not on every system

    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    found = "without limit" if hard == resource.RLIM_INFINITY else f"{hard:,} at most"
    if hard != resource.RLIM_INFINITY and hard < DESCRIPTORS_MIN:
        advice = f"raise it to {DESCRIPTORS_MIN:,} or more: ulimit -Hn, or LimitNOFILE= of the systemd unit"
        yield Finding("open files", "bad", found, advice)
    else:
        yield Finding("open files", "good", found)


def _memory(meminfo: Path = Path("/proc/meminfo")) -> Iterator[Finding]:
    if not meminfo.exists():
        return
    facts = dict(line.split(":", 1) for line in meminfo.read_text(encoding="utf-8").splitlines() if ":" in line)
    available = int(facts.get("MemAvailable", "0").split()[0]) * 1024
    if available < MEMORY_BYTES_MIN:
        advice = "lower memory_limit, or close something: a server under load takes about 200 MB"
        yield Finding("memory", "note", f"{size(available)} available", advice)
    else:
        yield Finding("memory", "good", f"{size(available)} available")


def _clock() -> Iterator[Finding]:
    """Whether the system says that its clock is kept right."""
    if sys.platform != "linux":
        return
    libc = ctypes.CDLL(None, use_errno=True)
    state = libc.adjtimex(ctypes.create_string_buffer(512))  # zeros ask and change nothing
    if state == _CLOCK_UNSYNCHRONISED:
        advice = "run chrony or systemd-timesyncd; ages and times of events follow this clock, their order does not"
        yield Finding("clock", "note", "not synchronised", advice)
    elif state >= 0:
        yield Finding("clock", "good", "synchronised")
    else:
        yield Finding("clock", "note", f"cannot be asked: {os.strerror(ctypes.get_errno())}")


def port_finding(key: str, port: int) -> Finding:
    """Whether a server could listen there."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError as error:
            if error.errno == errno.EADDRINUSE:
                return Finding(f"port {port}", "note", "in use", f"by a server that runs already, or set {key}")
            return Finding(f"port {port}", "bad", error.strerror or str(error), f"set {key} to another one")
    return Finding(f"port {port}", "good", "free")
