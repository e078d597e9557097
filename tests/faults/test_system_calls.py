"""The kernel refuses or delays system calls of a real server: typed answers, exit code 4, and never an OK after that.

Each call of the write path fails once, at its n-th time, under load. Afterwards the server runs again on the same
directory, and every frame it ever answered with OK is there, once and in order.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from holdfast import Store
from holdfast.clock import NS_PER_S
from holdfast.errors import Category
from holdfast.wire import replies
from tests.e2e.nursed import NursedServer
from tests.e2e.nursery import Nursery
from tests.faults import figures
from tests.faults.confinement import Confines
from tests.faults.hostile_names import knock_everywhere
from tests.faults.needs import need
from tests.faults.pulse import Pulse
from tests.faults.tracing import NAMING_CALLS, Injection, Tracer, opened
from tests.unit.server.harness import RawClient, arrow_frame, open_client

AREA = "calls"
FRAMES = 120
PAD_BYTES = 4_000
SETTINGS = """
segment: {target_size: 64KiB, max_open_duration: 50ms}
wal: {rotation_size: 128KiB, max_size: 4MiB}
frame.max_size: 64KiB
ingest.max_batch_size: 64KiB
"""
CALLS = ("pwritev,pwritev2", "pwrite64", "fdatasync", "fsync", "rename", "openat", "ftruncate", "fallocate")
FAILED = 4
"""The exit code of a server whose store has failed."""
LONG = [pytest.mark.long, pytest.mark.timeout(3600)]
SLOW_SYNC_S = 5
QUICK_FAULTS = [("fdatasync", "EIO", (2,)), ("pwritev,pwritev2", "ENOSPC", (3,))]


@pytest.fixture(scope="module")
def nursery() -> Iterator[Nursery]:
    need(AREA, "Linux", "strace", "ptrace")
    with Nursery() as started:
        yield started


@pytest.fixture
def server(nursery: Nursery, tmp_path: Path) -> Iterator[NursedServer]:
    config = tmp_path / "holdfast.yaml"
    config.write_text(SETTINGS, encoding="utf-8")
    with NursedServer(nursery, tmp_path / "data", "--config", str(config)) as started:
        yield started


class Load:
    """Frames sent one after the other; which were answered, and how."""

    def __init__(self) -> None:
        self.accepted: set[int] = set()
        self.refused: list[replies.Refusal] = []
        self.next = 0

    def send(self, port: int, frames: int) -> bool:
        """Send so many; whether the server was there to the end."""
        try:
            client, answer = open_client(port)
        except (OSError, EOFError):
            return False
        if answer.status != 101:
            return False
        with client:
            return self._talk(client, frames)

    def _talk(self, client: RawClient, frames: int) -> bool:
        for _ in range(frames):
            number, self.next = self.next, self.next + 1
            try:
                client.send(arrow_frame(number, fsn=number, pad_bytes=PAD_BYTES))
                reply = client.reply()
            except (OSError, EOFError, AssertionError):  # the last one: the server closed
                return False
            if isinstance(reply, replies.Ok):
                self.accepted.add(number)
            elif isinstance(reply, replies.Refusal):
                self.refused.append(reply)
                return True
        return True

    def check(self, data: Path) -> None:
        """Everything that was answered with OK is there, once, in order."""
        with Store.open(data) as store:
            rows = [n for batch in store.read("trades", columns=["n"]) for n in batch.column(0).to_pylist()]
        assert rows == sorted(set(rows)), "doubled or out of order"
        assert self.accepted <= set(rows), f"answered and lost: {sorted(self.accepted - set(rows))[:5]}"


def one_fault(server: NursedServer, load: Load, inject: str, output: Path) -> tuple[int, int]:
    """Load while a call fails, until frames are accepted again; how many calls failed, and how often it was started."""
    injection = Injection(server.pid, inject, output)
    with injection:
        for _ in range(3):
            load.send(server.port, FRAMES // 3)
    starts = 0
    while not load.send(server.port, 1):  # a failure may end it a moment later: segments are sealed in the background
        assert starts < 2, "the server does not go on"
        assert server.wait() == FAILED
        server.start()
        starts += 1
    return injection.injected(), starts


@pytest.mark.guarantee("G10")
@pytest.mark.parametrize(
    ("call", "error", "whens"),
    [
        *QUICK_FAULTS,
        *(pytest.param(call, error, tuple(range(1, 25)), marks=LONG) for call in CALLS for error in ("EIO", "ENOSPC")),
    ],
    ids=lambda value: str(value) if isinstance(value, str) else f"{len(value)} times",
)
def test_failing_call_costs_nothing_that_was_answered(
    server: NursedServer, tmp_path: Path, call: str, error: str, whens: tuple[int, ...]
) -> None:
    load, bent, deaths = Load(), 0, 0
    for when in whens:
        failed, ends = one_fault(server, load, f"{call}:error={error}:when={when}", tmp_path / "trace")
        bent, deaths = bent + failed, deaths + ends
        assert ends <= failed, "the server ended though no call failed"
        for refusal in load.refused:
            assert refusal.category in {Category.WRITE_ERROR, Category.INTERNAL_ERROR, Category.NOT_WRITABLE}, refusal
    assert bent > 0, "no call failed"
    if call == "fdatasync":
        assert deaths == bent, "a failed sync must end the server"
    server.terminate()
    load.check(tmp_path / "data")
    figures.note(
        AREA,
        f"`{call}` fails with {error}: typed answers, nothing answered is lost",
        profile="long" if len(whens) > 1 else "quick",
        failed_calls=bent,
        ends_with_code_4=deaths,
        frames_answered=len(load.accepted),
    )


@pytest.mark.guarantee("G11")
@pytest.mark.parametrize("frames", [1, pytest.param(3, marks=LONG)], ids=lambda frames: f"{frames} frames")
def test_slow_disk_holds_up_neither_pings_nor_health(server: NursedServer, tmp_path: Path, frames: int) -> None:
    """Answers to frames wait for the disk; the loop does not. Pings are compared with the delay, not with a clock."""
    load, idle = Load(), open_client(server.port)[0]
    slow = Tracer(server.pid, "-e", "trace=fdatasync", "-e", f"inject=fdatasync:delay_exit={SLOW_SYNC_S * 1_000_000}")
    with idle, slow:
        pulse = Pulse(server, idle)
        sender = threading.Thread(target=load.send, args=(server.port, frames))
        sender.start()
        while sender.is_alive():
            pulse.feel()
        sender.join()
    assert len(load.accepted) == frames
    assert pulse.beats > 3, "a ping took as long as a sync"
    assert pulse.slowest_ns < SLOW_SYNC_S * NS_PER_S / 2, "a ping waited for a sync"
    server.terminate()
    load.check(tmp_path / "data")
    figures.note(
        AREA,
        "a slow disk holds up neither `/healthz` nor pings",
        profile="long" if frames > 1 else "quick",
        s_more_for_each_sync=SLOW_SYNC_S,
        pings=pulse.beats,
        slowest_ping_ms=pulse.slowest_ms,
    )


NAMES = (
    *(
        "../escape",
        "../../../escape",
        "/etc/passwd",
        "..",
        ".",
        "a/../../b",
        "..\\..\\b",
        "%2e%2e%2fb",
        "a\x00b",
        "~root",
        "C:\\x",
        "a" * 300,
    ),
    *("\u2025/b", "\uff0e\uff0e\uff0fb", ".hidden", "-rf", "CON", "a//b", "./b", "b/.", "\n", " "),
)


@pytest.mark.guarantee("G12")
def test_no_name_opens_a_file_outside_of_the_data_directory(server: NursedServer, tmp_path: Path) -> None:
    """Hostile channel, subscriber, slot and segment names on each door, while strace writes down every path."""
    data, config, trace = tmp_path / "data", tmp_path / "holdfast.yaml", tmp_path / "paths"
    with Tracer(server.pid, "-e", NAMING_CALLS, output=trace):
        knocks = sum(knock_everywhere(server, name) for name in NAMES)
        load = Load()
        load.send(server.port, 5)
    server.terminate()
    load.check(data)
    names = opened(trace)
    assert any(one.writes and one.name.startswith(f"{data}/") for one in names), "nothing was written down"
    assert Confines(data, (config, trace)).foreign(names) == []
    assert sorted(path.name for path in tmp_path.iterdir()) == ["data", "data.stderr", config.name, trace.name]
    figures.note(
        AREA, "no name opens a file outside of the data directory", names=len(NAMES), knocks=knocks, opened=len(names)
    )
