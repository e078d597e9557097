"""The OpenAPI document of the admin server, kept by hand beside the routes; a test compares the two."""

from __future__ import annotations

from typing import Any

from holdfast import __version__
from holdfast.server.admin.bodies import JSON
from holdfast.server.admin.download import CHECKSUM_HEADER, MEDIA_TYPE
from holdfast.server.admin.envelope import PAGE_DEFAULT, PAGE_MAX
from holdfast.server.admin.events import ARROW_STREAM, NDJSON

Json = dict[str, Any]

_WHOLE: Json = {"type": "integer", "minimum": 0}
_SOME: Json = {"type": ["integer", "null"]}
_TEXT: Json = {"type": "string"}
_TEXT_OR_NONE: Json = {"type": ["string", "null"]}
_FLAG: Json = {"type": "boolean"}
_NUMBER: Json = {"type": "number", "minimum": 0}


def _object(**properties: Json) -> Json:
    return {"type": "object", "properties": properties, "required": sorted(properties)}


def _list(item: Json) -> Json:
    return {"type": "array", "items": item}


def _parameter(name: str, place: str, schema: Json, text: str) -> Json:
    return {"name": name, "in": place, "required": place == "path", "schema": schema, "description": text}


_CHANNEL = _parameter("channel", "path", _TEXT, "A channel.")
_SEGMENT = _parameter("segment", "path", _WHOLE, "The number of a segment.")
_LOSS = _object(channel=_TEXT, subscriber=_TEXT, reason=_TEXT, segments=_WHOLE, events=_WHOLE, bytes=_WHOLE)
_NAME = _parameter("subscriber", "path", _TEXT, "The name of a subscriber.")
_QUERY = _parameter("query", "path", _TEXT, "The name of a Spark query.")
_SLOT = _parameter("slot", "path", _TEXT, "A slot id: 32 hexadecimal digits.")
_PAGE = [
    _parameter("after", "query", _TEXT, "Part of `next` of the page before."),
    _parameter(
        "limit",
        "query",
        {"type": "integer", "minimum": 1, "maximum": PAGE_MAX, "default": PAGE_DEFAULT},
        "Entries of a page.",
    ),
]
_FROM_SEQ = _parameter("from_seq", "query", _WHOLE, "Only segments with events at or behind this one.")

_FROM_EVENT = _parameter("from_seq", "query", _WHOLE, "The first event of the page.")

_ERROR = _object(
    error=_object(code=_TEXT, message=_TEXT, where={"type": ["object", "null"], "additionalProperties": True})
)
_CHANNEL_FACTS = {
    "name": _TEXT,
    "first_seq": _SOME,
    "last_seq": _SOME,
    "next_seq": _WHOLE,
    "published_seq": _WHOLE,
    "events": _WHOLE,
    "bytes": _WHOLE,
    "active_at_ns": _SOME,
}
_SUBSCRIBER: Json = {
    "name": _TEXT,
    "patterns": _list(_TEXT),
    "newest_first": _FLAG,
    "created_at_ns": _WHOLE,
    "leases": _WHOLE,
    "waiting": _WHOLE,
    "outcomes": {"type": "object", "additionalProperties": _WHOLE},
    "channels": _list(
        _object(
            channel=_TEXT,
            mark=_WHOLE,
            gaps=_list(_list(_WHOLE)),
            gaps_total=_WHOLE,
            events=_WHOLE,
            bytes=_WHOLE,
            seconds={"type": "number"},
        )
    ),
}
_QUERY_FACTS: Json = {
    "channels": _list(_TEXT),
    "batch": {"type": "integer", "minimum": -1},
    "rows": _WHOLE,
    "rows_per_s": {"type": "number", "minimum": 0},
    "behind": _WHOLE,
    "batch_s": {"type": "number", "minimum": 0},
    "error": _TEXT,
}
_COLUMN = _object(name=_TEXT, type=_TEXT, nullable=_FLAG)

