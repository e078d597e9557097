"""Every setting of sync, declared once: name, kind, default, range and the reason for the default.

`sync.access` is a list of rules of its own; without any, whoever is let in may read and write everything:

    sync:
      access:
        - {clients: ["alice*"], partitions: ["team-*"], may: [read, write]}
        - {clients: ["*"], projects: ["public"], may: [read]}
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from typing import Any

from holdfast.config.patterns import Pattern
from holdfast.config.reading import ChannelOverride, read_pairs, require_mapping
from holdfast.config.table import StoreConfig
from holdfast.config.values import DAY, GIB, HOUR, KIB, MIB, MINUTE, MS, SECOND, Kind, Setting, setting
from holdfast.errors import InvalidConfig

ACCESS = "sync.access"
VERBS = ("read", "write")
JWT_ALGORITHMS = ("HS256", "HS384", "HS512", "RS256", "RS384", "RS512", "ES256", "ES384", "ES512")
_HMAC = "HS"
_RETENTION = "retention.mode"


@dataclass(frozen=True, slots=True)
class SyncRule:
    """Who may do what where. Patterns: `*` stands for any characters."""

    clients: tuple[str, ...]
    partitions: tuple[str, ...]
    projects: tuple[str, ...]
    may: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class SyncConfig:
    """The settings of sync."""

    enabled: bool = setting(
        "sync.enabled", Kind.FLAG, True, why="clients find it at `/v1/sync` of the data port, as safe as the rest of it"
    )
    channel: str = setting(
        "sync.channel",
        Kind.TEXT,
        "sync",
        why="the channel that holds committed events; snapshots are in the one with `.snapshots` behind its name",
    )
    auth: str = setting(
        "sync.auth",
        Kind.CHOICE,
        "server",
        choices=("server", "jwt", "none"),
        why="`server`: the token of `connect` is one of `holdfast token`, asked for where the server asks for "
        "credentials; `jwt`: it is signed by somebody else",
    )
    jwt_key_file: str = setting(
        "sync.jwt_key_file",
        Kind.TEXT,
        "",
        why="the shared secret (HS…), or the public key in PEM (RS…, ES…), that tokens are checked with; none",
    )
    jwt_algorithms: tuple[str, ...] = setting(
        "sync.jwt_algorithms",
        Kind.TEXTS,
        ("HS256",),
        why="which signatures are taken; shared secrets and public keys cannot be mixed",
    )
    jwt_audience: str = setting("sync.jwt_audience", Kind.TEXT, "", why="`aud` that a token must have; any")
    jwt_issuer: str = setting("sync.jwt_issuer", Kind.TEXT, "", why="`iss` that a token must have; any")
    validation: str = setting(
        "sync.validation",
        Kind.CHOICE,
        "none",
        choices=("none", "tree", "model"),
        why="`tree` checks actions on a tree against its state, `model` checks payloads against JSON Schemas",
    )
    tree_policy: str = setting(
        "sync.tree_policy",
        Kind.CHOICE,
        "strict",
        choices=("strict", "reference"),
        why="refuses what would lose a part of the tree or leave an item outside of it; `reference` takes it, as the "
        "first implementation did",
    )
    schemas: str = setting(
        "sync.schemas",
        Kind.TEXT,
        "",
        why="folder with `<type>.json` or `<type>@<version>.json`, JSON Schemas for `model`; none",
    )
    model_version: int = setting(
        "sync.model_version",
        Kind.COUNT,
        1,
        low=1,
        high=2**31,
        why="clients that see another one than before drop what they derived",
    )
    message_bytes_max: int = setting(
        "sync.max_message_size",
        Kind.SIZE,
        256 * KIB,
        low=KIB,
        high=16 * MIB,
        why="what the npm package's own server allows; its clients send batches of 64 KiB",
    )
    drafts_max: int = setting(
        "sync.max_drafts",
        Kind.COUNT,
        1000,
        low=1,
        high=1_000_000,
        why="events of one connection that wait for their commit; beyond it nothing more is read from it",
    )
    subscriptions_max: int = setting(
        "sync.max_subscriptions", Kind.COUNT, 1024, low=1, high=100_000, why="partitions that one connection follows"
    )
    messages_per_second: int = setting(
        "sync.messages_per_second",
        Kind.COUNT,
        1000,
        low=1,
        high=1_000_000,
        zero="unlimited",
        why="of one connection; beyond it is read more slowly, since clients do not survive a refusal",
    )
    heartbeat_timeout_ns: int = setting(
        "sync.heartbeat_timeout",
        Kind.TIME,
        90 * SECOND,
        low=SECOND,
        high=DAY,
        why="three heartbeats of half a minute; counts for connections that have sent one, others are pinged",
    )
    cycle_timeout_ns: int = setting(
        "sync.cycle_timeout",
        Kind.TIME,
        MINUTE,
        low=SECOND,
        high=HOUR,
        why="a client that does not ask for its next page gets broadcasts again after this",
    )
    stall_timeout_ns: int = setting(
        "sync.stall_timeout",
        Kind.TIME,
        30 * SECOND,
        low=100 * MS,
        high=HOUR,
        why="a client that takes nothing for so long is cut off; what it missed is in the log",
    )
    send_buffer_bytes: int = setting(
        "sync.send_buffer",
        Kind.SIZE,
        MIB,
        low=64 * KIB,
        high=256 * MIB,
        why="what a client has not taken yet, at most; beyond it the client is sent nothing until it reads",
    )
    recent_bytes: int = setting(
        "sync.recent_size",
        Kind.SIZE,
        64 * MIB,
        low=MIB,
        high=64 * GIB,
        why="newest events kept in memory, so that repeats and short absences cost no read",
    )
    snapshot_every: int = setting(
        "sync.snapshot_every",
        Kind.COUNT,
        1000,
        low=10,
        high=10_000_000,
        zero="off",
        why="events of a partition between two snapshots of its state; only `tree` knows a state",
    )
    prune_age_ns: int = setting(
        "sync.prune_age",
        Kind.TIME,
        0,
        low=SECOND,
        high=36500 * DAY,
        zero="never",
        why="how old a snapshot must be before the events below it may go; never, since a client without snapshots "
        "needs them all",
    )
    access: tuple[SyncRule, ...] = ()
    """Rules; none means no limits."""

    def __post_init__(self) -> None:
        for name, row in self.rows().items():
            row.check(getattr(self, name))
        unknown = [name for name in self.jwt_algorithms if name not in JWT_ALGORITHMS]
        if unknown or not self.jwt_algorithms:
            raise InvalidConfig(key="sync.jwt_algorithms", reason=f"allowed are {', '.join(JWT_ALGORITHMS)}")
        if len({name.startswith(_HMAC) for name in self.jwt_algorithms}) > 1:
            raise InvalidConfig(key="sync.jwt_algorithms", reason="mixes shared secrets (HS) and public keys (RS, ES)")
        if self.auth == "jwt" and not self.jwt_key_file:
            raise InvalidConfig(key="sync.auth", reason="jwt needs sync.jwt_key_file")
        if self.validation == "model" and not self.schemas:
            raise InvalidConfig(key="sync.validation", reason="model needs sync.schemas")

    @classmethod
    def rows(cls) -> dict[str, Setting]:
        """The table's row of each attribute that has one."""
        return {item.name: item.metadata["setting"] for item in fields(cls) if "setting" in item.metadata}

    @classmethod
    def from_mapping(cls, mapping: Mapping[str, object]) -> SyncConfig:
        """Settings from a file or keyword arguments; unknown keys are errors."""
        names = {row.key: name for name, row in cls.rows().items()}
        rows = {row.key: row for row in cls.rows().values()}
        plain, rules = _without_access(require_mapping(mapping, key="(all)"))
        changes: dict[str, Any] = {"access": _read_rules(rules)} if rules is not None else {}
        for key, (row, raw) in read_pairs(plain, rows).items():
            changes[names[key]] = row.parse(raw)
        return replace(cls(), **changes)

    @property
    def snapshots_channel(self) -> str:
        """Where snapshots are."""
        return f"{self.channel}.snapshots"

    def keeping(self, store: StoreConfig) -> StoreConfig:
        """The settings of a store that keeps the log whole although others confirm what they read of it."""
        if not self.enabled:
            return store
        overrides = {override.pattern.text: override for override in store.channels}
        for name in (self.channel, self.snapshots_channel):
            stated = overrides.get(name)
            values = dict(stated.values) if stated is not None else {}
            overrides[name] = ChannelOverride(Pattern.parse(name), tuple({_RETENTION: "limits", **values}.items()))
        return replace(store, channels=tuple(sorted(overrides.values(), key=lambda override: override.pattern.order)))


