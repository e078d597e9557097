"""Is the server alive, and may traffic be sent to it.

Anyone may ask, and learns the status, the durability mode and whether the server is run with `--insecure`. Reasons,
paths and figures are for administrators.
"""

from __future__ import annotations

from dataclasses import fields

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from holdfast import __version__
from holdfast.clock import NS_PER_S
from holdfast.errors import HoldfastError
from holdfast.model.frame import Durability
from holdfast.server.admin.caller import caller_of, identify, server_of
from holdfast.server.admin.envelope import answer, as_json
from holdfast.server.state import ServerState
from holdfast.tier import TierStatistics


def health(state: ServerState, *, detailed: bool) -> tuple[int, dict[str, object]]:
    """Status code and body of `/healthz`: 503 once the store has failed, and then for good."""
    failure = state.failure or state.store.failure
    durability = Durability.SYNCED if state.store.config.wal_flush == "commit" else Durability.WRITTEN
    body: dict[str, object] = {
        "status": "failed" if failure else "ok",
        "durability": durability.value,
        "insecure": state.insecure,
    }
    if state.tier is not None:
        body["tier"] = "failed" if state.tier.failure else "alarm" if state.tier.statistics().alarm else "ok"
    if detailed and state.tier is not None:
        body["tier_statistics"] = msgspec.to_builtins(state.tier.statistics())
    if detailed:
        body |= {
            "failure": str(failure) if failure else None,
            "version": __version__,
            "role": state.config.role,
            "authentication": state.gatekeeper.auth_on,
            "tls": state.config.has_tls,
            "verified": state.store.config.verify_crc,
            "draining": state.draining,
            "connections": len(state.connections),
            "uptime_s": max(0, state.clock.wall_ns() - state.started_at_ns) // NS_PER_S,
        }
    return (503 if failure else 200), body


async def healthz(request: Request) -> Response:
    """`/healthz`."""
    state = server_of(request)
    status, body = health(state, detailed=await asks_as_admin(request))
    return as_json(body, status=status)


async def readyz(request: Request) -> Response:
    """`/readyz`: 200 while frames are accepted, or would be after a moment."""
    state = server_of(request)
    if state.failure or state.store.failure:
        return as_json({"status": "failed"}, status=503)
    if state.draining:
        return as_json({"status": "draining"}, status=503)
    return as_json({"status": "ready"})


async def show_tier(request: Request) -> Response:
    """`GET /api/v1/tier`: the object store behind the server, as a console shows it; without one all is null."""
    caller_of(request).require("admin")
    tier = server_of(request).tier
    nothing = {field.name: None for field in fields(TierStatistics)}
    return answer(msgspec.to_builtins(tier.statistics()) if tier is not None else nothing)


async def asks_as_admin(request: Request) -> bool:
    """Whether the caller is an administrator; one who shows nothing, or something wrong, is just anyone here."""
    if (
        "authorization" not in request.headers
        and server_of(request).gatekeeper.auth_on
        and not _has_certificate(request)
    ):
        return False  # a probe; no line in the audit log
    try:
        return (await identify(request)).may("admin")
    except HoldfastError:
        return False


def _has_certificate(request: Request) -> bool:
    return bool(request.scope["state"].get("peer_cert"))
