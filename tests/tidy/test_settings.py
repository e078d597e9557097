"""The settings page is what the settings table prints."""

from __future__ import annotations

import pytest

from holdfast.config import SETTINGS, Setting, settings_markdown
from tests.tidy.tree import ROOT

PAGE = ROOT / "docs" / "reference" / "settings.md"


def test_settings_page_is_what_the_code_prints() -> None:
    assert PAGE.read_text(encoding="utf-8") == settings_markdown(), (
        "refresh it: python -m holdfast.config > docs/reference/settings.md"
    )


def test_no_two_settings_share_a_key() -> None:
    keys = [row.key for row in SETTINGS]
    assert len(keys) == len(set(keys))


@pytest.mark.parametrize("row", SETTINGS, ids=lambda row: row.key)
def test_every_setting_says_its_range_and_why(row: Setting) -> None:
    assert row.allowed_text
    assert row.why
