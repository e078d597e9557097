"""Hypothesis profiles. HOLDFAST_PROFILE chooses: `ci` (default) is the same on every run, `prove` searches further."""

import os

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
