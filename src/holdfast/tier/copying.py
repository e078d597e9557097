"""One segment into the tier and back, a bounded part at a time.

Into it: read the file and compare it with the catalog, create the object, read the object back and compare it again.
What is there under the name but is not the segment is removed and written anew; that is safe, since no manifest entry
lists it yet and the name says the content. Out of it: fetch to a second name, compare, sync, rename, sync.

Promise: `store` returns only after every byte was read back and was right (G5); `fetch` leaves a whole, right file or
nothing (G9).
"""

from __future__ import annotations

import hashlib
import logging
from pathlib import Path

from holdfast.disk.checksum import crc32c
from holdfast.disk.filesystem import Bytes, File, Filesystem, Mode
from holdfast.errors import CorruptData, DamagedObject
from holdfast.telemetry import event
from holdfast.tier.manifest import SegmentNote
from holdfast.tier.objects import Objects

PART_BYTES = 4 << 20
"""What is held of a segment at a time, besides the mapped file."""
ATTEMPTS = 3
"""How often an object that reads back wrong is written anew before the caller waits and tries again."""


def digest(file: File, *, size_bytes: int, expected_crc32c: int) -> str:
    """The SHA-256 of a segment's file; `CorruptData` if it is not what the catalog says."""
    sha, crc, position = hashlib.sha256(), 0, 0
    while data := file.pread(PART_BYTES, position):
        sha.update(data)
        crc = crc32c(data, crc)
        position += len(data)
    if position != size_bytes or crc != expected_crc32c:
        reason = f"has {position} bytes and checksum {crc:08x}, the catalog says {size_bytes} and {expected_crc32c:08x}"
        raise CorruptData(file=file.path, offset_bytes=0, reason=reason)
    return sha.hexdigest()


def store(objects: Objects, key: str, data: Bytes, *, size_bytes: int, expected_crc32c: int) -> None:
    """Put an object there and prove that it is; repeated after any failure it does no harm."""
    damage: str | None = None
    for _ in range(ATTEMPTS):
        objects.create(key, data)
        damage = difference(objects, key, size_bytes=size_bytes, expected_crc32c=expected_crc32c)
        if damage is None:
            return
        event("tier.object.damage", level=logging.WARNING, key=key, reason=damage)
        objects.remove(key)
    raise DamagedObject(url=objects.url, key=key, reason=f"{damage}, written {ATTEMPTS} times")


def difference(objects: Objects, key: str, *, size_bytes: int, expected_crc32c: int) -> str | None:
    """How an object differs from what it should be; None if it does not."""
    stored_bytes = objects.size_bytes(key)
    if stored_bytes != size_bytes:
        return f"has {stored_bytes} bytes instead of {size_bytes}"
    crc = position = 0
    for data in objects.parts(key):
        crc = crc32c(data, crc)
        position += len(data)
    if position == size_bytes and crc == expected_crc32c:
        return None
    return f"has checksum {crc:08x} over {position} bytes instead of {expected_crc32c:08x}"


def fetch(objects: Objects, note: SegmentNote, filesystem: Filesystem, target: Path, *, durable: bool = True) -> None:
    """Bring a segment to `target`, in place of what is there; `DamagedObject` if the object is not the segment.

    What need not be `durable` is not synced: a copy that is compared again after a crash.
    """
    temporary = target.with_name(target.name + ".tmp")
    if filesystem.exists(temporary):
        filesystem.unlink(temporary)
    file = filesystem.open(temporary, Mode.CREATE)
    try:
        crc = position = 0
        for data in objects.parts(note.key):
            file.pwritev([data], position)
            crc = crc32c(data, crc)
            position += len(data)
        if position != note.size_bytes or crc != note.crc32c:
            reason = f"has {position} bytes and checksum {crc:08x}, expected {note.size_bytes} and {note.crc32c:08x}"
            raise DamagedObject(url=objects.url, key=note.key, reason=reason)
        if durable:
            file.sync()
        file.close()
        filesystem.rename(temporary, target)
        if durable:
            filesystem.sync_dir(target.parent)
    finally:
        file.close()
        if filesystem.exists(temporary):
            filesystem.unlink(temporary)
