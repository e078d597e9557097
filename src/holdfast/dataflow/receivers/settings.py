"""Settings of receivers: what all of them have, those of OTLP and those of OTAP."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from holdfast.config.values import GIB, KIB, MIB, MS, SECOND, Kind, setting
from holdfast.dataflow.settings import NodeSettings, read_node, require_address, require_channel, require_protected
from holdfast.errors import InvalidConfig

GRPC_ADDR, HTTP_ADDR, OTAP_ADDR = "127.0.0.1:4317", "127.0.0.1:4318", "127.0.0.1:4319"
_PATHS = ("tls.cert", "tls.key", "tls.client_ca", "token_file")


@dataclass(frozen=True, slots=True, kw_only=True)
class ReceiverSettings(NodeSettings):
    """What every receiver has."""

    listening_addr: str = setting(
        "listening_addr", Kind.TEXT, "", why=f"host and port for gRPC; {GRPC_ADDR} if no address is given"
    )
    requests_max: int = setting(
        "response_stream_channel_size",
        Kind.COUNT,
        256,
        low=1,
        high=100_000,
        why="requests that wait for their commit at the same time; the next one is told to come again",
    )
    inflight_bytes_max: int = setting(
        "max_inflight_size",
        Kind.SIZE,
        64 * MIB,
        low=64 * KIB,
        high=64 * GIB,
        why="bytes of these requests, as they came; bounds memory, whatever the number",
    )
    request_bytes_max: int = setting(
        "max_request_size",
        Kind.SIZE,
        20 * MIB,
        low=KIB,
        high=GIB,
        why="bytes of one request after decompression; what OTLP recommends",
    )
    payload: str = setting(
        "payload",
        Kind.CHOICE,
        "raw",
        choices=("raw", "columns"),
        why="raw keeps requests as they came (early persistence): the cheapest, and nothing is lost on the way to "
        "another OTLP server; columns keeps records that can be queried as they stand (late persistence)",
    )
    logs: str = setting("channels.logs", Kind.TEXT, "otlp.logs", why="the channel of logs")
    traces: str = setting("channels.traces", Kind.TEXT, "otlp.traces", why="the channel of spans")
    metrics: str = setting("channels.metrics", Kind.TEXT, "otlp.metrics", why="the channel of data points")
    wait_ns: int = setting(
        "timeout",
        Kind.TIME,
        5 * SECOND,
        low=MS,
        high=600 * SECOND,
        why="how long a request waits for room in the store; shorter than the ten seconds after which clients give up",
    )
    retry_after_ns: int = setting(
        "retry_after", Kind.TIME, SECOND, low=MS, high=600 * SECOND, why="when a refused client is asked to come again"
    )
    token_file: str = setting(
        "token_file", Kind.TEXT, "", why="file with the token that clients send as `authorization: Bearer …`; none"
    )
    tls_cert: str = setting("tls.cert", Kind.TEXT, "", why="file of the certificate; TLS is off without it")
    tls_key: str = setting("tls.key", Kind.TEXT, "", why="file of its key")
    tls_client_ca: str = setting(
        "tls.client_ca", Kind.TEXT, "", why="file of the authorities whose client certificates are let in; anyone"
    )
    insecure: bool = setting(
        "insecure", Kind.FLAG, False, why="whether other machines may connect without TLS or without a token"
    )

    def check_relations(self) -> None:
        """Addresses, channels, and who may connect."""
        if bool(self.tls_cert) != bool(self.tls_key):
            raise InvalidConfig(key="tls.cert", reason="and tls.key are given together or not at all")
        if self.tls_client_ca and not self.tls_cert:
            raise InvalidConfig(key="tls.client_ca", reason="has no effect without tls.cert")
        for key, address in self.doors().items():
            require_address(address, key=key)
            require_protected(address, key=key, protected=self.insecure or self.is_protected())
        for signal, name in self.channels_by_signal().items():
            require_channel(name, key=f"channels.{signal}")
        if len(set(self.channels_by_signal().values())) < 3:
            raise InvalidConfig(key="channels", reason="each signal needs a channel of its own: their columns differ")

    def is_protected(self) -> bool:
        """Whether other machines may see the addresses."""
        return bool(self.tls_cert and (self.token_file or self.tls_client_ca))

    def doors(self) -> dict[str, str]:
        """The addresses to listen on, by their keys."""
        return {"listening_addr": self.listening_addr or GRPC_ADDR}

    def owned(self) -> list[tuple[str, str]]:
        """The addresses; those that the system chooses are nobody's."""
        return [(key, address) for key, address in self.doors().items() if not address.endswith(":0")]

    def shown(self) -> list[str]:
        """Where it listens, and what it keeps."""
        return [*(f"{key}={address}" for key, address in self.doors().items()), f"payload={self.payload}"]

    def channels_by_signal(self) -> dict[str, str]:
        """The channel of each signal."""
        return {"logs": self.logs, "traces": self.traces, "metrics": self.metrics}


