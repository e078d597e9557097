"""The archive script gets a segment before it is deleted: channel, data and description, both renamed to `.bak`."""

from __future__ import annotations

import json
import stat
from pathlib import Path

import pyarrow as pa
import pytest

from holdfast import Store
from holdfast.testing import ManualClock, PowerCut
from tests.unit.store.subscribers.small_store import SMALL, Bench, batch


def script(tmp_path: Path, body: str, name: str = "archive.sh") -> Path:
    """An executable script."""
    path = tmp_path / name
    path.write_text(f"#!/bin/sh\n{body}\n")
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    return path


def evict_two(directory: Path, archive: Path, **settings: object) -> Store:
    """A store that has evicted two segments of its channel; still open."""
    clock = ManualClock()
    config = {**SMALL, "archive_script": str(archive), **settings}
    store = Store.open(directory, config, clock=clock, inline=True)
    for _ in range(3):
        store.commit("trades", batch(10))
        store.flush()
    store.subscriber("reader", ["trades"]).ack("trades", 1, 20)
    clock.advance(1)
    store.flush()
    return store


def test_script_gets_channel_data_and_description(tmp_path: Path) -> None:
    archive = script(tmp_path, f'printf "%s\\n" "$@" >> {tmp_path}/calls; cp "$2" "$3" {tmp_path}/; rm "$2" "$3"')
    with evict_two(tmp_path / "store", archive) as store:
        assert store.statistics().retention.archived == 2
        folder = store.path / "channels" / "trades"
        names = [f"seg-{number}" for number in (1, 2)]
        expected = [
            line for name in names for line in ("trades", f"{folder}/{name}.arrow.bak", f"{folder}/{name}.json.bak")
        ]
        assert (tmp_path / "calls").read_text().splitlines() == expected
        assert sorted(path.name for path in folder.iterdir()) == ["seg-3.arrow"]
    with pa.ipc.open_file(pa.memory_map(str(tmp_path / "seg-1.arrow.bak"))) as file:
        assert file.read_all().num_rows == 10
    described = json.loads((tmp_path / "seg-2.json.bak").read_text())
    assert {key: described[key] for key in ("channel", "first_seq", "last_seq", "rows", "segment_seq")} == {
        "channel": "trades", "first_seq": 11, "last_seq": 20, "rows": 10, "segment_seq": 2,
    }  # fmt: skip


