"""The messages between a consumer and the server, both directions, as bytes and as values.

    message   u8 layout, 1 | u8 kind | u16 zero | u32 head bytes | head | zeros up to a multiple of 8 | body

Little-endian. The head is a MessagePack map with the fields below as keys; a field that has its default may be left
out. Only DELIVER has a body: one Arrow IPC stream with exactly one batch. It begins at a multiple of 8 bytes, so that
it is read without a copy.

| kind | from the consumer | kind | from the server |
|---|---|---|---|
| 0x01 | HELLO | 0x81 | WELCOME |
| 0x02 | SUBSCRIBE | 0x82 | SUBSCRIBED |
| 0x03 | CONFIGURE | 0x83 | CONFIGURED |
| 0x04 | CREDIT | 0x84 | DELIVER |
| 0x05 | ACK | 0x85 | SETTLED |
| 0x06 | NACK | 0x86 | CLOSED |
| 0x07 | REJECT | 0x87 | REFUSED |
| 0x08 | EXTEND | 0x88 | EVENT |
| 0x09 | CLOSE | | |
| 0x0A | UNSUBSCRIBE | | |

Promises: the server takes no field it does not know, so that a misspelt one is found; a consumer skips fields and kinds
it does not know, so that a newer server may say more. Whatever bytes come, reading gives a message or a `WireError`
that names kind and field. What the fields mean is on the page docs/reference/consume.md.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from functools import lru_cache
from typing import Any, ClassVar, Literal, TypeAlias

import msgspec
import pyarrow as pa

from holdfast.errors import Category, WireError
from holdfast.model.columns import has_dictionary
from holdfast.wire.arrowstream import END_OF_STREAM

PATH = "/v1/consume"
LAYOUT = 1
REQUEST_BYTES_MAX = 1 << 20
"""Of one message from a consumer: an ack of tens of thousands of ranges."""
HEAD_BYTES_MAX = 1 << 20
RANGES_MAX = 10_000
"""Of one ack, nack, reject or extend: what the store writes in one record."""
SCHEMAS_CACHED = 512
NAME_CHARS_MAX = 128
REASON_CHARS_MAX = 1000
FILTER_CHARS_MAX = 1024
BACKOFF_MAX = 64
PARTITIONS_MAX = 64
ACK_WAIT_MS_MIN, ACK_WAIT_MS_MAX = 100, 86_400_000
INFLIGHT_MAX = 1_000_000
INFLIGHT_BYTES_MAX = 1 << 30
BATCH_ROWS_MAX = 65_536
DELIVER_MAX = 1000
PRIORITY_MAX = 1_000_000
DELAY_MS_MAX = 7 * 86_400_000

Range: TypeAlias = tuple[int, int]
"""First and last seq, both included."""
Mode: TypeAlias = Literal["fanout", "priority", "broadcast"]
RefusalCode: TypeAlias = Literal[
    "bad_request",
    "forbidden",
    "in_use",
    "internal",
    "invalid_filter",
    "limit_reached",
    "mismatch",
    "unavailable",
    "unknown_subscription",
]
EventName: TypeAlias = Literal["dead", "draining", "ended", "expired", "gap"]


class Message(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """What all messages have in common."""

    KIND: ClassVar[int] = 0


class Request(Message, frozen=True, forbid_unknown_fields=True):
    """From a consumer."""


class Reply(Message, frozen=True):
    """From the server."""


# ------------------------------------------------------------------------------------------------------ from a consumer


class Hello(Request, frozen=True):
    """Opens the session; nothing may come before it."""

    KIND: ClassVar[int] = 0x01
    client: str = ""
    """A name for people."""


class Subscribe(Request, frozen=True):
    """Open a subscription under the number `sub`, which the consumer chooses; it is free on this connection."""

    KIND: ClassVar[int] = 0x02
    request: int
    sub: int
    channel: str
    durable: str = ""
    """The subscriber whose place is kept; empty for an ephemeral subscription."""
    group: str = ""
    """Members of one group share the messages; empty for a subscription alone."""
    mode: Mode = "fanout"
    start: str | int | None = None
    """`first`, `new`, `last` or a seq; None is `first` for durables, `new` for others. Ignored when resuming."""
    start_time_ns: int | None = None
    """Instead of `start`: the first event that came in at or after this time, nanoseconds since 1970."""
    ack_wait_ms: int = 30_000
    max_inflight: int = 1024
    max_inflight_bytes: int = 32 << 20
    batch_rows: int = 1024
    """Messages of one DELIVER at most; 1 for single messages."""
    credit: int | None = None
    """Messages that may be delivered in all until CREDIT says more; None is without limit."""
    priority: int = 0
    max_deliver: int = 0
    """Deliveries of one message at most; 0 is without limit."""
    backoff_ms: tuple[int, ...] = ()
    """The wait for the answer of the first, second, … delivery, in place of `ack_wait_ms`; the last one repeats."""
    filter: str = ""
    partitions: tuple[str, ...] = ()
    columns: tuple[str, ...] | None = None
    system: tuple[str, ...] = ()
    """System columns to be appended: `_seq`, `_committed_id`, `_ingested_at`, `_channel`, `_slot_id`, `_fsn`."""
    replace: bool = False
    """Take a durable over from the connection that has it, instead of being refused with `in_use`."""


class Configure(Request, frozen=True):
    """Change a subscription; None leaves a value as it is."""

    KIND: ClassVar[int] = 0x03
    request: int
    sub: int
    ack_wait_ms: int | None = None
    max_inflight: int | None = None
    max_inflight_bytes: int | None = None
    batch_rows: int | None = None
    priority: int | None = None
    max_deliver: int | None = None
    backoff_ms: tuple[int, ...] | None = None


class Credit(Request, frozen=True):
    """Deliver until `upto` messages were delivered on this subscription in all; None is without limit."""

    KIND: ClassVar[int] = 0x04
    sub: int
    upto: int | None = None


class Ack(Request, frozen=True):
    """Done with messages: all that this subscription holds up to `upto`, and those in `ranges`."""

    KIND: ClassVar[int] = 0x05
    sub: int
    upto: int | None = None
    ranges: tuple[Range, ...] = ()
    request: int | None = None
    """With a number, SETTLED answers when it is durable."""


class Nack(Request, frozen=True):
    """Again later."""

    KIND: ClassVar[int] = 0x06
    sub: int
    ranges: tuple[Range, ...]
    delay_ms: int | None = None
    """None is the time of `backoff_ms`, and 0 without that."""
    request: int | None = None


class Reject(Request, frozen=True):
    """Never again: to the dead-letter channel, with the reason."""

    KIND: ClassVar[int] = 0x07
    sub: int
    ranges: tuple[Range, ...]
    reason: str = ""
    request: int | None = None


class Extend(Request, frozen=True):
    """Still at work: the wait for the answer begins anew."""

    KIND: ClassVar[int] = 0x08
    sub: int
    ranges: tuple[Range, ...] = ()
    """Empty: all that this subscription holds."""
    request: int | None = None


class Close(Request, frozen=True):
    """End a subscription. A durable keeps its place."""

    KIND: ClassVar[int] = 0x09
    request: int
    sub: int


class Unsubscribe(Request, frozen=True):
    """End a subscription and remove its durable, or the group's if this is the last member."""

    KIND: ClassVar[int] = 0x0A
    request: int
    sub: int


