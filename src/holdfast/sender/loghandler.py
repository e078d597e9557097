"""Log records of a program as events: a handler of the standard library's `logging`.

    logging.getLogger().addHandler(HoldfastHandler("ws::addr=127.0.0.1:9000;", channel="logs"))

Promise: logging never waits for the network, and never raises into the program: what goes wrong is told to
`logging`'s own `handleError`. Records of Holdfast and of the libraries it connects with are left out, or shipping a
record would make the next one. Importing this module needs the standard library only.
"""

from __future__ import annotations

import contextlib
import logging
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from holdfast.sender.sender import Sender

OWN_LOGGERS = ("holdfast", "picows", "asyncio", "aiofastnet")
"""Loggers whose records are left out, with all below them."""
_NS_PER_S = 1_000_000_000


class HoldfastHandler(logging.Handler):
    """Sends each record to a channel. Takes a connect string, and then owns the sender; or a sender, and then not."""

    def __init__(self, target: str | Sender, *, channel: str = "logs", level: int = logging.NOTSET) -> None:
        super().__init__(level)
        self._is_owner = isinstance(target, str)
        self._sender = _open(target) if isinstance(target, str) else target
        self._channel = channel
        self.addFilter(_is_foreign)

    def emit(self, record: logging.LogRecord) -> None:
        """Hand the record over."""
        try:
            self._sender.send(self._channel, self._row(record), at=int(record.created * _NS_PER_S))
        except Exception:
            self.handleError(record)

    def _row(self, record: logging.LogRecord) -> dict[str, Any]:
        trace = None
        if record.exc_info:
            trace = (self.formatter or _FORMATTER).formatException(record.exc_info)
        return {
            "level": record.levelname,
            "level_number": record.levelno,
            "logger": record.name,
            "message": record.getMessage(),
            "file": record.pathname,
            "line": record.lineno,
            "function": record.funcName,
            "process": record.process,
            "thread": record.threadName,
            "exception": trace,
        }

    def flush(self) -> None:
        """Publish what was handed over; does not wait for the server."""
        with contextlib.suppress(Exception):  # the records stay pending; `logging` flushes at the end of a program
            self._sender.flush()

    def close(self) -> None:
        """Close the sender if it is ours."""
        super().close()
        if self._is_owner:
            self._sender.close()


_FORMATTER = logging.Formatter()


def _open(conf: str) -> Sender:
    from holdfast.sender.sender import Sender  # noqa: PLC0415

    return Sender.from_conf(conf)


def _is_foreign(record: logging.LogRecord) -> bool:
    return record.name.partition(".")[0] not in OWN_LOGGERS
