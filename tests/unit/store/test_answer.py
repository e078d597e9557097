"""The answer to come: everything a stock future can do, whenever it is asked."""

from __future__ import annotations

import asyncio
import threading
from concurrent.futures import FIRST_COMPLETED, Future, as_completed, wait

import pytest

from holdfast.errors import Closed
from holdfast.model.frame import Durability, FrameReceipt
from holdfast.store.answer import CommitFuture

RECEIPT = FrameReceipt((), duplicate=False, durability=Durability.SYNCED)


def test_answer_that_is_there_is_returned_at_once() -> None:
    future = CommitFuture()
    assert not future.done()
    future.set_result(RECEIPT)
    assert future.done()
    assert future.result() is RECEIPT
    assert future.result(timeout=0) is RECEIPT
    assert future.exception() is None
    assert not future.running()
    assert not future.cancelled()


def test_refusal_is_raised_each_time() -> None:
    future = CommitFuture()
    future.set_exception(Closed(what="store"))
    for _ in range(2):
        with pytest.raises(Closed):
            future.result()
    assert isinstance(future.exception(), Closed)


def test_waiting_without_an_answer_ends_with_a_timeout() -> None:
    future = CommitFuture()
    for _ in range(2):  # alone, then as a second waiter
        with pytest.raises(TimeoutError):
            future.result(timeout=0.001)
    with pytest.raises(TimeoutError):
        future.exception(timeout=0.001)
    future.set_result(RECEIPT)
    assert future.result() is RECEIPT


def test_commit_that_was_handed_over_cannot_be_cancelled() -> None:
    future = CommitFuture()
    assert not future.cancel()
    future.set_result(RECEIPT)
    assert not future.cancel()
    assert future.result() is RECEIPT


@pytest.mark.parametrize("answered_first", [True, False])
def test_callback_is_called_once_with_the_future(answered_first: bool) -> None:
    future, calls = CommitFuture(), list[Future[FrameReceipt]]()
    if answered_first:
        future.set_result(RECEIPT)
        future.add_done_callback(calls.append)
    else:
        future.add_done_callback(calls.append)
        future.set_result(RECEIPT)
    assert calls == [future]
    assert future.result() is RECEIPT


def test_stock_wait_functions_see_the_answer() -> None:
    early, late = CommitFuture(), CommitFuture()
    early.set_result(RECEIPT)
    done, _ = wait([early, late], return_when=FIRST_COMPLETED)
    assert done == {early}
    threading.Timer(0.001, late.set_result, [RECEIPT]).start()
    assert set(as_completed([early, late])) == {early, late}


def test_event_loop_awaits_the_answer_of_another_thread() -> None:
    async def main() -> FrameReceipt:
        future = CommitFuture()
        threading.Timer(0.001, future.set_result, [RECEIPT]).start()
        return await asyncio.wrap_future(future)

    assert asyncio.run(main()) is RECEIPT


def test_every_waiter_gets_the_answer_whoever_comes_first() -> None:
    for _ in range(200):
        future, seen, calls = CommitFuture(), list[FrameReceipt](), list[object]()
        start = threading.Barrier(5)

        def look(
            future: CommitFuture = future, seen: list[FrameReceipt] = seen, start: threading.Barrier = start
        ) -> None:
            start.wait()
            seen.append(future.result())

        def listen(
            future: CommitFuture = future, calls: list[object] = calls, start: threading.Barrier = start
        ) -> None:
            start.wait()
            future.add_done_callback(calls.append)

        threads = [threading.Thread(target=work) for work in (look, look, listen, listen)]
        for thread in threads:
            thread.start()
        start.wait()
        future.set_result(RECEIPT)
        for thread in threads:
            thread.join()
        assert seen == [RECEIPT, RECEIPT]
        assert calls == [future, future]


def test_unknown_attribute_is_an_error_as_for_every_object() -> None:
    with pytest.raises(AttributeError):
        _ = CommitFuture().no_such_thing
