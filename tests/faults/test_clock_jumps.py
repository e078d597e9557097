"""The wall clock of a real server jumps by hours and years, to and fro: nothing expires, waits or goes for that."""

from __future__ import annotations

import http.client
import os
import random
import subprocess
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from holdfast import Sender, Store
from holdfast.testing.history import Accepted, Crash, Happening, Restart, Row, Sent, Stored, require
from tests.e2e.served import PATIENCE_S, ServedProcess
from tests.faults import figures, killing
from tests.faults.needs import need

AREA = "clock"
HOUR, YEAR = 3600, 365 * 24 * 3600
JUMPS = (-HOUR, HOUR, -24 * HOUR, 10 * YEAR, -10 * YEAR, 1, -1, 400 * 24 * HOUR)
CHANNELS = ("kept", "aged")
COLUMNS = ("n", "_seq", "_committed_id")
SETTINGS = """
segment: {target_size: 64KiB, max_open_duration: 50ms}
retention: {tick: 50ms}
channels:
  aged: {max_age: 6h, retention: {mode: limits}}
"""
PROFILES = pytest.mark.parametrize(
    "profile",
    [
        pytest.param("quick", marks=killing.QUICK),
        pytest.param("long", marks=[pytest.mark.long, pytest.mark.timeout(3600)]),
    ],
)
ROUNDS = {"quick": 4, "long": 100}


@pytest.fixture(scope="module")
def shim(tmp_path_factory: pytest.TempPathFactory) -> Path:
    need(AREA, "Linux", "cc")
    library = tmp_path_factory.mktemp("shim") / "clockshim.so"
    source = Path(__file__).with_name("clockshim.c")
    subprocess.run(["cc", "-shared", "-fPIC", "-O1", "-o", str(library), str(source), "-ldl"], check=True)
    return library


def healthy(admin: str) -> bool:
    parts = urlsplit(admin)
    connection = http.client.HTTPConnection(parts.hostname or "", parts.port, timeout=PATIENCE_S)
    connection.request("GET", "/healthz")
    status = connection.getresponse().status
    connection.close()
    return status == 200


def judge(data: Path, rounds: int) -> None:
    """Each was acknowledged before the next was sent; nobody took anything away, as only what is old may go."""
    history: list[Happening] = []
    for number in range(rounds):
        history += [Sent("the sender", channel, (f"{channel} {number}",), f"frame {number}") for channel in CHANNELS]
        history += [Accepted(channel, (f"{channel} {number}",)) for channel in CHANNELS]
    history += [Crash("server", "restarted"), Restart("server")]
    with Store.open(data) as store:
        rows = [
            Row(channel, seq, f"{channel} {n}", committed_id)
            for channel in CHANNELS
            for batch in store.read(channel, columns=["n"], system=["_seq", "_committed_id"])
            for n, seq, committed_id in zip(*(batch.column(name).to_pylist() for name in COLUMNS), strict=True)
        ]
    require([*history, Stored(tuple(rows), is_final=True)])


@pytest.mark.guarantee("G1")
@PROFILES
def test_jumps_of_the_wall_clock_lose_nothing_and_stop_nothing(shim: Path, tmp_path: Path, profile: str) -> None:
    """Each event is acknowledged, and what was acknowledged stays, in a channel that deletes by age too.

    Only time that passes makes an event old: a clock that jumps ten years ahead must not delete a channel at once.
    """
    offset, chance = tmp_path / "offset", random.Random(20261116)
    offset.write_text("0")
    config = tmp_path / "holdfast.yaml"
    config.write_text(SETTINGS, encoding="utf-8")
    environment = {"LD_PRELOAD": str(shim), "HOLDFAST_CLOCK_OFFSET": str(offset)}
    with ServedProcess(tmp_path / "data", "--config", str(config), environment=environment) as served:
        with Sender.from_conf(f"ws::addr=127.0.0.1:{served.port};") as sender:
            for number in range(ROUNDS[profile]):
                _move(offset, chance.choice(JUMPS))
                for channel in CHANNELS:
                    sender.send(channel, [{"n": number}])
                assert sender.await_acked(sender.flush(), PATIENCE_S), "nothing is acknowledged after a jump"
                assert healthy(served.admin)
        assert served.terminate() == 0
        assert served.start().terminate() == 0
    assert "store.retention.clock_jump" in served.errors.read_text(encoding="utf-8"), "the clock did not jump"
    judge(tmp_path / "data", ROUNDS[profile])
    figures.note(AREA, "jumps of the wall clock lose nothing and stop nothing", profile=profile, jumps=ROUNDS[profile])


def _move(offset: Path, seconds: int) -> None:
    """As a whole: the server must not read half a number."""
    fresh = offset.with_suffix(".new")
    fresh.write_text(str(seconds))
    os.rename(fresh, offset)  # noqa: PTH104, TID251  # a file of this test
