"""A gRPC server, and OTLP's services on it: three unary methods that take bytes, so that nothing is decoded twice.

Refusals carry `grpc-status-details-bin` with a RetryInfo where a retry helps. A message larger than `max_request_size`,
inflated, is refused by gRPC itself with RESOURCE_EXHAUSTED and no RetryInfo, which tells clients not to repeat it.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from typing import Any, TypeAlias

import grpc  # type: ignore[import-untyped]
import grpc.aio  # type: ignore[import-untyped]

from holdfast.dataflow.receivers.guards import Guard
from holdfast.dataflow.receivers.intake import Intake
from holdfast.dataflow.receivers.settings import ReceiverSettings
from holdfast.dataflow.settings import require_address
from holdfast.errors import CannotListen
from holdfast.wire.otlp.answers import Answer, retry_info, status, success
from holdfast.wire.otlp.signals import Signal

KEY_METADATA = "idempotency-key"
PROTOCOL = "grpc"
KEEPALIVE_MS = 60_000
"""How often a silent client is asked whether it is still there; streams may be silent for hours."""
Services: TypeAlias = Mapping[str, Mapping[str, Any]]
"""Handlers by the names of services and methods."""
_CODES: dict[int, grpc.StatusCode] = {code.value[0]: code for code in grpc.StatusCode}


class GrpcDoor:
    """The gRPC server of one receiver. Made and used on one event loop."""

    def __init__(self, settings: ReceiverSettings, services: Services, *, shared: bool = False) -> None:
        self.port = 0
        self._address = settings.doors()["listening_addr"]
        self._settings = settings
        options = [
            ("grpc.max_receive_message_length", settings.request_bytes_max),
            ("grpc.max_concurrent_streams", settings.requests_max),
            ("grpc.so_reuseport", int(shared)),
            ("grpc.keepalive_time_ms", KEEPALIVE_MS),
        ]
        self._server = grpc.aio.server(options=options)
        for name, methods in services.items():
            self._server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(name, methods),))

    async def start(self) -> None:
        """Listen; afterwards `port` is known."""
        host, port = require_address(self._address, key="listening_addr")
        address = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
        try:
            self.port = (
                self._server.add_secure_port(address, self._credentials())
                if self._settings.tls_cert
                else self._server.add_insecure_port(address)
            )
        except RuntimeError as error:
            raise CannotListen(key="listening_addr", address=self._address, reason=str(error)) from None
        await self._server.start()

    def _credentials(self) -> Any:
        settings = self._settings
        pair = (Path(settings.tls_key).read_bytes(), Path(settings.tls_cert).read_bytes())
        roots = Path(settings.tls_client_ca).read_bytes() if settings.tls_client_ca else None
        return grpc.ssl_server_credentials([pair], roots, require_client_auth=roots is not None)

    async def stop(self, grace_s: float) -> None:
        """Answer what came, then end."""
        await self._server.stop(grace_s)


def otlp_services(intake: Intake, guard: Guard) -> Services:
    """What an OTLP server offers."""
    return {
        signal.service: {"Export": grpc.unary_unary_rpc_method_handler(_export(signal, intake, guard))}
        for signal in Signal
    }


def _export(signal: Signal, intake: Intake, guard: Guard) -> Callable[[bytes, Any], Awaitable[bytes]]:
    async def export(request: bytes, context: Any) -> bytes:
        metadata = dict(context.invocation_metadata() or ())
        judged = await guard(metadata, signal)
        if isinstance(judged, Answer):
            return await refuse(context, judged)
        key = str(metadata.get(KEY_METADATA, ""))
        answer = await intake.submit(signal, request, protocol=PROTOCOL, key=key, sending=judged)
        return success(signal, answer) if answer.refusal is None else await refuse(context, answer)

    return export


async def refuse(context: Any, answer: Answer) -> bytes:
    """End a call with the status of the answer, and when to come again."""
    assert answer.refusal is not None
    metadata = [("grpc-status-details-bin", status(answer))]
    if answer.retry_after_s:
        metadata.append(("google.rpc.retryinfo-bin", retry_info(answer)))  # where OpenTelemetry's Python SDK looks
    context.set_trailing_metadata(tuple(metadata))
    await context.abort(_CODES[answer.refusal.grpc_code], answer.message)
    raise AssertionError("abort does not return")
