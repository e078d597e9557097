"""The token file: bearer tokens by their hashes, with expiry and revocation.

    {"version": 1, "bytes": 187, "crc32c": "1a2b3c4d", "tokens": [
      {"id": "3fa9c2d1", "name": "app", "sha256": "<hex>", "created_at_ns": …, "expires_at_ns": 0, "revoked_at_ns": 0}]}

A token is `hf_` and 32 random bytes in base64url; it is shown once, when it is made. The file holds its SHA-256: 256
bits of chance cannot be guessed, so a slow hash with a salt, as for passwords, would add nothing but time per request.

`bytes` is the length of the value of `tokens` as it stands in the file, and `crc32c` covers version, length and that
value. The file is replaced as a whole (temporary file, sync, rename, sync of the directory), is readable by its owner
only, and changes are made under a lock. So a reader sees the old file or the new one; anything else is damage, and
raises with file and byte. Revoked and expired tokens stay listed until there are too many.
"""

from __future__ import annotations

import hashlib
import hmac
import secrets
from collections.abc import Iterable, Iterator
from pathlib import Path

import msgspec

from holdfast.config.principals import ANONYMOUS, PRINCIPAL_CHARS_MAX, is_principal_name
from holdfast.disk.checksum import crc32c
from holdfast.disk.filesystem import Filesystem, Mode
from holdfast.disk.smallfiles import replace_whole
from holdfast.errors import BadRequest, CorruptData, InvalidName, LimitReached, UnsupportedFormat
from holdfast.store.ground import make_directory

VERSION = 1
PREFIX = "hf_"
SECRET_BYTES = 32
TOKEN_CHARS = len(PREFIX) + 43
TOKENS_MAX = 10_000
"""The file is read as a whole every second, and rewritten for each change."""
FILE_BYTES_MAX = 512 * TOKENS_MAX


