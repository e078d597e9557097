"""Who a sync client is, and which partitions and projects it may read and write.

Promises: a token that does not hold, or that names another client, never gets a session, and is never repeated in a
text. A signed token must say when it ends. With the first rule nobody may do what no rule allows. What a token itself
is limited to (claims `partitions` and `projects`) narrows what the rules allow, and never widens it.

A token of the server is for the client of its name, and for those whose name begins with it and a colon
(`alice`, `alice:phone`). A signed token has claims:

    claim                    means
    exp                      when it ends; required
    client_id, clientId      whom it is for; required
    user_id, userId          events may name no other user
    partitions, projects     lists of patterns (`*` for any characters)
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any, Protocol

import jwt

from holdfast.config.sync import SyncConfig, SyncRule
from holdfast.errors import AccessRefused, InvalidConfig, RetryLater
from holdfast.wire.sync import PROJECT_PREFIX, AuthFailed, Greeting, Identity

KEY_BYTES_MAX = 64 << 10
SECRET_BYTES_MIN = 32
"""Shorter shared secrets are guessed."""
TOKEN_CHARS_MAX = 16 << 10
PATTERNS_CACHED_MAX = 4096
TIME_MAX_S = 10**12
"""Times of tokens are before the year 33000."""


class Member(Protocol):
    """Who a token of the server names."""

    @property
    def name(self) -> str:
        """Whose token it is."""

    @property
    def is_known(self) -> bool:
        """Whether it showed a credential; where none is asked for, everybody is nobody."""

    def may(self, verb: str, channel: str = "") -> bool:
        """Whether the rules of the server allow it."""


class Tokens(Protocol):
    """How the server's own tokens are judged for one connection."""

    def sign_in(self, token: str) -> Member:
        """Whom the token names; `AccessRefused` if nobody, which was noted."""

    def note_failure(self, reason: str) -> None:
        """For the audit log: a client was turned away for another reason."""


class SyncAccess:
    """The rules, and the key of signed tokens. Shared by all connections."""

    def __init__(self, config: SyncConfig) -> None:
        """Reads the key; one that cannot be used raises `InvalidConfig`."""
        self.config = config
        self.key = key_of(config)

    def take(self, config: SyncConfig, key: str) -> None:
        """Use new rules and a new key, for connections of now too."""
        self.key = key
        self.config = config

    def for_connection(self, tokens: Tokens) -> ConnectionAccess:
        """What one session asks."""
        return ConnectionAccess(self, tokens)


class ConnectionAccess:
    """Judges one connection's client."""

    def __init__(self, shared: SyncAccess, tokens: Tokens) -> None:
        self._shared = shared
        self._tokens = tokens
        self._signed_in: Member | None = None

    def authenticate(self, greeting: Greeting, *, now_ms: int) -> Identity:
        """Whom the token names; `AuthFailed` if it is not the client that shows it."""
        config = self._shared.config
        if config.auth == "none":
            return Identity(greeting.client_id)
        try:
            if len(greeting.token) > TOKEN_CHARS_MAX:
                raise AuthFailed("authentication failed: the token is too long")
            if config.auth == "jwt":
                return _identity_of(self._claims(greeting.token), greeting, now_ms)
            return self._member(greeting)
        except AuthFailed as error:
            self._tokens.note_failure(str(error))
            raise
        except (AccessRefused, RetryLater) as error:
            raise AuthFailed(f"authentication failed: {error}") from None

    def _member(self, greeting: Greeting) -> Identity:
        config, member = self._shared.config, self._tokens.sign_in(greeting.token)
        if not member.may("sync", config.channel):
            raise AuthFailed(f"{member.name!r} may not sync channel {config.channel!r}")
        if member.is_known and member.name not in {greeting.client_id, greeting.client_id.partition(":")[0]}:
            raise AuthFailed(
                f"client {greeting.client_id!r} is not {member.name!r}, nor one of its (`{member.name}:…`)"
            )
        self._signed_in = member
        return Identity(greeting.client_id, principal=member.name)

    def may(self, identity: Identity, verb: str, scopes: Sequence[str]) -> bool:
        """Whether the client may `read` or `write` all of these."""
        if self._signed_in is not None and not self._signed_in.may("sync", self._shared.config.channel):
            return False  # the server's own rules, which may have changed since
        return all(self._may(identity, verb, scope) for scope in scopes)

    def _may(self, identity: Identity, verb: str, scope: str) -> bool:
        is_project = scope.startswith(PROJECT_PREFIX)
        name = scope.removeprefix(PROJECT_PREFIX) if is_project else scope
        limits = identity.projects if is_project else identity.partitions
        if limits is not None and not _matches(limits, name):
            return False
        rules = self._shared.config.access
        return not rules or any(_allows(rule, identity, verb, name, is_project=is_project) for rule in rules)

    def _claims(self, token: str) -> Mapping[str, Any]:
        config = self._shared.config
        try:
            claims: Mapping[str, Any] = jwt.decode(
                token,
                self._shared.key,
                algorithms=list(config.jwt_algorithms),
                audience=config.jwt_audience or None,
                issuer=config.jwt_issuer or None,
                options={
                    "require": ["exp"],
                    "verify_exp": False,  # judged by the caller's clock
                    "verify_nbf": False,
                    "verify_iat": False,
                    "verify_aud": bool(config.jwt_audience),
                },
            )
        except jwt.PyJWTError as error:
            raise AuthFailed(f"authentication failed: {type(error).__name__}") from None
        return claims


