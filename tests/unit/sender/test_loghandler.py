"""Log records as events: they arrive, and logging never suffers."""

from __future__ import annotations

import logging
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from holdfast.sender.loghandler import HoldfastHandler
from holdfast.sender.sender import Sender
from tests.unit.server.harness import RunningServer

PATIENCE_S = 30.0


@pytest.fixture
def logger() -> Iterator[logging.Logger]:
    found = logging.getLogger("test.shipped")
    found.setLevel(logging.INFO)
    yield found
    for handler in list(found.handlers):
        found.removeHandler(handler)


def test_records_arrive_with_level_place_and_exception(tmp_path: Path, logger: logging.Logger) -> None:
    with RunningServer(tmp_path / "data") as server:
        handler = HoldfastHandler(f"ws::addr=127.0.0.1:{server.port};")
        logger.addHandler(handler)
        logger.info("hello %s", "world")
        try:
            raise KeyError("missing")
        except KeyError:
            logger.exception("it failed")
        logger.debug("below the level")
        handler.close()
        assert server.rows("logs", "message") == ["hello world", "it failed"]
        assert server.rows("logs", "level") == ["INFO", "ERROR"]
        assert server.rows("logs", "function") == ["test_records_arrive_with_level_place_and_exception"] * 2
        assert "KeyError: 'missing'" in str(server.rows("logs", "exception")[1])
        assert None not in server.rows("logs", "timestamp")


def test_records_of_the_sender_itself_are_left_out(tmp_path: Path, logger: logging.Logger) -> None:
    with RunningServer(tmp_path / "data") as server, Sender(addr=f"127.0.0.1:{server.port}") as sender:
        handler = HoldfastHandler(sender, channel="own")
        for name in ("holdfast", "picows.client"):
            own = logging.getLogger(name)
            own.addHandler(handler)
            own.error("not shipped")
            own.removeHandler(handler)
        logger.addHandler(handler)
        logger.error("shipped")
        handler.flush()
        handler.close()
        assert sender.drain(PATIENCE_S)
        assert server.rows("own", "message") == ["shipped"]


def test_failing_sender_does_not_hurt_the_program(tmp_path: Path, logger: logging.Logger) -> None:
    told: list[logging.LogRecord] = []

    class Telling(HoldfastHandler):
        def handleError(self, record: logging.LogRecord) -> None:
            told.append(record)

    with RunningServer(tmp_path / "data") as server:
        handler = Telling(f"ws::addr=127.0.0.1:{server.port};")
        logger.addHandler(handler)
        handler.close()
        logger.error("after the end")
        handler.flush()
    assert [record.getMessage() for record in told] == ["after the end"]


def test_importing_the_handler_needs_the_standard_library_only() -> None:
    code = "import sys, holdfast.sender.loghandler; assert not {'pyarrow', 'numpy', 'picows'} & set(sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
