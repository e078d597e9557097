"""Run tables: what they keep, what they find, and the system columns that come out of them."""

from __future__ import annotations

import base64

import pyarrow as pa
import pytest

from holdfast.store.segments.runs import SYSTEM_COLUMNS, SYSTEM_TYPES, Run, RunTable

SLOT_A, SLOT_B = b"a" * 16, b"\0" * 15 + b"\1"
GUID = b"\xff" * 15 + b"\0"  # a trailing zero byte, which fixed-width text types drop

RUNS = [
    Run(11, 2, 100, 5_000, SLOT_A, 7, None, ("eu", "p=1")),
    Run(13, 1, 110, 5_001, SLOT_B, 0),
    Run(14, 3, 111, 4_000, None, None, GUID, ("eu", "p=1")),
    Run(17, 1, 120, 6_000),
    Run(18, 2, 121, 6_000, SLOT_A, 8, None, ("ünï",)),
    Run(20, 1, 123, 6_000, SLOT_A, 2**63 - 1),
]
TABLE = RunTable.from_runs(RUNS)


def test_a_table_gives_its_runs_back() -> None:
    assert list(TABLE) == RUNS
    assert len(TABLE) == 6
    assert (TABLE.first_seq, TABLE.last_seq) == (11, 20)


def test_a_table_comes_back_from_its_text_unchanged() -> None:
    text = TABLE.encode()
    assert text.isascii()
    assert RunTable.decode(text) == TABLE


@pytest.mark.parametrize(
    "text",
    ["", "2:" + TABLE.encode()[2:], TABLE.encode()[:1000], "1:!!!!", "1:", "1:" + base64.b64encode(b"junk").decode()],
)
def test_text_that_is_no_run_table_raises_value_error(text: str) -> None:
    with pytest.raises(ValueError, match="run table"):
        RunTable.decode(text)


def test_text_of_another_table_raises_value_error() -> None:
    sink = pa.BufferOutputStream()
    batch = pa.record_batch({"other": [1]})
    with pa.ipc.new_stream(sink, batch.schema) as writer:
        writer.write_batch(batch)
    with pytest.raises(ValueError, match="other columns"):
        RunTable.decode("1:" + base64.b64encode(sink.getvalue()).decode())


@pytest.mark.parametrize("runs", [[], [Run(1, 0, 1, 1)], [Run(1, 2, 1, 1), Run(4, 1, 3, 1)]])
def test_runs_that_are_empty_or_apart_are_refused(runs: list[Run]) -> None:
    with pytest.raises(ValueError, match="run"):
        RunTable.from_runs(runs)


def test_every_row_is_found_in_its_run() -> None:
    found = {seq: TABLE.run_at(seq) for seq in range(11, 21)}
    assert [found[seq] for seq in (11, 12, 13, 14, 16, 17, 20)] == [RUNS[i] for i in (0, 0, 1, 2, 2, 3, 5)]
    for outside in (10, 21):
        with pytest.raises(ValueError, match=r"outside of 11\.\.20"):
            TABLE.run_at(outside)


def test_a_frame_is_found_by_slot_and_number() -> None:
    assert TABLE.find_fsn(SLOT_A, 8) == [RUNS[4]]
    assert TABLE.find_fsn(SLOT_B, 0) == [RUNS[1]]
    assert TABLE.find_fsn(SLOT_B, 8) == []
    assert TABLE.find_fsn(b"c" * 16, 8) == []
    assert TABLE.find_fsn(SLOT_A, -1) == []


def test_a_frame_of_several_entries_is_found_with_all_of_them() -> None:
    runs = [Run(1, 1, 1, 1, SLOT_A, 7), Run(2, 1, 2, 1, SLOT_A, 7), Run(3, 1, 3, 1, SLOT_A, 8)]
    assert RunTable.from_runs(runs).find_fsn(SLOT_A, 7) == runs[:2]


def test_runs_that_overlap_a_range_are_found() -> None:
    for first in range(9, 22):
        for last in range(first, 23):
            expected = [run for run in RUNS if run.first_seq <= last and run.first_seq + run.rows > first]
            assert list(TABLE.overlapping(first, last)) == expected


def test_the_first_row_since_a_time_is_found() -> None:
    cases = {0: 11, 5_000: 11, 5_001: 13, 5_002: 17, 6_000: 17, 6_001: 21}
    assert {time_ns: TABLE.first_seq_ingested_at(time_ns) for time_ns in cases} == cases


