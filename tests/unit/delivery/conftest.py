"""A running server for each test."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.unit.delivery.harness import DeliveryServer


@pytest.fixture
def server(tmp_path: Path) -> Iterator[DeliveryServer]:
    """A server with delivery; ends in order."""
    with DeliveryServer(tmp_path / "data") as running:
        yield running
