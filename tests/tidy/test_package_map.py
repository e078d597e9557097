"""The maps in the docstrings name what is there, no more and no less."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest

import holdfast
from tests.tidy.tree import PACKAGE, ROOT, docstring, modules_of, name_of, python_files

_MAP_LINE = re.compile(r"^    (\w+)  +\S", re.MULTILINE)
# A row or list item that opens with a file or a folder: `| wal.py | …`, `- wal.py: …`, `wal/    …`
_FILE_ROW = re.compile(r"^[\s|*`-]*(\w+)(?:\.py|/)(?=[\s|`:])", re.MULTILINE)

PACKAGES = sorted({path.parent for path in python_files(under=PACKAGE)} - {PACKAGE})


def test_package_map_names_every_part_and_nothing_else() -> None:
    assert sorted(_MAP_LINE.findall(docstring(PACKAGE / "__init__.py"))) == sorted(modules_of(PACKAGE))


@pytest.mark.parametrize("package", PACKAGES, ids=name_of)
def test_package_docstring_lists_every_module_and_nothing_else(package: Path) -> None:
    assert (package / "__init__.py").exists(), f"{name_of(package)} has no __init__.py with a table file → purpose"
    assert sorted(_FILE_ROW.findall(docstring(package / "__init__.py"))) == sorted(modules_of(package))


@pytest.mark.parametrize("module", python_files(under=PACKAGE), ids=name_of)
def test_every_module_opens_with_its_promise(module: Path) -> None:
    assert docstring(module), f"{name_of(module)} has no docstring"


def test_architecture_names_every_part_of_the_package() -> None:
    text = (ROOT / "ARCHITECTURE.md").read_text(encoding="utf-8")
    built = re.findall(r"^\| `(\w+)(?:/|\.py)` \|", text, re.MULTILINE)
    assert sorted(built) == sorted(modules_of(PACKAGE))


def test_version_is_the_same_in_code_and_project_file() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    assert holdfast.__version__ == project["version"]


def test_changelog_has_an_entry_for_this_version() -> None:
    text = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    assert re.search(rf"^## {re.escape(holdfast.__version__)}\b", text, re.MULTILINE)
