"""Events of a channel as JSON rows, for people: `GET /api/v1/channels/{channel}/events`.

Promise: an answer has at most `limit` rows and about `ANSWER_BYTES_MAX` of JSON; texts and binary values longer than
`VALUE_CHARS_MAX` are cut, with their length beside them. Programs ask for an Arrow stream (streaming.py) instead.
"""

from __future__ import annotations

from itertools import islice

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from holdfast.config.values import whole_number
from holdfast.model.jsonvalues import as_json_value
from holdfast.server.admin.caller import on_thread, server_of
from holdfast.server.admin.envelope import Refused, answer, page_of
from holdfast.server.admin.streaming import stream_events, wants_stream
from holdfast.server.admin.views import visible_channel
from holdfast.store.store import Store

SYSTEM = ("_seq", "_committed_id", "_ingested_at")
ROWS_MAX = 100
ANSWER_BYTES_MAX = 1 << 20
VALUE_CHARS_MAX = 4096


async def read_events(request: Request) -> Response:
    """`GET /api/v1/channels/{channel}/events`: from `from_seq` on; without it, the last ones."""
    if wants_stream(request):
        return await stream_events(request)
    page, store, name = page_of(request, "from_seq"), server_of(request).store, visible_channel(request)
    limit = min(page.limit, ROWS_MAX)
    text = page.after or request.query_params.get("from_seq", "")
    from_seq = whole_number(text)
    if text and from_seq is None:
        raise Refused(400, "bad_parameter", "from_seq is a whole number", where={"parameter": "from_seq"})
    rows = await on_thread(_rows, store, name, from_seq, limit + 1)
    chosen = _bounded(rows[:limit])
    more = page.next_page(str(rows[len(chosen)]["_seq"])) if len(rows) > len(chosen) else None
    return answer(chosen, next_page=more)


def _rows(store: Store, channel: str, from_seq: int | None, limit: int) -> list[dict[str, object]]:
    facts = store.listing.channel(channel)
    start = max(facts.first_seq, facts.last_seq - limit + 2) if from_seq is None else max(from_seq, 1)
    if start > facts.last_seq:
        return []
    batches = store.read(channel, start=start, end=facts.last_seq, system=SYSTEM)
    return list(islice((row for batch in batches for row in batch.slice(0, limit).to_pylist()), limit))


def _bounded(rows: list[dict[str, object]]) -> list[dict[str, object]]:
    """As many rows as an answer may have, with values that JSON can say; at least one."""
    chosen: list[dict[str, object]] = []
    size = 0
    for row in rows:
        plain = {name: as_json_value(value, longest=VALUE_CHARS_MAX) for name, value in row.items()}
        size += len(msgspec.json.encode(plain))
        if chosen and size > ANSWER_BYTES_MAX:
            break
        chosen.append(plain)
    return chosen
