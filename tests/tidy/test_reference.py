"""The pages of the reference that are printed are what the code prints."""

from __future__ import annotations

import pytest

from tests.tidy.reference import FOLDER, PAGES


@pytest.mark.parametrize("name", PAGES)
def test_printed_page_is_what_the_code_prints(name: str) -> None:
    assert (FOLDER / f"{name}.md").read_text(encoding="utf-8") == PAGES[name](), (
        "refresh it: python -m tests.tidy.reference"
    )


def test_every_printed_page_says_that_it_is() -> None:
    assert [name for name in PAGES if "Printed by `python -m " not in (FOLDER / f"{name}.md").read_text("utf-8")] == []
