"""The sender's API against the real server."""

from __future__ import annotations

import datetime as dt
import logging
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import polars as pl
import pyarrow as pa
import pytest

from holdfast.errors import (
    Backpressure,
    BadRequest,
    Closed,
    FrameTooLarge,
    InvalidBatch,
    InvalidConfig,
    InvalidName,
    Locked,
    SchemaMismatch,
    SlotFull,
)
from holdfast.sender.conf import SenderConfig
from holdfast.sender.sender import Sender
from holdfast.wire import hfa
from holdfast.wire.limits import FrameLimits
from tests.e2e.served import free_port
from tests.unit.sender.loopback import Loopback, accept_all
from tests.unit.sender.test_link import Heard
from tests.unit.server.harness import RunningServer

PATIENCE_S = 30.0


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    with RunningServer(tmp_path_factory.mktemp("data")) as running:
        yield running


def connect(server: RunningServer | int, **keys: Any) -> Sender:
    port = server if isinstance(server, int) else server.port
    return Sender(addr=f"127.0.0.1:{port}", **{"auto_flush": False, **keys})


def away(**keys: Any) -> Sender:
    """A sender whose server is not there."""
    return connect(free_port(), initial_connect_retry="async", close_flush_timeout_millis=0, **keys)


# --- sending --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("codec", ["arrow", "qwp"])
@pytest.mark.parametrize("mode", ["memory", "slot"])
def test_events_arrive_in_every_mode_and_codec(server: RunningServer, tmp_path: Path, mode: str, codec: str) -> None:
    channel = f"modes-{mode}-{codec}"
    keys = {"sf_dir": str(tmp_path / "sf")} if mode == "slot" else {}
    with connect(server, codec=codec, **keys) as sender:
        for n in range(10):
            sender.send(channel, {"n": n})
            sender.flush()
        sender.send(channel, [{"n": n} for n in range(10, 200)])
        assert sender.drain(PATIENCE_S)
    assert server.rows(channel) == list(range(200))


def test_every_kind_of_data_arrives_in_order(server: RunningServer) -> None:
    with connect(server) as sender:
        sender.send("kinds", {"n": 0})
        sender.send("kinds", [{"n": 1}, {"n": 2}])
        sender.send("kinds", pa.record_batch({"n": [3, 4]}))
        sender.send("kinds", pa.table({"n": [5, 6]}))
        sender.send("kinds", pl.DataFrame({"n": [7, 8]}))
        fsn = sender.flush()
        assert sender.await_acked(fsn, PATIENCE_S)
    assert server.rows("kinds") == list(range(9))


def test_one_flush_of_several_channels_is_one_frame(server: RunningServer) -> None:
    with connect(server) as sender:
        before = sender.published_fsn
        sender.send("several-a", {"n": 1})
        sender.send("several-b", {"n": 2})
        sender.send("several-a", {"n": 3})
        assert sender.flush() == before + 1
        assert sender.drain(PATIENCE_S)
    assert (server.rows("several-a"), server.rows("several-b")) == ([1, 3], [2])


def test_flush_of_nothing_publishes_nothing(server: RunningServer) -> None:
    with connect(server) as sender:
        assert sender.flush() == -1
        sender.send("nothing", [])
        sender.send("nothing", pa.table({"n": pa.array([], pa.int64())}))
        assert sender.flush() == -1


def test_large_table_is_split_into_frames(server: RunningServer) -> None:
    with connect(server, sf_max_segment_bytes="64k") as sender:
        sender.send("large", pa.table({"n": range(50_000)}))
        fsn = sender.flush()
        assert fsn > 5
        assert sender.await_acked(fsn, PATIENCE_S)
    assert server.rows("large") == list(range(50_000))


def test_time_of_events_is_stored_beside_them(server: RunningServer) -> None:
    noon = dt.datetime(2026, 1, 1, 12, tzinfo=dt.UTC)
    with connect(server) as sender:
        sender.send("times", {"n": 1}, at=noon)
        sender.send("times", [{"n": 2}], at=noon)
        sender.send("times", pa.table({"n": [3]}), at=noon)
        assert sender.drain(PATIENCE_S)
    assert server.rows("times", "timestamp") == [noon] * 3


def test_partitions_travel_with_the_frame() -> None:
    with Loopback(accept_all) as loopback, connect(loopback.port) as sender:
        sender.send("t", {"n": 1}, partitions=["eu", "fr"])
        sender.send("t", {"n": 2})
        assert sender.drain(PATIENCE_S)
        entries = hfa.decode(loopback.peers[0].messages[0], FrameLimits()).entries
        assert [entry.partitions for entry in entries] == [("eu", "fr"), ()]


