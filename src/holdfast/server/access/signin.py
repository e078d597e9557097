"""Credentials as they arrive: a header or a certificate, read without trusting it.

Passwords are checked with scrypt, which is slow on purpose. Two things keep that from being a weapon: a password that
was right once is recognised by a keyed digest that lives in this process only, and all others together are tried at
most `TRIES_PER_SECOND` times a second; beyond it `QuotaReached`. An unknown user takes as long as a wrong password.
"""

from __future__ import annotations

import base64
import binascii
import hmac
import secrets
import ssl
import threading
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from holdfast.clock import NS_PER_S, Clock
from holdfast.config.passwords import PasswordHash, hash_password
from holdfast.config.principals import ANONYMOUS, PRINCIPAL_CHARS_MAX, SECRET_CHARS_MAX, User
from holdfast.errors import QuotaReached, Unauthenticated
from holdfast.server.access.bucket import Bucket

TRIES_PER_SECOND = 4
TRIES_AT_ONCE = 8
"""Each takes some 50 ms of a processor."""
HEADER_CHARS_MAX = 4 * SECRET_CHARS_MAX

_ALTERNATIVES = ("DNS", "URI", "email")


def split_header(headers: Mapping[str, str]) -> tuple[str, str] | None:
    """Scheme, in lower case, and value of the `Authorization` header; None without one."""
    value = headers.get("authorization") or headers.get("Authorization")
    if not value:
        return None
    if len(value) > HEADER_CHARS_MAX:
        raise Unauthenticated(reason=f"the Authorization header has more than {HEADER_CHARS_MAX} characters")
    scheme, _, rest = value.strip().partition(" ")
    return scheme.lower(), rest.strip()


def split_basic(value: str) -> tuple[str, str]:
    """Name and password."""
    try:
        text = base64.b64decode(value, validate=True).decode()
    except (binascii.Error, ValueError):
        raise Unauthenticated(reason="the Basic credential is not base64 of UTF-8 text") from None
    name, colon, password = text.partition(":")
    if not colon or len(name) > PRINCIPAL_CHARS_MAX or len(password) > SECRET_CHARS_MAX:
        raise Unauthenticated(reason="the Basic credential is not name:password")
    return name, password


def certificate_name(certificate: Mapping[str, Any]) -> str:
    """Whom a verified client certificate names: its common name, else its first DNS, URI or email name."""
    names = [value for part in _pairs(certificate, "subject") for key, value in part if key == "commonName"]
    others: Sequence[tuple[str, str]] = certificate.get("subjectAltName", ())
    names += [value for kind in _ALTERNATIVES for key, value in others if key == kind]
    name = names[0] if names else ""
    if not 0 < len(name) <= PRINCIPAL_CHARS_MAX or not name.isprintable() or name == ANONYMOUS:
        raise Unauthenticated(reason="the client certificate names nobody: it has no usable common or alternative name")
    return name


def certificate_expiry_ns(certificate: Mapping[str, Any]) -> int:
    """When it ends, as wall time; 0 if it does not say."""
    text = certificate.get("notAfter")
    return int(ssl.cert_time_to_seconds(text)) * NS_PER_S if isinstance(text, str) else 0


def _pairs(certificate: Mapping[str, Any], key: str) -> Iterable[Sequence[tuple[str, str]]]:
    found: Iterable[Sequence[tuple[str, str]]] = certificate.get(key, ())
    return found


class Passwords:
    """The users of now. Thread-safe."""

    def __init__(self, clock: Clock) -> None:
        self._lock = threading.Lock()
        self._tries = Bucket(clock, TRIES_PER_SECOND, burst=TRIES_AT_ONCE)
        self._key = secrets.token_bytes(32)
        self._users: dict[str, PasswordHash] = {}
        self._recognised: dict[str, bytes] = {}
        self._nobody = hash_password(secrets.token_hex(16))

    def apply(self, users: Iterable[User]) -> None:
        """Take new users; a password that changed is not recognised any more."""
        fresh = {user.name: user.password for user in users}
        with self._lock:
            self._recognised = {
                name: digest for name, digest in self._recognised.items() if fresh.get(name) == self._users.get(name)
            }
            self._users = fresh

    def hash_of(self, name: str) -> PasswordHash | None:
        """To see whether a user's password is still the one that was shown."""
        return self._users.get(name)

    def recognises(self, name: str, password: str) -> bool:
        """Whether the password was right before; takes no time."""
        known = self._recognised.get(name)
        return known is not None and hmac.compare_digest(known, self._digest(password))

    def _digest(self, password: str) -> bytes:
        return hmac.digest(self._key, password.encode("utf-8", "surrogatepass"), "sha256")

    def verify(self, name: str, password: str) -> bool:
        """Whether the password is right; `QuotaReached` when too many were tried."""
        with self._lock:
            if self.recognises(name, password):
                return True
            if not self._tries.try_take():
                raise QuotaReached(
                    principal=name, limit="password attempts per second", allowed=TRIES_PER_SECOND, retry_after_s=1.0
                )
            expected = self._users.get(name)
        right = (expected or self._nobody).verify(password) and expected is not None
        if right:
            with self._lock:
                if self._users.get(name) == expected:
                    self._recognised[name] = self._digest(password)
        return right