_SCHEMAS: Json = {
    "Error": _ERROR,
    "Channel": _object(**_CHANNEL_FACTS),
    "ChannelDetail": _object(
        **_CHANNEL_FACTS,
        columns=_list(_COLUMN),
        arrow_schema={"type": "string", "contentEncoding": "base64"},
        skipped=_list(_list(_WHOLE)),
        limits={"type": "object", "additionalProperties": True},
    ),
    "Segment": _object(
        segment=_WHOLE,
        channel=_TEXT,
        first_seq=_WHOLE,
        last_seq=_WHOLE,
        events=_WHOLE,
        bytes=_WHOLE,
        crc32c=_TEXT,
        remote=_FLAG,
        first_committed_id=_WHOLE,
        last_committed_id=_WHOLE,
        first_ingested_at_ns=_WHOLE,
        last_ingested_at_ns=_WHOLE,
        first_event_time_ns=_SOME,
        last_event_time_ns=_SOME,
        event_time_column=_TEXT_OR_NONE,
        data=_TEXT,
    ),
    "Tier": _object(
        **dict.fromkeys(("url", "trouble", "alarm", "failed"), _TEXT_OR_NONE),
        fenced={"type": ["boolean", "null"]},
        **dict.fromkeys(("epoch", "entries", "segments", "bytes"), _SOME),
        **dict.fromkeys(("remote_segments", "remote_bytes", "healed", "failures"), _SOME),
        **{key: {"type": ["object", "null"], "additionalProperties": True} for key in ("upload", "cache", "durable")},
    ),
    "Subscriber": _object(**_SUBSCRIBER),
    "SubscriberAndLosses": _object(**_SUBSCRIBER, losses=_list(_LOSS)),
    "Connection": _object(
        id=_WHOLE,
        peer=_TEXT,
        principal=_TEXT,
        kind=_TEXT,
        opened_at_ns=_WHOLE,
        frames=_WHOLE,
        bytes=_WHOLE,
        wire_seq={"type": "integer"},
        acknowledged={"type": "integer"},
        inflight_bytes=_WHOLE,
        paused=_TEXT,
        slot_id=_TEXT,
        last_error=_TEXT,
        goodbye=_FLAG,
    ),
    "Sender": _object(
        slot_id=_TEXT,
        peer=_TEXT,
        principal=_TEXT,
        connected=_FLAG,
        since_ns=_WHOLE,
        outages=_WHOLE,
        outage_s=_NUMBER,
        replayed=_WHOLE,
    ),
    "Trouble": _object(
        id=_WHOLE,
        at_ns=_WHOLE,
        category=_TEXT,
        message=_TEXT,
        peer=_TEXT,
        principal=_TEXT,
        connection=_SOME,
        channel=_TEXT,
    ),
    "Query": _object(**_QUERY_FACTS, name=_TEXT, principal=_TEXT, at_ns=_WHOLE),
    "Event": {"type": "object", "additionalProperties": True},
    "Slot": _object(
        slot_id=_TEXT,
        principal=_TEXT_OR_NONE,
        bound_at_ns=_SOME,
        last_fsn=_SOME,
        ranges=_list(_list(_WHOLE)),
        ranges_total=_WHOLE,
    ),
    "Accepted": _object(
        channel=_TEXT,
        events=_WHOLE,
        first_seq=_WHOLE,
        last_seq=_WHOLE,
        first_committed_id=_WHOLE,
        duplicate=_FLAG,
        durability={"enum": ["synced", "written"]},
    ),
    "Released": _object(slot_id=_TEXT, released_from=_TEXT),
    "Compaction": _object(
        segments_before=_WHOLE,
        segments_after=_WHOLE,
        bytes_before=_WHOLE,
        bytes_after=_WHOLE,
        events=_WHOLE,
        left=_WHOLE,
        more=_FLAG,
    ),
    "Moves": _object(
        subscriber=_TEXT,
        applied=_FLAG,
        channels=_list(
            _object(channel=_TEXT, mark_before=_WHOLE, mark=_WHOLE, again=_WHOLE, skipped=_WHOLE, owed=_WHOLE)
        ),
    ),
}


def _ref(name: str) -> Json:
    return {"$ref": f"#/components/schemas/{name}"}


def _content(schema: Json, kind: str = "application/json") -> Json:
    return {kind: {"schema": schema}}


def _answers(text: str, data: Json, *statuses: int) -> Json:
    """200 with the envelope, and what may go wrong."""
    envelope = _object(data=data, next=_TEXT_OR_NONE)
    return {"200": {"description": text, "content": _content(envelope)}, **_refusals(401, *statuses)}


_MEANINGS = {
    400: "The request is wrong; `where` says where.",
    401: "No credential, or a wrong one.",
    403: "Not allowed.",
    404: "Not there, or not visible to the caller.",
    408: "The body took too long.",
    409: "A number of things is reached.",
    413: "The body is larger than it may be: `ingest.max_batch_size`, and less for JSON.",
    415: "A body of this type is not accepted.",
    416: "The range begins behind the end.",
    421: "This server is not the primary.",
    422: "The `Idempotency-Key` was used for other events.",
    429: "Above the caller's rate; see `Retry-After`.",
    503: "Something is full (the store, the room for bodies), stopping or failed; see `Retry-After`.",
}


def _refusals(*statuses: int) -> Json:
    return {str(code): {"description": _MEANINGS[code], "content": _content(_ref("Error"))} for code in statuses}


