"""Trains: frames that are checked together, and stored as if each had come alone. Frames of very many entries."""

from __future__ import annotations

import errno
from collections.abc import Sequence
from pathlib import Path

import pyarrow as pa
import pytest

from holdfast import Store
from holdfast.config import StoreConfig
from holdfast.errors import Backpressure, DiskFull, InvalidBatch
from holdfast.model.frame import LARGE_ENTRIES_MAX, Entry, FrameReceipt, Guid, Identity, PlainFrame, SlotFrame
from holdfast.model.positions import Fsn
from holdfast.store.committer import Train, TrainReceipt
from holdfast.store.dedup import Dedup
from holdfast.store.lane import Lane, Lanes
from holdfast.testing import CrashFilesystem

SLOT = bytes(range(1, 17))
PATH = Path("/store")


def batch(*numbers: int) -> pa.RecordBatch:
    return pa.record_batch({"n": pa.array(numbers, pa.int64()), "text": pa.array([f"row {n}" for n in numbers])})


def plain(*numbers: int, identity: Identity = None, channel: str = "trades") -> PlainFrame:
    found = batch(*numbers)
    return PlainFrame(channel, found.schema, bytes(found.serialize()), len(numbers), identity)


def of_slot(*fsns: int) -> list[PlainFrame]:
    return [plain(fsn, fsn + 1000, identity=SlotFrame(SLOT, Fsn(fsn))) for fsn in fsns]


def opened(disk: CrashFilesystem, **settings: object) -> Store:
    """A store without threads that knows the channel and the slot."""
    config = StoreConfig.from_mapping({name.replace("__", "."): value for name, value in settings.items()})
    store = Store.open(PATH, config, filesystem=disk, inline=True)
    store.commit("trades", batch(0), identity=SlotFrame(SLOT, Fsn(0)))
    return store


def answer_of(train: Train | None) -> TrainReceipt:
    assert train is not None
    (answer,) = train.answers
    return answer


def seqs(receipts: list[FrameReceipt]) -> list[tuple[int, int]]:
    return [(entry.first_seq, entry.last_seq) for receipt in receipts for entry in receipt.entries]


def numbers_in(store: Store) -> list[int]:
    return [n for found in store.read("trades", columns=["n"]) for n in found.column(0).to_pylist()]


@pytest.mark.guarantee("G3")
@pytest.mark.guarantee("G4")
def test_each_frame_of_a_train_has_its_own_receipt_and_is_recognised() -> None:
    with opened(CrashFilesystem()) as store:
        answer = answer_of(store.commit_train(of_slot(1, 2, 3), lane=Lane()))
        assert (seqs(answer.receipts), answer.refusal) == ([(2, 3), (4, 5), (6, 7)], None)
        assert numbers_in(store) == [0, 1, 1001, 2, 1002, 3, 1003]
        again = store.commit("trades", batch(2, 1002), identity=SlotFrame(SLOT, Fsn(2)))
        assert (again.duplicate, again.first_seq) == (True, 4)
        assert store.statistics().frames == 4


@pytest.mark.guarantee("G1")
@pytest.mark.guarantee("G3")
def test_train_survives_a_power_cut_as_frames() -> None:
    disk = CrashFilesystem()
    store = opened(disk)
    store.commit_train(of_slot(1, 2), lane=Lane())
    store.commit_train([plain(50), plain(51, identity=Guid(SLOT))], lane=Lane())
    with Store.open(PATH, filesystem=disk.after_power_cut(1), inline=True) as recovered:
        assert numbers_in(recovered) == [0, 1, 1001, 2, 1002, 50, 51]
        again = recovered.commit("trades", batch(2, 1002), identity=SlotFrame(SLOT, Fsn(2)))
        assert (again.duplicate, again.first_seq) == (True, 4)
        assert recovered.commit("trades", batch(51), identity=Guid(SLOT)).duplicate


def test_bytes_of_a_train_are_kept_as_they_came() -> None:
    with opened(CrashFilesystem()) as store:
        store.commit_train(of_slot(1, 2), lane=Lane())
        store.flush()
        (found,) = pa.Table.from_batches(store.read("trades")).combine_chunks().to_batches()
        assert found.column("text").to_pylist() == ["row 0", "row 1", "row 1001", "row 2", "row 1002"]


def broken_message() -> bytes:
    """Well-formed but for the offsets of its texts."""
    good = bytes(batch(7, 8).serialize())
    offsets = pa.array([0, 5, 10], pa.int32()).buffers()[1].to_pybytes()[:12]
    assert good.count(offsets) == 1
    return good.replace(offsets, pa.array([0, 500, 10], pa.int32()).buffers()[1].to_pybytes()[:12])


