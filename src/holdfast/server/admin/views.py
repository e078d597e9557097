"""What the store holds and who is connected, as JSON: channels, segments, subscribers, connections, slots.

A channel is visible to whoever may `consume` or `admin` it; a channel that is not visible answers like one that does
not exist. Connections and slots are for administrators of the server. Lists are in a fixed order and come in pages.
"""

from __future__ import annotations

import base64
from itertools import islice
from typing import Any

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from holdfast.config.values import whole_number
from holdfast.errors import UnknownChannel
from holdfast.server.access import Principal
from holdfast.server.admin.caller import caller_of, on_thread, server_of
from holdfast.server.admin.download import send_segment
from holdfast.server.admin.envelope import Refused, answer, page_of
from holdfast.server.state import ServerState
from holdfast.store.catalog import PublishedSegment
from holdfast.store.listing import ChannelStatistics
from holdfast.store.store import Store
from holdfast.store.subscribers.subscriber import SubscriberStatistics

GAPS_MAX = 100
"""Gaps of a subscriber in one channel that are listed; `gaps_total` counts all."""
SLOT_RANGES_MAX = 100


def sees(principal: Principal, channel: str) -> bool:
    """Whether a channel is visible to a principal."""
    return principal.may("consume", channel) or principal.may("admin", channel)


def visible_channel(request: Request) -> str:
    """The channel in the path, or `UnknownChannel`."""
    name: str = request.path_params["channel"]
    if not sees(caller_of(request), name):
        raise UnknownChannel(channel=name)
    return name


# ------------------------------------------------------------------------------------------------------------- channels


async def list_channels(request: Request) -> Response:
    """`GET /api/v1/channels`: by name."""
    page, store, caller = page_of(request), server_of(request).store, caller_of(request)
    names = islice((name for name in store.channels() if name > page.after and sees(caller, name)), page.limit + 1)
    chosen = list(names)
    found = await on_thread(lambda: [_channel(store, name) for name in chosen[: page.limit]])
    more = page.next_page(chosen[page.limit - 1]) if len(chosen) > page.limit else None
    return answer([item for item in found if item is not None], next_page=more)


async def show_channel(request: Request) -> Response:
    """`GET /api/v1/channels/{channel}`: with its columns and limits."""
    store, name = server_of(request).store, visible_channel(request)
    facts = await on_thread(store.listing.channel, name)
    schema = await on_thread(store.schema, name)
    skipped = await on_thread(store.listing.skipped, name)
    columns = [{"name": field.name, "type": str(field.type), "nullable": field.nullable} for field in schema]
    more = {
        "columns": columns,
        "arrow_schema": base64.b64encode(schema.serialize()).decode(),
        "skipped": skipped,
        "limits": msgspec.to_builtins(facts.limits),
    }
    return answer({**_channel_facts(facts), **more})


async def seal_channel(request: Request) -> Response:
    """`POST /api/v1/channels/{channel}/seal`: what is in memory becomes a segment soon, for a reader in a hurry."""
    store, name = server_of(request).store, visible_channel(request)
    await on_thread(store.seal, name)
    return answer(_channel_facts(await on_thread(store.listing.channel, name)))


def _channel(store: Store, name: str) -> dict[str, object] | None:
    try:
        return _channel_facts(store.listing.channel(name))
    except UnknownChannel:  # deleted while the list was made
        return None


def _channel_facts(facts: ChannelStatistics) -> dict[str, object]:
    return {
        "name": facts.name,
        "first_seq": facts.first_seq if facts.events else None,
        "last_seq": facts.last_seq if facts.events else None,
        "next_seq": facts.next_seq,
        "published_seq": facts.published_seq,
        "events": facts.events,
        "bytes": facts.bytes,
        "active_at_ns": facts.active_at_ns or None,
    }


# ------------------------------------------------------------------------------------------------------------- segments


async def list_segments(request: Request) -> Response:
    """`GET /api/v1/channels/{channel}/segments`: in the order of their events; `from_seq` begins at an event."""
    page, store, name = page_of(request, "from_seq"), server_of(request).store, visible_channel(request)
    from_seq = _whole(page.after or request.query_params.get("from_seq", "1"), "from_seq")
    found = await on_thread(store.listing.segments, name, from_seq=from_seq, limit=page.limit + 1)
    chosen = found[: page.limit]
    more = page.next_page(str(chosen[-1].meta.last_seq + 1)) if len(found) > page.limit else None
    return answer([_segment_facts(item) for item in chosen], next_page=more)