# ----------------------------------------------------------------------------------------------------- from the server


class Welcome(Reply, frozen=True):
    """The session stands."""

    KIND: ClassVar[int] = 0x81
    server: str
    """Its version, for people."""
    session: int
    subs_max: int
    """Subscriptions of one connection."""
    request_bytes_max: int = REQUEST_BYTES_MAX
    durability: str = "synced"
    """What SETTLED promises: `synced` survives a power cut."""


class Subscribed(Reply, frozen=True):
    """The subscription is open."""

    KIND: ClassVar[int] = 0x82
    request: int
    sub: int
    next_seq: int
    """The lowest seq that is owed."""
    mark: int = 0
    """All up to it is confirmed."""
    resumed: bool = False
    """Whether the durable, or the group, was there before; then `start` was ignored."""
    members: int = 1
    """Of the group, with this one."""


class Configured(Reply, frozen=True):
    """The values that hold now."""

    KIND: ClassVar[int] = 0x83
    request: int
    sub: int
    ack_wait_ms: int
    max_inflight: int
    max_inflight_bytes: int
    batch_rows: int
    priority: int
    max_deliver: int
    backoff_ms: tuple[int, ...]


class Deliver(Reply, frozen=True):
    """Messages, in the order of their seqs. The batch has one row for each seq of `ranges`."""

    KIND: ClassVar[int] = 0x84
    sub: int
    ranges: tuple[Range, ...]
    attempt: int = 1
    """1 for the first delivery; a higher number is a redelivery. The same for all rows."""
    again: bool = False
    """They were delivered before, and given back without an attempt that counts."""

    @property
    def redelivered(self) -> bool:
        """Whether these messages were delivered before."""
        return self.again or self.attempt > 1

    @property
    def rows(self) -> int:
        """How many messages."""
        return sum([last - first + 1 for first, last in self.ranges])


