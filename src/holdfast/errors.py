"""Every error Holdfast raises, sorted by what the caller can do about it.

    HoldfastError
    ├── RetryLater             nothing is wrong with the call; the same call may work later
    │   ├── Backpressure       a configured bound is reached; waits first, then says used and cap
    │   ├── ChannelFull        a channel that refuses new events is at its limit
    │   ├── DiskFull           the filesystem has no room; nothing was written
    │   └── Locked             another process owns this directory; names its pid
    ├── BadRequest             the call is wrong; nothing was changed
    │   ├── InvalidName        a channel or subscriber name outside the allowed alphabet
    │   ├── InvalidConfig      an unknown key, a bad value, or two settings that contradict
    │   ├── InvalidBatch       a batch that may not be stored: bad bytes, types or size
    │   ├── LimitReached       no more channels, or no more subscribers of a channel, are allowed
    │   ├── SchemaMismatch     a column that does not fit its channel
    │   └── UnknownChannel     reading from a channel that does not exist
    ├── DamagedData            bytes on disk are not what was written
    │   ├── CorruptData        a checksum or a structure is wrong; names file and byte
    │   └── UnsupportedFormat  written by a version this one does not read
    ├── StoreFailed            an I/O error ended this store; reopen it to go on
    └── Closed                 the object was closed before the call

Texts are lower case and name the file and byte, or the name and value. Fields carry the same facts for programs.
"""

from __future__ import annotations

from pathlib import Path


class HoldfastError(Exception):
    """The root of the tree: catching it catches everything Holdfast raises on purpose."""


class RetryLater(HoldfastError):
    """Nothing is wrong with the call; the same call may work later."""


class Backpressure(RetryLater):
    """A configured bound is reached and did not fall while the caller waited."""

    def __init__(self, *, bound: str, used_bytes: int, cap_bytes: int, waited_s: float, slowest: str = "") -> None:
        blame = f"; subscriber {slowest!r} keeps the most" if slowest else ""
        super().__init__(
            f"{bound} is full: {used_bytes} of {cap_bytes} bytes used after waiting {waited_s:.1f} s{blame}; "
            "the call was not accepted and can be repeated"
        )
        self.slowest = slowest
        self.bound = bound
        self.used_bytes = used_bytes
        self.cap_bytes = cap_bytes
        self.waited_s = waited_s


class ChannelFull(RetryLater):
    """A channel with `discard: new` is at a limit; the frame was refused as a whole."""

    def __init__(self, *, channel: str, limit: str, allowed: int) -> None:
        super().__init__(f"channel {channel!r} is at {limit}={allowed} and discards new events; the frame was refused")
        self.channel = channel
        self.limit = limit
        self.allowed = allowed


class DiskFull(RetryLater):
    """The filesystem has no room for the file named; nothing of the call was kept."""

    def __init__(self, *, file: Path, reason: str) -> None:
        super().__init__(f"no space left to write {file}: {reason}; free space and repeat the call")
        self.file = file
        self.reason = reason


class Locked(RetryLater):
    """Another process owns this directory."""

    def __init__(self, *, file: Path, holder_pid: int | None) -> None:
        holder = f"process {holder_pid}" if holder_pid is not None else "another process"
        super().__init__(f"{file.parent} is in use by {holder} (lock {file.name}); stop it or choose another directory")
        self.file = file
        self.holder_pid = holder_pid


class BadRequest(HoldfastError):
    """The call is wrong; nothing was changed. Mend the call before repeating it."""


class InvalidName(BadRequest):
    """A name outside the allowed alphabet, or one that would collide."""

    def __init__(self, *, what: str, name: str, reason: str) -> None:
        super().__init__(f"{what} name {name!r} is not allowed: {reason}")
        self.what = what
        self.name = name
        self.reason = reason


class InvalidConfig(BadRequest):
    """A setting that is unknown, out of range, or contradicts another."""

    def __init__(self, *, key: str, reason: str) -> None:
        super().__init__(f"setting {key}: {reason}")
        self.key = key
        self.reason = reason


class InvalidBatch(BadRequest):
    """A batch that may not be stored."""

    def __init__(self, *, channel: str, reason: str) -> None:
        super().__init__(f"batch for channel {channel!r} refused: {reason}")
        self.channel = channel
        self.reason = reason


class LimitReached(BadRequest):
    """A configured number of things exists already."""

    def __init__(self, *, what: str, limit: str, allowed: int) -> None:
        super().__init__(f"{what}: {limit} is {allowed}; raise it or remove something first")
        self.what = what
        self.limit = limit
        self.allowed = allowed


class SchemaMismatch(BadRequest):
    """A column that does not fit its channel's schema."""

    def __init__(self, *, channel: str, column: str, expected: str, found: str, reason: str) -> None:
        super().__init__(f"channel {channel!r}, column {column!r}: expected {expected}, found {found}: {reason}")
        self.channel = channel
        self.column = column
        self.expected = expected
        self.found = found
        self.reason = reason


class UnknownChannel(BadRequest):
    """No such channel in this store."""

    def __init__(self, *, channel: str) -> None:
        super().__init__(f"channel {channel!r} does not exist; it is created by its first commit")
        self.channel = channel


class DamagedData(HoldfastError):
    """Bytes on disk are not what was written."""


class CorruptData(DamagedData):
    """A checksum or a structure is wrong at one place of one file."""

    def __init__(self, *, file: Path, offset_bytes: int, reason: str, dump: str = "") -> None:
        text = f"{file} is damaged at byte {offset_bytes}: {reason}"
        super().__init__(f"{text}\n{dump}" if dump else text)
        self.file = file
        self.offset_bytes = offset_bytes
        self.reason = reason
        self.dump = dump


class UnsupportedFormat(DamagedData):
    """A file of a format version this release does not read."""

    def __init__(self, *, file: Path, found: int, supported: int) -> None:
        super().__init__(f"{file} has format version {found}; this release reads up to {supported}: upgrade holdfast")
        self.file = file
        self.found = found
        self.supported = supported


class StoreFailed(HoldfastError):
    """An I/O error ended this store: what was in flight may or may not be stored, and nothing more is accepted."""

    def __init__(self, *, file: Path, reason: str) -> None:
        super().__init__(f"{file}: {reason}; the store stopped and accepts nothing more: restart the process")
        self.file = file
        self.reason = reason


class Closed(HoldfastError):
    """The object was closed before the call."""

    def __init__(self, *, what: str) -> None:
        super().__init__(f"{what} is closed")
        self.what = what
