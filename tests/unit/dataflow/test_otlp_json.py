"""OTLP's JSON: the same requests as in protobuf, and errors that name the place."""

from __future__ import annotations

import base64
import json
import re

import pytest
from google.protobuf import json_format  # type: ignore[import-untyped]

from holdfast.errors import WireError
from holdfast.wire.otlp.answers import Answer, Refusal, retry_delay_s, status, status_json, success, success_json
from holdfast.wire.otlp.jsontext import to_protobuf
from holdfast.wire.otlp.signals import Signal
from tests.unit.dataflow.otlp_samples import sample

SIGNALS = pytest.mark.parametrize("signal", list(Signal), ids=lambda signal: signal.value)
_BASE64_ID = re.compile(r'"(traceId|spanId|parentSpanId)": "([^"]+)"')


def otlp_json(message: object) -> str:
    """A message as OTLP writes it: protobuf's JSON with ids in hex."""
    text = json_format.MessageToJson(message, use_integers_for_enums=True)
    return _BASE64_ID.sub(lambda m: f'"{m[1]}": "{base64.b64decode(m[2]).hex()}"', text)


@SIGNALS
def test_json_gives_the_message_that_protobuf_gives(signal: Signal) -> None:
    message = sample(signal)
    assert signal.request.FromString(to_protobuf(signal, otlp_json(message).encode())) == message


def test_upper_case_hex_and_numbers_for_texts_are_taken() -> None:
    record = {"timeUnixNano": 1700000000000000000, "traceId": "5B8EFFF798038103D269B633813FC60C", "unknown": {"x": 1}}
    text = json.dumps({"resourceLogs": [{"scopeLogs": [{"logRecords": [record]}]}]})
    found = Signal.LOGS.request.FromString(to_protobuf(Signal.LOGS, text.encode()))
    log = found.resource_logs[0].scope_logs[0].log_records[0]
    assert log.time_unix_nano == 1700000000000000000
    assert log.trace_id.hex() == "5b8efff798038103d269b633813fc60c"


def test_a_zero_in_a_choice_of_values_is_kept() -> None:
    text = {
        "resourceMetrics": [{"scopeMetrics": [{"metrics": [{"name": "n", "gauge": {"dataPoints": [{"asInt": "0"}]}}]}]}]
    }
    found = Signal.METRICS.request.FromString(to_protobuf(Signal.METRICS, json.dumps(text).encode()))
    point = found.resource_metrics[0].scope_metrics[0].metrics[0].gauge.data_points[0]
    assert point.WhichOneof("value") == "as_int"


@pytest.mark.parametrize(
    ("record", "place", "reason"),
    [
        ({"traceId": "xyz"}, "traceId", "is not hex"),
        ({"timeUnixNano": "soon"}, "timeUnixNano", "is not a whole number"),
        ({"timeUnixNano": -1}, "timeUnixNano", "is outside"),
        ({"severityNumber": "INFO"}, "severityNumber", "is not a whole number"),
        ({"attributes": {}}, "attributes", "is not a list"),
        ({"body": "text"}, "body", "is not an object"),
        ({"body": {"boolValue": 1}}, "body.boolValue", "is not true or false"),
        ({"body": {"bytesValue": "*"}}, "body.bytesValue", "is not base64"),
        ({"body": {"doubleValue": "much"}}, "body.doubleValue", "is not a number"),
    ],
)
def test_a_bad_value_is_named_with_its_place(record: dict[str, object], place: str, reason: str) -> None:
    text = json.dumps({"resourceLogs": [{"scopeLogs": [{"logRecords": [record]}]}]})
    with pytest.raises(WireError) as caught:
        to_protobuf(Signal.LOGS, text.encode())
    assert caught.value.place == f"resourceLogs.scopeLogs.logRecords.{place}"
    assert reason in caught.value.reason


@pytest.mark.parametrize("text", [b"", b"[]", b"{", b"\xff", b'"x"', b"[" * 100_000])
def test_what_is_not_json_is_a_wire_error(text: bytes) -> None:
    with pytest.raises(WireError):
        to_protobuf(Signal.LOGS, text)


def test_values_that_are_nested_too_deep_are_refused() -> None:
    value: dict[str, object] = {"stringValue": "x"}
    for _ in range(200):
        value = {"arrayValue": {"values": [value]}}
    text = json.dumps({"resourceLogs": [{"scopeLogs": [{"logRecords": [{"body": value}]}]}]})
    with pytest.raises(WireError, match="nested deeper"):
        to_protobuf(Signal.LOGS, text.encode())


@SIGNALS
def test_a_partial_success_says_how_many_were_refused(signal: Signal) -> None:
    answer = Answer(None, "because", refused=3)
    response = signal.response.FromString(success(signal, answer))
    assert getattr(response.partial_success, signal.rejected_field) == 3
    assert response.partial_success.error_message == "because"
    assert json_format.Parse(success_json(signal, answer), signal.response()) == response


@SIGNALS
def test_a_full_success_is_an_empty_answer(signal: Signal) -> None:
    assert (success(signal, Answer()), success_json(signal, Answer())) == (b"", b"{}")


@pytest.mark.parametrize("delay_s", [0.25, 1.0, 90.5])
def test_a_refusal_carries_its_code_and_when_to_come_again(delay_s: float) -> None:
    answer = Answer(Refusal.LATER, "full", retry_after_s=delay_s)
    assert retry_delay_s(status(answer)) == pytest.approx(delay_s)
    found = json.loads(status_json(answer))
    assert (found["code"], found["message"]) == (14, "full")
    assert found["details"][0]["retryDelay"] == f"{delay_s:.3f}s"


def test_a_refusal_for_good_carries_no_hint() -> None:
    answer = Answer(Refusal.BAD, "broken")
    assert retry_delay_s(status(answer)) is None
    assert "details" not in json.loads(status_json(answer))
