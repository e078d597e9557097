"""Faults at system calls: strace is attached to a running process and bends the answers of the kernel.

    with Injection(pid, "fdatasync:error=EIO:when=3"):   the third fdatasync from now on fails
    with Injection(pid, "fdatasync:delay_exit=500000"):  each takes half a second longer
    with Tracer(pid, "-e", NAMING_CALLS, output=file):   writes the calls down, bends nothing

A failed call is not carried out: the kernel does nothing and answers with the error.
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
from dataclasses import dataclass
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


@dataclass(frozen=True, slots=True)
class Opened:
    """A name that a call was given, in full but not without its dots; or what the kernel opened for it."""

    name: str
    writes: bool
    """Whether the call may change something; of what the kernel opened that stands at the name that was given."""


NAMING_CALLS = "trace=" + ",".join(
    f"?{call}"  # not every machine has all
    for call in (
        *("open", "openat", "openat2", "creat", "mkdir", "mkdirat", "mknod", "mknodat", "rename", "renameat"),
        *("renameat2", "unlink", "unlinkat", "rmdir", "link", "linkat", "symlink", "symlinkat", "truncate"),
    )
)
"""The calls that `opened` reads: they open, make, move or remove what a name stands for."""
_GIVEN = re.compile(r'(?:<([^<>]*)>, )?"((?:[^"\\]|\\.)*)"')
_OPENED = re.compile(r"= \d+<(/[^<>]*)>")
_ONLY_READS = re.compile(r"\bopen(at2?)?\((?!.*\b(O_WRONLY|O_RDWR|O_CREAT|O_TRUNC)\b)")


def opened(output: Path) -> list[Opened]:
    """Every name in a recording of `NAMING_CALLS`; a relative one behind the folder it is relative to, if that is
    known."""
    found = []
    for line in output.read_text(errors="replace").splitlines():
        writes = _ONLY_READS.search(line) is None
        for folder, name in _GIVEN.findall(line):
            found.append(Opened(name if name.startswith("/") or not folder else f"{folder}/{name}", writes))
        found += [Opened(name, writes=False) for name in _OPENED.findall(line)]
    return found
