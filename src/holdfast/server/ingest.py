"""Frames from a connection into the store, and the answers back: the shell around `holdfast.wire.ingest`.

    message ─► backlog ─► decoded ─► numbered ─► allowed? ─► Store.commit_frame_async ─► answers, once per turn
                  │       (what becomes large, and what needs the  │
                  │        disk, on a small pool of threads)       └── full: reading pauses, tried again, then refused
                  └── plain small ones ─► allowed? ─► a train, with those of other connections (`ingesttrains`)

Promises:

- Frames of a connection reach the store in the order they came, and none after one that was refused.
- The event loop never waits for the disk or for room: the first frame of a slot, which is looked up, goes over a
  thread. Nor does it decode or prepare what takes long, however small it came (`ingestwaiting`). A full store pauses
  the connection whose frame does not fit, and only that one. After `ingest.write_deadline` its frame is refused with
  what is full, by how much and because of whom.
- What waits is bounded: bytes of one connection, bytes of all, what messages became, answers of a peer that does not
  read.
- Answers of a group commit cost one wake-up of the loop and at most one OK per connection.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from functools import partial
from typing import TYPE_CHECKING, TypeVar

from picows import WSCloseCode

from holdfast.clock import NS_PER_S
from holdfast.errors import Backpressure, HoldfastError, StoreFailed
from holdfast.model.frame import FrameReceipt, PlainFrame, SlotFrame
from holdfast.server.connection import Connection, Pause
from holdfast.server.door import Opening, Route, Upgrade
from holdfast.server.handshake import Refusal, accept_headers, check_role, slot_origin, wants_durable_ack
from holdfast.server.ingestdesk import IngestDesk
from holdfast.server.ingestwaiting import Waiting
from holdfast.server.refusals import explain
from holdfast.store.committer import Train
from holdfast.store.lane import Lane
from holdfast.telemetry import event
from holdfast.wire.ingest import Answers, Frame, FrameReader, NotAtOnce, SessionLimits
from holdfast.wire.limits import FrameLimits

if TYPE_CHECKING:
    from holdfast.store.answer import CommitFuture

_Result = TypeVar("_Result")

PATHS = ("/api/v4/write", "/write/v4")
"""Where clients of this wire connect; both mean the same."""
TURN_MESSAGES = 64
"""Messages of one connection that are handled before others have their turn: a read may bring thousands."""
TURN_BYTES = 256 << 10
"""What may come in before it is counted, so that reading can be stopped in time."""


class IngestHandler:
    """One connection's frames. Everything but decoding happens on the event loop."""

    def __init__(self, desk: IngestDesk, connection: Connection, *, reader: FrameReader, durable_ack: bool) -> None:
        self.connection = connection
        self._desk = desk
        self._principal = connection.principal
        self._reader = reader
        self._durable_ack = durable_ack
        self._answers = Answers(durable=durable_ack)
        if durable_ack:
            desk.await_durable(self)
        self.lane = Lane(partial(desk.answered, self))
        self.boarding: list[tuple[PlainFrame, bytes]] = []
        """Frames on a train that has not left, with their messages."""
        self._backlog: deque[bytes] = deque()
        self._inflight: deque[tuple[Waiting, CommitFuture | Train]] = deque()
        self._one_by_one = 0  # messages at the front of the backlog that go without a train
        self._detour = 0  # how many more than those that no train took
        self._arrived_bytes = 0  # of messages at the end of the backlog that are not counted yet
        self._arrived = 0
        self._stalled: Waiting | None = None
        self._busy = False  # a thread has the message before the backlog
        self._in_line = False  # for a turn
        self._handled = 0  # messages of this turn
        self._held_bytes = 0
        self._kept_bytes = 0  # between messages, and of frames on their way
        self._extra_bytes = 0  # of these, the frames'
        self._slowed = False
        self._quota_at_s = 0.0
        self._finishing = False
        self._gone = False
        self._timed_seq = -1  # the message whose answer is waited for, since `_timed_ns`; none while that is 0
        self._timed_ns = 0

    # -- called by the connection -----------------------------------------------------------------------------------

    def message(self, data: bytes) -> None:
        """A binary message. What one read brings is handled together, in the connection's turn."""
        self._backlog.append(data)
        self._arrived += 1
        self._arrived_bytes += len(data)
        if self._arrived_bytes >= TURN_BYTES:
            self._arrive()
        elif not self._in_line:
            self._line_up()

    def _line_up(self) -> None:
        if not self._in_line:
            self._in_line = True
            self._desk.line_up(self)

    def turn(self) -> None:
        """Handle what came, and what was left when others had their turn."""
        self._in_line, self._handled = False, 0
        if self._arrived:
            self._arrive()
        else:
            self._pump()

    def _arrive(self) -> None:
        """Count what came, and handle it."""
        count, size, self._arrived, self._arrived_bytes = self._arrived, self._arrived_bytes, 0, 0
        info, totals = self.connection.info, self._desk.state.totals
        info.frames += count
        info.bytes += size
        info.wire_seq += count
        totals.frames += count
        totals.bytes += size
        if not self._timed_ns:
            self._timed_seq, self._timed_ns = info.wire_seq, self._desk.clock.monotonic_ns()
        wait_s = self._principal.take(count, size)
        if wait_s > 0:
            self._slow_down(wait_s)
        if self._answers.refused or self._gone:
            self._backlog.clear()  # consumed: the producer must connect again
            self._desk.soon(self)
            return
        self._hold(size)
        self._pump()

    def _slow_down(self, wait_s: float) -> None:
        """Read on when the debt of the last message is paid, not of the first."""
        loop = self._desk.loop
        self._quota_at_s = loop.time() + wait_s
        if not self._slowed:
            self._slowed = True
            self.connection.pause(Pause.QUOTA)
            loop.call_at(self._quota_at_s, self._speed_up)

    def _speed_up(self) -> None:
        loop = self._desk.loop
        if loop.time() < self._quota_at_s and not self._gone:
            loop.call_at(self._quota_at_s, self._speed_up)
            return
        self._slowed = False
        self.connection.resume(Pause.QUOTA)

    def finish(self) -> None:
        """Answer what came in, then close."""
        self._finishing = True
        self.connection.pause(Pause.DRAIN)
        self._desk.soon(self)

    def closed(self) -> None:
        """What is not in the store yet is given up; an open group with it."""
        self._gone = True
        self._desk.forget(self)
        info = self.connection.info
        if info.slot_id:
            self._desk.state.senders.leave(info.slot_id, goodbye=info.goodbye)
        self._backlog.clear()
        self.boarding = []
        self._inflight.clear()
        self._stalled = None
        self._desk.release(self._held_bytes)
        self._desk.keep(-self._kept_bytes)
        self._held_bytes = self._kept_bytes = 0

    def durable(self, channel: str, seq: int) -> None:
        """Everything of a channel up to `seq` is in the object store; said to producers that asked for it."""
        self._answers.durable(channel, seq)
        self._desk.soon(self)

    # -- a message's way --------------------------------------------------------------------------------------------

    def _pump(self) -> None:
        while self._step():
            pass

    def _step(self) -> bool:
        """Do something with the message at the front; False when there is nothing to do now."""
        if self._busy or self._stalled or self._answers.refused or not self._backlog:
            return False
        if self._handled >= TURN_MESSAGES:
            self._line_up()
            return False
        if self.boarding:  # what comes behind it must not be in the store before it
            self._desk.trains.leave(self.boarding[0][0].channel)
            return True
        if not self._one_by_one and self._board():
            return True
        self._handled += 1
        self._one_by_one = max(0, self._one_by_one - 1)
        self._begin(self._backlog.popleft())
        return True

    def _board(self) -> bool:
        """Put messages from the front on a train, until one does not go with the others; False if none does."""
        backlog, boarding, read = self._backlog, self.boarding, self._reader.read_plain
        places = TURN_MESSAGES - self._handled
        while backlog and len(boarding) < places:
            plain = read(backlog[0])
            if plain is None or (boarding and not _go_together(boarding[0][0], plain)):
                break
            boarding.append((plain, backlog.popleft()))
        if not boarding:
            return False
        self._handled += len(boarding)
        if self._may_ride([frame for frame, _ in boarding]):
            self._desk.trains.board(self)
        else:
            self.walk()
        return True

    def _may_ride(self, frames: Sequence[PlainFrame]) -> bool:
        """Whether they are allowed to be stored, as far as that takes no look at the disk."""
        slots = {frame.identity.slot_id for frame in frames if isinstance(frame.identity, SlotFrame)}
        channel = frames[0].channel
        if self._principal.needs_disk((channel,), slots) or not self._principal.may("publish", channel):
            return False
        for slot_id in slots:
            self._meet(slot_id)
        return True

    def ride(self, train: Train, share: int) -> None:
        """The train has left, with what had boarded."""
        size_bytes, frames = sum([len(data) for _, data in self.boarding]), len(self.boarding)
        self.boarding, self._detour = [], 0
        if len(train.frames) > 1:
            self._desk.state.totals.together += frames
        waiting = Waiting(self._answers.expect(frames), None, size_bytes, frames=frames, share=share)
        self._queued(waiting, train)

    def walk(self) -> None:
        """No train takes what had boarded: it is read again, one by one.

        That leaves all refusals, and waiting for room, to the way of single frames. Whoever has to walk again and again
        tries less often.
        """
        boarding, self.boarding = self.boarding, []
        self._backlog.extendleft([data for _, data in reversed(boarding)])
        self._handled -= len(boarding)
        self._one_by_one = len(boarding) + self._detour
        self._detour = min(2 * self._detour + 1, TURN_MESSAGES)
        self._line_up()

    def _begin(self, data: bytes) -> None:
        waiting = Waiting(self._answers.expect(), None, len(data))
        now_us = self._desk.clock.wall_ns() // 1000
        try:
            waiting.frame = self._reader.read(data, now_us=now_us, at_once=True)
        except NotAtOnce:
            self._in_thread(lambda: self._reader.read(data, now_us=now_us), lambda done: self._read(waiting, done))
        except Exception as error:
            self._refuse(waiting, error)
        else:
            self._decoded(waiting)

    def _read(self, waiting: Waiting, done: Future[Frame | None]) -> None:
        error = done.exception()
        if error is not None:
            self._refuse(waiting, error)
        else:
            waiting.frame = done.result()
            self._decoded(waiting)

    def _decoded(self, waiting: Waiting) -> None:
        frame = waiting.frame
        if self._answers.refused:  # one before it, while this one was on a thread
            self._let_go(waiting)
            self._desk.soon(self)  # what waited until no thread is busy
            return
        try:
            self._keep(waiting)
        except HoldfastError as error:
            self._refuse(waiting, error)
            return
        if frame is not None and isinstance(frame.identity, SlotFrame):
            self._meet(frame.identity.slot_id)
        if self._reader.deferring:
            self._answers.withhold(waiting.ticket)
        if frame is None:
            self._let_go(waiting)
            self._answers.accept(waiting.ticket)
            self._desk.soon(self)
            return
        if waiting.is_quick and not self._needs_disk(frame):
            self._submit(waiting)
        else:
            self._in_thread(lambda: self._commit(frame), lambda done: self._submitted(waiting, done))

    def _meet(self, slot_id: bytes) -> None:
        """Whose frames these are; a connection has those of one sender."""
        info = self.connection.info
        if not info.slot_id:
            info.slot_id = slot_id.hex()
            self._desk.state.senders.arrive(info.slot_id, peer=info.peer, principal=info.principal)

    def _keep(self, waiting: Waiting) -> None:
        """Raise unless what a message leaves behind, or became, may be kept."""
        waiting.measure()
        self._extra_bytes += waiting.extra_bytes
        self._count_kept()

    def _count_kept(self) -> None:
        kept_bytes = self._reader.kept_bytes + self._extra_bytes
        if kept_bytes != self._kept_bytes:
            change, self._kept_bytes = kept_bytes - self._kept_bytes, kept_bytes
            self._desk.keep(change)

    def _needs_disk(self, frame: Frame) -> bool:
        """Whether the disk must be looked at before the frame can be in the store's queue."""
        slots = {frame.identity.slot_id} if isinstance(frame.identity, SlotFrame) else ()
        channels = [entry.channel for entry in frame.entries]
        return self._principal.needs_disk(channels, slots) or self._desk.store.needs_disk(frame.entries, frame.identity)

    def _commit(self, frame: Frame) -> CommitFuture:
        """Hand the frame to the store, if it may be stored; `Backpressure` if there is no room. On the loop, or on a
        thread."""
        with self._principal.publishing([entry.channel for entry in frame.entries]) as claim:
            if isinstance(frame.identity, SlotFrame):
                self._principal.bind_slot(frame.identity.slot_id)
            future = self._desk.store.commit_frame_async(
                frame.entries, identity=frame.identity, wait=False, lane=self.lane, bytes_max=frame.bytes_max
            )
            claim.settled_by(future)
            return future

    def _submit(self, waiting: Waiting) -> bool:
        """Whether the frame is in the store's queue, or refused; False if it must wait for room."""
        frame = waiting.frame
        assert frame is not None
        try:
            future = self._commit(frame)
        except Backpressure as error:
            return self._wait_for_room(waiting, error)
        except Exception as error:
            self._refuse(waiting, error)
        else:
            self._queued(waiting, future)
        return True

    def _submitted(self, waiting: Waiting, done: Future[CommitFuture]) -> None:
        error = done.exception()
        if isinstance(error, Backpressure):
            self._wait_for_room(waiting, error)
        elif error is not None:
            self._refuse(waiting, error)
        else:
            self._queued(waiting, done.result())

    def _queued(self, waiting: Waiting, future: CommitFuture | Train) -> None:
        self._inflight.append((waiting, future))
        if future.done():  # perhaps before it was looked for
            self._desk.soon(self)

    def _in_thread(self, work: Callable[[], _Result], then: Callable[[Future[_Result]], None]) -> None:
        """Run `work` on a thread and `then` on the loop; the backlog waits meanwhile."""
        self._busy = True
        loop = self._desk.loop

        def finished(done: Future[_Result]) -> None:
            self._busy = False
            if not self._gone:
                then(done)
                self._pump()

        self._desk.pool.submit(work).add_done_callback(lambda done: loop.call_soon_threadsafe(finished, done))

    # -- a full store -----------------------------------------------------------------------------------------------

    def _wait_for_room(self, waiting: Waiting, error: Backpressure) -> bool:
        """Keep the frame until there is room, or refuse it after the deadline; whether that is over now."""
        now_ns = self._desk.clock.monotonic_ns()
        if self._stalled is None:
            waiting.since_ns = now_ns
            self._stalled = waiting
            self.connection.pause(Pause.STORE)
            self._desk.stall(self)
            return False
        waited_ns = now_ns - waiting.since_ns
        if waited_ns < self._desk.state.config.ingest_write_deadline_ns:
            return False
        late = Backpressure(
            bound=error.bound, used_bytes=error.used_bytes, cap_bytes=error.cap_bytes, waited_s=waited_ns / NS_PER_S
        )
        self._in_thread(
            lambda: self._desk.store.blame(late), lambda done: self._refuse(waiting, done.exception() or done.result())
        )
        return True

    def retry(self) -> bool:
        """Try the frame that found the store full again; False while it has to wait."""
        waiting = self._stalled
        if waiting is not None:
            frame = waiting.frame
            assert frame is not None
            waited_ns = self._desk.clock.monotonic_ns() - waiting.since_ns
            is_due = waited_ns >= self._desk.state.config.ingest_write_deadline_ns
            if self._busy or not (is_due or self._desk.store.has_room(waiting.frame_bytes)):
                return False
            if not waiting.is_quick or self._needs_disk(frame):
                self._in_thread(lambda: self._commit(frame), lambda done: self._retried(waiting, done))
                return False
            if not self._submit(waiting):
                return False
        return self._go_on()

    def _retried(self, waiting: Waiting, done: Future[CommitFuture]) -> None:
        """The same of a frame that takes long, or the disk, on a thread."""
        error = done.exception()
        if isinstance(error, Backpressure):
            if not self._wait_for_room(waiting, error):
                return
        elif error is not None:
            self._refuse(waiting, error)
        else:
            self._queued(waiting, done.result())
        self._go_on()

    def _go_on(self) -> bool:
        """Read on after a wait for room; whether it is over."""
        self._stalled = None
        self.connection.resume(Pause.STORE)
        self._pump()
        return self._stalled is None

    # -- answers ----------------------------------------------------------------------------------------------------

    def settle(self) -> None:
        """Take the store's answers and send ours."""
        inflight = self._inflight
        while inflight and inflight[0][1].done():
            waiting, future = inflight.popleft()
            if isinstance(future, Train):
                self._settle_train(waiting, future)
            else:
                self._settle_one(waiting, future)
        self._answer()
        if self._finishing and self._is_idle():
            failed = self._desk.state.failure is not None
            self.connection.close(WSCloseCode.INTERNAL_ERROR if failed else WSCloseCode.GOING_AWAY, "the server stops")

    def _settle_one(self, waiting: Waiting, future: CommitFuture) -> None:
        try:
            receipt = future.result()
        except HoldfastError as error:
            self._refuse(waiting, error)
            return
        self._let_go(waiting)
        self._answers.accept(waiting.ticket, receipt)
        self._note((receipt,))

    def _settle_train(self, waiting: Waiting, train: Train) -> None:
        answer = train.answers[waiting.share]
        if answer.refusal is None:
            self._let_go(waiting)
            self._answers.accept(waiting.ticket, *answer.receipts)
        else:
            waiting.ticket = self._answers.accept_first(waiting.ticket, answer.receipts, messages=waiting.frames)
            self._refuse(waiting, answer.refusal)
        self._note(answer.receipts)

    def became_durable(self, news: dict[str, int]) -> None:
        """Channels are in the object store up to these seqs."""
        for channel, seq in news.items():
            self._answers.durable(channel, seq)
        self._answer()

    def _note(self, receipts: Sequence[FrameReceipt]) -> None:
        """Count repeats; say what is in the object store already, to those who asked for that."""
        repeats = sum([receipt.duplicate for receipt in receipts])
        if repeats:
            self._desk.state.totals.duplicates += repeats
            self._desk.state.senders.replay(self.connection.info.slot_id, repeats)
        if self._durable_ack:
            marks = self._desk.durable_marks
            for channel in {entry.channel for receipt in receipts for entry in receipt.entries}:
                self._answers.durable(channel, marks.get(channel, 0))

    def _refuse(self, waiting: Waiting, error: BaseException) -> None:
        self._let_go(waiting)
        category, reason = explain(error)
        if not isinstance(error, HoldfastError):
            event("server.ingest.fail", peer=self.connection.info.peer, error=type(error).__name__, reason=error)
        self._answers.refuse(waiting.ticket, category, reason)
        info = self.connection.info
        info.last_error = f"{category.name}: {reason}"
        channel = waiting.frame.entries[0].channel if waiting.frame is not None else getattr(error, "channel", "")
        self._desk.state.troubles.note(
            category.name, reason, peer=info.peer, principal=info.principal, connection=info.id, channel=str(channel)
        )
        refusals = self._desk.state.totals.refusals
        refusals[category.name] = refusals.get(category.name, 0) + 1
        self._drop_backlog()
        self._desk.soon(self)
        if isinstance(error, StoreFailed):
            self._desk.failed(error)

    def _drop_backlog(self) -> None:
        """What comes after a refusal is consumed."""
        boarded_bytes = sum([len(data) for _, data in self.boarding])
        self._release(boarded_bytes + sum(map(len, self._backlog)) - self._arrived_bytes)
        self._backlog.clear()
        self.boarding = []
        self._one_by_one = 0

    def _answer(self) -> None:
        if self._gone or self.connection.is_closing:
            return
        for reply in self._answers.take():
            self.connection.send(reply)
        self.connection.info.acknowledged = self._answers.acknowledged
        if self._timed_ns and self._answers.acknowledged >= self._timed_seq:
            waited_ns, self._timed_ns = self._desk.clock.monotonic_ns() - self._timed_ns, 0
            self._desk.state.latencies.note(waited_ns / NS_PER_S)
        if self._answers.refused and self._kept_bytes and not self._busy:
            self._reader.forget()
            self._count_kept()

    def _is_idle(self) -> bool:
        return not (self._inflight or self._backlog or self.boarding or self._busy or self._stalled)

    # -- bounds -----------------------------------------------------------------------------------------------------

    def _hold(self, size_bytes: int) -> None:
        self._held_bytes += size_bytes
        self.connection.info.inflight_bytes = self._held_bytes
        if self._held_bytes >= self._desk.state.config.ingest_connection_inflight_bytes:
            self.connection.pause(Pause.INFLIGHT)
        self._desk.hold(self, size_bytes)

    def _let_go(self, waiting: Waiting) -> None:
        """A message was accepted or refused."""
        self._release(waiting.size_bytes)
        if waiting.extra_bytes and not self._gone:
            self._desk.keep(-waiting.extra_bytes)
            self._kept_bytes -= waiting.extra_bytes
            self._extra_bytes -= waiting.extra_bytes
            waiting.extra_bytes = 0

    def _release(self, size_bytes: int) -> None:
        if self._gone:
            return
        self._held_bytes -= size_bytes
        self.connection.info.inflight_bytes = self._held_bytes
        if self._held_bytes < self._desk.state.config.ingest_connection_inflight_bytes:
            self.connection.resume(Pause.INFLIGHT)
        self._desk.release(size_bytes)


