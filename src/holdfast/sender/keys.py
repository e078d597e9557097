"""One row of the connect string's table: how a value is written there, read, bounded and shown.

A `Key` is a `Setting` of `holdfast.config` whose values are written as connect strings have them: sizes in powers of
1024 (`4m`, `64kb`), times as a number of milliseconds, switches as `on` and `off`. Keyword arguments of the same
name take the same texts, or the value itself.

Promise: whatever is handed in, the value is of the right type and within its range, or `InvalidConfig` names the key
and what is allowed. The value of a secret is never part of a text.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from ipaddress import AddressValueError, IPv6Address
from typing import Any, NamedTuple, TypedDict, Unpack

from holdfast.config import Kind, Setting
from holdfast.config.values import show, whole_number
from holdfast.errors import InvalidConfig
from holdfast.sender.connectstring import CONTROL

PORT_DEFAULT = 9000
UNITS = {"": 1, "k": 1 << 10, "kb": 1 << 10, "m": 1 << 20, "mb": 1 << 20}
UNITS |= {"g": 1 << 30, "gb": 1 << 30, "t": 1 << 40, "tb": 1 << 40}

_SIZE = re.compile(r"(\d{1,18})([A-Za-z]*)", re.ASCII)
_INTEGER = re.compile(r"[+-]?\d{1,18}", re.ASCII)
_HOST = re.compile(r"[\w.%-]+")


@dataclass(frozen=True, slots=True)
class Key(Setting):
    """One key. `kind` says what the program gets; the rest, how it is written."""

    group: str = ""
    unit: str = ""
    secret: bool = False
    pattern: str = ""
    """What a text must match, as a regular expression."""
    strict: bool = False
    """A switch that takes only on and off."""
    words: tuple[tuple[str, str], ...] = ()
    """Other spellings of a choice."""
    aliases: tuple[str, ...] = ()
    unset: str = ""
    """What it means when the default is nothing."""

    @property
    def default_text(self) -> str:
        if self.default is None or self.default == "":
            return self.unset or "(unset)"
        return self.written(self.default)

    @property
    def allowed_text(self) -> str:
        if self.kind is Kind.CHOICE:
            return " \\| ".join([*self.choices, *(word for word, _ in self.words)])
        if self.kind is Kind.FLAG:
            return "on \\| off" if self.strict else "on \\| off \\| true \\| false"
        if self.kind is Kind.TEXT:
            return f"`{self.pattern}`" if self.pattern else "text"
        top = "" if self.high >= 2**62 else self.written(self.high)
        span = f"{self.written(self.low)} … {top}".rstrip()
        return f"{span}, {self.zero}" if self.zero else span

    def written(self, value: Any) -> str:
        """A value as it stands in a connect string."""
        if self.kind is Kind.FLAG:
            return "on" if value else "off"
        if self.kind is Kind.SIZE and value:
            return next(f"{value // f}{u}" for u, f in reversed(UNITS.items()) if value % f == 0 and len(u) < 2)
        return str(value)

    def parse(self, raw: object, *, prefix: str = "") -> Any:
        try:
            value = self._read(raw)
        except ValueError as error:
            shown = "the value" if self.secret else show(raw)
            allowed = self.allowed_text.replace("\\|", "|")
            raise InvalidConfig(key=prefix + self.key, reason=f"{shown} {error}; allowed: {allowed}") from None
        self.check(value, prefix=prefix, shown="the value" if self.secret else show(raw))
        return value

    def _read(self, raw: object) -> Any:
        if self.kind is Kind.FLAG:
            return self._read_switch(raw)
        if self.kind is Kind.CHOICE or self.kind is Kind.TEXT:
            if not isinstance(raw, str):
                raise ValueError("is not a text")
            return dict(self.words).get(raw, raw)
        if isinstance(raw, int) and not isinstance(raw, bool):
            return raw
        if raw == "off" and self.zero:
            return 0
        return self._read_size(raw) if self.kind is Kind.SIZE else self._read_count(raw)

    def _read_switch(self, raw: object) -> bool:
        if isinstance(raw, bool):
            return raw
        words = {"on": True, "off": False} | ({} if self.strict else {"true": True, "false": False})
        if not isinstance(raw, str) or raw not in words:
            raise ValueError("is no switch")
        return words[raw]

    def _read_count(self, raw: object) -> int:
        if not isinstance(raw, str) or _INTEGER.fullmatch(raw) is None:
            raise ValueError(f"is not a whole number{f' of {self.unit}' if self.unit else ''}")
        return int(raw)

    def _read_size(self, raw: object) -> int:
        match = _SIZE.fullmatch(raw) if isinstance(raw, str) else None
        if match is None or match[2].lower() not in UNITS:
            raise ValueError(f"is not a number of bytes, with one of the units {' '.join(filter(None, UNITS))}")
        return int(match[1]) * UNITS[match[2].lower()]

    def _objection(self, value: object) -> str | None:
        if self.kind is not Kind.TEXT:
            return Setting._objection(self, value)
        if not isinstance(value, str) or not value:
            return "is empty"
        if CONTROL.search(value):
            return "has a control character"
        if self.pattern and re.fullmatch(self.pattern, value, re.ASCII) is None:
            return f"does not match {self.pattern}"
        return None


MS_MAX = 10 * 365 * 86_400_000
"""Ten years: far beyond any time that means something, and still a number for every clock."""


class _Options(TypedDict, total=False):
    group: str
    low: int
    high: int
    choices: tuple[str, ...]
    zero: str
    unit: str
    secret: bool
    pattern: str
    strict: bool
    words: tuple[tuple[str, str], ...]
    aliases: tuple[str, ...]
    unset: str


def key(name: str, kind: Kind, default: Any, *, why: str, **options: Unpack[_Options]) -> Any:
    """A dataclass field that is a row of the connect string's table."""
    row = Key(name, kind, default, why, **options)
    return field(default=default, repr=not row.secret, metadata={"key": row})


