"""Scrubbing: published segments are read again, within a budget, and decay is reported before a reader meets it."""

from __future__ import annotations

import errno
import logging
import threading
from pathlib import Path

import pyarrow as pa
import pytest

from holdfast import Store
from holdfast.errors import CorruptData
from holdfast.store.scrub import ScrubFinding, ScrubStatistics
from holdfast.testing import CrashFilesystem, ManualClock

ROOT = Path("/data/store")
CONFIG: dict[str, object] = {"segment.target_size": "4KiB", "wal.rotation_size": "64KiB", "frame.max_size": "32KiB"}
SEGMENTS = 6


def filled(disk: CrashFilesystem, clock: ManualClock | None = None, **settings: object) -> Store:
    """A store with six segments."""
    config = {**CONFIG, **settings}
    store = Store.open(ROOT, config, filesystem=disk, clock=clock or ManualClock(), inline=True)
    for number in range(SEGMENTS):
        store.commit("trades", pa.record_batch({"id": range(100 * number, 100 * number + 100)}))
        store.flush()
    return store


def segments(disk: CrashFilesystem) -> list[Path]:
    found = [path for path in disk.paths() if path.suffix == ".arrow"]
    return sorted(found, key=lambda path: int(path.stem.removeprefix("seg-")))


def total_bytes(disk: CrashFilesystem) -> int:
    return sum(len(disk.read_bytes(path)) for path in segments(disk))


def flip(disk: CrashFilesystem, path: Path, offset: int) -> None:
    data = bytearray(disk.read_bytes(path))
    data[offset] ^= 1
    disk.write_bytes(path, bytes(data))


def scrub(store: Store) -> ScrubStatistics:
    """One whole pass."""
    passes = store.statistics().scrub.passes
    while store.statistics().scrub.passes == passes:
        store.scrub_step(1 << 20)
    return store.statistics().scrub


def rows(store: Store) -> int:
    return sum(batch.num_rows for batch in store.read("trades"))


def test_pass_reads_every_byte_of_every_segment_once() -> None:
    disk = CrashFilesystem()
    statistics = scrub(filled(disk))
    assert (statistics.bytes, statistics.segments, statistics.passes) == (total_bytes(disk), SEGMENTS, 1)
    assert statistics.findings == ()


@pytest.mark.parametrize("budget", [1, 7, 1000, 1 << 20])
def test_step_never_reads_more_than_its_budget(budget: int) -> None:
    disk = CrashFilesystem()
    store = filled(disk)
    total = read = 0
    while store.statistics().scrub.passes == 0:
        read = store.scrub_step(budget)
        assert read <= budget
        total += read
    assert total == total_bytes(disk)
    assert store.statistics().scrub.findings == ()


def test_store_without_segments_is_scrubbed_at_once() -> None:
    store = Store.open(ROOT, CONFIG, filesystem=CrashFilesystem(), clock=ManualClock(), inline=True)
    assert store.scrub_step(1 << 20) == 0
    assert store.statistics().scrub.passes == 0


@pytest.mark.guarantee("G9")
@pytest.mark.parametrize("offset", [5, 500, -20])
def test_damaged_segment_is_reported_with_its_place(offset: int, caplog: pytest.LogCaptureFixture) -> None:
    disk = CrashFilesystem()
    store = filled(disk)
    path = segments(disk)[2]
    flip(disk, path, offset)
    with caplog.at_level(logging.WARNING, logger="holdfast"):
        (finding,) = scrub(store).findings
    assert isinstance(finding, ScrubFinding)
    assert (finding.channel, finding.first_seq, finding.last_seq) == ("trades", 201, 300)
    assert finding.file == str(path)
    (line,) = [record.getMessage() for record in caplog.records if "store.scrub.damage" in record.getMessage()]
    assert path.name in line
    assert scrub(store).findings == (finding,), "a second pass says the same, once"


@pytest.mark.guarantee("G9")
def test_segment_that_decays_after_it_was_read_is_refused_once_scrubbing_found_it() -> None:
    disk = CrashFilesystem()
    store = filled(disk)
    assert rows(store) == 100 * SEGMENTS
    flip(disk, segments(disk)[2], 500)
    assert rows(store) == 100 * SEGMENTS, "a reader checks a segment once; that is what scrubbing is for"
    scrub(store)
    with pytest.raises(CorruptData, match="seg-"):
        rows(store)