SCHEMA = batch(1).schema
ONE_BY_ONE = {
    "a value is malformed": [*of_slot(1), PlainFrame("trades", SCHEMA, broken_message(), 2, None)],
    "a message is cut": [*of_slot(1), PlainFrame("trades", SCHEMA, plain(2).message[:-8], 1, None)],
    "rows are not as many as said": [*of_slot(1), PlainFrame("trades", SCHEMA, plain(2, 3).message, 1, None)],
    "a frame is known": of_slot(1, 0),
    "a frame comes twice": of_slot(1, 1),
    "a slot is new": [plain(1, identity=SlotFrame(bytes(16), Fsn(0)))],
    "the channel is new": [plain(1, channel="quotes")],
    "the schema is another": [
        PlainFrame("trades", pa.schema([("n", pa.int64())]), bytes(batch(1).select(["n"]).serialize()), 1, None)
    ],
}


@pytest.mark.guarantee("G9")
@pytest.mark.parametrize("frames", ONE_BY_ONE.values(), ids=ONE_BY_ONE)
def test_frames_that_need_a_closer_look_go_one_by_one(frames: list[PlainFrame]) -> None:
    with opened(CrashFilesystem()) as store:
        assert store.commit_train(frames, lane=Lane()) is None
        assert numbers_in(store) == [0]


@pytest.mark.parametrize(
    "limits", [{"dedup_keys": "n"}, {"max_msgs": 10, "discard": "new"}], ids=["keys", "refuses at a limit"]
)
def test_channels_that_count_or_compare_events_take_no_trains(limits: dict[str, object]) -> None:
    with opened(CrashFilesystem(), channels={"trades": limits}) as store:
        assert store.commit_train(of_slot(1, 2), lane=Lane()) is None


def test_columns_that_must_not_be_null_take_no_trains() -> None:
    schema = pa.schema([pa.field("n", pa.int64(), nullable=False)])
    strict = pa.record_batch({"n": pa.array([1], pa.int64())}, schema=schema)
    with Store.open(PATH, filesystem=CrashFilesystem(), inline=True) as store:
        store.commit("strict", strict)
        frame = PlainFrame("strict", schema, bytes(strict.serialize()), 1, None)
        assert store.commit_train([frame, frame], lane=Lane()) is None


@pytest.mark.guarantee("G11")
def test_train_without_room_is_refused_as_a_whole() -> None:
    with opened(
        CrashFilesystem(),
        wal__max_size="2MiB",
        wal__rotation_size="1MiB",
        frame__max_size="512KiB",
        segment__target_size="64KiB",
        retention__size_cap="3MiB",
    ) as store:
        with pytest.raises(Backpressure):
            store.commit_train([plain(*range(20_000)) for _ in range(5)], lane=Lane())
        assert store.statistics().tail.queued_bytes == 0
        assert numbers_in(store) == [0]


@pytest.mark.guarantee("G4")
def test_lane_that_was_refused_takes_no_train() -> None:
    lane = Lane()
    with opened(CrashFilesystem()) as store:
        lane.refusal = Backpressure(bound="tier.reservation", used_bytes=1, cap_bytes=1, waited_s=0)
        answer = answer_of(store.commit_train(of_slot(1, 2), lane=lane))
        assert (answer.receipts, answer.refusal) == ([], lane.refusal)
        assert numbers_in(store) == [0]
        assert answer_of(store.commit_train(of_slot(1, 2), lane=Lane())).refusal is None


@pytest.mark.guarantee("G4")
def test_lane_of_a_train_is_refused_without_the_others() -> None:
    with opened(CrashFilesystem()) as store:
        store.port.hold_below(6)  # committed_ids 2 to 5 are left
        refused, gone_before, last = Lane(), Lane(), Lane()
        gone_before.refuse(Backpressure(bound="tier.reservation", used_bytes=1, cap_bytes=1, waited_s=0))
        frames = [plain(1, 2), plain(3, 4, 5), plain(6), plain(7), plain(8)]
        train = store.commit_train(frames, lane=Lanes([(refused, 3), (gone_before, 1), (last, 1)]))
        assert train is not None
        assert [seqs(answer.receipts) for answer in train.answers] == [[(2, 3)], [], [(4, 4)]]
        assert [answer.refusal for answer in train.answers] == [refused.refusal, gone_before.refusal, None]
        assert isinstance(refused.refusal, Backpressure)
        assert numbers_in(store) == [0, 1, 2, 8]


@pytest.mark.guarantee("G3")
def test_repeat_within_a_train_of_several_lanes_sends_all_one_by_one() -> None:
    with opened(CrashFilesystem()) as store:
        lanes = Lanes([(Lane(), 1), (Lane(), 1)])
        assert store.commit_train([*of_slot(1), *of_slot(1)], lane=lanes) is None
        assert numbers_in(store) == [0]


