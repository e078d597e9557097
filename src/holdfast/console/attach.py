"""The page's routes on the admin server.

The page itself is for everyone who reaches the port: it has no secrets. Without a credential the API answers it with
401, upon which it asks for one.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from importlib.resources import files

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from holdfast.console.live import Gallery, live
from holdfast.server.state import ServerState

POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self' data:; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
"""The page runs its own script and asks its own server, and nothing else."""
_ASSETS = {
    "/": ("index.html", "text/html; charset=utf-8"),
    "/console/console.js": ("console.js", "text/javascript; charset=utf-8"),
    "/console/console.css": ("console.css", "text/css; charset=utf-8"),
}


def attach(app: Starlette, state: ServerState) -> None:
    """Add the console to the admin application of a running server."""
    app.state.gallery = Gallery(state)
    for path, (name, media_type) in _ASSETS.items():
        app.router.routes.append(Route(path, _asset(name, media_type), methods=["GET"]))
    app.router.routes.append(Route("/api/v1/live", live, methods=["GET"]))


def _asset(name: str, media_type: str) -> Callable[[Request], Awaitable[Response]]:
    body = files("holdfast.console").joinpath("static", name).read_bytes()

    async def send(_request: Request) -> Response:
        return Response(body, media_type=media_type, headers={"Content-Security-Policy": POLICY})

    return send
