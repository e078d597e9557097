"""What a fault needs of the machine. A test that lacks it is skipped by its name, and that is written down."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import NoReturn

import pytest

from tests.faults import figures


def _runs(*command: str) -> bool:
    try:
        return subprocess.run(command, capture_output=True, check=False, timeout=30).returncode == 0
    except OSError:
        return False


def _program(name: str) -> Callable[[], bool]:
    return lambda: shutil.which(name) is not None


_PRESENT: dict[str, Callable[[], bool]] = {
    "Linux": lambda: sys.platform == "linux",
    "root": lambda: hasattr(os, "geteuid") and os.geteuid() == 0,
    "loop devices": lambda: Path("/dev/loop-control").exists() and _runs("losetup", "-f"),
    "FUSE": lambda: Path("/dev/fuse").exists(),
    "TUN devices": lambda: Path("/dev/net/tun").exists(),
    "network namespaces": lambda: Path("/proc/self/ns/net").exists() and _runs("ip", "netns", "list"),
    "ptrace": lambda: _runs("strace", "-qq", "-o", os.devnull, "-e", "trace=none", "true"),
    **{
        name: _program(name)
        for name in ("cc", "mkfs.ext4", "mkfs.xfs", "strace", "prlimit", "nsenter", "bandit", "fsfreeze")
    },
}
_known: dict[str, bool] = {}


def need(area: str, *names: str) -> None:
    """Skip the running test if this machine lacks one of them."""
    for name in names:
        if name not in _known:
            _known[name] = _PRESENT[name]()
        if not _known[name]:
            skip(area, name)


def skip(area: str, what: str, how_to_get: str = "") -> NoReturn:
    """Skip the running test, as this machine lacks that."""
    test = os.environ.get("PYTEST_CURRENT_TEST", "").split("::")[-1].split(" ")[0].split("[")[0]
    figures.lacking(area, what, test)
    pytest.skip(f"this machine lacks {what}{how_to_get and f'; get it with: {how_to_get}'}")
