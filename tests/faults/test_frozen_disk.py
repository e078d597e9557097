"""The disk of a real server stands still, and nobody says for how long: who wants nothing of it is served meanwhile.

The kernel freezes the filesystem (`fsfreeze`): every write waits, none fails. It is not a power cut; what was there
stays there. The server's messages go to another disk: a write to standard error would wait like any other.
"""

from __future__ import annotations

import os
import select
import signal
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from holdfast.clock import NS_PER_S, SystemClock
from tests.e2e.nursed import NursedServer, Producer, check, drain
from tests.e2e.nursery import Nursery
from tests.faults import figures, killing
from tests.faults.loopdisk import LoopDisk
from tests.faults.needs import need
from tests.faults.pulse import PING_NS_MAX, Pulse
from tests.unit.sender.proxy import Proxy
from tests.unit.server.harness import PING, PONG, RawClient, arrow_frame, open_client

AREA = "frozen"
FREEZE_S = {"quick": 2, "long": 30}
BETWEEN_BEATS_S = 0.01
FAST = "reconnect_initial_backoff_millis=5;reconnect_max_backoff_millis=50;initial_connect_retry=async;"
KINDS = pytest.mark.parametrize("kind", ["ext4", "xfs"])
PROFILES = pytest.mark.parametrize(
    "profile",
    [
        pytest.param("quick", marks=killing.QUICK),
        pytest.param("long", marks=[pytest.mark.long, pytest.mark.timeout(600)]),
    ],
)


@pytest.fixture(scope="module")
def nursery() -> Iterator[Nursery]:
    need(AREA, "Linux", "root", "loop devices", "fsfreeze")
    with Nursery() as started:
        yield started


class ServerOnADisk(NursedServer):
    """Its data is on that disk, its messages are beside the disk."""

    def __init__(self, nursery: Nursery, disk: LoopDisk) -> None:
        super().__init__(nursery, disk.mount_point / "data")
        self._beside = disk.mount_point.parent / "server.stderr"

    @property
    def _errors(self) -> Path:
        return self._beside


def has_answer(client: RawClient) -> bool:
    """Whether the server has said anything but a ping, which is answered."""
    while client.pending or select.select([client.socket], [], [], 0)[0]:
        opcode, payload = client.receive()
        if opcode != PING:
            return True
        client.send(payload, opcode=PONG)
    return False


def endure(pulse: Pulse, waiting: RawClient, profile: str) -> None:
    """Feel the pulse for that long, while a frame waits for the disk: it has no answer of any kind.

    Half of the freeze proves that nothing waited for it. The long profile holds the written bound, too.
    """
    clock, pause, freeze_ns = SystemClock(), threading.Event(), FREEZE_S[profile] * NS_PER_S
    waiting.send(arrow_frame(1))
    end_ns = clock.monotonic_ns() + freeze_ns
    while clock.monotonic_ns() < end_ns:
        pulse.feel()
        assert not has_answer(waiting), "a frame has an answer, and the disk stands still"
        pause.wait(BETWEEN_BEATS_S)
    assert pulse.beats > 3
    assert pulse.slowest_ns < freeze_ns / 2, "a ping waited for the disk"
    if profile == "long":
        assert pulse.slowest_ns < PING_NS_MAX, f"a ping took {pulse.slowest_ms} ms"


@pytest.mark.guarantee("G1")
@pytest.mark.guarantee("G3")
@pytest.mark.guarantee("G11")
@KINDS
@PROFILES
def test_frozen_disk_holds_up_nobody_who_does_not_write(
    nursery: Nursery, tmp_path: Path, kind: str, profile: str
) -> None:
    """Pings and `/healthz` are answered, frames are not; when the disk goes on, all of it does, and nothing is lost."""
    need(AREA, f"mkfs.{kind}")
    with LoopDisk(tmp_path, kind) as disk:
        with ServerOnADisk(nursery, disk) as server:
            conf = f"ws::addr=127.0.0.1:{server.port};sf_dir={tmp_path / 'sf'};sender_id=app;{FAST}"
            with Producer(nursery, conf, "frozen", 0, kind="tracked") as producer:
                producer.answers(50)
                idle, waiting = open_client(server.port)[0], open_client(server.port)[0]
                with idle, waiting:
                    pulse = Pulse(server, idle)
                    with disk.frozen():
                        published = producer.published
                        endure(pulse, waiting, profile)
                        assert producer.published > published, "the producer waited for the disk of the server"
                    waiting.acknowledged(0)
                producer.answers(50)
                producer.kill()
            drain(conf)
            server.terminate()
        stored = check(disk.mount_point / "data", "frozen", [producer])
    figures.note(
        AREA,
        f"a frozen {kind} disk holds up neither `/healthz` nor pings; all goes on when it does",
        profile=profile,
        s_frozen=FREEZE_S[profile],
        pings=pulse.beats,
        slowest_ping_ms=pulse.slowest_ms,
        events=stored,
    )


@pytest.mark.guarantee("G1")
@pytest.mark.guarantee("G3")
@KINDS
def test_server_killed_while_its_disk_is_frozen_loses_nothing_it_acknowledged(
    nursery: Nursery, tmp_path: Path, kind: str
) -> None:
    """What it said until then counts: an acknowledgement that did not wait for the disk would be a gap."""
    need(AREA, f"mkfs.{kind}")
    with LoopDisk(tmp_path, kind) as disk:
        with ServerOnADisk(nursery, disk) as server, Proxy(server.port) as network:
            conf = f"ws::addr=127.0.0.1:{network.port};sf_dir={tmp_path / 'sf'};sender_id=app;{FAST}"
            with Producer(nursery, conf, "frozen", 0, kind="tracked") as producer:
                producer.answers(50)
                with disk.frozen():
                    producer.more(50)
                    os.kill(server.pid, signal.SIGKILL)  # it dies when its write comes back
                assert server.stop_dead() == -signal.SIGKILL
                network.lead_to(server.start_elsewhere())
                producer.answers(50)
                producer.kill()
            drain(conf)
            server.terminate()
        stored = check(disk.mount_point / "data", "frozen", [producer])
    figures.note(AREA, f"killed while its {kind} disk is frozen, a server loses nothing it acknowledged", events=stored)
