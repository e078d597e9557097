"""Producers and servers are killed with SIGKILL; every event whose `flush()` returned is stored once, in order.

SIGKILL proves process death, not power loss. The processes come out of a nursery (`tests/e2e/nursery.py`), so that the
loops can be long.
"""

from __future__ import annotations

import os
import random
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from holdfast import Sender, Store
from holdfast.clock import SystemClock
from holdfast.disk.local import LocalFilesystem
from holdfast.errors import Locked
from holdfast.sender.slot import Slot
from tests.e2e.chronicle import BUSY, BUSY_YAML, Chronicle, Reader
from tests.e2e.nursed import NursedServer, Producer, check, drain
from tests.e2e.nursery import Nursery
from tests.e2e.served import PATIENCE_S, ServedProcess, free_port
from tests.faults import figures, killing
from tests.faults.killing import kill_counts, profile_of
from tests.unit.sender.proxy import Proxy

pytestmark = [pytest.mark.skipif(sys.platform != "linux", reason="fork and SIGKILL as on Linux"), killing.QUICK]
FAST = "reconnect_initial_backoff_millis=5;reconnect_max_backoff_millis=50;initial_connect_retry=async;"
PATIENT = FAST.replace("max_backoff_millis=50;", "max_backoff_millis=200;")
"""Where many wait for one server."""
LOOKS = 20
"""Into the store, in a run of any length: each costs more with every event, and closes the store in order."""
QUICK, LONG = "quick", pytest.param("long", marks=[pytest.mark.long, pytest.mark.timeout(3600)])


@pytest.fixture(scope="module")
def nursery() -> Iterator[Nursery]:
    with Nursery() as started:
        yield started


def conf_of(port: int, directory: Path, *, pauses: str = FAST, **keys: str) -> str:
    text = "".join(f"{key}={value};" for key, value in {"sender_id": "app", **keys}.items())
    return f"ws::addr=127.0.0.1:{port};sf_dir={directory / 'sf'};{pauses}{text}"


@pytest.mark.guarantee("G2")
@kill_counts(80)
def test_producer_killed_again_and_again_loses_and_doubles_nothing(
    nursery: Nursery, tmp_path: Path, kills: int
) -> None:
    """One producer after the other on the same slot, each killed at a random moment, some before their first event."""
    chance = random.Random(kills)
    producers = []
    with NursedServer(nursery, tmp_path / "data") as server:
        conf = ""
        for run in range(kills):
            codec = chance.choice(["arrow", "arrow", "qwp"])
            durability = chance.choice(["memory", "memory", "flush"])
            keys = {"codec": codec, "sf_durability": durability, "sf_max_segment_bytes": "64k"}
            conf = conf_of(server.port, tmp_path, **keys)
            with Producer(nursery, conf, "killed", run) as producer:
                producers.append(producer)
                producer.until(chance.choice([-1, 0, chance.randrange(40), chance.randrange(200)]))
                producer.kill()
        drain(conf)
        server.terminate()
    stored = check(tmp_path / "data", "killed", producers)
    assert stored > kills
    figures.note("kills", "a killed producer", profile=profile_of(kills, 80), kills=kills, events=stored)


