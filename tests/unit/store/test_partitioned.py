"""Reading by partition gives what a scan of everything would give, wherever segments begin and end."""

from __future__ import annotations

import tempfile
from itertools import islice

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast import Store
from holdfast.model.frame import Entry, EventIds

NAMES = ("A", "B", "C")

entries = st.lists(
    st.tuples(st.integers(1, 4), st.frozensets(st.sampled_from(NAMES), max_size=3)), min_size=1, max_size=4
)
steps = st.lists(st.one_of(entries, st.just("flush"), st.just("other")), max_size=12)


def scan(store: Store, wanted: frozenset[str], first: int, last: int) -> list[tuple[int, int]]:
    found: list[tuple[int, int]] = []
    for batch in store.read("log", system=["_committed_id"]) if "log" in store.channels() else ():
        for row in batch.to_pylist():
            if wanted & set(row["names"]) and first <= row["_committed_id"] <= last:
                found.append((row["_committed_id"], row["n"]))
    return found


@settings(max_examples=40)
@given(steps=steps, wanted=st.frozensets(st.sampled_from(NAMES), min_size=1), data=st.data())
def test_any_page_is_what_a_scan_finds(steps: list[object], wanted: frozenset[str], data: st.DataObject) -> None:
    with tempfile.TemporaryDirectory() as directory, Store.open(directory, inline=True) as store:
        number = 0
        for step in steps:
            if step == "flush":
                store.flush()
            elif step == "other":
                store.commit("other", pa.RecordBatch.from_pydict({"n": [1, 2]}))
            else:
                made = []
                for rows, names in step:  # type: ignore[attr-defined]
                    values = list(range(number, number + rows))
                    number += rows
                    batch = pa.RecordBatch.from_pydict({"n": values, "names": [sorted(names) or [""]] * rows})
                    made.append(Entry("log", batch, tuple(sorted(names))))
                store.commit_frame(made)
        first, last = sorted(data.draw(st.tuples(st.integers(0, number + 9), st.integers(0, number + 9))))
        rows_max = data.draw(st.integers(1, 20))
        reader = store.listing.partition_reader()
        for _ in range(2):
            rows = reader.read("log", wanted, first=first, last=last, rows_max=rows_max)
            got = [
                pair for ids, batch in rows for pair in zip(ids.tolist(), batch.column("n").to_pylist(), strict=True)
            ]
            assert got == list(islice(scan(store, wanted, first, last), rows_max))
        whole = scan(store, wanted, 0, 10**9)
        assert reader.last_committed_id("log", wanted) == (whole[-1][0] if whole else 0)


@pytest.mark.parametrize("sealed", [False, True])
def test_places_of_ids_are_found_in_memory_and_in_segments(
    sealed: bool, tmp_path_factory: pytest.TempPathFactory
) -> None:
    with Store.open(tmp_path_factory.mktemp("store")) as store:
        ids = pa.RecordBatch.from_pydict({"id": ["a", "b", "c"]})
        store.commit("log", ids, identity=EventIds("id"))
        if sealed:
            store.flush()
        reader = store.listing.partition_reader()
        asked = pa.RecordBatch.from_pydict({"id": ["c", "nothing", "a"]})
        assert reader.event_seqs("log", asked, "id") == [3, None, 1]
        assert reader.event_seqs("nowhere", asked, "id") == [None, None, None]


def test_advanced_partitions_say_from_where_they_are_kept(tmp_path_factory: pytest.TempPathFactory) -> None:
    config = {"channels": {"log": {"retention.mode": "limits"}}}
    with Store.open(tmp_path_factory.mktemp("store"), config) as store:
        store.commit("log", pa.RecordBatch.from_pydict({"n": [1, 2, 3]}), partitions=["A"])
        reader = store.listing.partition_reader()
        assert reader.first_needed("log", frozenset({"A", "B"})) == 1
        store.advance_partition("log", "A", 3)
        assert reader.first_needed("log", frozenset({"A", "B"})) == 3
        assert reader.first_needed("log", frozenset({"B"})) == 1
        assert reader.first_needed("nowhere", frozenset({"B"})) == 1
