"""Commands on the pages exist, with their options; also those that no test can run."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import typer.main

from holdfast.cli.main import app
from tests.e2e.page import blocks_of
from tests.tidy.tree import name_of, project_files

PAGES = [path for path in project_files() if path.suffix == ".md" and "decisions" not in path.parts]
PROGRAM: Any = typer.main.get_command(app)
_SEPARATORS = {"|", "&&", ";", ">", ">>", "<", "2>&1", "&"}


def typed(path: Path) -> Iterator[list[str]]:
    """The words of every `holdfast …` in the shell blocks of a page."""
    for block in blocks_of(path.read_text(encoding="utf-8")):
        for command in block.commands() if block.language == "sh" else ():
            words = shlex.split(re.sub(r"([|;&])", r" \1 ", command) if "'" not in command else command, comments=True)
            while words:
                end = next((at for at, word in enumerate(words) if word in _SEPARATORS), len(words))
                if words[0].rpartition("/")[2] == "holdfast":
                    yield words[1:end]
                words = words[end + 1 :]


def unknown(words: list[str]) -> str:
    """What the program would not understand; nothing if all is well."""
    command = PROGRAM
    rest = list(words)
    while rest and rest[0] in getattr(command, "commands", {}):
        command = command.commands[rest.pop(0)]
    if getattr(command, "commands", None) and rest and not rest[0].startswith("-"):
        return rest[0]
    known = {option for item in command.params for option in (*item.opts, *item.secondary_opts)} | {"--help", "-h"}
    return " ".join(word for word in rest if re.match(r"--?[a-z]", word) and word.partition("=")[0] not in known)


def test_commands_of_all_pages_exist_with_their_options() -> None:
    wrong = [f"{name_of(path)}: {' '.join(words)}" for path in PAGES for words in typed(path) if unknown(words)]
    assert wrong == []


def test_looking_for_unknown_commands_would_find_them() -> None:
    assert unknown(["serve", "--no-such-option"]) == "--no-such-option"
    assert unknown(["token", "paint"]) == "paint"
    assert unknown(["channels", "ls", "--data", "data"]) == ""
    assert sum(len(list(typed(path))) for path in PAGES) > 60
