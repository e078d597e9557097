"""The package as people get it: built, installed into a clean environment, and used from there."""

from __future__ import annotations

import json
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

import holdfast
from tests.e2e.cleanvenv import ROOT, CleanVenv, build_distributions
from tests.e2e.served import PATIENCE_S

pytestmark = pytest.mark.long
BASE_BYTES_MAX = 400_000_000
"""Mostly pyarrow. Spark alone would be as much again."""


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_distributions(tmp_path_factory.mktemp("dist"))[0]


def test_wheel_has_types_and_the_page_and_nothing_of_the_tests(wheel: Path) -> None:
    names = set(zipfile.ZipFile(wheel).namelist())
    wanted = {"holdfast/py.typed", "pyspark_holdfast/__init__.py"}
    wanted |= {f"holdfast/console/static/{name}" for name in ("index.html", "console.js", "console.css")}
    assert wanted <= names
    tops = {name.partition("/")[0] for name in names}
    assert tops == {"holdfast", "pyspark_holdfast", f"holdfast-{holdfast.__version__}.dist-info"}
    assert not [name for name in names if name.endswith(".pyc")]


def test_base_install_is_small_and_says_which_extra_is_missing(wheel: Path, tmp_path: Path) -> None:
    clean = CleanVenv(tmp_path / "venv", wheel)
    heavy = {"pyspark", "grpcio", "starlette", "uvicorn", "pandas", "obstore", "datafusion"}
    assert not heavy & set(clean.dependencies)
    assert clean.size_bytes() < BASE_BYTES_MAX
    assert clean.run("--version").stdout == f"holdfast {holdfast.__version__}\n"
    assert "serve" in clean.run("--help").stdout
    refused = clean.run("serve")
    assert refused.returncode == 2
    assert 'pip install "holdfast[server]"' in refused.stderr
    findings = json.loads(clean.run("doctor", "--data", str(tmp_path), "--json").stdout)["result"]["findings"]
    assert {item["check"]: item["found"] for item in findings}["extra server"] == "not installed"
    code = "from holdfast import AsyncConsumer, AsyncSender, Consumer, Sender, Store, read"
    subprocess.run([str(clean.python), "-c", code], check=True, timeout=PATIENCE_S, cwd=tmp_path)


def test_installed_server_takes_events_and_gives_them_back(wheel: Path, tmp_path: Path) -> None:
    clean = CleanVenv(tmp_path / "venv", wheel, "server", "tier")
    command = clean.command("serve", "--data", "data", "--listen", "127.0.0.1:0", "--admin", "127.0.0.1:0")
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, cwd=tmp_path
    ) as server:
        try:
            assert server.stdout is not None
            line = server.stdout.readline()
            conf = f"ws::addr={line.split('data=ws://')[1].split()[0]};"
            sent = clean.run("send", "trades", "--conf", conf, text='{"price": 1.5}\n{"price": 2.5}\n')
            assert sent.returncode == 0, sent.stderr
            got = clean.run("tail", "trades", "--conf", conf, "--from", "first", "--limit", "2")
            assert [json.loads(row)["price"] for row in got.stdout.splitlines()] == [1.5, 2.5]
        finally:
            server.terminate()
            assert server.wait(PATIENCE_S) == 0
    assert clean.run("verify", str(tmp_path / "data")).returncode == 0


def test_bill_of_materials_names_every_package_of_the_lock_that_we_ship(tmp_path: Path) -> None:
    target = tmp_path / "sbom.json"
    command = ["make", "--no-print-directory", "--old-file=.venv/.ready-dev", "sbom", f"SBOM={target}"]
    subprocess.run(command, cwd=ROOT, check=True, timeout=120, stdout=sys.stderr)
    document = json.loads(target.read_text(encoding="utf-8"))
    assert document["bomFormat"] == "CycloneDX"
    assert document["metadata"]["component"]["version"] == holdfast.__version__
    names = {item["name"] for item in document["components"]}
    assert {"pyarrow", "picows", "pyspark", "obstore", "datafusion", "grpcio"} <= names
    assert not {"pytest", "hypothesis", "mypy"} & names
