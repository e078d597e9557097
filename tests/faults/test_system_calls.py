"""The kernel refuses or delays system calls of a real server: typed answers, exit code 4, and never an OK after that.

Each call of the write path fails once, at its n-th time, under load. Afterwards the server runs again on the same
directory, and every frame it ever answered with OK is there, once and in order.
"""

from __future__ import annotations

import http.client
import json
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from holdfast import Store
from holdfast.clock import NS_PER_S
from holdfast.disk.checksum import crc32c
from holdfast.errors import Category
from holdfast.server.admin.download import CHECKSUM_HEADER
from holdfast.testing.history import Accepted, Crash, Happening, Row, Sent, Stored, require
from holdfast.wire import replies
from tests.e2e.nursed import NursedServer
from tests.e2e.nursery import Nursery
from tests.e2e.served import PATIENCE_S, free_port
from tests.faults import figures
from tests.faults.confinement import Confines
from tests.faults.hostile_names import Doors, knock_everywhere
from tests.faults.needs import need
from tests.faults.pulse import PING_NS_MAX, Pulse
from tests.faults.tracing import NAMING_CALLS, Injection, Tracer, opened
from tests.unit.server.harness import RawClient, arrow_frame, open_client

AREA = "calls"
CHANNELS = "trades-"
COLUMNS = ("n", "_seq", "_committed_id")
PAD_BYTES = 4_000
SETTINGS = """
segment: {target_size: 64KiB, max_open_duration: 50ms}
wal: {rotation_size: 128KiB, max_size: 4MiB}
frame.max_size: 64KiB
ingest.max_batch_size: 64KiB
"""
ROUND_FRAMES = 40
"""Frames on one connection, all to a channel of their own."""
TURNS = 2
"""Segments published one after the other: a call that failed in the background has ended the server by then."""
ROUNDS_MAX = 40
"""So many are sent at most until a call has come for the n-th time."""
CALLS = {
    "pwritev,pwritev2": 24,
    "pwrite64": 24,
    "fdatasync": 24,
    "fsync": 24,
    "rename": 24,
    "openat": 24,
    "close": 24,
    "pread64": 24,
    "ftruncate": 12,
    "fallocate": 12,
    "unlink": 12,
    "mkdir": 8,
}
"""Each call that a server under load makes for its store, and up to which time it fails; those at the end are rare.

`read` and `write` are for sockets and wake-ups: no file of the store is read or written by them.
"""
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
    """Frames sent one after the other, and a published segment read behind them: a history of what was answered."""

    def __init__(self) -> None:
        self.history: list[Happening] = []
        self.accepted = 0
        self.refused: list[replies.Refusal] = []
        self.next = 0
        self.rounds = 0
        self.reads = 0

    def send(self, server: NursedServer, frames: int) -> bool:
        """Send so many to a channel of their own; whether the server was there to the end."""
        self.rounds += 1
        try:
            client, answer = open_client(server.port)
        except (OSError, EOFError):
            return False
        if answer.status != 101:
            return False
        with client:
            return self._talk(client, f"{CHANNELS}{self.rounds}", frames)

    def _talk(self, client: RawClient, channel: str, frames: int) -> bool:
        for _ in range(frames):
            number, self.next = self.next, self.next + 1
            self.history.append(Sent("slot", channel, (number,)))
            try:
                client.send(arrow_frame(number, channel=channel, fsn=number, pad_bytes=PAD_BYTES))
                reply = client.reply()
            except (OSError, EOFError, AssertionError):  # the last one: the server closed
                return False
            if isinstance(reply, replies.Ok):
                self.history.append(Accepted(channel, (number,), dict(reply.channels)[channel]))
                self.accepted += 1
            elif isinstance(reply, replies.Refusal):
                self.refused.append(reply)
                return True
        return True

    def publish(self, server: NursedServer) -> bool:
        """Send one and wait until it is published; whether the server was there to the end."""
        if not self.send(server, 1):
            return False
        pause = threading.Event()
        while True:
            try:
                answer = json.loads(self._get(server, f"/api/v1/channels/{CHANNELS}{self.rounds}").read())
            except (OSError, http.client.HTTPException):
                return False
            if "data" not in answer:
                return False
            if answer["data"]["published_seq"] == answer["data"]["last_seq"]:
                return True
            pause.wait(0.01)

    def read(self, server: NursedServer) -> None:
        """The last segment there is, as a file: whole and as its checksum says, or an answer that does not end."""
        with suppress(OSError, http.client.HTTPException):
            listing = self._get(server, "/api/v1/segments?limit=1000")
            if listing.status != 200 or not (segments := json.loads(listing.read())["data"]):
                return
            last = segments[-1]
            answer = self._get(server, f"/api/v1/channels/{last['channel']}/segments/{last['segment']}/data")
            data = answer.read()
            if answer.status == 200:
                assert f"{crc32c(data):08x}" == answer.headers[CHECKSUM_HEADER]
                self.reads += 1

    @staticmethod
    def _get(server: NursedServer, path: str) -> http.client.HTTPResponse:
        at = urlsplit(server.admin)
        connection = http.client.HTTPConnection(at.hostname or "", at.port, timeout=PATIENCE_S)
        connection.request("GET", path, headers={"Connection": "close"})
        return connection.getresponse()

    def check(self, data: Path) -> None:
        """Everything that was answered with OK is there, once, in order, where the answer said."""
        with Store.open(data) as store:
            rows = [
                Row(channel, seq, n, committed_id)
                for channel in store.channels()
                if channel.startswith(CHANNELS)
                for batch in store.read(channel, columns=["n"], system=["_seq", "_committed_id"])
                for n, seq, committed_id in zip(*(batch.column(name).to_pylist() for name in COLUMNS), strict=True)
            ]
        require([*self.history, Stored(tuple(rows), is_final=True)])


