"""Power loss while clients submit: what one of them was answered or told is in the log, under the same number.

The whole service runs on a disk that loses power at every call in turn: hub, sessions, writer, log, snapshots, store.
"""

from __future__ import annotations

from collections import deque
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from holdfast import Store
from holdfast.config import StoreConfig
from holdfast.config.sync import SyncConfig
from holdfast.sync.chores import TreeHistory
from holdfast.sync.eventlog import EventLog
from holdfast.sync.hub import Hub
from holdfast.sync.recent import Recent
from holdfast.sync.snapshots import Snapshots
from holdfast.sync.writer import Writer
from holdfast.testing import CrashFilesystem, ManualClock, PowerCut
from tests.unit.sync.world import World, seed, seed_client, seed_event, sync

CONFIG = SyncConfig.from_mapping({"sync.validation": "tree", "sync.snapshot_every": 10, "sync.recent_size": "1MiB"})
BATCHES, ITEMS = 5, 4


def open_store(disk: CrashFilesystem) -> Store:
    return Store.open(Path("/data"), CONFIG.keeping(StoreConfig()), filesystem=disk, clock=ManualClock(), inline=True)


class DiskWorld(World):
    """The service over a store."""

    def __init__(self, store: Store) -> None:
        self.store = store
        super().__init__()

    def start(self) -> None:
        snapshots = Snapshots(self.store, CONFIG.snapshots_channel)
        log = EventLog(self.store, CONFIG.channel, snapshots)
        self.history = TreeHistory(CONFIG, log, snapshots)
        self.log = log  # type: ignore[assignment]
        self.hub = Hub(Recent(log.last_committed_id(), bytes_max=CONFIG.recent_bytes))
        self.writer = Writer(log, self.history.validator, recent=self.hub.recent.find)
        self.reads = deque()
        self.taken = None
        self.wires = []


def push(number: int) -> dict[str, Any]:
    value = {"id": f"n{number}", "text": "x" * 50}
    return seed_event(f"e{number}", "P1", kind="treePush", target="explorer", value=value)


def submit(world: DiskWorld, told: dict[str, int]) -> None:
    """Two clients; one submits, both note what they hear, however far it gets."""
    origin, peer = seed_client(world, "A"), seed_client(world, "B")
    world.ask(peer, sync(["P1"]))
    for batch in range(BATCHES):
        events = [push(batch * ITEMS + place) for place in range(ITEMS)]
        try:
            world.say(origin, seed("submit_events", events=events))
            world.settle()
            world.history.do(world.now_ms)
            if batch % 2:
                world.store.flush()
        finally:
            hear(origin.take() + peer.take(), told)


def hear(messages: list[dict[str, Any]], told: dict[str, int]) -> None:
    for message in messages:
        payload = message["payload"]
        found = payload["results"] if message["type"] == "submit_events_result" else [payload]
        for event in found:
            assert event.get("status", "committed") == "committed", event
            if "committed_id" in event:
                assert told.setdefault(event["id"], event["committed_id"]) == event["committed_id"]


def calls() -> int:
    disk = CrashFilesystem()
    store = open_store(disk)
    submit(DiskWorld(store), {})
    store.close()
    return disk.calls


def check(disk: CrashFilesystem, told: dict[str, int]) -> None:
    with open_store(disk) as store:
        world = DiskWorld(store)
        kept = {event.id: event.committed_id for event in world.log.find(list(told)).values()}
        assert kept == told
        again = dict(told)
        submit(world, again)
        assert set(again) == {f"e{number}" for number in range(BATCHES * ITEMS)}
        assert len(set(again.values())) == len(again)
        document = world.history.validator.document(("P1", "P1"))
        assert len(document["explorer"]["items"]) == BATCHES * ITEMS


@pytest.mark.guarantee("G1")
@pytest.mark.guarantee("G3")
@pytest.mark.parametrize(
    ("step", "seeds"), [(31, 2), pytest.param(2, 3, marks=[pytest.mark.long, pytest.mark.timeout(1800)])]
)
def test_what_a_client_was_told_survives_a_power_cut_at_any_call(step: int, seeds: int) -> None:
    total = calls()
    assert total > 50
    for call in range(1, total + 1, step):
        disk, told = CrashFilesystem(), dict[str, int]()
        disk.cut_at(call)
        with suppress(PowerCut):
            submit(DiskWorld(open_store(disk)), told)
        for power in range(seeds):
            check(disk.after_power_cut(power), told)