class Settled(Reply, frozen=True):
    """The answer to an ACK, NACK, REJECT or EXTEND with a request number; what it names is durable."""

    KIND: ClassVar[int] = 0x85
    request: int
    sub: int
    settled: int
    """Messages it took effect on."""
    stale: int = 0
    """Messages it named that this subscription does not hold; they were ignored."""


class Closed(Reply, frozen=True):
    """The subscription is over; its number is free."""

    KIND: ClassVar[int] = 0x86
    request: int
    sub: int
    removed: bool = False
    """Whether the durable is gone."""


class Refused(Reply, frozen=True):
    """A request did nothing."""

    KIND: ClassVar[int] = 0x87
    request: int
    sub: int
    code: RefusalCode
    reason: str
    retry: bool = False
    """Whether the same request may work later."""


class Event(Reply, frozen=True):
    """Something happened that no request asked for."""

    KIND: ClassVar[int] = 0x88
    event: EventName
    sub: int = 0
    ranges: tuple[Range, ...] = ()
    reason: str = ""
    code: RefusalCode | Literal[""] = ""


class Delivery(msgspec.Struct, frozen=True):
    """A DELIVER as a consumer sees it."""

    head: Deliver
    body: memoryview

    def batch(self) -> pa.RecordBatch:
        """Its rows; views of the message where Arrow can. `WireError` unless it is one stream of one such batch."""
        try:
            with pa.ipc.open_stream(pa.py_buffer(self.body)) as reader:
                batches = list(reader)
        except (pa.ArrowException, OSError, ValueError) as error:
            raise violation("DELIVER", f"arrow cannot read the body: {' '.join(str(error).split())[:200]}") from None
        if len(batches) != 1 or batches[0].num_rows != self.head.rows:
            rows = sum(batch.num_rows for batch in batches)
            raise violation("DELIVER", f"{len(batches)} batches of {rows} rows came for {self.head.rows} seqs")
        return batches[0]


# ------------------------------------------------------------------------------------------------------------- as bytes

_PREFIX = struct.Struct("<BBHI")
_REQUESTS: tuple[type[Request], ...] = (
    Hello, Subscribe, Configure, Credit, Ack, Nack, Reject, Extend, Close, Unsubscribe,
)  # fmt: skip
_REPLIES: tuple[type[Reply], ...] = (Welcome, Subscribed, Configured, Deliver, Settled, Closed, Refused, Event)
_REQUEST_DECODERS = {kind.KIND: (kind, msgspec.msgpack.Decoder(kind)) for kind in _REQUESTS}
_REPLY_DECODERS = {kind.KIND: (kind, msgspec.msgpack.Decoder(kind)) for kind in _REPLIES}
_ENCODER = msgspec.msgpack.Encoder()


def encode(message: Message) -> bytes:
    """A message without a body."""
    head = _ENCODER.encode(message)
    padding = -(_PREFIX.size + len(head)) % 8
    return b"".join([_PREFIX.pack(LAYOUT, message.KIND, 0, len(head)), head, bytes(padding)])


