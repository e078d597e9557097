"""`holdfast serve` with a tier, as processes: durable acknowledgements, the real QuestDB client, S3, refusals."""

from __future__ import annotations

import json
import shutil
import signal
import subprocess
import sys
import threading
import urllib.request
import warnings
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from holdfast import Store
from holdfast.sender.sender import Sender
from tests.conformance import s3servers
from tests.e2e.served import PATIENCE_S, ServedProcess, free_port


def serve(tmp_path: Path, tier: str, *, name: str = "data") -> ServedProcess:
    settings = tmp_path / f"{name}.yaml"
    settings.write_text(f"tier:\n  max_delay: 50ms\n{tier}")
    return ServedProcess(tmp_path / name, "-c", str(settings), port=free_port())


def folder(tmp_path: Path) -> str:
    (tmp_path / "bucket").mkdir()
    return f"  url: file://{tmp_path}/bucket\n"


def send(sender: Sender, *values: int) -> int:
    sender.send("trades", pa.record_batch({"n": list(values)}))
    return sender.flush()


def restored(tmp_path: Path, *options: str) -> list[int]:
    """What `holdfast restore` brings back."""
    directory = tmp_path / "restored"
    command = [sys.executable, "-m", "holdfast.cli.main", "restore", "--data", str(directory), "--json", *options]
    done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE_S, check=False)
    assert done.returncode == 0, done.stderr
    with Store.open(directory) as store:
        found = [value for batch in store.read("trades") for value in batch.column("n").to_pylist()]
    assert json.loads(done.stdout)["result"]["events"] == len(found)
    shutil.rmtree(directory)
    return found


@pytest.mark.guarantee("G5")
def test_a_durable_ack_means_that_the_bucket_alone_is_enough(tmp_path: Path) -> None:
    with serve(tmp_path, folder(tmp_path)).start() as server:
        conf = f"ws::addr=127.0.0.1:{server.port};sf_dir={tmp_path}/slots;request_durable_ack=on;"
        with Sender.from_conf(conf) as sender:
            assert sender.await_acked(send(sender, 1, 2), timeout=PATIENCE_S)
            assert restored(tmp_path, "--tier", f"file://{tmp_path}/bucket") == [1, 2]
            assert sender.await_acked(send(sender, 3), timeout=PATIENCE_S)
        assert restored(tmp_path, "-c", str(tmp_path / "data.yaml")) == [1, 2, 3]
        with urllib.request.urlopen(f"{server.admin}/healthz", timeout=PATIENCE_S) as answer:
            health = json.load(answer)
        assert (health["tier"], health["tier_statistics"]["durable"]) == ("ok", {"trades": 3})
        with urllib.request.urlopen(f"{server.admin}/metrics", timeout=PATIENCE_S) as answer:
            assert b"holdfast_tier_lag_seconds 0.0" in answer.read()


def test_a_server_that_stops_in_order_leaves_everything_in_the_bucket(tmp_path: Path) -> None:
    with serve(tmp_path, folder(tmp_path)).start() as server:
        with Sender.from_conf(f"ws::addr=127.0.0.1:{server.port};") as sender:
            assert sender.await_acked(send(sender, 1, 2, 3), timeout=PATIENCE_S)
        assert server.terminate() == 0
    assert restored(tmp_path, "--tier", f"file://{tmp_path}/bucket") == [1, 2, 3]


@pytest.mark.guarantee("G5")
def test_the_real_questdb_client_gets_durable_acks(tmp_path: Path) -> None:
    questdb: Any = pytest.importorskip("questdb")
    with serve(tmp_path, folder(tmp_path)).start() as server, warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        sender = questdb.Sender.from_conf(f"ws::addr=127.0.0.1:{server.port};auto_flush=off;request_durable_ack=on;")
        sender.establish()
        for number in range(3):
            sender.row("trades", columns={"n": number}, at=questdb.TimestampNanos(1_700_000_000_000_000_000 + number))
        fsn = sender.flush_and_get_fsn()
        pause, tries = threading.Event(), range(int(PATIENCE_S / 0.05))
        # In this mode the client's wait returns at once, so it is asked again and again.
        assert any(sender.await_acked_fsn(fsn, 1000) or pause.wait(0.05) for _ in tries)
        sender.close()
        server.kill()
        assert restored(tmp_path, "--tier", f"file://{tmp_path}/bucket") == [0, 1, 2]


