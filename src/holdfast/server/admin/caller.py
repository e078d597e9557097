"""Who is calling, and what a view needs of its request."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import ParamSpec, TypeVar

from starlette.requests import Request

from holdfast.server.access import Principal
from holdfast.server.state import ServerState

_P = ParamSpec("_P")
_T = TypeVar("_T")


async def on_thread(call: Callable[_P, _T], *args: _P.args, **kwargs: _P.kwargs) -> _T:
    """What waits for the disk."""
    return await asyncio.to_thread(call, *args, **kwargs)


def server_of(request: Request) -> ServerState:
    """The server behind a request."""
    state: ServerState = request.app.state.server
    return state


def caller_of(request: Request) -> Principal:
    """Who is calling; app.py found out."""
    principal: Principal = request.state.principal
    return principal


async def identify(request: Request) -> Principal:
    """The principal a request shows; raises like `Gatekeeper.authenticate`."""
    gatekeeper = server_of(request).gatekeeper
    peer = request.client.host if request.client else ""
    certificate = request.scope["state"].get("peer_cert")
    if request.headers.get("authorization", "")[:5].lower() == "basic":  # a password takes tens of milliseconds
        return await on_thread(gatekeeper.authenticate, request.headers, certificate, peer=peer)
    return gatekeeper.authenticate(request.headers, certificate, peer=peer)
