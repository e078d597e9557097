"""The routes of the admin server, who may call them, and the headers of every answer.

Everything but `/healthz` and `/readyz` needs a principal; where nothing asks for a credential that is everyone. What a
principal may see or do is decided by the views. No cookies, no CORS: a page of another origin can neither read an
answer nor send a body of the types that are accepted.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from starlette.applications import Starlette
from starlette.datastructures import MutableHeaders
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from holdfast.errors import HoldfastError
from holdfast.server.admin import views
from holdfast.server.admin.caller import Visits, identify
from holdfast.server.admin.compacting import compact_channel
from holdfast.server.admin.envelope import SAFE_HEADERS, as_json, refuse_bug, refuse_http, refuse_ours
from holdfast.server.admin.events import post_events
from holdfast.server.admin.health import healthz, readyz, show_tier
from holdfast.server.admin.metrics import show_metrics
from holdfast.server.admin.openapi import OPENAPI
from holdfast.server.admin.querying import list_queries, tell_query
from holdfast.server.admin.reading import read_events
from holdfast.server.admin.room import BodyRoom
from holdfast.server.admin.subscribing import acknowledge, register, remove, reset, show
from holdfast.server.state import ServerState

API = "/api/v1"

View = Callable[[Request], Awaitable[Response]]


def build(state: ServerState) -> Starlette:
    """The application over one running server."""
    channel = f"{API}/channels/{{channel}}"
    routes = [
        Route("/healthz", healthz, methods=["GET"]),
        Route("/readyz", readyz, methods=["GET"]),
        Route("/metrics", _known(show_metrics), methods=["GET"]),
        Route(f"{API}/openapi.json", _known(_openapi), methods=["GET"]),
        Route(f"{API}/channels", _known(views.list_channels), methods=["GET"]),
        Route(channel, _known(views.show_channel), methods=["GET"]),
        Route(f"{channel}/events", _known(read_events), methods=["GET"]),
        Route(f"{channel}/events", _known(post_events), methods=["POST"]),
        Route(f"{channel}/seal", _known(views.seal_channel), methods=["POST"]),
        Route(f"{channel}/compact", _known(compact_channel), methods=["POST"]),
        Route(f"{channel}/segments", _known(views.list_segments), methods=["GET"]),
        Route(f"{channel}/segments/{{segment}}", _known(views.show_segment), methods=["GET"]),
        Route(f"{channel}/segments/{{segment}}/data", _known(views.segment_data), methods=["GET"]),
        Route(f"{API}/segments", _known(views.list_all_segments), methods=["GET"]),
        Route(f"{API}/subscribers", _known(views.list_subscribers), methods=["GET"]),
        Route(f"{API}/subscribers/{{subscriber}}", _known(show), methods=["GET"]),
        Route(f"{API}/subscribers/{{subscriber}}", _known(register), methods=["POST"]),
        Route(f"{API}/subscribers/{{subscriber}}", _known(remove), methods=["DELETE"]),
        Route(f"{API}/subscribers/{{subscriber}}/acks", _known(acknowledge), methods=["POST"]),
        Route(f"{API}/subscribers/{{subscriber}}/reset", _known(reset), methods=["POST"]),
        Route(f"{API}/queries", _known(list_queries), methods=["GET"]),
        Route(f"{API}/queries/{{query}}", _known(tell_query), methods=["POST"]),
        Route(f"{API}/connections", _known(views.list_connections), methods=["GET"]),
        Route(f"{API}/senders", _known(views.list_senders), methods=["GET"]),
        Route(f"{API}/errors", _known(views.list_errors), methods=["GET"]),
        Route(f"{API}/tier", _known(show_tier), methods=["GET"]),
        Route(f"{API}/slots", _known(views.list_slots), methods=["GET"]),
        Route(f"{API}/slots/{{slot}}/owner", _known(views.release_slot), methods=["DELETE"]),
    ]
    app = Starlette(
        routes=routes,
        middleware=[Middleware(Visits), Middleware(_SafeHeaders)],
        exception_handlers={HoldfastError: refuse_ours, HTTPException: refuse_http, Exception: refuse_bug},
    )
    app.state.server = state
    app.state.bodies = BodyRoom(lambda: state.config.ingest_total_inflight_bytes)
    return app


def _known(view: View) -> View:
    """The view, for callers whose credential holds; they are in `request.state.principal`."""

    async def checked(request: Request) -> Response:
        request.state.principal = await identify(request)
        return await view(request)

    return checked


async def _openapi(_request: Request) -> Response:
    return as_json(OPENAPI)


class _SafeHeaders:
    """Adds the headers that make browsers careful."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def send_with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                for name, value in SAFE_HEADERS.items():
                    headers.setdefault(name, value)
            await send(message)

        await self._app(scope, receive, send_with_headers)