@pytest.mark.guarantee("G5")
def test_a_wiped_server_comes_back_from_s3(tmp_path: Path) -> None:
    if not s3servers.has_moto():
        pytest.skip('moto is not installed: pip install "moto[server]"')
    with s3servers.moto() as s3:
        tier = (
            f"  url: s3://{s3servers.BUCKET}\n  prefix: plant\n  endpoint: {s3.endpoint}\n  region: us-east-1\n"
            f"  credentials_file: {s3.credentials(tmp_path / 's3.env')}\n"
        )
        with serve(tmp_path, tier).start() as server:
            conf = f"ws::addr=127.0.0.1:{server.port};sf_dir={tmp_path}/slots;request_durable_ack=on;"
            with Sender.from_conf(conf) as sender:
                assert sender.await_acked(send(sender, 1, 2), timeout=PATIENCE_S)
                server.kill()
                shutil.rmtree(server.directory)
                fsn = send(sender, 3)
                server.start()
                assert sender.await_acked(fsn, timeout=PATIENCE_S)
            assert server.terminate() == 0
            assert server.rows("trades", "n") == [1, 2, 3]


@pytest.mark.guarantee("G5")
def test_a_second_server_takes_over_and_the_first_one_stops(tmp_path: Path) -> None:
    tier = folder(tmp_path)
    first, second = serve(tmp_path, tier), serve(tmp_path, tier, name="other")
    with first.start(), second.start(), Sender.from_conf(f"ws::addr=127.0.0.1:{first.port};") as sender:
        send(sender, 1)
        assert first.wait() == 4
        assert "taken it over" in first.errors.read_text()


@pytest.mark.parametrize(
    ("tier", "code", "text"),
    [
        ("  url: ftp://x\n", 2, "tier.url"),
        ("  url: file:///no/such/mount\n", 3, "make it, or mount it"),
        ("  url: s3://x\n  colour: red\n", 2, "tier.colour"),
    ],
)
def test_a_tier_that_cannot_be_used_is_refused_at_the_start(tmp_path: Path, tier: str, code: int, text: str) -> None:
    server = serve(tmp_path, tier)
    done = subprocess.run(server.command(), capture_output=True, text=True, timeout=PATIENCE_S, check=False)
    assert (done.returncode, text in done.stderr) == (code, True), done.stderr


def test_a_bucket_that_is_missing_is_refused_at_the_start(tmp_path: Path) -> None:
    if not s3servers.has_moto():
        pytest.skip('moto is not installed: pip install "moto[server]"')
    with s3servers.moto() as s3:
        credentials = s3.credentials(tmp_path / "s3.env")
        tier = f"  url: s3://nowhere\n  endpoint: {s3.endpoint}\n  credentials_file: {credentials}\n"
        done = subprocess.run(
            serve(tmp_path, tier).command(), capture_output=True, text=True, timeout=PATIENCE_S, check=False
        )
    assert done.returncode == 3
    assert "nowhere" in done.stderr
    assert s3servers.SECRET not in done.stderr


