"""Who may do what, as settings: users with passwords, access rules, limits per principal.

A principal is whoever a credential names: a token, a user, the subject of a client certificate. Rules and limits mean
principals by a pattern in which `*` stands for any characters, also none: `app-*`. Channels are meant by the patterns
of patterns.py.

Promise: a password never stands in a file of settings, nor in an error: it comes from the environment or from a file
of its own, and only its hash is kept. Errors name the key, never the value beside it.
"""

from __future__ import annotations

import hmac
import re
import secrets
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from holdfast.config.passwords import SALT_BYTES, PasswordHash, hash_password, parse_hash
from holdfast.config.patterns import Pattern
from holdfast.config.reading import read_pairs, require_mapping
from holdfast.config.values import TIB, Kind, Setting, show
from holdfast.errors import InvalidConfig

VERBS = ("publish", "consume", "sync", "admin")
ANONYMOUS = "anonymous"
"""The principal of everyone where nothing asks for a credential."""

PRINCIPAL_CHARS_MAX = 128
USERS_MAX = 10_000
RULES_MAX = 10_000
"""Rules are compared once per principal and channel, and the answer is kept; so many are still read at once."""
LIMITS_MAX = 1000
SECRET_CHARS_MAX = 1024

_SALT = secrets.token_bytes(SALT_BYTES)
"""For hashes that never leave this process: reading the same password again gives the same hash, so that a reload does
not take it for a new one."""
_HASHES: dict[bytes, PasswordHash] = {}
"""Those that were made, so that a reload hashes only what has changed; a hash takes some 50 ms."""

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._@+/-]{0,127}", re.ASCII)


def is_principal_name(text: str) -> bool:
    """Whether a token, a user or a certificate may have this name."""
    return _NAME.fullmatch(text) is not None and text != ANONYMOUS


class FromEnvironment(str):
    """A value taken from an environment variable; errors show the name of the variable instead."""

    __slots__ = ("written",)
    written: str

    def __new__(cls, value: str, written: str) -> FromEnvironment:
        made = super().__new__(cls, value)
        made.written = written
        return made

    def __repr__(self) -> str:
        return repr(self.written)


@dataclass(frozen=True, slots=True)
class PrincipalPattern:
    """Which principals are meant. Make it with `PrincipalPattern.parse`."""

    text: str

    @classmethod
    def parse(cls, text: str) -> PrincipalPattern:
        """The pattern, or `ValueError` saying what is wrong with it."""
        if not 0 < len(text) <= PRINCIPAL_CHARS_MAX or not text.isprintable():
            raise ValueError(f"a principal has 1 to {PRINCIPAL_CHARS_MAX} printable characters; '*' stands for any")
        return cls(text)

    def matches(self, principal: str) -> bool:
        """Whether it means that principal. One walk from left to right, however many `*` there are."""
        first, *rest = self.text.split("*")
        if not rest:
            return principal == first
        last = rest.pop()
        if len(principal) < len(first) + len(last) or not (principal.startswith(first) and principal.endswith(last)):
            return False
        at, end = len(first), len(principal) - len(last)
        for part in rest:
            found = principal.find(part, at, end)
            if found < 0:
                return False
            at = found + len(part)
        return True

    @property
    def order(self) -> tuple[bool, int, str]:
        """The sort key, widest first: a name without `*` is the narrowest, else more characters are narrower."""
        return "*" not in self.text, len(self.text.replace("*", "")), self.text


@dataclass(frozen=True, slots=True)
class User:
    """Someone with a password."""

    name: str
    password: PasswordHash


@dataclass(frozen=True, slots=True)
class AccessRule:
    """Who may, or may not, do what with which channels."""

    principal: PrincipalPattern
    allow: bool
    verbs: frozenset[str]
    channels: tuple[Pattern, ...]

    def decides(self, principal: str, verb: str, channel: str) -> bool:
        """Whether the rule has a say. The empty channel is the server as a whole: only `>` means it."""
        if verb not in self.verbs or not self.principal.matches(principal):
            return False
        return any(pattern.matches(channel) if channel else pattern.text == ">" for pattern in self.channels)


