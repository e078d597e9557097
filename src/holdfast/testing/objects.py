"""An object store in memory, and one that fails as told.

Promise: `MemoryObjects` keeps the contract of `holdfast.tier.objects`. `FaultyObjects` stands before another one and
lets chosen requests fail, each in one way:

| fault | what happens |
|---|---|
| `BEFORE` | an error, and nothing was done: 500, 503, no connection |
| `AFTER` | it was done, and then an error: the answer was lost |
| `PARTIAL` | a read gives half of what was asked for; a write is an error |
| `GARBLED` | a read gives other bytes; a write stores other bytes and says that all is well |
| `TAKEN` | a create says that the name is taken, whether or not it is (412); others fail as `BEFORE` |

Requests are counted from 0 in the order they come.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping
from enum import Enum
from typing import TypeVar

from holdfast.disk.filesystem import Bytes
from holdfast.errors import DamagedObject, TierUnavailable
from holdfast.tier.objects import Objects

_T = TypeVar("_T")


class Fault(Enum):
    """How a request fails."""

    BEFORE = "before"
    AFTER = "after"
    PARTIAL = "partial"
    GARBLED = "garbled"
    TAKEN = "taken"


class MemoryObjects:
    """Objects in a dictionary. Thread-safe."""

    def __init__(self, *, overwrites: bool = False) -> None:
        """`overwrites`: behave like a service that ignores the condition of a create."""
        self.objects: dict[str, bytes] = {}
        self.name = "objects"
        self._overwrites = overwrites
        self._lock = threading.Lock()

    @classmethod
    def of(cls, other: MemoryObjects) -> MemoryObjects:
        """A copy of another one, as it is now."""
        copy = cls()
        copy.objects = dict(other.objects)
        return copy

    @property
    def url(self) -> str:
        """Only for texts."""
        return f"memory://{self.name}"

    def create(self, key: str, data: Bytes) -> bool:
        """Keep a copy."""
        with self._lock:
            if key in self.objects and not self._overwrites:
                return False
            self.objects[key] = bytes(memoryview(data))
            return True

    def read(self, key: str) -> bytes:
        """The copy."""
        try:
            return self.objects[key]
        except KeyError:
            raise DamagedObject(url=self.url, key=key, reason="is not there") from None

    def parts(self, key: str) -> Iterator[bytes]:
        """In two."""
        data = self.read(key)
        yield data[: len(data) // 2]
        yield data[len(data) // 2 :]

    def range(self, key: str, start: int, end: int) -> bytes:
        """A part of it."""
        return self.read(key)[start:end]

    def size_bytes(self, key: str) -> int:
        """Its length."""
        return len(self.read(key))

    def names(self, folder: str, *, after: str = "") -> Iterator[str]:
        """Sorted."""
        with self._lock:
            names = sorted(self.objects)
        return (name for name in names if name.startswith(f"{folder}/") and name > after)

    def remove(self, key: str) -> None:
        """Forget it."""
        with self._lock:
            self.objects.pop(key, None)


class FaultyObjects:
    """Another object store, with faults in the way."""

    def __init__(
        self, inner: Objects, faults: Mapping[int, Fault] | Callable[[int], Fault | None] | None = None
    ) -> None:
        """`faults` says which requests fail and how: a table, or whoever is asked for each number."""
        self._inner = inner
        self._fault_of = faults if callable(faults) else dict(faults or {}).get
        self._lock = threading.Lock()
        self.requests: list[str] = []
        """What was asked, as `verb key`."""
        self.broken = False
        """While true, every request fails as `BEFORE`."""

    @property
    def url(self) -> str:
        """That of the other."""
        return self._inner.url

    def create(self, key: str, data: Bytes) -> bool:
        """May fail in any way."""
        fault = self._next("create", key)
        if fault is Fault.TAKEN:
            return False
        if fault is Fault.GARBLED:
            return self._inner.create(key, _garbled(bytes(memoryview(data))))
        return self._act(fault, "create", lambda: self._inner.create(key, data))

    def read(self, key: str) -> bytes:
        """May be too little, or wrong."""
        return self._read("read", key, lambda: self._inner.read(key))

    def parts(self, key: str) -> Iterator[bytes]:
        """May end early, or be wrong."""
        yield self._read("parts", key, lambda: b"".join(self._inner.parts(key)))

    def range(self, key: str, start: int, end: int) -> bytes:
        """May be too little, or wrong."""
        return self._read("range", key, lambda: self._inner.range(key, start, end))

    def size_bytes(self, key: str) -> int:
        """May fail."""
        return self._act(self._next("size", key), "size", lambda: self._inner.size_bytes(key))

    def names(self, folder: str, *, after: str = "") -> Iterator[str]:
        """May fail."""
        fault = self._next("names", folder)
        return iter(self._act(fault, "names", lambda: list(self._inner.names(folder, after=after))))

    def remove(self, key: str) -> None:
        """May fail, done or not."""
        self._act(self._next("remove", key), "remove", lambda: self._inner.remove(key))

    def _next(self, verb: str, key: str) -> Fault | None:
        with self._lock:
            self.requests.append(f"{verb} {key}")
            return Fault.BEFORE if self.broken else self._fault_of(len(self.requests) - 1)

    def _read(self, verb: str, key: str, action: Callable[[], bytes]) -> bytes:
        fault = self._next(verb, key)
        data = self._act(None if fault in {Fault.PARTIAL, Fault.GARBLED} else fault, verb, action)
        if fault is Fault.PARTIAL:
            return data[: len(data) // 2]
        return _garbled(data, bit=2) if fault is Fault.GARBLED else data  # not the bit of a write: two make no right

    def _act(self, fault: Fault | None, verb: str, action: Callable[[], _T]) -> _T:
        if fault in {Fault.BEFORE, Fault.PARTIAL, Fault.GARBLED, Fault.TAKEN}:
            raise TierUnavailable(url=self.url, action=verb, reason="a fault of the test")
        result = action()
        if fault is Fault.AFTER:
            raise TierUnavailable(url=self.url, action=verb, reason="a fault of the test, after it was done")
        return result


def _garbled(data: bytes, *, bit: int = 1) -> bytes:
    return bytes([data[0] ^ bit]) + data[1:] if data else b"\0"
