"""Events as rows of a channel: appended once, found by id, read by scope; across seals and restarts."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest

from holdfast import Store
from holdfast.errors import StoreFailed
from holdfast.model.frame import EventIds
from holdfast.sync.eventlog import SCHEMA, EventLog
from holdfast.sync.recent import Recent
from holdfast.sync.snapshots import Snapshots
from holdfast.sync.validation import AnyEvent
from holdfast.sync.writer import Writer
from holdfast.testing.objects import MemoryObjects
from holdfast.wire.sync import Committed, Item, Read, ReadKind, Refusal, Submit
from tests.unit.tier.rig import Rig

KEPT = {"channels": {"sync": {"retention.mode": "limits"}}}


def open_log(store: Store) -> EventLog:
    return EventLog(store, "sync", Snapshots(store, "sync.snapshots"))


def item(event_id: str, *partitions: str, project: str = "", payload: bytes = b'{"n":1}') -> Item:
    names = partitions or ("P1",)
    scopes = (f"project:{project}",) if project else names
    meta = b'{"clientTs":1.25}' if project else b""
    return Item(
        event_id,
        names,
        "note",
        payload,
        {"n": 1},
        project_id=project,
        schema_version=3 if project else 0,
        meta=meta,
        scopes=scopes,
    )


def submit(*items: Item, family: str = "seed", client: str = "A") -> Submit:
    return Submit(1, client, family, list(items), stops_at_refusal=False)


def append(log: EventLog, *items: Item, family: str = "seed") -> list[Committed]:
    whole = submit(*items, family=family)
    return log.append([(one, whole) for one in items], 1_700_000_000_000)


def ids(log: EventLog, *scopes: str, since: int = 0, upto: int = 10**9, limit: int = 1000) -> list[str]:
    return [event.id for event in log.events(frozenset(scopes), since=since, upto=upto, limit=limit)]


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    with Store.open(tmp_path / "data", KEPT) as opened:
        yield opened


def test_events_come_back_as_they_were_committed(store: Store) -> None:
    log = open_log(store)
    made = append(log, item("e1", "P1", "P2", payload='{"é": 1.0}'.encode()), item("e2"))
    made += append(log, item("e3", "tab", project="p"), family="2x")
    assert [event.committed_id for event in made] == [1, 2, 3]
    assert list(log.events(frozenset({"P1", "project:p"}), since=0, upto=9, limit=9)) == [
        event_without_origin(event) for event in made
    ]
    assert ids(log, "P2") == ["e1"]
    assert ids(log, "tab") == []


def event_without_origin(event: Committed) -> Committed:
    names = [name for name in Committed.__struct_fields__ if name != "origin"]
    return Committed(**{name: getattr(event, name) for name in names})


@pytest.mark.parametrize("sealed", [False, True], ids=["in memory", "in segments"])
def test_ids_are_found_wherever_their_events_are(store: Store, sealed: bool) -> None:
    log = open_log(store)
    for number in range(0, 300, 3):
        append(log, item(f"e{number}"), item(f"e{number + 1}", "P2"), item(f"e{number + 2}"))
    if sealed:
        store.flush()
    found = log.find(["e0", "e150", "e151", "e299", "nothing"])
    assert {name: event.committed_id for name, event in found.items()} == {
        "e0": 1,
        "e150": 151,
        "e151": 152,
        "e299": 300,
    }


def test_pages_read_only_their_scopes_across_segments_and_memory(store: Store) -> None:
    log = open_log(store)
    for number in range(30):
        append(log, item(f"a{number}", "A"), item(f"ab{number}", "A", "B"), item(f"c{number}", "C"))
        if number in {9, 19}:
            store.flush()
    page = log.read(Read(ReadKind.PAGE, frozenset({"B"}), 0, 85, 20))
    assert [event.id for event in page.events] == [f"ab{number}" for number in range(20)]
    assert page.has_more
    page = log.read(Read(ReadKind.PAGE, frozenset({"B"}), page.events[-1].committed_id, 85, 20))
    assert [event.id for event in page.events] == [f"ab{number}" for number in range(20, 28)]
    assert not page.has_more
    assert log.read(Read(ReadKind.LAST, frozenset({"B"}), 0, 90, 1)).last_committed_id == 89
    assert log.read(Read(ReadKind.LAST, frozenset({"Z"}), 0, 90, 1)).last_committed_id == 0


def test_segments_without_a_scope_are_not_read(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    log = open_log(store)
    for name in ("A", "B", "C"):
        append(log, *(item(f"{name}{number}", name) for number in range(10)))
        store.flush()
    assert len(ids(log, "B")) == 10
    opened: list[str] = []
    reader = log._reader._reader
    batches = reader.segment_batches

    def counted(segment: object, channel: str, **span: int) -> object:
        opened.append(channel)
        return batches(segment, channel, **span)  # type: ignore[arg-type]

    monkeypatch.setattr(reader, "segment_batches", counted)
    assert len(ids(log, "B")) == 10
    assert len(opened) == 1


def test_large_events_end_a_page_early(store: Store) -> None:
    log = open_log(store)
    payload = b'{"t":"' + b"x" * 100_000 + b'"}'
    for number in range(100):
        append(log, item(f"e{number}", payload=payload))
    page = log.read(Read(ReadKind.PAGE, frozenset({"P1"}), 0, 100, 1000))
    assert 1 < len(page.events) < 100
    assert page.has_more


@pytest.mark.guarantee("G3")
def test_ids_are_recognised_after_a_restart(tmp_path: Path) -> None:
    for sealed in (False, True):
        directory = tmp_path / str(sealed)
        with Store.open(directory, KEPT) as store:
            append(open_log(store), item("e1"))
            if sealed:
                store.flush()
        with Store.open(directory, KEPT) as store:
            log = open_log(store)
            recent = Recent(log.last_committed_id(), bytes_max=1 << 20)
            writer = Writer(log, AnyEvent(), recent=recent.find)
            same = writer.write([submit(item("e1"))], 0)
            other = writer.write([submit(item("e1", "P9"))], 0)
            assert isinstance(same.results[0][1], list)
            assert same.results[0][1][0].committed_id == 1
            assert isinstance(other.results[0][1], list)
            assert isinstance(other.results[0][1][0], Refusal)
            assert (same.fresh, other.fresh) == ([], [])


def test_last_committed_id_is_that_of_the_channel(store: Store) -> None:
    log = open_log(store)
    assert log.last_committed_id() == 0
    store.commit("others", pa.RecordBatch.from_pydict({"n": [1, 2, 3]}))
    assert log.last_committed_id() == 3
    append(log, item("e1"))
    store.commit("others", pa.RecordBatch.from_pydict({"n": [4]}))
    assert log.last_committed_id() == 4


def test_restored_log_ends_with_the_last_event_that_came_back(tmp_path: Path) -> None:
    objects = MemoryObjects()
    before = Rig(tmp_path / "data", objects, store=KEPT)
    append(open_log(before.store), item("e1"), item("e2"))
    before.upload()
    append(open_log(before.store), item("lost"))
    before.close()
    after = Rig(tmp_path / "restored", objects, store=KEPT)
    log = open_log(after.store)
    assert log.last_committed_id() == 2  # a client whose cursor is 3 finds out
    (fresh,) = append(log, item("e3"))
    assert fresh.committed_id > 3
    assert open_log(after.store).last_committed_id() == fresh.committed_id
    after.close()


def test_channel_is_an_ordinary_one_for_other_readers(store: Store) -> None:
    append(open_log(store), item("e1", "P1", "P2"))
    (batch,) = store.read("sync", columns=["id", "partitions", "type", "payload", "client_id"])
    assert batch.to_pylist() == [
        {"id": "e1", "partitions": ["P1", "P2"], "type": "note", "payload": '{"n":1}', "client_id": "A"}
    ]


def test_log_stays_although_a_reader_confirmed_it(store: Store) -> None:
    log = open_log(store)
    append(log, item("e1"))
    with store.subscriber("lake", channels=["sync"]) as subscriber:
        store.flush()
        lease = subscriber.poll(timeout=30)
        assert lease is not None
        lease.ack()
    store.flush()
    assert ids(log, "P1") == ["e1"]


def test_second_writer_of_an_id_is_noticed(store: Store) -> None:
    log = open_log(store)
    append(log, item("e1"))
    row = pa.RecordBatch.from_pylist([{"id": "e2"}], schema=SCHEMA)
    store.commit("sync", row, identity=EventIds("id"))
    with pytest.raises(StoreFailed, match="somebody else writes"):
        append(log, item("e2"))


def test_rows_that_somebody_else_wrote_are_left_out(store: Store) -> None:
    log = open_log(store)
    append(log, item("e1"))
    store.commit("sync", pa.RecordBatch.from_pydict({"other": [1]}), partitions=["P1"])
    append(log, item("e2"))
    assert ids(log, "P1") == ["e1", "e2"]


def test_poisoned_submission_fails_alone(store: Store) -> None:
    log = open_log(store)
    writer = Writer(log, AnyEvent(), recent=lambda _id: None)
    poisoned = submit(item("bad", payload=b"\xff"))
    written = writer.write([submit(item("e1")), poisoned, submit(item("e2"))], 0)
    assert [event.id for event in written.fresh] == ["e1", "e2"]
    assert [type(outcome).__name__ for _, outcome in written.results] == ["list", "Failed", "list"]
    assert ids(log, "P1") == ["e1", "e2"]
