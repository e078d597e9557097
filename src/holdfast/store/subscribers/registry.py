"""All subscribers of a store: who they are, what they follow, and what is owed to them.

Promises:

- A subscriber follows the channels its patterns match. At registration its start position is turned into a fixed seq
  per channel and kept; a channel that is created later joins by itself and is followed from its first event.
- What is owed to a subscriber is never handed out twice at the same time: a lease claims it until it is answered, given
  back or expired.
- After `deregister` a subscriber pins nothing; what it had not read is reported.

State is the catalog's checkpoint plus the acknowledgement log since. Thread-safe: one lock, `changed` is notified when
there may be something new to hand out.
"""

from __future__ import annotations

import heapq
import re
import threading
from collections import Counter
from collections.abc import Callable, Iterable
from fnmatch import fnmatchcase
from itertools import count

from holdfast.clock import Clock
from holdfast.errors import BadRequest, InvalidName, LimitReached
from holdfast.model.names import DEAD_SUFFIX, SUBSCRIBER_NAME
from holdfast.store.catalog import Catalog, PublishedSegment
from holdfast.store.channels import Channel, ChannelTable
from holdfast.store.subscribers.acklog import OutcomeRecord
from holdfast.store.subscribers.notes import ProgressNote, Snapshot, SubscriberNote
from holdfast.store.subscribers.progress import Outcome, Progress

PATTERNS_MAX = 1000
SUBSCRIBERS_MAX = 10_000
"""Subscribers of one store; each costs memory per channel and a line per answer."""


class Claim:
    """A part of a segment handed out to a subscriber, until answered or expired."""

    __slots__ = ("channel", "expires_at_ns", "first_seq", "last_seq", "number", "segment")

    def __init__(
        self, number: int, channel: Channel, segment: PublishedSegment, span: tuple[int, int], *, expires: int
    ):
        self.number = number
        self.channel = channel
        self.segment = segment
        self.first_seq, self.last_seq = span
        self.expires_at_ns = expires


class SubscriberState:
    """One subscriber. Guarded by the registry's lock."""

    def __init__(self, note: SubscriberNote) -> None:
        self.note = note
        self.progress: dict[int, Progress] = {}
        self.claims: dict[int, Claim] = {}
        self.waiting: list[tuple[int, int, int, int]] = []  # heap of (due, channel id, first seq, last seq)
        self.candidates: dict[int, PublishedSegment] = {}  # channel id -> next segment, where known
        self.dirty: set[int] = set()  # channels whose progress is not in the catalog as it is
        self.stale: set[int] = set()  # channels whose candidate must be looked up again
        self.outcomes: Counter[tuple[int, Outcome]] = Counter()  # events per channel and outcome, since opening
        self.joined_below = 0  # channels with lower numbers were looked at
        self.last_seen_ns = 0

    def follows(self, channel: str) -> bool:
        """Whether a pattern matches the channel. Dead letters are followed only by patterns that name them."""
        patterns = self.note.patterns
        if channel.endswith(DEAD_SUFFIX):
            patterns = tuple(pattern for pattern in patterns if pattern.endswith(DEAD_SUFFIX))
        return any(fnmatchcase(channel, pattern) for pattern in patterns)


