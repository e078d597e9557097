"""Passwords are kept as scrypt hashes only.

    scrypt:<log2 of n>:<r>:<p>:<salt, base64>:<hash, base64>

Passwords are chosen by people, so a stolen hash must be expensive to try: scrypt with n=2^14, r=8, p=1 takes 16 MiB and
tens of milliseconds. (Tokens are 256 random bits and need no such thing; see server/access/tokens.py.) The text
never contains the password, and comparing takes the same time wherever the first difference is.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import secrets
from dataclasses import dataclass, field

LOG_N, R, P = 14, 8, 1
"""The interactive setting of the scrypt paper and of RFC 7914, section 2."""
LOG_N_MAX, R_MAX, P_MAX = 17, 16, 4
"""A hash from elsewhere may be dearer, but checking one password must not take seconds or gigabytes."""
SALT_BYTES = 16
HASH_BYTES = 32


@dataclass(frozen=True, slots=True)
class PasswordHash:
    """What is left of a password."""

    log_n: int
    r: int
    p: int
    salt: bytes = field(repr=False)
    digest: bytes = field(repr=False)

    def verify(self, password: str) -> bool:
        """Whether this is the password. Takes as long as scrypt does."""
        return hmac.compare_digest(_scrypt(password, self.salt, self.log_n, self.r, self.p), self.digest)

    @property
    def text(self) -> str:
        """As it is written into a file."""
        salt, digest = (base64.b64encode(part).decode() for part in (self.salt, self.digest))
        return f"scrypt:{self.log_n}:{self.r}:{self.p}:{salt}:{digest}"


def hash_password(password: str, *, salt: bytes = b"") -> PasswordHash:
    """Hash with a new salt, unless one is given."""
    salt = salt or secrets.token_bytes(SALT_BYTES)
    return PasswordHash(LOG_N, R, P, salt, _scrypt(password, salt, LOG_N, R, P))


def parse_hash(text: str) -> PasswordHash:
    """From its text; `ValueError` says what is wrong without repeating it."""
    parts = text.split(":")
    if len(parts) != 6 or parts[0] != "scrypt" or not all(part.isascii() and part.isdigit() for part in parts[1:4]):
        raise ValueError("is not scrypt:<log2 n>:<r>:<p>:<salt>:<hash>; make one with `holdfast token hash-password`")
    log_n, r, p = (int(part[:9]) for part in parts[1:4])
    if not (1 <= log_n <= LOG_N_MAX and 1 <= r <= R_MAX and 1 <= p <= P_MAX):
        raise ValueError(f"has parameters outside log2 n ≤ {LOG_N_MAX}, r ≤ {R_MAX}, p ≤ {P_MAX}")
    try:
        salt, digest = (base64.b64decode(part, validate=True) for part in parts[4:])
    except (binascii.Error, ValueError):
        raise ValueError("has a salt or a hash that is not base64") from None
    if len(salt) < 8 or len(digest) != HASH_BYTES:
        raise ValueError(f"has a salt of less than 8 bytes, or a hash that is not {HASH_BYTES} bytes")
    return PasswordHash(log_n, r, p, salt, digest)


def _scrypt(password: str, salt: bytes, log_n: int, r: int, p: int) -> bytes:  # noqa: PLR0917 - scrypt's own
    memory = 128 * r * (p + (1 << log_n)) + (1 << 20)
    return hashlib.scrypt(
        password.encode("utf-8", "surrogatepass"), salt=salt, n=1 << log_n, r=r, p=p, maxmem=memory, dklen=HASH_BYTES
    )
