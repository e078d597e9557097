"""Project files speak of the project: no paths of one machine, no private package index."""

from __future__ import annotations

import re
from urllib.parse import urlsplit

from tests.tidy.tree import ROOT, name_of, project_files

# Someone's own directories at the start of an absolute path. In a URL or a relative path the slash follows a word.
_OWN_DIRECTORY = re.compile(r"(?:file:/|(?<![\w.:/~$}>*-]))/(?:root|home|Users|work|workspace|builds|tmp)/[\w.]")
_TICKET = re.compile(r"\b(?:issue|ticket)\s+#?\d+|\bissues\s+#\d+", re.IGNORECASE)
_LOCK_HOSTS = {"pypi.org", "files.pythonhosted.org"}


def offences(pattern: re.Pattern[str]) -> list[str]:
    """Every line that matches, as file, line and match."""
    found: list[str] = []
    for path in project_files():
        for number, line in enumerate(path.read_text(encoding="utf-8", errors="ignore").splitlines(), start=1):
            found += [f"{name_of(path)}:{number}: {match.group()}" for match in pattern.finditer(line)]
    return found


def test_no_file_names_a_directory_of_one_machine() -> None:
    assert offences(_OWN_DIRECTORY) == []


def test_no_file_points_at_a_ticket_instead_of_saying_why() -> None:
    assert offences(_TICKET) == []


def test_lock_names_no_host_but_the_public_index() -> None:
    urls = re.findall(r'"(https?://[^"]+)"', (ROOT / "uv.lock").read_text(encoding="utf-8"))
    assert {urlsplit(url).netloc for url in urls} == _LOCK_HOSTS


def test_lock_takes_no_package_from_a_local_directory() -> None:
    sources = set(re.findall(r"^source = \{ (\w+) = ", (ROOT / "uv.lock").read_text(encoding="utf-8"), re.MULTILINE))
    assert sources == {"registry", "editable"}  # editable is Holdfast itself
