"""The tree that the tidy tests read: which files there are, and their syntax.

Files are those that git tracks or would track; without git, everything outside the directories that tools make.
"""

from __future__ import annotations

import ast
import shutil
import subprocess
from collections.abc import Iterator
from functools import cache
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = ROOT / "src" / "holdfast"
TESTS = ROOT / "tests"

_MADE_BY_TOOLS = {"build", "data", "demo-data", "dist", "__pycache__"}


@cache
def project_files() -> tuple[Path, ...]:
    """Every file that is part of the project."""
    return tuple(sorted(path for path in (_from_git() or _from_walk(ROOT)) if path.is_file()))


def _from_git() -> list[Path]:
    git = shutil.which("git")
    if git is None or not (ROOT / ".git").exists():
        return []
    command = [git, "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    listing = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    return [ROOT / name for name in listing.stdout.split("\0") if name]


def _from_walk(directory: Path) -> Iterator[Path]:
    for path in directory.iterdir():
        if path.is_file():
            yield path
        elif path.name == ".ci" or not (path.name.startswith(".") or path.name in _MADE_BY_TOOLS):
            yield from _from_walk(path)


def python_files(*, under: Path = ROOT) -> list[Path]:
    """The project's Python files below a directory."""
    return [path for path in project_files() if path.suffix == ".py" and path.is_relative_to(under)]


@cache
def syntax(path: Path) -> ast.Module:
    """The parsed file."""
    return ast.parse(path.read_text(encoding="utf-8"), filename=str(path))


def docstring(path: Path) -> str:
    """The module docstring, as it is after import."""
    return ast.get_docstring(syntax(path)) or ""


def name_of(path: Path) -> str:
    """How a message calls the file."""
    return path.relative_to(ROOT).as_posix()


def modules_of(package: Path) -> set[str]:
    """The names of the modules and packages directly inside a package."""
    files = {path for path in python_files(under=package) if path.name != "__init__.py"}
    modules = {path.stem for path in files if path.parent == package}
    packages = {path.relative_to(package).parts[0] for path in python_files(under=package) if path.parent != package}
    return modules | packages
