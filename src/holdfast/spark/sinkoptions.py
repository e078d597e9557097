"""The options of what is written, read once and checked as a whole (pure).

Promise: as for the source: an option that is not known, does not fit its type, or contradicts another one is
`InvalidConfig` with what is allowed.

| option | value | default |
|---|---|---|
| addr | to a channel: the admin address of its server, `http://127.0.0.1:9001` | |
| channel | to a channel: its name | |
| token, tokenFile | to a channel: the credential for `addr`, or a file with it | none |
| maxFrameBytes | to a channel: what is sent as one, as Arrow in memory; the server's limit is above it | `8MiB` |
| table | to a table: `parquet`, `delta` or `iceberg` | |
| path | to a table: its folder | |
| maxFileBytes | to a table: the size at which a file is ended | `128MiB` |
| identity | what stands for this job for ever; batches only | a new one; streams have their query's id |
| batch | the number of this batch of the identity; batches only | `0` |
| source.… | set by `holdfast.spark.land`: options of the source that descriptors of segments come from | |
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from holdfast.config.values import whole_number
from holdfast.errors import InvalidConfig, InvalidName
from holdfast.model.names import check_channel_name
from holdfast.spark.options import read_address, read_size

FRAME_BYTES_DEFAULT = 8 << 20
"""Half of what servers take in one message by default: a frame has some more than the values."""
FILE_BYTES_DEFAULT = 128 << 20
"""Files that queries open quickly and a failed task does not regret; a task holds one in memory while it writes."""
TABLES = ("parquet", "delta", "iceberg")
IDENTITY_CHARS_MAX = 200


@dataclass(frozen=True)
class SinkOptions:
    """Where rows go. `table` is empty for a channel."""

    addr: str
    channel: str
    table: str
    path: str
    frame_bytes_max: int
    file_bytes_max: int
    identity: str
    batch: int
    source: tuple[tuple[str, str], ...] = field(repr=False)
    """What `land` says of its source; empty when rows are written."""
    token: str = field(repr=False)
    token_file: str = ""

    def check_stream(self) -> SinkOptions:
        """The same for a stream, which has an identity of its own.

        Spark counts its batches from 0 with every new checkpoint. Under the identity of an old one they would be taken
        for repeats, and new rows would be left out.
        """
        if self.identity:
            raise InvalidConfig(key="identity", reason="is for batches; a stream is known by the id of its query")
        return self


_NAMES = {
    name.lower(): name
    for name in (
        *("addr", "channel", "token", "tokenFile", "maxFrameBytes", "table", "path", "maxFileBytes"),
        *("identity", "batch"),
    )
}
_OF_SPARK = ("checkpointlocation", "queryname")
"""Spark hands its own options of a stream to the sink too."""
_OF_CHANNELS = ("addr", "channel", "token", "tokenFile", "maxFrameBytes")
_OF_TABLES = ("path", "maxFileBytes")
SOURCE = "source."


def read_sink_options(options: Mapping[str, str]) -> SinkOptions:
    """The options of a write."""
    given = {name.lower(): value for name, value in options.items() if name.lower() not in _OF_SPARK}
    unknown = [name for name in given if name not in _NAMES and not (name.startswith(SOURCE) and given.get("table"))]
    if unknown:
        known = ", ".join(_NAMES.values())
        raise InvalidConfig(key=unknown[0], reason=f"is no option of writing with holdfast; there are {known}")
    table = given.get("table", "")
    if table and table not in TABLES:
        raise InvalidConfig(key="table", reason=f"{table!r} is none of {', '.join(TABLES)}")
    _check_kind(given, table)
    return SinkOptions(
        addr=read_address(given.get("addr", "")),
        channel=given.get("channel", ""),
        table=table,
        path=given.get("path", ""),
        frame_bytes_max=read_size("maxFrameBytes", given, default=FRAME_BYTES_DEFAULT),
        file_bytes_max=read_size("maxFileBytes", given, default=FILE_BYTES_DEFAULT),
        identity=_identity(given),
        batch=_batch(given),
        source=tuple((name.removeprefix(SOURCE), given[name]) for name in given if name.startswith(SOURCE)),
        token=given.get("token", ""),
        token_file=given.get("tokenfile", ""),
    )


def _check_kind(given: Mapping[str, str], table: str) -> None:
    """All that a channel, or a table, needs, and nothing of the other."""
    needed, strange = (("path",), _OF_CHANNELS) if table else (("addr", "channel"), _OF_TABLES)
    for name in needed:
        if not given.get(name):
            where = f"the folder of the {table} table" if table else "give addr and channel, or table and path"
            raise InvalidConfig(key=name, reason=f"is missing: {where}")
    for name in strange:
        if name.lower() in given:
            what = "a table" if table else "a channel; give table to write to files"
            raise InvalidConfig(key=name, reason=f"does not belong to writing to {what}")
    if not table:
        try:
            check_channel_name(given["channel"])
        except InvalidName as error:
            raise InvalidConfig(key="channel", reason=f"{error}; rows go to one channel") from None
    if "token" in given and "tokenfile" in given:
        raise InvalidConfig(key="tokenFile", reason="and token are both given; give one")


def _identity(given: Mapping[str, str]) -> str:
    text = given.get("identity", "")
    if "identity" in given and not (0 < len(text) <= IDENTITY_CHARS_MAX and text.isprintable()):
        raise InvalidConfig(key="identity", reason=f"has 1 to {IDENTITY_CHARS_MAX} printable characters")
    return text


def _batch(given: Mapping[str, str]) -> int:
    text = given.get("batch", "0")
    number = whole_number(text)
    if number is None:
        raise InvalidConfig(key="batch", reason=f"{text!r} is no whole number")
    if "batch" in given and "identity" not in given:
        raise InvalidConfig(key="batch", reason="counts the batches of an identity, which is not given")
    return number
