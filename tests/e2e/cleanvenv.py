"""A clean virtual environment with a wheel of ours and exactly what it asks for, without a network.

What the wheel depends on is taken from the environment of the tests, file by file, as its metadata lists it.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import venv
from collections.abc import Iterator
from importlib.metadata import Distribution, distribution
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parents[2]


def build_distributions(folder: Path) -> tuple[Path, Path]:
    """The wheel and the source distribution of the working copy."""
    uv = Path(sys.executable).with_name("uv")
    command = [str(uv), "build", "--offline", "--no-build-isolation", "--quiet", "--out-dir", str(folder), str(ROOT)]
    subprocess.run(command, check=True, timeout=120)
    return next(folder.glob("*.whl")), next(folder.glob("*.tar.gz"))


class CleanVenv:
    """A virtual environment in which only a wheel and its dependencies are."""

    def __init__(self, folder: Path, wheel: Path, *extras: str) -> None:
        self.folder = folder
        self.dependencies = sorted(_closure("holdfast", extras))
        venv.create(folder, with_pip=False)
        self.python = folder / "bin" / "python"
        self.packages = next(folder.glob("lib/python*/site-packages"))
        for name in self.dependencies:
            _copy(distribution(name), self.packages)
        uv = Path(sys.executable).with_name("uv")
        install = [str(uv), "pip", "install", "--offline", "--no-deps", "--quiet", "--python", str(self.python)]
        subprocess.run([*install, str(wheel)], check=True, timeout=120)

    def command(self, *arguments: str) -> list[str]:
        """The installed command."""
        return [str(self.folder / "bin" / "holdfast"), *arguments]

    def run(self, *arguments: str, text: str = "") -> subprocess.CompletedProcess[str]:
        """Run the installed command to its end, away from the working copy."""
        environment = {name: value for name, value in os.environ.items() if name not in {"PYTHONPATH", "VIRTUAL_ENV"}}
        return subprocess.run(
            self.command(*arguments),
            input=text,
            capture_output=True,
            text=True,
            check=False,
            timeout=120,
            cwd=self.folder,
            env=environment,
        )

    def size_bytes(self) -> int:
        """Of everything that was installed."""
        return sum(path.stat().st_size for path in self.packages.rglob("*") if path.is_file())


def _closure(name: str, extras: tuple[str, ...]) -> set[str]:
    """Names of all that a distribution with these extras needs here, without itself."""
    found: set[str] = set()
    waiting = list(_requirements(name, extras))
    while waiting:
        requirement = waiting.pop()
        needed = canonicalize_name(requirement.name)
        if needed not in found:
            found.add(needed)
            waiting += _requirements(needed, tuple(requirement.extras))
    return found - {name}


def _requirements(name: str, extras: tuple[str, ...]) -> Iterator[Requirement]:
    for line in distribution(name).requires or ():
        requirement = Requirement(line)
        if requirement.marker is None or any(requirement.marker.evaluate({"extra": extra}) for extra in ("", *extras)):
            yield requirement


def _copy(found: Distribution, packages: Path) -> None:
    for file in found.files or ():
        source = Path(str(found.locate_file(file))).resolve()
        if ".." in file.parts or not source.is_file():
            continue
        target = packages / Path(*file.parts)
        target.parent.mkdir(parents=True, exist_ok=True)
        try:
            os.link(source, target)
        except OSError:  # another file system
            shutil.copy2(source, target)
