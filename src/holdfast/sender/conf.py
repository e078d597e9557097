"""Every key of a sender's connect string, declared once: name, kind, default, range and the reason for the default.

    ws::addr=h1:9000,h2:9000;sf_dir=/var/lib/app;sender_id=app-1;

The table feeds the parser, `docs/reference/connect-string.md` (`python -m holdfast.sender` prints it) and the error
texts. `SenderConfig` is read once at the door, from a connect string, keyword arguments of the same names, or
`HOLDFAST_CONF`. Unknown keys, bad values and contradictions raise `InvalidConfig` naming the key.

`reconnect_…` keys say how a *lost* connection is won back, for as long as it takes. They never change what happens
at the start: that is `initial_connect_retry` alone, which stays `off` unless it is given.
"""

from __future__ import annotations

import difflib
import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields
from functools import cache
from typing import Any

from holdfast.config import GIB, KIB, MIB, Kind
from holdfast.errors import Category, InvalidConfig
from holdfast.sender import policies
from holdfast.sender.connectstring import WHOLE, split
from holdfast.sender.foreignkeys import FOREIGN
from holdfast.sender.keys import MS_MAX, Address, Key, key, millis, parse_addresses
from holdfast.sender.policies import Policy
from holdfast.sender.segment import OVERHEAD_BYTES, SEGMENT_BYTES_MIN

ENVIRONMENT = "HOLDFAST_CONF"
SCHEMAS = ("ws", "wss")
MEMORY_BYTES_DEFAULT = 128 * MIB
SLOT_BYTES_DEFAULT = 10 * GIB