_LIMIT_ROWS = {
    row.key: row
    for row in (
        Setting("connections", Kind.COUNT, 0, "open at the same time", low=1, high=1_000_000, zero="unlimited"),
        Setting("bytes_per_second", Kind.SIZE, 0, "of frames it sends", low=1, high=TIB, zero="unlimited"),
        Setting("frames_per_second", Kind.COUNT, 0, "that it sends", low=1, high=10**9, zero="unlimited"),
        Setting("channels", Kind.COUNT, 0, "different ones it may ever write to", low=1, high=10**7, zero="unlimited"),
    )
}
LIMIT_SETTINGS: tuple[Setting, ...] = tuple(_LIMIT_ROWS.values())


@dataclass(frozen=True, slots=True)
class PrincipalLimits:
    """What `limits:` says of one pattern: only what was written there."""

    principal: PrincipalPattern
    values: tuple[tuple[str, int], ...]


# ---------------------------------------------------------------------------------------------------------------- users


def read_users(raw: object) -> tuple[User, ...]:
    """The users under `auth.users`: each has one of `password_hash`, `password` (from the environment) and
    `password_file`."""
    if not isinstance(raw, Mapping):
        raise InvalidConfig(key="auth.users", reason="is not a mapping of names to passwords")
    return tuple(_read_user(name, value) for name, value in raw.items())


def _read_user(name: object, raw: object) -> User:
    place = f"auth.users.{name if isinstance(name, str) else show(name)}"
    if not isinstance(name, str) or not is_principal_name(name):
        reason = "a user's name has letters, digits and . _ @ + / -, the first one a letter or digit, at most 128; "
        reason += f"{ANONYMOUS!r} is everyone where nothing asks for a credential"
        raise InvalidConfig(key=place, reason=reason)
    ways = "password_hash, password: ${NAME} or password_file"
    if not isinstance(raw, Mapping) or len(raw) != 1:
        raise InvalidConfig(key=place, reason=f"takes exactly one of {ways}")
    ((way, value),) = raw.items()
    reader = _PASSWORD_WAYS.get(way) if isinstance(way, str) else None
    if reader is None:
        raise InvalidConfig(key=f"{place}.{way}", reason=f"unknown setting; takes exactly one of {ways}")
    try:
        return User(name, reader(value))
    except ValueError as error:
        raise InvalidConfig(key=f"{place}.{way}", reason=str(error)) from None


def _from_environment(value: object) -> PasswordHash:
    if not isinstance(value, FromEnvironment):
        raise ValueError("a password does not stand in this file: write ${NAME}, use password_file or password_hash")
    return _hashed(_sound(str(value)))


def _from_file(value: object) -> PasswordHash:
    if not isinstance(value, str) or not value:
        raise ValueError("is not the path of a file")
    try:
        with Path(value).open("rb") as file:
            content = file.read(SECRET_CHARS_MAX * 4 + 1)
    except OSError as error:
        raise ValueError(f"{value} cannot be read: {error.strerror}") from None
    try:
        return _hashed(_sound(content.decode().rstrip("\r\n")))
    except UnicodeDecodeError:
        raise ValueError(f"{value} is not UTF-8 text") from None


def _from_hash(value: object) -> PasswordHash:
    if not isinstance(value, str):
        raise ValueError("is not a text")
    return parse_hash(str(value))


_PASSWORD_WAYS = {"password_hash": _from_hash, "password": _from_environment, "password_file": _from_file}


def _hashed(password: str) -> PasswordHash:
    """The hash of a password; one that was hashed before takes no time. Found by a keyed digest, so that no password
    stays in memory."""
    digest = hmac.digest(_SALT, password.encode("utf-8", "surrogatepass"), "sha256")
    known = _HASHES.get(digest)
    if known is None:
        if len(_HASHES) >= USERS_MAX:
            _HASHES.clear()
        known = _HASHES[digest] = hash_password(password, salt=_SALT)
    return known


def _sound(password: str) -> str:
    if not 0 < len(password) <= SECRET_CHARS_MAX:
        raise ValueError(f"a password has 1 to {SECRET_CHARS_MAX} characters")
    return password


# ---------------------------------------------------------------------------------------------------------------- rules