def test_same_frame_sent_by_many_threads_is_stored_once_each(server: RunningServer) -> None:
    with connect(server, auto_flush=True, auto_flush_rows=7) as sender:

        def produce(first: int) -> None:
            for n in range(first, first + 200):
                sender.send("threads", {"n": n})

        threads = [threading.Thread(target=produce, args=(1000 * place,)) for place in range(6)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(PATIENCE_S)
        assert sender.drain(PATIENCE_S)
    rows = [int(str(n)) for n in server.rows("threads")]
    assert sorted(rows) == sorted(n for place in range(6) for n in range(1000 * place, 1000 * place + 200))
    for place in range(6):
        own = [n for n in rows if n // 1000 == place]
        assert own == sorted(own)


# --- flushing by itself ---------------------------------------------------------------------------------------------


def test_rows_are_flushed_when_they_are_many(server: RunningServer) -> None:
    with connect(server, auto_flush=True, auto_flush_rows=10, auto_flush_interval="off") as sender:
        for n in range(9):
            sender.send("by-rows", {"n": n})
        assert sender.published_fsn == -1
        sender.send("by-rows", {"n": 9})
        assert sender.published_fsn == 0
        assert sender.pending_rows == 0


def test_rows_are_flushed_when_they_are_large(server: RunningServer) -> None:
    keys = {"auto_flush": True, "auto_flush_rows": "off", "auto_flush_interval": "off", "auto_flush_bytes": 5000}
    with connect(server, **keys) as sender:
        while sender.published_fsn == -1:
            sender.send("by-bytes", {"pad": "x" * 1000})
            assert sender.pending_rows <= 5
        assert sender.drain(PATIENCE_S)


def test_rows_leave_by_themselves_after_the_interval(server: RunningServer) -> None:
    heard = Heard()
    with connect(server, auto_flush=True, auto_flush_interval=10, progress_handler=heard) as sender:
        for place in range(3):
            sender.send("by-time", {"n": place})
            assert heard.until(place + 1)[-1] == place
    assert server.rows("by-time") == [0, 1, 2]


def test_rows_that_nobody_flushed_leave_when_the_sender_closes(server: RunningServer) -> None:
    with connect(server) as sender:
        sender.send("by-close", {"n": 1})
    assert server.rows("by-close") == [1]


def test_send_that_finds_no_room_takes_nothing_from_the_second_call_on() -> None:
    keys = {"sf_max_segment_bytes": 4096, "sf_max_total_bytes": 8192, "sf_append_deadline_millis": 20}
    sender = away(auto_flush=True, auto_flush_rows=10, auto_flush_interval="off", **keys)
    taken = 0

    def produce() -> None:
        nonlocal taken
        while True:
            sender.send("t", {"n": taken})
            taken += 1

    with pytest.raises(SlotFull):
        produce()
    published = sender.take_pending("t")
    assert len(published) == 1
    assert published[0].num_rows == 10
    assert taken == 10 * (sender.published_fsn + 2)
    sender.close()


# --- what is refused ------------------------------------------------------------------------------------------------


def test_bad_calls_are_refused_and_take_nothing(server: RunningServer) -> None:
    with connect(server) as sender:
        with pytest.raises(InvalidName):
            sender.send("not/a/channel", {"n": 1})
        with pytest.raises(InvalidBatch, match="is no data"):
            sender.send("bad", object())
        with pytest.raises(InvalidBatch, match="item 1 is a int"):
            sender.send("bad", [{"n": 1}, 7])
        with pytest.raises(InvalidBatch, match="partitions"):
            sender.send("bad", {"n": 1}, partitions="eu")
        with pytest.raises(InvalidBatch, match="timestamp"):
            sender.send("bad", {"timestamp": 1}, at=1)
        with pytest.raises(BadRequest, match="time zone"):
            sender.send("bad", {"n": 1}, at=dt.datetime(2026, 1, 1))
        assert sender.pending_rows == 0


def test_names_that_are_too_long_are_refused(server: RunningServer) -> None:
    with connect(server, max_name_len=16) as sender:
        with pytest.raises(InvalidName, match="max_name_len"):
            sender.send("x" * 17, {"n": 1})
        for data in ({"n" * 17: 1}, pa.table({"n" * 17: [1]})):
            with pytest.raises(InvalidBatch, match="max_name_len=16"):
                sender.send("short", data)
        assert sender.pending_rows == 0


def test_type_clash_names_everything_and_costs_no_other_row(server: RunningServer) -> None:
    with connect(server) as sender:
        sender.send("clash", {"n": 1})
        with pytest.raises(SchemaMismatch, match=r"channel 'clash', column 'n': expected int, found text.*row 1"):
            sender.send("clash", {"n": "x"})
        sender.send("clash", {"n": 2})
        assert sender.drain(PATIENCE_S)
    assert server.rows("clash") == [1, 2]


def test_rows_that_cannot_be_published_stay_until_they_are_taken(server: RunningServer) -> None:
    with connect(server, sf_max_segment_bytes=4096) as sender:
        sender.send("stuck", {"pad": "x" * 5000})
        for _ in range(2):
            with pytest.raises(FrameTooLarge):
                sender.flush()
        (batch,) = sender.take_pending("stuck")
        assert batch.num_rows == 1
        sender.send("stuck", {"pad": "y"})
        assert sender.drain(PATIENCE_S)


def test_buffer_that_nobody_flushes_is_bounded() -> None:
    sender = away(max_buf_size=2000, init_buf_size=1000)
    while sender._pending.size_bytes < 2000:
        sender.send("t", {"pad": "x" * 100})
    with pytest.raises(Backpressure, match="max_buf_size"):
        sender.send("t", {"pad": "x" * 100})
    sender.take_pending("t")
    sender.close()


@pytest.mark.parametrize(
    "keys", [{"addr": "h:1", "sf_dirr": "x"}, {}, {"addr": "h:1", "token": "t", "username": "u", "password": "p"}]
)
def test_wrong_settings_are_refused_before_anything_is_opened(keys: dict[str, Any]) -> None:
    with pytest.raises(InvalidConfig):
        Sender(**keys)


def test_keys_beside_whole_settings_are_refused() -> None:
    with pytest.raises(InvalidConfig) as caught:
        Sender(SenderConfig.from_conf("ws::addr=h;"), token="t")
    assert caught.value.key == "token"


def test_settings_come_from_the_environment(server: RunningServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOLDFAST_CONF", f"ws::addr=127.0.0.1:{server.port};")
    with Sender.from_env(sender_id="env") as sender:
        sender.send("environment", {"n": 1})
    assert server.rows("environment") == [1]
    monkeypatch.delenv("HOLDFAST_CONF")
    with pytest.raises(InvalidConfig, match="HOLDFAST_CONF"):
        Sender.from_env()


def test_roots_that_cannot_be_read_are_refused_at_the_door(tmp_path: Path) -> None:
    with pytest.raises(InvalidConfig, match="tls_roots"):
        Sender.from_conf(f"wss::addr=127.0.0.1:1;tls_roots={tmp_path / 'none.pem'};")


# --- waiting and closing --------------------------------------------------------------------------------------------


def test_futures_and_callbacks_end_with_their_frame(server: RunningServer) -> None:
    heard, done = Heard(), Heard()
    with connect(server, progress_handler=heard) as sender:
        for n in range(5):
            sender.send("futures", {"n": n})
            future = sender.when_acked(sender.flush())
            future.add_done_callback(lambda ended: done(ended.result()))
        assert sorted(done.until(5)) == [0, 1, 2, 3, 4]
        assert sender.when_acked(2).result(PATIENCE_S) == 2
    assert heard.items == sorted(heard.items)


def test_waiting_ends_with_its_timeout() -> None:
    sender = away()
    sender.send("t", {"n": 1})
    fsn = sender.flush()
    assert not sender.await_acked(fsn, 0.01)
    assert not sender.drain(0.01)
    future = sender.when_acked(fsn)
    sender.close()
    with pytest.raises(Closed):
        future.result(PATIENCE_S)


def test_close_warns_of_frames_that_nobody_answered(caplog: pytest.LogCaptureFixture, tmp_path: Path) -> None:
    for keys, fate in (({}, "lost"), ({"sf_dir": str(tmp_path / "sf")}, "kept in the slot")):
        sender = away(**keys)
        sender.send("t", {"n": 1})
        caplog.clear()
        with caplog.at_level(logging.WARNING):
            sender.close()
        (warning,) = [item.getMessage() for item in caplog.records if "sender.close.undelivered" in item.message]
        assert fate in warning
        assert "frames=1" in warning


def test_frames_left_in_a_slot_are_sent_by_the_next_sender(server: RunningServer, tmp_path: Path) -> None:
    sf_dir = str(tmp_path / "sf")
    sender = away(sf_dir=sf_dir)
    for n in range(5):
        sender.send("left", {"n": n})
        sender.flush()
    sender.close()
    with connect(server, sf_dir=sf_dir) as sender:
        assert sender.published_fsn == 4
        sender.send("left", {"n": 5})
        assert sender.drain(PATIENCE_S)
        assert sender.statistics().total_frames_replayed == 5
    assert server.rows("left") == list(range(6))
    assert not list((tmp_path / "sf" / "default").glob("*.sfa"))


def test_closed_sender_says_so_to_every_call(server: RunningServer) -> None:
    sender = connect(server)
    sender.close()
    sender.close()
    for call in (
        lambda: sender.send("t", {"n": 1}),
        sender.flush,
        lambda: sender.await_acked(0),
        lambda: sender.when_acked(0),
        sender.drain,
        lambda: sender.take_pending("t"),
    ):
        with pytest.raises(Closed):
            call()


def test_second_sender_on_a_slot_is_told_who_has_it(server: RunningServer, tmp_path: Path) -> None:
    with connect(server, sf_dir=str(tmp_path / "sf")), pytest.raises(Locked, match=str(os.getpid())):
        connect(server, sf_dir=str(tmp_path / "sf"))


def test_error_of_the_block_goes_before_one_of_closing() -> None:
    sender = away(sf_max_segment_bytes=4096)
    sender.send("t", {"pad": "x" * 5000})
    with pytest.raises(KeyError), sender:
        raise KeyError


def test_statistics_tell_what_happened(server: RunningServer) -> None:
    with connect(server) as sender:
        sender.send("counted", {"n": 1})
        assert sender.statistics().pending_rows == 1
        assert sender.drain(PATIENCE_S)
        statistics = sender.statistics()
        assert statistics.is_connected
        assert statistics.address == f"127.0.0.1:{server.port}"
        assert (statistics.published_fsn, statistics.acked_fsn, statistics.total_frames_sent) == (0, 0, 1)
        assert statistics.total_acks >= 1
        assert statistics.outage == statistics.last_terminal_error == ""


# --- processes ------------------------------------------------------------------------------------------------------


def run_python(code: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", code, *arguments], capture_output=True, text=True, timeout=60, check=False
    )


def test_forked_child_gets_an_error_and_the_parent_goes_on(server: RunningServer) -> None:
    code = """
import os, sys, warnings
warnings.simplefilter("ignore")
from holdfast import Sender
from holdfast.errors import Closed
sender = Sender(addr=sys.argv[1], auto_flush=False)
sender.send("forked", {"n": 1})
pid = os.fork()
if pid == 0:
    for call in (lambda: sender.send("forked", {"n": 2}), sender.flush):
        try:
            call()
        except Closed as error:
            assert "forked" in str(error), error
        else:
            os._exit(1)
    sender.close()
    os._exit(0)
assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
assert sender.drain(30)
sender.close()
"""
    done = run_python(code, f"127.0.0.1:{server.port}")
    assert done.returncode == 0, done.stderr
    assert server.rows("forked") == [1]


def test_signal_handler_may_close_in_the_middle_of_a_call(server: RunningServer) -> None:
    code = """
import os, signal, sys
from holdfast import Sender

def stop(*_):
    sender.close()
    os._exit(7)

for attempt in range(5):
    pid = os.fork()
    if pid == 0:
        sender = Sender(addr=sys.argv[1], auto_flush_rows=3)
        signal.signal(signal.SIGALRM, stop)
        signal.setitimer(signal.ITIMER_REAL, 0.05 + attempt / 50)
        while True:
            sender.send("signalled", {"n": 1})
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 7
"""
    done = run_python(code, f"127.0.0.1:{server.port}")
    assert done.returncode == 0, done.stderr


def test_end_of_the_interpreter_closes_open_senders(server: RunningServer) -> None:
    code = """
import sys
from holdfast import Sender
Sender(addr=sys.argv[1], auto_flush=False).send("forgotten", {"n": 1})
kept = Sender(addr=sys.argv[1], auto_flush=False)
kept.send("forgotten", {"n": 2})
"""
    done = run_python(code, f"127.0.0.1:{server.port}")
    assert (done.returncode, done.stderr) == (0, "")
    assert set(server.rows("forgotten")) == {1, 2}


def test_importing_the_sender_loads_no_server_and_no_spark() -> None:
    code = """
import sys
from holdfast import Sender, AsyncSender
FORBIDDEN = {"pyspark", "grpc", "starlette", "uvicorn", "prometheus_client", "opentelemetry"}
bad = [name for name in sys.modules if name.split(".")[0] in FORBIDDEN]
bad += [name for name in sys.modules if name.startswith(("holdfast.server", "holdfast.store", "holdfast.cli"))]
assert not bad, bad
"""
    done = run_python(code)
    assert done.returncode == 0, done.stderr
