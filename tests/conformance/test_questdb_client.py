"""The real PyPI client `questdb` against our server: what it sends arrives, what we answer it understands."""

from __future__ import annotations

import datetime
import decimal
import errno
import ipaddress
import uuid
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from holdfast.testing import CrashFilesystem
from tests.conformance.certificates import OPENSSL, make_certificates
from tests.e2e.served import ServedProcess, free_port
from tests.unit.server.harness import PATIENCE_S, RunningServer

questdb = pytest.importorskip("questdb")

PATIENCE_MS = int(PATIENCE_S * 1000)
FAST = "reconnect_initial_backoff_millis=20;reconnect_max_backoff_millis=100;poison_min_escalation_window_millis=10;"
AT_NS = 1_700_000_000_000_000_000


@pytest.fixture(autouse=True)
def _quiet() -> Iterator[None]:
    """The client warns of many connections in a short time, which is what tests make."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        yield


def open_sender(port: int, conf: str = "", *, schema: str = "ws", host: str = "127.0.0.1", **options: Any) -> Any:
    sender = questdb.Sender.from_conf(f"{schema}::addr={host}:{port};auto_flush=off;{conf}", **options)
    sender.establish()
    return sender


def put(sender: Any, number: int, *, table: str = "trades", **columns: object) -> None:
    sender.row(table, columns={"n": number, **columns}, at=questdb.TimestampNanos(AT_NS + number))


def flush(sender: Any) -> int:
    return int(sender.flush_and_get_fsn())


def flush_and_wait(sender: Any) -> None:
    assert sender.await_acked_fsn(flush(sender), PATIENCE_MS)


def test_hello_is_acknowledged_and_stored(tmp_path: Path) -> None:
    with RunningServer(tmp_path) as running:
        sender = open_sender(running.port)
        put(sender, 1)
        flush_and_wait(sender)
        sender.close()
        assert running.rows("trades") == [1]


VALUES: dict[str, tuple[object, object]] = {
    "flag": (True, True),
    "whole": (-5, -5),
    "real": (2.5, 2.5),
    "text": ("héllo", "héllo"),
    "moment": (
        datetime.datetime(2024, 1, 2, 3, 4, 5, 678, tzinfo=datetime.UTC),
        datetime.datetime(2024, 1, 2, 3, 4, 5, 678, tzinfo=datetime.UTC),
    ),
    "nanos": (
        questdb.TimestampNanos(AT_NS + 123),
        pa.scalar(AT_NS + 123, pa.timestamp("ns", "UTC")).as_py(),
    ),
    "largest": (2**63 - 1, 2**63 - 1),
    "smallest": (-(2**63) + 1, -(2**63) + 1),
    "micros": (
        questdb.TimestampMicros(123456789),
        datetime.datetime(1970, 1, 1, 0, 2, 3, 456789, tzinfo=datetime.UTC),
    ),
    "grid": (np.array([[1.0, 2.0], [3.0, 4.0]]), [[1.0, 2.0], [3.0, 4.0]]),
    "money": (decimal.Decimal("123.456"), decimal.Decimal("123.456")),
    "id": (uuid.UUID(int=5), uuid.UUID(int=5).bytes),
    "address": (ipaddress.IPv4Address("1.2.3.4"), "1.2.3.4"),
    "letter": (questdb.Char("x"), "x"),
    "date": (questdb.DateMillis(1234567), datetime.datetime(1970, 1, 1, 0, 20, 34, 567000, tzinfo=datetime.UTC)),
    "huge": (questdb.Long256(2**200 + 7), (2**200 + 7).to_bytes(32, "big")),
    "place": (questdb.Geohash.from_string("u33d"), "u33d"),
    "raw": (b"\x00\xff", b"\x00\xff"),
}


def test_every_type_is_read_back_equal_and_null_where_none_was_sent(tmp_path: Path) -> None:
    with RunningServer(tmp_path) as running:
        sender = open_sender(running.port)
        sent = {name: value for name, (value, _) in VALUES.items()}
        sender.row("all", symbols={"symbol": "ETH"}, columns=sent, at=questdb.TimestampNanos(AT_NS + 1))
        sender.row("all", columns={"whole": 7}, at=questdb.TimestampNanos(AT_NS + 2))
        flush_and_wait(sender)
        sender.close()
        first, second = pa.Table.from_batches(running.store.read("all")).drop(["timestamp"]).to_pylist()
        assert first == {"symbol": "ETH", **{name: stored for name, (_, stored) in VALUES.items()}}
        nothing = {name: None for name in VALUES} | {"symbol": None, "whole": 7, "flag": False}  # booleans have no null
        assert second == nothing
        times = [batch.column("timestamp").cast(pa.int64()).to_pylist() for batch in running.store.read("all")]
        assert [time for part in times for time in part] == [AT_NS + 1, AT_NS + 2]


def test_rows_without_a_time_get_the_servers(tmp_path: Path) -> None:
    with RunningServer(tmp_path) as running:
        before_us = running.clock.wall_ns() // 1000
        sender = open_sender(running.port)
        sender.row("trades", columns={"n": 1}, at=questdb.ServerTimestamp)
        flush_and_wait(sender)
        sender.close()
        (batch,) = running.store.read("trades")
        assert before_us <= batch.column("timestamp").cast(pa.int64())[0].as_py() <= running.clock.wall_ns() // 1000


def test_thousand_frames_arrive_in_order(tmp_path: Path) -> None:
    with RunningServer(tmp_path) as running:
        sender = open_sender(running.port)
        for number in range(1000):
            put(sender, number)
            flush(sender)
        assert sender.await_acked_fsn(sender.published_fsn(), PATIENCE_MS)
        assert sender.acked_fsn() == 999
        sender.close()
        assert running.rows("trades") == list(range(1000))


def test_symbols_are_kept_across_frames_and_tables(tmp_path: Path) -> None:
    with RunningServer(tmp_path) as running:
        sender = open_sender(running.port)
        for number in range(50):
            for table in ("trades", "quotes"):
                sender.row(
                    table,
                    symbols={"pair": f"pair-{number % 7}", "side": "buy" if number % 2 else "sell"},
                    columns={"n": number},
                    at=questdb.TimestampNanos(AT_NS + number),
                )
            flush(sender)
        assert sender.await_acked_fsn(sender.published_fsn(), PATIENCE_MS)
        sender.close()
        for table in ("trades", "quotes"):
            rows = [
                row for batch in running.store.read(table, columns=["pair", "side", "n"]) for row in batch.to_pylist()
            ]
            assert rows == [{"pair": f"pair-{n % 7}", "side": "buy" if n % 2 else "sell", "n": n} for n in range(50)]


def test_columns_that_come_later_are_null_before(tmp_path: Path) -> None:
    with RunningServer(tmp_path) as running:
        sender = open_sender(running.port)
        put(sender, 1)
        flush_and_wait(sender)
        put(sender, 2, more="x")
        flush_and_wait(sender)
        sender.close()
        assert running.rows("trades", "more") == [None, "x"]


def test_dedup_keys_make_repeats_of_this_client_harmless(tmp_path: Path) -> None:
    store = {"channels": {"trades": {"dedup_keys": "timestamp, pair"}}}
    with RunningServer(tmp_path, store=store) as running:
        for _ in range(2):  # as after a lost answer: the same rows again, on a new connection
            sender = open_sender(running.port)
            for number in range(10):
                sender.row(
                    "trades",
                    symbols={"pair": "ETH" if number % 2 else "BTC"},
                    columns={"n": number},
                    at=questdb.TimestampNanos(AT_NS + number // 2),
                )
                flush(sender)
            assert sender.await_acked_fsn(sender.published_fsn(), PATIENCE_MS)
            sender.close()
        assert running.rows("trades") == list(range(10))


# -- refusals ---------------------------------------------------------------------------------------------------------


def refused(sender: Any) -> Any:
    """The structured error that ends a sender."""
    sender.flush()
    with pytest.raises(questdb.QuestDBServerRejectionError) as caught:
        poll_until_it_raises(sender)
    return caught.value.sender_error


def poll_until_it_raises(sender: Any) -> None:
    for _ in range(PATIENCE_MS // 100):
        sender.await_acked_fsn(1 << 40, 100)
        sender.flush()


def close_quietly(sender: Any) -> None:
    """A sender that was refused may complain once more when it is closed."""
    try:
        sender.close()
    except questdb.QuestDBError:
        return


def test_schema_mismatch_ends_the_sender_with_channel_and_column(tmp_path: Path) -> None:
    with RunningServer(tmp_path) as running:
        sender = open_sender(running.port)
        put(sender, 1)
        flush_and_wait(sender)
        close_quietly(sender)
        sender = open_sender(running.port, FAST)
        sender.row("trades", columns={"n": "text"}, at=questdb.TimestampNanos(AT_NS))
        error = refused(sender)
        assert error.category == questdb.SenderErrorCategory.SchemaMismatch
        assert error.applied_policy == questdb.SenderErrorPolicy.Terminal
        assert "'trades'" in error.message
        assert "'n'" in error.message
        close_quietly(sender)
        assert running.rows("trades") == [1]


def test_security_error_ends_the_sender(tmp_path: Path) -> None:
    rules = [{"principal": "*", "allow": ["publish"], "channels": ["open"]}]
    with RunningServer(tmp_path, {"access": rules}) as running:
        sender = open_sender(running.port, FAST)
        put(sender, 1, table="closed")
        error = refused(sender)
        assert error.category == questdb.SenderErrorCategory.SecurityError
        close_quietly(sender)
        assert running.store.channels() == []


def test_name_that_is_no_channel_is_a_parse_error(tmp_path: Path) -> None:
    with RunningServer(tmp_path) as running:
        sender = open_sender(running.port, FAST)
        put(sender, 1, table="two words")
        error = refused(sender)
        assert error.category == questdb.SenderErrorCategory.ParseError
        assert "two words" in error.message
        close_quietly(sender)


def test_full_channel_is_a_write_error_that_the_client_tries_again(tmp_path: Path) -> None:
    errors: list[Any] = []
    store = {"channels": {"small": {"max_msgs": 1, "discard": "new"}}}
    with RunningServer(tmp_path, store=store) as running:
        sender = open_sender(running.port, FAST + "max_frame_rejections=4;", error_handler=errors.append)
        put(sender, 1, table="small")
        flush_and_wait(sender)
        put(sender, 2, table="small")
        error = refused(sender)
        assert error.category == questdb.SenderErrorCategory.ProtocolViolation  # after four tries
        assert questdb.SenderErrorCategory.WriteError in {found.category for found in errors}
        assert any("max_msgs" in found.message for found in errors)
        close_quietly(sender)
        assert running.rows("small") == [1]


def test_internal_error_is_tried_again_and_says_nothing_of_the_inside(tmp_path: Path) -> None:
    """What nobody foresaw: the disk of the access records fails when a new channel of this caller is to be noted."""
    disk = CrashFilesystem()
    errors: list[Any] = []
    failures = [errno.EIO, errno.EIO]
    with RunningServer(tmp_path, {"limits": {"*": {"channels": 10}}}, access_filesystem=disk) as running:
        sender = open_sender(running.port, FAST, error_handler=errors.append)
        put(sender, 1)
        flush_and_wait(sender)
        disk.fail_when(lambda _operation, path: failures.pop() if failures and "bindings" in path.name else None)
        put(sender, 2, table="another")
        flush_and_wait(sender)
        sender.close()
        assert {error.category for error in errors} == {questdb.SenderErrorCategory.InternalError}
        assert all(error.message.endswith("its log has the reason") for error in errors)
        assert (running.rows("trades"), running.rows("another")) == ([1], [2])


@pytest.mark.guarantee("G10")
def test_client_keeps_what_a_failed_store_did_not_accept_for_the_next_process(tmp_path: Path) -> None:
    disk = CrashFilesystem()
    port = free_port()
    settings = {"server.listen": f"127.0.0.1:{port}"}
    sender = None
    with RunningServer(tmp_path, settings, filesystem=disk) as running:
        sender = open_sender(port, FAST)
        put(sender, 1)
        flush_and_wait(sender)
        disk.fail_when(lambda _operation, path: errno.EIO if "wal" in path.parts else None)
        put(sender, 2)
        after = flush(sender)
        running.join()
        assert running.failure is not None
        assert not sender.await_acked_fsn(after, 1)
    with RunningServer(tmp_path, settings, filesystem=disk.after_power_cut(1)) as running:
        put(sender, 3)
        flush_and_wait(sender)
        sender.close()
        assert running.rows("trades") == [1, 2, 3]


def test_durable_acks_are_refused_while_there_is_no_object_store(tmp_path: Path) -> None:
    with RunningServer(tmp_path) as running:
        with pytest.raises(questdb.QuestDBError) as caught:
            open_sender(running.port, "request_durable_ack=on;")
        assert caught.value.code == questdb.QuestDBErrorCode.ProtocolVersionError


def test_stranger_gets_an_authentication_error(tmp_path: Path) -> None:
    with RunningServer(tmp_path, {"auth.required": True}) as running:
        with pytest.raises(questdb.QuestDBError) as caught:
            open_sender(running.port)
        assert caught.value.code == questdb.QuestDBErrorCode.AuthError


def test_token_that_is_unknown_gets_an_authentication_error(tmp_path: Path) -> None:
    with RunningServer(tmp_path) as running:
        with pytest.raises(questdb.QuestDBError) as caught:
            open_sender(running.port, "token=nobody;")
        assert caught.value.code == questdb.QuestDBErrorCode.AuthError


# -- several hosts ----------------------------------------------------------------------------------------------------


def test_client_walks_past_a_replica_to_the_primary(tmp_path: Path) -> None:
    with (
        RunningServer(tmp_path / "a", {"server.role": "replica"}) as replica,
        RunningServer(tmp_path / "b") as primary,
    ):
        sender = questdb.Sender.from_conf(f"ws::addr=127.0.0.1:{replica.port},127.0.0.1:{primary.port};auto_flush=off;")
        sender.establish()
        put(sender, 1)
        flush_and_wait(sender)
        sender.close()
        assert primary.rows("trades") == [1]
        assert replica.ask(lambda: dict(replica.server.state.totals.handshakes_refused)) == {421: 1}


def test_client_goes_on_with_the_second_host_when_the_first_is_killed(tmp_path: Path) -> None:
    """SIGKILL: the first says nothing, and what it was sent and has not answered goes to the second."""
    rows = 300
    with ServedProcess(tmp_path / "a") as first, ServedProcess(tmp_path / "b") as second:
        sender = questdb.Sender.from_conf(
            f"ws::addr=127.0.0.1:{first.port},127.0.0.1:{second.port};auto_flush=off;{FAST}"
        )
        sender.establish()
        put(sender, 0)
        flush_and_wait(sender)
        for number in range(1, rows):
            put(sender, number)
            flush(sender)
            if number == rows // 2:
                first.kill()
        assert sender.await_acked_fsn(sender.published_fsn(), PATIENCE_MS)
        sender.close()
        assert second.terminate() == 0
        on_first, on_second = first.rows("trades", "n"), second.rows("trades", "n")
        assert on_first == list(range(len(on_first)))
        assert on_second == list(range(rows - len(on_second), rows)), "each in order, and the second has the end"
        assert 0 < len(on_first) <= rows // 2 + 1
        assert len(on_first) + len(on_second) >= rows


def test_client_goes_on_with_the_second_host_when_the_first_stops(tmp_path: Path) -> None:
    with RunningServer(tmp_path / "a") as first, RunningServer(tmp_path / "b") as second:
        sender = questdb.Sender.from_conf(
            f"ws::addr=127.0.0.1:{first.port},127.0.0.1:{second.port};auto_flush=off;{FAST}"
        )
        sender.establish()
        put(sender, 1)
        flush_and_wait(sender)
        first.stop()
        first.join()
        put(sender, 2)
        flush_and_wait(sender)
        sender.close()
        assert first.rows("trades") == [1]
        assert second.rows("trades") == [2]


# -- TLS --------------------------------------------------------------------------------------------------------------


@pytest.mark.skipif(OPENSSL is None, reason="needs the openssl command to make an authority")
def test_client_trusts_a_server_of_its_authority_and_no_other(tmp_path: Path) -> None:
    files = make_certificates(tmp_path / "tls")
    others = make_certificates(tmp_path / "others")
    settings = {"tls.cert": str(files.cert), "tls.key": str(files.key)}
    with RunningServer(tmp_path / "data", settings, tls=True) as running:
        conf = f"tls_ca=pem_file;tls_roots={files.authority};"
        sender = open_sender(running.port, conf, schema="wss", host="localhost")
        for number in range(20):
            put(sender, number)
            flush(sender)
        assert sender.await_acked_fsn(sender.published_fsn(), PATIENCE_MS)
        sender.close()
        assert running.rows("trades") == list(range(20))
        with pytest.raises(questdb.QuestDBError):
            open_sender(running.port, f"tls_ca=pem_file;tls_roots={others.authority};", schema="wss", host="localhost")


# -- batches, pools, dataframes ---------------------------------------------------------------------------------------


def open_pool(port: int, conf: str = "") -> Any:
    return questdb.connect(f"ws::addr=127.0.0.1:{port};query_pool_min=0;{conf}")


def test_frame_above_the_advertised_size_is_not_sent(tmp_path: Path) -> None:
    with RunningServer(tmp_path, {"ingest.max_batch_size": "4KiB"}) as running:
        sender = open_sender(running.port)
        for number in range(100):
            put(sender, number, text="x" * 100)
        with pytest.raises(questdb.QuestDBError) as caught:
            sender.flush()
        assert caught.value.code == questdb.QuestDBErrorCode.BatchTooLarge
        close_quietly(sender)
        assert running.store.channels() == []


def test_pooled_sender_splits_what_is_above_the_advertised_size(tmp_path: Path) -> None:
    with RunningServer(tmp_path, {"ingest.max_batch_size": "4KiB"}) as running:
        pool = open_pool(running.port)
        with pool.sender() as sender:
            for number in range(300):
                put(sender, number, text="x" * 100)
            sender.flush(wait=True)
        pool.close()
        assert running.rows("trades") == list(range(300))
        assert running.ask(lambda: running.server.state.totals.frames) > 5


def test_senders_of_a_pool_write_beside_each_other(tmp_path: Path) -> None:
    with RunningServer(tmp_path) as running:
        pool = open_pool(running.port, "sender_pool_max=4;")
        with pool.sender() as first, pool.sender() as second:
            put(first, 1, table="a")
            put(second, 2, table="b")
            first.flush(wait=True)
            second.flush(wait=True)
        pool.close()
        assert (running.rows("a"), running.rows("b")) == ([1], [2])


@pytest.mark.parametrize(("rows", "settings"), [(50_000, {}), (20_000, {"ingest.max_batch_size": "64KiB"})])
def test_dataframe_with_deferred_batches_arrives_whole(tmp_path: Path, rows: int, settings: dict[str, object]) -> None:
    table = pa.table(
        {
            "n": np.arange(rows),
            "real": np.arange(rows) / 4,
            "text": [f"row {number % 100}" for number in range(rows)],
            "at": pa.array(np.arange(rows) + AT_NS // 1000, pa.timestamp("us")),
        }
    )
    with RunningServer(tmp_path, settings) as running:
        pool = open_pool(running.port)
        pool.dataframe(table, table_name="frames", at="at", max_rows_per_batch=4096)
        pool.close()
        stored = pa.Table.from_batches(running.store.read("frames", columns=["n", "real", "text"])).combine_chunks()
        assert stored.num_rows == rows
        assert stored.equals(table.select(["n", "real", "text"]).combine_chunks())


WIDTHS = {
    "int8": pa.int32(),  # the client widens what QWP has no column for
    "int16": pa.int32(),
    "int32": pa.int64(),
    "int64": pa.int64(),
    "uint8": pa.int32(),
    "uint16": pa.int32(),
    "uint32": pa.int64(),
    "float32": pa.float32(),
    "float64": pa.float64(),
}


def test_numbers_of_every_width_keep_their_value_and_times_their_nanoseconds(tmp_path: Path) -> None:
    columns: dict[str, pa.Array] = {}
    for name in WIDTHS:
        limits = np.iinfo(name) if "int" in name else np.finfo(name)
        least = limits.min + (1 if name == "int64" else 0)  # the client's mark for nothing
        columns[name] = pa.array(np.array([least, 1, limits.max], name))
    columns["nanos"] = pa.array(np.array([1, AT_NS + 123, AT_NS + 456]), pa.timestamp("ns"))
    table = pa.table({**columns, "at": pa.array(np.arange(3) + AT_NS, pa.timestamp("ns"))})
    with RunningServer(tmp_path) as running:
        pool = open_pool(running.port)
        pool.dataframe(table, table_name="widths", at="at")
        pool.close()
        stored = pa.Table.from_batches(running.store.read("widths"))
        assert {name: stored.schema.field(name).type for name in WIDTHS} == WIDTHS
        for name, sent in columns.items():
            found = stored.column(name)
            wanted = sent.cast(pa.int64()) if name == "nanos" else sent.cast(WIDTHS[name])
            assert found.cast(wanted.type).to_pylist() == wanted.to_pylist(), name


@pytest.mark.guarantee("G1")
def test_dataframe_of_a_million_rows_in_one_batch_arrives_as_one_frame(tmp_path: Path) -> None:
    """Eight columns of one byte a row on the wire, and of four as Arrow: 10 MB become 40."""
    rows = 1_000_000
    words = {f"s{n}": pa.array(np.arange(rows) % (n + 2)).cast(pa.string()).dictionary_encode() for n in range(8)}
    table = pa.table({**words, "at": pa.array(np.arange(rows) + AT_NS // 1000, pa.timestamp("us"))})
    with RunningServer(tmp_path) as running:
        pool = open_pool(running.port)
        pool.dataframe(table, table_name="frames", at="at", max_rows_per_batch=rows)
        pool.close()
        stored = pa.Table.from_batches(running.store.read("frames", columns=list(words)))
        assert stored.num_rows == rows
        for name in ("s0", "s7"):
            found = pa.chunked_array([chunk.dictionary_decode() for chunk in stored.column(name).chunks])
            assert found.equals(pa.chunked_array([words[name].dictionary_decode()]))
        assert running.store.statistics().frames == 1


def test_deferred_rows_of_a_client_that_went_are_not_stored(tmp_path: Path) -> None:
    captured: list[bytes] = []
    with RunningServer(tmp_path / "first") as running:
        keep_messages(running, captured.append)
        pool = open_pool(running.port)
        table = pa.table({"n": np.arange(3000), "at": pa.array(np.arange(3000), pa.timestamp("us"))})
        pool.dataframe(table, table_name="frames", at="at", max_rows_per_batch=1000)
        pool.close()
    deferred = [message for message in captured if message[5] & 1]
    assert deferred, "the client did not defer"
    with RunningServer(tmp_path / "second") as running:
        with running.client() as client:
            for message in deferred:
                client.send(message)
            running.until(lambda: running.server.state.connections[0].frames == len(deferred))
        running.until(lambda: not running.server.state.connections)
        assert running.store.channels() == []


def keep_messages(running: RunningServer, keep: Callable[[bytes], None]) -> None:
    """Copy what the client sends, before it is handled."""
    opening = running.server.door.routes["/api/v4/write"]

    def watched(upgrade: Any) -> Any:
        found: Any = opening(upgrade)

        def handler(connection: Any) -> Any:
            inner = found.handler(connection)
            handle = inner.message

            def message(data: bytes) -> None:
                keep(data)
                handle(data)

            inner.message = message
            return inner

        return type(found)(found.kind, handler, found.headers)

    running.ask(lambda: running.server.door.routes.__setitem__("/api/v4/write", watched))
