"""What the README promises is there; that its commands and code work is for `tests/e2e/test_pages.py`."""

from __future__ import annotations

import re

from tests.tidy.tree import ROOT, project_files

README = (ROOT / "README.md").read_text(encoding="utf-8")
MAKEFILE = (ROOT / "Makefile").read_text(encoding="utf-8")

_TARGET = re.compile(r"^([a-z]+):", re.MULTILINE)
_FENCE = re.compile(r"^```(\w+)\n(.*?)^```", re.MULTILINE | re.DOTALL)
_LINK = re.compile(r"\]\((?!https?:|#)([^)#]+)")


def blocks(text: str, *, language: str) -> list[str]:
    """The fenced blocks of one language."""
    return [body for name, body in _FENCE.findall(text) if name == language]


def test_readme_opens_with_the_two_commands() -> None:
    first = blocks(README, language="sh")[0].splitlines()
    assert [line.split("#")[0].strip() for line in first] == ["make demo", "make test"]


def test_make_targets_in_the_docs_exist() -> None:
    pages = [path for path in project_files() if path.suffix == ".md"]
    mentioned = {name for page in pages for name in re.findall(r"`?\bmake ([a-z]+)`", page.read_text(encoding="utf-8"))}
    mentioned |= set(re.findall(r"^make ([a-z]+)", "\n".join(blocks(README, language="sh")), re.MULTILINE))
    assert mentioned <= set(_TARGET.findall(MAKEFILE))


def test_every_make_target_says_what_it_does() -> None:
    assert [line for line in MAKEFILE.splitlines() if _TARGET.match(line) and " ## " not in line] == []


def test_links_between_the_docs_lead_somewhere() -> None:
    dead = [
        f"{page.relative_to(ROOT)}: {target}"
        for page in project_files()
        if page.suffix == ".md"
        for target in _LINK.findall(page.read_text(encoding="utf-8"))
        if not (page.parent / target).exists()
    ]
    assert dead == []
