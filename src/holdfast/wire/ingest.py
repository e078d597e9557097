"""One connection that sends frames, without the connection: messages in, what to commit and what to answer out.

A session has two halves that share nothing, so that a large message may be decoded on another thread while answers go
out. Neither does I/O or reads a clock.

- `FrameReader` turns binary messages, in order, into what is to be committed. It tells the two payloads apart by their
  magic, keeps the symbol dictionary, collects deferred groups and gives frames their identity.
- `Answers` numbers messages and says what may be answered: wireSeq counts every binary message from 0.

Promises (docs/reference/ingest-session.md has them for writers of clients):

    message ──► expect ──► read ──► Frame ────► the store ──► accepted ─┐
                             │                            └─► refused ──┤
                             ├───► None: nothing to store ─► accepted ──┤
                             ├───► None: group grows ──────► withheld ──┤
                             └───► WireError ──────────────► refused ───┴──► take: OK, error

1. An OK is cumulative: every message up to its wireSeq is accepted. It names the last seq of each channel that the
   newly covered messages reached.
2. After a refusal nothing at or beyond it is answered with OK, the OK for what came before goes out first, and later
   messages are consumed without an answer. The earliest refusal wins.
3. A deferred group is answered with the message that ends it. It is committed as one frame or not at all: one that
   outgrows its bounds is refused as a whole.
4. A frame's identity is the one it carries; else the slot of the upgrade request with the number of the frame; else
   none.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import msgspec
import pyarrow as pa

from holdfast.errors import Category, WireError
from holdfast.model.frame import (
    LARGE_ENTRIES_MAX,
    Entry,
    FrameReceipt,
    Guid,
    Identity,
    MakeGuid,
    PlainFrame,
    SlotFrame,
)
from holdfast.model.positions import FSN_MAX, Fsn
from holdfast.wire import hfa, qwp, replies
from holdfast.wire.limits import FrameLimits
from holdfast.wire.plain import PlainReader

HFA_MAGIC, QWP_MAGIC = b"HFA1", b"QWP1"

DEFERRED_ROWS_MAX = 1_000_000
"""Rows a deferred group may hold before it must be ended; what the reference server of this wire allows."""
JOINED_BYTES_MAX = 4 << 20
"""Parts of a group are joined up to this: more would only be copied, and take their memory twice."""
AT_ONCE_BYTES_MAX = 512 << 10
"""An Arrow frame up to this is read at once: it is not copied."""
AT_ONCE_COLUMNS_BYTES_MAX = 32 << 10
"""A QWP message up to this: it has to be decoded."""
AT_ONCE = FrameLimits(message_bytes=AT_ONCE_BYTES_MAX, tables=16, entries=16, batches=16, decoded_bytes=256 << 10)
"""What is read at once costs others on the same thread a few milliseconds at most, whatever it claims: a bit may be a
row, five bytes a column, compressed bytes any number of bytes. What has more is read elsewhere, with its own limits."""
AT_ONCE_MESSAGES_MAX = 16
"""Messages of a group that is put together at once."""
DEFERRED_MESSAGES_MAX = 10_000
"""Messages of a deferred group: each waits for its answer. Clients end their groups after a hundred."""
SYMBOL_BYTES = 16
"""What a symbol costs beside its text."""


class SlotOrigin(NamedTuple):
    """Where the upgrade request says the first frame stands in the sender's slot."""

    slot_id: bytes
    first_fsn: int


class Frame(msgspec.Struct, frozen=True, gc=False):
    """What the store is to commit as one."""

    entries: tuple[Entry, ...]
    identity: Identity
    size_bytes: int
    """In memory, as Arrow; of an Arrow frame, whose values nobody has looked at, what it claims."""
    bytes_max: int = 0
    """What it may have as a whole if that is more than a store takes otherwise."""


class NotAtOnce(Exception):
    """A message takes too long for a thread that others wait for; nothing has changed."""


@dataclass(frozen=True, slots=True)
class SessionLimits:
    """Bounds of one connection's decoding."""

    frame: FrameLimits
    deferred_bytes_max: int
    """In memory, as Arrow: of a QWP message, or of a deferred group of them, which becomes one frame."""
    deferred_rows_max: int = DEFERRED_ROWS_MAX


