"""The rows of a task as frames."""

from __future__ import annotations

from collections.abc import Iterator

import pyarrow as pa

from holdfast.spark.frames import spooled


def batch(first: int, rows: int) -> pa.RecordBatch:
    return pa.record_batch({"n": pa.array(range(first, first + rows), pa.int64())})


def numbers(data: bytes) -> list[int]:
    found: list[int] = pa.ipc.open_stream(data).read_all()["n"].to_pylist()
    return found


def test_frames_hold_all_rows_in_order_and_stay_below_their_size() -> None:
    frames = list(spooled([batch(0, 10), batch(10, 1000), batch(1010, 1)], frame_bytes_max=1600))
    assert [n for frame in frames for n in numbers(frame.data)] == list(range(1011))
    assert all(frame.rows == len(numbers(frame.data)) and frame.rows * 8 <= 1600 for frame in frames)
    assert len(frames) > 5


def test_no_frame_comes_before_the_last_row() -> None:
    ended = []

    def rows() -> Iterator[pa.RecordBatch]:
        yield from (batch(at, 100) for at in range(0, 1000, 100))
        ended.append(True)

    for _ in spooled(rows(), frame_bytes_max=800):
        assert ended


def test_the_same_rows_give_the_same_frames() -> None:
    once, again = (list(spooled([batch(0, 700), batch(700, 5)], frame_bytes_max=800)) for _ in range(2))
    assert once == again


def test_a_task_without_rows_has_no_frames() -> None:
    assert list(spooled([batch(0, 0)], frame_bytes_max=800)) == []


def test_times_of_any_zone_are_sent_as_utc() -> None:
    times = pa.array([1, 2], pa.timestamp("us", "America/New_York"))
    (frame,) = spooled([pa.record_batch({"at": times})], frame_bytes_max=800)
    assert pa.ipc.open_stream(frame.data).read_all()["at"].to_pylist()[0].tzinfo is not None
    assert pa.ipc.open_stream(frame.data).schema.field("at").type == pa.timestamp("us", "UTC")
