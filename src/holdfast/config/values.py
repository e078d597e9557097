"""The kinds of values a setting may have, how each is written and read, and the row that describes one setting.

Promise: whatever is handed in, reading it gives a value of the right type within the row's range, or `InvalidConfig`
naming the key; never another exception. The text of an error shows at most 80 characters of the bad value.

Zero needs no unit (`max_age: 0`). In a row that says what zero means (`unlimited`, `never`, …) zero is allowed beside
the range; a negative number is never allowed.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, TypedDict, Unpack
from urllib.parse import SplitResult, urlsplit

from holdfast.errors import InvalidConfig

KIB, MIB, GIB, TIB = 1 << 10, 1 << 20, 1 << 30, 1 << 40
MS, SECOND, MINUTE, HOUR = 10**6, 10**9, 60 * 10**9, 3600 * 10**9
DAY = 24 * HOUR

TEXT_CHARS_MAX = 4096
"""A text is a name or a path; no system allows longer paths."""
TEXTS_MAX = 1000
"""Entries of a list that a person writes by hand."""
WHOLE_DIGITS_MAX = 19
"""As many as 2^63 has."""
SHOWN_CHARS_MAX = 80
"""How much of a bad value an error repeats: enough to find it in a file."""

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
    "TIB": TIB,
}
_TIME_UNITS = {"ns": 1, "us": 10**3, "ms": MS, "s": SECOND, "m": MINUTE, "h": HOUR, "d": DAY}
_FLAGS = {"yes": True, "true": True, "no": False, "false": False}
_NUMBER = re.compile(r"\s*(-?)(\d{1,20})(?:\.(\d{1,20}))?\s*([A-Za-z]*)\s*", re.ASCII)
_COUNT = re.compile(r"-?\d{1,20}", re.ASCII)


class Kind(Enum):
    """How a value is written and read."""

    SIZE = "size"
    TIME = "time"
    COUNT = "count"
    FLAG = "flag"
    CHOICE = "choice"
    TEXT = "text"
    TEXTS = "texts"


_NUMBERS = (Kind.SIZE, Kind.TIME, Kind.COUNT)


@dataclass(frozen=True, slots=True)
class Setting:
    """One row of the settings table."""

    key: str
    kind: Kind
    default: Any
    why: str
    low: int = 0
    high: int = 2**62
    choices: tuple[str, ...] = ()
    zero: str = ""
    """What 0 means, if it is allowed beside `low … high`."""
    per_channel: bool = False
    """Whether `channels:` may override it."""

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
        if self.kind is Kind.TEXTS:
            return "list of texts"
        if self.kind is Kind.FLAG:
            return "yes \\| no"
        span = f"{format_value(self.kind, self.low)} … {format_value(self.kind, self.high)}"
        return f"{span}, 0 = {self.zero}" if self.zero else span

    def text_of(self, value: Any) -> str:
        """A value of the program as a person would say it: `0` as `unlimited` where it means that."""
        return self.zero if self.zero and value == 0 else format_value(self.kind, value)

    def parse(self, raw: object, *, prefix: str = "") -> Any:
        """The value for the program, or `InvalidConfig` naming this key with `prefix` before it."""
        try:
            value = _PARSERS[self.kind](raw)
        except ValueError as error:
            raise InvalidConfig(key=prefix + self.key, reason=str(error)) from None
        self.check(value, prefix=prefix, shown=show(raw))
        return value

    def check(self, value: object, *, prefix: str = "", shown: str | None = None) -> None:
        """Raise `InvalidConfig` unless `value` is one the program may use; `shown` is how it was written."""
        objection = self._objection(value)
        if objection is not None:
            raise InvalidConfig(key=prefix + self.key, reason=f"{shown or show(value)} {objection}")

    def _objection(self, value: object) -> str | None:
        if self.kind in _NUMBERS:
            return self._objection_to_number(value)
        if self.kind is Kind.FLAG:
            return None if isinstance(value, bool) else "is not true or false"
        if self.kind is Kind.TEXTS:
            return _objection_to_texts(value)
        if self.kind is Kind.CHOICE and isinstance(value, str):
            return None if value in self.choices else f"is not one of {', '.join(self.choices)}"
        return _objection_to_text(value)

    def _objection_to_number(self, value: object) -> str | None:
        if isinstance(value, bool) or not isinstance(value, int):
            return "is not a whole number"
        if self.low <= value <= self.high or (value == 0 and self.zero):
            return None
        if value < 0 and self.zero:
            return f"is negative; 0 means {self.zero}"
        return f"is outside {self.allowed_text}"


def _objection_to_text(value: object) -> str | None:
    if not isinstance(value, str):
        return "is not a text"
    if len(value) > TEXT_CHARS_MAX:
        return f"has {len(value)} characters, at most {TEXT_CHARS_MAX} are allowed"
    return None if value.isprintable() else "has characters that cannot be printed"


def _objection_to_texts(value: object) -> str | None:
    if not isinstance(value, tuple):
        return "is not a list of texts"
    if len(value) > TEXTS_MAX:
        return f"has {len(value)} entries, at most {TEXTS_MAX} are allowed"
    return next((f"has an entry that {bad}" for item in value if (bad := _objection_to_text(item))), None)


class _Options(TypedDict, total=False):
    low: int
    high: int
    choices: tuple[str, ...]
    zero: str
    per_channel: bool


def setting(key: str, kind: Kind, default: Any, *, why: str, **options: Unpack[_Options]) -> Any:
    """A dataclass field that is a row of the settings table."""
    return field(default=default, metadata={"setting": Setting(key, kind, default, why, **options)})


def show(raw: object) -> str:
    """A value as an error repeats it: short, whatever it is."""
    try:
        text = repr(raw)
    except (ValueError, RecursionError):  # an int of too many digits, a list too deep
        return f"this {type(raw).__name__}"
    return text if len(text) <= SHOWN_CHARS_MAX else text[: SHOWN_CHARS_MAX - 1] + "…"


def parse_size(raw: object) -> int:
    """Bytes from `64MiB`, `1GB`, `4096` or an int."""
    return _parse_number(raw, _SIZE_UNITS, upper=True)


def parse_time(raw: object) -> int:
    """Nanoseconds from `25ms`, `72h`, `0`; any other bare number is refused, it has no unit."""
    if (isinstance(raw, int) and not isinstance(raw, bool) and raw == 0) or raw == "0":
        return 0
    return _parse_number(raw, _TIME_UNITS, upper=False)


def whole_number(text: str, *, least: int = 0, most: int = 2**63 - 1) -> int | None:
    """The number that ASCII digits spell; None for any other text, and for a number out of the range.

    Python alone takes other digits too, and raises for thousands of them.
    """
    if not (text.isascii() and text.isdigit() and len(text) <= WHOLE_DIGITS_MAX):
        return None
    number = int(text)
    return number if least <= number <= most else None


def split_url(text: str) -> SplitResult:
    """The parts of a URL; a text that is none, for a bracket or a port, has no scheme, and so nobody takes it."""
    try:
        parts = urlsplit(text)
        parts.port  # noqa: B018  # raises if it is no number
    except ValueError:
        return SplitResult("", "", "", "", "")
    return parts


def _parse_number(raw: object, units: Mapping[str, int], *, upper: bool) -> int:
    if isinstance(raw, int) and not isinstance(raw, bool) and "" in units:
        return raw
    match = _NUMBER.fullmatch(raw) if isinstance(raw, str) else None
    unit = (match[4].upper() if upper else match[4]) if match else "?"
    if match is None or unit not in units:
        raise ValueError(f"{show(raw)} is not a number with one of the units {', '.join(filter(None, units))}")
    fraction: str = match[3] or "0"
    value = int(match[2]) * units[unit] + int(fraction) * units[unit] // int("1" + "0" * len(fraction))
    return -value if match[1] else value


def _parse_count(raw: object) -> int:
    if isinstance(raw, int) and not isinstance(raw, bool):
        return raw
    if not isinstance(raw, str) or _COUNT.fullmatch(raw) is None:
        raise ValueError(f"{show(raw)} is not a whole number")
    return int(raw)


def _parse_flag(raw: object) -> bool:
    value = raw if isinstance(raw, bool) else _FLAGS.get(raw.lower()) if isinstance(raw, str) else None
    if value is None:
        raise ValueError(f"{show(raw)} is not one of {', '.join(_FLAGS)}")
    return value


def _parse_text(raw: object) -> str:
    if not isinstance(raw, str):
        raise ValueError(f"{show(raw)} is not a text")
    return str(raw)


def _parse_texts(raw: object) -> tuple[str, ...]:
    if not isinstance(raw, list | tuple):
        raise ValueError(f"{show(raw)} is not a list of texts")
    return tuple(map(_parse_text, raw))


_PARSERS = {
    Kind.SIZE: parse_size,
    Kind.TIME: parse_time,
    Kind.COUNT: _parse_count,
    Kind.FLAG: _parse_flag,
    Kind.CHOICE: _parse_text,
    Kind.TEXT: _parse_text,
    Kind.TEXTS: _parse_texts,
}


def format_value(kind: Kind, value: Any) -> str:
    """`33554432` as `32MiB`, `25000000` as `25ms`, `True` as `yes`."""
    if kind is Kind.FLAG:
        return "yes" if value else "no"
    if kind is Kind.TEXTS:
        return ", ".join(value)
    if kind is Kind.SIZE:
        units: tuple[tuple[str, int], ...] = (("TiB", TIB), ("GiB", GIB), ("MiB", MIB), ("KiB", KIB), ("B", 1))
    elif kind is Kind.TIME:
        units = tuple(reversed(_TIME_UNITS.items()))
    else:
        return str(value)
    if value == 0:
        return "0s" if kind is Kind.TIME else "0B"
    return next(f"{value // factor}{name}" for name, factor in units if value % factor == 0)
