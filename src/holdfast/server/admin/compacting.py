"""Small segments of a channel become large ones, asked for over HTTP.

Promise: a request does a bounded piece of work and says whether there is more; whoever asks repeats it until there is
none. So no request takes long, and one that is repeated does no harm. Needs the right `admin`.
"""

from __future__ import annotations

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from holdfast.errors import BadRequest
from holdfast.server.admin.bodies import json_body
from holdfast.server.admin.caller import caller_of, on_thread, server_of
from holdfast.server.admin.envelope import answer
from holdfast.server.admin.events import check_open
from holdfast.store.compaction import TARGET_BYTES, Compaction, CompactionPolicy, compact

BODY_BYTES_MAX = 4096
GROUPS_PER_REQUEST = 4
"""New segments of one request: some seconds of work at the default size."""
TARGET_BYTES_MIN, TARGET_BYTES_MAX = 1 << 16, 1 << 30
"""Below it nothing is won; above it a new segment takes too much memory while it is written."""


class Asked(msgspec.Struct, forbid_unknown_fields=True):
    """The body of `POST /api/v1/channels/{channel}/compact`."""

    target_bytes: int = TARGET_BYTES
    event_span_ns: int = 0


async def compact_channel(request: Request) -> Response:
    """`POST /api/v1/channels/{channel}/compact`."""
    state, caller = server_of(request), caller_of(request)
    channel: str = request.path_params["channel"]
    check_open(state)
    caller.require("admin", channel)
    asked = await _read(request)
    policy = CompactionPolicy(asked.target_bytes, asked.event_span_ns)
    done = await on_thread(compact, state.store, channel, policy, groups_max=GROUPS_PER_REQUEST)
    if done.segments_before:
        audit = state.gatekeeper.audit
        change = f"{done.segments_before} segments became {done.segments_after}"
        audit.write("admin.changed", principal=caller.name, change=change, channel=channel)
    return answer(facts_of(done))


def facts_of(done: Compaction) -> dict[str, object]:
    """What was done, as JSON has it."""
    return {
        "segments_before": done.segments_before,
        "segments_after": done.segments_after,
        "bytes_before": done.bytes_before,
        "bytes_after": done.bytes_after,
        "events": done.events,
        "left": done.left,
        "more": done.more,
    }


async def _read(request: Request) -> Asked:
    asked = await json_body(request, Asked, bytes_max=BODY_BYTES_MAX)
    if not TARGET_BYTES_MIN <= asked.target_bytes <= TARGET_BYTES_MAX:
        raise BadRequest(f"target_bytes {asked.target_bytes} is outside {TARGET_BYTES_MIN} … {TARGET_BYTES_MAX}")
    if asked.event_span_ns < 0:
        raise BadRequest(f"event_span_ns {asked.event_span_ns} is negative")
    return asked
