"""Objects in the bucket that no entry of the manifest names: what a crash leaves between two steps.

    an object was created, and its entry never came     evicted before it was listed, or its disk is gone
    an entry was removed, and its object stayed         the process ended between the two
    a probe of a start that was killed

Promise: an object goes only if two looks in a row found it, at least `tier.sweep` apart, and no segment of that number
is on its way. One process writes a tier at a time and lists only what it put on its way itself, so what is not on its
way then will never be listed. The uploader appends an entry before it deletes, so that one who was replaced meanwhile
learns so and deletes nothing. A segment's number is in its name, and a listed segment is known by its whole key.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from holdfast.tier.manifest import SEGMENTS, ManifestState
from holdfast.tier.objects import Objects

PROBES = "probe"


class Sweeper:
    """`look` may be called on any thread; the rest belongs to the uploader's."""

    def __init__(self, objects: Objects, state: ManifestState, *, every_ns: int, now_ns: int) -> None:
        """`every_ns` of 0 is never."""
        self._objects = objects
        self._state = state
        self._every_ns = every_ns
        self._due_ns = now_ns + every_ns
        self._before: frozenset[str] = frozenset()

    def is_due(self, now_ns: int) -> bool:
        """Whether it is time for a look; True once for each."""
        if not self._every_ns or now_ns < self._due_ns:
            return False
        self._due_ns = now_ns + self._every_ns
        return True

    def look(self) -> frozenset[str]:
        """The names of objects that nothing lists."""
        names = [*self._objects.names(SEGMENTS), *self._objects.names(PROBES)]
        return frozenset(name for name in names if not self._is_listed(name))

    def condemn(self, found: Iterable[str], *, is_pending: Callable[[int], bool]) -> list[str]:
        """Those that the look before found, too, and that are still nobody's."""
        found = frozenset(found)
        going = sorted(self._before & found)
        self._before = found
        return [name for name in going if not self._is_listed(name) and not is_pending(_number(name))]

    def _is_listed(self, name: str) -> bool:
        note = self._state.segments.get(_number(name))
        return note is not None and name in (note.key, note.ids_key)


def _number(name: str) -> int:
    """The segment's number in an object's name; -1 if there is none."""
    digits = name.rpartition("/")[2].partition("-")[0]
    return int(digits) if digits.isascii() and digits.isdigit() else -1