def test_guids_are_listed_with_their_runs() -> None:
    assert list(TABLE.guids()) == [(GUID, RUNS[2])]
    assert TABLE.has_guids
    without = RunTable.from_runs(RUNS[:2])
    assert list(without.guids()) == []
    assert not RunTable.decode(without.encode()).has_guids


def test_frame_numbers_of_a_slot_become_ranges() -> None:
    assert TABLE.slots() == {SLOT_A: [(7, 8), (2**63 - 1, 2**63 - 1)], SLOT_B: [(0, 0)]}
    numbers = [5, 3, 4, 9, 4]
    runs = [Run(1 + i, 1, 1 + i, 1, SLOT_A, fsn) for i, fsn in enumerate(numbers)]
    assert RunTable.from_runs(runs).slots() == {SLOT_A: [(3, 5), (9, 9)]}


def test_system_columns_agree_with_the_runs_for_every_range() -> None:
    expected = [
        {
            "_seq": seq,
            "_committed_id": run.first_committed_id + seq - run.first_seq,
            "_ingested_at": run.ingested_at_ns // 1000,
            "_channel": "trades",
            "_slot_id": run.slot_id,
            "_fsn": run.fsn,
            "_frame_index": run.frame_offset + seq - run.first_seq,
        }
        for run in RUNS
        for seq in range(run.first_seq, run.first_seq + run.rows)
    ]
    for first in range(11, 21):
        for rows in range(1, 22 - first):
            columns = TABLE.system_columns(SYSTEM_COLUMNS, channel="trades", first_seq=first, rows=rows)
            assert {name: array.type for name, array in columns.items()} == SYSTEM_TYPES
            columns["_ingested_at"] = columns["_ingested_at"].cast(pa.int64())
            found = pa.RecordBatch.from_pydict(columns).to_pylist()
            assert found == expected[first - 11 : first - 11 + rows]


def index_of(table: RunTable) -> list[int]:
    rows = table.last_seq - table.first_seq + 1
    columns = table.system_columns(["_frame_index"], channel="t", first_seq=table.first_seq, rows=rows)
    found: list[int] = columns["_frame_index"].to_pylist()
    return found


def test_place_in_a_frame_counts_over_all_its_runs_and_survives_the_text() -> None:
    """The first run goes on with a frame that began in an earlier segment."""
    runs = [
        Run(5, 2, 9, 1, SLOT_A, 7, frame_offset=3),
        Run(7, 1, 11, 1, SLOT_A, 7, frame_offset=5),
        Run(8, 2, 12, 1, SLOT_A, 8),
    ]
    table = RunTable.from_runs(runs)
    text = table.encode()
    assert text.startswith("2:")
    assert RunTable.decode(text) == table
    assert index_of(RunTable.decode(text)) == [3, 4, 5, 0, 1]


def test_table_of_frames_with_one_run_each_is_written_as_ever() -> None:
    assert TABLE.encode().startswith("1:")
    assert index_of(TABLE) == [0, 1, 0, 0, 1, 2, 0, 0, 1, 0]


def test_place_in_a_frame_is_worked_out_for_older_tables() -> None:
    """Those were written without it: runs of one frame that follow each other count on, others do not."""
    runs = [
        Run(1, 2, 1, 1, SLOT_A, 7),
        Run(3, 1, 3, 1, SLOT_A, 7),
        Run(4, 2, 4, 1, SLOT_B, 7),
        Run(6, 1, 6, 1),
        Run(7, 1, 7, 1),
    ]
    assert index_of(RunTable.decode(RunTable.from_runs(runs).encode())) == [0, 1, 2, 0, 1, 0, 0]


def test_only_the_named_system_columns_are_made_in_order() -> None:
    assert list(TABLE.system_columns(["_fsn", "_seq"], channel="t", first_seq=12, rows=1)) == ["_fsn", "_seq"]
    with pytest.raises(ValueError, match="'_time' is not a system column"):
        TABLE.system_columns(["_time"], channel="t", first_seq=12, rows=1)


def test_system_columns_outside_of_the_table_are_refused() -> None:
    for first, rows in ((10, 1), (20, 2)):
        with pytest.raises(ValueError, match="outside"):
            TABLE.system_columns(["_seq"], channel="t", first_seq=first, rows=rows)


def test_a_table_of_many_one_row_runs_stays_small() -> None:
    runs = [Run(1 + i, 1, 1 + 2 * i, 10**18 + 31_000 * i, SLOT_A, i) for i in range(50_000)]
    table = RunTable.from_runs(runs)
    text = table.encode()
    assert len(text) < 100_000  # two bytes a run
    assert RunTable.decode(text).run_at(50_000) == runs[-1]
