"""What MkDocs is told while it builds the site (`mkdocs.yml`, `hooks`).

- Pages of the repository's root (architecture, changelog, …) are pages of the site.
- Pages that the navigation does not name are put under their folder: every decision is found without a list by hand.
- A link that leaves the site (to an example, to a test) becomes its text; that its target exists is for a test.
"""

from __future__ import annotations

import posixpath
import re
from pathlib import Path
from typing import Any

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

ROOT = Path(__file__).resolve().parents[1]
ROOT_PAGES = {
    "ARCHITECTURE.md": "architecture.md",
    "CHANGELOG.md": "changelog.md",
    "CONTRIBUTING.md": "contributing.md",
    "SECURITY.md": "security.md",
    "README.md": "index.md",
}
FOLDERS = {
    "howto": "How to",
    "reference": "Reference",
    "design": "Why it holds",
    ".": "Why it holds",
    "decisions": "Decisions",
}

_LINK = re.compile(r"(?<!\!)\[(?P<text>[^\]]*)\]\((?P<target>(?!https?:|mailto:|#)[^)#\s]+)(?P<anchor>#[^)\s]*)?\)")


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """Add the pages that the navigation does not name."""
    nav: list[Any] = list(config.nav or [])
    named = set(_paths(nav))
    for folder, title in FOLDERS.items():
        found = sorted((ROOT / "docs" / folder).glob("*.md"))
        rest = [path.relative_to(ROOT / "docs").as_posix() for path in found]
        rest = [path for path in rest if path not in named]
        section = next((entry[title] for entry in nav if title in entry), None)
        if section is None:
            nav.append({title: rest})
        else:
            section.extend(rest)
    config.nav = nav
    return config


def _paths(nav: Any) -> list[str]:
    if isinstance(nav, str):
        return [nav]
    items = nav.values() if isinstance(nav, dict) else nav
    return [path for item in items for path in _paths(item)]


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the pages of the root."""
    for name, page in ROOT_PAGES.items():
        if name != "README.md":
            files.append(File.generated(config, page, content=(ROOT / name).read_text(encoding="utf-8")))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:  # noqa: ARG001
    """Lead every link to a page of the site, or take it away."""
    source = page.file.src_uri
    return _LINK.sub(lambda match: _led(match, source), markdown)


def _led(match: re.Match[str], source: str) -> str:
    """The link as the page at `source` needs it."""
    home = next((f"{name}" for name, page in ROOT_PAGES.items() if page == source and name != "README.md"), "")
    place = home or f"docs/{source}"
    target = posixpath.normpath(posixpath.join(posixpath.dirname(place), match["target"]))
    site = ROOT_PAGES.get(target) or (target.removeprefix("docs/") if target.startswith("docs/") else "")
    if not site:
        return match["text"]
    relative = posixpath.relpath(site, posixpath.dirname(source) or ".")
    return f"[{match['text']}]({relative}{match['anchor'] or ''})"
