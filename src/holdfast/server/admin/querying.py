"""How Spark queries are doing: they tell it, and people read it.

A query may be told of by whoever may `consume` the channels it names, and is shown to whoever sees all of them and to
administrators of the server.
"""

from __future__ import annotations

from typing import Annotated

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from holdfast.errors import BadRequest
from holdfast.server.access import Principal
from holdfast.server.admin.bodies import json_body
from holdfast.server.admin.caller import caller_of, server_of
from holdfast.server.admin.envelope import answer
from holdfast.server.admin.views import sees
from holdfast.server.queries import QueryNews

NAME_CHARS_MAX = 255
BODY_BYTES_MAX = 1 << 15
"""Room for the longest list of channels that is allowed, and bounded memory for all queries together."""

Count = Annotated[int, msgspec.Meta(ge=0, le=(1 << 63) - 1)]
Measure = Annotated[float, msgspec.Meta(ge=0)]
Channel = Annotated[str, msgspec.Meta(min_length=1, max_length=255)]


class Told(msgspec.Struct, forbid_unknown_fields=True):
    """The body of `POST /api/v1/queries/{query}`."""

    channels: Annotated[list[Channel], msgspec.Meta(min_length=1, max_length=100)]
    batch: Annotated[int, msgspec.Meta(ge=-1, le=(1 << 63) - 1)] = -1
    rows: Count = 0
    rows_per_s: Measure = 0.0
    behind: Count = 0
    batch_s: Measure = 0.0
    error: Annotated[str, msgspec.Meta(max_length=500)] = ""


async def tell_query(request: Request) -> Response:
    """`POST /api/v1/queries/{query}`."""
    state, caller, name = server_of(request), caller_of(request), request.path_params["query"]
    if len(name) > NAME_CHARS_MAX or not name.isprintable():
        raise BadRequest(f"the name of a query has 1 to {NAME_CHARS_MAX} printable characters")
    told = await json_body(request, Told, bytes_max=BODY_BYTES_MAX)
    for channel in told.channels:
        caller.require("consume", channel)
    news = QueryNews(
        name,
        caller.name,
        tuple(told.channels),
        batch=told.batch,
        rows=told.rows,
        rows_per_s=told.rows_per_s,
        behind=told.behind,
        batch_s=told.batch_s,
        error=told.error,
        at_ns=state.clock.wall_ns(),
    )
    state.queries.tell(news)
    return answer(facts_of(news))


async def list_queries(request: Request) -> Response:
    """`GET /api/v1/queries`: by name, all at once, since few are kept."""
    caller = caller_of(request)
    return answer([facts_of(item) for item in server_of(request).queries.current() if may_see(caller, item)])


def may_see(caller: Principal, news: QueryNews) -> bool:
    """Whether a query is shown to a caller."""
    return caller.may("admin") or all(sees(caller, channel) for channel in news.channels)


def facts_of(news: QueryNews) -> dict[str, object]:
    """A query as JSON has it."""
    return {
        "name": news.name,
        "principal": news.principal,
        "channels": news.channels,
        "batch": news.batch,
        "rows": news.rows,
        "rows_per_s": news.rows_per_s,
        "behind": news.behind,
        "batch_s": news.batch_s,
        "error": news.error,
        "at_ns": news.at_ns,
    }
