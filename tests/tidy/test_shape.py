"""Files and functions stay small, and their names say something."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

from tests.tidy.tree import name_of, python_files, syntax

MODULE_LINES_MAX = 600  # what one reads in a sitting
BODY_LINES_MAX = 60  # what fits on a screen
EMPTY_NAMES = {"utils", "util", "common", "helpers", "helper", "base", "manager", "misc"}


def functions(path: Path) -> Iterator[ast.FunctionDef | ast.AsyncFunctionDef]:
    """Every function and method of a file."""
    for node in ast.walk(syntax(path)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield node


def body_lines(function: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    """Lines from the first statement after the docstring to the last."""
    body = function.body[1:] if ast.get_docstring(function) is not None else function.body
    return (body[-1].end_lineno or 0) - body[0].lineno + 1 if body else 0


def test_no_module_is_longer_than_the_limit() -> None:
    lengths = {name_of(path): len(path.read_text(encoding="utf-8").splitlines()) for path in python_files()}
    assert {name: lines for name, lines in lengths.items() if lines > MODULE_LINES_MAX} == {}


def test_no_function_body_is_longer_than_the_limit() -> None:
    lengths = {
        f"{name_of(path)}:{function.lineno} {function.name}": body_lines(function)
        for path in python_files()
        for function in functions(path)
    }
    assert {name: lines for name, lines in lengths.items() if lines > BODY_LINES_MAX} == {}


def test_no_file_or_folder_has_an_empty_name() -> None:
    empty = [name_of(path) for path in python_files() if EMPTY_NAMES & {path.stem, path.parent.name}]
    assert empty == []