class Token(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One token. Times are wall times; 0 is never."""

    id: str
    name: str
    sha256: str
    created_at_ns: int
    expires_at_ns: int = 0
    revoked_at_ns: int = 0

    def state(self, now_ns: int) -> str:
        """`live`, `expired` or `revoked`."""
        if self.revoked_at_ns:
            return "revoked"
        return "expired" if self.expires_at_ns and self.expires_at_ns <= now_ns else "live"


class _Envelope(msgspec.Struct, frozen=True):
    version: int
    bytes: int
    crc32c: str
    tokens: msgspec.Raw


class TokenFile:
    """The file at one path."""

    def __init__(self, filesystem: Filesystem, path: Path) -> None:
        self.path = path
        self._filesystem = filesystem

    def image(self) -> bytes | None:
        """The bytes of the file, for comparing; None if there is none."""
        try:
            file = self._filesystem.open(self.path, Mode.READ)
        except FileNotFoundError:
            return None
        try:
            size = file.size_bytes()
            if size > FILE_BYTES_MAX:
                raise self._damaged(FILE_BYTES_MAX, f"has {size} bytes, at most {FILE_BYTES_MAX} make sense")
            return file.pread(size, 0)
        finally:
            file.close()

    def read(self) -> tuple[Token, ...] | None:
        """All tokens; None if there is no file."""
        image = self.image()
        return None if image is None else self.decode(image)

    def decode(self, image: bytes) -> tuple[Token, ...]:
        """The tokens in the bytes of a file."""
        try:
            envelope = msgspec.json.decode(image, type=_Envelope)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            raise self._damaged(len(image), f"is not a whole token file: {_place(error)}") from None
        if envelope.version > VERSION:
            raise UnsupportedFormat(file=self.path, found=envelope.version, supported=VERSION)
        raw = bytes(envelope.tokens)
        if (envelope.bytes, envelope.crc32c) != (len(raw), _checksum(envelope.version, raw)):
            raise self._damaged(image.find(raw), "the checksum of the tokens is wrong")
        try:
            return tuple(msgspec.json.decode(raw, type=list[Token]))
        except msgspec.DecodeError as error:
            raise self._damaged(image.find(raw), f"the tokens make no sense: {_place(error)}") from None

    def create(self, name: str, *, now_ns: int, expires_at_ns: int = 0) -> tuple[Token, str]:
        """Add a token for a principal; returns it with the secret, which is nowhere else."""
        if not is_principal_name(name):
            reason = f"letters, digits and . _ @ + / -, the first a letter or digit, at most {PRINCIPAL_CHARS_MAX}"
            reason += f"; not {ANONYMOUS!r}"
            raise InvalidName(what="token", name=name, reason=reason)
        secret = PREFIX + secrets.token_urlsafe(SECRET_BYTES)
        token = Token(
            id=secrets.token_hex(4),
            name=name,
            sha256=digest_of(secret),
            created_at_ns=now_ns,
            expires_at_ns=expires_at_ns,
        )
        with self._locked():
            self._write([*_with_room(self.read() or (), now_ns), token])
        return token, secret

    def revoke(self, which: str, *, now_ns: int) -> list[Token]:
        """Revoke the token with that id, or all of that name; `BadRequest` if there is none that lives."""
        with self._locked():
            tokens = list(self.read() or ())
            chosen = {
                token.id for token in tokens if which in (token.id, token.name) and token.state(now_ns) != "revoked"
            }
            if not chosen:
                raise BadRequest(
                    f"there is no token {which!r} to revoke in {self.path}; `holdfast token ls` lists them"
                )
            changed = [
                msgspec.structs.replace(token, revoked_at_ns=now_ns) if token.id in chosen else token
                for token in tokens
            ]
            self._write(changed)
        return [token for token in changed if token.id in chosen]

    def _locked(self) -> _Held:
        make_directory(self._filesystem, self.path.parent)
        return _Held(self._filesystem, self.path.with_name(f"{self.path.name}.lock"))

    def _write(self, tokens: Iterable[Token]) -> None:
        raw = msgspec.json.encode(list(tokens))
        envelope = {
            "version": VERSION,
            "bytes": len(raw),
            "crc32c": _checksum(VERSION, raw),
            "tokens": msgspec.Raw(raw),
        }
        replace_whole(self._filesystem, self.path, msgspec.json.encode(envelope) + b"\n")

    def _damaged(self, offset_bytes: int, reason: str) -> CorruptData:
        return CorruptData(file=self.path, offset_bytes=max(0, offset_bytes), reason=reason)


class _Held:
    """A lock as a context."""

    def __init__(self, filesystem: Filesystem, path: Path) -> None:
        self._lock = filesystem.lock(path)

    def __enter__(self) -> None:
        return None

    def __exit__(self, *_: object) -> None:
        self._lock.release()


class TokenTable:
    """The tokens of one reading, found by what a caller shows."""

    def __init__(self, tokens: Iterable[Token]) -> None:
        self._by_digest = {token.sha256: token for token in tokens}
        self._by_id = {token.id: token for token in self._by_digest.values()}

    def find(self, secret: str) -> Token | None:
        """The token with this secret, whatever its state.

        Finding by digest tells nothing of value by its timing: who does not know the secret cannot steer its digest.
        The comparison that decides takes the same time wherever the first difference is.
        """
        digest = digest_of(secret)
        token = self._by_digest.get(digest)
        return token if token is not None and hmac.compare_digest(token.sha256, digest) else None

    def by_id(self, token_id: str) -> Token | None:
        """The token with that id."""
        return self._by_id.get(token_id)

    def __iter__(self) -> Iterator[Token]:
        return iter(self._by_id.values())


def changes(before: TokenTable, after: TokenTable) -> Iterator[tuple[str, Token]]:
    """What an operator did between two readings: the event of the audit log and the token."""
    for token in after:
        known = before.by_id(token.id)
        if known is None:
            yield "token.created", token
        if token.revoked_at_ns and (known is None or not known.revoked_at_ns):
            yield "token.revoked", token
    for token in before:
        if after.by_id(token.id) is None:
            yield "token.removed", token


def digest_of(secret: str) -> str:
    """What the file holds of a secret."""
    return hashlib.sha256(secret.encode("utf-8", "surrogatepass")).hexdigest()


def _with_room(tokens: Iterable[Token], now_ns: int) -> list[Token]:
    """All tokens, or the live ones if that is too many."""
    kept = list(tokens)
    if len(kept) >= TOKENS_MAX:
        kept = [token for token in kept if token.state(now_ns) == "live"]
    if len(kept) >= TOKENS_MAX:
        raise LimitReached(what="tokens", limit="the number of live tokens", allowed=TOKENS_MAX)
    return kept


def _checksum(version: int, raw: bytes) -> str:
    return f"{crc32c(raw, crc32c(f'{version} {len(raw)} '.encode())):08x}"


def _place(error: Exception) -> str:
    """What a decoder says; it names places and types, never values."""
    if isinstance(error, RecursionError):
        return "it is nested too deep"
    return str(error) if isinstance(error, msgspec.DecodeError) else "it is not UTF-8 text"
