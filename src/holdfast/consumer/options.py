"""A subscription as the application asks for it: what, from where, how much at a time.

Times are seconds here and milliseconds on the wire. The server checks every range; what only the consumer can know is
checked here: names, a start that can be sent, keys of the connect string that mean nothing for a consumer.
"""

from __future__ import annotations

from datetime import datetime
from typing import Any

import msgspec

from holdfast.clock import wall_ns_of
from holdfast.errors import InvalidConfig
from holdfast.model.names import check_channel_name
from holdfast.sender.conf import SenderConfig, rows
from holdfast.sender.connectstring import split
from holdfast.wire.consume import Configure, Mode, Subscribe

KEY_GROUPS = ("Where to", "Who", "TLS", "Connecting and reconnecting")
"""Of the connect string: those that say how to reach a server. The others are a producer's."""
CHANGEABLE = ("ack_wait", "max_inflight", "max_inflight_bytes", "batch_rows", "priority", "max_deliver", "backoff")
"""What `configure` may change while the subscription is open."""
_MS_PER_S = 1000


class Options(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One subscription. Defaults are those of the protocol."""

    channel: str
    durable: str = ""
    """The name under which the server keeps the place; without one the subscription ends with the consumer."""
    group: str = ""
    """Consumers with the same group share the messages."""
    mode: Mode = "fanout"
    start: Any = None
    """`first`, `new`, `last`, a seq, or a time with its zone; ignored when a durable resumes."""
    ack_wait: float = 30.0
    """Seconds until a message that was not answered comes again."""
    max_inflight: int = 1024
    max_inflight_bytes: int = 32 << 20
    batch_rows: int = 1024
    priority: int = 0
    max_deliver: int = 0
    backoff: tuple[float, ...] = ()
    filter: str = ""
    partitions: tuple[str, ...] = ()
    columns: tuple[str, ...] | None = None
    system: tuple[str, ...] = ()
    replace: bool = False

    def subscribe(self, request: int, sub: int, *, resume_at: int | None) -> Subscribe:
        """The request. `resume_at` is where an ephemeral subscription goes on after an outage."""
        start, start_time_ns = self._start()
        if resume_at is not None and not self.durable:
            start, start_time_ns = resume_at, None
        return Subscribe(
            request=request,
            sub=sub,
            channel=self.channel,
            durable=self.durable,
            group=self.group,
            mode=self.mode,
            start=start,
            start_time_ns=start_time_ns,
            ack_wait_ms=_ms(self.ack_wait),
            max_inflight=self.max_inflight,
            max_inflight_bytes=self.max_inflight_bytes,
            batch_rows=self.batch_rows,
            priority=self.priority,
            max_deliver=self.max_deliver,
            backoff_ms=tuple(map(_ms, self.backoff)),
            filter=self.filter,
            partitions=self.partitions,
            columns=self.columns,
            system=self.system,
            # the connection that was lost may still hold the durable; a group has room for both
            replace=self.replace or (resume_at is not None and bool(self.durable) and not self.group),
        )

    def configure(self, request: int, sub: int) -> Configure:
        """All that may change, as it is now."""
        return Configure(
            request=request,
            sub=sub,
            ack_wait_ms=_ms(self.ack_wait),
            max_inflight=self.max_inflight,
            max_inflight_bytes=self.max_inflight_bytes,
            batch_rows=self.batch_rows,
            priority=self.priority,
            max_deliver=self.max_deliver,
            backoff_ms=tuple(map(_ms, self.backoff)),
        )

    def changed(self, changes: dict[str, Any]) -> Options:
        """The same with other values."""
        for name in changes:
            if name not in CHANGEABLE:
                allowed = ", ".join(CHANGEABLE)
                raise InvalidConfig(key=name, reason=f"cannot be changed while a subscription is open; {allowed} can")
        return _convert({**msgspec.structs.asdict(self), **changes})

    def _start(self) -> tuple[str | int | None, int | None]:
        if not isinstance(self.start, datetime):
            return self.start, None
        return None, wall_ns_of(self.start)


def options_of(values: dict[str, Any]) -> Options:
    """Checked options; `InvalidConfig` names what is wrong."""
    found = _convert(values)
    check_channel_name(found.channel)
    _check_start(found.start)
    return found


def _check_start(start: object) -> None:
    if start is None or start in ("first", "new", "last"):
        return
    if isinstance(start, datetime) and start.tzinfo is not None:
        return
    if isinstance(start, int) and not isinstance(start, bool) and start >= 1:
        return
    reason = f"{str(start)[:80]!r} is no position: first, new, last, a seq from 1, or a time with its zone"
    raise InvalidConfig(key="start", reason=reason)


def _convert(values: dict[str, Any]) -> Options:
    """Lists become tuples; unknown names and wrong types are refused."""
    try:
        return msgspec.convert(values, Options, strict=True)
    except msgspec.ValidationError as error:
        text, _, place = str(error).partition(" - at `$.")
        key = place.rstrip("`") or next((name for name in values if name not in Options.__struct_fields__), "channel")
        raise InvalidConfig(key=key, reason=text[:1].lower() + text[1:]) from None


def connection_of(conf: str | None, keys: dict[str, Any], *, shared: bool = False) -> SenderConfig:
    """How to reach a server. Keys of a producer are refused, unless the string is `shared` with one."""
    given = [name for name, _ in split(conf)[1]] if conf is not None and not shared else []
    known = rows()
    for name in (*given, *keys):
        row = known.get(name)
        if row is not None and row.group not in KEY_GROUPS:
            raise InvalidConfig(key=name, reason="is for producers; a consumer has no use for it")
    return SenderConfig.from_conf(conf, **keys) if conf is not None else SenderConfig.from_keywords(**keys)


def sorted_keys(values: dict[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Keyword arguments of a consumer: those of the subscription, and those of the connection."""
    own = {name: value for name, value in values.items() if name in Options.__struct_fields__}
    return own, {name: value for name, value in values.items() if name not in own}


def _ms(seconds: float) -> int:
    return round(seconds * _MS_PER_S)