def one_fault(server: NursedServer, load: Load, inject: str, output: Path) -> tuple[int, int]:
    """Load until a call fails, and until all goes on; how many failed, and how often the server was started."""
    injection = Injection(server.pid, inject, output)
    with injection:
        for _ in range(ROUNDS_MAX):
            load.send(server, ROUND_FRAMES)
            load.read(server)
            if injection.injected():
                break
    starts = 0
    while not all(load.publish(server) for _ in range(TURNS)):
        assert starts < 2, "the server does not go on"
        assert server.wait() == FAILED
        load.history.append(Crash("server", "store failed"))
        server.start()
        starts += 1
    return injection.injected(), starts


@pytest.mark.guarantee("G10")
@pytest.mark.parametrize(
    ("call", "error", "whens"),
    [
        *QUICK_FAULTS,
        *(
            pytest.param(call, error, tuple(range(1, last + 1)), marks=LONG)
            for call, last in CALLS.items()
            for error in ("EIO", "ENOSPC")
        ),
    ],
    ids=lambda value: str(value) if isinstance(value, str) else f"{len(value)} times",
)
def test_failing_call_costs_nothing_that_was_answered(
    server: NursedServer, tmp_path: Path, call: str, error: str, whens: tuple[int, ...]
) -> None:
    load, bent, deaths, missed = Load(), 0, 0, []
    for when in whens:
        failed, ends = one_fault(server, load, f"{call}:error={error}:when={when}", tmp_path / "trace")
        bent, deaths = bent + failed, deaths + ends
        missed += [] if failed else [when]
        assert ends <= failed, "the server ended though no call failed"
        for refusal in load.refused:
            assert refusal.category in {Category.WRITE_ERROR, Category.INTERNAL_ERROR, Category.NOT_WRITABLE}, refusal
    assert missed == [], "these calls never came, so none failed"
    if call == "fdatasync":
        assert deaths == bent, "a failed sync must end the server"
    server.terminate()
    load.check(tmp_path / "data")
    figures.note(
        AREA,
        f"`{call}` fails with {error}: typed answers, nothing answered is lost",
        profile="long" if len(whens) > 1 else "quick",
        planned=len(whens),
        failed_calls=bent,
        ends_with_code_4=deaths,
        frames_answered=load.accepted,
        segments_read=load.reads,
    )


@pytest.mark.guarantee("G11")
@pytest.mark.parametrize("frames", [1, pytest.param(3, marks=LONG)], ids=lambda frames: f"{frames} frames")
def test_slow_disk_holds_up_neither_pings_nor_health(server: NursedServer, tmp_path: Path, frames: int) -> None:
    """Answers to frames wait for the disk; the loop does not. Pings are compared with the delay, not with a clock."""
    load, idle = Load(), open_client(server.port)[0]
    slow = Tracer(server.pid, "-e", "trace=fdatasync", "-e", f"inject=fdatasync:delay_exit={SLOW_SYNC_S * 1_000_000}")
    with idle, slow:
        pulse = Pulse(server, idle)
        sender = threading.Thread(target=load.send, args=(server, frames))
        sender.start()
        while sender.is_alive():
            pulse.feel()
        sender.join()
    assert load.accepted == frames
    assert pulse.beats > 3, "a ping took as long as a sync"
    assert pulse.slowest_ns < SLOW_SYNC_S * NS_PER_S / 2, "a ping waited for a sync"
    if frames > 1:
        assert pulse.slowest_ns < PING_NS_MAX, f"a ping took {pulse.slowest_ms} ms"
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
def test_no_name_opens_a_file_outside_of_the_data_directory(nursery: Nursery, tmp_path: Path) -> None:
    """Hostile channel, table, column, subscriber, slot, segment and service names on each door, while strace writes
    down every path."""
    data, config, trace = tmp_path / "data", tmp_path / "holdfast.yaml", tmp_path / "paths"
    doors = Doors(otlp_http=f"127.0.0.1:{free_port()}", otlp_grpc=f"127.0.0.1:{free_port()}")
    listen = f'{{payload: columns, http_listening_addr: "{doors.otlp_http}", listening_addr: "{doors.otlp_grpc}"}}'
    config.write_text(f"{SETTINGS}otlp: {listen}\n", encoding="utf-8")
    knocks: Counter[str] = Counter()
    with NursedServer(nursery, data, "--config", str(config)) as server:
        with Tracer(server.pid, "-e", NAMING_CALLS, output=trace):
            for name in NAMES:
                knocks.update(knock_everywhere(server, name, doors))
            load = Load()
            load.send(server, 5)
        server.terminate()
    load.check(data)
    names = opened(trace)
    assert any(one.writes and one.name.startswith(f"{data}/") for one in names), "nothing was written down"
    assert Confines(data, (config, trace)).foreign(names) == []
    assert sorted(path.name for path in tmp_path.iterdir()) == ["data", "data.stderr", config.name, trace.name]
    figures.note(
        AREA,
        "no name opens a file outside of the data directory",
        names=len(NAMES),
        opened=len(names),
        knocks=knocks.total(),
        at_otlp_http=knocks["otlp_http"],
        at_otlp_grpc=knocks["otlp_grpc"],
        at_the_wires=knocks["wires"],
    )
