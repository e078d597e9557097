"""Processes that start in milliseconds: one process has everything imported and forks a child for every order.

A loop of two thousand kills would otherwise spend its time on starting interpreters. A child is a process like any
other: it runs a function, its standard output is a pipe to the test, and SIGKILL ends it at any instruction.

    test ── order, end of a pipe ──► nursery ── fork ──► child ── lines ──► test
         ◄── pid, or exit status ───

The nursery waits for a child that is to be dead, so that its locks are free when `kill` returns.
"""

from __future__ import annotations

import gc
import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Callable
from contextlib import redirect_stderr, redirect_stdout, suppress
from importlib import import_module
from io import StringIO
from pathlib import Path
from types import TracebackType
from typing import IO, NoReturn

from holdfast.sender.rows import load_conversions

ROOT = Path(__file__).parents[2]
PRELOADED = (
    *("holdfast.cli.main", "holdfast.cli.serve"),
    *("tests.e2e.command_process", "tests.e2e.producer_process", "tests.e2e.consumer_process"),
    *("tests.e2e.rival_process", "tests.crash.slot_process"),
)
_ORDER_BYTES_MAX = 1 << 16


class Child:
    """A child of the nursery; `output` are its lines."""

    def __init__(self, nursery: Nursery, pid: int, output: IO[str]) -> None:
        self.pid = pid
        self.output = output
        self.status: int | None = None
        self._nursery = nursery

    def kill(self) -> int:
        """SIGKILL, and its exit status."""
        return self.signal(signal.SIGKILL)

    def signal(self, number: signal.Signals = signal.SIGTERM) -> int:
        """Send a signal that ends it, and wait; its exit status, negative for a signal."""
        os.kill(self.pid, number)
        return self.wait()

    def wait(self) -> int:
        """Until it has ended; its exit status."""
        if self.status is None:
            self.status = self._nursery.reap(self.pid)
        return self.status


class Nursery:
    """Starts children until the block ends."""

    def __init__(self) -> None:
        self._ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._living: set[int] = set()
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "tests.e2e.nursery", str(theirs.fileno())],
                pass_fds=[theirs.fileno()],
                cwd=ROOT,
                env={**os.environ, "PYTHONPATH": f"{ROOT}{os.pathsep}{ROOT / 'src'}", "OPENBLAS_NUM_THREADS": "1"},
            )

    def start(self, function: str, *arguments: object, errors: Path | None = None) -> Child:
        """Fork a child that calls `module:function` with these arguments."""
        reader, writer = os.pipe()
        order = {"call": function, "arguments": arguments, "errors": str(errors or os.devnull)}
        socket.send_fds(self._ours, [json.dumps(order).encode()], [writer])
        os.close(writer)
        pid = self._answer()
        self._living.add(pid)
        return Child(self, pid, os.fdopen(reader, encoding="utf-8"))

    def reap(self, pid: int) -> int:
        """Until a child has ended; its exit status."""
        self._ours.send(json.dumps({"reap": pid}).encode())
        status = self._answer()
        self._living.discard(pid)
        return status

    def _answer(self) -> int:
        answer = self._ours.recv(_ORDER_BYTES_MAX)
        assert answer, "the nursery has ended"
        return int(answer)

    def __enter__(self) -> Nursery:
        return self

    def __exit__(
        self, _type: type[BaseException] | None, _error: BaseException | None, _trace: TracebackType | None
    ) -> None:
        for pid in list(self._living):
            os.kill(pid, signal.SIGKILL)
            self.reap(pid)
        self._ours.close()
        self._process.wait(60)


# --- in the process -------------------------------------------------------------------------------------------------


def _function(name: str) -> Callable[..., object]:
    module, _, attribute = name.partition(":")
    found: Callable[..., object] = getattr(import_module(module), attribute)
    return found


def _become(order: dict[str, object], writer: int) -> NoReturn:
    """In the child: run the function, and never return."""
    status = 1
    try:
        os.dup2(writer, 1)
        errors = os.open(str(order["errors"]), os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        os.dup2(errors, 2)
        os.closerange(3, max(writer, errors) + 1)
        arguments = order["arguments"]
        assert isinstance(arguments, list)
        _function(str(order["call"]))(*arguments)
        status = 0
    except SystemExit as end:
        status = end.code if isinstance(end.code, int) else 1
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status)


def _serve(orders: socket.socket) -> None:
    while True:
        message, fds, _, _ = socket.recv_fds(orders, _ORDER_BYTES_MAX, 1)
        if not message:
            return
        order = json.loads(message)
        if "reap" in order:
            answer = os.waitstatus_to_exitcode(os.waitpid(order["reap"], 0)[1])
        else:
            answer = os.fork()
            if answer == 0:
                _become(order, fds[0])
        for fd in fds:
            os.close(fd)
        orders.send(str(answer).encode())


if __name__ == "__main__":
    for name in PRELOADED:
        import_module(name)
    with suppress(SystemExit), redirect_stdout(StringIO()), redirect_stderr(StringIO()):
        _function("tests.e2e.command_process:main")(["verify", os.devnull])  # imports what reads a command line
    load_conversions()  # or each child that opens a sender takes a second
    gc.freeze()  # children share what is there, instead of copying it at their first collection
    with socket.socket(fileno=int(sys.argv[1])) as connection:
        _serve(connection)
