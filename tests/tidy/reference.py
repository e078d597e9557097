"""Every page of the docs that is printed from the code, and the one command that prints them all.

python -m tests.tidy.reference
"""

from __future__ import annotations

from collections.abc import Callable

from holdfast.config import settings_markdown
from holdfast.dataflow.pages import dataflow_markdown, schema_markdown
from holdfast.sender.confpage import connect_string_markdown
from tests.tidy.cli_reference import cli_markdown
from tests.tidy.errors_reference import errors_markdown
from tests.tidy.http_reference import http_markdown
from tests.tidy.metrics_reference import metrics_markdown
from tests.tidy.python_reference import python_markdown
from tests.tidy.tree import ROOT

FOLDER = ROOT / "docs" / "reference"
PAGES: dict[str, Callable[[], str]] = {
    "cli": cli_markdown,
    "connect-string": connect_string_markdown,
    "dataflow": dataflow_markdown,
    "errors": errors_markdown,
    "metrics": metrics_markdown,
    "openapi": http_markdown,
    "otlp-schema": schema_markdown,
    "python-api": python_markdown,
    "settings": settings_markdown,
}


def main() -> None:
    """Write the pages that differ, and say which."""
    for name, printed in PAGES.items():
        path, text = FOLDER / f"{name}.md", printed()
        if not path.exists() or path.read_text(encoding="utf-8") != text:
            path.write_text(text, encoding="utf-8")
            print(f"wrote {path.relative_to(ROOT)}")  # noqa: T201


if __name__ == "__main__":
    main()
