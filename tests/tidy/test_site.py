"""The documentation site builds without a warning, has every page, and loads nothing from elsewhere."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

from tests.tidy.tree import ROOT

_LOADED = re.compile(r'<(?:script|img|link|iframe)[^>]+(?:src|href)="(https?:)?//', re.IGNORECASE)


def test_site_builds_strictly_with_every_page_and_no_foreign_file(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", str(tmp_path / "site")]
    done = subprocess.run(
        command, cwd=ROOT, capture_output=True, text=True, check=False, env={**os.environ, "NO_MKDOCS_2_WARNING": "1"}
    )
    assert done.returncode == 0, done.stdout + done.stderr
    pages = {path.relative_to(ROOT / "docs").with_suffix(".html") for path in (ROOT / "docs").rglob("*.md")}
    built = {path.relative_to(tmp_path / "site") for path in (tmp_path / "site").rglob("*.html")}
    assert pages <= built
    assert {Path("architecture.html"), Path("changelog.html")} <= built
    foreign = [path.name for path in (tmp_path / "site").rglob("*.html") if _LOADED.search(path.read_text("utf-8"))]
    assert foreign == []
