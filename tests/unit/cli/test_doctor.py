"""`holdfast doctor`: what it finds, and what it says to do."""

from __future__ import annotations

import json
import socket
from pathlib import Path

import pytest
from typer.testing import CliRunner

from holdfast.cli.doctor.disk import check_disk, filesystem_kind, judge_syncs
from holdfast.cli.doctor.software import check_settings, java_finding
from holdfast.cli.doctor.system import port_finding
from holdfast.cli.main import app
from holdfast.clock import SystemClock
from holdfast.disk.local import LocalFilesystem
from holdfast.testing import CrashFilesystem


def test_machine_is_looked_at_from_all_sides_and_left_as_it_was(tmp_path: Path) -> None:
    result = CliRunner().invoke(app, ["doctor", "--data", str(tmp_path), "--json"])
    document = json.loads(result.stdout)
    checks = {item["check"]: item for item in document["result"]["findings"]}
    assert {"holdfast", "extra server", "open files", "port 9000", "room", "file system", "sync", "writing"} <= set(
        checks
    )
    assert document["ok"] is (result.exit_code == 0) is all(item["state"] != "bad" for item in checks.values())
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(("middle_us", "state"), [(3.0, "bad"), (400.0, "good"), (50_000.0, "note")])
def test_sync_that_is_faster_than_any_disk_is_not_believed(middle_us: float, state: str) -> None:
    assert judge_syncs([middle_us] * 50).state == state


def test_directory_that_will_be_made_is_measured_in_its_parent(tmp_path: Path) -> None:
    found = list(check_disk(tmp_path / "a" / "b", filesystem=LocalFilesystem(), clock=SystemClock()))
    assert found[0].found.endswith("can be made")
    assert not (tmp_path / "a").exists()


def test_disk_without_room_for_the_measurement_is_a_finding() -> None:
    disk = CrashFilesystem(capacity_bytes=1 << 20)
    disk.makedir(Path("/tmp"))  # of the simulated disk; the check asks the real one whether it exists
    *_, last = check_disk(Path("/tmp"), filesystem=disk, clock=SystemClock())
    assert (last.check, last.state) == ("writing", "bad")
    assert "no room" in last.found
    assert disk.listdir(Path("/tmp")) == []


def test_kind_of_file_system_is_that_of_the_deepest_mount(tmp_path: Path) -> None:
    mounts = tmp_path / "mounts"
    mounts.write_text(f"/dev/a / ext4 rw 0 0\ntmpfs {tmp_path}/ram\\040disk tmpfs rw 0 0\n")
    assert filesystem_kind(tmp_path / "ram disk" / "data", mounts) == "tmpfs"
    assert filesystem_kind(tmp_path / "other", mounts) == "ext4"


def test_port_in_use_is_noted_with_the_setting_to_change() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        found = port_finding("server.listen", port)
        assert (found.state, "server.listen" in found.advice) == ("note", True)
    assert port_finding("server.listen", port).state == "good"


def test_java_that_is_too_old_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    java = tmp_path / "bin" / "java"
    java.parent.mkdir()
    for version, state in (("1.8.0_392", "bad"), ("21.0.1", "good")):
        java.write_text(f"#!/bin/sh\necho 'openjdk version \"{version}\" 2024' >&2\n")
        java.chmod(0o755)
        monkeypatch.setenv("JAVA_HOME", str(tmp_path))
        assert java_finding().state == state


def test_settings_that_do_not_hold_are_bad_with_their_place(tmp_path: Path) -> None:
    file = tmp_path / "holdfast.yaml"
    file.write_text("server:\n  lisen: 127.0.0.1:9000\n")
    found, ports = check_settings(file)
    assert (found.check, found.state, ports) == ("settings", "bad", {})
    assert "lisen" in found.found


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("data: x", {"server.listen": 9000, "server.admin": 9001}),
        ("server: {listen: '127.0.0.1:7000', admin: '127.0.0.1:0'}", {"server.listen": 7000}),
        (
            "otlp: {payload: raw}",
            {
                **{"server.listen": 9000, "server.admin": 9001},
                **{"otlp.listening_addr": 4317, "otlp.http_listening_addr": 4318},
            },
        ),
        (
            "otlp: {http_listening_addr: '127.0.0.1:5000'}",
            {"server.listen": 9000, "server.admin": 9001, "otlp.http_listening_addr": 5000},
        ),
    ],
)
def test_ports_that_are_looked_at_are_those_of_the_settings(
    tmp_path: Path, text: str, expected: dict[str, int]
) -> None:
    file = tmp_path / "holdfast.yaml"
    file.write_text(text + "\n", encoding="utf-8")
    found, ports = check_settings(file)
    assert (found.state, ports) == ("good", expected)
