"""The options of the source, read once and checked as a whole (pure).

Promise: an option that is not known, does not fit its type, or contradicts another one is `InvalidConfig` with what is
allowed. Names are compared without case, as Spark does. The secret of `token` is never part of a text.

| option | value | default |
|---|---|---|
| path | directory of an embedded store, or of the server's store where executors see it | |
| addr | the admin address of a server, `http://127.0.0.1:9001`; several separated by commas | |
| tier | the object store of a server, `s3://bucket` or `file:///folder`; alone, or beside `path` or `addr` | |
| tierPrefix, tierEndpoint, tierRegion, tierCredentialsFile | as the server's settings `tier.…` | as there |
| channel | a name, several separated by commas, or a glob | |
| subscriber | the durable name that confirms what Spark has committed; with `addr` only | none |
| startingOffsets | `earliest`, `latest`, `subscriber`, a time, or JSON by channel | see below |
| endingOffsets | `latest`, a time, or JSON by channel; batch only | `latest` |
| maxEventsPerTrigger | events of a micro-batch | no limit |
| maxBytesPerTrigger | bytes of segments in a micro-batch | `1GiB` |
| maxSegmentsPerTrigger | segments of a micro-batch | no limit |
| emit | `rows`, or `segments`: descriptors of segments instead of their events | `rows` |
| pushdown | whether a batch takes filters; needs `spark.sql.python.filterPushdown.enabled` | `false` |
| eventTime | the column whose times the channel's segments note, for filters | none |
| tailLatency | `low` seals events as soon as a stream asks for them; with `addr` only | `normal` |
| taskBytes | bytes of segments that a task reads, about | `128MiB` |
| failOnDataLoss | whether events that are gone end the query | `true` |
| includeMetadata | whether rows have `_seq` and the other system columns | `false` |
| token, tokenFile | the credential for `addr`, or a file with it | none |

`startingOffsets` is `earliest` by default, for a batch and for a stream: what was kept is there to be read.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from fnmatch import translate
from functools import partial
from typing import Literal, TypeAlias

from holdfast.config.tier import TierConfig
from holdfast.config.values import parse_size, split_url, whole_number
from holdfast.errors import InvalidConfig

Word: TypeAlias = Literal["earliest", "latest", "subscriber"]
Place: TypeAlias = int | Word | datetime
"""A seq, a word, or the time from which on events came in."""

BATCH_BYTES_DEFAULT = 1 << 30
"""A backlog becomes several micro-batches, each some seconds of work on one machine."""
TASK_BYTES_DEFAULT = 128 << 20
"""A task costs tens of milliseconds whatever it reads, and a failed one is read again as a whole."""
CHANNELS_MAX = 1000
"""Names in `channel`; more are better told by a glob."""


_OF_STREAMS = ("subscriber", "maxEventsPerTrigger", "maxBytesPerTrigger", "maxSegmentsPerTrigger", "tailLatency")


@dataclass(frozen=True)
class Positions:
    """One place for all channels, or places for some of them, by name or by name with the server before it."""

    everywhere: Place
    by_channel: tuple[tuple[str, Place], ...] = ()

    def of(self, channel: str) -> Place:
        """The place of a channel."""
        return dict(self.by_channel).get(channel, self.everywhere)

    def uses(self, word: Word) -> bool:
        """Whether a word is the place of any channel."""
        return word in (self.everywhere, *(place for _, place in self.by_channel))

    def at(self, addr: str) -> Positions:
        """The same of one server, by name; what names the server counts before what names all of them."""
        start = f"{addr}/"
        common = {key: place for key, place in self.by_channel if "/" not in key}
        own = {key.removeprefix(start): place for key, place in self.by_channel if key.startswith(start)}
        return Positions(self.everywhere, tuple(sorted({**common, **own}.items(), key=lambda item: item[0])))


@dataclass(frozen=True)
class Limits:
    """Bounds of a micro-batch; 0 is none."""

    events: int = 0
    size_bytes: int = BATCH_BYTES_DEFAULT
    segments: int = 0


@dataclass(frozen=True)
class SourceOptions:
    """What the user asked for."""

    path: str
    addr: str
    patterns: tuple[str, ...]
    subscriber: str
    starting: Positions
    ending: Positions
    limits: Limits
    fail_on_data_loss: bool
    include_metadata: bool
    token: str = field(repr=False)
    token_file: str = ""
    given: frozenset[str] = frozenset()
    emit: str = "rows"
    pushdown: bool = False
    tail_latency: str = "normal"
    event_time: str = ""
    tier: TierConfig | None = None
    task_bytes: int = TASK_BYTES_DEFAULT

    @property
    def servers(self) -> tuple[str, ...]:
        """The addresses, in the order of their names, which is that of offsets."""
        return tuple(sorted(self.addr.split(","))) if self.addr else ()

    def at(self, addr: str) -> SourceOptions:
        """The same of one server."""
        return replace(self, addr=addr, starting=self.starting.at(addr), ending=self.ending.at(addr))

    def matches(self, channel: str) -> bool:
        """Whether a channel is read."""
        return _is_chosen(channel, self.patterns)

    @property
    def names(self) -> tuple[str, ...] | None:
        """The channels, if they are all named."""
        return None if any(is_glob(pattern) for pattern in self.patterns) else self.patterns

    def check_batch(self) -> SourceOptions:
        """The same for a batch, which confirms nothing and has no triggers."""
        for name in _OF_STREAMS:
            if name.lower() in self.given:
                raise InvalidConfig(key=name, reason="is for streams; leave it out with spark.read")
        return self

    def check_stream(self) -> SourceOptions:
        """The same for a stream, which has no end and gets no filters."""
        if self.pushdown:
            raise InvalidConfig(key="pushdown", reason="is for batches: Spark gives no filters to streams")
        if "endingoffsets" in self.given:
            raise InvalidConfig(key="endingOffsets", reason="is for batches; leave it out with spark.readStream")
        return self


def _is_chosen(channel: str, patterns: Iterable[str]) -> bool:
    return any(re.match(translate(pattern), channel) for pattern in patterns)


def is_glob(pattern: str) -> bool:
    """Whether a pattern stands for several names."""
    return any(sign in pattern for sign in "*?[")


# -------------------------------------------------------------------------------------------------------------- reading


def read_options(options: Mapping[str, str]) -> SourceOptions:
    """The options of a query."""
    given = {name.lower(): value for name, value in options.items()}
    unknown = [name for name in given if name not in _NAMES]
    if unknown:
        raise InvalidConfig(key=unknown[0], reason=f"is no option of holdfast; there are {', '.join(_NAMES.values())}")
    patterns = _patterns(given.get("channel", ""))
    addresses = read_addresses(given.get("addr", ""))
    positions = partial(_positions, given=given, patterns=patterns, servers=addresses if len(addresses) > 1 else [])
    read = SourceOptions(
        path=given.get("path", ""),
        addr=",".join(addresses),
        patterns=patterns,
        subscriber=given.get("subscriber", ""),
        starting=positions("startingOffsets", default="earliest"),
        ending=positions("endingOffsets", default="latest"),
        limits=Limits(
            events=_count("maxEventsPerTrigger", given),
            size_bytes=read_size("maxBytesPerTrigger", given, default=BATCH_BYTES_DEFAULT),
            segments=_count("maxSegmentsPerTrigger", given),
        ),
        fail_on_data_loss=_flag("failOnDataLoss", given, default=True),
        include_metadata=_flag("includeMetadata", given, default=False),
        token=given.get("token", ""),
        token_file=given.get("tokenfile", ""),
        given=frozenset(given),
        emit=_word("emit", given, ("rows", "segments")),
        pushdown=_flag("pushdown", given, default=False),
        tail_latency=_word("tailLatency", given, ("normal", "low")),
        event_time=given.get("eventtime", ""),
        tier=_tier(given),
        task_bytes=read_size("taskBytes", given, default=TASK_BYTES_DEFAULT),
    )
    _check_together(read)
    return read


_TIER = {
    "tierPrefix": "tier.prefix",
    "tierEndpoint": "tier.endpoint",
    "tierRegion": "tier.region",
    "tierCredentialsFile": "tier.credentials_file",
}
_NAMES = {
    name.lower(): name
    for name in (
        "path",
        "addr",
        "channel",
        "subscriber",
        "startingOffsets",
        "endingOffsets",
        "maxEventsPerTrigger",
        "maxBytesPerTrigger",
        "maxSegmentsPerTrigger",
        "failOnDataLoss",
        "includeMetadata",
        "token",
        "tokenFile",
        "emit",
        "pushdown",
        "tailLatency",
        "eventTime",
        "taskBytes",
        "tier",
        *_TIER,
    )
}


def _check_together(read: SourceOptions) -> None:
    rules: tuple[tuple[Callable[[], bool], str, str], ...] = (
        (
            lambda: not (read.path or read.addr or read.tier),
            "path",
            "is missing: give path (an embedded store), addr (a server's admin address) or tier (its object store)",
        ),
        (
            lambda: len(read.servers) > 1 and bool(read.path or read.tier),
            "addr",
            "names several servers, and path or tier only one store; leave them out",
        ),
        (lambda: bool(read.event_time) and not read.pushdown, "eventTime", "is for filters: set pushdown to true"),
        (lambda: read.tail_latency == "low" and not read.addr, "tailLatency", "needs addr: a server seals what it has"),
        (
            lambda: bool(read.subscriber) and not read.addr,
            "subscriber",
            "needs addr: a store has one owner, and only the owner keeps marks; start `holdfast serve`, or leave "
            "subscriber out",
        ),
        (
            lambda: read.starting.uses("subscriber") and not read.subscriber,
            "startingOffsets",
            "is 'subscriber', but no subscriber is given",
        ),
        (lambda: read.ending.uses("subscriber"), "endingOffsets", "cannot be 'subscriber'"),
        (lambda: read.ending.everywhere == "earliest", "endingOffsets", "cannot be 'earliest'"),
        (lambda: bool(read.token and read.token_file), "tokenFile", "and token are both given; give one"),
        (lambda: bool(read.token or read.token_file) and not read.addr, "token", "is for addr, which is not given"),
    )
    for broken, name, reason in rules:
        if broken():
            raise InvalidConfig(key=name, reason=reason)


def _patterns(text: str) -> tuple[str, ...]:
    patterns = tuple(dict.fromkeys(part.strip() for part in text.split(",") if part.strip()))
    if not 0 < len(patterns) <= CHANNELS_MAX:
        reason = f"has {len(patterns)} names; give 1 to {CHANNELS_MAX} names or globs, separated by commas"
        raise InvalidConfig(key="channel", reason=reason)
    return patterns


def read_addresses(text: str) -> list[str]:
    """Several of them, separated by commas, each once."""
    return list(dict.fromkeys(read_address(part.strip()) for part in text.split(",") if part.strip()))


def read_address(text: str) -> str:
    """The admin address of a server, or nothing."""
    if not text:
        return ""
    parts = split_url(text)
    if parts.scheme not in ("http", "https") or not parts.hostname or parts.path.strip("/") or parts.query:
        reason = f"{text!r} is no admin address; it looks like http://127.0.0.1:9001"
        raise InvalidConfig(key="addr", reason=reason)
    if parts.username is not None or parts.password is not None:
        raise InvalidConfig(key="addr", reason="carries a credential, which Spark would show; use token or tokenFile")
    return text.rstrip("/")


def _count(name: str, given: Mapping[str, str]) -> int:
    text = given.get(name.lower())
    if text is None:
        return 0
    number = whole_number(text, least=1, most=2**62 - 1)
    if number is None:
        raise InvalidConfig(key=name, reason=f"{text!r} is no whole number above 0")
    return number


def read_size(name: str, given: Mapping[str, str], *, default: int) -> int:
    """An option that is a size above 0."""
    text = given.get(name.lower())
    if text is None:
        return default
    try:
        size = parse_size(text)
    except ValueError as error:
        raise InvalidConfig(key=name, reason=str(error)) from None
    if size < 1:
        raise InvalidConfig(key=name, reason=f"{text!r} is no size above 0")
    return size


def _flag(name: str, given: Mapping[str, str], *, default: bool) -> bool:
    text = given.get(name.lower(), str(default)).lower()
    if text not in ("true", "false"):
        raise InvalidConfig(key=name, reason=f"{text!r} is neither true nor false")
    return text == "true"


def _word(name: str, given: Mapping[str, str], words: tuple[str, ...]) -> str:
    text = given.get(name.lower(), words[0]).lower()
    if text not in words:
        raise InvalidConfig(key=name, reason=f"{text!r} is none of {', '.join(words)}")
    return text


def _tier(given: Mapping[str, str]) -> TierConfig | None:
    settings = {setting: given[name.lower()] for name, setting in _TIER.items() if name.lower() in given}
    if "tier" not in given:
        if settings:
            raise InvalidConfig(key="tier", reason="is missing: its other options are given")
        return None
    return TierConfig.from_mapping({"tier.url": given["tier"], **settings})


# ------------------------------------------------------------------------------------------------------------ positions


def _positions(
    name: str, *, default: Word, given: Mapping[str, str], patterns: Sequence[str], servers: Sequence[str]
) -> Positions:
    """`servers`: those that a key may name, which are those of a query with several."""
    text = given.get(name.lower(), default)
    if not text.lstrip().startswith("{"):
        return Positions(_place(name, text.strip()))
    try:
        found = json.loads(text)
    except json.JSONDecodeError as error:
        raise InvalidConfig(key=name, reason=f"is no JSON: {error}") from None
    places = []
    for key, value in sorted(found.items()):
        addr, _, channel = key.rpartition("/")
        if addr and addr not in servers:
            reason = f"names the server of {key!r}, which is none of several in `addr` ({', '.join(servers) or 'one'})"
            raise InvalidConfig(key=name, reason=reason)
        if not _is_chosen(channel, patterns):
            reason = f"names channel {channel!r}, which `channel` ({', '.join(patterns)}) does not"
            raise InvalidConfig(key=name, reason=reason)
        places.append((key, _place(name, value)))
    return Positions(default, tuple(places))


def _place(name: str, value: object) -> Place:
    if value in ("earliest", "latest", "subscriber"):
        return value
    if isinstance(value, int) and not isinstance(value, bool) and value >= 1:
        return value
    if isinstance(value, str):
        try:
            moment = datetime.fromisoformat(value)
        except ValueError:
            moment = None
        if moment is not None and moment.tzinfo is not None:
            return moment
    reason = (
        f"{value!r} is no position: earliest, latest, subscriber, a time with its zone (2026-01-31T12:00:00Z), or JSON "
        'by channel with seqs from 1, such as {"trades": 17}'
    )
    raise InvalidConfig(key=name, reason=reason)