def test_verify_remote_names_an_object_that_is_damaged(tmp_path: Path) -> None:
    with serve(tmp_path, folder(tmp_path)).start() as server:
        with Sender.from_conf(f"ws::addr=127.0.0.1:{server.port};") as sender:
            assert sender.await_acked(send(sender, 1), timeout=PATIENCE_S)
        assert server.terminate() == 0
    command = [sys.executable, "-m", "holdfast.cli.main", "verify", str(tmp_path / "data")]
    command += ["--remote", f"file://{tmp_path}/bucket"]
    assert subprocess.run(command, capture_output=True, timeout=PATIENCE_S, check=False).returncode == 0
    (segment,) = (tmp_path / "bucket" / "holdfast" / "segments" / "trades").glob("*.arrow")
    data = bytearray(segment.read_bytes())
    data[100] ^= 1
    segment.write_bytes(data)
    done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE_S, check=False)
    assert done.returncode == 1
    assert segment.name in done.stdout


def get(url: str, **headers: str) -> tuple[int, bytes]:
    request = urllib.request.Request(url, headers=headers)
    with urllib.request.urlopen(request, timeout=PATIENCE_S) as answer:
        return answer.status, answer.read()


def data_of(url: str) -> Any:
    return json.loads(get(url)[1])["data"]


def cli(*words: str) -> tuple[int, Any]:
    command = [sys.executable, "-m", "holdfast.cli.main", *words, "--json"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE_S, check=False)
    return done.returncode, json.loads(done.stdout)["result"]


@pytest.mark.guarantee("G5")
def test_segments_without_a_local_copy_are_served_like_all_others(tmp_path: Path) -> None:
    server = serve(tmp_path, folder(tmp_path))
    settings = tmp_path / "data.yaml"
    settings.write_text(settings.read_text() + "retention:\n  local: 1KiB\n  tick: 50ms\n")
    with server.start():
        conf = f"ws::addr=127.0.0.1:{server.port};sf_dir={tmp_path}/slots;request_durable_ack=on;"
        with Sender.from_conf(conf) as sender:
            for value in range(3):
                assert sender.await_acked(send(sender, value), timeout=PATIENCE_S)
        pause = threading.Event()
        tries = range(int(PATIENCE_S / 0.1))
        assert any(data_of(f"{server.admin}/api/v1/tier")["remote_segments"] == 3 or pause.wait(0.1) for _ in tries)
        segments = data_of(f"{server.admin}/api/v1/channels/trades/segments")
        assert [segment["remote"] for segment in segments] == [True] * 3
        assert not list((tmp_path / "data/channels/trades").glob("*.arrow"))
        (stored,) = (tmp_path / "bucket/holdfast/segments/trades").glob(f"{segments[0]['segment']:016d}-*.arrow")
        assert get(f"{server.admin}{segments[0]['data']}") == (200, stored.read_bytes())
        assert get(f"{server.admin}{segments[0]['data']}", Range="bytes=100-199") == (206, stored.read_bytes()[100:200])
        assert b"holdfast_tier_remote_segments 3.0" in get(f"{server.admin}/metrics")[1]
        assert data_of(f"{server.admin}/api/v1/tier")["cache"]["fetches"] == 1
        assert server.terminate() == 0
    code, listed = cli("segments", "ls", "--data", str(tmp_path / "data"))
    assert (code, [item["remote"] for item in listed["segments"]]) == (0, [True] * 3)
    code, report = cli("verify", str(tmp_path / "data"))
    assert (code, report["remote_segments"]) == (0, 3)
    code, report = cli("verify", str(tmp_path / "data"), "--remote", f"file://{tmp_path}/bucket")
    assert (code, report["segments"]) == (0, 3)


def test_changed_tier_settings_are_said_to_need_a_restart(tmp_path: Path) -> None:
    server = serve(tmp_path, folder(tmp_path))
    settings = tmp_path / "data.yaml"
    with server.start():
        settings.write_text(settings.read_text() + "  cache_size: 2GiB\nretention:\n  local: 1GiB\n")
        server.signal(signal.SIGHUP)
        pause, tries = threading.Event(), range(int(PATIENCE_S / 0.1))
        assert any("server.reload" in server.errors.read_text() or pause.wait(0.1) for _ in tries)
        assert "retention.local, tier.cache_size" in server.errors.read_text()
        assert server.terminate() == 0
