"""A real `holdfast serve` process with its data in a directory, started again as often as needed."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from collections import deque
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType

from holdfast import Store

PATIENCE_S = 60.0
"""How long a process may take to start or to end before a test fails."""


HELD_MAX = 128
"""Ports that are held at a time: more than a test uses, and less than what a process may open."""
_held: deque[int] = deque()


def free_port() -> int:
    """A port of ours: a server can be started on it again and again, and nobody is handed it while no server is there.

    A socket that never listens stays bound to it. Beside that one a server can listen, as servers set SO_REUSEADDR or
    SO_REUSEPORT; who connects while there is none is refused.
    """
    with socket.socket() as holder:
        holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        holder.bind(("127.0.0.1", 0))
        port = int(holder.getsockname()[1])
        _held.append(holder.detach())
    if len(_held) > HELD_MAX:
        os.close(_held.popleft())
    return port


class ServedProcess:
    """One server process after the other on the same directory and port."""

    def __init__(
        self, directory: Path, *options: str, port: int = 0, environment: dict[str, str] | None = None
    ) -> None:
        self.directory = directory
        self.port = port or free_port()
        self.admin = ""
        self.ready_line = ""
        self.errors = directory.parent / f"{directory.name}.stderr"
        self._options = options
        self._environment = {**os.environ, **(environment or {})}
        self._process: subprocess.Popen[str] | None = None

    def command(self, options: Sequence[str] = ()) -> list[str]:
        """The command line."""
        return [
            *(sys.executable, "-m", "holdfast.cli.main", "serve", "--data", str(self.directory)),
            *("--listen", f"127.0.0.1:{self.port}", "--admin", "127.0.0.1:0", *self._options, *options),
        ]

    def start(self, *options: str) -> ServedProcess:
        """Start and wait until it is ready."""
        with self.errors.open("ab") as errors:
            self._process = subprocess.Popen(
                self.command(options), stdout=subprocess.PIPE, stderr=errors, text=True, env=self._environment
            )
        assert self._process.stdout is not None
        self.ready_line = self._process.stdout.readline()
        assert self.ready_line.startswith("holdfast ready "), self.errors.read_text()
        words = dict(word.split("=", 1) for word in self.ready_line.split()[2:])
        self.port, self.admin = int(words["data"].rpartition(":")[2]), words["admin"]
        return self

    @property
    def process(self) -> subprocess.Popen[str]:
        """The process of now."""
        assert self._process is not None
        return self._process

    def kill(self) -> None:
        """SIGKILL."""
        self.process.kill()
        self._end()

    def signal(self, number: signal.Signals) -> None:
        """Send a signal."""
        self.process.send_signal(number)

    def terminate(self) -> int:
        """SIGTERM; the exit code."""
        self.signal(signal.SIGTERM)
        return self._end()

    def wait(self) -> int:
        """The exit code of a process that ends by itself."""
        return self._end()

    def _end(self) -> int:
        code = self.process.wait(PATIENCE_S)
        assert self.process.stdout is not None
        self.process.stdout.close()
        return code

    def rows(self, channel: str, column: str) -> list[object]:
        """What the directory holds; the process must have ended."""
        with Store.open(self.directory) as store:
            if channel not in store.channels():
                return []
            batches = store.read(channel, columns=[column])
            return [value for batch in batches for value in batch.column(0).to_pylist()]

    def __enter__(self) -> ServedProcess:
        return self if self._process is not None else self.start()

    def __exit__(
        self, _type: type[BaseException] | None, _error: BaseException | None, _trace: TracebackType | None
    ) -> None:
        if self._process is not None and self._process.poll() is None:
            self.kill()