@pytest.mark.guarantee("G1")
@pytest.mark.guarantee("G3")
@pytest.mark.guarantee("G7")
@kill_counts(20)
def test_server_killed_again_and_again_loses_and_doubles_nothing(nursery: Nursery, tmp_path: Path, kills: int) -> None:
    """At any moment from the first instruction on: while it recovers, before anybody is back, and under full load.

    Producers of both codecs go on, and so do a durable consumer and a group of two. Small limits make it seal, rotate
    and trim all the time.
    """
    chance = random.Random(kills)
    (settings := tmp_path / "serve.yaml").write_text(BUSY_YAML)
    chronicle = Chronicle(tmp_path / "data", "kills", BUSY)
    early = 0
    with ExitStack() as stack:
        server = stack.enter_context(NursedServer(nursery, tmp_path / "data", "--config", str(settings)))
        confs = [
            conf_of(server.port, tmp_path, pauses=PATIENT, codec=codec, sender_id=codec) for codec in ("arrow", "qwp")
        ]
        producers = [
            stack.enter_context(Producer(nursery, conf, "kills", run, kind="tracked")) for run, conf in enumerate(confs)
        ]
        chronicle.producers.extend(producers)
        producers[0].answers(1)  # the channel is there
        consuming = f"ws::addr=127.0.0.1:{server.port};{PATIENT}"
        for run, (durable, group) in enumerate([("alone", ""), ("shared", "team"), ("shared", "team")]):
            chronicle.readers.append(
                stack.enter_context(Reader(nursery, consuming, "kills", durable, run=run, group=group))
            )
        for kill in range(1, kills + 1):
            if chance.random() < 0.3:
                early += not server.is_ready(chance.random() * server.start_s)
            else:
                assert server.is_ready(PATIENCE_S)
                producer = chance.choice(producers)
                chance.choice([producer.more, producer.answers])(chance.choice([1, chance.randrange(1, 100)]))
            server.kill()
            if kill % max(2, kills // LOOKS) == 0:
                chronicle.look()
            server.begin()
        assert server.is_ready(PATIENCE_S)
        for producer in producers:
            producer.kill()
        for reader in chronicle.readers:
            reader.kill()
        for conf in confs:
            drain(conf)
        last_seq = server.last_seq("kills")
        for reader in chronicle.readers[:2]:
            reader.finish(last_seq)
        server.terminate()
    assert chronicle.look().rows.num_rows == last_seq
    chronicle.judge()
    assert early > 0
    figures.note(
        "kills",
        "a killed server",
        profile=profile_of(kills, 20),
        kills=kills,
        before_it_was_ready=early,
        events=last_seq,
        deliveries=chronicle.delivered,
        redelivered=chronicle.again + chronicle.untold,
    )


@pytest.mark.guarantee("G2")
@pytest.mark.guarantee("G3")
@pytest.mark.parametrize("codec", ["arrow", "qwp"])
@pytest.mark.parametrize("profile", [QUICK, LONG])
def test_both_sides_killed_at_once_lose_and_double_nothing(
    nursery: Nursery, tmp_path: Path, codec: str, profile: str
) -> None:
    chance = random.Random(7)
    producers = []
    with NursedServer(nursery, tmp_path / "data") as server:
        conf = conf_of(server.port, tmp_path, codec=codec)
        for run in range({"quick": 4, "long": 100}[profile]):
            with Producer(nursery, conf, "both", run) as producer:
                producers.append(producer)
                producer.until(chance.randrange(1, 300))
                first, second = chance.sample([server.kill, producer.kill], 2)
                first()
                second()
            server.start()
        drain(conf)
        server.terminate()
    check(tmp_path / "data", "both", producers)


@pytest.mark.guarantee("G2")
@pytest.mark.guarantee("G3")
@pytest.mark.parametrize("profile", [QUICK, LONG])
def test_partitions_half_open_sockets_and_kills_together_lose_and_double_nothing(
    nursery: Nursery, tmp_path: Path, profile: str
) -> None:
    """Between producer and server the network cuts connections, or swallows everything and says nothing to either."""
    chance = random.Random(11)
    producers = []
    with NursedServer(nursery, tmp_path / "data") as server, Proxy(server.port) as proxy:
        conf = conf_of(proxy.port, tmp_path)
        for run in range({"quick": 8, "long": 150}[profile]):
            with Producer(nursery, conf, "parted", run, kind="impatient") as producer:
                producers.append(producer)
                for _ in range(chance.randrange(1, 4)):
                    producer.more(chance.randrange(1, 100))
                    chance.choice([proxy.cut, proxy.silence, proxy.silence])()
                producer.more(chance.randrange(1, 100))
                producer.kill()
            if chance.random() < 0.3:
                server.kill()
                server.start()
        drain(conf)
        server.terminate()
        assert proxy.connections > len(producers)
    check(tmp_path / "data", "parted", producers)


@pytest.mark.guarantee("G2")
@pytest.mark.parametrize(("races", "rivals"), [(200, 2), (20, 3)])
def test_every_race_for_one_slot_has_one_winner_who_is_named(
    nursery: Nursery, tmp_path: Path, races: int, rivals: int
) -> None:
    slot = tmp_path / "sf" / "app"
    with NursedServer(nursery, tmp_path / "data") as server, ExitStack() as stack:
        children, orders = [], []
        for rival in range(rivals):
            os.mkfifo(pipe := tmp_path / f"orders-{rival}")
            children.append(
                nursery.start("tests.e2e.rival_process:main", str(pipe), conf_of(server.port, tmp_path), "races")
            )
            orders.append(stack.enter_context(pipe.open("w", encoding="utf-8", buffering=1)))
        pids = [child.pid for child in children]
        for race in range(races):
            for pipe_end in orders:
                pipe_end.write(f"race {race}\n")
            said = [child.output.readline().split() for child in children]
            assert [words[0] for words in said].count("won") == 1, said
            assert all(words[1] in {str(pid) for pid in pids} for words in said if words[0] == "lost") or race == 0
            winner = pids[[words[0] for words in said].index("won")]
            with pytest.raises(Locked) as caught:
                Slot.open(slot, filesystem=LocalFilesystem(), clock=SystemClock())
            assert caught.value.holder_pid == winner
            for pipe_end in orders:
                pipe_end.write("end\n")
            assert sorted(child.output.readline() for child in children)[0] == "closed\n"
        stack.close()
        assert [child.wait() for child in children] == [0] * rivals
        for child in children:
            child.output.close()
        server.terminate()
    with Store.open(tmp_path / "data") as store:
        assert [n for batch in store.read("races") for n in batch.column("n").to_pylist()] == list(range(races))


def test_slots_of_dead_producers_are_drained_as_orphans(nursery: Nursery, tmp_path: Path) -> None:
    producers = []
    port = free_port()
    for run in range(3):  # nobody listens, so everything stays in the slots
        with Producer(nursery, conf_of(port, tmp_path, sender_id=f"dead-{run}"), "orphans", run) as producer:
            producers.append(producer)
            producer.until(30)
            producer.kill()
    (tmp_path / "sf" / "dead-2" / ".failed").write_text("left to a person")
    with ServedProcess(tmp_path / "data", port=port) as served:
        conf = f"ws::addr=127.0.0.1:{port};sf_dir={tmp_path / 'sf'};sender_id=alive;drain_orphans=on;"
        with Sender.from_conf(conf) as sender:
            assert sender._orphans is not None
            for thread in sender._orphans._threads:
                thread.join(PATIENCE_S)
            statistics = sender.statistics()
            assert statistics.total_background_drainers_succeeded == 2
            assert statistics.total_background_drainers_failed == 0
            assert statistics.active_background_drainers == 0
        assert served.terminate() == 0
    check(tmp_path / "data", "orphans", producers[:2], in_turns=False)
    for run, left in ((0, False), (1, False), (2, True)):
        assert bool(list((tmp_path / "sf" / f"dead-{run}").glob("*.sfa"))) is left


def test_second_server_takes_over_when_the_first_is_killed(nursery: Nursery, tmp_path: Path) -> None:
    with ServedProcess(tmp_path / "one") as first, ServedProcess(tmp_path / "two") as second:
        conf = f"ws::addr=127.0.0.1:{first.port},127.0.0.1:{second.port};sf_dir={tmp_path / 'sf'};{FAST}"
        with Producer(nursery, conf, "over", 0) as producer:
            producer.until(200)
            first.kill()
            producer.more(200)
            producer.kill()
        drain(conf)
        second.kill()
    one, two = (sorted(int(str(n)) for n in served.rows("over", "n")) for served in (first, second))
    assert len(set(one)) == len(one)
    assert len(set(two)) == len(two)
    everything = set(one) | set(two)
    assert everything == set(range(len(everything)))
    assert len(everything) > producer.published
