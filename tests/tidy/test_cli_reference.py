"""The command-line page is what the commands say of themselves."""

from __future__ import annotations

import re
from typing import Any

import typer.main

from holdfast.cli.examples import EXAMPLES
from holdfast.cli.main import app
from tests.tidy.cli_reference import cli_markdown, commands
from tests.tidy.tree import ROOT

PAGE = ROOT / "docs" / "reference" / "cli.md"


def test_command_line_page_is_what_the_commands_print() -> None:
    assert PAGE.read_text(encoding="utf-8") == cli_markdown(), (
        "refresh it: python -m tests.tidy.cli_reference > docs/reference/cli.md"
    )


def test_every_command_has_an_example_that_begins_with_its_name() -> None:
    root: Any = typer.main.get_command(app)
    leaves = [name for name, command in commands("holdfast", root) if not hasattr(command, "commands")]
    assert {name.removeprefix("holdfast ") for name in leaves} == set(EXAMPLES)
    for name, lines in EXAMPLES.items():
        assert lines, name
        for line in lines:
            assert f"holdfast {name}" in line


def test_every_command_prints_json_if_asked_to() -> None:
    root: Any = typer.main.get_command(app)
    for name, command in commands("holdfast", root):
        options = {text for item in command.params for text in item.opts}
        assert "--json" in options or hasattr(command, "commands"), name


def test_examples_use_only_options_that_exist() -> None:
    root: Any = typer.main.get_command(app)
    known = {name.removeprefix("holdfast "): command for name, command in commands("holdfast", root)}
    for name, lines in EXAMPLES.items():
        options = {text for item in known[name].params for text in item.opts}
        for line in lines:
            assert set(re.findall(r"(?<= )--?[a-z][a-z-]*", line)) <= options, line


def test_readme_names_only_commands_that_exist() -> None:
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    mentioned = set(re.findall(r"^holdfast (\w+)", readme, re.MULTILINE)) | set(re.findall(r"`holdfast (\w+)", readme))
    mentioned.discard("ready")  # what a server prints
    assert mentioned <= set(re.findall(r"^## holdfast (\w+)", cli_markdown(), re.MULTILINE))
