"""Readers, commits, uploads, copies that go and a cache for one segment, all at once and with real threads."""

from __future__ import annotations

import random
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from holdfast import Store
from holdfast.clock import SystemClock
from holdfast.config.tier import TierConfig
from holdfast.disk.local import LocalFilesystem
from holdfast.testing.objects import MemoryObjects
from holdfast.tier import Tier
from tests.unit.tier.rig import rows, values_of

FRAMES = 60
READERS = 3


@pytest.mark.timeout(240)
def test_readers_see_every_event_while_copies_come_and_go(tmp_path: Path) -> None:
    config = TierConfig.from_mapping({"tier": {"url": "file:///unused", "cache_size": "5KiB", "max_delay": "10ms"}})
    clock, filesystem = SystemClock(), LocalFilesystem()
    tier = Tier(config, MemoryObjects(), filesystem=filesystem, clock=clock, chance=random.Random(1))
    tier.load()
    settings = {"retention": {"local": "5KiB", "tick": "5ms"}, "channels": {"a": {"file_slice_max_msgs": 1}}}
    written, done = [0], threading.Event()
    with Store.open(tmp_path / "data", settings, source=tier) as store:
        tier.attach(store.port)
        store.commit("a", rows(0))

        def read() -> int:
            rounds = 0
            while not done.is_set() or rounds == 0:
                surely = written[0]
                found = values_of(store, "a")
                assert found == list(range(len(found)))
                assert len(found) > surely
                rounds += 1
            return rounds

        with ThreadPoolExecutor(READERS) as pool:
            readers = [pool.submit(read) for _ in range(READERS)]
            try:
                for value in range(1, FRAMES):
                    store.commit("a", rows(value))
                    written[0] = value
                    if value % 5 == 0:
                        store.flush()
            finally:
                done.set()
            assert all(reader.result() > 0 for reader in readers)
        store.flush()
        assert values_of(store, "a") == list(range(FRAMES))
        pause, tries = threading.Event(), range(1200)
        assert any(tier.statistics().remote_segments > FRAMES // 2 or pause.wait(0.05) for _ in tries)
        statistics = tier.statistics()
        tier.close()
    assert statistics.cache is not None
    assert statistics.cache.copies <= 1
    assert statistics.cache.evictions > 0
