"""Hypothesis profiles, and an account of what was skipped.

HOLDFAST_PROFILE chooses the profile: `ci` (default) is the same on every run, `prove` searches further. Every run ends
with one line for each reason to skip a test, and how many were: what a machine lacks is never passed over in silence.
"""

import os
from collections import Counter

import pytest
from hypothesis import HealthCheck, settings

os.environ.pop("COLUMNS", None)  # the width of the terminal that started the tests is none of our output

# A slow machine is not a wrong program: neither the deadline nor the speed of drawing examples may fail a test.
settings.register_profile(
    "ci", max_examples=60, deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow]
)
settings.register_profile(
    "prove", max_examples=2000, deadline=None, print_blob=True, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile(os.environ.get("HOLDFAST_PROFILE", "ci"))


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Say how many tests were skipped for which reason; a module that could not be imported counts as one."""
    reasons = Counter(_reason(report.longrepr) for report in terminalreporter.stats.get("skipped", ()))
    if reasons:
        terminalreporter.section(f"{reasons.total()} skipped, by reason")
        for reason, tests in sorted(reasons.items(), key=lambda found: (-found[1], found[0])):
            terminalreporter.write_line(f"{tests:5} {reason}")


def _reason(told: object) -> str:
    """Of a skip: pytest tells file, line and reason; on one line."""
    text = str(told[2]) if isinstance(told, tuple) else str(told)
    return " ".join(text.removeprefix("Skipped: ").split())
