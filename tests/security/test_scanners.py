"""What scanners say about the code and the lock; each thing that is allowed has its reason here."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from tests.faults import figures
from tests.faults.needs import need

ROOT = Path(__file__).parents[2]
EVERYWHERE = {
    "B101": "asserts say what cannot be; nothing that a caller sends is judged by one",
    "B311": "chance is an argument: jitter and simulations; secrets come from the module secrets",
    "B404": "importing subprocess is not using it; each use is judged below",
}
ALLOWED = {
    ("store/catalog.py", "B608"): "statements are put together from column lists that stand in the module",
    ("store/inspect/catalogs.py", "B608"): "table names of a file, taken only if they are one word",
    ("store/repair/oldrows.py", "B608"): "the table names stand in the module",
    ("store/retention/evict.py", "B603"): "the program that the operator names in the settings, without a shell",
    ("cli/doctor/software.py", "B603"): "the Java that Spark would start, without a shell",
    ("cli/demo/processes.py", "B603"): "this interpreter, without a shell",
}


@pytest.mark.long
@pytest.mark.timeout(600)
def test_bandit_finds_nothing_that_has_no_reason() -> None:
    bandit = Path(sys.executable).with_name("bandit")
    if not bandit.exists():
        need("security", "bandit")
        bandit = Path(shutil.which("bandit") or "bandit")
    command = [str(bandit), "-q", "-f", "json", "-s", ",".join(EVERYWHERE), "-r", str(ROOT / "src")]
    report = json.loads(subprocess.run(command, capture_output=True, check=False).stdout)
    assert report["errors"] == []
    package = ROOT / "src" / "holdfast"
    found = {
        (str(Path(item["filename"]).relative_to(package)), item["test_id"]): f"line {item['line_number']}"
        for item in report["results"]
        if Path(item["filename"]).is_relative_to(package)
    }
    assert {key: line for key, line in found.items() if key not in ALLOWED} == {}
    assert sorted(set(ALLOWED) - set(found)) == [], "a reason for something that is gone"
    lines = report["metrics"]["_totals"]["loc"]
    figures.note("security", "bandit finds nothing without a reason", profile="long", lines=lines, reasons=len(ALLOWED))


def test_lock_has_a_hash_for_every_file() -> None:
    lock = tomllib.loads((ROOT / "uv.lock").read_text(encoding="utf-8"))
    files = [
        (package["name"], file)
        for package in lock["package"]
        for file in (*package.get("wheels", ()), *([package["sdist"]] if "sdist" in package else ()))
    ]
    assert [name for name, file in files if not file.get("hash", "").startswith("sha256:")] == []
    own = [package["name"] for package in lock["package"] if "editable" in package["source"]]
    assert own == ["holdfast"]
    figures.note("security", "the lock has a SHA-256 for every file", packages=len(lock["package"]), files=len(files))
