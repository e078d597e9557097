"""Every setting of a store, declared once: name, kind, default, range and the reason for the default.

Settings are values: frozen, checked when made, whether read from a mapping or made by a program. A contradiction
between two of them raises `InvalidConfig` like a bad value does.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from typing import Any, TypeVar

from holdfast.config.reading import (
    CHANNELS,
    ChannelOverride,
    check_overrides,
    read_overrides,
    read_pairs,
    require_mapping,
)
from holdfast.config.values import (
    DAY,
    GIB,
    HOUR,
    KIB,
    MIB,
    MINUTE,
    MS,
    SECOND,
    TIB,
    Kind,
    Setting,
    format_value,
    setting,
    show,
)
from holdfast.errors import InvalidConfig

SIZE_MAX = 1024 * TIB
"""More than one machine holds; a larger size is a slip of the pen."""
TIME_MAX = 100 * 365 * DAY
"""Still fits into 63 bits of nanoseconds, twice."""
COUNT_MAX = 10**15
"""Events that no channel reaches: a million a second for thirty years."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreConfig:
    """The settings of one store."""

    segment_target_bytes: int = setting(
        "segment.target_size",
        Kind.SIZE,
        32 * MIB,
        low=4 * KIB,
        high=GIB,
        why="large enough that a reader streams, small enough that one fits in memory twice",
    )
    segment_max_open_ns: int = setting(
        "segment.max_open_duration",
        Kind.TIME,
        5 * SECOND,
        low=10 * MS,
        high=24 * HOUR,
        why="how long a quiet channel's events wait for readers of segments",
    )
    segment_direct_bytes: int = setting(
        "segment.direct_size",
        Kind.SIZE,
        128 * KIB,
        low=256,
        high=GIB,
        why="a frame of so many bytes is written straight into its segment, once; smaller ones go through the log, "
        "since a second file to sync would cost them more than a second writing",
    )
    segment_compression: str = setting(
        "segment.compression",
        Kind.CHOICE,
        "none",
        choices=("none", "lz4", "zstd"),
        per_channel=True,
        why="uncompressed segments are read from the page cache without a copy",
    )
    wal_max_bytes: int = setting(
        "wal.max_size",
        Kind.SIZE,
        512 * MIB,
        low=MIB,
        high=1 << 44,
        why="the log only has to cover open segments; when it is full, segments are sealed early, then callers wait; a "
        "frame larger than half of it is let in once half is free",
    )
    wal_rotation_bytes: int = setting(
        "wal.rotation_size",
        Kind.SIZE,
        64 * MIB,
        low=64 * KIB,
        high=GIB,
        why="whole files are deleted, so this is the grain in which log space comes back",
    )
    wal_flush: str = setting(
        "wal.flush",
        Kind.CHOICE,
        "commit",
        choices=("commit", "interval", "bytes"),
        why="accepted means synced; the other two answer before the sync and say so in the receipt",
    )
    wal_flush_interval_ns: int = setting(
        "wal.flush_interval",
        Kind.TIME,
        25 * MS,
        low=MS,
        high=HOUR,
        why="with `wal.flush: interval`, the most time a written frame waits for its sync",
    )
    wal_flush_bytes: int = setting(
        "wal.flush_bytes",
        Kind.SIZE,
        MIB,
        low=1,
        high=GIB,
        why="with `wal.flush: bytes`, the most bytes that wait for their sync; a quiet log is synced after a second",
    )
    memory_limit_bytes: int = setting(
        "memory_limit",
        Kind.SIZE,
        40 * MIB,
        low=64 * KIB,
        high=1 << 44,
        why="a segment being written and some of the next; at the limit segments are sealed early, then callers wait",
    )
    commit_timeout_ns: int = setting(
        "commit_timeout",
        Kind.TIME,
        30 * SECOND,
        low=0,
        high=24 * HOUR,
        why="how long a commit waits at a bound before it raises; longer than sealing one segment on a slow disk",
    )
    frame_bytes_max: int = setting(
        "frame.max_size",
        Kind.SIZE,
        16 * MIB,
        low=KIB,
        high=512 * MIB,
        why="bounds what one call may pin in memory; a frame must fit into one log file",
    )
    frame_rows_max: int = setting(
        "frame.max_rows",
        Kind.COUNT,
        4_000_000,
        low=1,
        high=2**31 - 1,
        why="a column of nulls has rows without bytes, so bytes alone do not bound a frame",
    )
    dedup_window_ns: int = setting(
        "dedup.window",
        Kind.TIME,
        5 * MINUTE,
        low=0,
        high=7 * 24 * HOUR,
        why="how long a GUID is remembered; slot frames are remembered for ever and do not need it",
    )
    dedup_guids_max: int = setting(
        "dedup.max_guids",
        Kind.COUNT,
        200_000,
        low=1,
        high=100_000_000,
        why="bounds the memory of the GUID history to about 50 MiB; the oldest are forgotten first and counted",
    )
    schema_mode: str = setting(
        "schema",
        Kind.CHOICE,
        "evolve",
        choices=("evolve", "strict", "any"),
        per_channel=True,
        why="new nullable columns and lossless widening are safe for every reader",
    )
    dedup_keys: str = setting(
        "dedup_keys",
        Kind.TEXT,
        "",
        per_channel=True,
        why="columns, separated by commas, that make an event unique: one that equals a stored event in all of them is "
        "left out. For producers without an identity; none, since it costs a look-up and a digest per event",
    )
    event_time_column: str = setting(
        "event_time",
        Kind.TEXT,
        "",
        per_channel=True,
        why="column whose range is kept per segment; none by default, since names differ",
    )
    signal: str = setting(
        "signal",
        Kind.TEXT,
        "events",
        per_channel=True,
        why="what the channel carries (logs, traces, metrics, events), copied into each segment",
    )
    fds_limit: int = setting(
        "fds_limit",
        Kind.COUNT,
        256,
        low=8,
        high=1_000_000,
        why="soft bound on files kept open for reading, well below the usual limit of 1024 descriptors",
    )
    verify_crc: bool = setting(
        "verify_crc",
        Kind.FLAG,
        True,
        why="GIVES UP G9 WHEN OFF: damaged bytes are then delivered as if they were events. "
        "Only to get data out of a broken store; checksums are still written",
    )
    parallel_recovery: int = setting(
        "parallel_recovery",
        Kind.COUNT,
        1,
        low=1,
        high=64,
        why="channels checked at the same time when opening; one reads a spinning disk in order, more help on flash",
    )
    max_channels: int = setting(
        "max_channels",
        Kind.COUNT,
        10_000,
        low=1,
        high=10_000_000,
        zero="unlimited",
        why="a channel costs a directory and memory, so a program that makes up names meets an error, not a full disk",
    )
    retention_size_cap_bytes: int = setting(
        "retention.size_cap",
        Kind.SIZE,
        0,
        low=MIB,
        high=SIZE_MAX,
        zero="none",
        why="how large a disk is only its owner knows; without a cap a full disk is what stops intake",
    )
    retention_size_cap_policy: str = setting(
        "retention.size_cap_policy",
        Kind.CHOICE,
        "backpressure",
        choices=("backpressure", "drop_oldest"),
        why="loses nothing that a subscriber has not confirmed; `drop_oldest` keeps intake going, counts what it loses",
    )
    retention_max_retain_after_ingestion_hours: int = setting(
        "retention.max_retain_after_ingestion_hours",
        Kind.COUNT,
        0,
        low=1,
        high=TIME_MAX // HOUR,
        zero="none",
        why="age alone deletes nothing unless someone asked: unread events would go without a warning",
    )
    retention_steady_state_headroom_bytes: int = setting(
        "retention.steady_state_headroom",
        Kind.SIZE,
        0,
        high=SIZE_MAX,
        why="how much that everyone confirmed is kept all the same; nothing, since nobody waits for it",
    )
    retention_grace_ns: int = setting(
        "retention.grace",
        Kind.TIME,
        0,
        high=365 * DAY,
        why="how long a confirmed segment stays; longer for readers whose own checkpoint may be older than their acks",
    )
    retention_tick_ns: int = setting(
        "retention.tick",
        Kind.TIME,
        SECOND,
        low=MS,
        high=HOUR,
        why="how late a deletion may be; one look a second costs nothing",
    )
    retention_local_bytes: int = setting(
        "retention.local",
        Kind.SIZE,
        0,
        low=KIB,
        high=SIZE_MAX,
        zero="all",
        why="with a tier: so many bytes of the newest segments stay here, older ones only in the bucket; all, since a "
        "read from the bucket takes longer and needs the network",
    )
    retention_remote_age_ns: int = setting(
        "retention.remote.max_age",
        Kind.TIME,
        0,
        low=SECOND,
        high=TIME_MAX,
        zero="none",
        why="with a tier: older segments go from the bucket, and so from the store, once no subscriber needs them; "
        "none, since only their owner knows how long they are of use",
    )
    retention_remote_bytes: int = setting(
        "retention.remote.max_size",
        Kind.SIZE,
        0,
        low=KIB,
        high=SIZE_MAX,
        zero="none",
        why="with a tier: beyond this the oldest segments go from the bucket, and so from the store, once no "
        "subscriber needs them; none, since a bucket has no end of its own",
    )
    retention_time_basis: str = setting(
        "retention.time_basis",
        Kind.CHOICE,
        "ingestion",
        choices=("ingestion", "event"),
        why="the store's own clock decides about age; event times come from producers, whose clocks may be wrong",
    )
    subscriber_expiry_ns: int = setting(
        "subscriber_expiry",
        Kind.TIME,
        0,
        low=MS,
        high=TIME_MAX,
        zero="never",
        why="one that was away for long still finds its events; set it where abandoned ones would fill the disk",
    )
    ack_rotation_bytes: int = setting(
        "ack.rotation_size",
        Kind.SIZE,
        64 * MIB,
        low=4 * KIB,
        high=GIB,
        why="whole files are deleted after a checkpoint, so this is the grain in which space of the ack log comes back",
    )
    ack_checkpoint_interval_ns: int = setting(
        "ack.checkpoint_interval",
        Kind.TIME,
        30 * SECOND,
        low=MS,
        high=DAY,
        why="with the next one, bounds what a start replays, at one small transaction every half minute",
    )
    ack_checkpoint_records: int = setting(
        "ack.checkpoint_records",
        Kind.COUNT,
        10_000,
        low=1,
        high=10_000_000,
        why="replaying so many takes well under a second",
    )
    lease_timeout_ns: int = setting(
        "lease_timeout",
        Kind.TIME,
        30 * SECOND,
        low=MS,
        high=30 * DAY,
        why="how long an unanswered lease is held; longer than a slow export of one segment, so that few come twice",
    )
    scrub_rate_bytes_per_s: int = setting(
        "scrub.rate",
        Kind.SIZE,
        0,
        low=KIB,
        high=TIB,
        zero="off",
        why="bytes of published segments re-read in a second to find decay early; off, since it takes disk time from "
        "others, and 8MiB checks 675 GiB a day",
    )
    max_subs: int = setting(
        "max_subs",
        Kind.COUNT,
        1000,
        low=1,
        high=1_000_000,
        zero="unlimited",
        per_channel=True,
        why="every subscriber pins events, so a program that makes up subscriber names meets an error",
    )
    max_msgs: int = setting(
        "max_msgs",
        Kind.COUNT,
        0,
        low=1,
        high=COUNT_MAX,
        zero="unlimited",
        per_channel=True,
        why="events in the channel; none, since a limit deletes what nobody has read yet",
    )
    max_bytes: int = setting(
        "max_bytes",
        Kind.SIZE,
        0,
        low=1,
        high=SIZE_MAX,
        zero="unlimited",
        per_channel=True,
        why="bytes in the channel; none, for the same reason",
    )
    max_age_ns: int = setting(
        "max_age",
        Kind.TIME,
        0,
        low=MS,
        high=TIME_MAX,
        zero="unlimited",
        per_channel=True,
        why="age of the oldest event; none, for the same reason",
    )
    max_inactivity_ns: int = setting(
        "max_inactivity",
        Kind.TIME,
        0,
        low=MS,
        high=TIME_MAX,
        zero="never",
        per_channel=True,
        why="when a channel without readers and new events is deleted; never, since quiet is not useless",
    )
    discard: str = setting(
        "discard",
        Kind.CHOICE,
        "old",
        choices=("old", "new"),
        per_channel=True,
        why="at `max_msgs` or `max_bytes` the oldest go and producers go on; `new` refuses them instead",
    )
    retention_mode: str = setting(
        "retention.mode",
        Kind.CHOICE,
        "acked",
        choices=("acked", "limits"),
        per_channel=True,
        why="what every subscriber confirmed is deleted; `limits` keeps it until a limit says otherwise",
    )
    file_slice_max_msgs: int = setting(
        "file_slice_max_msgs",
        Kind.COUNT,
        0,
        low=1,
        high=COUNT_MAX,
        zero="unlimited",
        per_channel=True,
        why="events in one segment; bytes and age bound it well enough",
    )
    file_slice_max_bytes: int = setting(
        "file_slice_max_bytes",
        Kind.SIZE,
        64 * MIB,
        low=1,
        high=SIZE_MAX,
        zero="unlimited",
        per_channel=True,
        why="bytes in one segment; `segment.target_size` bounds them too, and the smaller one counts",
    )
    file_slice_max_age_ns: int = setting(
        "file_slice_max_age",
        Kind.TIME,
        0,
        low=MS,
        high=TIME_MAX,
        zero="unlimited",
        per_channel=True,
        why="time one segment covers; `segment.max_open_duration` bounds it too, and the shorter one counts",
    )
    archive_script: str = setting(
        "archive_script",
        Kind.TEXT,
        "",
        per_channel=True,
        why="path of a program that gets channel, segment and metadata before a segment is deleted; none by default",
    )
    channels: tuple[ChannelOverride, ...] = ()

    def __post_init__(self) -> None:
        for name, row in self.rows().items():
            row.check(getattr(self, name))
        check_overrides(self.channels, {row.key: row for row in self.rows().values()})
        self._check_log_relations()
        self._check_retention_relations()
        self._check_channel_relations()

    @classmethod
    def rows(cls) -> dict[str, Setting]:
        """The table's row of each attribute."""
        return {item.name: item.metadata["setting"] for item in fields(cls) if "setting" in item.metadata}

    @property
    def retention_max_retain_ns(self) -> int:
        """`retention.max_retain_after_ingestion_hours` in nanoseconds; 0 is none."""
        return self.retention_max_retain_after_ingestion_hours * HOUR

    def _check_log_relations(self) -> None:
        if self.wal_max_bytes < 2 * self.wal_rotation_bytes:
            raise InvalidConfig(key="wal.max_size", reason="must be at least twice wal.rotation_size")
        if self.frame_bytes_max > self.wal_rotation_bytes // 2:
            raise InvalidConfig(key="frame.max_size", reason="must be at most half of wal.rotation_size")
        if self.segment_target_bytes > self.memory_limit_bytes:
            raise InvalidConfig(key="segment.target_size", reason="must be at most memory_limit")

    def _check_retention_relations(self) -> None:
        cap = self.retention_size_cap_bytes
        least = self.wal_max_bytes + 2 * self.segment_target_bytes
        if cap and cap < least:
            text = format_value(Kind.SIZE, least)
            reason = f"must be at least {text}: wal.max_size, one segment being read and one being written"
            raise InvalidConfig(key="retention.size_cap", reason=reason)
        if not cap and self.retention_size_cap_policy == "drop_oldest":
            reason = "drop_oldest has no effect without retention.size_cap"
            raise InvalidConfig(key="retention.size_cap_policy", reason=reason)
        if cap and self.retention_steady_state_headroom_bytes >= cap:
            raise InvalidConfig(key="retention.steady_state_headroom", reason="must be less than retention.size_cap")

    def _check_channel_relations(self) -> None:
        self._check_dedup_keys()
        literals = sum(override.pattern.is_literal for override in self.channels)
        if self.max_channels and literals > self.max_channels:
            raise InvalidConfig(key="max_channels", reason=f"is less than the {literals} channels named under channels")
        has_event_time = self.event_time_column or any(dict(item.values).get("event_time") for item in self.channels)
        if self.retention_time_basis == "event" and not has_event_time:
            reason = "event has no effect without event_time, here or for a channel"
            raise InvalidConfig(key="retention.time_basis", reason=reason)

    def _check_dedup_keys(self) -> None:
        stated = {"": self.dedup_keys} | {
            f"{CHANNELS}.{item.pattern.text}.": dict(item.values).get("dedup_keys", "") for item in self.channels
        }
        for prefix, text in stated.items():
            if text and not all(map(str.strip, text.split(","))):
                reason = f"{show(text)} has an empty name; give columns, separated by commas"
                raise InvalidConfig(key=f"{prefix}dedup_keys", reason=reason)

    @classmethod
    def from_mapping(cls, mapping: Mapping[str, object]) -> StoreConfig:
        """Settings from a file, an environment or keyword arguments."""
        return read_settings(cls(), mapping)


_Config = TypeVar("_Config", bound=StoreConfig)


def read_settings(defaults: _Config, mapping: Mapping[str, object]) -> _Config:
    """`defaults` with what `mapping` says; unknown keys are errors. `channels` replaces the overrides as a whole."""
    names = {row.key: name for name, row in defaults.rows().items()}
    rows = {row.key: row for row in defaults.rows().values()}
    settings = dict(require_mapping(mapping, key="(all)"))
    changes: dict[str, Any] = {}
    if CHANNELS in settings:
        changes[CHANNELS] = read_overrides(settings.pop(CHANNELS), rows)
    for key, (row, raw) in read_pairs(settings, rows).items():
        changes[names[key]] = row.parse(raw)
    return replace(defaults, **changes)


SETTINGS: tuple[Setting, ...] = tuple(StoreConfig.rows().values())
