"""The writing side of the write-ahead log.

Promise: every file stands alone. It opens with the floors of all numbers, and the schema of a frame stands before the
frame in the same file. So deleting older files never takes away what a later frame needs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa

from holdfast.disk import records
from holdfast.disk.appendlog import AppendLog, LogSpec, NewRecord
from holdfast.disk.filesystem import Filesystem
from holdfast.model.positions import ChannelId
from holdfast.store.wal.codec import Floors, SchemaNote, encode_floors, encode_schema_note

WAL_NAME = "wal"


@dataclass(frozen=True, slots=True)
class SchemaVersion:
    """One schema of one channel, with the number that stands for it in this process's log files."""

    id: int
    channel_id: ChannelId
    channel: str
    schema: pa.Schema
    has_dictionaries: bool


class Wal:
    """One thread writes; `trim` and `size_bytes` may be called from another."""

    def __init__(
        self,
        filesystem: Filesystem,
        directory: Path,
        *,
        spec: LogSpec,
        store_id: bytes,
        number: int,
        position: int,
        floors: Callable[[], Floors],
    ) -> None:
        self._floors = floors
        self._announced: set[int] = set()
        self.log = AppendLog(
            filesystem,
            directory,
            spec=spec,
            store_id=store_id,
            number=number,
            position=position,
            prologue=self._prologue,
        )

    def make_room(self, payload_bytes: int, versions: Iterable[SchemaVersion], frames: int) -> None:
        """Rotate if a group of that size does not fit into the current file."""
        new = {version.id: version for version in versions if version.id not in self._announced}
        notes = sum(len(_note(version).schema) + 256 for version in new.values())
        if not self.log.fits(payload_bytes + notes + frames * (records.HEADER_BYTES + 128)):
            self.log.rotate()

    def notes(self, versions: Iterable[SchemaVersion]) -> list[NewRecord]:
        """The schema records that must come before frames that use these versions in this file."""
        new = {version.id: version for version in versions if version.id not in self._announced}
        self._announced.update(new)
        return [encode_schema_note(_note(version)) for version in new.values()]

    def _prologue(self) -> list[NewRecord]:
        self._announced.clear()
        return [encode_floors(self._floors())]


def _note(version: SchemaVersion) -> SchemaNote:
    return SchemaNote(version.channel_id, version.id, version.channel, version.schema.serialize().to_pybytes())
