"""`holdfast serve` as a process: how it starts, what it says, how it ends."""

from __future__ import annotations

import json
import re
import resource
import signal
import socket
import subprocess
import sys
import threading
import urllib.request
from pathlib import Path

import pytest

from holdfast.errors import Category
from holdfast.wire.replies import Ok
from tests.e2e.served import PATIENCE_S, ServedProcess, free_port
from tests.unit.server.harness import RawClient, arrow_frame, open_client


def let_in(served: ServedProcess) -> RawClient:
    client, answer = open_client(served.port)
    assert answer.status == 101
    return client


def run_to_end(served: ServedProcess, *options: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(served.command(options), capture_output=True, text=True, timeout=PATIENCE_S, check=False)


def test_ready_line_names_both_addresses_exactly(tmp_path: Path) -> None:
    with ServedProcess(tmp_path / "data") as served:
        assert re.fullmatch(
            r"holdfast ready data=ws://127\.0\.0\.1:\d+ admin=http://127\.0\.0\.1:\d+\n", served.ready_line
        )
        with urllib.request.urlopen(f"{served.admin}/healthz", timeout=PATIENCE_S) as answer:
            assert answer.status == 200
        assert served.terminate() == 0


def test_ready_as_json_is_one_document(tmp_path: Path) -> None:
    served = ServedProcess(tmp_path / "data")
    with subprocess.Popen(
        served.command(["--json"]), stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    ) as it:
        assert it.stdout is not None
        text = ""
        while not text.endswith("}\n"):
            text += it.stdout.readline()
        it.terminate()
        text += it.stdout.read()
    document = json.loads(text)
    assert document["ok"] is True
    assert document["result"]["data"].startswith("ws://127.0.0.1:")
    assert it.returncode == 0


@pytest.mark.guarantee("G1")
def test_terminated_server_answers_seals_and_keeps_everything(tmp_path: Path) -> None:
    with ServedProcess(tmp_path / "data") as served, let_in(served) as client:
        for fsn in range(200):
            client.send(arrow_frame(fsn, fsn=fsn))
        assert isinstance(client.reply(), Ok)
        served.signal(signal.SIGTERM)
        assert client.closed() == 1001
        assert served.wait() == 0
        rows = served.rows("trades", "n")
        assert rows == list(range(len(rows)))
        assert list((tmp_path / "data" / "channels" / "trades").glob("*.arrow"))


def test_second_signal_does_not_wait_for_a_peer_that_stays(tmp_path: Path) -> None:
    config = tmp_path / "holdfast.yaml"
    config.write_text("server: {shutdown_timeout: 1h}\n")
    with ServedProcess(tmp_path / "data", "-c", str(config)) as served, let_in(served) as client:
        client.send(arrow_frame(1))
        client.acknowledged(0)
        served.signal(signal.SIGTERM)
        assert client.closed() == 1001
        served.signal(signal.SIGTERM)
        assert served.wait() == 0


def test_store_in_use_is_refused_with_exit_code_three(tmp_path: Path) -> None:
    with ServedProcess(tmp_path / "data") as served:
        other = ServedProcess(tmp_path / "data")
        result = run_to_end(other)
        assert result.returncode == 3
        assert str(served.process.pid) in result.stderr
        assert result.stdout == ""


def test_taken_address_is_refused_with_exit_code_three(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        result = run_to_end(ServedProcess(tmp_path / "data", port=taken.getsockname()[1]))
    assert result.returncode == 3
    assert "server.listen" in result.stderr


def test_public_address_without_protection_is_refused(tmp_path: Path) -> None:
    result = run_to_end(ServedProcess(tmp_path / "data"), "--listen", "0.0.0.0:0")
    assert result.returncode == 3
    assert "--insecure" in result.stderr
    assert not (tmp_path / "data" / "catalog.db").exists()


def test_wrong_setting_is_refused_with_file_line_and_key(tmp_path: Path) -> None:
    config = tmp_path / "holdfast.yaml"
    config.write_text("ingest:\n  write_deadlin: 5s\n")
    result = run_to_end(ServedProcess(tmp_path / "data"), "-c", str(config))
    assert result.returncode == 2
    assert f"{config}:2" in result.stderr
    assert "ingest.write_deadline" in result.stderr


@pytest.mark.parametrize(
    ("text", "key", "line"),
    [
        ("tls:\n  cert: no.pem\n  key: no.pem\n", "tls.cert", 2),
        ("audit:\n  path: nowhere/audit.log\n", "audit.path", 2),
    ],
)
def test_file_that_a_setting_names_is_looked_at_before_the_start(
    tmp_path: Path, text: str, key: str, line: int
) -> None:
    config = tmp_path / "holdfast.yaml"
    config.write_text(text)
    result = run_to_end(ServedProcess(tmp_path / "data"), "-c", str(config))
    assert result.returncode == 2, result.stderr
    assert f"{config}:{line}: {key}: " in result.stderr


def test_audit_log_may_be_in_a_data_directory_that_is_new(tmp_path: Path) -> None:
    config = tmp_path / "holdfast.yaml"
    config.write_text("audit: {path: data/audit.log}\n")
    with ServedProcess(tmp_path / "data", "-c", str(config)) as served:
        let_in(served).close()
        assert served.terminate() == 0
    assert "connection.open" in (tmp_path / "data" / "audit.log").read_text()


def test_damaged_store_is_refused_with_exit_code_three(tmp_path: Path) -> None:
    with ServedProcess(tmp_path / "data") as served:
        with let_in(served) as client:
            for fsn in range(10):
                client.send(arrow_frame(fsn, fsn=fsn))
            client.acknowledged(9)
        served.kill()
        log = next((tmp_path / "data" / "wal").glob("*.log"))
        data = bytearray(log.read_bytes())
        place = data.index(b"trades")
        data[place : place + 6] = b"TRADES"
        log.write_bytes(data)
        result = run_to_end(served)
        assert result.returncode == 3
        assert "damaged" in result.stderr


def test_hangup_reads_limits_again_and_keeps_them_when_wrong(tmp_path: Path) -> None:
    config = tmp_path / "holdfast.yaml"
    config.write_text("ingest: {max_connections: 1}\n")
    with ServedProcess(tmp_path / "data", "-c", str(config)) as served, let_in(served) as first:
        _, answer = open_client(served.port)
        assert answer.status == 503
        config.write_text("ingest: {max_connections: 2}\n")
        served.signal(signal.SIGHUP)
        wait_for_line(served, "server.reload ")
        let_in(served).close()
        config.write_text("ingest: {max_connections: many}\n")
        served.signal(signal.SIGHUP)
        wait_for_line(served, "server.reload.refuse")
        first.send(arrow_frame(1))
        first.acknowledged(0)
        assert served.terminate() == 0


def test_hangup_gives_a_principal_its_new_limits_and_takes_no_connection(tmp_path: Path) -> None:
    config = tmp_path / "holdfast.yaml"
    config.write_text("limits: {'*': {connections: 1}}\n")
    with ServedProcess(tmp_path / "data", "-c", str(config)) as served, let_in(served) as first:
        assert open_client(served.port)[1].status == 429
        config.write_text("limits: {'*': {connections: 2}}\n")
        served.signal(signal.SIGHUP)
        wait_for_line(served, "server.reload ")
        with let_in(served):
            assert open_client(served.port)[1].status == 429  # the first still counts
            first.send(arrow_frame(1))
            first.acknowledged(0)
        assert served.terminate() == 0


def test_hangup_says_which_changed_settings_need_a_restart(tmp_path: Path) -> None:
    config = tmp_path / "holdfast.yaml"
    (tmp_path / "tier").mkdir()
    config.write_text(f"tier: {{url: 'file://{tmp_path}/tier'}}\n")
    with ServedProcess(tmp_path / "data", "-c", str(config)) as served:
        served.signal(signal.SIGHUP)
        wait_for_line(served, "needs_restart=nothing")
        config.write_text(
            f"tier: {{url: 'file://{tmp_path}/other'}}\n"
            "segment: {target_size: 1MiB}\n"
            "channels: {trades: {max_age: 1h}}\n"
            "sync: {enabled: no}\n"
            "ingest: {max_connections: 7}\n"
        )
        served.signal(signal.SIGHUP)
        wait_for_line(served, "segment.target_size")
        (line,) = [line for line in served.errors.read_text().splitlines() if "segment.target_size" in line]
        assert "tier.url" in line
        assert "channels.trades" in line
        assert "sync.enabled" in line
        assert "max_connections" not in line
        assert served.terminate() == 0


def wait_for_line(served: ServedProcess, text: str) -> None:
    """Until the log says so."""
    waiting = threading.Event()
    for _ in range(int(PATIENCE_S / 0.02)):
        if text in served.errors.read_text():
            return
        waiting.wait(0.02)
    raise AssertionError(f"the log never said {text!r}")


@pytest.mark.guarantee("G1")
@pytest.mark.guarantee("G3")
def test_killed_server_under_load_loses_nothing_it_answered(tmp_path: Path) -> None:
    """SIGKILL, three times: process death, not power loss."""
    with ServedProcess(tmp_path / "data", port=free_port()) as served:
        answered = -1
        for round_ in range(3):
            first = answered + 1
            with let_in(served) as client:
                for fsn in range(first, first + 3000):
                    client.send(arrow_frame(fsn, fsn=fsn))
                while answered < first + 500 * (round_ + 1):
                    reply = client.reply()
                    assert isinstance(reply, Ok)
                    answered = first + reply.wire_seq
                served.kill()
                answered = max([answered, *(first + seq for seq in late_answers(client))])
            served.start()
        assert served.terminate() == 0
        rows = served.rows("trades", "n")
        assert rows[: answered + 1] == list(range(answered + 1)), "an answered frame is lost, doubled or out of order"
        assert rows == list(range(len(rows))), "a frame is doubled or out of order"


@pytest.mark.guarantee("G10")
@pytest.mark.skipif(sys.platform != "linux", reason="limits the files of a running process")
def test_failing_disk_ends_the_process_with_exit_code_four_and_the_reason(tmp_path: Path) -> None:
    with ServedProcess(tmp_path / "data") as served, let_in(served) as client:
        client.send(arrow_frame(1, fsn=0, pad_bytes=120_000))
        client.acknowledged(0)
        limit = 100_000  # the log is longer by now: every further write to it fails, not for lack of room
        resource.prlimit(served.process.pid, resource.RLIMIT_FSIZE, (limit, limit))
        for fsn in (1, 2, 3):
            client.send(arrow_frame(fsn, fsn=fsn))
        refusal = client.refusal()
        assert (refusal.category, refusal.wire_seq) == (Category.NOT_WRITABLE, 1)
        assert client.closed() == 1011
        assert served.wait() == 4
        assert "the store stopped" in served.errors.read_text().splitlines()[-1]
        assert served.rows("trades", "n") == [1]


def late_answers(client: RawClient) -> list[int]:
    """What the server answered before it was killed."""
    seqs = []
    try:
        while True:
            reply = client.reply()
            assert isinstance(reply, Ok)
            seqs.append(reply.wire_seq)
    except (EOFError, ConnectionError):
        return seqs