def _identity_of(claims: Mapping[str, Any], greeting: Greeting, now_ms: int) -> Identity:
    client_id = claims.get("client_id", claims.get("clientId"))
    if client_id != greeting.client_id:
        raise AuthFailed("the token is for another client")
    ends, begins = claims["exp"], claims.get("nbf", 0)
    if not _is_time(ends) or not _is_time(begins):
        raise AuthFailed("authentication failed: exp and nbf are numbers of seconds")
    if now_ms >= ends * 1000:
        raise AuthFailed("the token has expired")
    if now_ms < begins * 1000:
        raise AuthFailed("the token does not hold yet")
    user_id = claims.get("user_id", claims.get("userId"))
    return Identity(
        greeting.client_id,
        user_id if isinstance(user_id, str) else "",
        int(ends * 1000),
        _patterns(claims, "partitions"),
        _patterns(claims, "projects"),
    )


def _is_time(value: object) -> bool:
    """Whether it is a number that a date can have; the reader of tokens lets NaN and Infinity through."""
    return isinstance(value, int | float) and not isinstance(value, bool) and -TIME_MAX_S < value < TIME_MAX_S


def _patterns(claims: Mapping[str, Any], name: str) -> tuple[str, ...] | None:
    found = claims.get(name)
    if found is None:
        return None
    if not isinstance(found, list) or not all(isinstance(pattern, str) for pattern in found):
        raise AuthFailed(f"authentication failed: {name} is no list of texts")
    return tuple(found)


def _allows(rule: SyncRule, identity: Identity, verb: str, name: str, *, is_project: bool) -> bool:
    return (
        verb in rule.may
        and _matches(rule.clients, identity.client_id)
        and _matches(rule.projects if is_project else rule.partitions, name)
    )


def _matches(patterns: Sequence[str], name: str) -> bool:
    return any(_compiled(pattern)(name) is not None for pattern in patterns)


@lru_cache(PATTERNS_CACHED_MAX)
def _compiled(pattern: str) -> Callable[[str], object]:
    return re.compile(".*".join(map(re.escape, pattern.split("*"))), re.DOTALL).fullmatch


def key_of(config: SyncConfig) -> str:
    """The key that tokens are checked with, read from its file; empty if none is needed."""
    return _read_key(config) if config.auth == "jwt" else ""


def _read_key(config: SyncConfig) -> str:
    key = "sync.jwt_key_file"
    try:
        with Path(config.jwt_key_file).open("rb") as file:
            text = file.read(KEY_BYTES_MAX).decode("ascii").strip()
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidConfig(key=key, reason=f"{config.jwt_key_file} cannot be read: {error}") from None
    algorithm = jwt.get_algorithm_by_name(config.jwt_algorithms[0])
    if config.jwt_algorithms[0].startswith("HS"):
        if len(text) < SECRET_BYTES_MIN:
            raise InvalidConfig(key=key, reason=f"a shared secret has at least {SECRET_BYTES_MIN} characters")
        return text
    try:
        algorithm.prepare_key(text)
    except (ValueError, jwt.PyJWTError) as error:
        reason = f"{config.jwt_key_file} holds no public key for {config.jwt_algorithms[0]}: {type(error).__name__}"
        raise InvalidConfig(key=key, reason=reason) from None
    return text
