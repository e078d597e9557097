"""The OTAP exporter: rows to another OTAP server, as tables of Arrow, several batches at a time.

Promise: as that of `window.py`; a batch counts as taken when its status says so.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from holdfast.clock import NS_PER_S, Clock
from holdfast.config.values import MS, SECOND, Kind, setting, split_url
from holdfast.dataflow.exporters.otapbatches import batches_of
from holdfast.dataflow.exporters.otaplinks import OtapLink
from holdfast.dataflow.exporters.parcels import Parcel, Span, Verdict
from holdfast.dataflow.exporters.requests import Unfit
from holdfast.dataflow.exporters.window import Sending, send_all
from holdfast.dataflow.settings import ExporterSettings, read_node
from holdfast.disk.filesystem import Filesystem
from holdfast.errors import InvalidConfig
from holdfast.wire.otap.writing import COMPRESSIONS


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings(ExporterSettings):
    """Settings of an OTAP exporter."""

    grpc_endpoint: str = setting("grpc_endpoint", Kind.TEXT, "", why="URL of an OTAP server; required")
    compression_method: str = setting(
        "compression_method",
        Kind.CHOICE,
        "none",
        choices=("none", "gzip", "zstd"),
        why="what travels compressed; gRPC here has gzip only, so zstd compresses the buffers inside of Arrow's "
        "messages, which every OTAP receiver reads",
    )
    payload_compression: str = setting(
        "arrow.payload_compression",
        Kind.CHOICE,
        "none",
        choices=COMPRESSIONS,
        why="the same, named by itself; costs more than it saves on a fast network",
    )
    timeout_ns: int = setting(
        "timeout", Kind.TIME, 15 * SECOND, low=MS, high=600 * SECOND, why="how long the status of a batch may take"
    )
    max_in_flight: int = setting(
        "max_in_flight", Kind.COUNT, 5, low=1, high=1000, why="batches under way at the same time; hides the distance"
    )
    headers: tuple[str, ...] = setting(
        "headers", Kind.TEXTS, (), why="`name: value` texts that go with every stream, a token for example; none"
    )

    def check_relations(self) -> None:
        """An endpoint, and what it can do."""
        ExporterSettings.check_relations(self)
        parts = split_url(self.grpc_endpoint)
        if parts.scheme not in ("http", "https") or not parts.netloc:
            raise InvalidConfig(
                key="grpc_endpoint", reason=f"{self.grpc_endpoint!r} is not a URL like http://host:4319"
            )
        if any(":" not in header for header in self.headers):
            raise InvalidConfig(key="headers", reason="each entry is a text like 'name: value'")

    def shown(self) -> list[str]:
        """Where it goes."""
        return [f"to={self.grpc_endpoint}"]

    def header_values(self) -> dict[str, str]:
        """The headers by name."""
        pairs = (header.partition(":") for header in self.headers)
        return {name.strip(): value.strip() for name, _, value in pairs}

    def arrow_compression(self) -> str:
        """How buffers inside of Arrow's messages are compressed."""
        return "zstd" if self.compression_method == "zstd" else self.payload_compression


def read_settings(raw: Mapping[str, object], _folder: Path) -> Settings:
    """Settings of the node."""
    return read_node(Settings, raw)


def make(settings: Settings, *, filesystem: Filesystem, clock: Clock) -> OtapExporter:  # noqa: ARG001
    """The exporter of a node."""
    link = OtapLink(
        settings.grpc_endpoint,
        grpc_compression=settings.compression_method,
        arrow_compression=settings.arrow_compression(),
        timeout_s=settings.timeout_ns / NS_PER_S,
        headers=settings.header_values(),
    )
    return OtapExporter(link, max_in_flight=settings.max_in_flight)


class OtapExporter:
    """Sends the batches of parcels over one link."""

    def __init__(self, link: OtapLink, *, max_in_flight: int) -> None:
        self._link = link
        self._max_in_flight = max_in_flight
        self._one_by_one: set[str] = set()
        """Channels of which one batch ended a stream with several, and nobody knows which."""

    def deliver(self, parcel: Parcel) -> Verdict:
        """Send everything that can be sent now."""
        in_flight = 1 if parcel.channel in self._one_by_one else self._max_in_flight
        self._link.is_unclear = False
        try:
            verdict = send_all(self._messages(parcel), max_in_flight=in_flight)
        except Unfit as unfit:
            return Verdict(rejected=[((parcel.first_seq, parcel.last_seq), str(unfit))])
        if self._link.is_unclear:
            self._one_by_one.add(parcel.channel)
        elif not verdict.again:
            self._one_by_one.discard(parcel.channel)
        return verdict

    def _messages(self, parcel: Parcel) -> Iterator[tuple[Span, Sending]]:
        for batch in batches_of(parcel):
            yield batch.span, partial(self._link.send, batch.signal, batch.rows, batch.key)

    def close(self) -> None:
        """Let go of the link."""
        self._link.close()
