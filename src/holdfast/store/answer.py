"""The answer to come of a commit: a `concurrent.futures.Future` that costs almost nothing until somebody waits.

A stock future makes a lock and a condition when it is born; most commits are answered before anyone looks. This one is
born empty. `result` in one thread waits on a bare lock; everything else (callbacks, `concurrent.futures.wait`,
`asyncio.wrap_future`, a second waiter) makes the stock future's state first and works as usual.

Why nothing is missed without a lock: the one who answers stores the answer, then looks for waiters; the one who waits
makes himself known, then looks for the answer. Whatever the order, one of them sees the other. The answer goes into a
stock state that was made meanwhile under `_HANDOVER`, once.
"""

from __future__ import annotations

import threading
from concurrent.futures import Future
from typing import Any

from holdfast.errors import again
from holdfast.model.frame import FrameReceipt

_HANDOVER = threading.Lock()


class CommitFuture(Future[FrameReceipt]):
    """The answer to come. It cannot be cancelled: the frame may already be on its way to the disk."""

    _answer: FrameReceipt | BaseException | None = None
    _waiter: threading.Lock | None = None
    _handed_over = False

    def __init__(self) -> None:  # the stock state is made by `__getattr__`, if ever
        """No state until it is needed."""

    def __getattr__(self, name: str) -> Any:
        """A part of the stock state is asked for: make all of it."""
        if name.startswith("__") or name not in _STOCK:
            raise AttributeError(name)
        with _HANDOVER:
            if "_condition" not in self.__dict__:
                state = Future[FrameReceipt]().__dict__
                condition = state.pop("_condition")
                self.__dict__.update(state)
                self._condition = condition  # last: it says that the rest is there
        self._hand_over()
        return self.__dict__[name]

    def cancel(self) -> bool:
        """Always False."""
        return False

    def done(self) -> bool:
        """Whether the answer is there."""
        return self._answer is not None

    def set_result(self, result: FrameReceipt) -> None:
        """Answer."""
        self._set(result)

    def set_exception(self, exception: BaseException | None) -> None:
        """Refuse."""
        assert exception is not None
        self._set(exception)

    def result(self, timeout: float | None = None) -> FrameReceipt:
        """The receipt, or why there is none; waits for it."""
        answer = self._answer
        if answer is None:
            answer = self._wait(timeout)
        if isinstance(answer, BaseException):
            raise again(answer)
        return answer

    def _set(self, answer: FrameReceipt | BaseException) -> None:
        self._answer = answer
        if self._waiter is not None:
            self._waiter.release()
        if "_condition" in self.__dict__:
            self._hand_over()

    def _wait(self, timeout: float | None) -> FrameReceipt | BaseException:
        waiter = threading.Lock()
        waiter.acquire()
        if self.__dict__.setdefault("_waiter", waiter) is not waiter:
            error = super().exception(timeout)  # not the only one who waits
            return error if error is not None else super().result(timeout)
        if self._answer is None and not waiter.acquire(timeout=-1 if timeout is None else timeout):
            raise TimeoutError
        answer = self._answer
        assert answer is not None
        return answer

    def _hand_over(self) -> None:
        """Put the answer into the stock state, once."""
        answer = self._answer
        if answer is None:
            return
        with _HANDOVER:
            if self._handed_over:
                return
            self._handed_over = True
        if isinstance(answer, BaseException):
            super().set_exception(answer)
        else:
            super().set_result(answer)


_STOCK = frozenset(Future[FrameReceipt]().__dict__)
