"""Who is calling: turns headers and certificates into principals, and ends those whose credential ends.

Promises: whoever shows a credential is judged by it, never let in by another way; a wrong one is an error even where
none is needed. A token that is revoked or expires, a user that is removed or changes its password, and a certificate
that expires end the live connections and requests they opened: `poll` finds them, `on_revoked` or whatever they were
attended with closes them, and `Principal.may` says no from that moment. Revoking the last token does not open the door:
once authentication is on, it stays on until a restart. Settings that do not hold are refused as a whole (`prepare`,
which reads files) before any is taken (`take`).

The server runs `watch` as a task. `authenticate` and `prepare` may be called from any thread; the rest from the loop's.
"""

from __future__ import annotations

import asyncio
import logging
import sqlite3
import threading
from collections import OrderedDict
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from holdfast.clock import Clock
from holdfast.config.principals import ANONYMOUS
from holdfast.config.server import ServerConfig
from holdfast.disk.filesystem import Filesystem
from holdfast.errors import HoldfastError, InvalidConfig, Unauthenticated
from holdfast.model.names import check_channel_name
from holdfast.server.access.audit import AuditFile, AuditLog, stderr_sink
from holdfast.server.access.bindings import Bindings
from holdfast.server.access.principal import Account, Credential, Principal
from holdfast.server.access.quota import ChannelQuota
from holdfast.server.access.signin import (
    Passwords,
    certificate_expiry_ns,
    certificate_name,
    split_basic,
    split_header,
)
from holdfast.server.access.tokens import TokenFile, TokenTable, changes
from holdfast.telemetry import event

POLL_INTERVAL_S = 1.0
"""How often credentials are looked at: a revoked one ends within two of these, well below the promised 5 s."""
ACCOUNTS_MAX = 10_000
"""Names remembered with their rates; those without a connection are forgotten first."""


@dataclass(frozen=True, slots=True)
class GatekeeperStatistics:
    """For people and metrics. Counts are since the server started."""

    auth_on: bool
    authenticated: int
    failures: int
    revoked: int
    connections: int
    requests: int
    """Being answered by the admin server."""
    audit_lines: int
    audit_suppressed: int
    audit_failures: int


@dataclass(frozen=True, slots=True)
class PreparedAccess:
    """New settings, and what was read for them."""

    config: ServerConfig
    token_file: TokenFile
    image: bytes | None
    tokens: TokenTable
    generation: int
    """Of the tokens in use before the file was read."""


class _Read(NamedTuple):
    """The token file, and which tokens were in use before it was read."""

    generation: int
    image: bytes | None


