"""What all dialects of the sync protocol share: the envelope, the parts of an item, what a message may hold.

    family   names        scope                    told apart by
    seed     snake_case   partitions[]             `protocol_version`, and `last_committed_id` in `connect`
    1s       snake_case   partitions[]             `protocol_version`
    1c       camelCase    partitions[]             `protocolVersion`
    2x       camelCase    one project              `protocolVersion`, and `projectId` in `connect`

`seed` is the protocol as it is written down; the others are spoken by versions of the npm package `insieme`: 1s up to
1.2, 1c from 1.3, 2x from 2.0. All say version 1.0.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Protocol, TypeGuard

import msgspec

from holdfast.wire.sync.jsontext import BadJson, members, parse, quoted
from holdfast.wire.sync.messages import (
    PROJECT_PREFIX,
    Code,
    Committed,
    Item,
    Outcome,
    Page,
    Read,
    Refusal,
    Submit,
)

VERSION = "1.0"
PARTITIONS_MAX = 64
PARTITION_BYTES_MAX = 128
ID_BYTES_MAX = 256
TYPE_BYTES_MAX = 256
LIMIT_DEFAULT = 500
LIMIT_MAX = 1000


class Message(msgspec.Struct, gc=False):
    """A message that has the parts every message has."""

    type: str
    payload: dict[str, Any]
    text: bytes
    """The payload as it was sent."""
    msg_id: str


class BadMessage(Exception):
    """A message that cannot be taken as a whole; the connection goes on unless `closes`."""

    def __init__(
        self, message: str, *, code: Code = Code.BAD_REQUEST, msg_id: str = "", closes: bool = False, **details: object
    ) -> None:
        super().__init__(message)
        self.message = message
        self.code = code
        self.msg_id = msg_id
        self.closes = closes
        self.details = details


class Greeting(msgspec.Struct, frozen=True):
    """What a `connect` says."""

    token: str
    client_id: str
    project_id: str = ""


class Welcome(msgspec.Struct, frozen=True):
    """What a `connected` says."""

    client_id: str
    project_id: str
    last_committed_id: int
    log_epoch: str
    limits: Mapping[str, int]
    model_version: int


class SyncRequest(msgspec.Struct, frozen=True):
    """What a `sync` asks for."""

    scopes: frozenset[str]
    subscription: frozenset[str] | None
    since: int
    limit: int
    wants_snapshots: bool = False
    project_id: str = ""


class Dialect(Protocol):
    """How one family says things. Pure; one for all sessions of its family."""

    family: str
    takes_seed_messages: bool
    """Whether there are heartbeats, `submit_event`, `disconnect`, and one connection per client."""
    survives_errors: bool
    """Whether a client goes on after an `error` in place of a result or a page; those of the package stop for ever."""
    stops_at_refusal: bool
    payload_place: str
    """Where in an item its payload is."""

    def greeting(self, message: Message) -> Greeting:
        """A `connect`."""

    def submission(self, message: Message, *, client_id: str, project_id: str) -> list[Item]:
        """The items of a `submit_events` or `submit_event`."""

    def sync_request(self, message: Message) -> SyncRequest:
        """A `sync`."""

    def connected(self, welcome: Welcome, *, msg_id: str, now_ms: int) -> bytes:
        """The answer to `connect`."""

    def results(self, submit: Submit, outcomes: Sequence[Outcome], *, now_ms: int) -> bytes:
        """The answer to a submission."""

    def sync_response(self, read: Read, page: Page, terms: Mapping[str, object], *, now_ms: int) -> bytes:
        """A page."""

    def broadcast(self, event: Committed) -> bytes:
        """An event of another; the same text for every session of the family."""

    def error(
        self, code: Code, message: str, *, msg_id: str, now_ms: int, details: Mapping[str, object] | None = None
    ) -> bytes:
        """What is wrong."""

    def same(self, item: Item, event: Committed) -> bool:
        """Whether an item is the event that has its id."""


# -- reading ----------------------------------------------------------------------------------------------------------


def open_envelope(data: bytes) -> tuple[dict[str, Any], bytes]:
    """The message, parsed, and the text of its payload."""
    try:
        value = parse(data)
    except BadJson as error:
        raise BadMessage(str(error)) from None
    if not isinstance(value, dict):
        raise BadMessage("a message is a JSON object")
    text = members(data).get("payload", b"")
    return value, text


def read_message(
    value: dict[str, Any], text: bytes, *, version_field: str, id_field: str, required: Iterable[str]
) -> Message:
    """The parts of an envelope."""
    msg_id = value.get(id_field)
    known_id = msg_id if isinstance(msg_id, str) else ""
    if not isinstance(value.get("type"), str) or not isinstance(value.get("payload"), dict):
        raise BadMessage("a message has a type (text) and a payload (object)", msg_id=known_id)
    if msg_id is not None and not isinstance(msg_id, str):
        raise BadMessage(f"{id_field} is a text")
    missing = [name for name in required if name not in value]
    if missing:
        raise BadMessage(f"{missing[0]} is missing", msg_id=known_id)
    if value[version_field] != VERSION:
        raise BadMessage(
            f"{version_field} {str(value[version_field])[:32]!r} is not spoken here",
            code=Code.VERSION_UNSUPPORTED,
            msg_id=known_id,
            closes=True,
            supported_versions=[VERSION],
        )
    return Message(value["type"], value["payload"], text, known_id)


def read_text(payload: Mapping[str, Any], name: str, *, msg_id: str, bytes_max: int = 1 << 20) -> str:
    """A text that must be there."""
    value = payload.get(name)
    if not isinstance(value, str) or not value or len(value) > bytes_max:
        raise BadMessage(f"payload.{name} is a text that is not empty", msg_id=msg_id)
    return value


def read_since(payload: Mapping[str, Any], name: str, *, msg_id: str) -> int:
    """A cursor."""
    value = payload.get(name)
    if not is_number(value) or value < 0:
        raise BadMessage(f"payload.{name} is a number from 0 on", msg_id=msg_id)
    return int(value)


def read_limit(payload: Mapping[str, Any], *, low: int) -> int:
    """A page's size, brought into its bounds."""
    value = payload.get("limit")
    return max(low, min(LIMIT_MAX, int(value))) if is_number(value) else LIMIT_DEFAULT


