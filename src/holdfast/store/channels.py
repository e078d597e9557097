"""The channels of a store: their names, numbers and schemas.

Promise: a name always means the same channel id; two names that differ only by case never both exist; a channel's
schema only grows (mode `evolve`), never changes (`strict`), or is each batch's own (`any`).
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from itertools import count
from typing import TYPE_CHECKING

import pyarrow as pa

from holdfast.errors import InvalidName, LimitReached, UnknownChannel
from holdfast.model.columns import has_dictionary
from holdfast.model.evolution import channel_schema, conform, merge_schemas, require_same
from holdfast.model.names import check_channel_name
from holdfast.model.positions import ChannelId
from holdfast.model.schema import CheckedSchema, SchemaMode
from holdfast.store.limits import ChannelLimits, LimitsTree
from holdfast.store.wal.log import SchemaVersion

if TYPE_CHECKING:
    from holdfast.store.units import Unit

ANY_VERSIONS_MAX = 256
"""Schemas remembered per channel in mode `any`; beyond it the oldest is written into the log again when it comes
back."""


class Channel:
    """What a store knows of one channel between segments. Fields are owned as noted."""

    def __init__(self, channel_id: ChannelId, name: str, limits: ChannelLimits, *, born_seq: int = 1) -> None:
        self.id = channel_id
        self.name = name
        self.limits = limits
        self.first_seq = 1  # keeper: events below are gone, whatever files still hold them
        self.hidden_events = 0  # keeper: how many events below `first_seq` the files still hold
        self.active_at_ns = 0  # committer: when the last event came in
        self.segment_bytes = self.segment_events = 0  # tail lock: what the published segments hold
        self.warned = False  # keeper: said once that old events go
        self.retired = False  # table lock
        self.born_seq = born_seq  # its first seq: 1, unless the store was restored from a tier
        self.next_seq = born_seq  # committer
        self.published_seq = born_seq - 1  # tail lock: the last seq in a published segment
        self.units: list[Unit] = []  # tail lock: what is not yet published, oldest first
        self.unpublished_ids: dict[bytes, int] = {}  # committer: event id digest -> seq, for channels that use ids
        self.version: SchemaVersion | None = None  # table lock to change
        self.checked: CheckedSchema | None = None  # any caller: the last schema that passed the door
        self.versions: dict[pa.Schema, SchemaVersion] = {}  # table lock; mode `any` only

    @property
    def last_seq(self) -> int:
        """The last event that readers can see; those being committed just now are not among them."""
        units = list(self.units)  # before `published_seq`, which moves before a unit leaves
        return units[-1].end_seq - 1 if units else self.published_seq

    @property
    def is_closed_off(self) -> bool:
        """Whether its floor is above all numbers given out: it was retired, and not written to since."""
        return self.first_seq == self.next_seq > 1

    def stored_bytes(self) -> int:
        """Bytes in segments and in memory. The caller holds the tail's lock."""
        return self.segment_bytes + sum(unit.bytes for unit in self.units)

    def stored_events(self) -> int:
        """Events in segments and in memory that readers can see. The caller holds the tail's lock.

        Numbers may have been skipped, and segments in the middle are gone, so seqs do not tell.
        """
        return self.segment_events - self.hidden_events + sum(unit.rows for unit in self.units)


