"""OpenTelemetry at the doors of a running server: `otlp` in its configuration file.

    otlp: {payload: columns, http_listening_addr: "127.0.0.1:4318"}

Promise: requests go into the server's own store and are answered after their commit, like frames. Callers, rights and
the audit log are the server's. The section has the keys of the OTLP receiver; `token_file` is not one of them, since
the server knows who calls.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from holdfast.clock import NS_PER_S
from holdfast.config.file import OTLP, ConfigFile
from holdfast.config.server import is_loopback, parse_address
from holdfast.dataflow.persistence import with_signals
from holdfast.dataflow.receivers.guards import by_gatekeeper
from holdfast.dataflow.receivers.otlp import OtlpReceiver
from holdfast.dataflow.receivers.settings import OtlpSettings, with_paths
from holdfast.dataflow.settings import read_node
from holdfast.dataflow.sinks import StoreSink
from holdfast.errors import CannotListen, InvalidConfig, Unprotected
from holdfast.server.server import Server
from holdfast.server.state import Figure
from holdfast.wire.otlp.raw import is_raw
from holdfast.wire.otlp.signals import Signal

_PATHS = ("tls.cert", "tls.key", "tls.client_ca")


@dataclass(frozen=True, slots=True, kw_only=True)
class ServedSettings(OtlpSettings):
    """The section `otlp`."""

    def check_relations(self) -> None:
        """The server judges callers."""
        if self.token_file:
            raise InvalidConfig(key="token_file", reason="is not for a server: callers show one of its credentials")
        OtlpSettings.check_relations(self)

    def is_protected(self) -> bool:
        """With TLS; whether somebody authenticates is asked at the start."""
        return bool(self.tls_cert)


def read_section(config: ConfigFile) -> ServedSettings | None:
    """The section of a file, if it has one; what is wrong is told with file and line."""
    if config.otlp is None:
        return None
    folder = config.path.absolute().parent if config.path is not None else None
    raw: Mapping[str, object] = with_paths(config.otlp, _PATHS, folder) if folder is not None else config.otlp
    try:
        return read_node(ServedSettings, raw)
    except InvalidConfig as error:
        key = f"{OTLP}.{error.key}"
        line = config.lines.get(key, config.lines.get(OTLP, 0))
        raise InvalidConfig(key=key, reason=error.reason, file=config.path, line=line) from None


def with_otlp(config: ConfigFile) -> ConfigFile:
    """The settings whose segments carry the signal of their channel."""
    settings = read_section(config)
    if settings is None:
        return config
    channels = ((channel, signal) for signal, channel in settings.channels_by_signal().items())
    return replace(config, store=with_signals(config.store, channels))


class OtlpDoors:
    """The receiver of a server. Made and used on its event loop."""

    def __init__(self, server: Server, settings: ServedSettings) -> None:
        state = server.state
        self._settings = settings
        self._stopping = threading.Event()
        _check_exposure(settings, insecure=state.insecure, auth_on=state.gatekeeper.auth_on)
        channels = {Signal(signal): channel for signal, channel in settings.channels_by_signal().items()}
        for channel in channels.values():
            if channel in state.store.channels() and is_raw(state.store.schema(channel)) != (settings.payload == "raw"):
                kept = "columns" if settings.payload == "raw" else "raw requests"
                reason = f"channel {channel!r} holds {kept}; choose other channels, or the other payload"
                raise InvalidConfig(key=f"{OTLP}.payload", reason=reason)
        sink = StoreSink(state.store, wait_s=settings.wait_ns / NS_PER_S, stopping=self._stopping)
        self._receiver = OtlpReceiver(OTLP, settings, sink, guard=by_gatekeeper(state.gatekeeper, channels))
        state.more_figures.append(self._figures)

    async def start(self, tasks: asyncio.TaskGroup) -> dict[str, str]:
        """Listen; returns where, by protocol."""
        try:
            await self._receiver.start(tasks)
        except CannotListen as error:
            raise CannotListen(key=f"{OTLP}.{error.key}", address=error.address, reason=error.reason) from None
        doors = self._settings.doors()
        hosts = {"grpc": doors.get("listening_addr", ""), "http": doors.get("http_listening_addr", "")}
        return {
            f"otlp_{name}": f"{hosts[name].rpartition(':')[0]}:{port}" for name, port in self._receiver.ports.items()
        }

    async def stop(self) -> None:
        """Everything that came in is answered when this returns."""
        self._stopping.set()
        await self._receiver.stop()

    def _figures(self) -> Sequence[Figure]:
        found = self._receiver.statistics()
        texts = {
            "requests": "OTLP requests that were accepted.",
            "records": "Log records, spans and data points that were accepted.",
        }
        by_signal = [
            Figure(f"otlp_{name}", text, count, is_counter=True, label=("signal", signal))
            for name, text in texts.items()
            for signal, count in sorted(getattr(found, name).items())
        ]
        refusals = [
            Figure(
                "otlp_refusals", "OTLP requests that were refused.", count, is_counter=True, label=("reason", reason)
            )
            for reason, count in sorted(found.refusals.items())
        ]
        duplicates = Figure("otlp_duplicates", "Requests whose idempotency key was known.", found.duplicates, True)
        return [*by_signal, *refusals, duplicates]


def _check_exposure(settings: ServedSettings, *, insecure: bool, auth_on: bool) -> None:
    for key, address in settings.doors().items():
        host, _ = parse_address(address, key=key)
        if not (is_loopback(host) or auth_on or insecure or settings.insecure or settings.tls_client_ca):
            raise Unprotected(key=f"{OTLP}.{key}", address=address, missing="nobody has to authenticate")