def test_nothing_is_written_or_deleted_for_a_damaged_segment() -> None:
    disk = CrashFilesystem()
    store = filled(disk)
    flip(disk, segments(disk)[2], 500)
    before, calls = {path: disk.read_bytes(path) for path in disk.paths()}, disk.calls
    scrub(store)
    assert {path: disk.read_bytes(path) for path in disk.paths()} == before
    assert disk.calls == calls


def test_good_copy_that_was_put_back_is_given_to_readers_again() -> None:
    disk = CrashFilesystem()
    store = filled(disk)
    path = segments(disk)[2]
    good = disk.read_bytes(path)
    flip(disk, path, 500)
    assert scrub(store).findings
    disk.write_bytes(path, good)
    assert scrub(store).findings == ()
    assert rows(store) == 100 * SEGMENTS


def test_missing_segment_is_reported() -> None:
    disk = CrashFilesystem()
    store = filled(disk)
    disk.unlink(segments(disk)[4])
    (finding,) = scrub(store).findings
    assert "missing" in finding.reason


def test_segment_of_another_length_is_reported() -> None:
    disk = CrashFilesystem()
    store = filled(disk)
    shorter, longer = segments(disk)[1], segments(disk)[3]
    disk.write_bytes(shorter, disk.read_bytes(shorter)[:-50])
    disk.write_bytes(longer, disk.read_bytes(longer) + b"more")
    assert [finding.file for finding in scrub(store).findings] == [str(shorter), str(longer)]


def test_unreadable_sector_is_reported_and_does_not_stop_the_pass() -> None:
    disk = CrashFilesystem()
    store = filled(disk)
    disk.fail_read_at(disk.reads + 3, errno.EIO)
    statistics = scrub(store)
    assert statistics.segments == SEGMENTS
    (finding,) = statistics.findings
    assert "cannot be read" in finding.reason
    assert scrub(store).findings == (), "the disk gave it at the second try"


def test_segment_that_is_evicted_while_it_is_read_is_no_finding() -> None:
    disk = CrashFilesystem()
    store = filled(disk)
    reader = store.subscriber("reader", ["trades"])
    store.scrub_step(10)
    while (lease := reader.poll(0)) is not None:
        lease.ack()
    store._keeper.tick()
    assert segments(disk) == []
    store.scrub_step(1 << 20)
    assert store.statistics().scrub.findings == ()


def test_segments_published_during_a_pass_take_their_turn() -> None:
    disk = CrashFilesystem()
    store = filled(disk)
    store.scrub_step(10)
    store.commit("trades", pa.record_batch({"id": [1, 2, 3]}))
    store.flush()
    assert scrub(store).segments == SEGMENTS + 1


def test_ticks_spread_the_rate_over_time() -> None:
    """Time is moved by hand: a quarter of a second allows a quarter of the rate, and no burst exceeds a second's."""
    disk, clock = CrashFilesystem(), ManualClock()
    store = filled(disk, clock, **{"scrub.rate": "1KiB"})
    scrubber = store._scrubber
    scrubber.tick()
    start = store.statistics().scrub.bytes
    for _ in range(8):
        clock.advance(0.25)
        scrubber.tick()
    assert store.statistics().scrub.bytes - start == 2 * 1024
    clock.advance(3600)
    scrubber.tick()
    assert store.statistics().scrub.bytes - start == 3 * 1024


@pytest.mark.guarantee("G9")
def test_thread_of_a_real_store_finds_the_damage(tmp_path: Path) -> None:
    found = threading.Event()

    class Listener(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            if "store.scrub.damage" in record.getMessage():
                found.set()

    listener, logger = Listener(), logging.getLogger("holdfast")
    logger.addHandler(listener)
    try:
        with Store.open(tmp_path, {**CONFIG, "scrub.rate": "64MiB"}) as store:
            store.commit("trades", pa.record_batch({"id": range(1000)}))
            store.flush()
            (path,) = tmp_path.glob("channels/trades/*.arrow")
            data = bytearray(path.read_bytes())
            data[700] ^= 1
            path.write_bytes(data)
            assert found.wait(30)
            assert store.statistics().scrub.findings[0].file == str(path)
    finally:
        logger.removeHandler(listener)


def test_store_without_a_rate_starts_no_thread(tmp_path: Path) -> None:
    with Store.open(tmp_path, CONFIG) as store:
        names = {thread.name for thread in threading.enumerate()}
        assert "holdfast-keeper" in names
        assert "holdfast-scrubber" not in names
        assert store.statistics().scrub.rate_bytes_per_s == 0
