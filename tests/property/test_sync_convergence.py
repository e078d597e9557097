"""Whatever the order of submissions, commits, pages, broadcasts, stalls and kills: all clients end with the same log.

The sessions, the hub and the writer are the real ones; time and threads are the schedule that hypothesis draws.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.sync.hub import Hub
from holdfast.wire.sync import Session
from tests.unit.sync.world import Wire, World, camel, project_event, seed, seed_event

CLIENTS = 3


class Client:
    """A client that behaves as the protocol asks: it keeps events, a cursor and its drafts; it resends drafts."""

    def __init__(self, world: World, name: str, *, is_seed: bool, partitions: tuple[str, ...]) -> None:
        self.world = world
        self.name = name
        self.is_seed = is_seed
        self.partitions = partitions
        self.committed: dict[str, int] = {}
        self.cursor = 0
        self.drafts: dict[str, dict[str, Any]] = {}
        self.acknowledged: dict[str, int] = {}
        self.wire: Wire | None = None
        self.is_synced = False
        self.received: list[tuple[str, int]] = []
        self.made = 0
        self.is_stalled = False

    def connect(self) -> None:
        self.wire = self.world.connect()
        self.is_synced = self.is_stalled = False
        self.received = []
        if self.is_seed:
            self._say(seed("connect", token="t", client_id=self.name, last_committed_id=self.cursor))
        else:
            self._say(camel("connect", token="t", clientId=self.name, projectId="p"))

    def sync(self, since: int) -> None:
        if self.is_seed:
            self._say(seed("sync", partitions=list(self.partitions), since_committed_id=since, limit=50))
        else:
            self._say(camel("sync", projectId="p", sinceCommittedId=since, limit=1))

    def draft(self) -> None:
        self.made += 1
        event_id = f"{self.name}-{self.made}"
        partitions = self.partitions[: 1 + self.made % len(self.partitions)]
        event = seed_event(event_id, *partitions) if self.is_seed else project_event(event_id, client=self.name)
        self.drafts[event_id] = event
        if self.is_synced:
            self._say(self._submission([event]))

    def _submission(self, events: list[dict[str, Any]]) -> dict[str, Any]:
        return seed("submit_events", events=events) if self.is_seed else camel("submit_events", events=events)

    def stall(self, hub: Hub, session: Session) -> None:
        self.is_stalled = True
        hub.blocked(session)

    def unstall(self, hub: Hub, session: Session) -> None:
        self.is_stalled = False
        hub.unblocked(session)

    def _say(self, message: dict[str, Any]) -> None:
        assert self.wire is not None
        if not self.wire.closed:
            self.world.say(self.wire, message)

    @property
    def is_connected(self) -> bool:
        return self.wire is not None and not self.wire.closed

    def hear(self) -> bool:
        """Take one message of the server."""
        if self.wire is None or not self.wire.sent:
            return False
        message = self.wire.sent.popleft()
        payload = message["payload"]
        if message["type"] == "connected":
            self.sync(self.cursor)
        elif message["type"] == "sync_response":
            self._page(payload)
        elif message["type"] == "event_broadcast":
            self._event(payload)
        elif message["type"] == "submit_events_result":
            self._results(payload["results"])
        return True

    def _event(self, payload: dict[str, Any]) -> None:
        number = either(payload, "committed_id", "committedId")
        assert self.committed.setdefault(payload["id"], number) == number, "an id has one number for ever"
        self.received.append((payload["id"], number))
        self.drafts.pop(payload["id"], None)

    def _page(self, payload: dict[str, Any]) -> None:
        for event in payload["events"]:
            self._event(event)
        after = either(payload, "next_since_committed_id", "nextSinceCommittedId")
        self.cursor = max(self.cursor, after)
        if either(payload, "has_more", "hasMore"):
            self.sync(after)
            return
        self.is_synced = True
        if self.drafts:
            self._say(self._submission(list(self.drafts.values())[:50]))

    def _results(self, results: list[dict[str, Any]]) -> None:
        for result in results:
            assert result["status"] == "committed"
            number = either(result, "committed_id", "committedId")
            assert self.acknowledged.setdefault(result["id"], number) == number
            assert self.committed.setdefault(result["id"], number) == number
            self.drafts.pop(result["id"], None)


class Schedule:
    """Turns numbers into what happens next."""

    def __init__(self, *, is_seed: bool, recent_bytes: int, step: int) -> None:
        self.world = World(recent_bytes=recent_bytes, step=step)
        scopes = (("P1", "P2"), ("P2",), ("P1",))
        self.clients = [
            Client(self.world, f"c{place}", is_seed=is_seed, partitions=scopes[place]) for place in range(CLIENTS)
        ]

    def act(self, number: int) -> None:
        """Do one of the things that can happen now."""
        choices = [step for client in self.clients for step in self._of_client(client)]
        if self.world.hub.has_work and self.world.taken is None:
            choices += [self.world.begin_commit] * 4
        if self.world.taken is not None:
            choices += [self.world.end_commit] * 4
        if self.world.reads:
            choices += [self.world.answer_read] * 4
        if number % 40 == 0:
            choices = [lambda: self.world.kill(commits=number % 80 == 0)]
        choices[number % len(choices)]()

    def _of_client(self, client: Client) -> list[Callable[[], object]]:
        wire = client.wire
        if wire is None or wire.closed:
            return [client.connect, client.connect, client.draft]
        hub, session = self.world.hub, wire.session
        steps: list[Callable[[], object]] = [client.draft, client.draft]
        if wire.sent:
            steps += [client.hear] * 4
        if client.is_stalled:
            steps.append(lambda: client.unstall(hub, session))
        else:
            steps.append(lambda: client.stall(hub, session))
        if client.made % 4 == 3:
            steps.append(lambda: self.world.hang_up(wire))
        return steps

    def quiesce(self) -> None:
        """Nothing new happens; what is under way ends. Connections that stand are not replaced."""
        for client in self.clients:
            if not client.is_connected:
                client.connect()
            elif client.wire is not None:
                client.unstall(self.world.hub, client.wire.session)
        moved = True
        while moved:
            self.world.settle()
            moved = any([client.hear() for client in self.clients])


def either(payload: dict[str, Any], snake: str, camel_case: str) -> Any:
    """A member, however its dialect spells it."""
    return payload[snake] if snake in payload else payload[camel_case]


def scopes_of(client: Client) -> set[str]:
    return set(client.partitions) if client.is_seed else {"project:p"}


@pytest.mark.guarantee("G3")
@pytest.mark.guarantee("G4")
@pytest.mark.parametrize("is_seed", [True, False], ids=["seed", "projects"])
@given(
    numbers=st.lists(st.integers(0, 10_000), max_size=150),
    recent_bytes=st.sampled_from([1, 2000, 1 << 20]),
    step=st.sampled_from([1, 3]),
)
def test_any_interleaving_ends_with_equal_logs(is_seed: bool, numbers: list[int], recent_bytes: int, step: int) -> None:
    schedule = Schedule(is_seed=is_seed, recent_bytes=recent_bytes, step=step)
    for number in numbers:
        schedule.act(number)
    schedule.quiesce()
    log = schedule.world.log.events
    assert len({event.id for event in log}) == len(log), "no id is committed twice"
    for client in schedule.clients:
        assert not client.drafts
        mine = {event.id: event.committed_id for event in log if scopes_of(client) & set(event.scopes)}
        assert client.committed == mine
        assert mine.items() >= client.acknowledged.items()


@pytest.mark.parametrize("is_seed", [True, False], ids=["seed", "projects"])
@given(
    numbers=st.lists(st.integers(0, 10_000), max_size=150),
    recent_bytes=st.sampled_from([1, 2000, 1 << 20]),
)
def test_one_connection_gets_an_event_of_others_only_once(is_seed: bool, numbers: list[int], recent_bytes: int) -> None:
    schedule = Schedule(is_seed=is_seed, recent_bytes=recent_bytes, step=1)
    for number in numbers:
        schedule.act(number)
    schedule.quiesce()
    for client in schedule.clients:
        others = [event_id for event_id, _ in client.received if not event_id.startswith(client.name)]
        assert len(others) == len(set(others))
        in_order = [number for event_id, number in client.received if not event_id.startswith(client.name)]
        assert in_order == sorted(in_order)
