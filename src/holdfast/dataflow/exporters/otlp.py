"""The OTLP exporter: rows to another OTLP server, several requests at a time.

Promise: as that of `window.py`; a request counts as taken when its answer says so.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from holdfast.clock import NS_PER_S, Clock
from holdfast.config.values import MS, SECOND, Kind, setting, split_url
from holdfast.dataflow.exporters.links import GrpcLink, HttpLink, Link
from holdfast.dataflow.exporters.parcels import Parcel, Verdict
from holdfast.dataflow.exporters.requests import Unfit, requests_of
from holdfast.dataflow.exporters.window import send_all
from holdfast.dataflow.settings import ExporterSettings, read_node
from holdfast.disk.filesystem import Filesystem
from holdfast.errors import InvalidConfig


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings(ExporterSettings):
    """Settings of an OTLP exporter."""

    grpc_endpoint: str = setting(
        "grpc_endpoint", Kind.TEXT, "", why="URL of an OTLP server that speaks gRPC; this or the next is required"
    )
    http_endpoint: str = setting(
        "http_endpoint", Kind.TEXT, "", why="URL of one that speaks HTTP, without `/v1/logs` at its end"
    )
    compression_method: str = setting(
        "compression_method",
        Kind.CHOICE,
        "none",
        choices=("none", "gzip", "zstd"),
        why="costs more than it saves on a fast network; zstd is for HTTP only",
    )
    timeout_ns: int = setting(
        "timeout", Kind.TIME, 15 * SECOND, low=MS, high=600 * SECOND, why="how long one request may take"
    )
    max_in_flight: int = setting(
        "max_in_flight", Kind.COUNT, 5, low=1, high=1000, why="requests under way at the same time; hides the distance"
    )
    headers: tuple[str, ...] = setting(
        "headers", Kind.TEXTS, (), why="`name: value` texts that go with every request, a token for example; none"
    )

    def check_relations(self) -> None:
        """One endpoint, and what it can do."""
        ExporterSettings.check_relations(self)
        if bool(self.grpc_endpoint) == bool(self.http_endpoint):
            raise InvalidConfig(key="grpc_endpoint", reason="give either grpc_endpoint or http_endpoint")
        key = "grpc_endpoint" if self.grpc_endpoint else "http_endpoint"
        endpoint = self.grpc_endpoint or self.http_endpoint
        parts = split_url(endpoint)
        if parts.scheme not in ("http", "https") or not parts.netloc:
            raise InvalidConfig(key=key, reason=f"{endpoint!r} is not a URL like http://host:4317")
        if self.grpc_endpoint and self.compression_method == "zstd":
            raise InvalidConfig(key="compression_method", reason="zstd is for http_endpoint; gRPC has none and gzip")
        if any(":" not in header for header in self.headers):
            raise InvalidConfig(key="headers", reason="each entry is a text like 'name: value'")

    def shown(self) -> list[str]:
        """Where it goes."""
        return [f"to={self.grpc_endpoint or self.http_endpoint}"]

    def header_values(self) -> dict[str, str]:
        """The headers by name."""
        pairs = (header.partition(":") for header in self.headers)
        return {name.strip(): value.strip() for name, _, value in pairs}


def read_settings(raw: Mapping[str, object], _folder: Path) -> Settings:
    """Settings of the node."""
    return read_node(Settings, raw)


def make(settings: Settings, *, filesystem: Filesystem, clock: Clock) -> OtlpExporter:  # noqa: ARG001
    """The exporter of a node."""
    timeout_s, headers = settings.timeout_ns / NS_PER_S, settings.header_values()
    link: Link
    if settings.grpc_endpoint:
        link = GrpcLink(
            settings.grpc_endpoint, compression=settings.compression_method, timeout_s=timeout_s, headers=headers
        )
    else:
        link = HttpLink(
            settings.http_endpoint,
            compression=settings.compression_method,
            timeout_s=timeout_s,
            headers=headers,
            width=settings.max_in_flight,
        )
    return OtlpExporter(link, max_in_flight=settings.max_in_flight)


class OtlpExporter:
    """Sends the requests of parcels over one link."""

    def __init__(self, link: Link, *, max_in_flight: int) -> None:
        self._link = link
        self._max_in_flight = max_in_flight

    def deliver(self, parcel: Parcel) -> Verdict:
        """Send everything that can be sent now."""
        messages = ((item.span, partial(self._link.send, item.signal, item.body)) for item in requests_of(parcel))
        try:
            return send_all(messages, max_in_flight=self._max_in_flight)
        except Unfit as unfit:
            return Verdict(rejected=[((parcel.first_seq, parcel.last_seq), str(unfit))])

    def close(self) -> None:
        """Let go of the link."""
        self._link.close()
