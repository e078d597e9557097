"""Every setting, declared once: name, kind, default, range and the reason for the default.

The table feeds the parser, `docs/reference/settings.md` (`python -m holdfast.config` prints it) and the error texts.
Settings are read once at the door: unknown keys, bad values and contradictions raise `InvalidConfig` naming the key.
Sizes take `KB/MB/GB` (powers of 1000) and `KiB/MiB/GiB` (powers of 1024); times take `ns us ms s m h d`.
A mapping may be flat (`{"wal.max_size": "1GiB"}`) or nested (`{"wal": {"max_size": "1GiB"}}`); under `channels` it maps
patterns of channel names to the settings those channels have of their own.

| file | purpose |
|---|---|
| values.py | the kinds of values: how they are written, read, bounded; the row of one setting |
| patterns.py | patterns over channel names and their order, widest first |
| reading.py | flat and nested mappings, unknown keys, the overrides under `channels` |
| table.py | the settings of a store, and the relations between them |
| server.py | the settings of a server, and the relations between them |
| tier.py | the settings of a tier, and the relations between them |
| sync.py | the settings of sync, its access rules, and the relations between them |
| principals.py | users, access rules and limits per principal |
| passwords.py | the hashes that are kept of passwords |
| yamltext.py | YAML as plain values with the line of each key |
| file.py | the configuration file: server and store in one |
| page.py | the settings page |
| __main__.py | prints the page |
"""

from holdfast.config.page import settings_markdown
from holdfast.config.patterns import Pattern
from holdfast.config.reading import ChannelOverride
from holdfast.config.server import SERVER_SETTINGS, ServerConfig
from holdfast.config.table import SETTINGS, StoreConfig, read_settings
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
    format_value,
    parse_size,
    parse_time,
    setting,
)

__all__ = [
    "DAY",
    "GIB",
    "HOUR",
    "KIB",
    "MIB",
    "MINUTE",
    "MS",
    "SECOND",
    "SERVER_SETTINGS",
    "SETTINGS",
    "TIB",
    "ChannelOverride",
    "Kind",
    "Pattern",
    "ServerConfig",
    "Setting",
    "StoreConfig",
    "format_value",
    "parse_size",
    "parse_time",
    "read_settings",
    "setting",
    "settings_markdown",
]
