"""Answers and losses of one group, in any order and decided too early or in time: each event is counted once.

An answer names what was owed when its caller asked. By the time it is written others may have settled some of that. The
log's order decides, and a replay of the log counts the same.
"""

from __future__ import annotations

from concurrent.futures import Future

from hypothesis import given
from hypothesis import strategies as st

from holdfast.store.subscribers.acklog import Decision, OutcomeRecord, PendingOutcomes
from holdfast.store.subscribers.desk import Going, SubscriberDesk
from holdfast.store.subscribers.progress import Outcome
from tests.unit.store.subscribers.small_store import Bench, lag

EVENTS = 12
NAMES = ("one", "two")
Step = tuple[str, str, tuple[int, int]]

steps = st.lists(
    st.tuples(
        st.sampled_from(["ack", "rejected", "nack", "dropped", "told too late"]),
        st.sampled_from(NAMES),
        st.tuples(st.integers(1, EVENTS), st.integers(1, EVENTS)).map(lambda pair: (min(pair), max(pair))),
    ),
    max_size=12,
)


def pending(desk: SubscriberDesk, step: Step) -> PendingOutcomes:
    """The step as it waits for its turn; only a loss looks again when that comes."""
    kind, name, (first, last) = step
    channel = desk._channels.find("trades")
    if kind == "dropped":
        going = Going(first, last, 100 * (last - first + 1), 7)
        return PendingOutcomes(lambda: [desk._dropped(channel, going, "size")], True, Future())
    outcome = Outcome.DROPPED if kind == "told too late" else Outcome[kind.upper()]
    reason = "damage" if kind == "told too late" else ""
    number = desk.registry.find(name).note.subscriber_id
    line = OutcomeRecord(0, number, channel.id, outcome, 0, ((first, last),), reason)
    decision: Decision = [[line]]
    return PendingOutcomes(lambda: decision, False, Future())


class Model:
    """Sets of integers."""

    def __init__(self) -> None:
        self.owed = {name: set(range(1, EVENTS + 1)) for name in NAMES}
        self.outcomes = {name: dict.fromkeys(("ack", "nack", "dropped", "rejected"), 0) for name in NAMES}
        self.losses: dict[tuple[str, str], int] = {}

    def take(self, step: Step) -> None:
        """The step takes effect."""
        kind, name, (first, last) = step
        span = set(range(first, last + 1))
        if kind == "dropped":
            self._lose("", "size", span & (self.owed["one"] | self.owed["two"]))
            for each in NAMES:
                self._settle(each, "dropped", "size", span)
        elif kind == "told too late":
            self._settle(name, "dropped", "damage", span)
        elif kind == "nack":
            self.outcomes[name]["nack"] += len(span & self.owed[name])
        else:
            self._settle(name, kind, "", span)

    def _settle(self, name: str, kind: str, reason: str, span: set[int]) -> None:
        settled = span & self.owed[name]
        self.outcomes[name][kind] += len(settled)
        self.owed[name] -= settled
        if reason:
            self._lose(name, reason, settled)

    def _lose(self, name: str, reason: str, events: set[int]) -> None:
        if events:
            self.losses[name, reason] = self.losses.get((name, reason), 0) + len(events)


def counted(bench: Bench) -> dict[tuple[str, str], int]:
    """Events that the store counts as lost."""
    return {(loss.subscriber, loss.reason): loss.events for loss in bench.store.losses()}


@given(steps)
def test_each_event_of_a_group_is_counted_once_in_the_order_of_the_log(done: list[Step]) -> None:
    bench = Bench(retention__tick="1h")
    bench.publish(events=EVENTS)
    readers = [bench.store.subscriber(name, ["trades"]) for name in NAMES]
    desk, model = bench.store._desk, Model()
    for step in done:
        desk.writer.submit(pending(desk, step))
        model.take(step)
    desk.writer.step(wait=False)
    assert {shown.name: shown.outcomes for shown in bench.store.subscribers()} == model.outcomes
    assert counted(bench) == model.losses
    before = [lag(reader) for reader in readers], bench.store.losses()
    assert [item.events for item in before[0]] == [len(model.owed[name]) for name in sorted(NAMES)]
    store = bench.lose_power()
    after = [lag(store.subscriber(name, ["trades"])) for name in NAMES], store.losses()
    assert after == before