def encode_deliver(head: Deliver, body: bytes | memoryview | pa.Buffer) -> bytes:
    """A DELIVER; the body may be shared by many of them."""
    return b"".join([encode(head), memoryview(body)])


def encode_body(batch: pa.RecordBatch) -> pa.Buffer:
    """A batch as the body of a DELIVER."""
    head = _schema_message(batch.schema)
    if head is not None:
        return pa.py_buffer(b"".join([head, batch.serialize(), END_OF_STREAM]))
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, batch.schema) as stream:
        stream.write_batch(batch)
    return sink.getvalue()


@lru_cache(SCHEMAS_CACHED)
def _schema_message(schema: pa.Schema) -> bytes | None:
    """The message a stream begins with; None if dictionaries come before its batch."""
    return None if has_dictionary(schema) else schema.serialize().to_pybytes()


def decode_request(message: bytes | memoryview) -> Request:
    """What a consumer sent; `WireError` if it may not be sent."""
    view = memoryview(message).cast("B")
    if len(view) > REQUEST_BYTES_MAX:
        raise violation("message", f"it has {len(view)} bytes, at most {REQUEST_BYTES_MAX} are allowed")
    kind, head, body = _parts(view)
    if kind not in _REQUEST_DECODERS:
        raise violation("byte 1", f"kind 0x{kind:02x} is nothing a consumer sends")
    found, decoder = _REQUEST_DECODERS[kind]
    if len(body):
        raise violation(found.__name__.upper(), f"{len(body)} bytes follow the head")
    request: Request = _head(found, decoder, head)
    return request


def decode_reply(message: bytes | memoryview) -> Reply | Delivery | None:
    """What the server sent; None for a kind of a newer server. `WireError` if it is no message."""
    view = memoryview(message).cast("B")
    kind, head, body = _parts(view)
    if kind not in _REPLY_DECODERS:
        return None
    found, decoder = _REPLY_DECODERS[kind]
    reply: Reply = _head(found, decoder, head)
    if isinstance(reply, Deliver):
        check_ranges("DELIVER", reply.ranges, ascending=True)
        return Delivery(reply, body)
    return reply


def _parts(view: memoryview) -> tuple[int, memoryview, memoryview]:
    if len(view) < _PREFIX.size:
        raise violation("byte 0", f"a message has at least {_PREFIX.size} bytes, this one has {len(view)}")
    layout, kind, zero, head_bytes = _PREFIX.unpack_from(view)
    if layout != LAYOUT or zero:
        raise violation("byte 0", f"layout {layout} is not spoken here; {LAYOUT} is")
    end = _PREFIX.size + head_bytes
    if head_bytes > HEAD_BYTES_MAX or end > len(view):
        raise violation("byte 4", f"the head has {head_bytes} bytes, the message {len(view)}")
    body = end + -end % 8
    if any(view[end : min(body, len(view))]) or body > len(view):
        raise violation(f"byte {end}", "zeros up to a multiple of 8 bytes must follow the head")
    return kind, view[_PREFIX.size : end], view[body:]


def _head(kind: type[Message], decoder: msgspec.msgpack.Decoder[Any], head: memoryview) -> Any:
    try:
        return decoder.decode(head)
    except (msgspec.DecodeError, UnicodeDecodeError, OverflowError, RecursionError) as error:
        raise violation(kind.__name__.upper(), str(error)) from None


def check_ranges(place: str, ranges: Sequence[Range], *, ascending: bool = False) -> None:
    """Ranges of seqs: not upside down, not too many, and in order if they must be."""
    if len(ranges) > RANGES_MAX and not ascending:
        raise violation(place, f"{len(ranges)} ranges, at most {RANGES_MAX} are allowed")
    before = 0
    for first, last in ranges:
        if not 1 <= first <= last or (ascending and first <= before):
            raise violation(place, f"range {first}..{last} is upside down, out of order or below 1")
        before = last


def violation(place: str, reason: str) -> WireError:
    """What ends the connection with 1002."""
    return WireError(category=Category.PROTOCOL_VIOLATION, reason=reason, place=place)
