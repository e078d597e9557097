"""The seam to an object store: what we call, and what each call promises.

Everything the tier keeps goes through `Objects`, so that a test can stand in for a bucket that fails in any way
(`holdfast.testing.FaultyObjects`). `cloud.py` is S3, Google Cloud Storage and Azure; `folder.py` is a folder, local or
shared. All pass one contract suite.

Promises:

- `create` never overwrites. True: the object is stored as a whole and survives. False: there is one of that name,
  whoever made it. When it raises, either may be the case: look before trying again.
- `read` and `parts` give the object as it is stored now; nothing is cached.
- `names` lists what is there; an object created before the call is in it.

Errors: `DamagedObject` for a name that is not there, `TierRefused` for what waiting does not mend, `TierUnavailable`
for everything else.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Protocol

from holdfast.disk.filesystem import Bytes


class Objects(Protocol):
    """A bucket, or the part of one below a prefix. Thread-safe. Names are words separated by `/`."""

    @property
    def url(self) -> str:
        """Where it is; never with a credential."""

    def create(self, key: str, data: Bytes) -> bool:
        """Store a new object; False if the name is taken."""

    def read(self, key: str) -> bytes:
        """The whole object."""

    def parts(self, key: str) -> Iterator[bytes]:
        """The whole object, a few megabytes at a time; who stops early has no more than that in memory."""

    def range(self, key: str, start: int, end: int) -> bytes:
        """Bytes `start` to `end` of an object, the last not included; fewer if it ends before."""

    def size_bytes(self, key: str) -> int:
        """How long the object is."""

    def names(self, folder: str, *, after: str = "") -> Iterator[str]:
        """The names below `folder/`, at any depth, whole, in order, that sort behind `after`."""

    def remove(self, key: str) -> None:
        """Remove an object; one that is not there is no error."""