def read_rules(raw: object) -> tuple[AccessRule, ...]:
    """The rules under `access`."""
    if not isinstance(raw, list | tuple):
        raise InvalidConfig(key="access", reason=f"{show(raw)} is not a list of rules")
    return tuple(_read_rule(item, f"access[{index}]") for index, item in enumerate(raw))


def _read_rule(raw: object, place: str) -> AccessRule:
    rule = dict(require_mapping(raw, key=place))
    for key in rule:
        if key not in ("principal", "allow", "deny", "channels"):
            reason = "unknown setting; a rule has principal, allow or deny, and channels"
            raise InvalidConfig(key=f"{place}.{key}", reason=reason)
    if ("allow" in rule) == ("deny" in rule):
        raise InvalidConfig(key=place, reason=f"needs either allow or deny, with some of {', '.join(VERBS)} or '*'")
    if "principal" not in rule:
        raise InvalidConfig(key=place, reason="needs principal: whom it means, '*' for all")
    allow = "allow" in rule
    return AccessRule(
        _read_principal(rule["principal"], f"{place}.principal"),
        allow,
        _read_verbs(rule["allow" if allow else "deny"], f"{place}.{'allow' if allow else 'deny'}"),
        _read_channels(rule.get("channels", [">"]), f"{place}.channels"),
    )


def _read_principal(raw: object, place: str) -> PrincipalPattern:
    if not isinstance(raw, str):
        raise InvalidConfig(key=place, reason=f"{show(raw)} is not a text; write a name, or '*' in quotes")
    try:
        return PrincipalPattern.parse(raw)
    except ValueError as error:
        raise InvalidConfig(key=place, reason=str(error)) from None


def _read_verbs(raw: object, place: str) -> frozenset[str]:
    items = [raw] if isinstance(raw, str) else raw
    if not isinstance(items, list | tuple) or not items:
        raise InvalidConfig(key=place, reason=f"{show(raw)} is not a list of {', '.join(VERBS)} or '*'")
    if "*" in items:
        return frozenset(VERBS)
    for item in items:
        if item not in VERBS:
            raise InvalidConfig(key=place, reason=f"{show(item)} is not one of {', '.join(VERBS)} or '*'")
    return frozenset(items)


def _read_channels(raw: object, place: str) -> tuple[Pattern, ...]:
    items = [raw] if isinstance(raw, str) else raw
    if not isinstance(items, list | tuple) or not items or not all(isinstance(item, str) for item in items):
        raise InvalidConfig(key=place, reason=f"{show(raw)} is not a list of channel patterns; '>' in quotes is all")
    try:
        return tuple(map(Pattern.parse, items))
    except ValueError as error:
        raise InvalidConfig(key=place, reason=str(error)) from None


# --------------------------------------------------------------------------------------------------------------- limits


def read_limits(raw: object) -> tuple[PrincipalLimits, ...]:
    """The limits under `limits`, widest pattern first."""
    found = [_read_limit(pattern, values) for pattern, values in require_mapping(raw, key="limits").items()]
    return tuple(sorted(found, key=lambda item: item.principal.order))


def _read_limit(raw: object, values: object) -> PrincipalLimits:
    place = f"limits.{raw if isinstance(raw, str) else show(raw)}"
    pattern = _read_principal(raw, place)
    pairs = read_pairs(require_mapping(values, key=place), _LIMIT_ROWS, prefix=f"{place}.")
    return PrincipalLimits(
        pattern, tuple((key, row.parse(value, prefix=f"{place}.")) for key, (row, value) in pairs.items())
    )


def check_principals(
    users: tuple[User, ...], rules: tuple[AccessRule, ...], limits: tuple[PrincipalLimits, ...]
) -> None:
    """The bounds, also for what a program made itself."""
    for key, items, most in (
        ("auth.users", users, USERS_MAX),
        ("access", rules, RULES_MAX),
        ("limits", limits, LIMITS_MAX),
    ):
        if len(items) > most:
            raise InvalidConfig(key=key, reason=f"has {len(items)} entries, at most {most} are allowed")
    names = [user.name for user in users]
    if len(set(names)) != len(names):
        raise InvalidConfig(key="auth.users", reason="has a name twice")