def _operation(text: str, responses: Json, parameters: list[Json] | None = None) -> Json:
    return {"summary": text, "parameters": parameters or [], "responses": responses}


def _list_of(name: str, text: str, *statuses: int, parameters: list[Json] | None = None) -> Json:
    wrong = (400, *statuses)
    return {"get": _operation(text, _answers(text, _list(_ref(name)), *wrong), [*(parameters or []), *_PAGE])}


def _health(text: str) -> Json:
    status = {"type": "object", "properties": {"status": _TEXT}, "required": ["status"]}
    both = {"200": "Yes.", "503": "No."}
    answers = {code: {"description": word, "content": _content(status)} for code, word in both.items()}
    return {"get": {**_operation(text, answers), "security": []}}


_BYTES = {"type": "string", "contentMediaType": MEDIA_TYPE}
_BYTES_HEADERS = {
    name: {"schema": _TEXT} for name in ("ETag", CHECKSUM_HEADER, "Accept-Ranges", "Content-Range", "Content-Length")
}
_DATA = {
    "200": {"description": "The whole file.", "headers": _BYTES_HEADERS, "content": _content(_BYTES, MEDIA_TYPE)},
    "206": {"description": "One range of it.", "headers": _BYTES_HEADERS, "content": _content(_BYTES, MEDIA_TYPE)},
    "304": {"description": "The caller has it."},
    **_refusals(401, 404, 416, 503),
}
_EVENTS = _list_of(
    "Event",
    "Events as JSON rows, for people; the last ones without `from_seq`.",
    404,
    parameters=[_CHANNEL, _FROM_EVENT],
)
_POST: Json = {
    **_operation(
        "Store events; the answer comes when they are durable.",
        _answers("Where they are.", _ref("Accepted"), 400, 403, 408, 409, 413, 415, 421, 422, 429, 503),
        [
            _CHANNEL,
            _parameter("Idempotency-Key", "header", {"type": "string", "maxLength": 255}, "Makes a repeat harmless."),
            _parameter("X-Holdfast-Slot-Id", "header", {"type": "string"}, "A slot, instead of a key; with its frame."),
            _parameter("X-Holdfast-First-Fsn", "header", {"type": "integer"}, "The number of this frame of the slot."),
        ],
    ),
    "requestBody": {
        "required": True,
        "content": {
            NDJSON[0]: {"schema": _TEXT},
            JSON: {"schema": _list({"type": "object", "additionalProperties": True})},
            ARROW_STREAM: {"schema": {"type": "string", "contentMediaType": ARROW_STREAM}},
        },
    },
}
_ACK: Json = _object(channel=_TEXT, first_seq=_WHOLE, last_seq=_WHOLE)
_START: Json = {
    "default": "first",
    "oneOf": [{"enum": ["first", "new", "last"]}, _WHOLE, {"type": "string", "format": "date-time"}],
}
_REGISTRATION: Json = {
    "type": "object",
    "properties": {"channels": _list(_TEXT), "start": _START, "grace": _TEXT},
    "required": ["channels"],
}
_RESET: Json = {
    "type": "object",
    "properties": {"to": _START, "channel": _TEXT, "plan": _FLAG},
    "required": ["to"],
}
_COMPACT: Json = {"type": "object", "properties": {"target_bytes": _WHOLE, "event_span_ns": _WHOLE}}
_TOLD: Json = {"type": "object", "properties": _QUERY_FACTS, "required": ["channels"]}
_DOCUMENT = {"200": {"description": "OpenAPI 3.1.", "content": _content({"type": "object"})}, **_refusals(401)}
_METRICS = {"200": {"description": "Prometheus text.", "content": _content(_TEXT, "text/plain")}, **_refusals(401, 403)}