def _go_together(first: PlainFrame, frame: PlainFrame) -> bool:
    return frame.channel == first.channel and frame.schema is first.schema


def ingest_route(desk: IngestDesk) -> Route:
    """Who may send frames, and how large they may be."""
    store = desk.store
    durability = store.statistics().durability.value

    def open_ingest(upgrade: Upgrade) -> Opening | Refusal:
        refusal = check_role(desk.state.config.role)
        if refusal is not None:
            return refusal
        origin = slot_origin(upgrade.headers)
        if isinstance(origin, Refusal):
            return origin
        if origin is not None:
            upgrade.principal.bind_slot(origin.slot_id)
        limits = SessionLimits(
            FrameLimits(message_bytes=desk.state.config.ingest_batch_bytes_max, rows=store.config.frame_rows_max),
            deferred_bytes_max=desk.state.config.ingest_group_bytes_max,
        )
        durable_ack = desk.state.durable_acks and wants_durable_ack(upgrade.headers)

        def handler(connection: Connection) -> IngestHandler:
            reader = FrameReader(limits, origin=origin, guid=upgrade.principal.guid)
            return IngestHandler(desk, connection, reader=reader, durable_ack=durable_ack)

        headers = accept_headers(
            batch_bytes_max=limits.frame.message_bytes, durability=durability, durable_ack=durable_ack
        )
        return Opening("ingest", handler, tuple(headers))

    return open_ingest
