"""Frames of one producer in flight: none is stored behind a refused one."""

from __future__ import annotations

import errno
import threading
from pathlib import Path

import pyarrow as pa
import pytest

from holdfast import Store
from holdfast.errors import ChannelFull, DiskFull
from holdfast.model.frame import Entry
from holdfast.store.lane import Lane, Lanes
from holdfast.testing import CrashFilesystem

FULL_AT_TWO = {"channels": {"small": {"max_msgs": 2, "discard": "new"}}}


def entry(channel: str, *numbers: int) -> Entry:
    return Entry(channel, pa.record_batch({"n": pa.array(numbers, pa.int64())}))


@pytest.mark.guarantee("G4")
@pytest.mark.parametrize("inline", [True, False])
def test_frames_behind_a_refused_one_of_their_lane_are_refused_for_its_reason(tmp_path: Path, inline: bool) -> None:
    with Store.open(tmp_path, FULL_AT_TWO, inline=inline) as store:
        lane = Lane()
        entries = [entry("small", 1, 2), entry("small", 3), entry("large", 4), entry("large", 5)]
        futures = [store.commit_frame_async([one], lane=lane) for one in entries]
        assert futures[0].result().entries[0].last_seq == 2
        for future in futures[1:]:
            assert isinstance(future.exception(), ChannelFull)
        assert lane.refusal is futures[1].exception()
        assert list(store.read("large")) == []


def test_other_lanes_and_frames_without_one_are_not_touched(tmp_path: Path) -> None:
    with Store.open(tmp_path, FULL_AT_TWO, inline=True) as store:
        refused = Lane()
        assert store.commit_frame_async([entry("small", 1, 2, 3)], lane=refused).exception() is not None
        assert store.commit_frame_async([entry("large", 1)], lane=Lane()).exception() is None
        assert store.commit_frame_async([entry("large", 2)]).exception() is None
        assert store.commit_frame_async([entry("large", 3)], lane=refused).exception() is refused.refusal


@pytest.mark.guarantee("G4")
def test_lane_stays_refused_after_a_full_disk_has_room_again(tmp_path: Path) -> None:
    disk = CrashFilesystem()
    with Store.open(tmp_path, filesystem=disk, inline=True) as store:
        lane = Lane()
        disk.fail_when(lambda operation, _path: errno.ENOSPC if operation in {"pwritev", "allocate"} else None)
        assert isinstance(store.commit_frame_async([entry("a", 1)], lane=lane).exception(), DiskFull)
        disk.stop_failing()
        assert isinstance(store.commit_frame_async([entry("a", 2)], lane=lane).exception(), DiskFull)
        assert store.commit_frame_async([entry("a", 1)], lane=Lane()).result().entries[0].last_seq == 1


def test_each_lane_is_told_once_the_answer_is_there(tmp_path: Path) -> None:
    with Store.open(tmp_path, FULL_AT_TWO) as store:
        for numbers in ((1, 2), (3,)):  # one is accepted, the other refused
            told = threading.Event()
            future = store.commit_frame_async([entry("small", *numbers)], lane=Lane(told.set))
            assert told.wait(30)
            assert future.done()


def test_first_reason_of_a_refused_lane_stays() -> None:
    first, second = [ChannelFull(channel=name, limit="max_msgs", allowed=1) for name in ("a", "b")]
    refused, fresh = Lane(), Lane()
    refused.refuse(first)
    Lanes([(refused, 1), (fresh, 2)]).refuse(second)
    assert (refused.refusal, fresh.refusal) == (first, second)


def test_lanes_say_whose_the_frames_of_their_train_are() -> None:
    told: list[str] = []
    lane, other = Lane(lambda: told.append("lane")), Lane(lambda: told.append("other"))
    assert lane.shares(5) == ((lane, 5),)
    lanes = Lanes([(lane, 2), (other, 3)])
    assert lanes.shares(5) == [(lane, 2), (other, 3)]
    lanes.tell()
    assert told == ["lane", "other"]


def test_somebody_is_told_each_time_commits_were_answered(tmp_path: Path) -> None:
    with Store.open(tmp_path) as store:
        told = threading.Event()
        store.on_answered(told.set)
        future = store.commit_frame_async([entry("a", 1)])
        assert told.wait(30)
        assert future.done()


def test_room_is_there_until_the_store_is_full(tmp_path: Path) -> None:
    settings = {"memory_limit": "64KiB", "segment.target_size": "32KiB", "frame.max_size": "64KiB"}
    with Store.open(tmp_path, settings) as store:
        assert store.failure is None
        assert store.has_room(1000)
        store.commit_frame([entry("a", *range(1000))])
        assert not store.has_room(64 << 10)
