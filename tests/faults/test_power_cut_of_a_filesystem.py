"""The power of a real filesystem is cut under a real server with real senders: every acknowledged event is there.

Unlike SIGKILL this is power loss: the page cache is gone, the journal is replayed. Two ways:

- the server's disk loses power, the producer lives on; what was acknowledged is trimmed at the producer, so a loss
  shows as a gap, and a repeat as a repeat;
- the producer's slot is on the disk that loses power too; with `sf_durability=flush` everything whose `flush()`
  returned is sent after the producer came back.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path

import pytest

from holdfast import Store
from tests.e2e.nursed import NursedServer, Producer, check, drain
from tests.e2e.nursery import Nursery
from tests.faults import figures, killing
from tests.faults.loopdisk import LoopDisk
from tests.faults.needs import need
from tests.faults.weak_writer import EVENTS, SETTINGS
from tests.unit.sender.proxy import Proxy

FAST = "reconnect_initial_backoff_millis=5;reconnect_max_backoff_millis=50;initial_connect_retry=async;"
KINDS = pytest.mark.parametrize("kind", ["ext4", "xfs"])
PROFILES = pytest.mark.parametrize(
    "profile",
    [
        pytest.param("quick", marks=killing.QUICK),
        pytest.param("long", marks=[pytest.mark.long, pytest.mark.timeout(3600)]),
    ],
)
CUTS = {"quick": 2, "long": 250}
BOTH_CUTS = {"quick": 1, "long": 60}
AREA = "power"


@pytest.fixture(scope="module")
def nursery() -> Iterator[Nursery]:
    need(AREA, "Linux", "root", "loop devices")
    with Nursery() as started:
        yield started


@pytest.mark.guarantee("G1")
@pytest.mark.guarantee("G3")
@KINDS
@PROFILES
def test_power_cut_of_the_servers_disk_loses_nothing_acknowledged(
    nursery: Nursery, tmp_path: Path, kind: str, profile: str
) -> None:
    need(AREA, f"mkfs.{kind}")
    chance = random.Random(20261116)
    with LoopDisk(tmp_path, kind) as disk:
        data = disk.mount_point / "data"
        with NursedServer(nursery, data) as server, Proxy(server.port) as network:
            conf = f"ws::addr=127.0.0.1:{network.port};sf_dir={tmp_path / 'sf'};sender_id=app;{FAST}"
            with Producer(nursery, conf, "cuts", 0) as producer:
                for _ in range(CUTS[profile]):
                    producer.more(chance.randrange(1, 400))
                    network.silence()  # a machine without power sends nothing; what it sent before counts
                    disk.cut()
                    server.stop_dead()
                    network.cut()
                    disk.after_power_is_back()
                    producer.more(chance.randrange(1, 50))  # it goes on while nobody listens
                    network.lead_to(server.start_elsewhere())
                producer.more(50)
                producer.kill()
            drain(conf)
            server.terminate()
        stored = check(data, "cuts", [producer])
        assert stored > producer.published
    figures.note(
        AREA,
        f"power cut of the server's {kind} disk: nothing acknowledged is lost, nothing is doubled",
        profile=profile,
        cuts=CUTS[profile],
        events=stored,
    )


@pytest.mark.guarantee("G2")
@KINDS
@PROFILES
def test_power_cut_under_producer_and_server_loses_nothing_that_was_flushed(
    nursery: Nursery, tmp_path: Path, kind: str, profile: str
) -> None:
    """One disk for both, as on one small machine; each producer has the slot of the one before."""
    need(AREA, f"mkfs.{kind}")
    chance = random.Random(7)
    producers: list[Producer] = []
    with LoopDisk(tmp_path, kind) as disk:
        data = disk.mount_point / "data"
        with NursedServer(nursery, data) as server, Proxy(server.port) as network:
            keys = f"sf_dir={disk.mount_point / 'sf'};sender_id=app;sf_durability=flush;sf_max_segment_bytes=64k;"
            conf = f"ws::addr=127.0.0.1:{network.port};{keys}{FAST}"
            for run in range(BOTH_CUTS[profile]):
                with Producer(nursery, conf, "both", run) as producer:
                    producers.append(producer)
                    producer.until(chance.randrange(1, 300))
                    published = producer.published
                    disk.cut()
                    server.stop_dead()
                    producer.stop_dead(published=published)
                disk.after_power_is_back()
                network.lead_to(server.start_elsewhere())
            drain(conf)
            server.terminate()
        stored = check(data, "both", producers)
    figures.note(
        AREA,
        f"power cut of one {kind} disk under producer and server: nothing that was flushed is lost or doubled",
        profile=profile,
        cuts=BOTH_CUTS[profile],
        events=stored,
    )


def test_cut_filesystem_forgets_what_was_not_synced(nursery: Nursery, tmp_path: Path) -> None:
    """The cut itself is tested: a store that does not sync loses events to it, so that the tests above can fail."""
    need(AREA, "mkfs.ext4")
    with LoopDisk(tmp_path, "ext4") as disk:
        data = disk.mount_point / "data"
        writer = nursery.start("tests.faults.weak_writer:main", str(data))
        assert writer.output.readline() == "written\n"
        disk.cut()
        writer.kill()
        writer.output.close()
        disk.after_power_is_back()
        with Store.open(data, SETTINGS) as again:
            assert sum(batch.num_rows for batch in again.read("weak")) < EVENTS
