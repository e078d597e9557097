"""Every setting of a server, declared once: name, kind, default, range and the reason for the default.

As with the settings of a store (table.py), values are frozen and checked when made. Users, access rules and limits per
principal are lists and mappings of their own; principals.py reads them.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

from holdfast.config.principals import (
    AccessRule,
    PrincipalLimits,
    User,
    check_principals,
    read_limits,
    read_rules,
    read_users,
)
from holdfast.config.reading import read_pairs, require_mapping
from holdfast.config.values import (
    DAY,
    GIB,
    HOUR,
    KIB,
    MIB,
    MINUTE,
    MS,
    SECOND,
    TIB,
    Kind,
    Setting,
    setting,
    whole_number,
)
from holdfast.errors import InvalidConfig

ROLES = ("primary", "replica", "primary_catchup")
PORT_MAX = 65535
ACCESS_DIR = "access"
"""Where tokens and slot bindings are, inside the data directory."""

USERS, ACCESS, LIMITS = "auth.users", "access", "limits"


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerConfig:
    """The settings of one server."""

    data: str = setting(
        "data",
        Kind.TEXT,
        "data",
        why="directory of the store, where the process was started; a service names its own",
    )
    listen: str = setting(
        "server.listen",
        Kind.TEXT,
        "127.0.0.1:9000",
        why="host and port for producers and consumers; only this machine until someone decides otherwise",
    )
    admin: str = setting(
        "server.admin",
        Kind.TEXT,
        "127.0.0.1:9001",
        why="host and port of the admin HTTP server; only this machine until someone decides otherwise",
    )
    role: str = setting(
        "server.role",
        Kind.CHOICE,
        "primary",
        choices=ROLES,
        why="what the server says of itself to clients with several hosts; only a primary takes writes",
    )
    shutdown_timeout_ns: int = setting(
        "server.shutdown_timeout",
        Kind.TIME,
        30 * SECOND,
        low=MS,
        high=HOUR,
        why="how long a drain may take before connections are cut; shorter than the 90 s that service managers wait",
    )
    ingest_batch_bytes_max: int = setting(
        "ingest.max_batch_size",
        Kind.SIZE,
        16 * MIB,
        low=KIB,
        high=512 * MIB,
        why="the largest message a producer may send, told to it at the handshake; at most `frame.max_size`",
    )
    ingest_group_bytes_max: int = setting(
        "ingest.group_max_size",
        Kind.SIZE,
        256 * MIB,
        low=KIB,
        high=512 * MIB,
        why="what a QWP message, or a group with DEFER_COMMIT, may take in memory: it is committed as one. 16 times "
        "`ingest.max_batch_size`, since no type of column takes more room as Arrow",
    )
    ingest_connection_inflight_bytes: int = setting(
        "ingest.connection_inflight",
        Kind.SIZE,
        8 * MIB,
        low=64 * KIB,
        high=GIB,
        why="bytes of one connection that wait for their commit before reading from it pauses; one message is always "
        "let in",
    )
    ingest_total_inflight_bytes: int = setting(
        "ingest.total_inflight",
        Kind.SIZE,
        64 * MIB,
        low=MIB,
        high=64 * GIB,
        why="the same for all connections together, so that their number does not decide how much memory is used",
    )
    ingest_write_deadline_ns: int = setting(
        "ingest.write_deadline",
        Kind.TIME,
        5 * SECOND,
        low=MS,
        high=HOUR,
        why="how long a frame waits for a full store before its producer gets an error; shorter than their timeouts",
    )
    ingest_handshake_timeout_ns: int = setting(
        "ingest.handshake_timeout",
        Kind.TIME,
        10 * SECOND,
        low=10 * MS,
        high=10 * MINUTE,
        why="how long a peer may take to say who it is, on both ports; a slow one must not hold a place",
    )
    ingest_ping_interval_ns: int = setting(
        "ingest.ping_interval",
        Kind.TIME,
        20 * SECOND,
        low=10 * MS,
        high=HOUR,
        why="how often a quiet connection is asked whether it lives; less than the 60 s after which proxies cut it",
    )
    ingest_idle_timeout_ns: int = setting(
        "ingest.idle_timeout",
        Kind.TIME,
        MINUTE,
        low=20 * MS,
        high=DAY,
        why="how long a connection may be silent, pongs included, before it is closed: three pings",
    )
    ingest_connections_max: int = setting(
        "ingest.max_connections",
        Kind.COUNT,
        10_000,
        low=1,
        high=1_000_000,
        why="each costs a descriptor and some memory; a server that is full says so instead of failing",
    )
    ingest_origins: tuple[str, ...] = setting(
        "ingest.origins",
        Kind.TEXTS,
        (),
        why="web pages that may connect, as `https://host:port`; none, since a browser sends its user's credentials",
    )
    tls_cert: str = setting(
        "tls.cert",
        Kind.TEXT,
        "",
        why="file with the server's certificate chain (PEM); none, so the server speaks plain text on loopback",
    )
    tls_key: str = setting("tls.key", Kind.TEXT, "", why="file with its private key (PEM)")
    tls_client_ca: str = setting(
        "tls.client_ca",
        Kind.TEXT,
        "",
        why="file with the authorities (PEM) whose client certificates authenticate; none",
    )
    tls_client_cert: str = setting(
        "tls.client_cert",
        Kind.CHOICE,
        "optional",
        choices=("optional", "required"),
        why="a caller without a certificate may use a token instead, and a probe may ask `/healthz`; "
        "`required` ends the TLS handshake",
    )
    auth_required: bool = setting(
        "auth.required",
        Kind.FLAG,
        False,
        why="required anyhow once there is a token, a user or a client authority; `yes` before the first of them",
    )
    auth_tokens: str = setting(
        "auth.tokens",
        Kind.TEXT,
        "",
        why="the file of `holdfast token`; by default `access/tokens.json` in the data directory",
    )
    audit_path: str = setting(
        "audit.path",
        Kind.TEXT,
        "",
        why="file of the audit log, one JSON object a line; by default they go to standard error",
    )
    audit_bytes_max: int = setting(
        "audit.max_size",
        Kind.SIZE,
        64 * MIB,
        low=4 * KIB,
        high=TIB,
        why="at this size the file becomes `<path>.1`, which is replaced; so it never fills the disk",
    )
    users: tuple[User, ...] = ()
    access: tuple[AccessRule, ...] = ()
    limits: tuple[PrincipalLimits, ...] = ()

    def __post_init__(self) -> None:
        for name, row in self.rows().items():
            row.check(getattr(self, name))
        for key, text in (("server.listen", self.listen), ("server.admin", self.admin)):
            parse_address(text, key=key)
        if not self.data:
            raise InvalidConfig(key="data", reason="is empty; give the directory of the store")
        check_principals(self.users, self.access, self.limits)
        self._check_ingest_relations()
        self._check_tls_relations()

    @classmethod
    def rows(cls) -> dict[str, Setting]:
        """The table's row of each attribute."""
        return {item.name: item.metadata["setting"] for item in fields(cls) if "setting" in item.metadata}

    @classmethod
    def from_mapping(cls, mapping: Mapping[str, object]) -> ServerConfig:
        """Settings from a file or keyword arguments; unknown keys are errors."""
        settings = dict(require_mapping(mapping, key="(all)"))
        changes: dict[str, Any] = {}
        for key, name, read in _STRUCTURED:
            found, raw = _take(settings, key)
            if found:
                changes[name] = read(raw)
        names = {row.key: name for name, row in cls.rows().items()}
        for key, (row, raw) in read_pairs(settings, {row.key: row for row in cls.rows().values()}).items():
            changes[names[key]] = row.parse(raw)
        return replace(cls(), **changes)

    @property
    def listen_address(self) -> tuple[str, int]:
        """Host and port of the data server."""
        return parse_address(self.listen, key="server.listen")

    @property
    def admin_address(self) -> tuple[str, int]:
        """Host and port of the admin server."""
        return parse_address(self.admin, key="server.admin")

    @property
    def access_directory(self) -> Path:
        """Where tokens and slot bindings are kept."""
        return Path(self.data) / ACCESS_DIR

    @property
    def tokens_path(self) -> Path:
        """The token file."""
        return Path(self.auth_tokens) if self.auth_tokens else self.access_directory / "tokens.json"

    @property
    def has_tls(self) -> bool:
        """Whether both ports speak TLS."""
        return bool(self.tls_cert)

    def _check_ingest_relations(self) -> None:
        if self.ingest_total_inflight_bytes < self.ingest_connection_inflight_bytes:
            raise InvalidConfig(key="ingest.total_inflight", reason="must be at least ingest.connection_inflight")
        if self.ingest_total_inflight_bytes < self.ingest_batch_bytes_max:
            raise InvalidConfig(key="ingest.total_inflight", reason="must be at least ingest.max_batch_size")
        if self.ingest_group_bytes_max < self.ingest_batch_bytes_max:
            raise InvalidConfig(key="ingest.group_max_size", reason="must be at least ingest.max_batch_size")
        if self.ingest_idle_timeout_ns < 2 * self.ingest_ping_interval_ns:
            reason = "must be at least twice ingest.ping_interval, or a peer that lives is taken for dead"
            raise InvalidConfig(key="ingest.idle_timeout", reason=reason)
        for origin in self.ingest_origins:
            if not _is_origin(origin):
                reason = "an origin is scheme, host and perhaps port, like https://app.example or http://localhost:3000"
                raise InvalidConfig(key="ingest.origins", reason=reason)

    def _check_tls_relations(self) -> None:
        if self.tls_cert and not self.tls_key:
            raise InvalidConfig(key="tls.cert", reason="needs tls.key beside it")
        if self.tls_key and not self.tls_cert:
            raise InvalidConfig(key="tls.key", reason="needs tls.cert beside it")
        if self.tls_client_ca and not self.tls_cert:
            raise InvalidConfig(key="tls.client_ca", reason="needs tls.cert and tls.key beside it")
        if self.tls_client_cert == "required" and not self.tls_client_ca:
            raise InvalidConfig(key="tls.client_cert", reason="required needs tls.client_ca beside it")


