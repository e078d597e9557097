"""The page `docs/reference/connect-string.md`, printed from the table of keys."""

from __future__ import annotations

from itertools import groupby

from holdfast.sender import policies
from holdfast.sender.conf import ENVIRONMENT, rows
from holdfast.sender.foreignkeys import FOREIGN
from holdfast.sender.keys import Key
from holdfast.sender.metrics import METRICS, Metric

_TOP = f"""\
# Connect string

Printed by `python -m holdfast.sender`; a test compares.

    ws::addr=h1:9000,h2:9000;sf_dir=/var/lib/app;sender_id=app-1;

`ws` or `wss`, `::`, then pairs `key=value`, each ended by `;` (the last one may be left out). Keys are case-sensitive.
A value is any text without control characters; a `;` in it is written `;;`. A key may be given once, `addr` as often
as there are servers. Sizes are bytes, or take `k kb m mb g gb t tb`, all powers of 1024. Times are milliseconds. A
limit that can be off is switched off with `off`.

The same keys are keyword arguments: `sf_max_segment_bytes="4m"` or `=4194304`. The variable `{ENVIRONMENT}` holds a
connect string for `from_env`. An unknown key, a bad value and a contradiction are errors that name the key; values of
`password`, `token` and `tls_roots_password` appear in no text.

## Starting and reconnecting

`initial_connect_retry` says what happens at the start, and nothing else does: `off` tries each address once and raises,
`on` waits up to `reconnect_max_duration_millis`, `async` returns at once. The `reconnect_…` keys never turn it on by
themselves, as they do in some clients. A sender that was connected once never gives up: it pauses between attempts,
from `reconnect_initial_backoff_millis` up to `reconnect_max_backoff_millis`.

## Where to: `addr`

Required. `host[:port]`, separated by commas; the port is 9000 unless given, for `ws` and `wss`. IPv6 addresses stand in
brackets: `[::1]:9000`. The order is kept; the same address twice is an error.
"""

_POLICIES = """\
## What happens to refused frames

A program's own `error_policy`, if it has one, is asked first about each refusal. Then the key of the category counts:
`auto` means what `on_server_error` says, and `auto` there means the default of the category. Two generations of words
are understood: `terminal` is `halt`.

| category | key | default |
|---|---|---|
"""

_METRICS = """\
## What a sender counts

`sender.statistics()` has these fields, and some words beside them. For Prometheus a metric is `holdfast_sender_…`, with
`_total` behind what only grows, for OpenTelemetry `holdfast.sender.…`; both have the label `sender`.

| field | metric | kind | what it is |
|---|---|---|---|
"""

_FOREIGN = """\
## Keys of other clients that are refused

| key | why |
|---|---|
"""


def connect_string_markdown() -> str:
    """The whole page."""
    parts = [_TOP]
    for group, keys in groupby(rows().values(), key=lambda row: row.group):
        heading = "The connection" if group == "Where to" else group
        parts.append(f"## {heading}\n\n{_table(list(keys))}")
    lines = [
        f"| {category.name} | {f'`{policies.KEYS[category]}`' if category in policies.KEYS else '(fixed)'} "
        f"| {policy.value} |\n"
        for category, policy in policies.DEFAULTS.items()
    ]
    parts.append(_POLICIES + "".join(lines))
    parts.append(_METRICS + "".join(map(_metric, METRICS)))
    parts.append(_FOREIGN + "".join(f"| `{key}` | {why} |\n" for key, why in FOREIGN.items()))
    return "\n".join(parts)


def _metric(metric: Metric) -> str:
    kind = "counter" if metric.is_total else "gauge"
    return f"| `{metric.field}` | `{metric.name}` | {kind} | {metric.text} |\n"


def _table(keys: list[Key]) -> str:
    lines = ["| key | default | allowed | why this default |", "|---|---|---|---|"]
    for row in keys:
        name = " or ".join(f"`{name}`" for name in (row.key, *row.aliases))
        default = row.default_text if row.default is None else f"`{row.default_text}`"
        unit = f" {row.unit}" if row.unit else ""
        lines.append(
            f"| {name} | {default}{unit if row.default is not None else ''} | {row.allowed_text} | {row.why} |"
        )
    return "\n".join(lines) + "\n"
