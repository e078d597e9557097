"""Every setting of a tier, declared once: name, kind, default, range and the reason for the default."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from typing import Any

from holdfast.config.reading import read_pairs, require_mapping
from holdfast.config.values import DAY, GIB, HOUR, KIB, MINUTE, MS, SECOND, TIB, Kind, Setting, setting, split_url
from holdfast.errors import InvalidConfig

SCHEMES = ("s3", "gs", "az", "file")


@dataclass(frozen=True, slots=True, kw_only=True)
class TierConfig:
    """The settings of one tier; without `url` there is none."""

    url: str = setting(
        "tier.url",
        Kind.TEXT,
        "",
        why="`s3://bucket`, `gs://bucket`, `az://account/container` or `file:///folder`; none, so that accepted is all "
        "a producer can ask for",
    )
    prefix: str = setting(
        "tier.prefix",
        Kind.TEXT,
        "holdfast",
        why="the folder of this store in the bucket; each store needs one of its own",
    )
    endpoint: str = setting(
        "tier.endpoint",
        Kind.TEXT,
        "",
        why="`http(s)://host:port` of a service that speaks S3 or Azure's protocol; the cloud's own",
    )
    region: str = setting("tier.region", Kind.TEXT, "", why="of an S3 bucket; from the environment")
    credentials_file: str = setting(
        "tier.credentials_file",
        Kind.TEXT,
        "",
        why="lines `name=value` with the names of the environment (`AWS_ACCESS_KEY_ID=…`); by default the environment "
        "itself, or what the machine is given by its cloud",
    )
    concurrency: int = setting(
        "tier.concurrency",
        Kind.COUNT,
        4,
        low=1,
        high=64,
        why="segments on their way at a time; hides the latency of a store without taking the disk from commits",
    )
    bandwidth_bytes_per_s: int = setting(
        "tier.bandwidth",
        Kind.SIZE,
        0,
        low=64 * KIB,
        high=TIB,
        zero="unlimited",
        why="bytes uploaded in a second; no limit, since what waits is what can be lost with the disk",
    )
    cache_bytes: int = setting(
        "tier.cache_size",
        Kind.SIZE,
        GIB,
        low=KIB,
        high=TIB,
        why="disk for copies of segments that are only in the bucket, least recently read first out; 32 segments of "
        "full size, so that a few slow readers do not fetch each other's away",
    )
    sweep_ns: int = setting(
        "tier.sweep",
        Kind.TIME,
        6 * HOUR,
        low=SECOND,
        high=30 * DAY,
        zero="never",
        why="how often the bucket is listed for objects that no entry names; what two looks in a row find is deleted",
    )
    max_delay_ns: int = setting(
        "tier.max_delay",
        Kind.TIME,
        SECOND,
        low=10 * MS,
        high=HOUR,
        why="when somebody waits for durable acknowledgements, the oldest event is sealed after this; shorter makes "
        "more and smaller objects",
    )
    request_timeout_ns: int = setting(
        "tier.request_timeout",
        Kind.TIME,
        MINUTE,
        low=100 * MS,
        high=HOUR,
        why="a request without an answer is repeated after this; a segment of 32 MiB takes it at 5 Mbit/s",
    )
    connect_timeout_ns: int = setting(
        "tier.connect_timeout",
        Kind.TIME,
        30 * SECOND,
        low=100 * MS,
        high=HOUR,
        why="how long a start waits for a store that does not answer, before it ends with an error",
    )
    retry_first_ns: int = setting(
        "tier.retry_first", Kind.TIME, 100 * MS, low=MS, high=MINUTE, why="the first pause after a failed request"
    )
    retry_max_ns: int = setting(
        "tier.retry_max",
        Kind.TIME,
        30 * SECOND,
        low=MS,
        high=HOUR,
        why="pauses double up to this; retries never end, since the local copy is safe as long as it is kept",
    )
    alarm_after_ns: int = setting(
        "tier.alarm_after",
        Kind.TIME,
        5 * MINUTE,
        low=SECOND,
        high=30 * DAY,
        why="trouble, or a lag, of this length is shown as an alarm in `/healthz`, metrics and log",
    )
    fencing: str = setting(
        "tier.fencing",
        Kind.CHOICE,
        "conditional",
        choices=("conditional", "none"),
        why="needs a store with conditional writes; `none` is for one without, and then two servers of one tier would "
        "overwrite each other unseen",
    )

    def __post_init__(self) -> None:
        for name, row in self.rows().items():
            row.check(getattr(self, name))
        if not self.url:
            return
        parts = split_url(self.url)
        if parts.scheme not in SCHEMES:
            allowed = ", ".join(f"{scheme}://" for scheme in SCHEMES)
            raise InvalidConfig(key="tier.url", reason=f"{self.url!r} does not begin with one of {allowed}")
        if parts.username or parts.password or parts.query:
            raise InvalidConfig(key="tier.url", reason="holds a credential; put it into tier.credentials_file")
        if parts.scheme == "file" and (parts.netloc or not parts.path.startswith("/")):
            raise InvalidConfig(key="tier.url", reason=f"{self.url!r} is not file:/// and an absolute path")
        if parts.scheme == "az" and len([name for name in parts.path.split("/") if name]) != 1:
            raise InvalidConfig(key="tier.url", reason=f"{self.url!r} is not az://account/container")
        if parts.scheme == "gs" and self.endpoint:
            raise InvalidConfig(key="tier.endpoint", reason="is for s3:// and az://; gs:// has none")
        if not self.prefix or self.prefix.strip("/") != self.prefix or ".." in self.prefix.split("/"):
            raise InvalidConfig(key="tier.prefix", reason="is one name, or several with / between: plant-7/holdfast")
        if self.retry_max_ns < self.retry_first_ns:
            raise InvalidConfig(key="tier.retry_max", reason="must be at least tier.retry_first")

    @classmethod
    def rows(cls) -> dict[str, Setting]:
        """The table's row of each attribute."""
        return {item.name: item.metadata["setting"] for item in fields(cls)}

    @classmethod
    def from_mapping(cls, mapping: Mapping[str, object]) -> TierConfig:
        """Settings from a file or keyword arguments; unknown keys are errors."""
        names = {row.key: name for name, row in cls.rows().items()}
        rows = {row.key: row for row in cls.rows().values()}
        changes: dict[str, Any] = {}
        for key, (row, raw) in read_pairs(require_mapping(mapping, key="(all)"), rows).items():
            changes[names[key]] = row.parse(raw)
        return replace(cls(), **changes)

    @property
    def location(self) -> str:
        """The folder of this store in the bucket."""
        return f"{self.url.rstrip('/')}/{self.prefix}"


TIER_SETTINGS: tuple[Setting, ...] = tuple(TierConfig.rows().values())
TIER_SECTIONS = frozenset({"tier"})
