"""Events in a request body, for those who have curl and no Sender.

    curl -H 'Content-Type: application/x-ndjson' -H 'Idempotency-Key: 7f1c…' --data-binary @rows.ndjson \
         http://127.0.0.1:9001/api/v1/channels/trades/events

Promise: the answer comes when the events are durable, with their positions; a request is stored as a whole or not at
all. With `Idempotency-Key` a repeat within `dedup.window` is answered with the first positions and stores nothing, and
other events with a key that was used are refused; the key counts per principal and channel. A request may name a slot
and the number of its frame instead, as producers on the data port do: then it is recognised for ever. At a bound the
request waits for `ingest.write_deadline`, then is refused with 503 and `Retry-After`.
"""

from __future__ import annotations

import asyncio
import hashlib
import math
from collections.abc import Callable
from concurrent.futures import Future

import pyarrow as pa
from starlette.requests import Request
from starlette.responses import Response

from holdfast.errors import Backpressure, QuotaReached, SchemaMismatch, UnknownChannel
from holdfast.model.frame import Entry, FrameReceipt, Guid, Identity, SlotFrame
from holdfast.model.positions import Fsn
from holdfast.server.access import Claim, Principal
from holdfast.server.admin.bodies import JSON, body_of
from holdfast.server.admin.caller import caller_of, on_thread, server_of
from holdfast.server.admin.envelope import Refused, answer, places_of
from holdfast.server.admin.jsonrows import BODY_BYTES_MAX as JSON_BYTES_MAX
from holdfast.server.admin.jsonrows import lines_of_array, read_rows, unfit_row
from holdfast.server.admin.samerows import check_same
from holdfast.server.handshake import SLOT_ID_HEADER, Refusal, slot_origin
from holdfast.server.state import ServerState
from holdfast.store.store import Store
from holdfast.wire.arrowstream import Malformed, read_stream, refusal
from holdfast.wire.limits import FrameLimits

RETRY_EVERY_S = 0.05
KEY_CHARS_MAX = 255

ARROW_STREAM = "application/vnd.apache.arrow.stream"
NDJSON = ("application/x-ndjson", "application/jsonl", "application/x-jsonlines")

Read = Callable[[bytes, str, Store, FrameLimits], pa.RecordBatch]


async def post_events(request: Request) -> Response:
    """`POST /api/v1/channels/{channel}/events`."""
    state, caller = server_of(request), caller_of(request)
    channel: str = request.path_params["channel"]
    read = _reader_of(request)
    identity = _identity_of(request, caller, channel)
    check_open(state)
    caller.require_right("publish", channel)  # before anything is read; the channel counts when it is written to
    body = await _body_of(request, read, state.config.ingest_batch_bytes_max)
    _count(caller, len(body))
    limits = FrameLimits(message_bytes=state.config.ingest_batch_bytes_max, rows=state.store.config.frame_rows_max)
    batch = await on_thread(read, body, channel, state.store, limits)
    claim = await _admit(caller, channel, identity)
    try:
        receipt = await _commit(state, Entry(channel, batch), identity, claim)
    except SchemaMismatch as error:
        raise _with_row(error, batch, _schema_of(state.store, channel)) from None
    if receipt.duplicate and isinstance(identity, Guid):
        await on_thread(check_same, state.store, channel, batch, receipt)
    return answer(_positions(receipt, channel))


# ---------------------------------------------------------------------------------------------------------- the request


def _reader_of(request: Request) -> Read:
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind in NDJSON:
        return _read_lines
    if kind == JSON:
        return _read_array
    if kind == ARROW_STREAM:
        return _read_arrow
    allowed = f"{NDJSON[0]}, {JSON} or {ARROW_STREAM}"
    raise Refused(415, "unsupported_media_type", f"the Content-Type must be {allowed}")


def _identity_of(request: Request, caller: Principal, channel: str) -> Identity:
    key, origin = request.headers.get("idempotency-key"), slot_origin(request.headers)
    if isinstance(origin, Refusal):
        raise Refused(400, "bad_parameter", origin.reason)
    if origin is not None and key is not None:
        raise Refused(400, "bad_parameter", f"give an Idempotency-Key or {SLOT_ID_HEADER}, not both")
    if origin is not None:
        return SlotFrame(origin.slot_id, Fsn(origin.first_fsn))
    if key is None:
        return None
    if not 0 < len(key) <= KEY_CHARS_MAX:
        raise Refused(400, "bad_parameter", f"an Idempotency-Key has 1 to {KEY_CHARS_MAX} characters")
    text = "\0".join(("holdfast idempotency", channel, key))
    return caller.guid(hashlib.sha256(text.encode()).digest()[:16])


def _slot_ids(identity: Identity) -> tuple[bytes, ...]:
    return (identity.slot_id,) if isinstance(identity, SlotFrame) else ()