@dataclass(frozen=True, slots=True, kw_only=True)
class OtlpSettings(ReceiverSettings):
    """Settings of an OTLP receiver."""

    http_listening_addr: str = setting(
        "http_listening_addr",
        Kind.TEXT,
        "",
        why=f"host and port for OTLP over HTTP; {HTTP_ADDR} if no address is given; given alone, there is no gRPC",
    )

    def doors(self) -> dict[str, str]:
        """Both, if none is given."""
        if not self.listening_addr and not self.http_listening_addr:
            return {"listening_addr": GRPC_ADDR, "http_listening_addr": HTTP_ADDR}
        given = {"listening_addr": self.listening_addr, "http_listening_addr": self.http_listening_addr}
        return {key: address for key, address in given.items() if address}


@dataclass(frozen=True, slots=True, kw_only=True)
class OtapSettings(ReceiverSettings):
    """Settings of an OTAP receiver."""

    listening_addr: str = setting(
        "listening_addr", Kind.TEXT, "", why=f"host and port for gRPC; {OTAP_ADDR} if no address is given"
    )
    request_bytes_max: int = setting(
        "max_request_size",
        Kind.SIZE,
        20 * MIB,
        low=KIB,
        high=GIB,
        why="bytes of one batch after decompression; its rows may have eight times as many, the dictionaries of a "
        "stream four times",
    )
    payload: str = setting(
        "payload",
        Kind.CHOICE,
        "raw",
        choices=("raw", "columns"),
        why="raw makes OTLP requests of batches, so that a channel can be shared with an OTLP receiver; columns keeps "
        "records that can be queried as they stand, and is the cheaper one here",
    )
    streams_max: int = setting(
        "max_streams",
        Kind.COUNT,
        64,
        low=1,
        high=10_000,
        why="streams at the same time; each keeps dictionaries for as long as it lives",
    )

    def doors(self) -> dict[str, str]:
        """One."""
        return {"listening_addr": self.listening_addr or OTAP_ADDR}


def read_otap_settings(raw: Mapping[str, object], folder: Path) -> OtapSettings:
    """Settings of the node; paths are relative to the folder of the file."""
    return read_node(OtapSettings, with_paths(raw, _PATHS, folder))


def read_settings(raw: Mapping[str, object], folder: Path) -> OtlpSettings:
    """Settings of the node; paths are relative to the folder of the file."""
    return read_node(OtlpSettings, with_paths(raw, _PATHS, folder))


def with_paths(raw: Mapping[str, object], keys: tuple[str, ...], folder: Path) -> dict[str, object]:
    """The settings with paths that do not depend on where the process was started."""
    found = dict(raw)
    for key in keys:
        section, _, name = key.partition(".")
        inside = found.get(section)
        if isinstance(found.get(key), str) and found[key]:
            found[key] = str(folder / str(found[key]))
        elif name and isinstance(inside, Mapping) and isinstance(inside.get(name), str):
            found[section] = {**inside, name: str(folder / inside[name])}
    return found
