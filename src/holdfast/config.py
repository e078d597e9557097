"""Every setting, declared once: name, kind, default, range and the reason for the default.

The table feeds the parser, `docs/reference/settings.md` (`python -m holdfast.config` prints it) and the error texts.
Settings are read once at the door: unknown keys, bad values and contradictions raise `InvalidConfig` naming the key.
Sizes take `KB/MB/GB` (powers of 1000) and `KiB/MiB/GiB` (powers of 1024); times take `ns us ms s m h d`.
A mapping may be flat (`{"wal.max_size": "1GiB"}`) or nested (`{"wal": {"max_size": "1GiB"}}`).
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from enum import Enum
from typing import Any, TypeVar

from holdfast.errors import InvalidConfig

KIB, MIB, GIB = 1 << 10, 1 << 20, 1 << 30
MS, SECOND, MINUTE, HOUR = 10**6, 10**9, 60 * 10**9, 3600 * 10**9

_SIZE_UNITS = {
    "": 1,
    "B": 1,
    "KB": 10**3,
    "MB": 10**6,
    "GB": 10**9,
    "TB": 10**12,
    "KIB": KIB,
    "MIB": MIB,
    "GIB": GIB,
    "TIB": 1 << 40,
}
_TIME_UNITS = {"ns": 1, "us": 10**3, "ms": MS, "s": SECOND, "m": MINUTE, "h": HOUR, "d": 24 * HOUR}
_NUMBER = re.compile(r"\s*(\d+(?:\.\d+)?)\s*([A-Za-z]*)\s*", re.ASCII)


class Kind(Enum):
    """How a value is written and read."""

    SIZE = "size"
    TIME = "time"
    COUNT = "count"
    CHOICE = "choice"
    TEXT = "text"


@dataclass(frozen=True, slots=True)
class Setting:
    """One row of the settings table."""

    key: str
    kind: Kind
    default: Any
    low: int
    high: int
    choices: tuple[str, ...]
    why: str

    @property
    def default_text(self) -> str:
        """The default as a person would write it."""
        return format_value(self.kind, self.default)

    @property
    def allowed_text(self) -> str:
        """What else may stand there."""
        if self.kind is Kind.CHOICE:
            return " \\| ".join(self.choices)
        if self.kind is Kind.TEXT:
            return "text"
        return f"{format_value(self.kind, self.low)} … {format_value(self.kind, self.high)}"

    def parse(self, raw: object) -> Any:
        """The value for the program, or `InvalidConfig` naming this key."""
        try:
            value = _PARSERS[self.kind](raw)
        except ValueError as error:
            raise InvalidConfig(key=self.key, reason=str(error)) from None
        if self.kind is Kind.CHOICE and value not in self.choices:
            raise InvalidConfig(key=self.key, reason=f"{value!r} is not one of {', '.join(self.choices)}")
        if isinstance(value, int) and not self.low <= value <= self.high:
            raise InvalidConfig(key=self.key, reason=f"{raw!r} is outside {self.allowed_text}")
        return value


def parse_size(raw: object) -> int:
    """Bytes from `64MiB`, `1GB`, `4096` or an int."""
    return _parse_number(raw, {name.upper(): factor for name, factor in _SIZE_UNITS.items()}, upper=True)


def parse_time(raw: object) -> int:
    """Nanoseconds from `25ms`, `72h`; a bare number is refused, it has no unit."""
    return _parse_number(raw, _TIME_UNITS, upper=False)


def _parse_number(raw: object, units: Mapping[str, int], *, upper: bool) -> int:
    if isinstance(raw, int) and not isinstance(raw, bool) and "" in units:
        return raw
    match = _NUMBER.fullmatch(raw) if isinstance(raw, str) else None
    unit = (match[2].upper() if upper else match[2]) if match else "?"
    if match is None or unit not in units:
        raise ValueError(f"{raw!r} is not a number with one of the units {', '.join(name for name in units if name)}")
    whole, _, fraction = match[1].partition(".")
    return int(whole) * units[unit] + (int(fraction) * units[unit] // 10 ** len(fraction) if fraction else 0)


def _parse_count(raw: object) -> int:
    if isinstance(raw, bool) or not isinstance(raw, int | str) or not str(raw).isascii() or not str(raw).isdigit():
        raise ValueError(f"{raw!r} is not a whole number")
    return int(raw)


def _parse_text(raw: object) -> str:
    if not isinstance(raw, str):
        raise ValueError(f"{raw!r} is not a text")
    return raw


_PARSERS = {
    Kind.SIZE: parse_size,
    Kind.TIME: parse_time,
    Kind.COUNT: _parse_count,
    Kind.CHOICE: _parse_text,
    Kind.TEXT: _parse_text,
}


def format_value(kind: Kind, value: Any) -> str:
    """`33554432` as `32MiB`, `25000000` as `25ms`."""
    if kind is Kind.SIZE:
        units: tuple[tuple[str, int], ...] = (("GiB", GIB), ("MiB", MIB), ("KiB", KIB), ("B", 1))
    elif kind is Kind.TIME:
        units = tuple(reversed(_TIME_UNITS.items()))
    else:
        return str(value)
    return next(
        (f"{value // factor}{name}" for name, factor in units if value and value % factor == 0), f"0{units[-1][0]}"
    )


def setting(
    key: str, kind: Kind, default: Any, *, why: str, low: int = 0, high: int = 2**62, choices: tuple[str, ...] = ()
) -> Any:
    """A dataclass field that is a row of the settings table."""
    row = Setting(key, kind, default, low, high, choices, why)
    return field(default=default, metadata={"setting": row})


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreConfig:
    """The settings of one store."""

    segment_target_bytes: int = setting(
        "segment.target_size",
        Kind.SIZE,
        32 * MIB,
        low=4 * KIB,
        high=GIB,
        why="large enough that a reader streams, small enough that one fits in memory twice",
    )
    segment_max_open_ns: int = setting(
        "segment.max_open_duration",
        Kind.TIME,
        5 * SECOND,
        low=10 * MS,
        high=24 * HOUR,
        why="how long a quiet channel's events wait for readers of segments",
    )
    segment_compression: str = setting(
        "segment.compression",
        Kind.CHOICE,
        "none",
        choices=("none", "lz4", "zstd"),
        why="uncompressed segments are read from the page cache without a copy",
    )
    wal_max_bytes: int = setting(
        "wal.max_size",
        Kind.SIZE,
        512 * MIB,
        low=MIB,
        high=1 << 44,
        why="the log only has to cover open segments; when it is full, segments are sealed early, then callers wait",
    )
    wal_rotation_bytes: int = setting(
        "wal.rotation_size",
        Kind.SIZE,
        64 * MIB,
        low=64 * KIB,
        high=GIB,
        why="whole files are deleted, so this is the grain in which log space comes back",
    )
    wal_flush: str = setting(
        "wal.flush",
        Kind.CHOICE,
        "commit",
        choices=("commit", "interval", "bytes"),
        why="accepted means synced; the other two answer before the sync and say so in the receipt",
    )
    wal_flush_interval_ns: int = setting(
        "wal.flush_interval",
        Kind.TIME,
        25 * MS,
        low=MS,
        high=HOUR,
        why="with `wal.flush: interval`, the most time a written frame waits for its sync",
    )
    wal_flush_bytes: int = setting(
        "wal.flush_bytes",
        Kind.SIZE,
        MIB,
        low=1,
        high=GIB,
        why="with `wal.flush: bytes`, the most bytes that wait for their sync; a quiet log is synced after a second",
    )
    memory_limit_bytes: int = setting(
        "memory_limit",
        Kind.SIZE,
        64 * MIB,
        low=64 * KIB,
        high=1 << 44,
        why="one segment being filled and one being written; at the limit segments are sealed early, then callers wait",
    )
    commit_timeout_ns: int = setting(
        "commit_timeout",
        Kind.TIME,
        30 * SECOND,
        low=0,
        high=24 * HOUR,
        why="how long a commit waits at a bound before it raises; longer than sealing one segment on a slow disk",
    )
    frame_bytes_max: int = setting(
        "frame.max_size",
        Kind.SIZE,
        16 * MIB,
        low=KIB,
        high=512 * MIB,
        why="bounds what one call may pin in memory; a frame must fit into one log file",
    )
    frame_rows_max: int = setting(
        "frame.max_rows",
        Kind.COUNT,
        4_000_000,
        low=1,
        high=2**31 - 1,
        why="a column of nulls has rows without bytes, so bytes alone do not bound a frame",
    )
    dedup_window_ns: int = setting(
        "dedup.window",
        Kind.TIME,
        5 * MINUTE,
        low=0,
        high=7 * 24 * HOUR,
        why="how long a GUID is remembered; slot frames are remembered for ever and do not need it",
    )
    dedup_guids_max: int = setting(
        "dedup.max_guids",
        Kind.COUNT,
        200_000,
        low=1,
        high=100_000_000,
        why="bounds the memory of the GUID history to about 50 MiB; the oldest are forgotten first and counted",
    )
    schema_mode: str = setting(
        "schema",
        Kind.CHOICE,
        "evolve",
        choices=("evolve", "strict", "any"),
        why="new nullable columns and lossless widening are safe for every reader",
    )
    event_time_column: str = setting(
        "event_time",
        Kind.TEXT,
        "",
        why="column whose range is kept per segment; none by default, since names differ",
    )
    signal: str = setting(
        "signal",
        Kind.TEXT,
        "events",
        why="what the channel carries (logs, traces, metrics, events), copied into each segment",
    )
    fds_limit: int = setting(
        "fds_limit",
        Kind.COUNT,
        256,
        low=8,
        high=1_000_000,
        why="soft bound on files kept open for reading, well below the usual limit of 1024 descriptors",
    )

    def __post_init__(self) -> None:
        for item in fields(self):
            row: Setting = item.metadata["setting"]
            value = getattr(self, item.name)
            if row.kind in (Kind.SIZE, Kind.TIME, Kind.COUNT) and not row.low <= value <= row.high:
                raise InvalidConfig(key=row.key, reason=f"{value!r} is outside {row.allowed_text}")
            if row.kind is Kind.CHOICE and value not in row.choices:
                raise InvalidConfig(key=row.key, reason=f"{value!r} is not one of {', '.join(row.choices)}")
        self._check_relations()

    def _check_relations(self) -> None:
        if self.wal_max_bytes < 2 * self.wal_rotation_bytes:
            raise InvalidConfig(key="wal.max_size", reason="must be at least twice wal.rotation_size")
        if self.frame_bytes_max > self.wal_rotation_bytes // 2:
            raise InvalidConfig(key="frame.max_size", reason="must be at most half of wal.rotation_size")
        if self.segment_target_bytes > self.memory_limit_bytes:
            raise InvalidConfig(key="segment.target_size", reason="must be at most memory_limit")

    @classmethod
    def from_mapping(cls, mapping: Mapping[str, object]) -> StoreConfig:
        """Settings from a file, an environment or keyword arguments."""
        return read_settings(cls(), mapping)


_Config = TypeVar("_Config", bound=StoreConfig)


def read_settings(defaults: _Config, mapping: Mapping[str, object]) -> _Config:
    """`defaults` with what `mapping` says; unknown keys are errors."""
    known = {item.metadata["setting"].key: item for item in fields(defaults)}
    changes: dict[str, Any] = {}
    for key, raw in _flatten(mapping, ""):
        if key not in known:
            raise InvalidConfig(key=key, reason=f"unknown setting{_suggestion(key, known)}")
        changes[known[key].name] = known[key].metadata["setting"].parse(raw)
    return replace(defaults, **changes)


def _flatten(mapping: Mapping[str, object], prefix: str) -> list[tuple[str, object]]:
    pairs: list[tuple[str, object]] = []
    for key, value in mapping.items():
        name = f"{prefix}{key}"
        pairs.extend(_flatten(value, f"{name}.") if isinstance(value, Mapping) else [(name, value)])
    return pairs


def _suggestion(key: str, known: Mapping[str, object]) -> str:
    import difflib  # noqa: PLC0415  needed only on the way to an error

    close = difflib.get_close_matches(key, known, n=1)
    return f"; did you mean {close[0]}?" if close else f"; known are {', '.join(sorted(known))}"


SETTINGS: tuple[Setting, ...] = tuple(item.metadata["setting"] for item in fields(StoreConfig))


def settings_markdown() -> str:
    """The page `docs/reference/settings.md`."""
    lines = [
        "# Settings",
        "",
        "Printed by `python -m holdfast.config`; a test compares.",
        "",
        "| key | default | allowed | why this default |",
        "|---|---|---|---|",
    ]
    lines += [
        f"| `{row.key}` | `{row.default_text or '(none)'}` | {row.allowed_text} | {row.why} |" for row in SETTINGS
    ]
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    print(settings_markdown(), end="")  # noqa: T201