class ChannelTable:
    """All channels. Thread-safe."""

    def __init__(self, limits: LimitsTree, *, channels_max: int, birth_seq: int = 1) -> None:
        """`channels_max` 0 is no limit. `birth_seq` is the first seq of a channel nobody knows yet."""
        self.birth_seq = birth_seq
        self._limits = limits
        self._channels_max = channels_max
        self._lock = threading.Lock()
        self._by_name: dict[str, Channel] = {}
        self._by_id: dict[int, Channel] = {}
        self._folded: dict[str, str] = {}
        self._retired: dict[str, Channel] = {}
        self._version_ids = count(1)
        self.next_id = 1

    def __iter__(self) -> Iterator[Channel]:
        return iter(list(self._by_name.values()))

    def __len__(self) -> int:
        return len(self._by_name)

    def get(self, name: str) -> Channel | None:
        """The channel, if there is one."""
        return self._by_name.get(name)

    def find(self, name: str) -> Channel:
        """The channel, or `UnknownChannel`."""
        channel = self._by_name.get(name)
        if channel is None:
            raise UnknownChannel(channel=name)
        return channel

    def get_by_id(self, channel_id: int) -> Channel | None:
        """The channel with that number, if there is one."""
        return self._by_id.get(channel_id)

    def by_id(self, channel_id: int) -> Channel:
        """The channel with that number."""
        return self._by_id[channel_id]

    def get_or_create(self, name: str) -> Channel:
        """The channel, made if new. The caller has not written anything yet."""
        channel = self._by_name.get(name)
        if channel is not None:
            return channel
        with self._lock:
            self._check(name)
            return self._by_name.get(name) or self._insert(name, ChannelId(self.next_id))

    def check(self, name: str) -> None:
        """Raise what `get_or_create` would; nothing is made."""
        with self._lock:
            self._check(name)

    def _check(self, name: str) -> None:
        if name in self._by_name:
            return
        check_channel_name(name)
        self._check_case(name)
        if self._channels_max and len(self._by_name) >= self._channels_max:
            raise LimitReached(what=f"channel {name!r}", limit="max_channels", allowed=self._channels_max)

    def _check_case(self, name: str) -> None:
        twin = self._folded.get(name.lower(), name)
        if twin != name:
            raise InvalidName(what="channel", name=name, reason=f"it differs only by case from channel {twin!r}")

    def known(self) -> list[Channel]:
        """All channels, retired ones too."""
        return list(self._by_id.values())

    def retire(self, channel: Channel, *, next_seq: int) -> bool:
        """Stop counting and showing a channel; it comes back with its numbers when somebody writes to it.

        False, and nothing is changed, if somebody wrote to it since `next_seq` was read: the committer first moves
        `next_seq`, then looks at `retired`; here it is the other way round, so one of the two sees the other.
        """
        with self._lock:
            channel.retired = True
            if channel.next_seq != next_seq:
                channel.retired = False
                return False
            self._retired[channel.name] = channel
            self._by_name.pop(channel.name, None)
            return True

    def revive(self, channel: Channel) -> None:
        """A channel that was retired is written to again."""
        with self._lock:
            if channel.retired:
                self._insert(channel.name, channel.id)

    def restore(self, name: str, channel_id: int) -> Channel:
        """The channel as a log or the catalog names it."""
        with self._lock:
            channel = self._by_id.get(channel_id)
            if channel is None:
                return self._insert(name, ChannelId(channel_id))
        if channel.name != name:
            raise ValueError(f"channel id {channel_id} is {channel.name!r} and {name!r}")
        return channel

    def _insert(self, name: str, channel_id: ChannelId) -> Channel:
        self._check_case(name)
        retired = self._retired.pop(name, None)
        if retired is not None:
            retired.retired = False
            self._by_name[name] = retired
            return retired
        channel = Channel(channel_id, name, self._limits.resolve(name), born_seq=self.birth_seq)
        self._by_name[name] = self._by_id[channel_id] = channel
        self._folded[name.lower()] = name
        self.next_id = max(self.next_id, channel_id + 1)
        return channel

    def fit(self, channel: Channel, batch: pa.RecordBatch) -> tuple[SchemaVersion, pa.RecordBatch]:
        """The schema under which the batch is stored, and the batch in that schema."""
        version = channel.version
        schema = batch.schema
        if version is not None and schema.equals(version.schema):
            return version, batch
        with self._lock:
            version = self._grow(channel, schema)
        return version, conform(batch, version.schema, channel=channel.name)

    def adopt_schema(self, channel: Channel, schema: pa.Schema) -> SchemaVersion:
        """A schema found in the catalog or the log; returns the version that holds it."""
        with self._lock:
            current = channel.version
            if current is None or channel.limits.schema_mode is not SchemaMode.EVOLVE:
                return self._set(channel, schema)
            merged = merge_schemas(channel.name, current.schema, schema)
            return current if merged is current.schema else self._set(channel, merged)

    def new_version(self, channel: Channel, schema: pa.Schema) -> SchemaVersion:
        """A version with a number of its own that is not made current: for what was written under an older schema."""
        with self._lock:
            return self._version(channel, schema)

    def _grow(self, channel: Channel, schema: pa.Schema) -> SchemaVersion:
        current = channel.version
        if current is None:
            return self._set(channel, channel_schema(schema))
        if channel.limits.schema_mode is SchemaMode.STRICT:
            require_same(channel.name, current.schema, schema)
            return current
        if channel.limits.schema_mode is SchemaMode.ANY:
            plain = channel_schema(schema)
            known = channel.versions.get(plain)
            return known if known is not None else self._set(channel, plain)
        merged = merge_schemas(channel.name, current.schema, schema)
        return current if merged is current.schema else self._set(channel, merged)

    def _set(self, channel: Channel, schema: pa.Schema) -> SchemaVersion:
        version = self._version(channel, schema)
        channel.version = version
        if channel.limits.schema_mode is SchemaMode.ANY:
            if len(channel.versions) >= ANY_VERSIONS_MAX:
                channel.versions.pop(next(iter(channel.versions)))
            channel.versions[version.schema] = version
        return version

    def _version(self, channel: Channel, schema: pa.Schema) -> SchemaVersion:
        return SchemaVersion(next(self._version_ids), channel.id, channel.name, schema, has_dictionary(schema))
