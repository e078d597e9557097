"""One server for all tests of the doors."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.security.doors import Doors, open_doors


@pytest.fixture(scope="session")
def doors(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Doors]:
    """A real server with every rule of the oracle."""
    with open_doors(tmp_path_factory.mktemp("doors")) as opened:
        yield opened