async def _body_of(request: Request, read: Read, bytes_max: int) -> bytes:
    if read is not _read_arrow and bytes_max > JSON_BYTES_MAX:
        return await body_of(request, JSON_BYTES_MAX, hint=" of JSON; send more as an Arrow stream")
    return await body_of(request, bytes_max, hint=", which is ingest.max_batch_size")


async def _admit(caller: Principal, channel: str, identity: Identity) -> Claim:
    if caller.needs_disk((channel,), _slot_ids(identity)):
        return await on_thread(_claim, caller, channel, identity)
    return _claim(caller, channel, identity)


def _claim(caller: Principal, channel: str, identity: Identity) -> Claim:
    claim = caller.publishing((channel,))
    with claim:
        for slot_id in _slot_ids(identity):
            caller.bind_slot(slot_id)
    return claim


def check_open(state: ServerState) -> None:
    """Refuse on a server that takes nothing now."""
    if state.config.role != "primary":
        raise Refused(421, "not_primary", f"this server is a {state.config.role}; send events to the primary")
    if state.draining:
        raise Refused(503, "draining", "the server is stopping; send to it again when it is back", retry_after_s=5)


def _count(caller: Principal, size_bytes: int) -> None:
    """A principal above its rate is refused; the one that gets it there is not."""
    wait_s = caller.take(0, 0)
    if wait_s > 0:
        name = "bytes_per_second" if caller.limits.bytes_per_second else "frames_per_second"
        allowed = getattr(caller.limits, name)
        raise QuotaReached(principal=caller.name, limit=name, allowed=allowed, retry_after_s=math.ceil(wait_s))
    caller.take(1, size_bytes)


# ------------------------------------------------------------------------------------------------------------ the batch


def _read_lines(body: bytes, channel: str, store: Store, _limits: FrameLimits) -> pa.RecordBatch:
    return read_rows(body, channel=channel, schema=_schema_of(store, channel))


def _read_array(body: bytes, channel: str, store: Store, limits: FrameLimits) -> pa.RecordBatch:
    return _read_lines(lines_of_array(body), channel, store, limits)


def _read_arrow(body: bytes, channel: str, _store: Store, limits: FrameLimits) -> pa.RecordBatch:
    try:
        batch, _, _ = read_stream(pa.py_buffer(body), limits, channel=channel, inflated_bytes=0)
    except Malformed as error:
        raise refusal(error, base=0, channel=channel) from None
    except (pa.ArrowException, OSError) as error:
        raise Refused(
            400, "bad_arrow", f"the body is not an Arrow stream: {error}", where={"channel": channel}
        ) from None
    return batch


def _with_row(error: SchemaMismatch, batch: pa.RecordBatch, schema: pa.Schema) -> Refused:
    """The same, with the first row that does not fit, if one can be named."""
    where = places_of(error) or {}
    row = unfit_row(batch, schema.field(error.column)) if error.column in schema.names else None
    if row is not None:
        where["row"] = row
    return Refused(400, "schema_mismatch", f"row {row}: {error}" if row else str(error), where=where)


def _schema_of(store: Store, channel: str) -> pa.Schema:
    try:
        return store.schema(channel)
    except UnknownChannel:
        return pa.schema([])


# ----------------------------------------------------------------------------------------------------------- the commit


async def _commit(state: ServerState, entry: Entry, identity: Identity, claim: Claim) -> FrameReceipt:
    """Durable when it returns; waits at a bound without holding a thread."""
    try:
        future = await _submitted(state, entry, identity, claim)
    except BaseException as error:  # if it is a cancellation, a thread may still hand the frame over
        claim.settle(error)
        raise
    return await asyncio.wrap_future(future)


async def _submitted(state: ServerState, entry: Entry, identity: Identity, claim: Claim) -> Future[FrameReceipt]:
    def submit() -> Future[FrameReceipt]:
        return claim.settled_by(state.store.commit_frame_async([entry], identity=identity, wait=False))

    deadline_ns = state.clock.monotonic_ns() + state.config.ingest_write_deadline_ns
    while True:
        try:
            return await on_thread(submit)
        except Backpressure as error:
            if state.clock.monotonic_ns() >= deadline_ns or state.draining:
                raise await on_thread(state.store.blame, error) from None
        await asyncio.sleep(RETRY_EVERY_S)


def _positions(receipt: FrameReceipt, channel: str) -> dict[str, object]:
    """Zeros where a repeat is known but its events are gone."""
    found = receipt.entries[0] if receipt.entries else None
    return {
        "channel": channel,
        "events": found.last_seq - found.first_seq + 1 if found and found.first_seq else 0,
        "first_seq": found.first_seq if found else 0,
        "last_seq": found.last_seq if found else 0,
        "first_committed_id": found.first_committed_id if found else 0,
        "duplicate": receipt.duplicate,
        "durability": receipt.durability.value,
    }
