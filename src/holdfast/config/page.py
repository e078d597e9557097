"""The page `docs/reference/settings.md`, printed from the table."""

from __future__ import annotations

from collections.abc import Iterable

from holdfast.config.principals import LIMIT_SETTINGS
from holdfast.config.server import SERVER_SETTINGS
from holdfast.config.sync import SYNC_SETTINGS
from holdfast.config.table import SETTINGS
from holdfast.config.tier import TIER_SETTINGS
from holdfast.config.values import Setting

_TOP = """\
# Settings

Printed by `python -m holdfast.config`; a test compares.

Sizes take `KB MB GB TB` (powers of 1000) and `KiB MiB GiB TiB` (powers of 1024); times take `ns us ms s m h d`. Keys
may be flat (`wal.max_size: 1GiB`) or nested (`wal: {max_size: 1GiB}`). An unknown key, a bad value and a contradiction
are errors that name the key.
"""

_CHANNELS = """\
## Per channel

Each of these holds for all channels, and `channels` overrides it for some:

```yaml
max_msgs: 1000000
channels:
  orders.>:
    max_age: 72h
    max_msgs: 0
  orders.eu:
    retention: {mode: limits}
```

A pattern is tokens separated by `.`: a literal, `*` for one token, `>` for the rest (last, one token or more). YAML
wants quotes around a pattern that begins with `*` or `>`. What an override omits is inherited from the next wider
pattern that means the channel, in the end from the setting for all channels. An explicit `0` is unlimited; a negative
number is an error. Patterns are compared token by token from the left, `>` wider than `*` wider than a literal, so of
two that overlap one is always the narrower: for `a.b.c`, `a.b.>` wins over `a.*.c`.

Where no `file_slice_…` limit is set but channel limits are, a segment holds a quarter of what the channel may:
`max_msgs` / 4, `max_bytes` / 4, `max_age` / 4 but at least 1 s. The default of `file_slice_max_bytes` does not count as
set, and an explicit 0 is no limit.
"""

_SERVER = """\
## Server

For `holdfast serve`; they stand in the same file, beside those of the store ([the configuration
file](config-file.md)). An embedded store has none of them.
"""

_TIER = """\
## Tier

For `holdfast serve` and `holdfast restore`: the object store behind the store ([the tier](tier.md)). Without `tier.url`
there is none.
"""

_SYNC = """\
## Sync

For `holdfast serve`: committed events for offline-first clients ([sync](sync.md)). `sync.access` is a list of rules,
described there.
"""

_PRINCIPALS = """\
`auth.users` maps names to passwords, `access` is a list of rules; [access](access.md) describes both.

## Limits per principal

Under `limits`, per pattern of principals (`*` stands for any characters). What a pattern omits is inherited from the
next wider one; a name without `*` is the narrowest, else the pattern with more characters.

```yaml
limits:
  "*": {connections: 100}
  sensor-*: {bytes_per_second: 1MiB, frames_per_second: 50, channels: 4}
```
"""


def settings_markdown() -> str:
    """The whole page."""
    store = _table(row for row in SETTINGS if not row.per_channel)
    channel = _table(row for row in SETTINGS if row.per_channel)
    server, limits, tier = _table(SERVER_SETTINGS), _limits_table(), _table(TIER_SETTINGS)
    sync = _table(SYNC_SETTINGS)
    parts = (
        _TOP,
        f"## Store-wide\n\n{store}",
        _CHANNELS,
        channel,
        _SERVER,
        server,
        _PRINCIPALS,
        limits,
        _TIER,
        tier,
        _SYNC,
        sync,
    )
    return "\n".join(parts)


def _limits_table() -> str:
    lines = ["| key | default | allowed | what it counts |", "|---|---|---|---|"]
    lines += [
        f"| `{row.key}` | {row.text_of(row.default)} | {row.allowed_text} | {row.why} |" for row in LIMIT_SETTINGS
    ]
    return "\n".join(lines) + "\n"


def _table(rows: Iterable[Setting]) -> str:
    lines = ["| key | default | allowed | why this default |", "|---|---|---|---|"]
    lines += [f"| `{row.key}` | `{row.default_text or '(none)'}` | {row.allowed_text} | {row.why} |" for row in rows]
    return "\n".join(lines) + "\n"
