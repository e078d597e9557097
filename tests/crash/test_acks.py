"""Power loss at every disk call of a workload with acks, nacks, rejections, drops, checkpoints and rotation.

These tests prove power loss: the crash disk drops, tears and reorders whatever was not synced. What is compared after
every cut (guarantees G6 and G7):

- an answer that was given is there: no event that was acked, rejected or dropped is handed out again;
- a mark never passes an event that was neither confirmed nor dropped, and is never behind where it was;
- a rejected event has its dead letter once;
- the totals of losses are those of the events that were dropped, counted once;
- the store goes on: what is left is handed out, acked, and deleted.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

import pytest

from holdfast import Store
from holdfast.store.subscribers.subscriber import Lease, Subscriber
from holdfast.testing import CrashFilesystem, ManualClock, PowerCut
from tests.crash.sweeps import every, flipped_bit
from tests.unit.store.subscribers.small_store import STORE, Bench, batch, lag, read_seqs, take

TINY: dict[str, object] = {
    "ack.checkpoint_records": 3,
    "ack.rotation_size": "4KiB",
    "channels": {"short": {"max_msgs": 12, "file_slice_max_msgs": 1000}},
}
REASON = "a reason so long that a few of them fill a file of the log " * 16
NAMES = ("fast", "slow", "odd")
CHANNELS = ("long", "short")


@dataclass
class Answers:
    """What was asked and what was answered, over any number of restarts."""

    settled: dict[tuple[str, str], set[int]] = field(default_factory=dict)
    """(subscriber, channel) to events whose ack or rejection has returned."""
    asked: dict[tuple[str, str], set[int]] = field(default_factory=dict)
    """The same with those that were asked for; they may have counted."""
    rejected: set[tuple[str, str, int]] = field(default_factory=set)
    marks: dict[tuple[str, str], int] = field(default_factory=dict)
    registered: set[str] = field(default_factory=set)
    removed: set[str] = field(default_factory=set)

    def copy(self) -> Answers:
        """The same history, to be continued in another way."""
        return Answers(
            {key: set(value) for key, value in self.settled.items()},
            {key: set(value) for key, value in self.asked.items()},
            set(self.rejected),
            dict(self.marks),
            set(self.registered),
            set(self.removed),
        )

    def answer(self, name: str, lease: Lease, how: str) -> None:
        """Answer a lease, and note both ends of the call."""
        key = (name, lease.channel)
        seqs = set(range(lease.first_seq, lease.last_seq + 1))
        if how == "nack":
            lease.nack()
            return
        self.asked.setdefault(key, set()).update(seqs)
        if how == "reject":
            self.rejected |= {(name, lease.channel, seq) for seq in seqs}
            lease.reject(REASON)
        else:
            lease.ack()
        self.settled.setdefault(key, set()).update(seqs)

    def note_marks(self, readers: dict[str, Subscriber]) -> None:
        """Remember how far everybody is."""
        for name, reader in readers.items():
            for item in reader.lag():
                key = (name, item.channel)
                assert item.mark >= self.marks.get(key, 0), f"the mark of {key} moved back"
                self.marks[key] = item.mark


def workload(bench: Bench, answers: Answers) -> Iterator[dict[str, Subscriber]]:
    """Two sessions; yields the subscribers after every step."""
    for session in range(2):
        if session:
            bench.open()
        readers = {}
        for name in NAMES if not session else NAMES[:2]:
            readers[name] = bench.store.subscriber(name, ["long", "short"], newest_first=name == "odd")
            answers.registered.add(name)
            yield readers
        for step in range(5):
            for channel in CHANNELS:
                bench.store.commit(channel, batch(4))
                bench.store.flush()
            for name, how in (("fast", "ack"), ("slow", "nack" if step % 2 else "ack"), ("odd", "reject")):
                lease = readers[name].poll(0.0) if name in readers else None
                if lease is not None:
                    answers.answer(name, lease, how)
                    yield readers
            for lease in list(readers["fast"].drain())[::-1]:  # out of order
                answers.answer("fast", lease, "ack")
            bench.tick()
            yield readers
        if not session:
            bench.store.deregister("odd")
            answers.removed.add("odd")
            readers.pop("odd")
            yield readers
        bench.store.close()


@cache
def calls_of_workload() -> int:
    """How many calls of the disk the undisturbed workload makes."""
    bench, answers = Bench(**TINY), Answers()
    for readers in workload(bench, answers):
        answers.note_marks(readers)
    return bench.disk.calls


def cut_at(call: int) -> tuple[CrashFilesystem, ManualClock, Answers]:
    """The dead disk and the history of a workload whose power went at that call."""
    bench, answers = Bench.__new__(Bench), Answers()
    bench.disk, bench.clock, bench.settings = CrashFilesystem(), ManualClock(), dict(TINY)
    bench.disk.cut_at(call)
    try:
        bench.open()
        for readers in workload(bench, answers):
            answers.note_marks(readers)
    except PowerCut:
        return bench.disk, bench.clock, answers
    raise AssertionError(f"the workload ended before call {call}")


def recover(disk: CrashFilesystem, clock: ManualClock) -> Bench:
    """Open what is left."""
    bench = Bench.__new__(Bench)
    bench.disk, bench.clock, bench.settings = disk, clock, dict(TINY)
    bench.open()
    return bench


def check(bench: Bench, answers: Answers) -> None:
    """Compare the store with the history."""
    store = bench.store
    names = {item.name for item in store.subscribers()}
    assert answers.registered - {"odd"} <= names <= set(NAMES), "a registration that has returned is there"
    assert not names & answers.removed, "a subscriber that was removed stays removed"
    for name in names:
        least, most = check_subscriber(store, name, answers)
        counted = sum(loss.events for loss in store.losses() if loss.subscriber == name)
        assert least <= counted <= most, f"{name} lost {least} to {most} events, {counted} are counted"
    check_letters(store, answers)


def check_subscriber(store: Store, name: str, answers: Answers) -> tuple[int, int]:
    """Marks and gap sets of one; returns how many events it lost.

    What is confirmed and was never asked for was dropped; of what was asked for and not answered either may be true.
    """
    least = most = 0
    for state in store._desk.registry.states():
        if state.note.name != name:
            continue
        for channel, progress in store._desk.registry.followed(state):
            key = (name, channel.name)
            confirmed = {seq for first, last in progress.confirmed for seq in range(first, last + 1)}
            settled, asked = answers.settled.get(key, set()), answers.asked.get(key, set())
            assert settled <= confirmed, f"{key}: answers {settled - confirmed} are lost"
            least += len(confirmed - asked)
            most += len(confirmed - settled)
            assert channel.name == "short" or confirmed <= asked, f"{key}: {confirmed - asked} cannot have been dropped"
            assert progress.mark >= answers.marks.get(key, 0), f"{key}: the mark moved back"
            assert progress.mark + 1 not in confirmed
    return least, most


def check_letters(store: Store, answers: Answers) -> None:
    """Each rejected event is buried once."""
    found: Counter[tuple[str, str, int]] = Counter()
    for channel in CHANNELS:
        if f"{channel}.dead" in store.channels():
            for part in store.read(f"{channel}.dead"):
                for row in part.to_pylist():
                    found[row["subscriber"], row["channel"], row["seq"]] += 1
    assert set(found.values()) <= {1}, "a letter is there twice"
    assert set(found) <= answers.rejected
    done = {key for key in answers.rejected if key[2] in answers.settled.get(key[:2], set())}
    assert done <= set(found), "a rejection has returned without its letter"


def go_on(bench: Bench, answers: Answers) -> None:
    """Hand out and ack everything that is left; then nothing may be left to hand out, nor on the disk."""
    bench.store.flush()
    for name in ("fast", "slow"):
        reader = bench.store.subscriber(name, ["long", "short"])
        for lease in reader.drain():
            already = answers.settled.get((name, lease.channel), set())
            assert not already & set(range(lease.first_seq, lease.last_seq + 1)), "handed out after its answer"
            lease.ack()
        for item in reader.lag():
            assert (item.events, item.gaps) == (0, ())
    if "odd" in {item.name for item in bench.store.subscribers()}:
        bench.store.deregister("odd")
    bench.tick()
    for channel in CHANNELS:
        if channel in bench.store.channels():
            assert bench.segments(channel) == []
    bench.reopen()


def test_workload_acks_rejects_drops_checkpoints_rotates_and_evicts() -> None:
    bench, answers = Bench(**TINY), Answers()
    for readers in workload(bench, answers):
        answers.note_marks(readers)
        check(bench, answers)
    done = Counter((operation, path.parent.name, path.suffix) for _, operation, path in bench.disk.log)
    assert done["allocate", "ack", ".tmp"] > 2, "it rotates, besides the file of each session"
    assert done["unlink", "ack", ".log"] > 1, "it is trimmed after checkpoints"
    assert done["unlink", "long", ".arrow"] > 2
    assert done["unlink", "short", ".arrow"] > 2
    bench.open()
    assert {loss.reason for loss in bench.store.losses()} == {"limit"}
    go_on(bench, answers)


@pytest.mark.guarantee("G6")
@pytest.mark.guarantee("G7")
@pytest.mark.parametrize("part", range(4))
def test_power_cut_at_every_disk_call_loses_no_answer_and_moves_no_mark_back(part: int) -> None:
    """Power loss. Every call, with nothing extra left (seed 0) and with a mixture; some go on from there."""
    for call in range(1 + part, calls_of_workload() + 1, 4):
        disk, clock, answers = cut_at(call)
        for seed in (0, 1 + call):
            bench = recover(disk.after_power_cut(seed), clock)
            check(bench, answers)
            if (call + seed) % 5 == part:
                go_on(bench, answers.copy())


@pytest.mark.guarantee("G7")
def test_second_power_cut_while_opening_loses_no_answer() -> None:
    """Power loss, twice: the power goes again at each call of the recovery."""
    for call in range(5, calls_of_workload() + 1, 97):
        disk, clock, answers = cut_at(call)
        opened = recover(disk.after_power_cut(call), clock).disk.calls
        for again in range(1, opened + 1):
            left = disk.after_power_cut(call)
            left.cut_at(again)
            with pytest.raises(PowerCut):
                recover(left, clock)
            check(recover(left.after_power_cut(again), clock), answers)


@pytest.mark.guarantee("G7")
def test_process_death_at_every_disk_call_loses_no_answer() -> None:
    """Process death (as by SIGKILL), then power loss: what the next process took from the page cache is safe."""
    for call in range(1, calls_of_workload() + 1, 9):
        disk, clock, answers = cut_at(call)
        left = disk.after_kill()
        recover(left, clock)
        check(recover(left.after_power_cut(0), clock), answers)


def answered() -> Bench:
    """A subscriber whose ack is in the log only."""
    bench = Bench(**TINY)
    bench.publish("long")
    take(bench.store.subscriber("reader", ["long"])).ack()
    return bench


@pytest.mark.guarantee("G7")
@pytest.mark.parametrize("coming_back", [False, True], ids=["leaves", "comes back"])
def test_power_cut_while_a_subscriber_leaves_a_channel_or_comes_back_mixes_no_lives(*, coming_back: bool) -> None:
    """Power loss. What it confirmed before it left counts until it leaves, and not after it came back to start over."""
    places: set[tuple[str, int]] = set()
    call, ended = 0, False
    while not ended:
        bench = answered()
        if coming_back:
            bench.store.subscriber("reader", ["short"])
        call += 1
        bench.disk.cut_at(bench.disk.calls + call)
        try:
            bench.store.subscriber("reader", ["long" if coming_back else "short"], start="first")
            ended = True
        except PowerCut:
            pass
        for seed in range(4):
            store = recover(bench.disk.after_power_cut(seed), bench.clock).store
            (shown,) = store.subscribers()
            marks = [item.mark for item in shown.channels]
            places.add((shown.patterns[0], marks[0] if marks else -1))
    assert places == ({("short", -1), ("long", 0)} if coming_back else {("long", 10), ("short", -1)})
    assert call > 10


@pytest.mark.long
@pytest.mark.timeout(3600)
@pytest.mark.guarantee("G6")
@pytest.mark.guarantee("G7")
@pytest.mark.parametrize("part", range(8))
def test_power_cut_at_every_disk_call_loses_no_answer_in_many_states(part: int) -> None:
    """Power loss. Every call, each with many ways of what is left, and going on from each."""
    for call in range(1 + part, calls_of_workload() + 1, 8):
        disk, clock, answers = cut_at(call)
        for seed in range(8):
            bench = recover(disk.after_power_cut(seed), clock)
            check(bench, answers)
            go_on(bench, answers.copy())


# -- damage -----------------------------------------------------------------------------------------------------------


def full_log() -> tuple[CrashFilesystem, Path, bytes, Bench]:
    """A disk with a small log of three acks, the path of the log, its bytes, and the bench that made it."""
    bench = Bench()
    bench.publish(segments=3)
    for lease in bench.store.subscriber("reader", ["trades"]).drain():
        lease.ack()
    whole = bench.disk.after_power_cut(0)
    (path,) = [path for path in whole.paths() if path.parent == STORE / "ack"]
    return whole, path, whole.read_bytes(path), bench


@pytest.mark.guarantee("G7")
@pytest.mark.guarantee("G9")
@every(11)
def test_flipped_bits_of_the_log_cost_redelivery_at_most_and_are_told(step: int) -> None:
    """Damage. Bits of the log, each in a store of its own: it opens, marks are as acked or behind, and it says so."""
    whole, path, data, bench = full_log()
    marks: Counter[int] = Counter()
    for bit in range(0, len(data.rstrip(b"\0")) * 8, step):
        bench.disk = whole.after_kill()
        bench.disk.write_bytes(path, flipped_bit(data, bit))
        report = bench.open().recovery
        again = bench.store.subscriber("reader", ["trades"])
        mark = lag(again).mark
        marks[mark] += 1
        told = report.acks_damage is not None or report.acks_cut is not None
        assert told, f"bit {bit}: damage was not told"
        assert [lease.first_seq for lease in list(again.drain())] == list(range(mark + 1, 30, 10))
    assert set(marks) == {0, 10, 20}, "what stands before the damage counts, what stands behind it does not"


@pytest.mark.guarantee("G7")
@pytest.mark.guarantee("G9")
@pytest.mark.parametrize("rest", ["gone", "zero"])
@every(7)
def test_log_cut_at_every_byte_costs_redelivery_at_most(step: int, rest: str) -> None:
    """Damage. The last file ends anywhere, or is zero from there on: a torn tail, or a file that is no log any more."""
    whole, path, data, bench = full_log()
    used = data.rstrip(b"\0")
    before = 0
    for end in range(0, len(used), step):
        bench.disk = whole.after_kill()
        bench.disk.write_bytes(path, used[:end] if rest == "gone" else used[:end].ljust(len(data), b"\0"))
        bench.open()
        mark = lag(bench.store.subscriber("reader", ["trades"])).mark
        assert mark >= before, "more of the log never costs more"
        before = mark
    assert before == 20


def test_acks_go_on_after_damage_and_survive_the_next_power_loss() -> None:
    bench = Bench()
    bench.publish(segments=3)
    reader = bench.store.subscriber("reader", ["trades"])
    take(reader).ack()
    bench.disk = bench.disk.after_power_cut(0)
    (path,) = [path for path in bench.disk.paths() if path.parent == STORE / "ack"]
    bench.disk.write_bytes(path, b"\xff" * 100)
    bench.open()
    for mark in (10, 20, 30):
        take(bench.store.subscriber("reader", ["trades"])).ack()
        bench.lose_power(seed=mark)
        assert lag(bench.store.subscriber("reader", ["trades"])).mark == mark
    assert read_seqs(bench.store) == []
