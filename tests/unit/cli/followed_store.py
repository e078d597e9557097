"""A store with subscribers as a killed process leaves it, as real files; and a way to call commands on it.

Made on the crash disk and copied out, so that no lock, thread or connection of this process is left behind. No
checkpoint was made after the confirmations: they are in the acknowledgement log only.

    trades      seq 1..60 in six segments, 10 each, with event times; the columns id, price, at
    orders.eu   seq 1..12 in six segments, 2 each; 13..15 in the log only
    lake        follows trades and orders*; confirmed trades 1..15, 21, 31..40
    export      follows everything; confirmed trades 1..60 and orders.eu 1..12
    billing     follows invoices, which does not exist
"""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import Any

import pyarrow as pa
from typer.testing import CliRunner

from holdfast import Store
from holdfast.cli.main import app
from holdfast.store.subscribers.subscriber import SubscriberStatistics
from holdfast.testing import CrashFilesystem, ManualClock
from holdfast.testing.clock import START_WALL_NS

ROOT = Path("/data/store")
CONFIG: dict[str, object] = {
    "segment.max_open_duration": "1h",
    "wal.rotation_size": "64KiB",
    "wal.max_size": "1MiB",
    "frame.max_size": "32KiB",
    "retention.mode": "limits",
    "channels": {"trades": {"event_time": "at"}},
}
EVENT_TIME_NS = START_WALL_NS - 10**12


def make_store(directory: Path) -> Path:
    """Copy the store to `directory`."""
    for place, data in _made()[0].items():
        path = directory / place
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
    return directory


def own_figures() -> list[SubscriberStatistics]:
    """What the store itself said of its subscribers, just before it was killed."""
    return _made()[1]


@cache
def _made() -> tuple[dict[str, bytes], list[SubscriberStatistics]]:
    disk, clock = CrashFilesystem(), ManualClock()
    store = Store.open(ROOT, CONFIG, filesystem=disk, clock=clock, inline=True)
    lake = store.subscriber("lake", ["trades", "orders*"])
    export = store.subscriber("export", ["*"])
    store.subscriber("billing", ["invoices"])
    for number in range(6):
        clock.advance(1)
        store.commit("trades", trades(10 * number))
        store.commit("orders.eu", pa.record_batch({"id": [number, -number]}))
        store.flush()
    store.commit("orders.eu", pa.record_batch({"id": [1, 2, 3]}))
    lake.ack_many("trades", [(1, 15), (21, 21), (31, 40)])
    export.ack("trades", 1, 60)
    export.ack("orders.eu", 1, 12)
    figures = store.subscribers()
    left = disk.after_kill()
    found = {str(path.relative_to(ROOT)): left.read_bytes(path) for path in left.paths()}
    return found | {"lock": b""}, figures  # the crash disk does not empty it; no process has the copy open


def trades(start: int) -> pa.RecordBatch:
    """Ten trades, one in a second."""
    times = pa.array([EVENT_TIME_NS + (start + n) * 10**9 for n in range(10)], pa.timestamp("ns", "UTC"))
    return pa.record_batch({"id": range(start, start + 10), "price": [1.5] * 10, "at": times})


def call(*arguments: object, code: int = 0, columns: int = 100) -> str:
    """What a command prints."""
    result = CliRunner().invoke(app, [str(argument) for argument in arguments], env={"COLUMNS": str(columns)})
    assert result.exit_code == code, result.output
    return result.stdout


def call_json(*arguments: object) -> Any:
    """The result of a command that takes two words."""
    document = json.loads(call(*arguments, "--json"))
    assert document["command"] == f"{arguments[0]} {arguments[1]}"
    assert document["ok"] is True
    return document["result"]


def refusal(*arguments: object, code: int = 2) -> str:
    """The one line of a command that does nothing."""
    result = CliRunner().invoke(app, [str(argument) for argument in arguments])
    assert result.exit_code == code, result.output
    assert result.stdout == ""
    assert result.stderr.count("\n") == 1, result.stderr
    return result.stderr