class FrameReader:
    """Decodes the messages of one connection, in order. One caller at a time, on any thread."""

    def __init__(self, limits: SessionLimits, *, origin: SlotOrigin | None = None, guid: MakeGuid = Guid) -> None:
        self._limits = limits
        self._columns = msgspec.structs.replace(limits.frame, decoded_bytes=limits.deferred_bytes_max)
        self._at_once = _narrowed(limits.frame)
        self._origin = origin
        self._guid = guid
        self._dictionary = qwp.SymbolDictionary()
        self._plain = PlainReader(limits.frame, guid)
        self._group = _Joining(limits.frame.rows)
        self._group_messages = self._group_rows = self._group_bytes = 0
        self._next_fsn = origin.first_fsn if origin is not None else 0
        self._has_data = False
        self.deferring = False
        """Whether a deferred group is open: the message just read waits for the one that ends it."""

    @property
    def kept_bytes(self) -> int:
        """What is kept between messages: the open group and the symbol dictionary."""
        dictionary = self._dictionary
        return self._group_bytes + dictionary.size_bytes + SYMBOL_BYTES * dictionary.size

    def forget(self) -> None:
        """Drop what is kept: nothing will be read any more."""
        self._group, self._group_bytes = _Joining(self._limits.frame.rows), 0
        self._dictionary = qwp.SymbolDictionary()

    def read_plain(self, message: bytes) -> PlainFrame | None:
        """The frame, if it can be committed together with others like it; None says that `read` has to look at it.

        Changes nothing: a message may be read again.
        """
        if self.deferring or self._origin is not None:  # then a message counts, whatever is in it
            return None
        return self._plain.read(message)

    def read(self, message: bytes, *, now_us: int, at_once: bool = False) -> Frame | None:
        """The frame to commit; None if there is nothing to store yet, or at all. `WireError` if it must be refused.

        `at_once` raises `NotAtOnce` instead of taking long; the message is to be read again, without. `now_us` is the
        time for rows that come without one.
        """
        magic = message[:4]
        if magic == HFA_MAGIC:
            return self._read_arrow(message, at_once)
        if magic == QWP_MAGIC:
            return self._read_columns(message, now_us, at_once)
        raise _refusal("byte 0", f"a message starts with HFA1 or QWP1, this one with {magic!r}")

    def _read_arrow(self, message: bytes, at_once: bool) -> Frame | None:
        if not at_once:
            found = hfa.decode(message, self._limits.frame)
        elif len(message) > AT_ONCE_BYTES_MAX:
            raise NotAtOnce
        else:
            try:
                found = hfa.decode(message, self._at_once)
            except WireError:
                raise NotAtOnce from None
        if self.deferring:
            raise _refusal("byte 0", "an Arrow frame came inside a deferred group; end the group first")
        counted = self._count()
        self._plain.learn(message, found)
        identity: Identity = counted
        if found.slot_id is not None:
            identity = SlotFrame(found.slot_id, Fsn(found.fsn))
        elif found.guid is not None:
            identity = self._guid(found.guid)
        # Not the lengths of values: they are not checked yet, and may point anywhere.
        claim = sum([entry.batch.get_total_buffer_size() for entry in found.entries])
        return Frame(found.entries, identity, min(claim, max(len(message), self._limits.frame.decoded_bytes)))

    def _read_columns(self, message: bytes, now_us: int, at_once: bool) -> Frame | None:
        if not at_once:
            found = qwp.decode(message, self._dictionary, self._columns, now_us=now_us)
        elif len(message) > AT_ONCE_COLUMNS_BYTES_MAX or self._has_large_group():
            raise NotAtOnce
        else:
            try:
                found = qwp.decode(message, self._dictionary, self._at_once, now_us=now_us)
            except WireError:
                raise NotAtOnce from None
        if not found.tables and not self._has_data and not found.deferred:
            return None  # a catch-up message: it fills the dictionary of a new connection and is in no slot
        identity = self._count()
        if not found.deferred and not self.deferring:
            return self._frame(found.entries, identity)
        self.deferring = True
        self._add(found.entries)
        if found.deferred:
            return None
        return self._frame(self._end_group(), identity)

    def _frame(self, entries: tuple[Entry, ...], identity: Identity) -> Frame | None:
        if not entries:
            return None
        size_bytes = sum([entry.batch.nbytes for entry in entries])
        return Frame(entries, identity, size_bytes, self._limits.deferred_bytes_max)

    def _has_large_group(self) -> bool:
        """Whether it takes long to put the open group together."""
        return self._group_messages > AT_ONCE_MESSAGES_MAX or self._group_bytes > AT_ONCE_BYTES_MAX

    def _count(self) -> SlotFrame | None:
        """The slot's number of this message; every one counts from the first that brings data."""
        self._has_data = True
        if self._origin is None:
            return None
        fsn, self._next_fsn = self._next_fsn, self._next_fsn + 1
        if fsn > FSN_MAX:
            raise _refusal("X-Holdfast-First-Fsn", "the frame would have a number above 2^63-1, the last there is")
        return SlotFrame(self._origin.slot_id, Fsn(fsn))

    def _add(self, entries: tuple[Entry, ...]) -> None:
        """Add to the open group, or refuse the message that brings it above a bound; then nothing of it is stored."""
        batches = [entry.batch for entry in entries]
        limits = self._limits
        for entry in entries:
            self._group.add(entry)
        self._group_messages += 1
        self._group_rows += sum([batch.num_rows for batch in batches])
        self._group_bytes += sum([batch.nbytes for batch in batches])
        if self._group_messages > DEFERRED_MESSAGES_MAX:
            raise _refusal(
                "deferred group",
                f"it has more than {DEFERRED_MESSAGES_MAX} messages: end groups earlier",
                category=Category.WRITE_ERROR,
            )
        if self._group.count > LARGE_ENTRIES_MAX:
            raise _refusal(
                "deferred group",
                f"it has more than {LARGE_ENTRIES_MAX} entries, one for each channel and schema: end groups earlier",
                category=Category.WRITE_ERROR,
            )
        if self._group_rows > limits.deferred_rows_max or self._group_bytes > limits.deferred_bytes_max:
            raise _refusal(
                "deferred group",
                f"it has {self._group_rows} rows in {self._group_bytes} bytes; at most {limits.deferred_rows_max} rows "
                f"and {limits.deferred_bytes_max} bytes are committed as one: end groups earlier",
                category=Category.WRITE_ERROR,
            )

    def _end_group(self) -> tuple[Entry, ...]:
        group, self._group = self._group, _Joining(self._limits.frame.rows)
        self._group_messages = self._group_rows = self._group_bytes = 0
        self.deferring = False
        return group.entries()


