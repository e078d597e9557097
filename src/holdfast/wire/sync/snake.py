"""The protocol as it is written down (`seed`), and as `insieme` spoke it up to 1.2 (`1s`): snake_case, partitions.

They are one but for the envelope: `seed` wants all five fields, `1s` leaves two away.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from holdfast.wire.sync.dialect import (
    TYPE_BYTES_MAX,
    VERSION,
    BadMessage,
    Greeting,
    Message,
    SyncRequest,
    Welcome,
    check_items,
    errors_of,
    is_name,
    joined,
    listed,
    read_limit,
    read_message,
    read_names,
    read_since,
    read_text,
    refused,
)
from holdfast.wire.sync.jsontext import canonical, elements, members, parse, quoted
from holdfast.wire.sync.messages import Code, Committed, Item, NotProcessed, Outcome, Page, Read, Refusal, Submit

ITEMS_MAX = 100
"""Items of one batch; the protocol says so."""
LIMIT_MIN = 50
VERSION_FIELD, ID_FIELD = "protocol_version", "msg_id"


class Snake:
    """Both families with snake_case names."""

    takes_seed_messages = True
    stops_at_refusal = False
    payload_place = "event.payload"

    def __init__(self, family: str) -> None:
        self.family = family
        self.survives_errors = family == "seed"

    # -- reading ----------------------------------------------------------------------------------------------------

    def message(self, value: dict[str, Any], text: bytes) -> Message:
        """An envelope."""
        required = (VERSION_FIELD, ID_FIELD, "timestamp") if self.family == "seed" else (VERSION_FIELD,)
        return read_message(value, text, version_field=VERSION_FIELD, id_field=ID_FIELD, required=required)

    def greeting(self, message: Message) -> Greeting:
        """A `connect`."""
        payload, msg_id = message.payload, message.msg_id
        token = payload.get("token", "")
        if not isinstance(token, str):
            raise BadMessage("payload.token is a text", msg_id=msg_id)
        return Greeting(token, read_text(payload, "client_id", msg_id=msg_id, bytes_max=256))

    def submission(self, message: Message, *, client_id: str, project_id: str) -> list[Item]:  # noqa: ARG002
        """Items, whether one or many."""
        if message.type == "submit_event":
            values, texts = [message.payload], [message.text]
            check_items(values, where="payload", items_max=1, msg_id=message.msg_id)
        else:
            values = check_items(
                message.payload.get("events"), where="payload.events", items_max=ITEMS_MAX, msg_id=message.msg_id
            )
            texts = elements(members(message.text)["events"])
        for value in values:
            if value.get("client_id", client_id) != client_id:
                raise BadMessage(
                    "client_id is not the one this connection was opened with",
                    code=Code.AUTH_FAILED,
                    msg_id=message.msg_id,
                    closes=True,
                )
        return [_item(value, text) for value, text in zip(values, texts, strict=True)]

    def sync_request(self, message: Message) -> SyncRequest:
        """A `sync`."""
        payload, msg_id = message.payload, message.msg_id
        names = read_names(payload.get("partitions"))
        if isinstance(names, str):
            raise BadMessage(f"payload.partitions {names}", msg_id=msg_id)
        subscription = payload.get("subscription_partitions")
        followed = None if subscription is None else () if subscription == [] else read_names(subscription)
        if isinstance(followed, str):
            raise BadMessage(f"payload.subscription_partitions {followed}", msg_id=msg_id)
        return SyncRequest(
            frozenset(names),
            None if followed is None else frozenset(followed),
            read_since(payload, "since_committed_id", msg_id=msg_id),
            read_limit(payload, low=LIMIT_MIN),
            wants_snapshots=payload.get("accept_snapshots") is True,
        )

    # -- writing ----------------------------------------------------------------------------------------------------

    def connected(self, welcome: Welcome, *, msg_id: str, now_ms: int) -> bytes:
        """The answer to `connect`; both names of the last committed_id, since versions differ in it."""
        payload = {
            "client_id": welcome.client_id,
            "server_time": now_ms,
            "server_last_committed_id": welcome.last_committed_id,
            "global_last_committed_id": welcome.last_committed_id,
            "log_epoch": welcome.log_epoch,
            "limits": welcome.limits,
        }
        if welcome.model_version:
            payload["model_version"] = welcome.model_version
        return _envelope("connected", quoted(payload), msg_id, now_ms)

    def results(self, submit: Submit, outcomes: Sequence[Outcome], *, now_ms: int) -> bytes:
        """One answer for one item that came alone; else a list."""
        if submit.single:
            item, outcome = submit.items[0], outcomes[0]
            if isinstance(outcome, Committed):
                return _envelope("event_committed", _committed(outcome), submit.msg_id, now_ms)
            assert isinstance(outcome, Refusal)
            return _envelope("event_rejected", _rejected(submit, item, outcome, now_ms), submit.msg_id, now_ms)
        results = listed([_result(item, outcome, now_ms) for item, outcome in zip(submit.items, outcomes, strict=True)])
        return _envelope("submit_events_result", joined([("results", results)]), submit.msg_id, now_ms)

    def sync_response(self, read: Read, page: Page, terms: Mapping[str, object], *, now_ms: int) -> bytes:
        """A page."""
        pairs = [
            ("partitions", quoted(sorted(read.scopes))),
            ("effective_subscriptions", quoted(terms["subscription"])),
            ("events", listed(map(_committed, page.events))),
            ("next_since_committed_id", quoted(terms["next_since"])),
            ("sync_to_committed_id", quoted(read.upto)),
            ("has_more", quoted(page.has_more)),
        ]
        if terms["model_version"]:
            pairs.append(("model_version", quoted(terms["model_version"])))
        if page.snapshots:
            pairs.append(("snapshots", listed([_snapshot(found) for found in page.snapshots])))
        if page.pruned_to:
            pairs += [("code", quoted(Code.CURSOR_PRUNED)), ("pruned_to_committed_id", quoted(page.pruned_to))]
        return _envelope("sync_response", joined(pairs), read.msg_id, now_ms)

    def broadcast(self, event: Committed) -> bytes:
        """An event of another."""
        return _envelope("event_broadcast", _committed(event), f"srv-{event.committed_id}", event.server_ts_ms)

    def plain(self, kind: str, payload: Mapping[str, object], *, msg_id: str, now_ms: int) -> bytes:
        """A message that only these dialects have."""
        return _envelope(kind, quoted(payload), msg_id, now_ms)

    def error(
        self, code: Code, message: str, *, msg_id: str, now_ms: int, details: Mapping[str, object] | None = None
    ) -> bytes:
        """What is wrong."""
        payload: dict[str, object] = {"code": code, "message": message, "details": details or {}}
        if details and "supported_versions" in details:
            payload["supported_versions"] = details["supported_versions"]  # documents differ in where it is
        return _envelope("error", quoted(payload), msg_id, now_ms)

    # -- comparing --------------------------------------------------------------------------------------------------

    def same(self, item: Item, event: Committed) -> bool:
        """Partitions as a set, and the event."""
        return (item.partitions, item.type) == (event.partitions, event.type) and (
            item.payload == event.payload or canonical(item.value) == canonical(parse(event.payload))
        )


def _item(value: dict[str, Any], text: bytes) -> Item:
    item_id = value["id"]
    names = read_names(value.get("partitions"))
    if isinstance(names, str):
        return refused(item_id, f"partitions {names}", "partitions")
    event = value.get("event")
    if not isinstance(event, dict):
        return refused(item_id, "event is an object", "event")
    if not is_name(event.get("type"), TYPE_BYTES_MAX):
        return refused(item_id, f"event.type is a text of 1 to {TYPE_BYTES_MAX} bytes", "event.type")
    if not isinstance(event.get("payload"), dict):
        return refused(item_id, "event.payload is an object", "event.payload")
    payload = members(members(text)["event"])["payload"]
    return Item(item_id, names, event["type"], payload, event["payload"], scopes=names)


def _envelope(kind: str, payload: bytes, msg_id: str, now_ms: int) -> bytes:
    return b'{"type":"%s","msg_id":%s,"timestamp":%d,"protocol_version":"%s","payload":%s}' % (
        kind.encode(),
        quoted(msg_id or f"srv-{now_ms}"),
        now_ms,
        VERSION.encode(),
        payload,
    )


def _committed(event: Committed) -> bytes:
    return b'{"id":%s,"client_id":%s,"partitions":%s,"committed_id":%d,"event":{"type":%s,"payload":%s},%s:%d}' % (
        quoted(event.id),
        quoted(event.client_id),
        quoted(event.partitions),
        event.committed_id,
        quoted(event.type),
        event.payload,
        b'"status_updated_at"',
        event.server_ts_ms,
    )


def _rejected(submit: Submit, item: Item, refusal: Refusal, now_ms: int) -> bytes:
    pairs = [
        ("id", quoted(item.id)),
        ("client_id", quoted(submit.client_id)),
        ("partitions", quoted(item.partitions)),
        ("reason", quoted(refusal.reason)),
        ("errors", errors_of(refusal)),
        ("status_updated_at", quoted(now_ms)),
    ]
    return joined(pairs)


def _result(item: Item, outcome: Outcome, now_ms: int) -> bytes:
    if isinstance(outcome, Committed):
        return b'{"id":%s,"status":"committed","committed_id":%d,"status_updated_at":%d}' % (
            quoted(item.id),
            outcome.committed_id,
            outcome.server_ts_ms,
        )
    assert not isinstance(outcome, NotProcessed)  # this dialect goes on behind a refusal
    return b'{"id":%s,"status":"rejected","reason":%s,"errors":%s,"status_updated_at":%d}' % (
        quoted(item.id),
        quoted(outcome.reason),
        errors_of(outcome),
        now_ms,
    )


def _snapshot(found: Any) -> bytes:
    pairs = [
        ("partition", quoted(found.partition)),
        ("committed_id", quoted(found.committed_id)),
        ("state", found.state),
        ("model_version", quoted(found.model_version)),
    ]
    return joined(pairs)
