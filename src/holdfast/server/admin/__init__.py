"""The admin HTTP server: health, metrics, what the store holds, segment files, events from curl.

    /healthz  /readyz  /metrics  /api/v1/…  ──►  app: who is calling ──►  a view ──►  the store, on a thread

Promise: one JSON envelope for everything under `/api/v1`: `{"data": …, "next": …}` or `{"error": {"code", "message",
"where"}}`. Pages are bounded. Nothing that waits for the disk runs on the event loop. The OpenAPI document describes
every route; a test compares.

| file | purpose |
|---|---|
| app.py | `build`: the routes, who may call them, headers of every answer |
| caller.py | who is calling, and what a view needs of its request |
| envelope.py | answers, errors as statuses and codes, pages |
| health.py | `/healthz`, `/readyz` |
| metrics.py | `/metrics`: what the store, the server and the gatekeeper count |
| views.py | channels, segments, subscribers, connections, slots |
| download.py | the bytes of a segment: ranges, ETag, checksum |
| reading.py | events of a channel as JSON rows, for people |
| streaming.py | events of a channel as an Arrow stream, for programs |
| events.py | events in a request body: JSON rows or an Arrow stream |
| bodies.py | the body of a request: bounded, and in time; a JSON one as a value |
| room.py | what is in memory of the bodies of all requests |
| samerows.py | whether a repeat of an `Idempotency-Key` brings the rows that are stored |
| jsonrows.py | JSON rows become a batch, column-wise |
| subscribing.py | a program registers a subscriber, confirms ranges of events, or puts it elsewhere |
| querying.py | Spark queries tell how they are doing |
| compacting.py | small segments become large ones, a bounded piece of work at a time |
| openapi.py | the OpenAPI document |
| serving.py | `serve_admin`: uvicorn as a task of the server's loop |
"""

from holdfast.server.admin.app import build
from holdfast.server.admin.serving import AdminServer, bind_admin, serve_admin

__all__ = ["AdminServer", "bind_admin", "build", "serve_admin"]