def millis(name: str, default: int, *, why: str, **options: Unpack[_Options]) -> Any:
    """A field that is a time in milliseconds, from 1 on unless `low` says otherwise."""
    given: _Options = {"low": 1, "high": MS_MAX, "unit": "ms", **options}
    return key(name, Kind.COUNT, default, why=why, **given)


# --- addresses ------------------------------------------------------------------------------------------------------


class Address(NamedTuple):
    """Where a server listens."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


def parse_addresses(raw: object) -> tuple[Address, ...]:
    """`host[:port]` entries, separated by commas or given as a list; no entry twice."""
    texts = [raw] if isinstance(raw, str) else list(raw) if isinstance(raw, list | tuple) else None
    if texts is None or not all(isinstance(text, str | Address) for text in texts):
        raise InvalidConfig(key="addr", reason=f"{show(raw)} is not host:port, or a list of them")
    found: list[Address] = []
    for text in ",".join(map(str, texts)).split(","):
        address = _parse_address(text.strip())
        if address in found:
            raise InvalidConfig(key="addr", reason=f"duplicate addr endpoint {address}")
        found.append(address)
    return tuple(found)


def _parse_address(text: str) -> Address:
    if not text:
        raise InvalidConfig(key="addr", reason="an entry is empty; allowed: host[:port], separated by commas")
    if "@" in text:  # not repeated: what stands before it is a password
        raise InvalidConfig(key="addr", reason="an entry has an @; credentials go into username and password, or token")
    if text.startswith("["):
        host, bracket, rest = text[1:].partition("]")
        try:
            IPv6Address(host)
        except AddressValueError:
            raise InvalidConfig(key="addr", reason=f"{show(text)} is no IPv6 address in brackets") from None
        colon, port = rest[:1], rest[1:]
        if not bracket or colon not in ("", ":"):
            raise InvalidConfig(key="addr", reason=f"{show(text)} is not [address]:port")
    else:
        host, colon, port = text.partition(":")
        if ":" in port:
            raise InvalidConfig(key="addr", reason=f"{show(text)}: an IPv6 address stands in brackets: [::1]:9000")
        if _HOST.fullmatch(host) is None:
            raise InvalidConfig(key="addr", reason=f"{show(text)} is no host name")
    if not colon:
        return Address(host, PORT_DEFAULT)
    number = whole_number(port, least=1, most=65535)
    if number is None:
        raise InvalidConfig(key="addr", reason=f"{show(text)}: the port is not in 1..65535")
    return Address(host, number)
