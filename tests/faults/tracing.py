"""Faults at system calls: strace is attached to a running process and bends the answers of the kernel.

    with Injection(pid, "fdatasync:error=EIO:when=3"):   the third fdatasync from now on fails
    with Injection(pid, "fdatasync:delay_exit=500000"):  each takes half a second longer
    with Recording(pid, "openat", file) as calls:        writes the calls down, bends nothing

A failed call is not carried out: the kernel does nothing and answers with the error.
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
from pathlib import Path
from types import TracebackType

from tests.e2e.served import PATIENCE_S


class Tracer:
    """strace, from when all threads of the process are held until the block ends."""

    def __init__(self, pid: int, *options: str, output: Path | None = None) -> None:
        self._pid = pid
        self.output = output or Path(os.devnull)
        self._options = options
        self._process: subprocess.Popen[str] | None = None

    def __enter__(self) -> Tracer:
        command = ["strace", "-f", "-y", "-o", str(self.output), *self._options, "-p", str(self._pid)]
        self._process = subprocess.Popen(command, stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True)
        assert self._process.stderr is not None
        line = self._process.stderr.readline()
        assert "attached" in line, line
        return self

    def __exit__(
        self, _type: type[BaseException] | None, _error: BaseException | None, _trace: TracebackType | None
    ) -> None:
        assert self._process is not None
        if self._process.poll() is None:
            self._process.send_signal(signal.SIGINT)  # lets go of the process, which goes on
        self._process.communicate(timeout=PATIENCE_S)


class Injection(Tracer):
    """Bends calls as `-e inject=` says."""

    def __init__(self, pid: int, inject: str, output: Path) -> None:
        calls = inject.partition(":")[0]
        super().__init__(pid, "-e", f"trace={calls}", "-e", f"inject={inject}", output=output)

    def injected(self) -> int:
        """How many calls were bent."""
        return self.output.read_text(errors="replace").count("(INJECTED)")


_QUOTED = re.compile(r'"((?:[^"\\]|\\.)*)"')


def opened_paths(output: Path) -> list[str]:
    """The names that a recording of `open`, `openat`, `mkdir`, `rename` and the like has, as they were given."""
    lines = output.read_text(errors="replace").splitlines()
    return [name for line in lines for name in _QUOTED.findall(line)]