_STRUCTURED = ((USERS, "users", read_users), (ACCESS, "access", read_rules), (LIMITS, "limits", read_limits))

SERVER_SETTINGS: tuple[Setting, ...] = tuple(ServerConfig.rows().values())
SERVER_SECTIONS = frozenset({row.key.partition(".")[0] for row in SERVER_SETTINGS} | {ACCESS, LIMITS})
"""The top-level keys of a file that are the server's."""


def _take(settings: dict[object, object], key: str) -> tuple[bool, object]:
    """Remove a key, flat or nested, and return its value."""
    if key in settings:
        return True, settings.pop(key)
    section, _, name = key.partition(".")
    inside = settings.get(section)
    if name and isinstance(inside, Mapping) and name in inside:
        settings[section] = {other: value for other, value in inside.items() if other != name}
        return True, inside[name]
    return False, None


def parse_address(text: str, *, key: str) -> tuple[str, int]:
    """Host and port of `127.0.0.1:9000`, `[::1]:9000` or `name:9000`; port 0 lets the system choose."""
    host, _, port = text.rpartition(":")
    bracketed = host.startswith("[") and host.endswith("]")
    number = whole_number(port, most=PORT_MAX)
    if not host or number is None:
        raise InvalidConfig(key=key, reason=f"{text!r} is not host:port with a port of 0 to {PORT_MAX}")
    if ":" in host and not bracketed:
        raise InvalidConfig(key=key, reason=f"{text!r}: an IPv6 address stands in brackets, like [::1]:9000")
    return (host[1:-1] if bracketed else host), number


def is_loopback(host: str) -> bool:
    """Whether only this machine can connect to an address bound on `host`; a name other than localhost is not."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host.partition("%")[0]).is_loopback
    except ValueError:
        return False


def _is_origin(text: str) -> bool:
    scheme, separator, rest = text.partition("://")
    return bool(separator and rest) and scheme.isalpha() and not any(char in rest for char in "/?#*@ ")