async def list_all_segments(request: Request) -> Response:
    """`GET /api/v1/segments`: of all channels, by channel, then in the order of their events."""
    page, store, caller = page_of(request), server_of(request).store, caller_of(request)
    channel, _, seq = page.after.partition(" ")
    names = [name for name in store.channels() if name >= channel and sees(caller, name)]
    from_seq = _whole(seq or "1", "after")
    found = await on_thread(_segments_of, store, names, (channel, from_seq), page.limit + 1)
    chosen = found[: page.limit]
    last = chosen[-1].meta if len(found) > page.limit else None
    more = page.next_page(f"{last.channel} {last.last_seq + 1}") if last else None
    return answer([_segment_facts(item) for item in chosen], next_page=more)


def _segments_of(store: Store, names: list[str], start: tuple[str, int], limit: int) -> list[PublishedSegment]:
    found: list[PublishedSegment] = []
    for name in names:
        from_seq = start[1] if name == start[0] else 1
        try:
            found += store.listing.segments(name, from_seq=from_seq, limit=limit - len(found))
        except UnknownChannel:  # deleted while the list was made
            continue
        if len(found) >= limit:
            break
    return found


async def show_segment(request: Request) -> Response:
    """`GET /api/v1/channels/{channel}/segments/{segment}`."""
    return answer(_segment_facts(await _segment(request)))


async def segment_data(request: Request) -> Response:
    """`GET /api/v1/channels/{channel}/segments/{segment}/data`: its bytes."""
    return await send_segment(request, server_of(request).store.listing, await _segment(request))


async def _segment(request: Request) -> PublishedSegment:
    store, name = server_of(request).store, visible_channel(request)
    number = _whole(request.path_params["segment"], "segment")
    found = await on_thread(store.listing.segment, name, number)
    if found is None:
        reason = f"channel {name!r} has no segment {number}; it may have been deleted since"
        raise Refused(404, "not_found", reason, where={"channel": name, "segment": number})
    return found


def _segment_facts(segment: PublishedSegment) -> dict[str, object]:
    meta = segment.meta
    return {
        "segment": meta.segment_seq,
        "channel": meta.channel,
        "first_seq": meta.first_seq,
        "last_seq": meta.last_seq,
        "events": meta.rows,
        "bytes": segment.size_bytes,
        "crc32c": f"{segment.crc32c:08x}",
        "remote": segment.remote,
        "first_committed_id": meta.first_committed_id,
        "last_committed_id": meta.last_committed_id,
        "first_ingested_at_ns": meta.first_ingested_at_ns,
        "last_ingested_at_ns": meta.last_ingested_at_ns,
        "first_event_time_ns": meta.first_event_time_ns,
        "last_event_time_ns": meta.last_event_time_ns,
        "event_time_column": meta.event_time_column,
        "data": f"/api/v1/channels/{meta.channel}/segments/{meta.segment_seq}/data",
    }


def _whole(text: str, parameter: str) -> int:
    number = whole_number(text)
    if number is None:
        raise Refused(400, "bad_parameter", f"{parameter} is a whole number", where={"parameter": parameter})
    return number


# ---------------------------------------------------------------------------------------------------------- subscribers


async def list_subscribers(request: Request) -> Response:
    """`GET /api/v1/subscribers`: by name; of each only the channels that are visible."""
    page, store, caller = page_of(request), server_of(request).store, caller_of(request)
    found = sorted(await on_thread(store.subscribers), key=lambda item: item.name)
    shown = (subscriber_facts(item, caller) for item in found if item.name > page.after)
    chosen = list(islice((item for item in shown if item is not None), page.limit + 1))
    more = page.next_page(str(chosen[page.limit - 1]["name"])) if len(chosen) > page.limit else None
    return answer(chosen[: page.limit], next_page=more)


def subscriber_facts(item: SubscriberStatistics, caller: Principal) -> dict[str, object] | None:
    """What a caller may see of a subscriber; None for nothing at all."""
    lags = [lag for lag in item.channels if sees(caller, lag.channel)]
    if not lags and not caller.may("admin"):
        return None
    return {
        "name": item.name,
        "patterns": [pattern for pattern in item.patterns if sees(caller, pattern)],
        "newest_first": item.newest_first,
        "created_at_ns": item.created_at_ns,
        "leases": item.leases,
        "waiting": item.waiting,
        "outcomes": item.outcomes,
        "channels": [
            {**msgspec.to_builtins(lag), "gaps": lag.gaps[:GAPS_MAX], "gaps_total": len(lag.gaps)} for lag in lags
        ],
    }


