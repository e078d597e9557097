"""From what a caller hands over to what the committer can write: checked, fitted to the channel's schema, encoded.

An entry is stored in at most `frame.max_size` bytes. A frame may be larger if its caller says so: then entries that are
larger become several, after they were fitted, because that may make them larger. There are `LARGE_ENTRIES_MAX` at most.

Everything here happens on the caller's thread, before anything is queued, and writes nothing. It reads the disk only
for channels whose events have ids, and for a slot that was not seen since the start (`needs_disk` says so before, for
callers that must not wait).

A *train* is frames of one channel and one schema that came as Arrow messages. They are checked together and kept as
they came: one call into Arrow for all instead of three for each, which is most of what a small frame costs. Each of
them remains a frame: with its own identity, record in the log and receipt.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

import pyarrow as pa

from holdfast.disk.checksum import crc32c
from holdfast.errors import InvalidBatch
from holdfast.model.frame import LARGE_ENTRIES_MAX, Entry, Identity, PlainFrame
from holdfast.model.schema import BatchLimits, check_batch, check_schema
from holdfast.store.catalog import Catalog
from holdfast.store.channels import Channel, ChannelTable
from holdfast.store.committer import PreparedEntry, Train
from holdfast.store.dedup import Dedup
from holdfast.store.event_ids import digests_of, id_column_of
from holdfast.store.lane import Lane
from holdfast.store.slicing import in_slices
from holdfast.store.wal.alike import join_alike
from holdfast.store.wal.codec import END_OF_STREAM, FORM_MESSAGE, NO_OPTIONS, EntryOptions, Payload, encode_batch
from holdfast.store.wal.log import SchemaVersion

ENTRIES_MAX = 1024
"""Of a frame of which nobody says that it may be large: keeps its directory and its undo small."""
PARTITIONS_MAX = 64
WHOLE_BYTES_MAX = 512 << 20
"""Of a frame of which its caller says that it may be large: half of what a record of the log may have."""
CRC_KEPT_BYTES = 64 << 10
"""From here on it is worth remembering a checksum that `direct.py` would compute again."""
AROUND_PART = 16
"""Of what an entry may have, such a part is for what stands around the values of a slice."""
_TOO_MANY = f"the frame becomes more than {LARGE_ENTRIES_MAX} entries of at most {{}} bytes (frame.max_size)"


class Preparer:
    """Thread-safe: it holds no state of its own."""

    def __init__(self, channels: ChannelTable, catalog: Catalog, dedup: Dedup, *, limits: BatchLimits) -> None:
        self._channels = channels
        self._catalog = catalog
        self._dedup = dedup
        self._limits = limits

    def frame(
        self, entries: Sequence[Entry], identity: Identity, *, bytes_max: int = 0
    ) -> tuple[list[PreparedEntry], int, int]:
        """The entries of a frame, their bytes and the checksum of those; or why it cannot be stored. `bytes_max` is for
        all together: an entry that is larger than one may be becomes several."""
        count_max = LARGE_ENTRIES_MAX if bytes_max else ENTRIES_MAX
        if not 0 < len(entries) <= count_max:
            raise InvalidBatch(channel="", reason=f"a frame has 1 to {count_max} entries, this one has {len(entries)}")
        own = self._limits
        limits = own if bytes_max <= own.bytes_max else replace(own, bytes_max=min(bytes_max, WHOLE_BYTES_MAX))
        prepared: list[PreparedEntry] = []
        size = crc = 0
        for entry in entries:
            for part in self._entry(entry, identity, limits):
                part_bytes = part.payload.buffer.size
                size += part_bytes
                crc = crc32c(part.payload.buffer, crc)
                if not prepared and part_bytes >= CRC_KEPT_BYTES:
                    part.payload = Payload(part.payload.buffer, part.payload.form, part.payload.rows, crc)
                if part_bytes > own.bytes_max or size > limits.bytes_max:
                    raise _too_large(entry.channel, part_bytes, size, limits=(own.bytes_max, limits.bytes_max))
                if len(prepared) == LARGE_ENTRIES_MAX:
                    raise InvalidBatch(channel=entry.channel, reason=_TOO_MANY.format(own.bytes_max))
                prepared.append(part)
        return prepared, size, crc

    def _entry(self, entry: Entry, identity: Identity, limits: BatchLimits) -> Iterator[PreparedEntry]:
        known = self._channels.get(entry.channel)
        checked = check_schema(entry.channel, entry.batch.schema, limits, known=known.checked if known else None)
        check_batch(entry.channel, entry.batch, limits, checked=checked)
        if entry.partitions:
            _check_partitions(entry)
        channel = known or self._channels.get_or_create(entry.channel)
        channel.checked = checked
        version, batch = self._channels.fit(channel, entry.batch)
        column = id_column_of(identity, channel.limits.dedup_keys)
        options = EntryOptions(entry.partitions, column) if entry.partitions or column else NO_OPTIONS
        if limits is not self._limits:
            slices = in_slices(batch, bytes_max=self._limits.bytes_max - self._limits.bytes_max // AROUND_PART)
            yield from (self._encoded(channel, version, part, options) for part in slices)
            return
        message = entry.message if batch is entry.batch else None
        yield self._encoded(channel, version, batch, options, message=message)

    def _encoded(
        self,
        channel: Channel,
        version: SchemaVersion,
        batch: pa.RecordBatch,
        options: EntryOptions,
        *,
        message: pa.Buffer | None = None,
    ) -> PreparedEntry:
        if message is not None:
            payload = Payload(message, FORM_MESSAGE, batch.num_rows)
        else:
            payload = encode_batch(batch, has_dictionaries=version.has_dictionaries)
        if not options.id_column:
            return PreparedEntry(channel, version, payload, options, batch)
        ids = digests_of(batch, options.id_column, channel=channel.name)
        looked_up_at_seq = channel.published_seq  # before the look-up: what is published later is looked up again
        known_ids = self._catalog.event_seqs(channel.id, ids)
        return PreparedEntry(channel, version, payload, options, batch, ids, known_ids, looked_up_at_seq)

    def needs_disk(self, entries: Sequence[Entry], identity: Identity) -> bool:
        """Whether the disk may have to be read to prepare a frame; a channel that is new may be one with ids."""
        if self._dedup.needs_disk(identity):
            return True
        channels = [self._channels.get(entry.channel) for entry in entries]
        return any([channel is None or id_column_of(identity, channel.limits.dedup_keys) for channel in channels])

    def train(self, frames: Sequence[PlainFrame], lane: Lane) -> Train | None:
        """The frames as one train; None if they have to go one by one, each with its own answer or reason.

        All have the channel and the schema of the first.
        """
        channel = self._channels.get(frames[0].channel)
        version = channel.version if channel is not None else None  # once: another thread may widen it meanwhile
        if channel is None or version is None or not self._runs_trains(channel, version, frames):
            return None
        if self._dedup.any_known(frames) or not _are_sound(frames):
            return None
        payloads = [Payload(pa.py_buffer(frame.message), FORM_MESSAGE, frame.rows) for frame in frames]
        crcs = [crc32c(frame.message) for frame in frames]
        return Train(channel, version, frames, payloads, crcs, sum([len(frame.message) for frame in frames]), lane)

    def _runs_trains(self, channel: Channel, version: SchemaVersion, frames: Sequence[PlainFrame]) -> bool:
        """Whether nothing has to be looked at but the values: they have this schema, and no rule counts rows."""
        checked, limits, schema = channel.checked, channel.limits, frames[0].schema
        if checked is None or version.has_dictionaries or checked.required or checked.hidden:
            return False
        if limits.dedup_keys or limits.discard == "new":
            return False
        if not (checked.schema.equals(schema, check_metadata=True) and version.schema.equals(schema)):
            return False
        bytes_max, rows_max = self._limits.bytes_max, self._limits.rows_max
        return all([len(frame.message) <= bytes_max and frame.rows <= rows_max for frame in frames])


def _are_sound(frames: Sequence[PlainFrame]) -> bool:
    """Whether Arrow finds every message and every value well-formed, and as many rows as each said."""
    schema, messages, rows = frames[0].schema, [frame.message for frame in frames], [frame.rows for frame in frames]
    try:
        batch = join_alike(messages, schema)
        if batch is not None:
            batch.validate(full=True)
            return rows == [batch.num_rows // len(frames)] * len(frames)
        with pa.ipc.open_stream(pa.py_buffer(b"".join([schema.serialize(), *messages, END_OF_STREAM]))) as reader:
            table = reader.read_all()
        table.validate(full=True)
    except (pa.ArrowException, OSError, ValueError, KeyError, OverflowError):
        return False
    return [len(chunk) for chunk in table.column(0).chunks] == rows


def _too_large(channel: str, part_bytes: int, size_bytes: int, *, limits: tuple[int, int]) -> InvalidBatch:
    part_max, size_max = limits
    if size_max == part_max:
        return InvalidBatch(channel=channel, reason=f"the frame has {size_bytes} bytes, frame.max_size is {part_max}")
    if part_bytes > part_max:
        return InvalidBatch(channel=channel, reason=f"a row has {part_bytes} bytes, frame.max_size is {part_max}")
    return InvalidBatch(channel=channel, reason=f"it brings the frame to {size_bytes} bytes, {size_max} are allowed")


def _check_partitions(entry: Entry) -> None:
    if len(entry.partitions) > PARTITIONS_MAX or any(len(name) > 256 for name in entry.partitions):
        raise InvalidBatch(
            channel=entry.channel, reason=f"at most {PARTITIONS_MAX} partitions of 256 characters are allowed"
        )
