"""The OpenTelemetry client of the demo: `python -m holdfast.cli.demo.otlpsource URL REQUESTS_PER_SECOND`.

It exports log records over OTLP/HTTP until its standard input ends, and tells its parent in the lines of producer.py. A
request that is not answered is sent again with the same idempotency key, as clients of OTLP do, until it is accepted:
`published` and `acked` are the same moment here.
"""

from __future__ import annotations

import http.client
import os
import sys
import threading
from urllib.parse import urlsplit

from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceRequest
from opentelemetry.proto.common.v1.common_pb2 import AnyValue, KeyValue

from holdfast.cli.demo.events import LOGS, SERVICE, make_frame
from holdfast.cli.demo.producer import Acked, Closed, Opened, Published, end_of_input, tell

TIMEOUT_S = 10.0
RETRY_S = 0.25


def main(url: str, requests_per_second: float) -> None:
    """Export until standard input ends."""
    stop, pause, run_id = end_of_input(), threading.Event(), os.urandom(8).hex()
    tell(Opened(os.getpid(), -1, -1))
    number = -1
    while not stop.wait(1 / requests_per_second):
        number += 1
        body = make_request(number)
        while not _is_accepted(url, body, key=f"{run_id}-{number}"):
            pause.wait(RETRY_S)
        tell(Published(number))
        tell(Acked(number))
    tell(Closed(number))


def make_request(number: int) -> bytes:
    """The log records of a frame, as a client of OpenTelemetry sends them."""
    request = ExportLogsServiceRequest()
    found = request.resource_logs.add()
    found.resource.attributes.append(KeyValue(key="service.name", value=AnyValue(string_value=SERVICE)))
    records = found.scope_logs.add().log_records
    frame = make_frame(LOGS, number)
    times = frame.column("time").cast("int64").to_pylist()
    for row, time_ns in zip(frame.to_pylist(), times, strict=True):
        records.add(
            time_unix_nano=time_ns,
            severity_number=row["severity_number"],
            severity_text=row["severity_text"],
            body=AnyValue(string_value=row["body"]),
        )
    data: bytes = request.SerializeToString()
    return data


def _is_accepted(url: str, body: bytes, *, key: str) -> bool:
    connection = http.client.HTTPConnection(urlsplit(url).netloc, timeout=TIMEOUT_S)
    try:
        headers = {"Content-Type": "application/x-protobuf", "Idempotency-Key": key}
        connection.request("POST", "/v1/logs", body, headers)
        return connection.getresponse().status == 200
    except (OSError, http.client.HTTPException):
        return False
    finally:
        connection.close()


if __name__ == "__main__":
    main(sys.argv[1], float(sys.argv[2]))
