"""Examples in the docstrings of what is public: they are run, against a real server."""

from __future__ import annotations

import asyncio
import doctest
import inspect
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import holdfast
from tests.e2e.page import Block, PageRun
from tests.tidy.python_reference import PUBLIC

WITH_EXAMPLE = {"Sender", "AsyncSender", "Consumer", "AsyncConsumer", "Store", "read"}
NAMES = {name: getattr(holdfast, name) for name in WITH_EXAMPLE} | {"asyncio": asyncio, "holdfast": holdfast, "pa": pa}


def run_example(name: str, item: Any, run: PageRun) -> str:
    """What is wrong with it; nothing if all is well."""
    text = run.moved(inspect.getdoc(item) or "")
    test = doctest.DocTestParser().get_doctest(text, dict(NAMES), name, None, None)
    said: list[str] = []
    doctest.DocTestRunner(verbose=False).run(test, out=said.append)
    return "".join(said)


def test_examples_in_public_docstrings_run_and_print_what_they_say(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with PageRun(tmp_path) as run:
        monkeypatch.chdir(tmp_path / ".bin")
        run.block(Block("yaml", "stage.yaml", "data: served\nretention: {mode: limits}\n", ""))
        run.block(Block("sh", "terminal 0", "holdfast serve -c stage.yaml\n", ""))
        run.block(Block("text", "terminal 0", "holdfast ready …\n", ""))
        examples = [(name, item) for name, item in PUBLIC if ">>> " in (inspect.getdoc(item) or "")]
        assert {name.rpartition(".")[2] for name, _ in examples} >= WITH_EXAMPLE
        assert [run_example(name, item, run) for name, item in examples] == [""] * len(examples)
