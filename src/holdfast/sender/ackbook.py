"""Who waits for which frame, and which frames were refused: futures that end when the server has answered.

A future ends with its FSN once the frame is acknowledged, with `FrameRefused` if the server refused it for good, or
with the error that ended the sender. Refusals are remembered for a while, so that asking later is answered too.
Thread-safe; callbacks of futures run on the thread that calls `acked`.
"""

from __future__ import annotations

import heapq
import itertools
import threading
from collections import deque
from concurrent.futures import Future

from holdfast.errors import FrameRefused, HoldfastError
from holdfast.sender.happenings import SenderError

REFUSALS_MAX = 4096
"""Refused spans that are remembered; the oldest go first. Their copies stay in the slot."""

CANCELLED_MIN = 1024
"""Futures that may wait before those are looked for that were cancelled."""


class AckBook:
    """Futures by frame."""

    def __init__(self) -> None:
        self._lock = threading.Condition()
        self._order = itertools.count()
        self._waiting: list[tuple[int, int, Future[int]]] = []
        self._refusals: deque[SenderError] = deque(maxlen=REFUSALS_MAX)
        self._setting_aside: SenderError | None = None
        self._forget_at = CANCELLED_MIN
        self._acked = -1
        self._failure: HoldfastError | None = None

    @property
    def is_waited_for(self) -> bool:
        """Whether somebody waits."""
        return bool(self._waiting)

    def future(self, fsn: int, acked_fsn: int) -> Future[int]:
        """What ends with the frame. `acked_fsn` is how far the server is, read before this call."""
        future: Future[int] = Future()
        with self._lock:
            self._acked = max(self._acked, acked_fsn)
            if self._acked < fsn and self._failure is None:
                if len(self._waiting) >= self._forget_at:
                    self._forget_cancelled()
                heapq.heappush(self._waiting, (fsn, next(self._order), future))
                return future
        self._finish(future, fsn)
        return future

    def _forget_cancelled(self) -> None:
        """Nobody waits for these any more; who asks with short timeouts during an outage leaves many."""
        self._waiting = [item for item in self._waiting if not item[2].cancelled()]
        heapq.heapify(self._waiting)
        self._forget_at = max(CANCELLED_MIN, 2 * len(self._waiting))

    def refusal_of(self, fsn: int) -> FrameRefused | None:
        """Why the frame is not with the server although it is acknowledged; waits while it is being set aside."""
        with self._lock:
            while self._setting_aside is not None and _concerns(self._setting_aside, fsn):
                self._lock.wait()
            for error in reversed(self._refusals):
                if _concerns(error, fsn):
                    return FrameRefused(fsn=fsn, category=error.category, reason=error.message, kept_in=error.kept_in)
        return None

    def refusing(self, error: SenderError) -> None:
        """Frames are about to be given up: call this before they count as acknowledged, then `refused` or `failed`."""
        with self._lock:
            self._setting_aside = error

    def refused(self, error: SenderError) -> None:
        """Frames were given up."""
        with self._lock:
            self._refusals.append(error)
            self._setting_aside = None
            self._lock.notify_all()

    def acked(self, fsn: int) -> None:
        """The server has answered for everything up to this frame."""
        ended: list[tuple[int, int, Future[int]]] = []
        with self._lock:
            self._acked = max(self._acked, fsn)
            while self._waiting and self._waiting[0][0] <= self._acked:
                ended.append(heapq.heappop(self._waiting))
        for number, _, future in ended:
            self._finish(future, number)

    def failed(self, error: HoldfastError) -> None:
        """Nothing more will be acknowledged."""
        with self._lock:
            self._failure = self._failure or error
            self._setting_aside = None
            self._lock.notify_all()
            ended, self._waiting = sorted(self._waiting, key=lambda item: item[:2]), []
        for number, _, future in ended:
            self._finish(future, number)

    def _finish(self, future: Future[int], fsn: int) -> None:
        if not future.set_running_or_notify_cancel():
            return
        refusal = self.refusal_of(fsn)
        if refusal is not None:
            future.set_exception(refusal)
        elif self._acked >= fsn:
            future.set_result(fsn)
        else:
            assert self._failure is not None
            future.set_exception(self._failure)


def _concerns(error: SenderError, fsn: int) -> bool:
    return error.first_fsn <= fsn <= error.last_fsn
