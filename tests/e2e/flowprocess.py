"""A real `holdfast pipeline run` process with a node graph, started again as often as needed."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path
from types import TracebackType

from tests.e2e.served import PATIENCE_S


class FlowProcess:
    """One process after the other on the same file."""

    def __init__(self, file: Path) -> None:
        self.file = file
        self.addresses: dict[str, str] = {}
        self.errors = file.with_suffix(".stderr")
        self._process: subprocess.Popen[str] | None = None

    def start(self, *, cores: int = 1) -> FlowProcess:
        """Start and wait until it is ready."""
        command = [sys.executable, "-m", "holdfast.cli.main", "pipeline", "run", str(self.file)]
        command += ["--cores", str(cores)] if cores > 1 else []
        with self.errors.open("ab") as errors:
            self._process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=errors, text=True)
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        assert line.startswith("holdfast ready "), line + self.errors.read_text()
        self.addresses = dict(word.split("=", 1) for word in line.split()[2:])
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

    def terminate(self) -> int:
        """SIGTERM; the exit code."""
        self.process.send_signal(signal.SIGTERM)
        return self._end()

    def _end(self) -> int:
        code = self.process.wait(PATIENCE_S)
        assert self.process.stdout is not None
        self.process.stdout.close()
        self._process = None
        return code

    def __enter__(self) -> FlowProcess:
        return self.start()

    def __exit__(
        self, _type: type[BaseException] | None, _error: BaseException | None, _trace: TracebackType | None
    ) -> None:
        if self._process is not None:
            self.kill()