OPENAPI: Json = {
    "openapi": "3.1.0",
    "info": {
        "title": "Holdfast admin API",
        "version": __version__,
        "description": "What a running server holds; segment files; events for those without a Sender.",
    },
    "security": [{"token": []}, {"password": []}],
    "paths": {
        "/healthz": _health("Whether the server and its store work."),
        "/readyz": _health("Whether traffic may be sent."),
        "/metrics": {"get": _operation("Figures for Prometheus.", _METRICS)},
        "/api/v1/openapi.json": {"get": _operation("This document.", _DOCUMENT)},
        "/api/v1/channels": _list_of("Channel", "Channels, by name."),
        "/api/v1/channels/{channel}": {
            "get": _operation(
                "A channel with its columns and limits.",
                _answers("The channel.", _ref("ChannelDetail"), 404),
                [_CHANNEL],
            )
        },
        "/api/v1/channels/{channel}/events": {**_EVENTS, "post": _POST},
        "/api/v1/channels/{channel}/seal": {
            "post": _operation(
                "Publish what is in memory soon.", _answers("The channel.", _ref("Channel"), 404), [_CHANNEL]
            )
        },
        "/api/v1/channels/{channel}/compact": {
            "post": {
                **_operation(
                    "Make small segments large, a bounded piece of work at a time.",
                    _answers("What was done.", _ref("Compaction"), 400, 403, 404, 408, 413, 415, 421, 503),
                    [_CHANNEL],
                ),
                "requestBody": {"required": True, "content": _content(_COMPACT)},
            }
        },
        "/api/v1/channels/{channel}/segments": _list_of(
            "Segment", "Segments of a channel, in the order of their events.", 404, parameters=[_CHANNEL, _FROM_SEQ]
        ),
        "/api/v1/channels/{channel}/segments/{segment}": {
            "get": _operation("A segment.", _answers("The segment.", _ref("Segment"), 400, 404), [_CHANNEL, _SEGMENT])
        },
        "/api/v1/channels/{channel}/segments/{segment}/data": {
            "get": _operation("The bytes of a segment, an Arrow file.", _DATA, [_CHANNEL, _SEGMENT])
        },
        "/api/v1/segments": _list_of("Segment", "Segments of all channels."),
        "/api/v1/subscribers": _list_of("Subscriber", "Subscribers, by name."),
        "/api/v1/subscribers/{subscriber}": {
            "get": _operation(
                "A subscriber, and what it lost without having confirmed it.",
                _answers("The subscriber.", _ref("SubscriberAndLosses"), 404),
                [_NAME],
            ),
            "delete": _operation(
                "Remove a subscriber for good; whoever consumes by its name begins anew.",
                _answers(
                    "What was still owed to it.", _object(subscriber=_TEXT, owed_events=_WHOLE), 403, 404, 409, 421, 503
                ),
                [_NAME],
            ),
            "post": {
                **_operation(
                    "Register a subscriber, or change the channels of the one of that name.",
                    _answers("The subscriber.", _ref("Subscriber"), 400, 403, 408, 409, 413, 415, 421, 503),
                    [_NAME],
                ),
                "requestBody": {"required": True, "content": _content(_REGISTRATION)},
            },
        },
        "/api/v1/subscribers/{subscriber}/acks": {
            "post": {
                **_operation(
                    "Confirm ranges of events; the answer comes when that is durable.",
                    _answers("The subscriber.", _ref("Subscriber"), 400, 403, 404, 408, 413, 415, 421, 503),
                    [_NAME],
                ),
                "requestBody": {"required": True, "content": _content(_object(acks=_list(_ACK)))},
            }
        },
        "/api/v1/subscribers/{subscriber}/reset": {
            "post": {
                **_operation(
                    "Put a subscriber at another place; whoever consumes by its name comes back there.",
                    _answers("What changed, or would.", _ref("Moves"), 400, 403, 404, 408, 413, 415, 421, 503),
                    [_NAME],
                ),
                "requestBody": {"required": True, "content": _content(_RESET)},
            }
        },
        "/api/v1/queries": {
            "get": _operation("Spark queries, by name.", _answers("All of them.", _list(_ref("Query"))))
        },
        "/api/v1/queries/{query}": {
            "post": {
                **_operation(
                    "Tell how a Spark query is doing.",
                    _answers("The query.", _ref("Query"), 400, 403, 408, 409, 413, 415),
                    [_QUERY],
                ),
                "requestBody": {"required": True, "content": _content(_TOLD)},
            }
        },
        "/api/v1/connections": _list_of("Connection", "Who is connected, oldest first.", 403),
        "/api/v1/senders": _list_of("Sender", "Who sends frames of slots, connected or away, by slot.", 403),
        "/api/v1/errors": _list_of("Trouble", "The last refusals, newest first.", 403),
        "/api/v1/tier": {
            "get": _operation(
                "The object store behind the server.",
                _answers("All is null if there is none.", _ref("Tier"), 403),
            )
        },
        "/api/v1/slots": _list_of("Slot", "Producer slots, by id.", 403),
        "/api/v1/slots/{slot}/owner": {
            "delete": _operation(
                "Forget who owns a slot.", _answers("Who did.", _ref("Released"), 400, 403, 404), [_SLOT]
            )
        },
    },
    "components": {
        "schemas": _SCHEMAS,
        "securitySchemes": {
            "token": {"type": "http", "scheme": "bearer", "description": "From `holdfast token create`."},
            "password": {"type": "http", "scheme": "basic"},
        },
    },
}
