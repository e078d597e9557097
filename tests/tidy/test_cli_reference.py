"""The command-line page is what the commands say of themselves."""

from __future__ import annotations

import re

from tests.tidy.cli_reference import cli_markdown
from tests.tidy.tree import ROOT

PAGE = ROOT / "docs" / "reference" / "cli.md"


def test_command_line_page_is_what_the_commands_print() -> None:
    assert PAGE.read_text(encoding="utf-8") == cli_markdown(), (
        "refresh it: python -m tests.tidy.cli_reference > docs/reference/cli.md"
    )


def test_readme_names_only_commands_that_exist() -> None:
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    mentioned = set(re.findall(r"^holdfast (\w+)", readme, re.MULTILINE)) | set(re.findall(r"`holdfast (\w+)", readme))
    assert mentioned <= set(re.findall(r"^## holdfast (\w+)", cli_markdown(), re.MULTILINE))