def _narrowed(limits: FrameLimits) -> FrameLimits:
    """What of them is read at once."""
    names = ("message_bytes", "tables", "entries", "batches", "decoded_bytes")
    least = {name: min(getattr(limits, name), getattr(AT_ONCE, name)) for name in names}
    return msgspec.structs.replace(limits, **least)


def _refusal(place: str, reason: str, *, category: Category = Category.PARSE_ERROR) -> WireError:
    return WireError(category=category, reason=reason, place=place)


def joined(entries: Sequence[Entry], *, rows_max: int, bytes_max: int = JOINED_BYTES_MAX) -> tuple[Entry, ...]:
    """The same events with fewer entries: neighbours of one channel and one schema become one batch, up to a bound."""
    joining = _Joining(rows_max, bytes_max)
    for entry in entries:
        joining.add(entry)
    return joining.entries()


class _Joining:
    """Entries as they come, and how many they become."""

    def __init__(self, rows_max: int, bytes_max: int = JOINED_BYTES_MAX) -> None:
        self._rows_max = rows_max
        self._bytes_max = bytes_max
        self._by_channel: dict[str, list[_Run]] = {}
        self.count = 0

    def add(self, entry: Entry) -> None:
        """Put it to the last ones of its channel, if it goes with them."""
        runs = self._by_channel.setdefault(entry.channel, [])
        rows, size = entry.batch.num_rows, entry.batch.nbytes
        last = runs[-1] if runs else None
        is_full = last is not None and (last.rows + rows > self._rows_max or last.bytes + size > self._bytes_max)
        if last is None or is_full or not last.fits(entry):
            runs.append(_Run([entry], rows, size))
            self.count += 1
        else:
            last.entries.append(entry)
            last.rows += rows
            last.bytes += size

    def entries(self) -> tuple[Entry, ...]:
        """Those of a channel stand together, in the order they came."""
        return tuple(_as_one(run.entries) for runs in self._by_channel.values() for run in runs)


class _Run(msgspec.Struct, gc=False):
    """Entries that become one."""

    entries: list[Entry]
    rows: int
    bytes: int

    def fits(self, entry: Entry) -> bool:
        """Whether the entry is like them."""
        first = self.entries[0]
        same = entry.batch.schema.equals(first.batch.schema, check_metadata=True)
        return same and entry.partitions == first.partitions


def _as_one(run: list[Entry]) -> Entry:
    if len(run) == 1:
        return run[0]
    return Entry(run[0].channel, pa.concat_batches([entry.batch for entry in run]), run[0].partitions)


class Ticket(msgspec.Struct, gc=False):
    """A message that waits for its answer, or several that are accepted together."""

    wire_seq: int
    """Of the last one."""
    accepted: bool = False
    withheld: bool = False
    channels: tuple[tuple[str, int], ...] = ()
    refusal: tuple[Category, str] | None = None


def _reached(receipts: Iterable[FrameReceipt]) -> tuple[tuple[str, int], ...]:
    """How far each channel got."""
    marks: dict[str, int] = {}
    for receipt in receipts:
        for entry in receipt.entries:
            if entry.last_seq > marks.get(entry.channel, 0):
                marks[entry.channel] = entry.last_seq
    return tuple(marks.items())


