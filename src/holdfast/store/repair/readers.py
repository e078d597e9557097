"""Who reads, and how far: subscribers and their progress from the catalog and the acknowledgement log.

Promise: every intact record counts, also behind a damaged one: outcomes are facts about sets of seqs, so their order
does not matter. What is lost with a damaged record costs redelivery; no mark moves back and none passes what was not
settled.

The catalog says who is registered. Without it, the newest snapshot of the log does: one that was removed after it is
back. One that registered after it is known only by its answers. It gets the name `lost-<number>` and goes on pinning
what it did not confirm, until somebody removes it: retention must not delete what its owner may still want.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from holdfast.model.intervals import IntervalSet
from holdfast.store.inspect.logs import MAKES_NO_SENSE
from holdfast.store.repair.salvage import FoundLog
from holdfast.store.subscribers.acklog import (
    KIND_SNAPSHOT,
    NOBODY_ID,
    OutcomeRecord,
    decode_outcomes,
    decode_snapshot,
)
from holdfast.store.subscribers.notes import ProgressNote, Snapshot, SubscriberNote
from holdfast.store.subscribers.progress import Outcome

LOST_PREFIX = "lost-"


def gather_readers(logs: Sequence[FoundLog], known: Snapshot, *, complete: bool, names: Mapping[int, str]) -> Snapshot:
    """All that is known of subscribers. `known` is what the catalog says; `complete`: it can be believed."""
    snapshots, outcomes = _records(logs)
    notes = {note.subscriber_id: note for note in known.subscribers}
    if not complete:
        notes |= {note.subscriber_id: note for snapshot in snapshots[-1:] for note in snapshot.subscribers}
        progress_of = [item for source in (known, *snapshots) for item in source.progress]
        notes |= _nameless(notes, [*progress_of, *outcomes], names)
    starts: dict[tuple[int, int], int] = {}
    ranges: dict[tuple[int, int], IntervalSet] = {}
    for item in (item for source in (known, *snapshots) for item in source.progress):
        key = (item.subscriber_id, item.channel_id)
        starts.setdefault(key, item.start_seq)
        _add(ranges.setdefault(key, IntervalSet()), item.ranges)
    for outcome in outcomes:
        key = (outcome.subscriber_id, outcome.channel_id)
        starts.setdefault(key, 1)  # a channel that joined by itself is followed from its first event
        _add(ranges.setdefault(key, IntervalSet()), outcome.ranges)
    progress = [
        ProgressNote(*key, start, _from(ranges[key], start)) for key, start in starts.items() if key[0] in notes
    ]
    following = max(
        [known.next_subscriber_id, *(item.next_subscriber_id for item in snapshots), *_after(notes, outcomes)]
    )
    return Snapshot(following, tuple(notes.values()), tuple(progress))


def _nameless(
    notes: dict[int, SubscriberNote], answers: Iterable[ProgressNote | OutcomeRecord], names: Mapping[int, str]
) -> dict[int, SubscriberNote]:
    """Subscribers that nothing names, with the channels in which they answered."""
    followed: dict[int, set[str]] = {}
    for answer in answers:
        if answer.subscriber_id not in notes and answer.channel_id in names:
            followed.setdefault(answer.subscriber_id, set()).add(names[answer.channel_id])
    return {
        number: SubscriberNote(number, f"{LOST_PREFIX}{number}", tuple(sorted(channels)), False, 0)
        for number, channels in followed.items()
    }


def _records(logs: Iterable[FoundLog]) -> tuple[list[Snapshot], list[OutcomeRecord]]:
    """Snapshots and the outcomes that settle something, oldest first."""
    snapshots: list[Snapshot] = []
    outcomes: list[OutcomeRecord] = []
    for record in (record for found in logs for record in found.records):
        try:
            if record.kind == KIND_SNAPSHOT:
                snapshots.append(decode_snapshot(record.payload))
            outcomes += [
                outcome
                for outcome in decode_outcomes(record)
                if Outcome(outcome.outcome).settles and outcome.subscriber_id != NOBODY_ID
            ]
        except MAKES_NO_SENSE:
            continue
    return snapshots, outcomes


def _after(notes: dict[int, SubscriberNote], outcomes: list[OutcomeRecord]) -> list[int]:
    return [number + 1 for number in (*notes, *(outcome.subscriber_id for outcome in outcomes))]


def _add(ranges: IntervalSet, more: Iterable[tuple[int, int]]) -> None:
    for first, last in more:
        ranges.add(first, last)


def _from(ranges: IntervalSet, start: int) -> tuple[tuple[int, int], ...]:
    """What concerns a subscriber that starts there."""
    return tuple((max(first, start), last) for first, last in ranges if last >= start)
