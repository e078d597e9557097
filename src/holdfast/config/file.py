"""The configuration file: one YAML file with the settings of a server and of its store.

    data: /var/lib/holdfast                      server: data, server, ingest, tls, auth, access, limits, audit
    server: {listen: "0.0.0.0:9000"}
    tier: {url: "s3://bucket"}                   tier: the object store behind it
    sync: {validation: tree}                     sync: committed events for offline-first clients
    otlp: {payload: columns}                     otlp: OpenTelemetry at the server, read by its receiver
    retention: {size_cap: 100GiB}                store: everything else, as in the settings of a store
    channels: {orders.>: {max_age: 72h}}

Promise: what cannot be used as written raises `InvalidConfig` with file, line, key and what is allowed; nothing is
ignored. Secrets come from the environment (`${NAME}`) or from files (`…_file`), and never appear in an error. Paths
in the file are relative to the directory of the file.
"""

from __future__ import annotations

import difflib
import os
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar

from holdfast.config.reading import CHANNELS, require_mapping
from holdfast.config.server import SERVER_SECTIONS, SERVER_SETTINGS, USERS, ServerConfig
from holdfast.config.sync import SYNC_SECTIONS, SYNC_SETTINGS, SyncConfig
from holdfast.config.table import SETTINGS, StoreConfig
from holdfast.config.tier import TIER_SECTIONS, TIER_SETTINGS, TierConfig
from holdfast.config.yamltext import FILE_BYTES_MAX, Document, read_yaml
from holdfast.errors import BadRequest, InvalidConfig

OTLP = "otlp"
STORE_SECTIONS = frozenset({row.key.partition(".")[0] for row in SETTINGS} | {CHANNELS})

_PATHS = (
    "data",
    "tls.cert",
    "tls.key",
    "tls.client_ca",
    "auth.tokens",
    "audit.path",
    "tier.credentials_file",
    "sync.jwt_key_file",
    "sync.schemas",
)
_KEYS = frozenset(row.key for row in (*SETTINGS, *SERVER_SETTINGS, *TIER_SETTINGS, *SYNC_SETTINGS))
_KEY_LIKE = re.compile(r"[a-z_]+(?:\.[a-z_]+)*")

_T = TypeVar("_T")


@dataclass(frozen=True, slots=True)
class ConfigFile:
    """What a file says, or the defaults."""

    server: ServerConfig = field(default_factory=ServerConfig)
    store: StoreConfig = field(default_factory=StoreConfig)
    tier: TierConfig = field(default_factory=TierConfig)
    sync: SyncConfig = field(default_factory=SyncConfig)
    path: Path | None = None
    otlp: Mapping[str, object] | None = None
    """As written; None without the section. Its receiver knows the keys."""
    lines: Mapping[str, int] = field(default_factory=dict, repr=False, compare=False)
    """The line of each key, for sections that are read later."""

    def __post_init__(self) -> None:
        if self.server.ingest_batch_bytes_max > self.store.frame_bytes_max:
            raise InvalidConfig(key="ingest.max_batch_size", reason="must be at most frame.max_size")
        for name in ("retention_local_bytes", "retention_remote_age_ns", "retention_remote_bytes"):
            if getattr(self.store, name) and not self.tier.url:
                raise InvalidConfig(key=StoreConfig.rows()[name].key, reason="is of use only with a tier: set tier.url")

    def placed(self, error: InvalidConfig) -> InvalidConfig:
        """The same with the file and the line it is about, if a file says so: for what is found when a setting is
        used."""
        if self.path is None or error.file is not None:
            return error
        line = _line_of(error, self.lines)
        return InvalidConfig(key=error.key, reason=error.reason, file=self.path, line=line)


def read(path: Path, *, environ: Mapping[str, str] | None = None) -> ConfigFile:
    """The settings in a file; `environ` is where `${NAME}` is looked up, the process's own by default."""
    document = read_yaml(path, _bytes_of(path), os.environ if environ is None else environ)
    return _located(document, lambda: _read(document))


def _bytes_of(path: Path) -> bytes:
    try:
        with path.open("rb") as file:
            return file.read(FILE_BYTES_MAX + 1)
    except OSError as error:
        raise BadRequest(f"{path} cannot be read: {error.strerror}; give a file of settings with -c") from None


