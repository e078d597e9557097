"""All subscribers of a store: who they are, what they follow, and what is owed to them.

Promises:

- A subscriber follows the channels its patterns match. At registration its start position is turned into a fixed seq
  per channel and kept; a channel that is created later joins by itself and is followed from its first event.
- What is gone before a subscriber comes is not owed to it, so that its mark does not stop there.
- What is owed to a subscriber is never handed out twice at the same time: a lease claims it until it is answered, given
  back or expired.
- After `deregister`, or when the patterns no longer match a channel, a subscriber pins nothing there; what it had not
  read is reported.

State is the catalog's checkpoint plus the acknowledgement log since. Thread-safe: one lock, `changed` is notified when
there may be something new to hand out.
"""

from __future__ import annotations

import heapq
import re
import threading
from collections import Counter, deque
from collections.abc import Callable, Iterable
from contextlib import suppress
from fnmatch import translate
from itertools import count

from msgspec.structs import replace

from holdfast.clock import NS_PER_S, Clock
from holdfast.errors import BadRequest, InvalidName, LimitReached
from holdfast.model.names import DEAD_SUFFIX, SUBSCRIBER_NAME
from holdfast.store.catalog import Catalog, Loss, PublishedSegment
from holdfast.store.channels import Channel, ChannelTable
from holdfast.store.subscribers.acklog import NOBODY_ID, OutcomeRecord
from holdfast.store.subscribers.notes import ProgressNote, Snapshot, SubscriberNote
from holdfast.store.subscribers.progress import Outcome, Progress

PATTERNS_MAX = 1000
SUBSCRIBERS_MAX = 10_000
"""Subscribers of one store; each costs memory per channel and a line per answer."""
NOBODY = ""
"""Stands for a channel as a whole in the totals of losses."""
GONE = "gone"
"""The reason of events that are in no file any more and were not evicted just now: told, but no new loss."""


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

    def __init__(self, note: SubscriberNote, *, seen_ns: int) -> None:
        self.note = note
        self.last_seen_ns = seen_ns  # by the monotonic clock; a restart counts as being seen
        self.removed = False
        self.progress: dict[int, Progress] = {}
        self.claims: dict[int, Claim] = {}
        self.waiting: list[tuple[int, int, int, int]] = []  # heap of (due, channel id, first seq, last seq)
        self.candidates: dict[int, PublishedSegment] = {}  # channel id -> next segment, where known
        self.dirty: set[int] = set()  # channels whose progress is not in the catalog as it is
        self.stale: set[int] = set()  # channels whose candidate must be looked up again
        self.outcomes: Counter[Outcome] = Counter()  # events, since opening
        self.joined_below = 0  # channels with lower numbers were looked at

    @property
    def note(self) -> SubscriberNote:
        """Who it is, and what it follows."""
        return self._note

    @note.setter
    def note(self, note: SubscriberNote) -> None:
        self._note = note
        dead = [pattern for pattern in note.patterns if pattern.endswith(DEAD_SUFFIX)]
        self._follows, self._follows_dead = _one_pattern(note.patterns), _one_pattern(dead)

    def follows(self, channel: str) -> bool:
        """Whether a pattern matches the channel. Dead letters are followed only by patterns that name them."""
        pattern = self._follows_dead if channel.endswith(DEAD_SUFFIX) else self._follows
        return pattern.match(channel) is not None


def _one_pattern(patterns: Iterable[str]) -> re.Pattern[str]:
    return re.compile("|".join(translate(pattern) for pattern in patterns) or r"(?!)")


