"""Genuine clients of `insieme` 2.1.0 and 1.3.0 against a real server process."""

from __future__ import annotations

import json
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.conformance.insieme_agent import PACKAGES, Agent, Client, needs_node, plain
from tests.e2e.served import ServedProcess, free_port

pytestmark = [needs_node, pytest.mark.timeout(300)]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where the settings and schemas of servers are."""
    found = tmp_path_factory.mktemp("insieme")
    (found / "schemas").mkdir()
    (found / "schemas" / "item.created.json").write_text(json.dumps({"properties": {"n": {"type": "number"}}}))
    (found / "holdfast.yaml").write_text("sync: {validation: model, schemas: schemas}\n")
    return found


@pytest.fixture(scope="module")
def lasting(folder: Path) -> Iterator[ServedProcess]:
    """A server that lives as long as this module; tests have scopes of their own on it."""
    with ServedProcess(folder / "lasting", "-c", str(folder / "holdfast.yaml"), port=free_port()) as served:
        yield served


@pytest.fixture(scope="module", params=PACKAGES)
def shared(request: pytest.FixtureRequest, lasting: ServedProcess) -> Iterator[Agent]:
    with Agent(request.param, lasting.port) as started:
        yield started


@pytest.fixture
def agent(shared: Agent, request: pytest.FixtureRequest) -> Agent:
    """Clients of a scope that no other test uses."""
    shared.scope = request.node.name
    return shared


@pytest.fixture
def server(folder: Path, tmp_path: Path) -> Iterator[ServedProcess]:
    """A server of one test, which may kill it."""
    with ServedProcess(tmp_path / "data", "-c", str(folder / "holdfast.yaml"), port=free_port()) as served:
        yield served


@pytest.fixture(params=[PACKAGES[0], pytest.param(PACKAGES[1], marks=pytest.mark.long)])
def own(request: pytest.FixtureRequest, server: ServedProcess) -> Iterator[Agent]:
    with Agent(request.param, server.port) as started:
        yield started


def fill(client: Client, count: int, *, start: int = 0) -> None:
    for at in range(start, start + count, 200):
        client.submit(*(client.event(f"e{number}") for number in range(at, min(at + 200, start + count))))
    client.until(drafts=0)


def test_client_connects_submits_and_others_are_told(agent: Agent) -> None:
    one, two = agent.client("A"), agent.client("B")
    one.submit(one.event("e1", text="é", f=1.5), one.event("e2"))
    two.until(committed=2)
    one.until(drafts=0)
    assert one.committed() == two.committed()
    assert list(one.committed()) == ["e1", "e2"]
    assert next(event["payload"] for event in two.state()["committed"]) == {"n": 1, "text": "é", "f": 1.5}
    assert [plain(payload) for payload in two.seen("broadcast")] == ["e1", "e2"]
    assert one.seen("broadcast") == []
    assert not one.seen("error")


def test_other_projects_and_partitions_hear_nothing(agent: Agent) -> None:
    one, other = agent.client("A"), agent.client("B", scope=f"{agent.scope}-elsewhere")
    one.submit(one.event("e1"))
    one.until(drafts=0)
    other.submit(other.event("e2"))
    other.until(drafts=0)
    assert (list(one.committed()), list(other.committed())) == (["e1"], ["e2"])


def test_rejected_item_of_a_batch_does_not_stop_the_rest(agent: Agent) -> None:
    client, peer = agent.client("A"), agent.client("B")
    client.submit(client.event("e1"), client.event("bad", n="no number"), client.event("e3"), client.event("e4"))
    client.until(drafts=0, committed=3)
    peer.until(committed=3)
    assert list(client.committed()) == ["e1", "e3", "e4"] == list(peer.committed())
    (rejected,) = client.seen("rejected")
    assert (plain(rejected), rejected["reason"]) == ("bad", "validation_failed")
    assert rejected["errors"][0]["field"] == "payload.n"


def test_new_client_catches_up_over_many_pages(agent: Agent) -> None:
    writer = agent.client("A")
    fill(writer, 1300)
    late = agent.client("B")
    late.until(committed=1300)
    pages = late.received("sync_response")
    assert [len(page["events"]) for page in pages] == [500, 500, 300]
    assert len({page["syncToCommittedId"] for page in pages}) == 1
    assert late.committed() == writer.committed()


def test_what_is_committed_while_a_client_pages_reaches_it(agent: Agent) -> None:
    writer = agent.client("A")
    fill(writer, 1200)
    late = agent.client("B")
    for number in range(1200, 1400):
        writer.submit(writer.event(f"e{number}"))
    writer.until(drafts=0)
    late.until(committed=1400)
    assert late.committed() == writer.committed()
    assert [message for message in late.seen("error")] == []
    broadcasts = [event["id"] for event in late.received("event_broadcast")]
    paged = [event["id"] for page in late.received("sync_response") for event in page["events"]]
    assert len(broadcasts) == len(set(broadcasts))
    assert not set(broadcasts) & set(paged)


def test_drafts_made_offline_are_committed_after_a_reconnect(own: Agent, server: ServedProcess) -> None:
    client, peer = own.client("A"), own.client("B")
    client.submit(client.event("e1"))
    client.until(drafts=0)
    server.terminate()
    client.submit(client.event("e2"), client.event("e3"))
    server.start()
    client.until(drafts=0, committed=3)
    peer.until(committed=3)
    assert client.committed() == peer.committed()
    assert list(client.committed()) == ["e1", "e2", "e3"]


def test_same_event_sent_again_keeps_its_number(own: Agent, server: ServedProcess) -> None:
    client = own.client("A", clock=1_700_000_000_000.25)
    client.submit(client.event("e1"))
    client.until(drafts=0)
    server.kill()
    server.start()
    twin = own.client("A2", clientId="A", clock=1_700_000_000_000.25)
    twin.until(committed=1)
    assert twin.committed() == client.committed()
    wiped = own.client("A3", clientId="A", clock=1_700_000_000_000.25)
    wiped.submit(wiped.event("e1"))
    wiped.until(drafts=0)
    assert wiped.committed() == client.committed()
    assert not wiped.seen("rejected")


def test_wiped_client_gets_everything_again(own: Agent, server: ServedProcess) -> None:
    client = own.client("A")
    fill(client, 700)
    before = client.committed()
    client.stop()
    server.terminate()
    server.start()
    wiped = own.client("A")
    wiped.until(committed=700)
    assert wiped.committed() == before
    assert not wiped.seen("error")


def test_client_compares_its_own_events_with_what_comes_back(agent: Agent) -> None:
    client = agent.client("A", clock=1_700_000_000_000.0625)
    client.submit(client.event("e1", text="\u2028 \U0001f600", f=0.1, big=2**53))
    client.until(drafts=0)
    client.sync(0)
    client.submit(client.event("e2"))
    client.until(drafts=0, committed=2)
    assert not client.seen("error")
    assert len(client.received("sync_response")) == 2


@pytest.mark.guarantee("G1")
@pytest.mark.guarantee("G3")
def test_kills_under_load_lose_and_renumber_nothing(own: Agent, server: ServedProcess) -> None:
    clients = [own.client(name) for name in "ABC"]
    made = 0
    for _ in range(2):
        for _ in range(10):
            for client in clients:
                client.submit(*(client.event(f"{client.name}{made + offset}") for offset in range(5)))
            made += 5
        server.signal(signal.SIGKILL)
        server.wait()
        acknowledged = {
            plain(result): result["committedId"] for client in clients for result in client.seen("committed")
        }
        server.start()
        for client in clients:
            client.until(drafts=0, committed=3 * made)
        assert clients[0].committed().items() >= acknowledged.items()
    logs = [client.committed() for client in clients]
    assert logs[0] == logs[1] == logs[2]
    assert set(logs[0]) == {f"{name}{number}" for name in "ABC" for number in range(made)}
    server.terminate()
    stored = [str(event_id).rpartition("/")[2] for event_id in server.rows("sync", "id")]
    assert stored == sorted(logs[0], key=logs[0].__getitem__)
