"""Settings of nodes: read once from the file, checked, frozen.

A node's settings are a frozen dataclass whose fields are rows, as for stores and servers, so that names, ranges and
reasons stand in one place and `docs/reference/dataflow.md` is printed from them.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any, TypeVar

from holdfast.config.reading import read_pairs, require_mapping
from holdfast.config.server import is_loopback, parse_address
from holdfast.config.values import SECOND, Kind, Setting, setting
from holdfast.errors import InvalidConfig, InvalidName
from holdfast.model.names import check_channel_name


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeSettings:
    """Settings of one node."""

    def __post_init__(self) -> None:
        for name, row in self.rows().items():
            row.check(getattr(self, name))
        self.check_relations()

    def check_relations(self) -> None:
        """Raise `InvalidConfig` for values that contradict each other."""

    def owned(self) -> list[tuple[str, str]]:
        """Keys and values that no other node may have: addresses, directories."""
        return []

    @property
    def reads_stores(self) -> bool:
        """Whether the node reads the stores before it by itself, through the admin HTTP."""
        return False

    def shown(self) -> list[str]:
        """The few settings that tell one node from another, for a picture."""
        return [f"{key}={value}" for key, value in self.owned()]

    @classmethod
    def rows(cls) -> dict[str, Setting]:
        """The row of each attribute."""
        return {item.name: item.metadata["setting"] for item in fields(cls) if "setting" in item.metadata}


_Settings = TypeVar("_Settings", bound=NodeSettings)


def read_node(kind: type[_Settings], mapping: object) -> _Settings:
    """Settings from the `config` of a node; unknown keys are errors."""
    rows = kind.rows()
    names = {row.key: name for name, row in rows.items()}
    pairs = read_pairs(require_mapping(mapping or {}, key="config"), {row.key: row for row in rows.values()})
    changes: dict[str, Any] = {names[key]: row.parse(raw) for key, (row, raw) in pairs.items()}
    return kind(**changes)


def require_address(text: str, *, key: str) -> tuple[str, int]:
    """Host and port."""
    return parse_address(text, key=key)


def require_protected(text: str, *, key: str, protected: bool) -> None:
    """Refuse to listen for everyone by accident."""
    host, _ = parse_address(text, key=key)
    if not protected and not is_loopback(host):
        reason = f"{text} can be reached from other machines: bind a loopback address, set tls.cert, tls.key and token"
        raise InvalidConfig(key=key, reason=f"{reason}, or accept the risk with insecure: yes")


def require_channel(name: str, *, key: str) -> None:
    """Refuse what may not be a channel."""
    try:
        check_channel_name(name)
    except InvalidName as error:
        raise InvalidConfig(key=key, reason=str(error)) from None


@dataclass(frozen=True, slots=True, kw_only=True)
class ExporterSettings(NodeSettings):
    """What every exporter has."""

    channels: tuple[str, ...] = setting(
        "channels",
        Kind.TEXTS,
        (),
        why="channels to export, names or globs; none given means those that the receivers in front of it write",
    )
    retry_initial_ns: int = setting(
        "retry.initial_interval",
        Kind.TIME,
        SECOND,
        low=10**6,
        high=3600 * SECOND,
        why="the first pause after a failure that may pass; it doubles from there",
    )
    retry_max_ns: int = setting(
        "retry.max_interval",
        Kind.TIME,
        30 * SECOND,
        low=10**6,
        high=24 * 3600 * SECOND,
        why="the longest pause; there is no last attempt, since that would lose data in an outage",
    )

    def check_relations(self) -> None:
        """The pauses grow."""
        if self.retry_max_ns < self.retry_initial_ns:
            raise InvalidConfig(key="retry.max_interval", reason="must be at least retry.initial_interval")
