"""Events over HTTP: stored as a whole with their positions, or refused with the place."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.errors import HoldfastError
from holdfast.server.admin.envelope import Refused
from holdfast.server.admin.events import _read_arrow
from holdfast.server.admin.jsonrows import BODY_BYTES_MAX, COLUMNS_MAX, DEPTH_MAX, check_shape, read_rows
from holdfast.wire.limits import FrameLimits
from tests.unit.server.admin.running import ARROW, JSON, LOOP_THREAD, NDJSON, Running, batch, stream
from tests.unit.server.watched import WatchedFilesystem

NOTHING = pa.schema([])


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Running]:
    with Running(tmp_path) as running:
        yield running


def rows_of(server: Running, channel: str) -> list[dict[str, object]]:
    return [row for found in server.store.read(channel) for row in found.to_pylist()]


# -- what is stored ---------------------------------------------------------------------------------------------------


def test_rows_are_stored_and_their_positions_answered(server: Running) -> None:
    rows = [{"a": 1, "b": "x", "c": {"d": [1, 2]}}, {"a": 2, "b": None, "c": None}]
    answer = server.post("trades", "\n".join(map(json.dumps, rows)).encode())
    assert answer.data == {
        "channel": "trades",
        "events": 2,
        "first_seq": 1,
        "last_seq": 2,
        "first_committed_id": 1,
        "duplicate": False,
        "durability": "synced",
    }
    assert rows_of(server, "trades") == rows
    again = server.post("trades", json.dumps(rows, indent=2).encode(), JSON).data
    assert (again["first_seq"], again["last_seq"]) == (3, 4)
    assert rows_of(server, "trades") == rows + rows


def test_an_arrow_stream_is_stored_as_it_is(server: Running) -> None:
    answer = server.post("t", stream(batch(3), batch(2, start=3)), ARROW)
    assert (answer.data["first_seq"], answer.data["last_seq"]) == (1, 5)
    assert [row["n"] for row in rows_of(server, "t")] == [0, 1, 2, 3, 4]


@pytest.mark.guarantee("G3")
def test_a_repeat_with_the_same_key_stores_nothing(server: Running) -> None:
    headers = {**NDJSON, "Idempotency-Key": "order-17"}
    first = server.post("t", b'{"n": 1}', headers).data
    second = server.post("t", b'{"n": 1}', headers).data
    assert (first["duplicate"], second["duplicate"]) == (False, True)
    assert {**second, "duplicate": False} == first
    assert server.post("u", b'{"n": 1}', headers).data["duplicate"] is False
    assert server.post("t", b'{"n": 1}', {**NDJSON, "Idempotency-Key": "order-18"}).data["duplicate"] is False
    assert len(rows_of(server, "t")) == 2


@pytest.mark.guarantee("G3")
def test_a_key_that_was_used_for_other_events_is_refused(tmp_path: Path) -> None:
    headers = {**NDJSON, "Idempotency-Key": "order-17"}
    for _ in range(2):  # also by a server that has only the log to tell from
        with Running(tmp_path) as server:
            server.post("t", b'{"n": 1}\n{"n": 2}', headers)
            for body in (b'{"n": 1}\n{"n": 3}', b'{"n": 1}', b'{"n": 1}\n{"n": 2, "m": 1}'):
                answer = server.post("t", body, headers)
                assert (answer.status, answer.error["code"]) == (422, "idempotency_key_reused")
                assert "2 other events from seq 1 on" in answer.error["message"]
            assert server.post("t", b'{"n":1}{"n":2}', headers).data["duplicate"] is True
            assert [row["n"] for row in rows_of(server, "t")] == [1, 2]


def test_a_repeat_is_known_when_its_channel_has_grown_or_lost_it(server: Running) -> None:
    headers = {**ARROW, "Idempotency-Key": "k"}
    columns = {"x": pa.array([1.5, float("nan"), None], pa.float32()), "l": pa.array([[1], None, []])}
    body = stream(pa.record_batch(columns))
    assert server.post("t", body, headers).data["duplicate"] is False
    assert server.post("t", b'{"x": 1e300, "more": "y"}').status == 200
    assert server.post("t", body, headers).data["duplicate"] is True
    other = {**columns, "x": pa.array([1.5, float("nan"), 2.0], pa.float32())}
    assert server.post("t", stream(pa.record_batch(other)), headers).status == 422
    server.store.flush()
    server.store.remove_channel("t")
    assert server.post("t", body, headers).data["duplicate"] is True


@pytest.mark.guarantee("G3")
@pytest.mark.parametrize("kind", [pa.string_view(), pa.binary_view(), pa.list_(pa.string_view())], ids=str)
def test_a_repeat_of_views_is_answered_as_any_other(server: Running, kind: pa.DataType) -> None:
    value = ["a" * 30] if pa.types.is_list(kind) else "a" * 30
    headers = {**ARROW, "Idempotency-Key": "k"}
    body = stream(pa.record_batch({"s": pa.array([value, None, value], kind)}))
    assert [server.post("t", body, headers).data["duplicate"] for _ in range(2)] == [False, True]
    assert server.post("t", stream(pa.record_batch({"s": pa.array([None, None, value], kind)})), headers).status == 422


def test_a_frame_of_a_slot_is_recognised_for_ever(server: Running) -> None:
    frame = {**NDJSON, "X-Holdfast-Slot-Id": "0f" * 16, "X-Holdfast-First-Fsn": "7"}
    first = server.post("t", b'{"n": 1}', frame).data
    server.store.flush()
    again = server.post("t", b'{"n": 1}', frame).data
    assert (first["duplicate"], again["duplicate"]) == (False, True)
    assert (again["first_seq"], again["events"]) == (first["first_seq"], 1)
    assert server.post("t", b'{"n": 2}', {**frame, "X-Holdfast-First-Fsn": "8"}).data["duplicate"] is False


@pytest.mark.parametrize(
    "headers",
    [
        {"X-Holdfast-Slot-Id": "0f" * 16},
        {"X-Holdfast-Slot-Id": "word", "X-Holdfast-First-Fsn": "1"},
        {"X-Holdfast-Slot-Id": "0f" * 16, "X-Holdfast-First-Fsn": "1", "Idempotency-Key": "k"},
    ],
)
def test_half_a_slot_or_two_identities_are_refused(server: Running, headers: dict[str, str]) -> None:
    assert server.post("t", b'{"n": 1}', {**NDJSON, **headers}).status == 400


@pytest.mark.guarantee("G12")
def test_a_key_of_one_principal_is_not_that_of_another(server: Running) -> None:
    one, two = server.token("one"), server.token("two")
    key = {**NDJSON, "Idempotency-Key": "k"}
    assert [server.post("t", b'{"n": 1}', {**key, **who}).data["duplicate"] for who in (one, two, one)] == [
        False,
        False,
        True,
    ]


def test_values_are_read_as_the_channel_has_them(server: Running) -> None:
    schema = pa.schema([("n", pa.int8()), ("at", pa.timestamp("us")), ("s", pa.string())])
    made = pa.record_batch([pa.array([1], pa.int8()), pa.array([0], pa.timestamp("us")), pa.array(["x"])], schema)
    server.store.commit("t", made)
    answer = server.post("t", b'{"n": 5, "at": "2026-01-02T03:04:05", "s": "2026-01-02"}')
    assert answer.status == 200, answer.body
    assert server.store.schema("t") == schema
    assert rows_of(server, "t")[1]["s"] == "2026-01-02"


def test_times_that_come_one_after_the_other_share_a_column(server: Running) -> None:
    for text in ("2024-01-01T10:00:00Z", "2024-01-01T10:00:00.5Z", "2024-01-01T12:00:00+02:00"):
        answer = server.post("t", json.dumps({"t": text}).encode())
        assert answer.status == 200, answer.body
    assert server.store.schema("t").field("t").type == pa.timestamp("us", "UTC")
    error = server.post("t", b'{"t": "2024-01-01T10:00:00"}').error
    assert error["code"] == "schema_mismatch"
    assert error["where"] == {"channel": "t", "column": "t", "row": 1}
    assert len(rows_of(server, "t")) == 3


def test_a_number_too_large_for_the_channel_widens_it(server: Running) -> None:
    server.store.commit("t", pa.record_batch({"n": pa.array([1], pa.int8())}))
    assert server.post("t", b'{"n": 1}\n{"n": 300}').status == 200
    assert server.store.schema("t").field("n").type == pa.int64()


def test_new_columns_join_and_empty_ones_do_not(server: Running) -> None:
    server.post("t", b'{"a": 1}')
    assert server.post("t", b'{"a": 2, "b": "x", "c": null}').status == 200
    assert server.store.schema("t").names == ["a", "b"]


# -- what is refused --------------------------------------------------------------------------------------------------

BAD_BODIES = [
    (b'{"a": 1}\n{"a": tru}', "bad_json", {"row": 2}),
    (b'{"a": 1}\n{"a": "x"}', "bad_json", {"row": 2, "column": "a"}),
    (b'{"a": 1', "bad_json", {"row": 1}),
    (b"[1, 2]", "bad_json", {"row": 1}),
    (b'"text"', "bad_json", {"row": 1}),
    (b"\n\n", "invalid_batch", {}),
    (b"{}", "invalid_batch", {}),
    (b'{"a": null}', "invalid_batch", {}),
    (b'{"a": []}', "bad_json", {"column": "a"}),
    (b'{"a": 1}\n{"b": {"c": [null, null]}}', "bad_json", {"column": "b"}),
    (b"\xff\xfe", "bad_json", {"row": 1}),
    (b'{"a":' * 40 + b"1" + b"}" * 40, "bad_json", {}),
]


@pytest.mark.parametrize(("body", "code", "where"), BAD_BODIES, ids=[str(body[:12]) for body, _, _ in BAD_BODIES])
def test_bad_rows_are_refused_with_their_place(
    server: Running, body: bytes, code: str, where: dict[str, object]
) -> None:
    answer = server.post("t", body)
    assert answer.status == 400, answer.body
    assert answer.error["code"] == code
    assert where.items() <= (answer.error["where"] or {}).items()
    assert server.store.channels() in ([], ["t"])
    assert server.store.statistics().events == 0


def test_a_value_that_does_not_fit_names_row_and_column(server: Running) -> None:
    server.post("t", b'{"a": 1, "b": 1}')
    error = server.post("t", b'{"a": 1, "b": 1}\n{"a": 2, "b": 2}\n{"a": 3, "b": "x"}\n').error
    assert error["where"] == {"channel": "t", "row": 3, "column": "b"}
    error = server.post("t", b'{"a": 1, "b": 1}\n{"a": 2.5, "b": 2}\n').error
    assert error["code"] == "schema_mismatch"
    assert error["where"] == {"channel": "t", "row": 2, "column": "a"}
    assert server.store.statistics().events == 1


@pytest.mark.parametrize("body", [b"x", b"[", b'{"a": 1}', b"[1, 2]", b"[[]]", b"[]", b"[" * 1_000_000])
def test_a_body_that_is_no_array_of_rows_is_refused(server: Running, body: bytes) -> None:
    assert server.post("t", body, JSON).status == 400


def test_a_body_that_is_no_arrow_stream_is_refused(server: Running) -> None:
    good = stream(batch(10))
    for bad in (b"x", good[:-1], good[:100], good[8:], b"\xff" * 100, good + good):
        answer = server.post("t", bad, ARROW)
        assert answer.status == 400, bad[:20]
        assert answer.error["code"] in ("wire_error", "bad_arrow", "invalid_batch")
    assert server.store.statistics().events == 0


@pytest.mark.guarantee("G11")
@given(st.integers(0, 10_000), st.integers(1, 255), st.booleans())
def test_any_change_to_an_arrow_stream_is_a_batch_or_a_refusal(at: int, bits: int, cut: bool) -> None:
    text = pa.array(["x", None, "yy"] * 5).dictionary_encode()
    body = bytearray(stream(pa.record_batch({"n": pa.array(range(15)), "s": text, "l": pa.array([[1], None, []] * 5)})))
    body[at % len(body)] ^= bits
    image = bytes(body[: at % len(body)] if cut else body)
    try:
        found = _read_arrow(image, "c", None, FrameLimits())  # type: ignore[arg-type]
    except (Refused, HoldfastError):
        return
    assert isinstance(found, pa.RecordBatch)


def test_other_media_types_are_refused(server: Running) -> None:
    for kind in ("text/plain", "application/x-www-form-urlencoded", "multipart/form-data", ""):
        answer = server.post("t", b"{}", {"Content-Type": kind})
        assert (answer.status, answer.error["code"]) == (415, "unsupported_media_type")


def test_a_name_that_is_no_channel_is_refused(server: Running) -> None:
    for name in ("..", "a%20b", "-x", "x" * 200, "con"):
        answer = server.post(name, b'{"a": 1}')
        assert answer.status in (400, 404), name
    assert server.store.channels() == []


def test_an_empty_body_and_an_empty_key_are_refused(server: Running) -> None:
    assert server.post("t", b"").error["code"] == "empty_body"
    assert server.post("t", b'{"a": 1}', {**NDJSON, "Idempotency-Key": "k" * 256}).status == 400


def test_a_body_above_the_limit_is_refused_before_it_is_read(tmp_path: Path) -> None:
    with Running(tmp_path, {"ingest.max_batch_size": "4KiB"}) as server:
        answer = server.post("t", b'{"a": "%s"}' % (b"x" * 4096))
        assert (answer.status, answer.error["code"]) == (413, "too_large")
        chunked = server.ask(
            "POST",
            "/api/v1/channels/t/events",
            headers=NDJSON,
            body=iter([b'{"a": "%s"}\n' % (b"x" * 2048)] * 3),  # type: ignore[arg-type]  # sent in chunks
        )
        assert (chunked.status, chunked.error["code"]) == (413, "too_large")


@pytest.mark.guarantee("G11")
def test_a_full_store_is_told_with_when_to_come_back(tmp_path: Path) -> None:
    small = {
        "memory_limit": "64KiB",
        "segment.target_size": "64KiB",
        "wal.rotation_size": "64KiB",
        "wal.max_size": "1MiB",
        "frame.max_size": "32KiB",
        "retention.size_cap": "2MiB",
        "segment.max_open_duration": "10ms",
    }
    limits = {"ingest.max_batch_size": "32KiB", "ingest.write_deadline": "20ms"}
    with Running(tmp_path, limits, store=small) as server:
        server.store.subscriber("slow", ["t"]).close()
        body = b'{"a": "%s"}' % (b"x" * 30_000)
        answers = (server.post("t", body) for _ in range(500))
        refused = next(answer for answer in answers if answer.status != 200)
        assert (refused.status, refused.error["code"]) == (503, "backpressure")
        assert int(refused.headers["retry-after"]) >= 1
        assert refused.error["where"]["bound"] in ("retention.size_cap", "memory_limit", "wal.max_size")


@pytest.mark.guarantee("G11")
def test_a_principal_above_its_rate_is_told_to_wait(tmp_path: Path) -> None:
    with Running(tmp_path, {"limits": {"*": {"bytes_per_second": 10}}}) as server:
        assert server.post("t", b'{"a": "%s"}' % (b"x" * 10_000)).status == 200
        refused = server.post("t", b'{"a": "x"}')
        assert (refused.status, refused.error["code"]) == (429, "quota_reached")
        assert int(refused.headers["retry-after"]) > 100


def test_a_server_that_stops_or_is_no_primary_takes_nothing(tmp_path: Path) -> None:
    with Running(tmp_path, {"server.role": "replica"}) as server:
        assert server.post("t", b'{"a": 1}').error["code"] == "not_primary"
    with Running(tmp_path) as server:
        server.state.draining = True
        refused = server.post("t", b'{"a": 1}')
        assert (refused.status, refused.error["code"]) == (503, "draining")


# -- bounds before arrow ----------------------------------------------------------------------------------------------


@pytest.mark.guarantee("G11")
@pytest.mark.parametrize(
    ("body", "status"),
    [
        (b'{"a":' * (DEPTH_MAX + 1), 400),
        (b'{"a":' + b"[" * DEPTH_MAX, 400),
        (b"}" * 1000 + b'{"a":' * (DEPTH_MAX + 1), 400),
        (b'{"a":"\\"",' + b'"b":' + b"[" * DEPTH_MAX, 400),
        (b'{"a":"\\\\",' + b'"b":' + b"[" * DEPTH_MAX, 400),
        (b"\n".join(b'{"k%d":1}' % n for n in range(COLUMNS_MAX + 1)), 400),
        (b"{" + b",".join(b'"k%d":1' % n for n in range(1000)) + b"}" + b"{}" * 10_000, 413),
        (b" " * (BODY_BYTES_MAX + 1), 413),
    ],
)
def test_rows_that_would_need_too_much_are_refused(body: bytes, status: int) -> None:
    with pytest.raises(Refused) as caught:
        check_shape(body)
    assert caught.value.status_code == status


@pytest.mark.parametrize(
    "body",
    [b'{"a":"%s"}' % (b"[{" * 100), b'{"a":"\\"%s"}' % (b"{" * 100), b'{"\\\\":"{{{"}' * 50, b'{"a":[[]]}' * 99, b""],
)
def test_brackets_in_texts_are_no_nesting(body: bytes) -> None:
    check_shape(body)


JSON_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**53), 2**53) | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text('ab\\"{[:', min_size=1, max_size=2), inner, max_size=3)
    ),
    max_leaves=8,
)


@given(
    st.lists(st.dictionaries(st.sampled_from("abc"), JSON_VALUES), max_size=4),
    st.binary(max_size=5),
    st.integers(0, 99),
)
def test_any_body_is_a_batch_or_a_refusal(rows: list[dict[str, object]], junk: bytes, at: int) -> None:
    body = "\n".join(map(json.dumps, rows)).encode()
    for text in (body, body[:at], body[:at] + junk + body[at:]):
        try:
            found = read_rows(text, channel="c", schema=NOTHING)
        except (Refused, HoldfastError):
            continue
        found.validate(full=True)
        if text == body:
            assert [without_nulls(row) for row in found.to_pylist()] == [without_nulls(row) for row in rows]


def without_nulls(value: object) -> object:
    """Objects without members that are null: a column cannot tell them from members that are not there."""
    if isinstance(value, dict):
        return {key: without_nulls(inner) for key, inner in value.items() if inner is not None}
    return [without_nulls(inner) for inner in value] if isinstance(value, list) else value


def test_nulls_at_the_head_of_a_list_are_kept() -> None:
    found = read_rows(b'{"a": [null, 1], "b": [[null, "x"], null]}', channel="c", schema=NOTHING)
    assert found.to_pylist() == [{"a": [None, 1], "b": [[None, "x"], None]}]


@pytest.mark.guarantee("G11")
def test_slots_and_channels_of_a_caller_are_noted_beside_the_loop(tmp_path: Path) -> None:
    disk = WatchedFilesystem()
    with Running(tmp_path, {"limits": {"app": {"channels": 2}}}, access_filesystem=disk) as server:
        token = server.token("app")
        disk.touched_by.clear()
        slot = {"X-Holdfast-Slot-Id": "01020304-0506-0708-090a-0b0c0d0e0f10", "X-Holdfast-First-Fsn": "0"}
        assert server.post("trades", b'{"n": 1}', NDJSON | token | slot).status == 200
        assert server.post("quotes", b'{"n": 1}', NDJSON | token).status == 200
        assert disk.touched_by
        assert LOOP_THREAD not in disk.touched_by