class Answers:
    """Which messages may be answered, in order."""

    def __init__(self, *, durable: bool = False) -> None:
        self._durable = durable
        self._next_wire_seq = 0
        self._waiting: deque[Ticket] = deque()
        self._answered: dict[str, int] = {}
        self._durable_seqs: dict[str, int] = {}
        self._durable_sent: dict[str, int] = {}
        self.refused = False
        """Whether a message was refused: what comes later is consumed without an answer."""
        self.acknowledged = -1
        """The last wireSeq that was answered with OK."""

    @property
    def next_wire_seq(self) -> int:
        """The number of the next message."""
        return self._next_wire_seq

    @property
    def waiting(self) -> int:
        """How many messages wait for their answer."""
        return len(self._waiting)

    def expect(self, messages: int = 1) -> Ticket:
        """Number a message, or several in a row."""
        self._next_wire_seq += messages
        ticket = Ticket(self._next_wire_seq - 1)
        if not self.refused:
            self._waiting.append(ticket)
        return ticket

    def accept(self, ticket: Ticket, *receipts: FrameReceipt) -> None:
        """The message is committed, or needed no commit. It ends the group that was withheld, if there is one."""
        ticket.channels = _reached(receipts)
        ticket.accepted = True

    def accept_first(self, ticket: Ticket, accepted: Sequence[FrameReceipt], *, messages: int) -> Ticket:
        """Only the first of a ticket's messages are committed. Returns the ticket of the next one, to be refused."""
        first_seq = ticket.wire_seq - messages + 1
        after = Ticket(first_seq + len(accepted))
        if ticket in self._waiting:  # else an earlier refusal took its place
            while self._waiting.pop() is not ticket:
                pass
            if accepted:
                self._waiting.append(Ticket(after.wire_seq - 1, accepted=True, channels=_reached(accepted)))
            self._waiting.append(after)
        return after

    def withhold(self, ticket: Ticket) -> None:
        """The message belongs to a deferred group: it is answered with the message that ends the group."""
        ticket.withheld = True

    def refuse(self, ticket: Ticket, category: Category, reason: str) -> None:
        """Nothing of the message is stored. What came after it is not answered any more."""
        waiting = self._waiting
        while waiting and waiting[-1].wire_seq > ticket.wire_seq:
            waiting.pop()
        if not waiting or waiting[-1] is not ticket:
            return  # an earlier refusal took its place
        ticket.refusal = (category, reason)
        self.refused = True

    def durable(self, channel: str, seq: int) -> None:
        """Everything of a channel up to `seq` is in the object store."""
        self._durable_seqs[channel] = max(seq, self._durable_seqs.get(channel, 0))

    def take(self) -> list[bytes]:
        """The answers that can go out now, in order; at most one OK."""
        out: list[bytes] = []
        covered: dict[str, int] = {}
        last = self._settle(covered)
        if last >= 0:
            self.acknowledged = last
            out.append(replies.encode_ok(last, list(covered.items())))
        if self._durable:
            out += self._take_durable(covered)
        if self._waiting and (refusal := self._refusal()) is not None:
            out.append(replies.encode_refusal(*refusal))
            self._waiting.clear()
        return out

    def _settle(self, covered: dict[str, int]) -> int:
        """Take the accepted ones from the front; the last wireSeq, or -1. A withheld one goes with its group's end."""
        last, waiting = -1, self._waiting
        while waiting:
            ready = next((n for n, ticket in enumerate(waiting) if not ticket.withheld), None)
            if ready is None or not waiting[ready].accepted:
                break
            last = waiting[ready].wire_seq
            for _ in range(ready + 1):
                for channel, seq in waiting.popleft().channels:
                    covered[channel] = max(seq, covered.get(channel, 0))
        return last

    def _refusal(self) -> tuple[Category, int, str] | None:
        """The refusal, once only withheld messages stand before it."""
        last = self._waiting[-1]
        if last.refusal is None or any(not ticket.withheld for ticket in list(self._waiting)[:-1]):
            return None
        category, reason = last.refusal
        return category, last.wire_seq, reason

    def _take_durable(self, covered: Mapping[str, int]) -> list[bytes]:
        for channel, seq in covered.items():
            self._answered[channel] = max(seq, self._answered.get(channel, 0))
        news = {
            channel: seq
            for channel, seq in self._durable_seqs.items()
            if channel in self._answered and seq > self._durable_sent.get(channel, 0)
        }
        self._durable_sent.update(news)
        return [replies.encode_durable_ack(list(news.items()))] if news else []