class Gatekeeper:
    """The one door to principals."""

    def __init__(
        self, config: ServerConfig, clock: Clock, filesystem: Filesystem, *, audit: AuditLog | None = None
    ) -> None:
        """Reads the token file; a damaged one raises."""
        self.clock = clock
        self.config = config
        self.on_revoked: Callable[[Principal], None] = lambda _principal: None
        """Called for each live connection whose credential ended, unless it was attended with a call of its own."""
        self.reserved: set[str] = set()
        """Channels that only the server itself writes to, whatever the rules say."""
        self.check_channel: Callable[[str], None] = check_channel_name
        """Raises why a channel cannot be; the store knows more of that than its spelling."""
        self._filesystem = filesystem
        self._audit_file: AuditFile | None = None
        self.audit = audit or self._open_audit(config)
        self.bindings = Bindings(filesystem, Path(config.data).absolute() / config.access_directory.name, clock)
        self.quota = ChannelQuota(self.bindings)
        self._lock = threading.Lock()
        self._accounts: OrderedDict[str, Account] = OrderedDict()
        self._live: dict[Principal, Callable[[], None] | None] = {}
        self._passwords = Passwords(clock)
        self._passwords.apply(config.users)
        self._token_file = TokenFile(filesystem, config.tokens_path.absolute())
        self._generation = 0  # of the tokens in use; what was read under an older one is not taken
        self._image = self._token_file.image()
        self._tokens = TokenTable(() if self._image is None else self._token_file.decode(self._image))
        self._auth_on = self._asks_for_credentials(config)
        self._authenticated = self._failures = self._revoked = 0
        self._complaint = ""

    @property
    def auth_on(self) -> bool:
        """Whether a caller without a credential is refused."""
        return self._auth_on

    # -- authenticating ---------------------------------------------------------------------------------------------

    def authenticate(
        self, headers: Mapping[str, str], peer_cert: Mapping[str, Any] | None = None, *, peer: str = ""
    ) -> Principal:
        """The principal that calls; raises `Unauthenticated`, or `QuotaReached` for too many passwords.

        `peer_cert` is what `SSLObject.getpeercert()` says of a verified certificate; `peer` is for the audit log. A
        password that is seen for the first time takes some 50 ms.
        """
        try:
            principal = self._identify(headers, peer_cert)
        except HoldfastError as error:
            self.note_failure(error, peer=peer)
            raise
        self._authenticated += 1
        return principal

    def note_failure(self, reason: object, *, peer: str) -> None:
        """Somebody showed nothing, or nothing that holds; for protocols that judge credentials of their own, too."""
        self._failures += 1
        self.audit.write("authentication.failed", reason=reason, peer=peer)

    def is_quick(self, headers: Mapping[str, str]) -> bool:
        """Whether `authenticate` would take no time: it does for a password that is seen for the first time."""
        try:
            header = split_header(headers)
            if header is None or header[0] != "basic":
                return True
            return self._passwords.recognises(*split_basic(header[1]))
        except Unauthenticated:
            return True

    def _identify(self, headers: Mapping[str, str], peer_cert: Mapping[str, Any] | None) -> Principal:
        header = split_header(headers)
        if header is not None:
            scheme, value = header
            if scheme == "bearer":
                return self._by_token(value)
            if scheme == "basic":
                return self._by_password(*split_basic(value))
            raise Unauthenticated(reason="the Authorization header is neither Bearer nor Basic")
        if peer_cert:
            credential = Credential("certificate", expires_at_ns=certificate_expiry_ns(peer_cert))
            return self._principal(certificate_name(peer_cert), credential)
        if self._auth_on:
            raise Unauthenticated(reason="a credential is needed: a token, a password or a client certificate")
        return self._principal(ANONYMOUS, Credential("none"))

    def stranger(self) -> Principal:
        """Somebody who has not said yet who it is: a protocol asks in its first message, and signs it in there."""
        return self._principal(ANONYMOUS, Credential("unknown"))

    def _by_token(self, secret: str) -> Principal:
        token = self._tokens.find(secret)
        if token is None:
            raise Unauthenticated(reason="the token is unknown")
        state = token.state(self.clock.wall_ns())
        if state != "live":
            raise Unauthenticated(reason=f"the token {token.id} of {token.name!r} is {state}")
        return self._principal(token.name, Credential("token", token.id, expires_at_ns=token.expires_at_ns))

    def _by_password(self, name: str, password: str) -> Principal:
        shown = self._passwords.hash_of(name)
        if not self._passwords.verify(name, password) or shown is None:
            raise Unauthenticated(reason="the user is unknown or the password is wrong")
        return self._principal(name, Credential("user", password=shown))

    def _principal(self, name: str, credential: Credential) -> Principal:
        principal = Principal(self, self._account(name), credential)
        if not principal.is_valid:
            raise Unauthenticated(reason=f"the {credential} of {name!r} has expired")
        return principal

    def _account(self, name: str) -> Account:
        with self._lock:
            account = self._accounts.get(name)
            if account is None:
                account = self._accounts[name] = Account(name, self.clock)
                account.apply(self.config.access, self.config.limits)
                if len(self._accounts) > ACCOUNTS_MAX:
                    self._forget_one(keep=name)
            else:
                self._accounts.move_to_end(name)
            return account

    def _forget_one(self, *, keep: str) -> None:
        idle = next((name for name, found in self._accounts.items() if not found.connections and name != keep), None)
        if idle is not None:
            del self._accounts[idle]

    # -- watching ---------------------------------------------------------------------------------------------------

    async def watch(self) -> None:
        """Look at credentials for ever; a task of the server."""
        while True:
            await asyncio.sleep(POLL_INTERVAL_S)
            self._take_tokens(await asyncio.to_thread(self._look))
            self._end_invalid()

    def poll(self) -> None:
        """Look at credentials now."""
        self._take_tokens(self._read_tokens())
        self._end_invalid()

    def _look(self) -> _Read:
        self._tidy()
        return self._read_tokens()

    def _tidy(self) -> None:
        try:
            self.quota.tidy()
        except (OSError, sqlite3.Error, HoldfastError) as error:
            event("server.access.fail", level=logging.ERROR, reason=error)

    def _read_tokens(self) -> _Read:
        """The token file as it is now, read as a whole: times of files are too coarse to tell two changes apart."""
        before = _Read(self._generation, self._image)
        try:
            return _Read(before.generation, self._token_file.image())
        except (OSError, HoldfastError) as error:
            self._complain(error)
            return before

    def _take_tokens(self, read: _Read) -> None:
        generation, image = read
        if generation != self._generation or image == self._image:
            return  # others were taken since, or nothing is new
        self._generation += 1
        try:
            tokens = TokenTable(() if image is None else self._token_file.decode(image))
            for name, token in changes(self._tokens, tokens):
                self.audit.write(name, principal=token.name, token=token.id)
            self._tokens, self._auth_on, self._complaint = tokens, True, ""
        except HoldfastError as error:  # what was revoked stays revoked, what was live stays live
            self._complain(error)
        self._image = image

    def _complain(self, error: Exception) -> None:
        if str(error) == self._complaint:
            return
        self._complaint = str(error)
        event("server.tokens.unreadable", level=logging.ERROR, reason=error)
        self.audit.write("tokens.unreadable", reason=error)

    def _end_invalid(self) -> None:
        for principal, on_end in list(self._live.items()):
            if self._still_valid(principal):
                continue
            principal.revoked = True
            self._live.pop(principal, None)
            self._revoked += 1
            self.audit.write("credential.ended", principal=principal.name, credential=principal.credential)
            if on_end is None:
                self.on_revoked(principal)
            else:
                on_end()

    def _still_valid(self, principal: Principal) -> bool:
        credential = principal.credential
        if not principal.is_valid:
            return False
        if credential.kind == "token":
            token = self._tokens.by_id(credential.token_id)
            return token is not None and token.state(self.clock.wall_ns()) == "live"
        if credential.kind == "user":
            return self._passwords.hash_of(principal.name) == credential.password
        if credential.kind == "certificate":
            return bool(self.config.tls_client_ca)
        return credential.kind == "unknown" or not self._auth_on

    # -- settings ---------------------------------------------------------------------------------------------------

    def reload(self, config: ServerConfig) -> None:
        """Take new settings, or raise and keep the old ones."""
        self.take(self.prepare(config))

    def prepare(self, config: ServerConfig) -> PreparedAccess:
        """Read what new settings need; raises if they do not hold. Changes nothing."""
        generation, token_file = self._generation, TokenFile(self._filesystem, config.tokens_path.absolute())
        image = token_file.image()
        return PreparedAccess(
            config, token_file, image, TokenTable(() if image is None else token_file.decode(image)), generation
        )

    def take(self, new: PreparedAccess) -> None:
        """Use new users, rules, limits and tokens; connections that lost their credential end."""
        config = new.config
        is_elsewhere = new.token_file.path != self._token_file.path
        if is_elsewhere or self._generation == new.generation:  # else `watch` has read it since
            self._generation += 1
            self._token_file, self._image, self._tokens = new.token_file, new.image, new.tokens
        self._passwords.apply(config.users)
        with self._lock:
            self.config = config
            for account in self._accounts.values():
                account.apply(config.access, config.limits)
        self._auth_on = self._auth_on or self._asks_for_credentials(config)
        if self._audit_file is not None:
            self._audit_file.close()
        self.audit.write("settings.reloaded", rules=len(config.access), users=len(config.users))
        self._end_invalid()

    def _asks_for_credentials(self, config: ServerConfig) -> bool:
        return bool(config.auth_required or config.users or config.tls_client_ca or self._image is not None)

    def _open_audit(self, config: ServerConfig) -> AuditLog:
        if not config.audit_path:
            return AuditLog(stderr_sink, self.clock)
        path = Path(config.audit_path).absolute()
        self._audit_file = AuditFile(self._filesystem, path, bytes_max=config.audit_bytes_max)
        return AuditLog(self._audit_file, self.clock)

    def check_audit(self) -> None:
        """Raise `InvalidConfig` unless the audit log can be written. It may be in the data directory, which is there
        once the store is open."""
        if self._audit_file is not None:
            try:
                self._audit_file.open()
            except OSError as error:
                reason = f"{self.config.audit_path} cannot be written: {error.strerror}; its directory must exist"
                raise InvalidConfig(key="audit.path", reason=reason) from None

    # -- what principals need ---------------------------------------------------------------------------------------

    def bind(self, slot_id: bytes, principal: str) -> str:
        """Who owns a slot; whoever asks first, durably."""
        return self.bindings.bind(slot_id, principal)

    def attend(self, principal: Principal, *, on_end: Callable[[], None] | None = None) -> None:
        """Watch its credential until `dismiss`; when it ends, call `on_end`, or else `on_revoked`."""
        self._live[principal] = on_end

    def dismiss(self, principal: Principal) -> None:
        """Stop watching."""
        self._live.pop(principal, None)

    def statistics(self) -> GatekeeperStatistics:
        """A picture."""
        requests = sum(on_end is not None for on_end in list(self._live.values()))
        return GatekeeperStatistics(
            auth_on=self._auth_on,
            authenticated=self._authenticated,
            failures=self._failures,
            revoked=self._revoked,
            connections=len(self._live) - requests,
            requests=requests,
            audit_lines=self.audit.lines,
            audit_suppressed=self.audit.suppressed,
            audit_failures=self.audit.failures,
        )

    def close(self) -> None:
        """Close files. Idempotent."""
        self._tidy()
        self.bindings.close()
        if self._audit_file is not None:
            self._audit_file.close()
