"""Tests read as claims, and wait for nothing but conditions."""

from __future__ import annotations

import ast
from pathlib import Path

from tests.tidy.tree import TESTS, name_of, python_files, syntax

BANNED_MODULES = {"unittest.mock", "mock"}
BANNED_NAMES = {"time.sleep", "asyncio.sleep"}


def test_every_test_name_is_a_claim_of_three_words() -> None:
    short = [
        f"{name_of(path)}:{node.lineno} {node.name}"
        for path in python_files(under=TESTS)
        for node in ast.walk(syntax(path))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        if node.name.startswith("test_") and len(node.name.removeprefix("test_").split("_")) < 3
    ]
    assert short == []


def test_no_test_mocks_a_part_or_sleeps() -> None:
    assert [offence for path in python_files(under=TESTS) for offence in offences(path)] == []


def offences(path: Path) -> list[str]:
    """Imports and uses of what is banned, whatever a lint comment says."""
    found: list[str] = []
    for node in ast.walk(syntax(path)):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            names = [str(node.module), *(f"{node.module}.{alias.name}" for alias in node.names)]
        elif isinstance(node, ast.Attribute):
            names = [ast.unparse(node)]
        else:
            continue
        found += [f"{name_of(path)}:{node.lineno} {name}" for name in names if name in BANNED_MODULES | BANNED_NAMES]
    return found
