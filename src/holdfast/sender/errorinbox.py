"""A bounded inbox in front of a handler of the user's: offering never blocks, a slow handler costs the oldest items.

Items are handed over one by one, in order, by a daemon thread that starts with the first item. The newest are kept,
since the latest news says most. What a handler raises is logged and ends nothing. Closing waits for the handler, but
not long, and not at all when the handler itself closes.
"""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Callable
from typing import Generic, TypeVar

from holdfast.sender.happenings import ConnectionEvent, EventKind, SenderError
from holdfast.telemetry import event

_Item = TypeVar("_Item")


class Inbox(Generic[_Item]):
    """Items for one handler. Thread-safe."""

    def __init__(self, handler: Callable[[_Item], None], *, capacity: int, name: str) -> None:
        self._handler = handler
        self._capacity = capacity
        self._name = name
        self._items: deque[_Item] = deque()
        self._changed = threading.Condition()
        self._thread: threading.Thread | None = None
        self._closed = False
        self._busy = False
        self.delivered = 0
        self.dropped = 0

    def offer(self, item: _Item) -> None:
        """Queue an item; the oldest one goes if there is no room. After `close` it is dropped."""
        with self._changed:
            if self._closed:
                self.dropped += 1
                return
            if len(self._items) >= self._capacity:
                self._items.popleft()
                self.dropped += 1
            self._items.append(item)
            if self._thread is None:
                self._thread = threading.Thread(target=self._dispatch, name=self._name, daemon=True)
                self._thread.start()
            self._changed.notify_all()

    def _dispatch(self) -> None:
        while True:
            with self._changed:
                self._busy = False
                self._changed.notify_all()
                while not self._items:
                    if self._closed:
                        return
                    self._changed.wait()
                item = self._items.popleft()
                self._busy = True
            try:
                self._handler(item)
            except Exception as error:
                event("sender.handler.fail", level=logging.ERROR, handler=self._name, error=repr(error))
            self.delivered += 1

    def flush(self, timeout_s: float) -> bool:
        """Whether everything offered so far was handled within that time."""
        if threading.current_thread() is self._thread:
            return False
        with self._changed:
            return self._changed.wait_for(lambda: not self._items and not self._busy, timeout_s)

    def close(self, timeout_s: float) -> None:
        """Hand over what is here, then stop; give up on a handler that takes longer."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()
        thread = self._thread
        if thread is not None and thread is not threading.current_thread():
            thread.join(timeout_s)


def log_error(error: SenderError) -> None:
    """The handler of errors when there is no other."""
    event(
        "sender.server.refused",
        level=logging.ERROR if error.policy.value == "halt" else logging.WARNING,
        category=error.category.name,
        policy=error.policy.value,
        first_fsn=error.first_fsn,
        last_fsn=error.last_fsn,
        address=error.address,
        message=error.message,
        kept_in=error.kept_in or "(nowhere)",
    )


_LOUD = {EventKind.DISCONNECTED, EventKind.ALL_ENDPOINTS_UNREACHABLE, EventKind.AUTH_FAILED}


def log_event(happened: ConnectionEvent) -> None:
    """What the log says of the connection."""
    event(
        f"sender.link.{happened.kind.value}",
        level=logging.WARNING if happened.kind in _LOUD else logging.INFO,
        address=happened.address,
        reason=happened.reason,
        attempts=happened.attempts,
        outage_s=f"{happened.outage_s:.3f}",
    )
