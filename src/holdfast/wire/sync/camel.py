"""As `insieme` speaks from 1.3 on (`1c`, partitions) and from 2.0 on (`2x`, one project): camelCase.

What is kept of an item is kept as it was sent, `meta` too: the client compares its own events when they come back, and
takes a rounded `clientTs` for another event.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from itertools import chain
from typing import Any

from holdfast.wire.sync.dialect import (
    PARTITION_BYTES_MAX,
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
    is_number,
    joined,
    listed,
    read_limit,
    read_message,
    read_names,
    read_since,
    read_text,
)
from holdfast.wire.sync.jsontext import canonical, elements, members, parse, quoted
from holdfast.wire.sync.messages import (
    PROJECT_PREFIX,
    Code,
    Committed,
    Item,
    NotProcessed,
    Outcome,
    Page,
    Read,
    Refusal,
    Submit,
)

ITEMS_MAX = 1000
"""The package knows no bound; its clients send fifty."""
VERSION_FIELD, ID_FIELD = "protocolVersion", "msgId"
INTEGER_MAX = 2**53


class Camel:
    """Both families with camelCase names."""

    takes_seed_messages = False
    survives_errors = False
    stops_at_refusal = True
    payload_place = "payload"

    def __init__(self, family: str) -> None:
        self.family = family
        self._has_projects = family == "2x"
        self._time_name = "serverTs" if self._has_projects else "created"

    # -- reading ----------------------------------------------------------------------------------------------------

    def message(self, value: dict[str, Any], text: bytes) -> Message:
        """An envelope."""
        return read_message(value, text, version_field=VERSION_FIELD, id_field=ID_FIELD, required=(VERSION_FIELD,))

    def greeting(self, message: Message) -> Greeting:
        """A `connect`."""
        payload, msg_id = message.payload, message.msg_id
        token = payload.get("token", "")
        if not isinstance(token, str):
            raise BadMessage("payload.token is a text", msg_id=msg_id)
        project_id = ""
        if self._has_projects:
            project_id = read_text(payload, "projectId", msg_id=msg_id, bytes_max=PARTITION_BYTES_MAX)
        return Greeting(token, read_text(payload, "clientId", msg_id=msg_id, bytes_max=256), project_id)

    def submission(self, message: Message, *, client_id: str, project_id: str) -> list[Item]:
        """The items of a batch."""
        values = check_items(
            message.payload.get("events"), where="payload.events", items_max=ITEMS_MAX, msg_id=message.msg_id
        )
        texts = elements(members(message.text)["events"])
        return [
            self._item(value, text, client_id=client_id, project_id=project_id)
            for value, text in zip(values, texts, strict=True)
        ]

    def _item(self, value: dict[str, Any], text: bytes, *, client_id: str, project_id: str) -> Item:
        fault = next(chain(_faults(value, client_id), self._scope_faults(value, project_id)), None)
        if fault is not None:
            return Item(value["id"], refusal=fault)
        parts = members(text)
        partitions = (value["partition"],) if self._has_projects else read_names(value["partitions"])
        assert isinstance(partitions, tuple)
        return Item(
            value["id"],
            partitions,
            value["type"],
            parts["payload"],
            value["payload"],
            project_id=value.get("projectId") or "",
            user_id=value.get("userId") or "",
            schema_version=value.get("schemaVersion") or 0,
            meta=parts.get("meta", b""),
            scopes=(PROJECT_PREFIX + project_id,) if self._has_projects else partitions,
        )

    def _scope_faults(self, value: dict[str, Any], project_id: str) -> Iterator[Refusal]:
        version, found = value.get("schemaVersion"), value.get("projectId")
        if (self._has_projects or version is not None) and not _is_version(version):
            yield Refusal(Code.VALIDATION_FAILED, "schemaVersion is a positive integer", "schemaVersion")
        if self._has_projects:
            if not is_name(value.get("partition"), PARTITION_BYTES_MAX):
                message = f"partition is a text of 1 to {PARTITION_BYTES_MAX} bytes"
                yield Refusal(Code.BAD_REQUEST, message, "partition")
            if not is_name(found, PARTITION_BYTES_MAX):
                yield Refusal(Code.VALIDATION_FAILED, "projectId is required", "projectId")
            if found != project_id:
                yield Refusal(Code.FORBIDDEN, "projectId is not that of this connection", "projectId")
            return
        names = read_names(value.get("partitions"))
        if isinstance(names, str):
            yield Refusal(Code.BAD_REQUEST, f"partitions {names}", "partitions")
        if found is not None and not is_name(found, PARTITION_BYTES_MAX):
            yield Refusal(Code.VALIDATION_FAILED, "projectId is a text", "projectId")

    def sync_request(self, message: Message) -> SyncRequest:
        """A `sync`."""
        payload, msg_id = message.payload, message.msg_id
        project_id = ""
        if self._has_projects:
            project_id = read_text(payload, "projectId", msg_id=msg_id, bytes_max=PARTITION_BYTES_MAX)
            names: tuple[str, ...] | str = (PROJECT_PREFIX + project_id,)
        else:
            names = read_names(payload.get("partitions"))
        if isinstance(names, str):
            raise BadMessage(f"payload.partitions {names}", msg_id=msg_id)
        return SyncRequest(
            frozenset(names),
            frozenset(names),
            read_since(payload, "sinceCommittedId", msg_id=msg_id),
            read_limit(payload, low=1),
            project_id=project_id,
        )

    # -- writing ----------------------------------------------------------------------------------------------------

    def connected(self, welcome: Welcome, *, msg_id: str, now_ms: int) -> bytes:  # noqa: ARG002
        """The answer to `connect`; the epoch is ours and does no harm."""
        payload: dict[str, object] = {"clientId": welcome.client_id}
        if self._has_projects:
            payload |= {"projectId": welcome.project_id, "projectLastCommittedId": welcome.last_committed_id}
        else:
            payload["globalLastCommittedId"] = welcome.last_committed_id
        payload["logEpoch"] = welcome.log_epoch
        return _envelope("connected", quoted(payload), msg_id)

    def results(self, submit: Submit, outcomes: Sequence[Outcome], *, now_ms: int) -> bytes:
        """One result for each item, in order: a client sends what has none again at once."""
        results = [self._result(item, outcome, now_ms) for item, outcome in zip(submit.items, outcomes, strict=True)]
        return _envelope("submit_events_result", joined([("results", listed(results))]), submit.msg_id)

    def _result(self, item: Item, outcome: Outcome, now_ms: int) -> bytes:
        if isinstance(outcome, Committed):
            return b'{"id":%s,"status":"committed","committedId":%d,"%s":%d}' % (
                quoted(item.id),
                outcome.committed_id,
                self._time_name.encode(),
                outcome.server_ts_ms,
            )
        if isinstance(outcome, NotProcessed):
            text = b'{"id":%s,"status":"not_processed","reason":"prior_item_failed","blockedById":%s,"created":%d}'
            return text % (quoted(item.id), quoted(outcome.blocked_by), now_ms)
        text = b'{"id":%s,"status":"rejected","reason":%s,"errors":%s,"created":%d}'
        return text % (quoted(item.id), quoted(outcome.reason), errors_of(outcome), now_ms)

    def sync_response(self, read: Read, page: Page, terms: Mapping[str, object], *, now_ms: int) -> bytes:  # noqa: ARG002
        """A page. A client of this dialect knows no word for a pruned cursor; it is said all the same."""
        scope = (
            ("projectId", quoted(terms["project_id"]))
            if self._has_projects
            else ("partitions", quoted(sorted(read.scopes)))
        )
        pairs = [
            scope,
            ("events", listed(map(self._committed, page.events))),
            ("nextSinceCommittedId", quoted(terms["next_since"])),
            ("hasMore", quoted(page.has_more)),
            ("syncToCommittedId", quoted(read.upto)),
        ]
        if page.pruned_to:
            pairs += [("code", quoted(Code.CURSOR_PRUNED)), ("prunedToCommittedId", quoted(page.pruned_to))]
        return _envelope("sync_response", joined(pairs), read.msg_id)

    def broadcast(self, event: Committed) -> bytes:
        """An event of another."""
        return _envelope("event_broadcast", self._committed(event), f"srv-{event.committed_id}")

    def _committed(self, event: Committed) -> bytes:
        pairs = [("committedId", b"%d" % event.committed_id), ("id", quoted(event.id))]
        if self._has_projects:
            pairs.append(("partition", quoted(event.partitions[0])))
        else:
            pairs.append(("partitions", quoted(event.partitions)))
        if event.project_id:
            pairs.append(("projectId", quoted(event.project_id)))
        if event.user_id:
            pairs.append(("userId", quoted(event.user_id)))
        pairs.append(("type", quoted(event.type)))
        if event.schema_version:
            pairs.append(("schemaVersion", b"%d" % event.schema_version))
        pairs += [
            ("payload", event.payload),
            ("meta", event.meta or quoted({"clientId": event.client_id})),
            (self._time_name, b"%d" % event.server_ts_ms),
        ]
        return joined(pairs)

    def error(
        self,
        code: Code,
        message: str,
        *,
        msg_id: str,
        now_ms: int,  # noqa: ARG002
        details: Mapping[str, object] | None = None,
    ) -> bytes:
        """What is wrong."""
        name = "protocolVersion_unsupported" if code is Code.VERSION_UNSUPPORTED else code
        payload: dict[str, object] = {"code": name, "message": message, "details": details or {}}
        return _envelope("error", quoted(payload), msg_id)

    # -- comparing --------------------------------------------------------------------------------------------------

    def same(self, item: Item, event: Committed) -> bool:
        """Everything but who sent it."""
        mine = (item.partitions, item.project_id, item.user_id, item.type, item.schema_version)
        theirs = (event.partitions, event.project_id, event.user_id, event.type, event.schema_version)
        if mine != theirs:
            return False
        if item.payload != event.payload and canonical(item.value) != canonical(parse(event.payload)):
            return False
        return item.meta == event.meta or canonical(_anonymous(item.meta)) == canonical(_anonymous(event.meta))


def _faults(value: dict[str, Any], client_id: str) -> Iterator[Refusal]:
    """What is wrong with an item whatever its scope, in the order in which the package looks."""
    meta, user_id = value.get("meta"), value.get("userId")
    failed = Code.VALIDATION_FAILED
    if not is_name(value.get("type"), TYPE_BYTES_MAX):
        yield Refusal(failed, f"type is a text of 1 to {TYPE_BYTES_MAX} bytes", "type")
    if not isinstance(value.get("payload"), dict | list):
        yield Refusal(failed, "payload is an object", "payload")
    if not isinstance(meta, dict):
        yield Refusal(failed, "meta is an object with clientTs", "meta")
        return
    if (meta.get("clientId") or client_id) != client_id:
        yield Refusal(Code.FORBIDDEN, "meta.clientId is not the client of this connection", "meta.clientId")
    if not _is_time(meta.get("clientTs")):
        yield Refusal(failed, "meta.clientTs is a finite number", "meta.clientTs")
    if user_id is not None and not is_name(user_id, TYPE_BYTES_MAX):
        yield Refusal(failed, "userId is a text that is not empty", "userId")


def _is_version(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 < value < INTEGER_MAX


def _is_time(value: object) -> bool:
    if isinstance(value, str):
        try:
            return math.isfinite(float(value))
        except ValueError:
            return False
    return is_number(value)


def _anonymous(meta: bytes) -> dict[str, Any]:
    found = parse(meta) if meta else {}
    return {name: value for name, value in found.items() if name != "clientId"}


def _envelope(kind: str, payload: bytes, msg_id: str) -> bytes:
    text = b'{"type":"%s","protocolVersion":"%s","payload":%s' % (kind.encode(), VERSION.encode(), payload)
    return text + (b',"msgId":%s}' % quoted(msg_id) if msg_id else b"}")
