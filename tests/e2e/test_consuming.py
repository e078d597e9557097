"""Consumers against a real server: kills of both, a pool of workers, `holdfast tail`. Process death, not power loss."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from examples import worker_pool
from holdfast import Consumer, Sender
from holdfast.errors import NotConfirmed, SubscriptionRefused
from tests.e2e.served import PATIENCE_S, ServedProcess, free_port

HOLDFAST = str(Path(sys.executable).with_name("holdfast"))
READER = """
import sys
from holdfast import Consumer
with Consumer.from_conf(sys.argv[1], channel="trades", durable="reader", max_inflight=50, batch_rows=10) as consumer:
    for message in consumer:
        print(message.data["n"], flush=True)
        message.ack()
"""


@pytest.fixture
def server(tmp_path: Path) -> Iterator[ServedProcess]:
    found = ServedProcess(tmp_path / "data", port=free_port()).start()
    yield found
    found.kill()


def conf(server: ServedProcess) -> str:
    return f"ws::addr=127.0.0.1:{server.port};reconnect_initial_backoff_millis=10;reconnect_max_backoff_millis=200;"


def send(server: ServedProcess, first: int, last: int) -> None:
    with Sender.from_conf(conf(server)) as sender:
        for start in range(first, last + 1, 20):
            sender.send("trades", [{"n": number} for number in range(start, min(start + 20, last + 1))])
            sender.flush()
        assert sender.drain(PATIENCE_S)


@pytest.mark.guarantee("G6")
def test_server_killed_under_a_consumer_costs_no_message(server: ServedProcess) -> None:
    send(server, 1, 500)
    seen: list[int] = []
    with Consumer.from_conf(conf(server), channel="trades", durable="reader") as consumer:
        for message in consumer.fetch(200, PATIENCE_S):
            seen.append(message.data["n"])
            message.ack_sync()
        server.kill()
        server.start()
        send(server, 501, 600)
        while len(set(seen)) < 600:
            following = consumer.next(PATIENCE_S)
            assert following is not None, f"{len(set(seen))} of 600 came"
            seen.append(following.data["n"])
            try:
                following.ack()
            except NotConfirmed:
                continue  # it comes again
    assert set(seen) == set(range(1, 601))
    assert not set(seen[:200]) & set(seen[200:]), "a message that was confirmed came again"


@pytest.mark.guarantee("G6")
def test_ack_of_a_message_that_another_holds_is_not_confirmed(server: ServedProcess) -> None:
    send(server, 1, 1)
    keys: dict[str, Any] = {"channel": "trades", "durable": "reader", "group": "pool"}
    with Consumer.from_conf(conf(server), **keys, ack_wait=0.2) as slow:
        late = slow.next(PATIENCE_S)
        with Consumer.from_conf(conf(server), **keys) as quick:
            again = quick.next(PATIENCE_S)  # when the time of the slow one is over
            assert late is not None
            assert again is not None
            with pytest.raises(NotConfirmed, match="1 of the messages are not held by this consumer any more"):
                late.ack_sync()
            again.ack_sync()
            again.ack_sync()  # it is confirmed, however often that is said
            late.ack_sync()


def test_reset_on_a_live_server_brings_a_connected_consumer_to_the_new_place(server: ServedProcess) -> None:
    send(server, 1, 100)
    reset = [HOLDFAST, "subscribers", "reset", "reader", "--addr", server.admin, "--yes", "--json"]
    with Consumer.from_conf(conf(server), channel="trades", durable="reader", max_inflight=80) as consumer:
        for message in consumer.fetch(60, PATIENCE_S):
            message.ack_sync()
        done = subprocess.run([*reset, "--to", "seq:31"], capture_output=True, text=True, check=True)
        (move,) = json.loads(done.stdout)["result"]["channels"]
        assert (move["mark_before"], move["mark"], move["again"], move["owed"]) == (60, 30, 30, 70)
        seen: list[int] = []
        while 100 not in seen:
            following = consumer.next(PATIENCE_S)
            assert following is not None
            try:
                following.ack_sync()
                seen.append(following.seq)
            except NotConfirmed:
                continue  # held from before the reset
        assert seen[-70:] == list(range(31, 101))
    unknown = [*reset[:3], "nobody", *reset[4:], "--to", "first"]
    refused = subprocess.run(unknown, capture_output=True, text=True, check=False)
    assert refused.returncode == 2
    assert "nobody" in refused.stdout


@pytest.mark.guarantee("G6")
def test_consumer_killed_again_and_again_costs_no_message(server: ServedProcess) -> None:
    send(server, 1, 1000)
    seen: list[int] = []
    for kills in range(4):
        command = [sys.executable, "-c", READER, conf(server)]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as reader:
            assert reader.stdout is not None
            for line in reader.stdout:
                seen.append(int(line))
                if len(set(seen)) == 1000 or (kills < 3 and len(seen) % 230 == 0):
                    break
            reader.kill()
            seen += [int(line) for line in reader.stdout if line.endswith("\n")]
        assert reader.returncode == -signal.SIGKILL
    assert set(seen) == set(range(1, 1001))
    repeated = len(seen) - 1000
    assert repeated <= 3 * 50, "only what was in flight at a kill may come again"


def test_pool_of_workers_divides_the_messages(server: ServedProcess, capfd: pytest.CaptureFixture[str]) -> None:
    """The example "worker_pool.py"."""
    send(server, 1, 40)
    assert worker_pool.main(conf(server), "trades", limit=40) == 40
    lines = capfd.readouterr().out.splitlines()
    assert {json.loads(line.partition(": ")[2].replace("'", '"'))["n"] for line in lines} == set(range(1, 41))


def tail(server: ServedProcess, *options: str) -> list[dict[str, int]]:
    command = [HOLDFAST, "tail", "trades", "--conf", conf(server), *options]
    done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE_S, check=True)
    return [json.loads(line) for line in done.stdout.splitlines()]


def test_tail_prints_from_a_position_and_stops_at_its_limit(server: ServedProcess) -> None:
    send(server, 1, 30)
    assert [row["n"] for row in tail(server, "--from", "first", "--limit", "5")] == [1, 2, 3, 4, 5]
    assert [row["n"] for row in tail(server, "--from", "seq:28", "--limit", "3")] == [28, 29, 30]
    assert [row["n"] for row in tail(server, "--from", "last", "--limit", "1")] == [30]


def test_tail_with_a_name_goes_on_where_it_was(server: ServedProcess) -> None:
    send(server, 1, 30)
    assert [row["n"] for row in tail(server, "--durable", "audit", "--limit", "12")] == list(range(1, 13))
    assert [row["n"] for row in tail(server, "--durable", "audit", "--limit", "18", "--meta")] == list(range(13, 31))
    assert tail(server, "--durable", "audit", "--timeout", "0.5") == []


def test_position_that_is_none_is_refused_with_what_is_allowed(server: ServedProcess) -> None:
    command = [HOLDFAST, "tail", "trades", "--conf", conf(server), "--from", "yesterday"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE_S, check=False)
    assert done.returncode == 2
    assert "seq:N" in done.stderr


def test_durable_has_one_consumer_unless_it_is_replaced(server: ServedProcess) -> None:
    send(server, 1, 3)
    with Consumer.from_conf(conf(server), channel="trades", durable="one") as first:
        assert first.next(PATIENCE_S) is not None
        with Consumer.from_conf(conf(server), channel="trades", durable="one", replace=True) as second:
            message = second.next(PATIENCE_S)
            assert message is not None
            assert message.data == {"n": 1}
            with pytest.raises(SubscriptionRefused, match="in_use"):
                list(first)


def test_subscribers_of_a_live_server_are_listed_shown_and_removed(server: ServedProcess) -> None:
    send(server, 1, 3)
    there = ["--addr", server.admin, "--json"]

    def ask(*words: str) -> Any:
        done = subprocess.run([HOLDFAST, "subscribers", *words, *there], capture_output=True, text=True, check=False)
        return json.loads(done.stdout)

    with Consumer.from_conf(conf(server), channel="trades", durable="reader") as consumer:
        message = consumer.next(PATIENCE_S)
        assert message is not None
        message.ack_sync()
        listed = {item["name"]: item["events"] for item in ask("ls")["result"]["subscribers"]}
        assert listed == {"reader": 2}
        shown = ask("show", "reader")["result"]
        assert (shown["subscriber"]["channels"][0]["mark"], shown["losses"]) == (1, [])
        removed = ask("rm", "reader")["result"]
        assert (removed["owed_events"], removed["owed_by_channel"]) == (2, {"trades": 2})
        send(server, 4, 4)
        for again in consumer:  # whoever consumes by the name begins anew
            if again.data["n"] == 4:
                break
        assert [item["name"] for item in ask("ls")["result"]["subscribers"]] == ["reader"]
    assert "there is no subscriber 'nobody'" in ask("show", "nobody")["error"]["message"]