@pytest.mark.guarantee("G4")
def test_every_lane_of_a_train_is_refused_by_a_full_disk() -> None:
    disk = CrashFilesystem()
    with opened(disk) as store:
        disk.fail_when(lambda operation, _path: errno.ENOSPC if operation in {"pwritev", "allocate"} else None)
        lanes = [Lane(), Lane()]
        train = store.commit_train(of_slot(1, 2, 3), lane=Lanes([(lanes[0], 1), (lanes[1], 2)]))
        assert train is not None
        assert [(answer.receipts, type(answer.refusal)) for answer in train.answers] == [([], DiskFull)] * 2
        assert [type(lane.refusal) for lane in lanes] == [DiskFull] * 2


@pytest.mark.guarantee("G4")
def test_train_stops_at_the_first_frame_without_a_number() -> None:
    with opened(CrashFilesystem()) as store:
        store.port.hold_below(5)  # committed_ids 2 to 4 are left, each frame takes two
        lane = Lane()
        answer = answer_of(store.commit_train(of_slot(1, 2, 3), lane=lane))
        assert seqs(answer.receipts) == [(2, 3)]
        assert isinstance(answer.refusal, Backpressure)
        assert lane.refusal is answer.refusal
        assert numbers_in(store) == [0, 1, 1001]


def test_train_on_a_full_disk_is_taken_back_and_may_come_again() -> None:
    disk = CrashFilesystem()
    with opened(disk) as store:
        disk.fail_when(lambda operation, _path: errno.ENOSPC if operation in {"pwritev", "allocate"} else None)
        answer = answer_of(store.commit_train(of_slot(1, 2), lane=Lane()))
        assert (answer.receipts, type(answer.refusal)) == ([], DiskFull)
        disk.stop_failing()
        assert seqs(answer_of(store.commit_train(of_slot(1, 2), lane=Lane())).receipts) == [(2, 3), (4, 5)]


def test_message_that_came_with_an_entry_is_stored_as_it_is() -> None:
    found = batch(*range(100))
    message = found.serialize()
    with opened(CrashFilesystem()) as store:
        receipt = store.commit_frame([Entry("trades", found, (), message)]).entries[0]
        assert (receipt.first_seq, receipt.last_seq) == (2, 101)
        assert numbers_in(store) == [0, *range(100)]


def test_message_of_another_schema_is_not_stored_as_it_is() -> None:
    """The channel has one column more, so the batch is written anew."""
    narrow = pa.record_batch({"n": pa.array([5, 6], pa.int64())})
    with opened(CrashFilesystem()) as store:
        store.commit_frame([Entry("trades", narrow, (), narrow.serialize())])
        assert numbers_in(store) == [0, 5, 6]


@pytest.mark.guarantee("G9")
def test_frames_of_a_train_keep_their_schema_while_another_thread_widens_the_channel(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    disk = CrashFilesystem()
    store = opened(disk)
    look = Dedup.any_known

    def widened_meanwhile(dedup: Dedup, frames: Sequence[PlainFrame]) -> bool:
        wide = pa.record_batch({"n": pa.array([7], pa.int64()), "text": ["row 7"], "more": ["x"]})
        store.commit("trades", wide, identity=SlotFrame(SLOT, Fsn(900)))
        return look(dedup, frames)

    monkeypatch.setattr(Dedup, "any_known", widened_meanwhile)
    assert seqs(answer_of(store.commit_train(of_slot(1, 2), lane=Lane())).receipts) == [(3, 4), (5, 6)]
    store.flush()
    assert numbers_in(store) == [0, 7, 1, 1001, 2, 1002]


def test_large_frame_may_have_more_entries_than_others() -> None:
    """Rows of one channel find the same place in their frame, in memory and after a restart."""
    disk = CrashFilesystem()
    store = opened(disk)
    entries = [Entry(f"c{n % 3}", batch(n)) for n in range(2000)]
    with pytest.raises(InvalidBatch, match="a frame has 1 to 1024 entries, this one has 2000"):
        store.commit_frame(entries)
    receipt = store.commit_frame_async(entries, identity=SlotFrame(SLOT, Fsn(1)), bytes_max=1 << 20).result()
    assert [entry.last_seq for entry in receipt.entries] == [n // 3 + 1 for n in range(2000)]
    again = Store.open(PATH, filesystem=disk.after_power_cut(0), inline=True)
    assert again.commit_frame([Entry("c0", batch(0))], identity=SlotFrame(SLOT, Fsn(1))).duplicate
    assert [n for found in again.read("c1", columns=["n"]) for n in found.column(0).to_pylist()] == list(
        range(1, 2000, 3)
    )


def test_frame_that_becomes_too_many_entries_is_refused_and_the_store_goes_on() -> None:
    """A record of the log could not count them."""
    store = opened(CrashFilesystem(), frame__max_size="1KiB")
    texts = pa.array([b"x" * 600] * (LARGE_ENTRIES_MAX + 1))
    with pytest.raises(InvalidBatch, match=r"more than 16384 entries of at most 1024 bytes \(frame.max_size\)"):
        store.commit_frame_async([Entry("large", pa.record_batch({"text": texts}))], bytes_max=256 << 20)
    assert store.commit("trades", batch(1)).last_seq == 2
