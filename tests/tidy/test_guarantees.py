"""Guarantees on paper are guarantees in tests: the page, the markers and each other."""

from __future__ import annotations

import ast
import re
from collections import defaultdict

from tests.tidy.tree import ROOT, TESTS, name_of, python_files, syntax

PAGE = ROOT / "docs" / "reference" / "guarantees.md"
ALL = [f"G{number}" for number in range(1, 13)]
HELD, NOT_BUILT = "held by tests", "not built yet"

_ROW = re.compile(r"^\| (G\d+) \| (.+?) \| (.+?) \| (.+?) \|$", re.MULTILINE)


def statuses() -> dict[str, str]:
    """Guarantee to status, as the page says."""
    return {name: status for name, _, status, _ in _ROW.findall(PAGE.read_text(encoding="utf-8"))}


def marked() -> dict[str, list[str]]:
    """Guarantee to the files whose tests carry its marker."""
    found: dict[str, list[str]] = defaultdict(list)
    for path in python_files(under=TESTS):
        for node in ast.walk(syntax(path)):
            if isinstance(node, ast.Call) and ast.unparse(node.func) == "pytest.mark.guarantee":
                assert node.args, f"{name_of(path)}:{node.lineno}: a guarantee marker without a number"
                for argument in node.args:
                    assert isinstance(argument, ast.Constant), f"{name_of(path)}:{node.lineno}: not a literal"
                    found[str(argument.value)].append(name_of(path))
    return found


def test_page_lists_every_guarantee_once_in_order() -> None:
    assert list(statuses()) == ALL
    assert len(_ROW.findall(PAGE.read_text(encoding="utf-8"))) == len(ALL)


def test_page_uses_only_the_two_statuses() -> None:
    assert set(statuses().values()) <= {HELD, NOT_BUILT}


def test_every_marker_names_a_guarantee_of_the_page() -> None:
    assert {name: files for name, files in marked().items() if name not in ALL} == {}


def test_every_guarantee_called_held_has_a_test() -> None:
    assert [name for name, status in statuses().items() if status == HELD and name not in marked()] == []