class Registry:
    """Who reads what, and how far."""

    def __init__(self, catalog: Catalog, channels: ChannelTable, clock: Clock, *, lease_timeout_ns: int) -> None:
        self._catalog = catalog
        self._channels = channels
        self._clock = clock
        self._lease_timeout_ns = lease_timeout_ns
        self._by_name: dict[str, SubscriberState] = {}
        self._by_id: dict[int, SubscriberState] = {}
        self._claim_numbers = count(1)
        self._listeners: list[Callable[[], object]] = []
        self.next_id = 1
        self.lock = threading.RLock()
        self.changed = threading.Condition(self.lock)

    # -- who --------------------------------------------------------------------------------------------------------

    def restore(self, snapshot: Snapshot) -> None:
        """Take over subscribers as the catalog or the log keeps them; what is known already only grows."""
        with self.lock:
            self.next_id = max(self.next_id, snapshot.next_subscriber_id)
            for note in snapshot.subscribers:
                state = self._by_id.get(note.subscriber_id)
                if state is None:
                    self._insert(SubscriberState(note))
            for item in snapshot.progress:
                state = self._by_id.get(item.subscriber_id)
                if state is not None:
                    progress = state.progress.setdefault(item.channel_id, Progress(item.start_seq))
                    for first, last in item.ranges:
                        progress.settle(first, last)
                    state.stale.add(item.channel_id)

    def register(
        self, name: str, patterns: tuple[str, ...], *, newest_first: bool, start: Callable[[Channel], int]
    ) -> SubscriberState:
        """The subscriber of that name, made if new. `start` gives the first seq owed, for channels that exist now."""
        check_subscriber_name(name)
        _check_patterns(name, patterns)
        with self.lock:
            state = self._by_name.get(name)
            if state is not None and (state.note.patterns, state.note.newest_first) == (patterns, newest_first):
                return state
            if state is None and len(self._by_name) >= SUBSCRIBERS_MAX:
                raise BadRequest(f"there are {SUBSCRIBERS_MAX} subscribers already; remove one first")
            subscriber_id = state.note.subscriber_id if state else self.next_id
            created = state.note.created_at_ns if state else self._clock.wall_ns()
            note = SubscriberNote(subscriber_id, name, patterns, newest_first, created)
            fresh = SubscriberState(note)
            joined: dict[int, Progress] = {
                channel.id: Progress(start(channel))
                for channel in self._channels
                if fresh.follows(channel.name) and not (state and channel.id in state.progress)
            }
            for channel_id in joined:
                self._check_room(self._channels.by_id(channel_id))
            self._catalog.put_subscriber(note, [_progress_note(subscriber_id, *item) for item in joined.items()])
            if state is None:
                state = self._insert(fresh)
                self.next_id += 1
            state.note = note
            state.progress.update(joined)
            state.joined_below = 0
            state.stale.update(state.progress)
            self.changed.notify_all()
            return state

    def _check_room(self, channel: Channel) -> None:
        allowed = channel.limits.max_subs
        if allowed and len(self.followers(channel)) >= allowed:
            raise LimitReached(what=f"subscribers of channel {channel.name!r}", limit="max_subs", allowed=allowed)

    def deregister(self, name: str) -> int:
        """Forget a subscriber; returns how many events were still owed to it."""
        with self.lock:
            state = self.find(name)
            owed = sum(progress.unconfirmed(channel.next_seq - 1) for channel, progress in self.followed(state))
            self._catalog.remove_subscriber(state.note.subscriber_id)
            del self._by_name[name], self._by_id[state.note.subscriber_id]
            self.changed.notify_all()
            return owed

    def find(self, name: str) -> SubscriberState:
        """The subscriber, or `BadRequest`."""
        with self.lock:
            state = self._by_name.get(name)
            if state is None:
                known = ", ".join(sorted(self._by_name)) or "none"
                raise BadRequest(f"there is no subscriber {name!r}; there are: {known}")
            return state

    def states(self) -> list[SubscriberState]:
        """All subscribers, by name."""
        with self.lock:
            return [self._by_name[name] for name in sorted(self._by_name)]

    def _insert(self, state: SubscriberState) -> SubscriberState:
        self._by_name[state.note.name] = self._by_id[state.note.subscriber_id] = state
        self.next_id = max(self.next_id, state.note.subscriber_id + 1)
        return state

    # -- how far ----------------------------------------------------------------------------------------------------

    def progress(self, state: SubscriberState, channel: Channel) -> Progress | None:
        """How far the subscriber is in a channel; None if it does not follow it. A new channel joins here."""
        progress = state.progress.get(channel.id)
        if progress is None and state.follows(channel.name):
            progress = state.progress[channel.id] = Progress(1)
            state.stale.add(channel.id)
        return progress

    def followed(self, state: SubscriberState) -> list[tuple[Channel, Progress]]:
        """The channels a subscriber follows, with its progress. The caller holds the lock."""
        pairs = ((channel, self.progress(state, channel)) for channel in self._channels)
        return [(channel, progress) for channel, progress in pairs if progress is not None]

    def followers(self, channel: Channel) -> list[tuple[SubscriberState, Progress]]:
        """Who follows a channel. The caller holds the lock."""
        pairs = ((state, self.progress(state, channel)) for state in self._by_id.values())
        return [(state, progress) for state, progress in pairs if progress is not None]

    def apply(self, outcomes: Iterable[OutcomeRecord]) -> None:
        """Outcomes that are safe in the log take effect."""
        with self.lock:
            for record in outcomes:
                self._apply(record)
            self.changed.notify_all()
        for listener in list(self._listeners):
            listener()

    def _apply(self, record: OutcomeRecord) -> None:
        state = self._by_id.get(record.subscriber_id)
        channel = self._channels.get_by_id(record.channel_id)
        progress = self.progress(state, channel) if state is not None and channel is not None else None
        if state is None or progress is None:
            return
        outcome = Outcome(record.outcome)
        for first, last in record.ranges:
            state.outcomes[record.channel_id, outcome] += last - first + 1
            if outcome.settles:
                progress.settle(first, last)
        state.stale.add(record.channel_id)
        state.dirty.add(record.channel_id)

    def take_dirty(self) -> list[ProgressNote]:
        """What changed since the last call: the content of a checkpoint."""
        with self.lock:
            notes = []
            for state in self._by_id.values():
                notes += [_progress_note(state.note.subscriber_id, key, state.progress[key]) for key in state.dirty]
                state.dirty.clear()
            return notes

    def snapshot(self) -> Snapshot:
        """Everything that must survive, at one moment."""
        with self.lock:
            progress = tuple(
                _progress_note(state.note.subscriber_id, channel_id, progress)
                for state in self._by_id.values()
                for channel_id, progress in state.progress.items()
            )
            return Snapshot(self.next_id, tuple(state.note for state in self._by_id.values()), progress)

    # -- handing out ------------------------------------------------------------------------------------------------

    def claim(self, state: SubscriberState, *, max_bytes: int | None) -> Claim | None:
        """The next part of a segment that is owed and free, now claimed; None when there is nothing."""
        with self.lock:
            now_ns = self._clock.monotonic_ns()
            state.last_seen_ns = now_ns
            self._release_due(state, now_ns)
            self._refresh(state)
            newest = state.note.newest_first
            while state.candidates:
                pick = max if newest else min
                channel_id = pick(state.candidates, key=lambda key: state.candidates[key].meta.segment_seq)
                claim = self._claim_from(state, channel_id, max_bytes=max_bytes, now_ns=now_ns)
                if claim is not None:
                    return claim
            return None

    def _claim_from(
        self, state: SubscriberState, channel_id: int, *, max_bytes: int | None, now_ns: int
    ) -> Claim | None:
        channel, segment = self._channels.by_id(channel_id), state.candidates.pop(channel_id)
        state.stale.add(channel_id)
        progress = state.progress[channel_id]
        span = progress.next_free(channel.published_seq, newest_first=state.note.newest_first)
        if span is None:
            return None
        first, last = max(span[0], segment.meta.first_seq), min(span[1], segment.meta.last_seq)
        if first > last:
            return None
        if max_bytes is not None and segment.size_bytes > max_bytes:
            rows = max(1, segment.meta.rows * max_bytes // segment.size_bytes)
            first, last = (
                (max(first, last - rows + 1), last) if state.note.newest_first else (first, min(last, first + rows - 1))
            )
        progress.claim(first, last)
        claim = Claim(
            next(self._claim_numbers), channel, segment, (first, last), expires=now_ns + self._lease_timeout_ns
        )
        state.claims[claim.number] = claim
        return claim

    def _refresh(self, state: SubscriberState) -> None:
        """Look up the next segment of channels where something changed."""
        if state.joined_below != self._channels.next_id:
            state.joined_below = self._channels.next_id
            self.followed(state)
        for channel_id in state.stale:
            state.candidates.pop(channel_id, None)
            channel = self._channels.get_by_id(channel_id)
            segment = self._next_segment(state, channel) if channel is not None else None
            if segment is not None:
                state.candidates[channel_id] = segment
        state.stale.clear()

    def _next_segment(self, state: SubscriberState, channel: Channel) -> PublishedSegment | None:
        progress, newest = state.progress[channel.id], state.note.newest_first
        span = progress.next_free(channel.published_seq, newest_first=newest)
        if span is None:
            return None
        return self._catalog.segment_within(channel.id, span, newest_first=newest)

    def _release_due(self, state: SubscriberState, now_ns: int) -> None:
        """Expired leases and nacked events whose time has come may be handed out again."""
        for claim in [claim for claim in state.claims.values() if claim.expires_at_ns <= now_ns]:
            del state.claims[claim.number]
            self._unclaim(state, claim.channel.id, claim.first_seq, claim.last_seq)
        while state.waiting and state.waiting[0][0] <= now_ns:
            _, channel_id, first, last = heapq.heappop(state.waiting)
            self._unclaim(state, channel_id, first, last)

    def _unclaim(self, state: SubscriberState, channel_id: int, first: int, last: int) -> None:
        state.progress[channel_id].unclaim(first, last)
        state.stale.add(channel_id)

    def finish(self, state: SubscriberState, claim: Claim, *, again_in_ns: int | None) -> bool:
        """The lease is over. With a delay its events are handed out again then. False if it had expired before."""
        with self.lock:
            if state.claims.pop(claim.number, None) is None:
                return False
            if again_in_ns is not None:
                due = self._clock.monotonic_ns() + again_in_ns
                heapq.heappush(state.waiting, (due, claim.channel.id, claim.first_seq, claim.last_seq))
                self.changed.notify_all()
            return True

    def extend(self, claim: Claim, state: SubscriberState) -> bool:
        """Hold a lease for another full time; False if it had expired."""
        with self.lock:
            if claim.number not in state.claims:
                return False
            claim.expires_at_ns = self._clock.monotonic_ns() + self._lease_timeout_ns
            return True

    def seconds_until_due(self, state: SubscriberState) -> float | None:
        """When the next lease expires or the next nacked events are due. The caller holds the lock."""
        times = [claim.expires_at_ns for claim in state.claims.values()]
        times += [state.waiting[0][0]] if state.waiting else []
        return max(0.0, (min(times) - self._clock.monotonic_ns()) / 1e9) if times else None

    # -- news -------------------------------------------------------------------------------------------------------

    def published(self, channel_id: int) -> None:
        """A segment of a channel is published: everybody who follows it may have work."""
        with self.lock:
            for state in self._by_id.values():
                if channel_id in state.progress:
                    state.stale.add(channel_id)
            self.changed.notify_all()
        for listener in list(self._listeners):
            listener()

    def add_listener(self, listener: Callable[[], object]) -> Callable[[], None]:
        """Call `listener`, from any thread, when something changed; returns the way to stop that."""
        self._listeners.append(listener)
        return lambda: self._listeners.remove(listener)


def check_subscriber_name(name: str) -> None:
    """Raise `InvalidName` unless `name` may be a subscriber."""
    if re.fullmatch(SUBSCRIBER_NAME, name, re.ASCII) is None:
        raise InvalidName(
            what="subscriber",
            name=name,
            reason="allowed are 1 to 128 letters, digits, '.', '_' and '-', the first one a letter or digit",
        )


def _check_patterns(name: str, patterns: tuple[str, ...]) -> None:
    if not 0 < len(patterns) <= PATTERNS_MAX:
        raise BadRequest(f"subscriber {name!r} follows 1 to {PATTERNS_MAX} channels or patterns, not {len(patterns)}")
    for pattern in patterns:
        if re.fullmatch(r"[A-Za-z0-9._\-*?\[\]!]{1,256}", pattern, re.ASCII) is None:
            raise BadRequest(f"subscriber {name!r}: {pattern!r} is no channel name or glob (`*`, `?`, `[abc]`)")


def _progress_note(subscriber_id: int, channel_id: int, progress: Progress) -> ProgressNote:
    return ProgressNote(subscriber_id, channel_id, progress.start_seq, tuple(progress.confirmed))
