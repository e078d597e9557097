"""`holdfast serve` in a process of its own, for the benchmarks that need one."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from bench.workload import ROOT

STOP_S = 120.0
"""A server seals what it holds before it ends."""


class Served(NamedTuple):
    """A server to send to."""

    url: str
    """Where its WebSockets are, without a path."""
    pid: int
    admin: str = ""

    @property
    def address(self) -> str:
        """Its host and port, as `addr=` takes them."""
        return self.url.removeprefix("ws://")

    def cpu_s(self) -> float:
        """The processor time it has taken."""
        fields = Path(f"/proc/{self.pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def rss_mb(self) -> float:
        """Its resident memory."""
        pages = int(Path(f"/proc/{self.pid}/statm").read_text(encoding="utf-8").split()[1])
        return pages * os.sysconf("SC_PAGE_SIZE") / 1e6


@contextmanager
def serving(directory: Path, *options: str) -> Iterator[Served]:
    """A server on ports of its own."""
    command = [sys.executable, "-m", "holdfast.cli.main", "serve", "--data", str(directory),
               "--listen", "127.0.0.1:0", "--admin", "127.0.0.1:0", *options]  # fmt: skip
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, cwd=ROOT) as process:
        try:
            assert process.stdout is not None
            ready = dict(word.split("=", 1) for word in process.stdout.readline().split()[2:])
            yield Served(ready["data"], process.pid, ready["admin"])
        finally:
            process.terminate()
            process.communicate(timeout=STOP_S)
