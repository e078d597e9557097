"""The processes of a demo, and what they say.

Promise: every process is this Python with a module of ours. A process that ends by itself is a failure that names its
last words. `destroy` ends a process in whatever state it is.
"""

from __future__ import annotations

import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import IO

import msgspec

from holdfast.cli.demo.producer import Acked, Closed, Message, Opened, Published

START_S_MAX = 90.0
"""What has not started by then will not; a busy machine takes some seconds."""
END_S_MAX = 90.0


class _Process:
    """A child with its standard error in a file."""

    def __init__(self, name: str, arguments: Sequence[str], log: Path) -> None:
        self.name = name
        self._log = log
        self._errors: IO[bytes] = log.open("ab")
        self.process = subprocess.Popen(  # noqa: S603  our own module
            [sys.executable, "-m", *arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
        )

    @property
    def pid(self) -> int:
        return self.process.pid

    def failure(self, what: str) -> ChildProcessError:
        """Why it did not do its part."""
        self.destroy()
        lines = self._log.read_text(encoding="utf-8", errors="replace").strip().splitlines()
        said = lines[-1] if lines else "it said nothing"
        return ChildProcessError(f"the demo's {self.name} {what} (code {self.process.returncode}): {said}")

    def check(self) -> None:
        """Raise if it has ended by itself."""
        if self.process.poll() is not None:
            raise self.failure("ended by itself")

    def kill(self) -> None:
        """SIGKILL."""
        self.process.kill()
        self.process.wait()

    def terminate(self) -> None:
        """SIGTERM, and wait."""
        self.process.send_signal(signal.SIGTERM)
        try:
            code = self.process.wait(END_S_MAX)
        except subprocess.TimeoutExpired:
            raise self.failure("did not stop in time") from None
        if code != 0:
            raise self.failure("did not stop in order")

    def destroy(self) -> None:
        """End it in whatever state it is. Idempotent."""
        self.process.kill()
        self.process.wait()
        for pipe in (self.process.stdin, self.process.stdout, self._errors):
            if pipe is not None:
                pipe.close()


class ServerProcess(_Process):
    """`holdfast serve`."""

    def __init__(self, config: Path, log: Path) -> None:
        super().__init__("server", ["holdfast.cli.main", "serve", "-c", str(config)], log)
        assert self.process.stdout is not None
        line = self.process.stdout.readline().decode()
        if not line.startswith("holdfast ready "):
            raise self.failure("did not start")


class PipelineProcess(_Process):
    """`holdfast pipeline run`; what it prints is not shown."""

    def __init__(self, file: Path, log: Path) -> None:
        super().__init__("pipeline", ["holdfast.cli.main", "pipeline", "run", str(file)], log)
        self._reader = threading.Thread(target=self._read, name="demo-pipeline", daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        for _line in self.process.stdout:
            pass


class Producer(_Process):
    """A producer and the thread that reads its pipe; `arguments` are its module and what that is given."""

    def __init__(self, name: str, arguments: Sequence[str], log: Path, *, note: Callable[[str, Message], None]) -> None:
        super().__init__(name, arguments, log)
        self._note = note
        self._opened: Opened | None = None
        self._sending = threading.Event()
        self._closed = threading.Event()
        self._reader = threading.Thread(target=self._read, name="demo-producer", daemon=True)
        self._reader.start()

    def _read(self) -> None:
        decoder = msgspec.json.Decoder(type=Message)
        assert self.process.stdout is not None
        for line in self.process.stdout:
            message = decoder.decode(line)
            self._note(self.name, message)
            if isinstance(message, Opened):
                self._opened = message
            elif isinstance(message, Published | Acked):
                self._sending.set()
            elif isinstance(message, Closed):
                self._closed.set()

    def wait_until_sending(self) -> Opened:
        """What it found when it opened its slot."""
        if not self._sending.wait(START_S_MAX) or self._opened is None:
            raise self.failure("did not start")
        return self._opened

    def kill(self) -> None:
        """SIGKILL; then what is in the pipe is read."""
        super().kill()
        self._reader.join()

    def finish(self) -> None:
        """Let it end in order: when everything is answered."""
        assert self.process.stdin is not None
        self.process.stdin.close()
        if not self._closed.wait(END_S_MAX):
            raise self.failure("did not get all its answers")
        self.process.wait(END_S_MAX)
