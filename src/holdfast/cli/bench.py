"""`holdfast bench`: the benchmarks, which are part of the source and not of the package."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

import holdfast
from holdfast.cli.answer import ExitCode, answer_json
from holdfast.errors import BadRequest


def run(names: Sequence[str], *, quick: bool, as_json: bool) -> int:
    """Run `python -m bench` of the working copy this package is installed from; its exit code."""
    root = Path(holdfast.__file__).parents[2]
    if not (root / "bench" / "__main__.py").exists():
        raise BadRequest(
            "the benchmarks are part of the source and not of the installed package; get the source of this version, "
            "then run: make bench"
        )
    command = [sys.executable, "-m", "bench", *names, *(["--quick"] if quick else [])]
    if not as_json:
        return subprocess.run(command, cwd=root, check=False).returncode  # noqa: S603  our own module
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "results.json"
        ended = subprocess.run([*command, "--json", str(file)], cwd=root, stdout=sys.stderr, check=False)  # noqa: S603
        if ended.returncode != 0:
            return ended.returncode
        answer_json("bench", json.loads(file.read_text(encoding="utf-8")))
    return ExitCode.DONE