def test_script_that_fails_leaves_the_files_and_is_counted(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    archive = script(tmp_path, "echo the tape is full; echo broken >&2; exit 3")
    caplog.set_level("INFO", "holdfast")
    with evict_two(tmp_path / "store", archive) as store:
        retention = store.statistics().retention
        assert (retention.archived, retention.archive_failures, retention.evictions) == (0, 2, {"acked": 2})
        folder = store.path / "channels" / "trades"
        assert sorted(path.name for path in folder.glob("*.bak")) == [
            "seg-1.arrow.bak", "seg-1.json.bak", "seg-2.arrow.bak", "seg-2.json.bak",
        ]  # fmt: skip
    lines = [record.getMessage() for record in caplog.records if "segment.archive" in record.getMessage()]
    assert len(lines) == 2
    assert "failed=True" in lines[0]
    assert "the tape is full" in lines[0]
    assert "broken" in lines[0]


@pytest.mark.parametrize("missing", ["no-such-script.sh", "."])
def test_script_that_cannot_be_run_is_counted_as_a_failure(tmp_path: Path, missing: str) -> None:
    with evict_two(tmp_path / "store", tmp_path / missing) as store:
        assert store.statistics().retention.archive_failures == 2
        assert len(list((store.path / "channels" / "trades").glob("*.bak"))) == 4


def test_set_aside_files_are_never_read_back(tmp_path: Path) -> None:
    archive = script(tmp_path, "exit 1")
    evict_two(tmp_path / "store", archive).close()
    (tmp_path / "store" / "channels" / "trades" / "seg-99.arrow.bak").write_bytes(b"not even Arrow")
    clock = ManualClock()
    with Store.open(tmp_path / "store", {**SMALL, "archive_script": str(archive)}, clock=clock, inline=True) as store:
        rows = [row for part in store.read("trades", system=("_seq",)) for row in part.column("_seq").to_pylist()]
        assert rows == list(range(21, 31))
        assert store.statistics().retention.archive_failures == 0, "nor is the script called for them again"
        assert store.statistics().segments == 1


def test_only_channels_with_a_script_are_archived(tmp_path: Path) -> None:
    archive = script(tmp_path, "exit 0")
    override = {"channels": {"trades": {"archive_script": ""}}}
    with evict_two(tmp_path / "store", archive, **override) as store:
        assert store.statistics().retention.archived == 0
        assert list((store.path / "channels" / "trades").glob("*.bak")) == []


def test_scripts_run_beside_the_store_and_close_waits_for_them(tmp_path: Path) -> None:
    """Threads. The script waits for a file that is made after the eviction, so a store that waits for it would hang."""
    pipe, log = tmp_path / "go", tmp_path / "log"
    archive = script(tmp_path, f'mkfifo {pipe} 2>/dev/null; read line < {pipe}; echo "$1 $line" >> {log}')
    settings = {**SMALL, "archive_script": str(archive), "retention.tick": "10ms",
                "channels": {"trades": {"max_msgs": 10}}}  # fmt: skip
    store = Store.open(tmp_path / "store", settings)
    store.commit("trades", batch(10))
    store.flush()
    store.commit("trades", batch(10))
    store.flush()
    while not pipe.exists():  # the script is running
        store.commit("orders", batch(1))
    assert store.statistics().retention.evictions["limit"] == 1
    pipe.write_text("went on\n")
    store.close()
    assert log.read_text() == "trades went on\n"
    assert store._evictor.statistics().archived == 1


@pytest.mark.guarantee("G6")
def test_power_loss_at_every_call_of_an_eviction_leaves_it_archived_once_more_at_most(tmp_path: Path) -> None:
    """Power loss. The script is called until it has ended once with the store knowing; the segment never comes back."""
    calls = tmp_path / "calls"
    archive = script(tmp_path, f'echo "$2" >> {calls}')
    for call in range(1, 1000):
        calls.write_text("")
        bench = Bench(archive_script=str(archive))
        bench.publish(segments=2)
        bench.store.subscriber("reader", ["trades"]).ack("trades", 1, 10)
        bench.disk.cut_at(bench.disk.calls + call)
        try:
            bench.tick()
            break
        except PowerCut:
            pass
        bench.lose_power(seed=call)
        bench.tick()
        assert bench.segments() == [11]
        names = calls.read_text().split()
        assert names[:1] == ["/data/store/channels/trades/seg-1.arrow.bak"], f"cut at call {call}: not archived"
        assert len(names) <= 2, f"cut at call {call}: {names}"
        backs = sorted(path.name for path in bench.disk.paths() if path.suffix == ".bak")
        assert backs == ["seg-1.arrow.bak", "seg-1.json.bak"]
        bench.reopen()
        assert len(calls.read_text().split()) == len(names), "a segment that is done with is left alone"
    assert call > 6


def test_damaged_segment_is_archived_as_it_is(tmp_path: Path) -> None:
    archive = script(tmp_path, "exit 0")
    bench = Bench(archive_script=str(archive))
    bench.publish(segments=2)
    bench.store.subscriber("reader", ["trades"]).ack("trades", 1, 10)
    commits = [number for number, operation, _ in bench.disk.log if operation == "commit"]
    bench.disk.cut_at(bench.disk.calls + 2)  # after the catalog has forgotten the segment
    with pytest.raises(PowerCut):
        bench.tick()
    assert commits
    bench.disk = bench.disk.after_power_cut(1)
    path = Path("/data/store/channels/trades/seg-1.arrow")
    if path in bench.disk.paths():
        bench.disk.write_bytes(path, b"x" * 100)
    bench.open()
    described = json.loads(bench.disk.read_bytes(path.with_name("seg-1.json.bak")))
    assert "damaged" in described or described["segment_seq"] == 1


def test_description_left_by_a_crash_is_written_again() -> None:
    path = Path("/data/store/channels/trades/seg-1.json.bak")
    bench = Bench(archive_script="/bin/true")
    bench.publish(segments=2)
    bench.disk.write_bytes(path, b"torn")
    bench.store.subscriber("reader", ["trades"]).ack("trades", 1, 10)
    bench.tick()
    assert json.loads(bench.disk.read_bytes(path))["segment_seq"] == 1
