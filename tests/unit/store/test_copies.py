"""Copies of segments that are only in the tier: bounded, fetched once, proven, and parts where a part is enough."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from holdfast import Store
from holdfast.disk.local import LocalFilesystem
from holdfast.disk.openfiles import OpenFiles
from holdfast.errors import DiskFull, OnlyInTier, TierUnavailable
from holdfast.store.catalog import Catalog, PublishedSegment
from holdfast.store.copies import Copies


class Elsewhere:
    """A source that has the files of a store, and counts what is asked of it."""

    def __init__(self, folder: Path, cache_bytes: int) -> None:
        self._folder = folder
        self.cache_bytes = cache_bytes
        self.held_bytes = 0
        self.copied: list[int] = []
        self.ranges: list[tuple[int, int]] = []
        self.gate = threading.Event()
        self.gate.set()
        self.waiting = threading.Semaphore(0)
        self.error: Exception | None = None
        self.flip = -1
        """A byte that comes wrong in a part."""

    def holds(self, _segment: PublishedSegment) -> bool:
        return True

    def fetch(self, _segment: PublishedSegment, _target: Path) -> bool:
        return False

    def copy(self, segment: PublishedSegment, target: Path) -> None:
        self.waiting.release()
        self.gate.wait(10)
        self.copied.append(segment.meta.segment_seq)
        if self.error is not None:
            raise self.error
        target.write_bytes(self._bytes(segment))

    def part(self, segment: PublishedSegment, start: int, end: int) -> bytes:
        self.ranges.append((start, end))
        data = bytearray(self._bytes(segment)[start:end])
        if start <= self.flip < end:
            data[self.flip - start] ^= 1
        return bytes(data)

    def _bytes(self, segment: PublishedSegment) -> bytes:
        return (self._folder / segment.meta.channel / segment.file_name).read_bytes()


class Shelf:
    """A store with a few segments, all of them noted as remote, and copies of them."""

    def __init__(self, tmp_path: Path, *, events: int, count: int = 3, fits: float = 2.5) -> None:
        self.directory = tmp_path / "data"
        with Store.open(self.directory, inline=True) as store:
            for number in range(count):
                for part in range(4):
                    first = (number * 4 + part) * events // 4
                    store.commit("a", pa.record_batch({"value": np.arange(first, first + events // 4)}))
                store.flush()
        self.catalog = Catalog(LocalFilesystem(), self.directory)
        channel_id = self.catalog.channels()[0].channel_id
        self.catalog.release(list(self.catalog.segments(channel_id)))
        self.segments = list(self.catalog.segments(channel_id))
        self.source = Elsewhere(self.directory / "channels", int(fits * self.segments[0].size_bytes))
        self.copies = self.opened()

    def opened(self) -> Copies:
        """What the next process would begin with."""
        open_files = OpenFiles(LocalFilesystem(), 100)
        return Copies(
            LocalFilesystem(),
            self.directory / "cache",
            catalog=self.catalog,
            source=self.source,
            open_files=open_files,
        )

    def values(self, number: int, span: tuple[int, int] | None = None) -> list[int]:
        meta = self.segments[number].meta
        span = span or (meta.first_seq, meta.last_seq)
        reader = self.copies.open(self.segments[number], span)
        return [value for _, batch in reader.batches(*span) for value in batch.column("value").to_pylist()]

    def files(self) -> list[Path]:
        return sorted((self.directory / "cache").iterdir())


def test_a_copy_is_fetched_once_and_then_found(tmp_path: Path) -> None:
    shelf = Shelf(tmp_path, events=40)
    assert shelf.values(0) == shelf.values(0) == list(range(40))
    assert len(shelf.source.copied) == 1
    statistics = shelf.copies.statistics()
    assert (statistics.copies, statistics.fetches, statistics.hits) == (1, 1, 1)


def test_the_copy_that_was_not_read_for_the_longest_time_goes(tmp_path: Path) -> None:
    shelf = Shelf(tmp_path, events=40)
    for number in (0, 1, 0, 2):
        shelf.values(number)
    numbers = [shelf.segments[number].meta.segment_seq for number in (0, 2)]
    assert [path.name.split("-")[1] for path in shelf.files()] == [str(number) for number in numbers]
    assert sum(path.stat().st_size for path in shelf.files()) <= shelf.source.cache_bytes
    shelf.values(1)
    assert len(shelf.source.copied) == 4


def test_one_copy_fits_however_small_the_bound_is(tmp_path: Path) -> None:
    shelf = Shelf(tmp_path, events=40, fits=0.5)
    assert shelf.values(0) + shelf.values(1) == list(range(80))
    assert len(shelf.files()) == 1


def test_readers_at_the_same_time_fetch_once(tmp_path: Path) -> None:
    shelf = Shelf(tmp_path, events=40)
    shelf.source.gate.clear()
    with ThreadPoolExecutor(4) as pool:
        futures = [pool.submit(shelf.values, 0) for _ in range(4)]
        shelf.source.gate.set()
        assert [future.result() for future in futures] == [list(range(40))] * 4
    assert len(shelf.source.copied) == 1


def test_the_bound_holds_while_several_are_fetched(tmp_path: Path) -> None:
    shelf = Shelf(tmp_path, events=40, count=4, fits=1.5)
    with ThreadPoolExecutor(4) as pool:
        shelf.source.gate.clear()
        futures = [pool.submit(shelf.values, number) for number in range(4)]
        shelf.source.waiting.acquire()
        assert not shelf.source.waiting.acquire(timeout=0.05)  # the others wait for room, not for the source
        shelf.source.gate.set()
        found = [future.result() for future in futures]
    assert found == [list(range(40 * number, 40 * number + 40)) for number in range(4)]
    assert sum(path.stat().st_size for path in shelf.files()) <= shelf.source.cache_bytes
    assert shelf.copies.statistics().bytes <= shelf.source.cache_bytes


def test_everybody_who_waits_is_told_that_a_fetch_failed(tmp_path: Path) -> None:
    shelf = Shelf(tmp_path, events=40)
    shelf.source.error = TierUnavailable(url="s3://b", action="read", reason="503")
    shelf.source.gate.clear()
    with ThreadPoolExecutor(2) as pool:
        futures = [pool.submit(shelf.copies.path, shelf.segments[0]) for _ in range(2)]
        shelf.source.gate.set()
        for future in futures:
            with pytest.raises(TierUnavailable):
                future.result()
    shelf.source.error = None
    assert shelf.values(0) == list(range(40))


def test_a_copy_somebody_deleted_is_fetched_again(tmp_path: Path) -> None:
    shelf = Shelf(tmp_path, events=40)
    shelf.values(0)
    shelf.copies.path(shelf.segments[1])
    for path in shelf.files():
        path.unlink()
    assert shelf.values(1) == list(range(40, 80))


def test_copies_of_an_earlier_process_are_used_after_a_look(tmp_path: Path) -> None:
    shelf = Shelf(tmp_path, events=40)
    shelf.values(0)
    shelf.copies = shelf.opened()
    assert shelf.values(0) == list(range(40))
    assert len(shelf.source.copied) == 1


def test_a_damaged_copy_of_an_earlier_process_is_never_believed(tmp_path: Path) -> None:
    shelf = Shelf(tmp_path, events=40)
    shelf.values(0)
    data = bytearray(shelf.files()[0].read_bytes())
    data[len(data) // 2] ^= 1
    shelf.files()[0].write_bytes(data)
    shelf.copies = shelf.opened()
    with pytest.raises(Exception, match="not what was written"):
        shelf.values(0)
    assert shelf.values(0) == list(range(40))  # the reader above tries again
    assert len(shelf.source.copied) == 2


def test_what_an_earlier_process_left_and_nobody_needs_is_removed(tmp_path: Path) -> None:
    shelf = Shelf(tmp_path, events=40)
    shelf.values(0)
    shelf.values(1)
    (shelf.directory / "cache/seg-1-00000000.arrow").write_bytes(b"another")
    (shelf.directory / "cache/seg-9.arrow.tmp").write_bytes(b"half")
    shelf.catalog.regain([shelf.segments[1].meta.segment_seq])
    shelf.copies = shelf.opened()
    assert [path.name for path in shelf.files()] == [f"seg-1-{shelf.segments[0].crc32c:08x}.arrow"]


def test_a_full_disk_gives_the_copies_back_and_says_so(tmp_path: Path) -> None:
    shelf = Shelf(tmp_path, events=40)
    shelf.values(0)
    shelf.source.error = OSError(28, "No space left on device")
    with pytest.raises(DiskFull, match="cache"):
        shelf.values(1)
    assert shelf.files() == []


def test_without_a_source_the_error_names_the_segment(tmp_path: Path) -> None:
    shelf = Shelf(tmp_path, events=40)
    copies = Copies(
        LocalFilesystem(),
        shelf.directory / "cache",
        catalog=shelf.catalog,
        source=None,
        open_files=OpenFiles(LocalFilesystem(), 10),
    )
    with pytest.raises(OnlyInTier, match="segment 1 of channel 'a'"):
        copies.open(shelf.segments[0], (1, 1))


# -- parts ------------------------------------------------------------------------------------------------------------


@pytest.fixture
def large(tmp_path: Path) -> Shelf:
    shelf = Shelf(tmp_path, events=400_000, count=1)
    assert shelf.segments[0].size_bytes > 2 << 20
    return shelf


def test_a_small_part_of_a_large_segment_is_all_that_is_fetched(large: Shelf) -> None:
    assert large.values(0, (250_001, 250_010)) == list(range(250_000, 250_010))
    fetched = sum(end - start for start, end in large.source.ranges)
    assert fetched < large.segments[0].size_bytes // 2
    assert large.source.copied == []
    assert large.copies.statistics().parts == 1


def test_who_comes_a_second_time_gets_the_whole(large: Shelf) -> None:
    for _ in range(2):
        assert large.values(0, (250_001, 250_010)) == list(range(250_000, 250_010))
    assert len(large.source.copied) == 1


def test_runs_need_no_more_than_the_end_of_the_file(large: Shelf) -> None:
    runs = large.copies.open(large.segments[0], None).runs
    assert (runs.first_seq, runs.last_seq) == (1, 400_000)
    assert sum(end - start for start, end in large.source.ranges) < 1 << 20
    assert large.source.copied == []


@pytest.mark.parametrize("place", [0.55, 0.62, 0.9999])
def test_a_part_that_came_wrong_is_never_given_out(large: Shelf, place: float) -> None:
    large.source.flip = int(place * large.segments[0].size_bytes)
    for first in (1, 250_001, 399_990):
        large.copies = large.opened()
        assert large.values(0, (first, first + 9)) == list(range(first - 1, first + 9))
        large.copies.forget(large.segments[0].meta.segment_seq)
