"""`holdfast slots export`: what a slot still has to send, as Arrow files that any Arrow reader opens.

Promise: only reads the slot. One file per channel, and another one where the columns change; events in the order they
were published. Frames that cannot be decoded are named, and the rest is written all the same.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import msgspec
import pyarrow as pa

from holdfast.cli.answer import ExitCode, answer_json
from holdfast.cli.display import make_console, several
from holdfast.cli.slots import facts_of, require_slot
from holdfast.clock import SystemClock
from holdfast.disk.local import LocalFilesystem
from holdfast.errors import BadRequest, WireError
from holdfast.model.frame import Entry
from holdfast.sender.encoding import dictionary_of
from holdfast.sender.recovery import frames_of
from holdfast.sender.symboldict import read_symbols
from holdfast.wire import hfa, qwp
from holdfast.wire.limits import FrameLimits

LIMITS = FrameLimits(message_bytes=1 << 31, decoded_bytes=1 << 31)
"""The slot is our own: what was published once is read whatever its size."""


class Exported(msgspec.Struct, kw_only=True):
    """What was written."""

    frames: int = 0
    events: int = 0
    files: list[str] = []
    unreadable: list[str] = []


class _Files:
    """The files of each channel."""

    def __init__(self, folder: Path, exported: Exported) -> None:
        self._folder = folder
        self._exported = exported
        self._open: dict[str, tuple[pa.Schema, pa.ipc.RecordBatchFileWriter]] = {}

    def write(self, entry: Entry, fsn: int) -> None:
        schema, writer = self._open.get(entry.channel, (None, None))
        if schema is None or not schema.equals(entry.batch.schema):
            if writer is not None:
                writer.close()
            path = self._folder / f"{entry.channel}-{fsn}-{len(self._exported.files)}.arrow"
            writer = pa.ipc.new_file(str(path), entry.batch.schema)
            self._open[entry.channel] = entry.batch.schema, writer
            self._exported.files.append(str(path))
        writer.write_batch(entry.batch)
        self._exported.events += entry.batch.num_rows

    def close(self) -> None:
        for _, writer in self._open.values():
            writer.close()


def run(directory: Path, folder: Path, *, as_json: bool) -> ExitCode:
    """Write what the slot has to send."""
    require_slot(directory)
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise BadRequest(f"{folder} is there already; give a new or empty directory")
    facts, found = facts_of(directory)
    exported = Exported()
    if found is not None:
        folder.mkdir(parents=True, exist_ok=True)
        files, filesystem = _Files(folder, exported), LocalFilesystem()
        reader = _Reader(read_symbols(filesystem, directory))
        for fsn, payload in frames_of(filesystem, found, start_fsn=found.acked_fsn + 1):
            exported.frames += 1
            try:
                entries = reader.read(payload)
            except WireError as error:
                exported.unreadable.append(f"frame {fsn}: {error}")
                continue
            for entry in entries:
                files.write(entry, fsn)
        files.close()
    is_done = found is not None and not exported.unreadable
    if as_json:
        answer_json("slots export", {**msgspec.to_builtins(exported), "damage": facts.damage}, ok=is_done)
    else:
        console = make_console()
        files_text = several(len(exported.files), "file")
        console.print(f"{several(exported.events, 'event')} of {several(exported.frames, 'frame')} in {files_text}")
        for text in filter(None, [facts.damage, *exported.unreadable]):
            console.print(text, markup=False, soft_wrap=True)
    return ExitCode.DONE if is_done else ExitCode.NO


class _Reader:
    """Frames of either codec to entries."""

    def __init__(self, symbols: Sequence[str]) -> None:
        self._dictionary = dictionary_of(symbols)
        self._now_us = SystemClock().wall_ns() // 1000

    def read(self, payload: memoryview) -> tuple[Entry, ...]:
        if bytes(payload[:4]) == hfa.MAGIC:
            return hfa.decode(payload, LIMITS).entries
        return tuple(qwp.decode(bytes(payload), self._dictionary, LIMITS, now_us=self._now_us).entries)
