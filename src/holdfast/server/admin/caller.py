"""Who is calling, and what a view needs of its request.

Promise: whoever was identified is watched until its request is answered to the last byte; if its credential ends before
that, its connection is cut, whatever it was sending or being sent.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import ExitStack
from typing import ParamSpec, TypeVar

from starlette.requests import Request
from starlette.types import ASGIApp, Receive, Scope, Send

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
        principal = await on_thread(gatekeeper.authenticate, request.headers, certificate, peer=peer)
    else:
        principal = gatekeeper.authenticate(request.headers, certificate, peer=peer)
    gatekeeper.attend(principal, on_end=request.scope["state"]["cut"])
    visit_of(request).callback(gatekeeper.dismiss, principal)
    return principal


def visit_of(request: Request) -> ExitStack:
    """What ends when the request is answered, to the last byte."""
    visit: ExitStack = request.scope["state"]["visit"]
    return visit


class Visits:
    """Middleware: gives each request its `visit`."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request."""
        with ExitStack() as visit:
            scope["state"]["visit"] = visit
            await self._app(scope, receive, send)
