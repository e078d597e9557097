"""Carrying out what was decided, in an order in which every step can be interrupted and the whole be done again.

    step                                                   a power cut after it leaves
    1  copies of the logs and the catalog that go          the old state, and copies
    2  what only they hold, as new segment files           the old state, and files the catalog does not know; the next
                                                           repair adopts them or writes them again under other numbers
    3  the catalog: one transaction; or a new file that    the old catalog, or the new one. While the new file takes the
       takes the place of the damaged one                  old one's place there may be none; the new one is complete
                                                           then, and the next repair puts it there
    4  new logs, which begin above all numbers             the new catalog says where; the next repair begins them
    5  damaged and doubled segments move to quarantine     files that the catalog does not know; moved by the next one
    6  the old logs are deleted (step 1 has copies)        old log files that nobody needs; deleted by the next start

Promise: nothing intact is lost at any of them, and nothing is deleted of which there is no copy in quarantine. A store
may be opened in between if it opens at all.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass
from itertools import count
from pathlib import Path

from holdfast.disk.appendlog import AppendLog, LogSpec, NewRecord
from holdfast.disk.filesystem import Database, Filesystem
from holdfast.errors import StoreFailed
from holdfast.model.intervals import IntervalSet
from holdfast.store.catalog import CATALOG_NAME, VERSION, Catalog, Loss, Publication, PublishedSegment
from holdfast.store.ground import ACK_DIR, WAL_DIR
from holdfast.store.repair.amend import Amendment, amend
from holdfast.store.repair.harvest import channel_row, event_ids, write_harvest
from holdfast.store.repair.oldrows import old_rows
from holdfast.store.repair.quarantine import Quarantine
from holdfast.store.repair.salvage import FoundLog
from holdfast.store.repair.segments import FoundSegment, segment_pieces
from holdfast.store.repair.stock import DAMAGE, Stock
from holdfast.store.repair.survey import NEW_CATALOG_NAME, UNFINISHED_KEY, Survey, Unfinished
from holdfast.store.subscribers.acklog import ACK_NAME, encode_snapshot
from holdfast.store.tables import TABLES
from holdfast.store.wal.codec import Floors, encode_floors
from holdfast.store.wal.log import WAL_NAME

LOG_BYTES = 1 << 16
"""What a new log file reserves until it is closed."""
NOBODY = ""
_SIDE_FILES = ("-wal", "-shm")


@dataclass(frozen=True, slots=True)
class _LogPlace:
    """Where a log goes on."""

    number: int
    position: int


class Operation:
    """One repair. The caller holds the lock of the store, and the survey is of now."""

    def __init__(self, filesystem: Filesystem, survey: Survey, stock: Stock, quarantine: Quarantine) -> None:
        self._filesystem = filesystem
        self._survey = survey
        self._stock = stock
        self._quarantine = quarantine
        self._directory = survey.directory
        self._wal = _place(survey.wal, survey.contents.number("wal_cursor") or 0)
        self._ack = _place(survey.ack, survey.contents.number("ack_cursor") or 0)
        if survey.unfinished is not None:
            self._wal = _LogPlace(survey.unfinished.number, survey.unfinished.position)
        self.published: list[Publication] = []

    def run(self) -> None:
        """All steps."""
        self._finish_exchange()
        self._copy()
        if self._stock.rebuild:
            self._rebuild()
        else:
            self._amend()
        self._begin_logs()
        for found in self._stock.aside:
            self._quarantine.move(found.path)
        for path in self._stock.spare_logs:
            self._quarantine.move(path)
        self._delete_old_logs()

    # -- 1. copies --------------------------------------------------------------------------------------------------

    def _copy(self) -> None:
        for path in self._old_logs():
            self._quarantine.keep_copy(path)
        if self._stock.rebuild:
            for path in self._catalog_files():
                self._quarantine.keep_copy(path)

    def _old_logs(self) -> list[Path]:
        files = self._survey.files
        return [*(files.logs if self._stock.replace_wal else ()), *(files.ack_logs if self._stock.replace_ack else ())]

    def _catalog_files(self) -> list[Path]:
        names = [CATALOG_NAME, *(CATALOG_NAME + suffix for suffix in _SIDE_FILES)]
        return [path for name in names if self._filesystem.exists(path := self._directory / name)]

    # -- 2 and 3. segments and catalog ------------------------------------------------------------------------------

    def _amend(self) -> None:
        """The catalog is in order: one transaction."""
        with closing(Catalog(self._filesystem, self._directory)) as catalog:
            if catalog.segment_seq_floor < self._stock.numbers.segment_seq:  # files are newer than the catalog
                catalog.set_meta(segment_seq_reserved=self._stock.numbers.segment_seq)
        with closing(Catalog(self._filesystem, self._directory)) as catalog:
            self._harvest(catalog.next_segment_seq)
            following = catalog.segment_seq_floor
        numbers = [found.row.meta.segment_seq for found in self._stock.removed if found.row is not None]
        amendment = self._amendment(following, removed=numbers, publications=self._adopted() + self.published)
        with closing(self._filesystem.database(self._directory / CATALOG_NAME)) as database:
            amend(database, amendment)

    def _rebuild(self) -> None:
        """Nothing of the old catalog stays: a new one is written beside it and takes its place."""
        survey = self._survey
        numbers = count(self._stock.numbers.segment_seq)
        self._harvest(numbers.__next__)
        following = next(numbers)
        publications = [*map(self._publication, self._stock.kept), *self._adopted(), *self.published]
        amendment = self._amendment(following, publications=publications)
        new = self._directory / NEW_CATALOG_NAME
        self._remove([new, *(new.with_name(new.name + suffix) for suffix in _SIDE_FILES)])
        with (
            old_rows(self._filesystem, survey.catalog_path, survey.contents) as rows,
            closing(self._filesystem.database(new)) as database,
        ):
            _create_tables(database)
            amend(database, amendment, event_ids=rows.event_ids())
        self._exchange()

    def _harvest(self, next_segment_seq: Callable[[], int]) -> None:
        self.published = list(
            write_harvest(self._filesystem, self._survey, self._stock, next_segment_seq=next_segment_seq)
        )

    def _adopted(self) -> list[Publication]:
        return [self._publication(found) for found in self._stock.adopted]

    def _publication(self, found: FoundSegment) -> Publication:
        meta = found.meta
        assert meta is not None
        column = self._survey.id_column(meta.channel)
        pieces = segment_pieces(self._filesystem, found) if column else ()
        ids = [pair for piece in pieces for pair in event_ids(piece, column)]
        segment = PublishedSegment(
            self._stock.channel_ids[meta.channel], meta, found.has_guids, found.size_bytes, found.crc32c
        )
        return Publication(segment, channel_row(self._survey, self._stock, meta.channel), found.slots, ids)

    def _amendment(
        self, following: int, *, publications: list[Publication], removed: list[int] | None = None
    ) -> Amendment:
        survey, stock = self._survey, self._stock
        stock.numbers.segment_seq = max(stock.numbers.segment_seq, following)
        meta: dict[str, bytes | int] = {"segment_seq_reserved": following}
        if stock.replace_wal:
            place = Unfinished(self._wal.position, self._wal.number, stock.numbers.committed_id)
            meta |= {"wal_cursor": self._wal.position, UNFINISHED_KEY: place.encode()}
        if stock.replace_ack:
            meta |= {"ack_cursor": self._ack.position}
        if stock.rebuild:
            meta = {**survey.contents.meta, "store_id": survey.store_id, "version": VERSION, **meta}
        known = [name for name in stock.channel_ids if name in survey.lexicon.schemas]
        lost = [
            (stock.channel_ids[name], first, last)
            for name, ranges in stock.lost.items()
            if name in stock.channel_ids
            for first, last in ranges
        ]
        return Amendment(
            meta=meta,
            removed=removed or (),
            publications=publications,
            channels=[channel_row(survey, stock, name) for name in known] if stock.replace_wal else (),
            gone={stock.channel_ids[name]: ranges for name, ranges in stock.gone.items()},
            lost=lost,
            losses=[*(survey.losses if stock.rebuild else ()), *self._losses()],
            readers=survey.readers if stock.replace_ack else None,
            slots=survey.contents.slots if stock.rebuild else {},
            floors=survey.floors if stock.rebuild else {},
            partition_floors=survey.partition_floors if stock.rebuild else (),
            doomed=survey.doomed if stock.rebuild else {},
            remote=sorted(survey.contents.remote) if stock.rebuild else (),
        )

    def _losses(self) -> Iterator[Loss]:
        """What is lost, once per channel. Subscribers are told when the store is opened."""
        for name, ranges in self._stock.lost.items():
            events = sum(last - first + 1 for first, last in ranges)
            rows = [
                found.row for found in self._stock.removed if found.row is not None and found.row.meta.channel == name
            ]
            size = sum(row.size_bytes * _count(ranges, row) // row.meta.rows for row in rows)
            yield Loss(name, NOBODY, DAMAGE, segments=len(rows), events=events, bytes=size)

    def _exchange(self) -> None:
        """Put the new catalog in the old one's place. A log of SQLite's must never stand beside another database."""
        old = self._directory / CATALOG_NAME
        self._remove([old])
        self._remove([old.with_name(old.name + suffix) for suffix in _SIDE_FILES])
        new = self._directory / NEW_CATALOG_NAME
        if self._filesystem.exists(new.with_name(new.name + _SIDE_FILES[0])):
            raise StoreFailed(file=new, reason="SQLite did not finish writing it")
        self._filesystem.rename(new, old)
        self._filesystem.sync_dir(self._directory)

    def _finish_exchange(self) -> None:
        if self._survey.interrupted:
            self._filesystem.database(self._survey.catalog_path).close()  # takes in its own log
            self._exchange()

    def _remove(self, paths: list[Path]) -> None:
        for path in paths:
            if self._filesystem.exists(path):
                self._filesystem.unlink(path)
        self._filesystem.sync_dir(self._directory)

    # -- 4 and 6. logs ----------------------------------------------------------------------------------------------

    def _begin_logs(self) -> None:
        stock = self._stock
        if stock.replace_wal:
            channels = [(number, name, stock.next_seqs[name]) for name, number in stock.channel_ids.items()]
            numbers = stock.numbers
            floors = Floors(numbers.committed_id, numbers.segment_seq, numbers.channel_id, channels)
            self._begin(WAL_NAME, WAL_DIR, self._wal, encode_floors(floors))
        if stock.replace_ack:
            self._begin(ACK_NAME, ACK_DIR, self._ack, encode_snapshot(self._survey.readers))

    def _begin(self, name: str, folder: str, place: _LogPlace, prologue: NewRecord) -> None:
        """A log that holds nothing but its prologue, closed in order."""
        self._filesystem.makedir(self._directory / folder)
        self._filesystem.sync_dir(self._directory)
        AppendLog(
            self._filesystem,
            self._directory / folder,
            spec=LogSpec(name, rotation_bytes=LOG_BYTES),
            store_id=self._survey.store_id,
            number=place.number,
            position=place.position,
            prologue=lambda: [prologue],
        ).close()

    def _delete_old_logs(self) -> None:
        paths = self._old_logs()
        for path in paths:
            self._filesystem.unlink(path)
        for folder in sorted({path.parent for path in paths}):
            self._filesystem.sync_dir(folder)


def _place(files: tuple[FoundLog, ...], cursor: int) -> _LogPlace:
    """Above every number and behind every position that the files, or the catalog, may have used."""
    number = max((found.number for found in files), default=0) + 1
    starts = [found.start_position or 0 for found in files]
    position = max([cursor, *starts]) + sum(found.size_bytes for found in files)
    return _LogPlace(number, (position + 4095) // 4096 * 4096)


def _create_tables(database: Database) -> None:
    with database.transaction() as change:
        for statement in TABLES.split(";\n"):
            if statement.strip():
                change.execute(statement)


def _count(ranges: IntervalSet, row: PublishedSegment) -> int:
    return ranges.count(row.meta.first_seq, row.meta.last_seq)