# ---------------------------------------------------------------------------------------------------------- connections


async def list_connections(request: Request) -> Response:
    """`GET /api/v1/connections`: oldest first."""
    caller_of(request).require("admin")
    page = page_of(request)
    after = _whole(page.after or "0", "after") if page.after else -1
    found = list(islice((item for item in server_of(request).connections if item.id > after), page.limit + 1))
    more = page.next_page(str(found[page.limit - 1].id)) if len(found) > page.limit else None
    return answer([msgspec.to_builtins(item) for item in found[: page.limit]], next_page=more)


async def list_errors(request: Request) -> Response:
    """`GET /api/v1/errors`: the last refusals, newest first."""
    caller_of(request).require("admin")
    page = page_of(request)
    before = _whole(page.after, "after") if page.after else None
    newest = (item for item in server_of(request).troubles.current() if before is None or item.id < before)
    found = list(islice(newest, page.limit + 1))
    more = page.next_page(str(found[page.limit - 1].id)) if len(found) > page.limit else None
    return answer([msgspec.to_builtins(item) for item in found[: page.limit]], next_page=more)


async def list_senders(request: Request) -> Response:
    """`GET /api/v1/senders`: who sends frames of slots, connected or away; by slot."""
    caller_of(request).require("admin")
    page = page_of(request)
    by_slot = sorted(server_of(request).senders.current(), key=lambda item: item.slot_id)
    found = list(islice((item for item in by_slot if item.slot_id > page.after), page.limit + 1))
    more = page.next_page(found[page.limit - 1].slot_id) if len(found) > page.limit else None
    return answer([msgspec.to_builtins(item) for item in found[: page.limit]], next_page=more)


# ---------------------------------------------------------------------------------------------------------------- slots


async def list_slots(request: Request) -> Response:
    """`GET /api/v1/slots`: by id, with their owner and what was accepted, as of the last segments."""
    caller_of(request).require("admin")
    page, state = page_of(request), server_of(request)
    after = _slot_id(page.after) if page.after else b""
    found = await on_thread(_slots, state, after, page.limit + 1)
    more = page.next_page(str(found[page.limit - 1]["slot_id"])) if len(found) > page.limit else None
    return answer(found[: page.limit], next_page=more)


def _slots(state: ServerState, after: bytes, limit: int) -> list[dict[str, Any]]:
    """Slots that wrote something, or have an owner."""
    accepted = dict(state.store.listing.slots(after=after, limit=limit))
    owners = {item.slot_id: item for item in state.gatekeeper.bindings.page(after=after, limit=limit)}
    found = []
    for slot_id in sorted(accepted.keys() | owners.keys())[:limit]:
        ranges, owner = accepted.get(slot_id, []), owners.get(slot_id)
        found.append(
            {
                "slot_id": slot_id.hex(),
                "principal": owner.principal if owner else None,
                "bound_at_ns": owner.bound_at_ns if owner else None,
                "last_fsn": ranges[-1][1] if ranges else None,
                "ranges": ranges[:SLOT_RANGES_MAX],
                "ranges_total": len(ranges),
            }
        )
    return found


async def release_slot(request: Request) -> Response:
    """`DELETE /api/v1/slots/{slot}/owner`: the next principal that uses the slot owns it."""
    caller = caller_of(request)
    caller.require("admin")
    slot_id = _slot_id(request.path_params["slot"])
    owner = await on_thread(server_of(request).gatekeeper.bindings.release, slot_id)
    if owner is None:
        raise Refused(404, "not_found", f"slot {slot_id.hex()} has no owner", where={"slot": slot_id.hex()})
    audit = server_of(request).gatekeeper.audit
    audit.write("admin.changed", principal=caller.name, change="slot owner released", slot=slot_id.hex(), owner=owner)
    return answer({"slot_id": slot_id.hex(), "released_from": owner})


def _slot_id(text: str) -> bytes:
    try:
        slot_id = bytes.fromhex(text.replace("-", ""))
    except ValueError:
        slot_id = b""
    if len(slot_id) != 16:
        raise Refused(400, "bad_parameter", "a slot id is 32 hexadecimal digits", where={"parameter": "slot"})
    return slot_id
