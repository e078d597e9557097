"""What shall become of everything that was found. Pure: decides, and does nothing.

Every event that any intact byte holds is afterwards in one of these:

    kept       a published segment whose file is what was written
    adopted    a segment file that proves itself, which the catalog does not know and no other segment holds
    harvested  events that only damaged or doubled segments, or the log, still hold: written anew as segments

Every seq that was given out and is in none of them is in `gone`, with the reason:

    evicted    retention deleted it, and the catalog said so
    damage     it was stored, and what held it cannot be read
    skipped    a start or a repair passed over this number, so that none is used twice
    unknown    evicted, skipped or damaged: the catalog that could have told is lost

What was evicted does not come back, even if a log file or a stray segment still holds it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from holdfast.model.intervals import IntervalSet
from holdfast.store.committer import UNSYNCED_EVENTS_MAX
from holdfast.store.repair.frames import EVENTS_PER_BYTE, Numbers
from holdfast.store.repair.readers import LOST_PREFIX
from holdfast.store.repair.segments import MISSING, FoundSegment
from holdfast.store.repair.survey import NEWEST_MISSING, Span, Survey

EVICTED, DAMAGE, SKIPPED, UNKNOWN = "evicted", "damage", "skipped", "unknown"
SEGMENT_SEQ_JUMP = 1_000_000
"""Segment numbers that a rebuilt catalog skips: more than were reserved since any file that tells of them."""

_NONE = IntervalSet()

Gone = list[tuple[int, int, str]]
Ranges = dict[str, IntervalSet]


@dataclass(slots=True)
class Stock:
    """The decision. Channels are called by name."""

    rebuild: bool
    replace_wal: bool
    replace_ack: bool
    spare_logs: tuple[Path, ...]
    """Log files that nobody needs and that keep a start from starting."""
    kept: list[FoundSegment] = field(default_factory=list)
    removed: list[FoundSegment] = field(default_factory=list)
    """Rows that leave the catalog."""
    adopted: list[FoundSegment] = field(default_factory=list)
    aside: list[FoundSegment] = field(default_factory=list)
    """Files that go to quarantine, after what they still hold was written anew."""
    channel_ids: dict[str, int] = field(default_factory=dict)
    next_seqs: dict[str, int] = field(default_factory=dict)
    """Where each channel goes on, as the catalog will say."""
    numbers: Numbers = field(default_factory=Numbers)
    harvested: Ranges = field(default_factory=dict)
    gone: dict[str, Gone] = field(default_factory=dict)
    lost: Ranges = field(default_factory=dict)
    """What is gone with reason `damage`, and was not before."""
    unknown: Ranges = field(default_factory=dict)
    """The same with reason `unknown`."""
    uncertain: list[str] = field(default_factory=list)

    @property
    def changes(self) -> bool:
        """Whether there is anything to do."""
        lists = (self.spare_logs, self.removed, self.adopted, self.aside, self.harvested, self.lost)
        return self.rebuild or self.replace_wal or self.replace_ack or any(lists)


class Harvester:
    """Says which part of what is found is needed. Used twice, in the same order: to plan, and to write."""

    def __init__(self, survey: Survey, stock: Stock) -> None:
        self._covered = _not_needed(survey, stock)
        names = survey.lexicon.names
        self._published = {names[key]: row.next_seq for key, row in survey.contents.channels.items()}
        self._all = stock.replace_wal

    def from_segment(self, channel: str, first: int, last: int) -> list[tuple[int, int]]:
        """The parts of a damaged or doubled segment that no good one holds."""
        wanted = list(self._covered.setdefault(channel, IntervalSet()).missing(first, last))
        for low, high in wanted:
            self._covered[channel].add(low, high)
        return wanted

    def from_log(self, channel: str, first: int, last: int) -> list[tuple[int, int]]:
        """Those of the log: all that is not published, or, if the log stays, only what the log is not asked for."""
        end = last if self._all else min(last, self._published.get(channel, 1) - 1)
        return self.from_segment(channel, first, end) if first <= end else []


def take_stock(survey: Survey) -> Stock:
    """Decide what becomes of everything."""
    # After an interrupted repair the catalog is right, and only the logs are still to be begun.
    finishing = None if survey.distrusted else survey.unfinished
    broken = any(problem.needed for problem in survey.wal_problems)
    replace_wal = survey.distrusted or broken or finishing is not None or _has_newer_strays(survey)
    stock = Stock(
        rebuild=survey.distrusted,
        replace_wal=replace_wal,
        replace_ack=survey.distrusted or finishing is not None or bool(survey.ack_problems),
        spare_logs=() if replace_wal else tuple(dict.fromkeys(problem.path for problem in survey.wal_problems)),
    )
    _sort_segments(survey, stock)
    _name_channels(survey, stock)
    _gather_harvest(survey, stock)
    skip = _skip(survey, stock) if replace_wal and finishing is None else 0
    _set_numbers(survey, stock, skip=skip)
    if finishing is not None:
        stock.numbers.committed_id = finishing.committed_id
    accounts = _Accounts(survey, stock, skip=skip, log=replace_wal and finishing is None)
    for name in stock.channel_ids:
        accounts.settle(name)
    if stock.rebuild:
        stock.uncertain += _nameless(survey)
    return stock


def _gather_harvest(survey: Survey, stock: Stock) -> None:
    harvester = Harvester(survey, stock)
    for found in stock.aside:
        for span in spans_of(survey, found):
            _add_all(stock.harvested, span[0], harvester.from_segment(*span))
    for span in survey.log_spans:
        _add_all(stock.harvested, span[0], harvester.from_log(*span))


def _nameless(survey: Survey) -> Iterator[str]:
    for note in survey.readers.subscribers:
        if note.name.startswith(LOST_PREFIX):
            yield (
                f"a subscriber of {', '.join(note.patterns)} is known only by its answers: it is called {note.name} "
                "now and keeps what it did not confirm, until it is removed"
            )


def _has_newer_strays(survey: Survey) -> bool:
    """Whether a segment file holds events after the published ones that the log does not hold."""
    published = {row.name: row.next_seq for row in survey.contents.channels.values()}
    in_log = _in_log(survey)
    return any(
        found.intact and found.row is None and found.at_home and not _within(in_log, found)
        for found in survey.segments
        if found.meta is not None and found.meta.last_seq >= published.get(found.meta.channel, 1)
    )


# ------------------------------------------------------------------------------------------------------------- segments


def spans_of(survey: Survey, found: FoundSegment) -> tuple[Span, ...]:
    """What can be read of a segment that is set aside."""
    meta = found.meta
    whole = ((meta.channel, meta.first_seq, meta.last_seq),) if found.intact and meta is not None else ()
    return survey.parts.get(found.path, whole)


def _sort_segments(survey: Survey, stock: Stock) -> None:
    covered: Ranges = {}
    strays: list[FoundSegment] = []
    for found in survey.segments:
        if found.row is not None and found.intact and not _overlaps(covered, found):
            stock.kept.append(found)
            _cover(covered, found)
            continue
        if found.row is not None:
            stock.removed.append(found)
        if found.problem != MISSING:
            strays.append(found)
    evicted = _gone_of(survey, EVICTED)
    in_log = _in_log(survey) if not stock.replace_wal else {}
    for found in sorted(strays, key=lambda found: -(found.meta.rows if found.meta and found.intact else 0)):
        if found.intact and found.row is None and _within(in_log, found):
            continue  # a crash between writing and publishing; the next start deletes it
        if found.intact and found.at_home and not _overlaps(covered, found) and not _overlaps(evicted, found):
            stock.adopted.append(found)
            _cover(covered, found)
        else:
            stock.aside.append(found)


def _cover(covered: Ranges, found: FoundSegment) -> None:
    assert found.meta is not None
    covered.setdefault(found.meta.channel, IntervalSet()).add(found.meta.first_seq, found.meta.last_seq)


def _overlaps(ranges: Ranges, found: FoundSegment) -> bool:
    meta = found.meta
    return (
        meta is not None
        and meta.channel in ranges
        and bool(ranges[meta.channel].overlap(meta.first_seq, meta.last_seq))
    )


def _within(ranges: Ranges, found: FoundSegment) -> bool:
    meta = found.meta
    return meta is not None and meta.channel in ranges and ranges[meta.channel].covers(meta.first_seq, meta.last_seq)


def _in_log(survey: Survey) -> Ranges:
    """What the log holds and no segment is said to."""
    published = {row.name: row.next_seq for row in survey.contents.channels.values()}
    ranges: Ranges = {}
    for channel, first, last in survey.log_spans:
        if first >= published.get(channel, 1):
            ranges.setdefault(channel, IntervalSet()).add(first, last)
    return ranges


def _gone_of(survey: Survey, reason: str) -> Ranges:
    names = survey.lexicon.names
    return {
        names[channel_id]: IntervalSet((first, last) for first, last, why in ranges if why == reason)
        for channel_id, ranges in survey.gone.items()
        if channel_id in names
    }


def _not_needed(survey: Survey, stock: Stock) -> Ranges:
    """What good segments hold, or held until they were evicted."""
    covered: Ranges = {}
    for found in (*stock.kept, *stock.adopted):
        _cover(covered, found)
    for name, ranges in _gone_of(survey, EVICTED).items():
        _add_all(covered, name, ranges)
    return covered


def _add_all(ranges: Ranges, channel: str, more: Iterable[tuple[int, int]]) -> None:
    for first, last in more:
        ranges.setdefault(channel, IntervalSet()).add(first, last)


# -------------------------------------------------------------------------------------------------------------- numbers


def _name_channels(survey: Survey, stock: Stock) -> None:
    """Every channel gets the number it had; one that only segments name, a number that none ever had."""
    stock.channel_ids = {name: number for number, name in survey.lexicon.names.items()}
    floor = max(
        [survey.walk.numbers.channel_id]
        + [number + 1 for number in survey.lexicon.names]
        + [item.channel_id + 1 for item in survey.readers.progress]
    )
    named = {found.meta.channel for found in (*stock.adopted, *stock.aside) if found.meta is not None}
    for name in sorted(named - set(stock.channel_ids)):
        stock.channel_ids[name] = floor
        floor += 1
    stock.numbers.channel_id = floor


def _set_numbers(survey: Survey, stock: Stock, *, skip: int) -> None:
    """Above everything that was ever seen, and `skip` more."""
    metas = [found.row.meta if found.row is not None else found.meta for found in survey.segments]
    last_ids = [meta.last_committed_id for meta in metas if meta is not None]
    stock.numbers.committed_id = max([survey.walk.numbers.committed_id, *(number + 1 for number in last_ids)]) + skip
    seen = [int(path.stem.removeprefix("seg-")) + 1 for path in survey.files.segments]
    seen += [row.meta.segment_seq + 1 for row in survey.contents.segments]
    reserved = survey.contents.number("segment_seq_reserved") or 1
    jump = SEGMENT_SEQ_JUMP if stock.rebuild else 0
    stock.numbers.segment_seq = max([survey.walk.numbers.segment_seq, reserved, *seen]) + jump


def _skip(survey: Survey, stock: Stock) -> int:
    """How many seqs may have been given out that nothing tells of: in whole steps, as recovery skips them."""
    last = survey.wal[-1] if survey.wal else None
    if last is None:
        stock.uncertain.append(
            "there is no write-ahead log: events that were accepted last, and channels without a segment, are lost"
        )
        return UNSYNCED_EVENTS_MAX
    cut_short = last.rotated and last.end_offset == last.size_bytes  # the file being written has zeros behind its end
    if cut_short or any(problem.reason == NEWEST_MISSING for problem in survey.wal_problems):
        stock.uncertain.append(f"{last.path.name} was not the last file of the log: events of a later one are lost")
        return _whole_steps(last.size_bytes)
    if last.foreign or last.ends_in_hole:
        start = 0 if last.foreign else last.holes[-1].offset_bytes
        unread = last.size_bytes if last.foreign else last.holes[-1].end_bytes - start
        stock.uncertain.append(
            f"{last.path.name}: the last {unread} bytes, from byte {start} on, cannot be read, and nothing tells how "
            "many events they held; these would have gone on where each channel ends"
        )
        return _whole_steps(unread)
    if last.torn_bytes:
        stock.uncertain.append(
            f"{last.path.name}: the last {last.torn_bytes} bytes, from byte {last.end_offset} on, are of a write that "
            "was never finished; they are cut off, as by any start"
        )
    return UNSYNCED_EVENTS_MAX if last.weak and not last.closed else 0


def _whole_steps(unread_bytes: int) -> int:
    """More events than so many bytes can hold, in the steps in which recovery skips numbers."""
    return (1 + -(-EVENTS_PER_BYTE * unread_bytes // UNSYNCED_EVENTS_MAX)) * UNSYNCED_EVENTS_MAX


class _Accounts:
    """Says of every seq where it is, or why it is gone."""

    def __init__(self, survey: Survey, stock: Stock, *, skip: int, log: bool) -> None:
        """`log` False: the log stays, or what it says was taken account of before."""
        self._survey = survey
        self._stock = stock
        self._skip = skip
        self._log = log
        self._there: Ranges = {}
        self._damaged: Ranges = {}
        names = survey.lexicon.names
        for found in (*stock.kept, *stock.adopted):
            _cover(self._there, found)
        for name, ranges in stock.harvested.items():
            _add_all(self._there, name, ranges)
        for found in stock.removed:
            if found.row is not None:
                span = (found.row.meta.first_seq, found.row.meta.last_seq)
                _add_all(self._damaged, names.get(found.row.channel_id, found.row.meta.channel), [span])
        for found in stock.aside:
            if found.meta is not None and found.row is None:
                _cover(self._damaged, found)
        for channel_id, ranges in survey.walk.suspects.items() if self._log else ():
            _add_all(self._damaged, names.get(channel_id, f"#{channel_id}"), ranges)
        for name in self._damaged.keys() - stock.channel_ids.keys():  # nothing tells how it was called
            _add_all(stock.lost, name, self._damaged[name])
        self._next_seqs = dict(survey.walk.next_seqs) if self._log else {}
        self._silent: set[int] = set()
        self._unheard = 0
        if self._log and not skip:
            self._assign_the_rest()

    def _assign_the_rest(self) -> None:
        """Events are missing of channels that nothing names afterwards: told by committed_ids, not by seqs."""
        survey, stock = self._survey, self._stock
        walk = survey.walk
        silent = sorted(name for name, number in stock.channel_ids.items() if number in walk.silent)
        numbers = [stock.channel_ids[name] for name in silent]
        events = walk.unassigned - sum(
            max(0, survey.published.get(number, 1) - walk.told.get(number, 1)) for number in numbers
        )
        if events <= 0:
            return
        if len(silent) == 1:  # nobody else can have lost them
            number = stock.channel_ids[silent[0]]
            first = max(self._next_seqs.get(number, 1), (self._there.get(silent[0], _NONE).highest or 0) + 1)
            _add_all(self._damaged, silent[0], [(first, first + events - 1)])
            self._next_seqs[number] = first + events
            return
        whose = f"of the channels {', '.join(silent)}" if silent else "of a channel whose name is lost with them"
        stock.uncertain.append(f"{events} events {whose} are lost; nothing tells which")
        self._silent = {stock.channel_ids[name] for name in silent}
        self._unheard = _whole_steps(events // EVENTS_PER_BYTE)

    def settle(self, name: str) -> None:
        """Account for one channel."""
        survey, stock = self._survey, self._stock
        channel_id = stock.channel_ids[name]
        there = self._there.get(name, IntervalSet())
        row = survey.contents.channels.get(channel_id)
        known = max(row.next_seq if row is not None else 1, (there.highest or 0) + 1)
        known = max(known, self._next_seqs.get(channel_id, 1))
        skip = self._skip + (self._unheard if channel_id in self._silent else 0)
        stock.next_seqs[name] = known + skip
        before = survey.gone.get(channel_id, [])
        told = IntervalSet((first, last) for first, last, _ in before)
        birth_seq = survey.contents.number("birth_seq") or 1
        if birth_seq > 1 and not any(there.overlap(1, birth_seq - 1)):  # it was new when the store had been restored
            told.add(1, birth_seq - 1)
        fresh: Gone = []
        for first, last in there.missing(1, known - 1):
            for low, high in told.missing(first, last):
                fresh += self._reasons(name, low, high)
        if skip:
            fresh.append((known, known + skip - 1, SKIPPED))
        kept = [(low, high, why) for first, last, why in before for low, high in there.missing(first, last)]
        stock.gone[name] = sorted(kept + fresh)
        _add_all(stock.lost, name, [(first, last) for first, last, why in fresh if why == DAMAGE])
        _add_all(stock.unknown, name, [(first, last) for first, last, why in fresh if why == UNKNOWN])

    def _reasons(self, name: str, first: int, last: int) -> Iterator[tuple[int, int, str]]:
        """Why seqs that nothing holds are missing."""
        damaged = self._damaged.get(name, IntervalSet())
        skipped = self._survey.walk.skipped.get(self._stock.channel_ids[name], IntervalSet())
        for low, high in damaged.overlap(first, last):
            yield low, high, DAMAGE
        for low, high in damaged.missing(first, last):
            for part in skipped.overlap(low, high):
                yield (*part, SKIPPED)
            for start, end in skipped.missing(low, high):
                whole_step = (end - start + 1) % UNSYNCED_EVENTS_MAX == 0
                yield start, end, UNKNOWN if self._stock.rebuild else SKIPPED if whole_step else DAMAGE