_POLICY_WORDS = tuple(policies.WORDS)
_CONNECT, _AUTH, _TLS, _SF, _LINK, _CLOSE, _ACK, _ERRORS, _ENCODE = (
    "Where to",
    "Who",
    "TLS",
    "Store and forward",
    "Connecting and reconnecting",
    "Closing",
    "Acknowledgements",
    "Errors",
    "Encoding and flushing",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class SenderConfig:
    """The settings of one sender. Field names are the keys; times are milliseconds, sizes bytes."""

    tls: bool = False
    """Whether the schema is wss."""
    addr: tuple[Address, ...]
    connect_timeout: int = millis(
        "connect_timeout",
        15_000,
        group=_CONNECT,
        why="bounds the TCP connect to one address; an operating system left alone takes minutes",
    )
    auth_timeout_ms: int = millis(
        "auth_timeout_ms",
        15_000,
        group=_CONNECT,
        why="bounds the wait for the answer to the upgrade request, per address",
    )
    client_id: str | None = key(
        "client_id", Kind.TEXT, None, group=_CONNECT, why="a name for the server's logs; sent when connecting"
    )
    username: str | None = key(
        "username", Kind.TEXT, None, aliases=("user",), group=_AUTH, why="HTTP basic; needs `password`"
    )
    password: str | None = key(
        "password", Kind.TEXT, None, aliases=("pass",), secret=True, group=_AUTH, why="HTTP basic; needs `username`"
    )
    token: str | None = key(
        "token", Kind.TEXT, None, secret=True, group=_AUTH, why="bearer token; not together with `username`"
    )
    tls_verify: str = key(
        "tls_verify",
        Kind.CHOICE,
        "on",
        choices=("on", "unsafe_off"),
        group=_TLS,
        why="without it anybody can be the server; only for tests",
    )
    tls_ca: str = key(
        "tls_ca",
        Kind.CHOICE,
        "os_roots",
        choices=("os_roots", "webpki_roots", "webpki_and_os_roots", "pem_file"),
        group=_TLS,
        why="the operating system knows its administrator's roots; Python has no others, so the first three are one",
    )
    tls_roots: str | None = key(
        "tls_roots", Kind.TEXT, None, group=_TLS, why="a PEM file with the roots to trust instead of the system's"
    )
    tls_roots_password: str | None = key(
        "tls_roots_password",
        Kind.TEXT,
        None,
        secret=True,
        group=_TLS,
        why="accepted, without effect: root files of other clients may have one, PEM files have none",
    )
    sf_dir: str | None = key(
        "sf_dir",
        Kind.TEXT,
        None,
        unset="(unset: memory mode)",
        group=_SF,
        why="a directory makes unacknowledged frames survive the process; made if its parent exists; `~` is no home",
    )
    sender_id: str = key(
        "sender_id",
        Kind.TEXT,
        "default",
        pattern="[A-Za-z0-9_-]{1,128}",
        group=_SF,
        why="the slot is `<sf_dir>/<sender_id>`; two senders of one directory need two",
    )
    sf_max_segment_bytes: int = key(
        "sf_max_segment_bytes",
        Kind.SIZE,
        4 * MIB,
        low=SEGMENT_BYTES_MIN,
        high=GIB,
        group=_SF,
        why="space comes back in pieces of this size; the largest frame is 32 bytes less",
    )
    sf_max_total_bytes: int | None = key(
        "sf_max_total_bytes",
        Kind.SIZE,
        None,
        low=2 * SEGMENT_BYTES_MIN,
        unset="128m in memory, 10g with `sf_dir`",
        group=_SF,
        why="a hard cap on unacknowledged frames; at least two segments, one to fill while the other is sent",
    )
    sf_durability: str = key(
        "sf_durability",
        Kind.CHOICE,
        "memory",
        choices=("memory", "periodic", "flush", "append"),
        group=_SF,
        why="`memory` survives a kill of the process, not a power cut; `periodic` syncs in the background; "
        "`flush()` and every append are synced with the last two",
    )
    sf_sync_interval_millis: int = millis(
        "sf_sync_interval_millis",
        5_000,
        group=_SF,
        why="with `periodic`, the most a power cut can take",
    )
    sf_append_deadline_millis: int = millis(
        "sf_append_deadline_millis",
        30_000,
        group=_SF,
        why="how long a producer waits at the cap before it gets an error; longer than a server restart",
    )
    drain_orphans: bool = key(
        "drain_orphans",
        Kind.FLAG,
        False,
        group=_SF,
        why="sending what other, dead senders left in `sf_dir` surprises where tenants share it",
    )
    max_background_drainers: int = key(
        "max_background_drainers",
        Kind.COUNT,
        4,
        high=1024,
        group=_SF,
        why="each has a connection of its own; 0 finds orphans and sends none",
    )
    initial_connect_retry: str = key(
        "initial_connect_retry",
        Kind.CHOICE,
        "off",
        choices=("off", "on", "async"),
        words=(("false", "off"), ("true", "on"), ("sync", "on")),
        group=_LINK,
        why="`off`: one attempt, and the error tells at once of a wrong address; `on`: start waits, up to "
        "`reconnect_max_duration_millis`; `async`: start returns and the background goes on trying",
    )
    reconnect_max_duration_millis: int = millis(
        "reconnect_max_duration_millis",
        300_000,
        low=0,
        group=_LINK,
        why="bounds a start that waits (`initial_connect_retry=on`); a running sender never gives up",
    )
    reconnect_initial_backoff_millis: int = millis(
        "reconnect_initial_backoff_millis",
        100,
        group=_LINK,
        why="the first pause; doubled each time, with jitter",
    )
    reconnect_max_backoff_millis: int = millis(
        "reconnect_max_backoff_millis",
        5_000,
        group=_LINK,
        why="a server that is back is found within this",
    )
    connection_listener_inbox_capacity: int = key(
        "connection_listener_inbox_capacity",
        Kind.COUNT,
        256,
        low=1,
        high=1_000_000,
        group=_LINK,
        why="events for a slow listener; the oldest go first",
    )
    close_flush_timeout_millis: int = millis(
        "close_flush_timeout_millis",
        5_000,
        low=-MS_MAX,
        group=_CLOSE,
        why="how long `close()` waits for acknowledgements; 0 or less: not at all",
    )
    request_durable_ack: bool = key(
        "request_durable_ack",
        Kind.FLAG,
        False,
        strict=True,
        group=_ACK,
        why="on: frames are kept until the server has them in its object store, and a server that cannot is refused",
    )
    durable_ack_keepalive_interval_millis: int = millis(
        "durable_ack_keepalive_interval_millis",
        200,
        low=-MS_MAX,
        group=_ACK,
        why="a ping while confirmations are pending; 0 or less: none",
    )
    error_inbox_capacity: int = key(
        "error_inbox_capacity",
        Kind.COUNT,
        256,
        low=16,
        high=1_000_000,
        group=_ERRORS,
        why="errors for a slow handler; the oldest go first, the latest says most",
    )
    on_server_error: str = key(
        "on_server_error", Kind.CHOICE, "auto", choices=_POLICY_WORDS, group=_ERRORS, why="for all categories below"
    )
    on_schema_error: str = key(
        "on_schema_error", Kind.CHOICE, "auto", choices=_POLICY_WORDS, group=_ERRORS, why="auto: drop"
    )
    on_parse_error: str = key(
        "on_parse_error", Kind.CHOICE, "auto", choices=_POLICY_WORDS, group=_ERRORS, why="auto: halt"
    )
    on_internal_error: str = key(
        "on_internal_error", Kind.CHOICE, "auto", choices=_POLICY_WORDS, group=_ERRORS, why="auto: halt"
    )
    on_security_error: str = key(
        "on_security_error", Kind.CHOICE, "auto", choices=_POLICY_WORDS, group=_ERRORS, why="auto: halt"
    )
    on_write_error: str = key(
        "on_write_error", Kind.CHOICE, "auto", choices=_POLICY_WORDS, group=_ERRORS, why="auto: drop"
    )
    max_frame_rejections: int = key(
        "max_frame_rejections",
        Kind.COUNT,
        4,
        low=1,
        high=1_000_000,
        group=_ERRORS,
        why="a frame that ends so many connections in a row is the cause: halt",
    )
    poison_min_escalation_window_millis: int = millis(
        "poison_min_escalation_window_millis",
        5_000,
        low=0,
        group=_ERRORS,
        why="those must also span this time, so that a restarting server is not taken for a bad frame",
    )
    catch_up_cap_gap_min_escalation_window_millis: int = millis(
        "catch_up_cap_gap_min_escalation_window_millis",
        300_000,
        low=0,
        aliases=("catchup_cap_gap_min_escalation_window_millis",),
        group=_ERRORS,
        why="how long a server may refuse the symbols of a slot as too large before the sender halts",
    )
    codec: str = key(
        "codec",
        Kind.CHOICE,
        "arrow",
        choices=("arrow", "qwp"),
        group=_ENCODE,
        why="`arrow` keeps every type and carries the frame's identity; `qwp` is what a QuestDB server takes",
    )
    auto_flush: bool = key(
        "auto_flush", Kind.FLAG, True, group=_ENCODE, why="rows nobody flushed should not wait for ever"
    )
    auto_flush_rows: int = key(
        "auto_flush_rows",
        Kind.COUNT,
        1_000,
        low=1,
        high=1_000_000_000,
        zero="off",
        group=_ENCODE,
        why="enough that a frame's own cost disappears",
    )
    auto_flush_bytes: int = key(
        "auto_flush_bytes",
        Kind.SIZE,
        0,
        low=1,
        high=GIB,
        zero="off",
        group=_ENCODE,
        why="rows of normal size are many before they are large; a frame never exceeds its segment anyway",
    )
    auto_flush_interval: int = millis(
        "auto_flush_interval",
        100,
        zero="off",
        group=_ENCODE,
        why="a timer of its own: rows leave after this also when no further row comes",
    )
    init_buf_size: int = key(
        "init_buf_size",
        Kind.SIZE,
        64 * KIB,
        low=1,
        high=GIB,
        group=_ENCODE,
        why="accepted, without effect: other clients make their buffer this large, rows here need none",
    )
    max_buf_size: int = key(
        "max_buf_size", Kind.SIZE, 100 * MIB, low=1024, high=4 * GIB, group=_ENCODE, why="bounds rows not yet flushed"
    )
    max_name_len: int = key(
        "max_name_len", Kind.COUNT, 127, low=16, high=127, group=_ENCODE, why="what servers allow, in bytes"
    )

    def __post_init__(self) -> None:
        if not self.addr:
            raise InvalidConfig(key="addr", reason="is required: addr=host[:port]")
        for name, row in rows().items():
            value = getattr(self, name)
            if value is not None or row.default is not None:
                row.check(value, shown="the value" if row.secret else None)
        self._check_access()
        self._check_store_and_forward()
        self._check_flushing()

    @classmethod
    def from_conf(cls, conf: str, **keywords: object) -> SenderConfig:
        """From a connect string; keyword arguments add keys that it does not have."""
        schema, pairs = split(conf)
        return _read(schema, [*_merged(pairs), *keywords.items()])

    @classmethod
    def from_keywords(cls, schema: str = "ws", **keywords: object) -> SenderConfig:
        """From keyword arguments alone."""
        return _read(schema, keywords.items())

    @classmethod
    def from_env(cls, environment: Mapping[str, str] = os.environ, **keywords: object) -> SenderConfig:
        """From the connect string in `HOLDFAST_CONF`."""
        return cls.from_conf(conf_of(environment), **keywords)

    @property
    def total_bytes_max(self) -> int:
        """The cap on unacknowledged frames: what was given, or the default of the mode, but at least two segments."""
        if self.sf_max_total_bytes is not None:
            return self.sf_max_total_bytes
        default = MEMORY_BYTES_DEFAULT if self.sf_dir is None else SLOT_BYTES_DEFAULT
        return max(default, 2 * self.sf_max_segment_bytes)

    @property
    def frame_bytes_max(self) -> int:
        """The largest frame that a segment holds."""
        return self.sf_max_segment_bytes - OVERHEAD_BYTES

    def policy(self, category: Category) -> Policy:
        """What to do with a frame that a server refused for this reason."""
        names = ("on_server_error", *policies.KEYS.values())
        return policies.choose(category, {name: getattr(self, name) for name in names})

    # relations

    def _check_access(self) -> None:
        if self.token is not None and (self.username is not None or self.password is not None):
            raise InvalidConfig(key="token", reason="contradicts username and password; give one or the other")
        if (self.username is None) != (self.password is None):
            missing, given = ("password", "username") if self.password is None else ("username", "password")
            raise InvalidConfig(key=given, reason=f"needs {missing} beside it")
        if self.tls_verify == "unsafe_off" and self.tls_roots is not None:
            raise InvalidConfig(key="tls_verify", reason="unsafe_off contradicts tls_roots")
        if self.tls_roots_password is not None and self.tls_roots is None:
            raise InvalidConfig(key="tls_roots_password", reason="has no effect without tls_roots")
        if self.tls_ca == "pem_file" and self.tls_roots is None:
            raise InvalidConfig(key="tls_ca", reason="pem_file needs tls_roots beside it")

    def _check_store_and_forward(self) -> None:
        least = 2 * self.sf_max_segment_bytes
        if self.sf_max_total_bytes is not None and self.sf_max_total_bytes < least:
            reason = f"{self.sf_max_total_bytes} is less than two segments of sf_max_segment_bytes, {least}"
            raise InvalidConfig(key="sf_max_total_bytes", reason=reason)
        if self.sf_dir is None and self.sf_durability != "memory":
            raise InvalidConfig(key="sf_durability", reason=f"{self.sf_durability} has no effect without sf_dir")
        if self.sf_dir is None and self.drain_orphans:
            raise InvalidConfig(key="drain_orphans", reason="on has no effect without sf_dir")
        if self.reconnect_initial_backoff_millis > self.reconnect_max_backoff_millis:
            reason = "is more than reconnect_max_backoff_millis"
            raise InvalidConfig(key="reconnect_initial_backoff_millis", reason=reason)

    def _check_flushing(self) -> None:
        if self.auto_flush_bytes > self.frame_bytes_max:
            reason = f"{self.auto_flush_bytes} is more than a frame can have, {self.frame_bytes_max}"
            raise InvalidConfig(key="auto_flush_bytes", reason=f"{reason}: sf_max_segment_bytes less 32")
        if self.init_buf_size > self.max_buf_size:
            raise InvalidConfig(key="init_buf_size", reason="is more than max_buf_size")


def conf_of(environment: Mapping[str, str]) -> str:
    """The connect string in `HOLDFAST_CONF`."""
    conf = environment.get(ENVIRONMENT)
    if not conf:
        raise InvalidConfig(key=ENVIRONMENT, reason="is not set; expected ws::addr=host:port;…")
    return conf


# --- reading --------------------------------------------------------------------------------------------------------


@cache
def rows() -> dict[str, Key]:
    """Every key but `addr`, by name, in order."""
    return {item.name: item.metadata["key"] for item in fields(SenderConfig) if "key" in item.metadata}


@cache
def _names() -> dict[str, str]:
    """Every spelling of a key, to its name."""
    names = {alias: name for name, row in rows().items() for alias in (name, *row.aliases)}
    return {"addr": "addr", **names}


def _merged(pairs: Iterable[tuple[str, str]]) -> list[tuple[str, object]]:
    """The pairs with all `addr` joined into one, and unknown keys refused while the key before them is known."""
    addresses: list[str] = []
    merged: list[tuple[str, object]] = []
    before = ""
    for name, value in pairs:
        _require_known(name, before)
        before = name
        if name == "addr":
            addresses.append(value)
        else:
            merged.append((name, value))
    return [*([("addr", addresses)] if addresses else []), *merged]


def _require_known(name: str, before: str = "") -> None:
    if name in _names():
        return
    if name in FOREIGN:
        raise InvalidConfig(key=name, reason=FOREIGN[name])
    row = rows().get(_names().get(before, ""))
    if row is not None and row.secret:
        reason = f"an unknown key follows {before}; it is not shown, since a ; in a secret that is not doubled ends it"
        raise InvalidConfig(key=WHOLE, reason=reason)
    raise InvalidConfig(key=name, reason=f"unknown key{_suggestion(name)}")


def _suggestion(name: str) -> str:
    close = difflib.get_close_matches(name, _names(), n=1)
    if not close:
        return f"; known are {', '.join(sorted(_names()))}"
    row = rows().get(_names()[close[0]])
    allowed = row.allowed_text.replace("\\|", "|") if row else "host[:port],…"
    return f"; did you mean {close[0]} ({allowed})?"


def _read(schema: str, pairs: Iterable[tuple[str, object]]) -> SenderConfig:
    if schema not in SCHEMAS:
        raise InvalidConfig(key=WHOLE, reason=f"schema {schema!r} is not one of {', '.join(SCHEMAS)}")
    values: dict[str, Any] = {}
    for spelling, raw in pairs:
        _require_known(spelling)
        name = _names()[spelling]
        if name in values:
            raise InvalidConfig(key=spelling, reason="duplicate key")
        values[name] = parse_addresses(raw) if name == "addr" else rows()[name].parse(raw)
    _check_given(schema, values)
    return SenderConfig(tls=schema == "wss", **{"addr": (), **values})


def _check_given(schema: str, values: Mapping[str, Any]) -> None:
    """Keys that say nothing beside the others: most likely the others are not what was meant."""
    for name in values:
        if name.startswith("tls_") and schema != "wss":
            raise InvalidConfig(key=name, reason="has no effect with ws; use wss")
        if name.startswith("auto_flush_") and values.get("auto_flush") is False:
            raise InvalidConfig(key=name, reason="contradicts auto_flush=off")
    if "sf_sync_interval_millis" in values and values.get("sf_durability", "memory") != "periodic":
        raise InvalidConfig(key="sf_sync_interval_millis", reason="has no effect without sf_durability=periodic")
    if "max_background_drainers" in values and not values.get("drain_orphans"):
        raise InvalidConfig(key="max_background_drainers", reason="has no effect without drain_orphans=on")