class Registry:
    """Who reads what, and how far."""

    def __init__(self, catalog: Catalog, channels: ChannelTable, clock: Clock, *, lease_timeout_ns: int) -> None:
        self._catalog = catalog
        self._channels = channels
        self.clock = clock
        self._lease_timeout_ns = lease_timeout_ns
        self._by_name: dict[str, SubscriberState] = {}
        self._by_id: dict[int, SubscriberState] = {}
        self._claim_numbers = count(1)
        self._listeners: list[Callable[[], object]] = []
        self._losses: dict[tuple[str, str, str], Loss] = {}  # since the last checkpoint
        self.returned: deque[tuple[SubscriberState, Claim]] = deque()
        self.next_id = 1
        self.lock = threading.RLock()
        self.changed = threading.Condition(self.lock)

    # -- who --------------------------------------------------------------------------------------------------------

    def restore(self, snapshot: Snapshot) -> None:
        """Take over subscribers as the catalog keeps them."""
        with self.lock:
            self.next_id = max(self.next_id, snapshot.next_subscriber_id)
            for note in snapshot.subscribers:
                self._insert(SubscriberState(note, seen_ns=self.clock.monotonic_ns()))
            for item in snapshot.progress:
                state = self._by_id.get(item.subscriber_id)
                if state is not None:
                    progress = state.progress[item.channel_id] = Progress(
                        item.start_seq, attempts=item.attempts, handed=item.handed, flying=item.flying
                    )
                    for first, last in item.ranges:
                        progress.settle(first, last)
                    state.stale.add(item.channel_id)

    def registered(self, name: str, patterns: tuple[str, ...], *, newest_first: bool) -> SubscriberState | None:
        """The subscriber, if it is registered just so."""
        with self.lock:
            state = self._by_name.get(name)
            if state is None or (state.note.patterns, state.note.newest_first) != (patterns, newest_first):
                return None
            state.last_seen_ns = self.clock.monotonic_ns()
            return state

    def register(
        self, name: str, patterns: tuple[str, ...], *, newest_first: bool, start: Callable[[Channel], Progress]
    ) -> SubscriberState:
        """Make or change a subscriber. `start` says what is owed of a channel that exists now."""
        check_subscriber_name(name)
        _check_patterns(name, patterns)
        with self.lock:
            state = self._by_name.get(name)
            if state is None and len(self._by_name) >= SUBSCRIBERS_MAX:
                raise LimitReached(what=f"subscriber {name!r}", limit="subscribers", allowed=SUBSCRIBERS_MAX)
            subscriber_id = state.note.subscriber_id if state else self.next_id
            created = state.note.created_at_ns if state else self.clock.wall_ns()
            grace_ns = state.note.grace_ns if state else 0
            note = SubscriberNote(subscriber_id, name, patterns, newest_first, created, grace_ns)
            fresh = SubscriberState(note, seen_ns=self.clock.monotonic_ns())
            known = state.progress if state else {}
            follows = [channel for channel in self._channels.known() if fresh.follows(channel.name)]
            new = [channel for channel in follows if channel.id not in known]
            for channel in new:
                self._check_room(channel)
            joined: dict[int, Progress] = {channel.id: start(channel) for channel in new}
            left = set(known) - {channel.id for channel in follows}
            notes = [_progress_note(subscriber_id, *item) for item in joined.items()]
            self._catalog.put_subscriber(note, joined=notes, left=left)
            state = self._insert(fresh) if state is None else state
            state.note = note
            self._change_channels(state, joined, left)
            return state

    def reset(self, state: SubscriberState, places: dict[int, Progress]) -> None:
        """Put a subscriber at other places in channels it follows; what it holds there is taken from it."""
        with self.lock:
            notes = [_progress_note(state.note.subscriber_id, *item) for item in places.items()]
            self._catalog.put_subscriber(state.note, joined=notes)
            self._change_channels(state, places, set(places))

    def keep_confirmed(self, state: SubscriberState, grace_ns: int) -> None:
        """What the subscriber confirms from now on is kept for so long."""
        with self.lock:
            if state.note.grace_ns != grace_ns:
                note = replace(state.note, grace_ns=grace_ns)
                self._catalog.put_subscriber(note, joined=())
                state.note = note

    def _change_channels(self, state: SubscriberState, joined: dict[int, Progress], left: Iterable[int]) -> None:
        for channel_id in left:
            for place in (state.progress, state.candidates):
                place.pop(channel_id, None)
            state.dirty.discard(channel_id)
            state.claims = {key: item for key, item in state.claims.items() if item.channel.id != channel_id}
        state.waiting = [item for item in state.waiting if item[1] in state.progress]
        heapq.heapify(state.waiting)
        state.progress.update(joined)
        state.joined_below = self._channels.next_id
        state.last_seen_ns = self.clock.monotonic_ns()
        state.stale = set(state.progress)
        self.changed.notify_all()

    def _check_room(self, channel: Channel) -> None:
        allowed = channel.limits.max_subs
        if allowed and len(self._by_id) >= allowed and len(self.followers(channel)) >= allowed:
            raise LimitReached(what=f"subscribers of channel {channel.name!r}", limit="max_subs", allowed=allowed)

    def deregister(self, name: str) -> int:
        """Forget a subscriber; returns how many events were still owed to it."""
        with self.lock:
            state = self.find(name)
            owed = sum(progress.unconfirmed(channel.last_seq) for channel, progress in self.followed(state))
            own = {key: loss for key, loss in self._losses.items() if loss.subscriber == name}
            self._catalog.remove_subscriber(state.note.subscriber_id, own.values())
            for key in own:
                del self._losses[key]
            del self._by_name[name], self._by_id[state.note.subscriber_id]
            state.removed = True
        self.wake()
        return owed

    def has(self, name: str) -> bool:
        """Whether there is such a subscriber."""
        with self.lock:
            return name in self._by_name

    def find(self, name: str) -> SubscriberState:
        """The subscriber, or `BadRequest`."""
        with self.lock:
            state = self._by_name.get(name)
            if state is None:
                known = ", ".join(sorted(self._by_name)) or "none"
                raise BadRequest(f"there is no subscriber {name!r}; there are: {known}")
            return state

    def states_count(self) -> int:
        """How many subscribers there are."""
        return len(self._by_id)

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
            progress = state.progress[channel.id] = Progress(channel.born_seq)
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

    def apply(self, outcomes: Iterable[OutcomeRecord], *, again: bool = False) -> None:
        """Outcomes that are safe in the log take effect; `again`, if an earlier process has counted them."""
        with self.lock:
            for record in outcomes:
                self._apply(record, again=again)

    def _apply(self, record: OutcomeRecord, *, again: bool) -> None:
        channel = self._channels.get_by_id(record.channel_id)
        if channel is None:
            return
        if record.subscriber_id == NOBODY_ID:
            self._count_loss(record, channel.name, NOBODY, events=record.events)
            return
        state = self._by_id.get(record.subscriber_id)
        progress = self.progress(state, channel) if state is not None else None
        if state is None or progress is None:  # who was removed, or left the channel, is no longer concerned
            return
        outcome, events = Outcome(record.outcome), 0
        for first, last in record.ranges:
            events += sum(high - low + 1 for low, high in progress.owed(first, last))
            progress.take(outcome, first, last)
        if not again:
            state.outcomes[outcome] += events
        if outcome is Outcome.DROPPED and record.reason != GONE:
            self._count_loss(record, channel.name, state.note.name, events=events)
        state.stale.add(channel.id)
        state.dirty.add(channel.id)

    def crashed(self) -> None:
        """All that an earlier process left behind has been applied: what it had in flight was tried and failed."""
        with self.lock:
            for state in self._by_id.values():
                state.dirty |= {channel_id for channel_id, progress in state.progress.items() if progress.crash()}

    def _count_loss(self, record: OutcomeRecord, channel: str, subscriber: str, *, events: int) -> None:
        """Of what the record tells, `events` were still owed when it took effect."""
        if not events:
            return
        key = (channel, subscriber, record.reason)
        before = self._losses.get(key, Loss(*key, segments=0, events=0, bytes=0))
        self._losses[key] = Loss(
            *key,
            segments=before.segments + bool(record.segment_seq),
            events=before.events + events,
            bytes=before.bytes + record.bytes * events // record.events,
        )

    def unsaved(self) -> tuple[list[ProgressNote], list[Loss]]:
        """What changed since the last checkpoint: the content of the next. The caller holds the lock until `saved`."""
        notes = [
            _progress_note(state.note.subscriber_id, channel_id, state.progress[channel_id])
            for state in self._by_id.values()
            for channel_id in state.dirty
        ]
        return notes, list(self._losses.values())

    def saved(self) -> None:
        """The checkpoint is in the catalog."""
        self._losses.clear()
        for state in self._by_id.values():
            state.dirty.clear()

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

    def claim(self, state: SubscriberState, *, max_bytes: int | None, release: bool = True) -> Claim | None:
        """The next part of a segment that is owed and free, now claimed; None when there is nothing.

        Without `release`, what was given back since the last call stays where it is.
        """
        with self.lock:
            if release:
                self._take_back()
            state.last_seen_ns = now_ns = self.clock.monotonic_ns()  # after what was taken back became due
            if release:
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
        for channel_id in range(state.joined_below, self._channels.next_id):
            channel = self._channels.get_by_id(channel_id)
            if channel is not None:
                self.progress(state, channel)
        state.joined_below = self._channels.next_id
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

    def _take_back(self) -> None:
        """Leases thrown away are due at once."""
        while self.returned:
            self.finish(*self.returned.popleft(), again_in_ns=0)

    def _release_due(self, state: SubscriberState, now_ns: int) -> None:
        """Expired leases, and events given back whose time has come, may be handed out again."""
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
            progress = state.progress.get(claim.channel.id)
            owed = progress is not None and not progress.is_settled(claim.first_seq, claim.last_seq)
            if owed and again_in_ns is not None:
                due = self.clock.monotonic_ns() + again_in_ns
                heapq.heappush(state.waiting, (due, claim.channel.id, claim.first_seq, claim.last_seq))
        if owed and again_in_ns is not None:
            self.wake()
        return True

    def extend(self, claim: Claim, state: SubscriberState) -> bool:
        """Hold a lease for another full time; False if it had expired."""
        with self.lock:
            now_ns = self.clock.monotonic_ns()
            if claim.number not in state.claims or claim.expires_at_ns <= now_ns:
                return False
            claim.expires_at_ns = now_ns + self._lease_timeout_ns
            return True

    def seconds_until_due(self, state: SubscriberState) -> float | None:
        """When the next lease expires or the next nacked events are due. The caller holds the lock."""
        times = [claim.expires_at_ns for claim in state.claims.values()]
        times += [state.waiting[0][0]] if state.waiting else []
        return max(0.0, (min(times) - self.clock.monotonic_ns()) / NS_PER_S) if times else None

    def swap(self, channel_id: int, segments: set[int], act: Callable[[], None]) -> bool:
        """Do `act`, which puts another segment in place of these; False if one of them is handed out to somebody."""
        with self.lock:
            self._take_back()
            claims = (claim for state in self._by_id.values() for claim in state.claims.values())
            if any(claim.segment.meta.segment_seq in segments for claim in claims):
                return False
            act()
            for state in self._by_id.values():
                state.stale.add(channel_id)
        return True

    # -- news -------------------------------------------------------------------------------------------------------

    def published(self, channel_id: int, channel: str) -> bool:
        """A segment of a channel is published: everybody who follows it may have work. Whether anybody does."""
        with self.lock:
            for state in self._by_id.values():
                if channel_id in state.progress:
                    state.stale.add(channel_id)
            is_followed = any(state.follows(channel) for state in self._by_id.values())
        self.wake()
        return is_followed

    def wake(self) -> None:
        """Everybody who waits looks again."""
        with self.lock:
            self.changed.notify_all()
            listeners = list(self._listeners)
        for listener in listeners:
            with suppress(RuntimeError):  # its event loop was closed in the meantime
                listener()

    def add_listener(self, listener: Callable[[], object]) -> Callable[[], None]:
        """Call `listener`, from any thread, when something changed; returns the way to stop that."""
        with self.lock:
            self._listeners.append(listener)

        def stop() -> None:
            with self.lock:
                self._listeners.remove(listener)

        return stop

    def pending_losses(self) -> list[Loss]:
        """Losses that no checkpoint has counted yet."""
        with self.lock:
            return list(self._losses.values())


def total_losses(*counts: Iterable[Loss]) -> list[Loss]:
    """Losses counted in several places, added up per channel, subscriber and reason."""
    totals: dict[tuple[str, str, str], list[Loss]] = {}
    for loss in (loss for losses in counts for loss in losses):
        totals.setdefault((loss.channel, loss.subscriber, loss.reason), []).append(loss)
    return [
        Loss(
            *key,
            segments=sum(loss.segments for loss in same),
            events=sum(loss.events for loss in same),
            bytes=sum(loss.bytes for loss in same),
        )
        for key, same in sorted(totals.items())
    ]


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
    ranges, attempts = tuple(progress.confirmed), progress.attempts.counted()
    handed, flying = tuple(progress.handed), tuple(progress.flying)
    return ProgressNote(subscriber_id, channel_id, progress.start_seq, ranges, attempts, handed, flying)