def _without_access(mapping: Mapping[object, object]) -> tuple[dict[object, object], object]:
    """What is in the table, and the rules; None without any."""
    plain, rules = dict(mapping), mapping.get(ACCESS)
    plain.pop(ACCESS, None)
    section = plain.get("sync")
    if isinstance(section, Mapping) and "access" in section:
        rules = section["access"]
        plain["sync"] = {key: value for key, value in section.items() if key != "access"}
    return plain, rules


def _read_rules(raw: object) -> tuple[SyncRule, ...]:
    if not isinstance(raw, list | tuple):
        raise InvalidConfig(key=ACCESS, reason="is a list of rules")
    return tuple(_read_rule(rule, f"{ACCESS}[{place}]") for place, rule in enumerate(raw))


def _read_rule(raw: object, place: str) -> SyncRule:
    parts = dict(require_mapping(raw, key=place))
    allowed = ("clients", "partitions", "projects", "may")
    unknown = [str(key) for key in parts if key not in allowed]
    if unknown:
        raise InvalidConfig(key=f"{place}.{unknown[0]}", reason=f"unknown; a rule has {', '.join(allowed)}")
    found = {name: _texts(parts.get(name, []), f"{place}.{name}") for name in allowed}
    if not found["clients"] or not found["may"]:
        raise InvalidConfig(key=place, reason="a rule names clients and what they may")
    wrong = [verb for verb in found["may"] if verb not in VERBS]
    if wrong:
        raise InvalidConfig(key=f"{place}.may", reason=f"{wrong[0]!r} is none of {', '.join(VERBS)}")
    return SyncRule(**found)


def _texts(raw: object, place: str) -> tuple[str, ...]:
    values = [raw] if isinstance(raw, str) else raw
    if not isinstance(values, list | tuple) or not all(isinstance(value, str) and value for value in values):
        raise InvalidConfig(key=place, reason="is a text, or a list of texts")
    return tuple(values)


SYNC_SETTINGS: tuple[Setting, ...] = tuple(SyncConfig.rows().values())
SYNC_SECTIONS = frozenset({"sync"})
