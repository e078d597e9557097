"""The audit log: who came, who was refused, what was changed. One JSON object a line.

    {"time": "2026-01-02T03:04:05.678Z", "event": "access.refused", "principal": "app-1", "verb": "publish", …}

| event | when |
|---|---|
| authentication.failed | a credential was missing, unknown, expired or revoked |
| access.refused, slot.refused, limit.refused | a known principal was refused |
| connection.open, connection.close | a producer or consumer came or went |
| credential.ended | a live connection lost its credential |
| token.created, token.revoked, token.removed | the token file was changed while the server ran |
| tokens.unreadable | the token file cannot be read; the tokens of before still hold |
| settings.reloaded, admin.changed | an operator did something |

Promises: no line holds a credential; values that peers choose are cut to 256 characters and cannot break a line. Each
event is bounded to `EVENTS_PER_SECOND` on average, so that a flood of refusals fills no disk; the next line of that
event says how many were left out. The file is replaced at `audit.max_size`. A log that cannot be written is reported
once and counted; it stops nothing but a start.
"""

from __future__ import annotations

import json
import logging
import sys
import threading
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path

from holdfast.clock import Clock
from holdfast.disk.filesystem import File, Filesystem, Mode
from holdfast.server.access.bucket import Bucket
from holdfast.telemetry import event

EVENTS_PER_SECOND = 20
EVENTS_AT_ONCE = 200
VALUE_CHARS_MAX = 256

Sink = Callable[[bytes], None]


class AuditLog:
    """Lines to a sink. Thread-safe."""

    def __init__(self, sink: Sink, clock: Clock) -> None:
        self._sink = sink
        self._clock = clock
        self._lock = threading.Lock()
        self._buckets: dict[str, Bucket] = {}
        self._left_out: dict[str, int] = {}
        self._failing = False
        self.lines = 0
        self.suppressed = 0
        self.failures = 0

    def write(self, name: str, **fields: object) -> None:
        """Write one event; empty values are left out."""
        with self._lock:
            bucket = self._buckets.get(name)
            if bucket is None:
                bucket = self._buckets[name] = Bucket(self._clock, EVENTS_PER_SECOND, burst=EVENTS_AT_ONCE)
            if not bucket.try_take():
                self._left_out[name] = self._left_out.get(name, 0) + 1
                self.suppressed += 1
                return
            line: dict[str, object] = {"time": moment(self._clock.wall_ns()), "event": name}
            line.update((key, _bounded(value)) for key, value in fields.items() if value not in ("", None))
            if left_out := self._left_out.pop(name, 0):
                line["left_out"] = left_out
            self._emit(_as_line(line))

    def _emit(self, line: bytes) -> None:
        try:
            self._sink(line)
            self.lines += 1
            self._failing = False
        except OSError as error:
            self.failures += 1
            if not self._failing:
                event("server.audit.fail", level=logging.ERROR, reason=error)
            self._failing = True


def _as_line(fields: dict[str, object]) -> bytes:
    """One line of ASCII: a name of a stranger neither ends a line nor moves the cursor of whoever reads it."""
    return json.dumps(fields, separators=(",", ":")).replace("\x7f", "\\u007f").encode() + b"\n"


def _bounded(value: object) -> object:
    if isinstance(value, bool | int | float):
        return value
    text = str(value)
    return text if len(text) <= VALUE_CHARS_MAX else text[: VALUE_CHARS_MAX - 1] + "…"


def moment(time_ns: int) -> str:
    """Wall time as ISO 8601 in UTC, to the millisecond."""
    seconds, rest = divmod(time_ns, 10**9)
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%dT%H:%M:%S") + f".{rest // 10**6:03d}Z"


class AuditFile:
    """A sink that appends to a file and replaces it when it is full. Calls are made one at a time."""

    def __init__(self, filesystem: Filesystem, path: Path, *, bytes_max: int) -> None:
        self._filesystem = filesystem
        self._path = path
        self._bytes_max = bytes_max
        self._file: File | None = None
        self._size_bytes = 0

    def __call__(self, line: bytes) -> None:
        file = self._file or self.open()
        if self._size_bytes + len(line) > self._bytes_max and self._size_bytes:
            file = self._replace()
        file.pwritev([line], self._size_bytes)
        self._size_bytes += len(line)

    def open(self) -> File:
        """Open the file, or raise `OSError`; a line does so by itself."""
        mode = Mode.WRITE if self._filesystem.exists(self._path) else Mode.CREATE
        self._file = file = self._filesystem.open(self._path, mode)
        self._size_bytes = file.size_bytes()
        return file

    def _replace(self) -> File:
        self.close()
        self._filesystem.rename(self._path, self._path.with_name(f"{self._path.name}.1"))
        return self.open()

    def close(self) -> None:
        """Close the file; the next line opens it again, so that another program may move it away."""
        if self._file is not None:
            self._file.close()
            self._file = None


def stderr_sink(line: bytes) -> None:
    """Lines to standard error."""
    sys.stderr.write(line.decode())
    sys.stderr.flush()