def read_names(value: object) -> tuple[str, ...] | str:
    """Partitions as a sorted set; or what is wrong with them."""
    if not isinstance(value, list) or not value:
        return "is a list of at least one name"
    for name in value:
        if not isinstance(name, str) or not 0 < len(name.encode()) <= PARTITION_BYTES_MAX:
            return f"holds something that is no name of 1 to {PARTITION_BYTES_MAX} bytes"
        if name.startswith(PROJECT_PREFIX):
            return f"holds a name that begins with {PROJECT_PREFIX}, which is reserved"
    names = tuple(sorted(set(value)))
    return names if len(names) <= PARTITIONS_MAX else f"holds more than {PARTITIONS_MAX} names"


def is_number(value: object) -> TypeGuard[int | float]:
    """Whether it is a JSON number."""
    return isinstance(value, int | float) and not isinstance(value, bool)


def is_name(value: object, bytes_max: int) -> bool:
    """Whether it is a text of that size, not empty."""
    return isinstance(value, str) and 0 < len(value.encode()) <= bytes_max


def check_items(values: object, *, where: str, items_max: int, msg_id: str) -> list[dict[str, Any]]:
    """The items of a batch, each an object with an id; else the whole batch is refused."""
    if not isinstance(values, list) or not values:
        raise BadMessage(f"{where} is a list of at least one item", msg_id=msg_id)
    if len(values) > items_max:
        raise BadMessage(f"{where} has {len(values)} items, at most {items_max} are allowed", msg_id=msg_id)
    for place, value in enumerate(values):
        if not isinstance(value, dict):
            raise BadMessage(f"{where}[{place}] is an object", msg_id=msg_id)
        if not is_name(value.get("id"), ID_BYTES_MAX):
            raise BadMessage(f"{where}[{place}].id is a text of 1 to {ID_BYTES_MAX} bytes", msg_id=msg_id)
    return values


def refused(item_id: str, message: str, field: str = "", *, reason: Code = Code.VALIDATION_FAILED) -> Item:
    """An item that is answered with why it is not taken."""
    return Item(item_id, refusal=Refusal(reason, message, field))


# -- writing ----------------------------------------------------------------------------------------------------------


def joined(pairs: Iterable[tuple[str, bytes]]) -> bytes:
    """An object of members whose values are JSON already."""
    return b"{" + b",".join([b'"%s":%s' % (name.encode(), text) for name, text in pairs]) + b"}"


def listed(texts: Iterable[bytes]) -> bytes:
    """An array of JSON texts."""
    return b"[" + b",".join(texts) + b"]"


def errors_of(refusal: Refusal) -> bytes:
    """Why an item was refused, as a list of one."""
    fault = {"field": refusal.field, "message": refusal.message} if refusal.field else {"message": refusal.message}
    return quoted([fault])
