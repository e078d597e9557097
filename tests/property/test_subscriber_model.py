"""A store with subscribers against a model of some lines: any order of publishing, answers, retention and restarts.

The model knows sets of integers. What it checks after every step: marks and gap sets are those of the sets, leases that
are out never overlap and hold only what is owed, segments are there exactly while somebody is owed a part of them, and
every event is confirmed once, dropped once, or still owed. Losses are added up over all restarts.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from holdfast.store.subscribers.progress import Outcome
from holdfast.store.subscribers.subscriber import Lease, Subscriber
from tests.unit.store.subscribers.small_store import Bench, batch

NAMES = ("one", "two", "three")
CHANNELS = ("a", "b")


class Reader:
    """What one subscriber must look like."""

    def __init__(self, starts: dict[str, int]) -> None:
        self.start = starts
        self.done: dict[str, set[int]] = {channel: set() for channel in CHANNELS}
        self.dropped: dict[str, set[int]] = {channel: set() for channel in CHANNELS}
        self.leases: list[Lease] = []
        self.events: dict[Outcome, int] = dict.fromkeys(Outcome, 0)

    def owed(self, channel: str, last: int) -> set[int]:
        """What it still has to do."""
        settled = self.done[channel] | self.dropped[channel]
        return set(range(self.start.get(channel, 1), last + 1)) - settled


class SubscriberMachine(RuleBasedStateMachine):
    """Steps in any order."""

    @initialize(limit=st.sampled_from([0, 12]))
    def open(self, limit: int) -> None:
        """A store of two channels; one may have a limit."""
        self.bench = Bench(
            lease_timeout="30s", ack__checkpoint_records=5, ack__rotation_size="4KiB", retention__tick="1h",
            channels={"b": {"max_msgs": limit, "file_slice_max_msgs": 1000}},
        )  # fmt: skip
        self.limit = {"a": 0, "b": limit}
        self.last = dict.fromkeys(CHANNELS, 0)
        self.segments: dict[str, list[tuple[int, int]]] = {channel: [] for channel in CHANNELS}
        self.floor = dict.fromkeys(CHANNELS, 1)
        self.readers: dict[str, Reader] = {}
        self.handles: dict[str, Subscriber] = {}
        self.losses: Counter[tuple[str, str]] = Counter()

    # -- steps ------------------------------------------------------------------------------------------------------

    @rule(channel=st.sampled_from(CHANNELS), events=st.integers(1, 7))
    def publish(self, channel: str, events: int) -> None:
        """One more segment."""
        self.bench.store.commit(channel, batch(events))
        self.bench.store.flush()
        self.segments[channel].append((self.last[channel] + 1, self.last[channel] + events))
        self.last[channel] += events

    @rule(name=st.sampled_from(NAMES), start=st.sampled_from(["first", "new", 3]))
    def register(self, name: str, start: str | int) -> None:
        """Who is registered keeps its place."""
        self.handles[name] = self.bench.store.subscriber(name, ["*"], start=start)
        if name not in self.readers:
            self.readers[name] = Reader({})
            for channel in CHANNELS:
                self.join(name, channel, start)

    def join(self, name: str, channel: str, start: str | int) -> None:
        """Follow a channel that exists from a position on."""
        if self.last[channel]:
            reader = self.readers[name]
            there = {seq for first, last in self.segments[channel] for seq in range(first, last + 1)}
            there -= set(range(1, self.floor[channel]))
            reader.start[channel] = self.first_owed(channel, start)
            reader.dropped[channel] = set(range(1, self.last[channel] + 1)) - there

    @rule(name=st.sampled_from(NAMES), channel=st.sampled_from(CHANNELS), start=st.sampled_from(["first", "new", 3]))
    def start_over(self, name: str, channel: str, start: str | int) -> None:
        """Let go of a channel and come back to it: what was answered before counts no longer."""
        if name not in self.readers:
            return
        reader = self.readers[name]
        self.bench.store.subscriber(name, [other for other in CHANNELS if other != channel])
        self.handles[name] = self.bench.store.subscriber(name, ["*"], start=start)
        reader.leases = [lease for lease in reader.leases if lease.channel != channel]
        reader.done[channel] = set()
        self.join(name, channel, start)

    def first_owed(self, channel: str, start: str | int) -> int:
        """A start position, clamped."""
        if start == "new":
            return self.last[channel] + 1
        there = [max(first, self.floor[channel]) for first, _ in self.segments[channel]]
        lowest = min(there, default=self.last[channel] + 1)
        return lowest if start == "first" else min(max(lowest, int(start)), self.last[channel] + 1)

    @rule(name=st.sampled_from(NAMES))
    def deregister(self, name: str) -> None:
        """It is owed nothing any more."""
        if name in self.readers:
            owed = sum(len(self.readers[name].owed(channel, self.last[channel])) for channel in CHANNELS)
            assert self.bench.store.deregister(name) == owed
            del self.readers[name], self.handles[name]

    @rule(name=st.sampled_from(NAMES), max_bytes=st.sampled_from([None, 1, 2000]))
    def poll(self, name: str, max_bytes: int | None) -> None:
        """Take what is free."""
        if name not in self.handles:
            return
        reader = self.readers[name]
        lease = self.handles[name].poll(0.0, max_bytes=max_bytes)
        if lease is None:
            held = {(lease.channel, seq) for lease in reader.leases for seq in seqs(lease)}
            free = {(channel, seq) for channel in CHANNELS for seq in reader.owed(channel, self.last[channel])} - held
            assert not free, f"{free} is owed, and not handed out"
            return
        assert seqs(lease) <= reader.owed(lease.channel, self.last[lease.channel])
        for other in reader.leases:
            assert other.channel != lease.channel or not seqs(other) & seqs(lease)
        reader.leases.append(lease)

    @precondition(lambda self: any(reader.leases for reader in self.readers.values()))
    @rule(answer=st.sampled_from(["ack", "nack", "reject", "drop"]), which=st.integers(0, 100))
    def answer(self, answer: str, which: int) -> None:
        """Answer some lease."""
        names = [name for name in NAMES if name in self.readers and self.readers[name].leases]
        reader = self.readers[names[which % len(names)]]
        lease = reader.leases.pop(which % len(reader.leases))
        owed = seqs(lease) & reader.owed(lease.channel, self.last[lease.channel])
        if answer in ("ack", "reject"):
            lease.ack() if answer == "ack" else lease.reject("bad")
            reader.done[lease.channel] |= owed
            reader.events[Outcome.ACK if answer == "ack" else Outcome.REJECTED] += len(owed)
        elif answer == "nack":
            lease.nack()
            reader.events[Outcome.NACK] += len(owed)

    @rule(name=st.sampled_from(NAMES), channel=st.sampled_from(CHANNELS), data=st.data())
    def ack_range(self, name: str, channel: str, data: st.DataObject) -> None:
        """Confirm any range, leased or not."""
        if name not in self.handles or not self.last[channel]:
            return
        first = data.draw(st.integers(1, self.last[channel]))
        last = data.draw(st.integers(first, min(first + 5, self.last[channel])))
        self.handles[name].ack(channel, first, last)
        reader = self.readers[name]
        fresh = set(range(first, last + 1)) & reader.owed(channel, self.last[channel])
        reader.done[channel] |= fresh
        reader.events[Outcome.ACK] += len(fresh)

    @rule()
    def tick(self) -> None:
        """Retention looks."""
        self.bench.store._keeper.tick()
        for channel in CHANNELS:
            self.evict_confirmed(channel)
            self.enforce_limit(channel)

    def evict_confirmed(self, channel: str) -> None:
        """What nobody is owed goes, if anybody reads."""
        if self.readers:
            owed = set().union(*(reader.owed(channel, self.last[channel]) for reader in self.readers.values()))
            self.segments[channel] = [
                (first, last) for first, last in self.segments[channel] if owed & set(range(first, last + 1))
            ]

    def enforce_limit(self, channel: str) -> None:
        """As many of the oldest as are too many."""
        there = sorted(seq for first, last in self.segments[channel] for seq in range(first, last + 1))
        there = [seq for seq in there if seq >= self.floor[channel]]
        if not self.limit[channel] or len(there) <= self.limit[channel]:
            return
        self.floor[channel] = there[len(there) - self.limit[channel]]
        below = set(range(1, self.floor[channel]))
        lost_by_any = set(there) & below if not self.readers else set()
        for name, reader in self.readers.items():
            lost = below & reader.owed(channel, self.last[channel])
            reader.dropped[channel] |= lost
            self.losses[channel, name] += len(lost)
            lost_by_any |= lost
        self.losses[channel, ""] += len(lost_by_any)
        self.segments[channel] = [span for span in self.segments[channel] if span[1] >= self.floor[channel]]

    @rule(seed=st.integers(0, 5), orderly=st.booleans())
    def restart(self, seed: int, orderly: bool) -> None:
        """In order or by power loss; leases are gone either way, answers are not."""
        if orderly:
            self.bench.store.close()
            self.tick_model_of_a_start()
            self.bench.open()
        else:
            self.tick_model_of_a_start()
            self.bench.lose_power(seed=seed)
        self.handles = {name: self.bench.store.subscriber(name, ["*"]) for name in self.readers}
        for reader in self.readers.values():
            reader.leases.clear()
            reader.events = dict.fromkeys(Outcome, 0)

    def tick_model_of_a_start(self) -> None:
        """A start looks at retention at once."""
        for channel in CHANNELS:
            self.evict_confirmed(channel)
            self.enforce_limit(channel)

    @rule()
    def let_leases_expire(self) -> None:
        """Time passes, but not enough for retention to look by itself."""
        self.bench.clock.advance(31)
        for reader in self.readers.values():
            reader.leases.clear()

    # -- what must hold -----------------------------------------------------------------------------------------------

    @invariant()
    def marks_and_gaps_are_those_of_the_sets(self) -> None:
        """For every subscriber and channel."""
        for name, reader in self.readers.items():
            lags = {item.channel: item for item in self.handles[name].lag()}
            for channel in CHANNELS:
                if not self.last[channel]:
                    continue
                start = reader.start.get(channel, 1)
                settled = {seq for seq in reader.done[channel] | reader.dropped[channel] if seq >= start}
                mark = next(seq for seq in range(start, self.last[channel] + 2) if seq not in settled) - 1
                assert lags[channel].mark == mark
                gaps = {seq for first, last in lags[channel].gaps for seq in range(first, last + 1)}
                assert gaps == set(range(mark + 1, max(settled, default=0))) - settled
                assert lags[channel].events == len(reader.owed(channel, self.last[channel]))

    @invariant()
    def readers_see_what_is_there_and_not_below_the_floor(self) -> None:
        """Segments that retention has not looked at yet may be there beyond that."""
        for channel in CHANNELS:
            if self.last[channel]:
                found = set(read(self.bench, channel))
                there = {seq for first, last in self.segments[channel] for seq in range(first, last + 1)}
                assert {seq for seq in there if seq >= self.floor[channel]} <= found
                assert all(seq >= self.floor[channel] for seq in found)

    @invariant()
    def outcomes_are_counted_once_per_event(self) -> None:
        """Since the store was opened."""
        for shown in self.bench.store.subscribers():
            expected = self.readers[shown.name].events
            counted = {name: count for name, count in shown.outcomes.items() if name != "dropped"}
            answers = (Outcome.ACK, Outcome.NACK, Outcome.REJECTED)
            assert counted == {item.name.lower(): expected[item] for item in answers}

    @invariant()
    def losses_are_counted_once_over_all_time(self) -> None:
        """Per channel and subscriber, and once for the channel."""
        counted = {(loss.channel, loss.subscriber): loss.events for loss in self.bench.store.losses()}
        assert counted == dict(+self.losses)

    def teardown(self) -> None:
        """Nothing to close: the disk is in memory."""


def seqs(lease: Lease) -> set[int]:
    """The events a lease stands for."""
    return set(range(lease.first_seq, lease.last_seq + 1))


def read(bench: Bench, channel: str) -> Iterator[int]:
    """What a plain reader sees."""
    for part in bench.store.read(channel, system=("_seq",)):
        yield from part.column("_seq").to_pylist()


TestSubscriberMachine = SubscriberMachine.TestCase
TestSubscriberMachine.settings = settings(settings.default, stateful_step_count=40)