def _read(document: Document) -> ConfigFile:
    server: dict[str, object] = {}
    store: dict[str, object] = {}
    tier: dict[str, object] = {}
    sync: dict[str, object] = {}
    otlp: dict[str, object] = {}
    parts = {**dict.fromkeys(STORE_SECTIONS, store), **dict.fromkeys(SERVER_SECTIONS, server)}
    parts |= {**dict.fromkeys(TIER_SECTIONS, tier), **dict.fromkeys(SYNC_SECTIONS, sync), OTLP: otlp}
    for key, value in document.values.items():
        section = key.partition(".")[0]
        if section not in parts:
            raise InvalidConfig(key=key, reason=f"unknown setting{_suggestion(key)}")
        parts[section][key] = value
    folder = document.file.absolute().parent
    return ConfigFile(
        ServerConfig.from_mapping(_with_paths(server, folder)),
        StoreConfig.from_mapping(store),
        TierConfig.from_mapping(_with_paths(tier, folder)),
        SyncConfig.from_mapping(_with_paths(sync, folder)),
        document.file,
        _otlp(otlp) if otlp else None,
        document.lines,
    )


def _otlp(section: dict[str, object]) -> dict[str, object]:
    """The keys without the name of their section, which may be given flat or nested."""
    found: dict[str, object] = {}
    for key, value in section.items():
        nested = require_mapping(value or {}, key=key) if key == OTLP else {key.partition(".")[2]: value}
        inside = {str(name): item for name, item in nested.items()}
        if found.keys() & inside.keys():
            raise InvalidConfig(key=key, reason="is given twice, flat and nested")
        found |= inside
    return found


def _suggestion(key: str) -> str:
    known = [*SERVER_SECTIONS, *STORE_SECTIONS, *TIER_SECTIONS, *SYNC_SECTIONS, OTLP, *_KEYS]
    close = difflib.get_close_matches(key, known, n=1) or [
        full
        for full in _KEYS
        if full.endswith(f".{key}")  # written outside its section
    ]
    if close:
        return f"; did you mean {close[0]}?"
    return f"; of the server are {', '.join(sorted(SERVER_SECTIONS))}, of the store {', '.join(sorted(STORE_SECTIONS))}"


def _with_paths(settings: dict[str, object], folder: Path) -> dict[str, object]:
    """The settings with paths that do not depend on where the process was started."""
    for key in _PATHS:
        section, _, name = key.partition(".")
        inside = settings.get(section)
        if key in settings:
            settings[key] = _absolute(settings[key], folder)
        elif name and isinstance(inside, Mapping) and name in inside:
            settings[section] = {**inside, name: _absolute(inside[name], folder)}
    return _with_password_paths(settings, folder)


def _with_password_paths(settings: dict[str, object], folder: Path) -> dict[str, object]:
    auth = settings.get("auth")
    users = auth.get("users") if isinstance(auth, Mapping) else settings.get(USERS)
    if isinstance(users, Mapping):
        for entry in users.values():
            if isinstance(entry, dict) and "password_file" in entry:
                entry["password_file"] = _absolute(entry["password_file"], folder)
    return settings


def _absolute(value: object, folder: Path) -> object:
    return str(folder / value) if isinstance(value, str) and value else value


# ---------------------------------------------------------------------------------------------------------------- lines


def _located(document: Document, read_it: Callable[[], _T]) -> _T:
    """Add file and line to what is refused."""
    try:
        return read_it()
    except InvalidConfig as error:
        line = _line_of(error, document.lines)
        raise InvalidConfig(key=error.key, reason=error.reason, file=document.file, line=line) from None


def _line_of(error: InvalidConfig, lines: Mapping[str, int]) -> int:
    """The line of the key; of a key that the reason names, when the default of the other is what contradicts; of the
    nearest section."""
    if error.key in lines:
        return lines[error.key]
    named = [key for key in _KEY_LIKE.findall(error.reason) if key in _KEYS and key in lines]
    if named:
        return lines[named[0]]
    parts = re.split(r"(?=[.\[])", error.key)
    sections = ("".join(parts[:count]) for count in range(len(parts) - 1, 0, -1))
    return next((lines[section] for section in sections if section in lines), 0)
