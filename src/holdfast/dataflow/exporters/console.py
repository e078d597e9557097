"""The console exporter, for people: one line per parcel, and its first records as JSON."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import date, datetime
from pathlib import Path
from typing import TextIO

import msgspec

from holdfast.clock import Clock
from holdfast.config.values import Kind, setting
from holdfast.dataflow.exporters.parcels import Parcel, Verdict
from holdfast.dataflow.settings import ExporterSettings, read_node
from holdfast.disk.filesystem import Filesystem
from holdfast.errors import SchemaMismatch, WireError
from holdfast.wire.otlp.raw import decoded, is_raw

SAMPLE_ROWS = 64
"""Requests that are opened to find records to show."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings(ExporterSettings):
    """Settings of a console exporter."""

    rows_shown: int = setting(
        "rows", Kind.COUNT, 10, low=0, high=100_000, why="records shown of each parcel; more than a screen helps nobody"
    )


def read_settings(raw: Mapping[str, object], _folder: Path) -> Settings:
    """Settings of the node."""
    return read_node(Settings, raw)


def make(settings: Settings, *, filesystem: Filesystem, clock: Clock) -> ConsoleExporter:  # noqa: ARG001
    """The exporter of a node."""
    return ConsoleExporter(settings.rows_shown, sys.stdout)


class ConsoleExporter:
    """Prints parcels."""

    def __init__(self, rows: int, out: TextIO) -> None:
        self._rows = rows
        self._out = out

    def deliver(self, parcel: Parcel) -> Verdict:
        """Print it; what cannot be decoded is only counted."""
        span = f"{parcel.first_seq}..{parcel.last_seq}"
        self._out.write(f"channel={parcel.channel} seqs={span} events={parcel.rows}\n")
        if self._rows and parcel.rows:
            for record in self._sample(parcel):
                self._out.write(msgspec.json.encode(record, enc_hook=_shown).decode() + "\n")
        self._out.flush()
        return Verdict()

    def _sample(self, parcel: Parcel) -> list[dict[str, object]]:
        _, _, rows = next(parcel.parts())
        rows = rows.slice(0, max(self._rows, SAMPLE_ROWS))
        if is_raw(rows.schema):
            try:
                rows = decoded(rows, channel=parcel.channel)
            except (WireError, SchemaMismatch) as error:
                return [{"error": str(error)}]
        records: list[dict[str, object]] = rows.slice(0, self._rows).to_pylist(maps_as_pydicts="lossy")
        return [{key: value for key, value in record.items() if value not in (None, [], {})} for record in records]

    def close(self) -> None:
        """The console is not ours."""


def _shown(value: object) -> object:
    if isinstance(value, datetime | date):
        return value.isoformat()
    return str(value)
