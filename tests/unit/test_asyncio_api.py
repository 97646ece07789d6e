"""FUT-8: asyncio's own functions, and those of concurrent.futures, on our futures."""

from __future__ import annotations

import asyncio
import concurrent.futures
import gc
import logging
import threading
from typing import TYPE_CHECKING, Any

import pytest

from rpcfut import Future
from tests.support.threads import Gate, Running

if TYPE_CHECKING:
    from collections.abc import Coroutine


def run(coroutine: Coroutine[Any, Any, Any]) -> Any:
    """Run a coroutine in a loop of its own, in time; errors of the loop are ours."""
    errors: list[dict[str, Any]] = []

    async def main() -> Any:
        loop = asyncio.get_running_loop()
        loop.set_exception_handler(lambda _loop, context: errors.append(context))
        return await asyncio.wait_for(coroutine, 10)

    try:
        return asyncio.run(main())
    finally:
        gc.collect()  # a task's lost error is told when it dies
        assert errors == []


def later(future: Future[Any], value: Any) -> None:
    """Complete a future on another thread, soon."""
    threading.Thread(target=future.set_result, args=(value,)).start()


async def read(future: Future[Any]) -> Any:
    """Await a future in a coroutine, as tasks want."""
    return await future


def test_asyncio_wait_takes_our_futures() -> None:
    """It adds callbacks that only the loop's thread may run; a plain one hangs."""

    async def main() -> None:
        first, second = Future[int](), Future[int]()
        later(first, 1)
        finished, pending = await asyncio.wait(
            {first, second}, return_when=asyncio.FIRST_COMPLETED
        )
        assert (finished, pending) == ({first}, {second})
        assert not second._hooks, "wait takes its callbacks back"
        later(second, 2)
        finished, _ = await asyncio.wait({first, second})
        assert finished == {first, second}
        assert await asyncio.wait({Future()}, timeout=0.01)

    run(main())


def test_asyncio_gather_task_group_and_as_completed() -> None:
    """All that wraps an awaitable into a task."""

    async def main() -> None:
        futures = [Future[int]() for _ in range(4)]
        for i, future in enumerate(futures):
            later(future, i)
        assert await asyncio.gather(*futures) == [0, 1, 2, 3]
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(read(f)) for f in futures]
        assert [t.result() for t in tasks] == [0, 1, 2, 3]
        got = [await step for step in asyncio.as_completed(futures)]
        assert sorted(got) == [0, 1, 2, 3]

    run(main())


def test_a_failure_in_a_task_group_cancels_the_others() -> None:
    """And the futures that they await, as asyncio's own would be."""
    waiting, failing = Future[int](), Future[int]()

    async def both() -> None:
        async with asyncio.TaskGroup() as group:
            group.create_task(read(waiting))
            group.create_task(read(failing))
            await asyncio.sleep(0)
            failing.set_exception(ValueError("no"))

    async def main() -> None:
        with pytest.raises(ExceptionGroup) as caught:
            await both()
        assert isinstance(caught.value.exceptions[0], ValueError)

    run(main())
    assert waiting.cancelled()


def test_shield_detaches_and_a_late_result_is_quiet_b37(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """The future is not cancelled, and the loop has nothing to say."""
    future: Future[int] = Future()

    async def main() -> None:
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(asyncio.shield(future), 0.01)
        assert not future.done()
        future.set_result(1)
        await asyncio.sleep(0.01)

    with caplog.at_level(logging.DEBUG):
        run(main())
    assert future.value() == 1
    assert [r for r in caplog.records if r.levelno >= logging.WARNING] == []


def test_wait_for_around_a_late_future_is_quiet_b37() -> None:
    """The result comes after the task was cancelled: nobody minds."""

    async def main() -> None:
        for _ in range(200):
            future: Future[int] = Future()
            setter = Running(lambda f=future: f.try_set_result(1))
            try:
                await asyncio.wait_for(future, 0.0001)
            except (TimeoutError, concurrent.futures.CancelledError):
                assert future.done()  # cancelled, or the result just came
            setter.result()

    run(main())


def test_the_loop_is_never_blocked_b36() -> None:
    """A ticker goes on for as long as the future is pending."""
    future: Future[int] = Future()
    ticks = 0

    async def tick() -> None:
        nonlocal ticks
        while ticks < 100:
            ticks += 1
            await asyncio.sleep(0)
        later(future, ticks)

    async def main() -> int:
        _, value = await asyncio.gather(tick(), future)
        return value

    assert run(main()) == 100


def test_a_done_callback_of_a_loop_runs_in_that_loop() -> None:
    """On its thread, after the current step, also when the future is done already."""
    future: Future[int] = Future()

    async def main() -> None:
        ran: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        future.add_done_callback(lambda _: ran.set_result(threading.get_ident()))
        later(future, 1)
        assert await ran == threading.get_ident()
        again = []
        future.add_done_callback(again.append)
        assert again == []
        await asyncio.sleep(0)
        assert again == [future]

    run(main())


def test_a_done_callback_of_a_loop_that_raises_is_logged(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """With the place that registered it, as on the pool; later ones run."""
    future: Future[int] = Future()

    def raising(_future: Any) -> None:
        raise ValueError("mine")

    async def main() -> None:
        ran = asyncio.Event()
        future.add_done_callback(raising)
        future.add_done_callback(lambda _: ran.set())
        later(future, 1)
        await ran.wait()

    with caplog.at_level(logging.ERROR, logger="rpcfut.future"):
        run(main())
    (record,) = caplog.records
    assert f"registered at {__file__}" in record.getMessage()


def test_a_done_callback_of_a_closed_loop_is_dropped() -> None:
    """The future completes as ever."""
    future: Future[int] = Future()

    async def main() -> None:
        future.add_done_callback(lambda _: None)

    asyncio.run(main())
    future.set_result(1)
    assert future.then(lambda f: f.value()).wait(10) == 1


def test_a_done_callback_can_be_taken_back() -> None:
    """From the pool and from a loop; the number of times tells which were there."""
    future: Future[int] = Future()
    ran: list[Any] = []
    callback = ran.append
    future.add_done_callback(callback)
    future.add_done_callback(callback)
    child = future.then(lambda f: f.value())

    async def main() -> None:
        future.add_done_callback(callback)
        assert future.remove_done_callback(callback) == 3
        assert future.remove_done_callback(callback) == 0
        future.set_result(1)
        await asyncio.sleep(0)

    run(main())
    assert child.wait(10) == 1
    assert ran == []


def test_loops_of_many_threads_await_one_future() -> None:
    """Each is woken on its own, by one completion."""
    future: Future[int] = Future()
    waiting = threading.Semaphore(0)

    async def main() -> int:
        asyncio.get_running_loop().call_soon(waiting.release)
        return await future

    runners = [Running(lambda: run(main())) for _ in range(8)]
    for _ in runners:
        assert waiting.acquire(timeout=10)
    future.set_result(7)
    assert [r.result() for r in runners] == [7] * 8


def test_an_await_that_is_given_up_leaves_nothing_behind() -> None:
    """A coroutine closed at its await takes its hook back."""
    future: Future[int] = Future()

    async def main() -> None:
        coroutine = read(future)
        coroutine.send(None)
        assert future._hooks
        coroutine.close()

    run(main())
    assert not future._hooks


@pytest.mark.parametrize("when", ["before", "while waiting"])
def test_concurrent_futures_wait_sees_a_cancelled_future(when: str) -> None:
    """It hangs on one that is cancelled but not "notified"."""
    future: Future[int] = Future()
    if when == "before":
        future.cancel()
    canceller = Running(future.cancel)
    finished, pending = concurrent.futures.wait([future], timeout=10)
    canceller.result()
    assert (finished, pending) == ({future}, set())


def copied_as_by_python_3_14(source: Any) -> Any:
    """Copy a future's state to an asyncio one as asyncio of Python 3.14 does."""

    async def main() -> Any:
        dest = asyncio.get_running_loop().create_future()
        done, was_cancelled, result, error = source._get_snapshot()
        assert done
        if was_cancelled:
            dest.cancel()
        elif error is not None:
            dest.set_exception(error)
        else:
            dest.set_result(result)
        return await dest

    return asyncio.run(main())


def test_python_3_14_copies_the_state() -> None:
    """It asks for a snapshot; the base class's would see no result at all."""
    future: Future[int] = Future()
    assert future._get_snapshot() == (False, False, None, None)
    future.set_result(3)
    assert copied_as_by_python_3_14(future) == 3
    failing: Future[int] = Future()
    failing.set_exception(KeyError("no"))
    with pytest.raises(KeyError):
        copied_as_by_python_3_14(failing)
    cancelled: Future[int] = Future()
    cancelled.cancel()
    with pytest.raises(asyncio.CancelledError):
        copied_as_by_python_3_14(cancelled)


def test_several_loops_and_blocking_waits_at_once() -> None:
    """A thread that blocks and tasks that await are woken by one completion."""
    future: Future[int] = Future()
    blocked = Running(future.wait)
    entered = Gate()

    async def main() -> int:
        entered.set()
        return await future

    awaiting = Running(lambda: run(main()))
    entered.pass_through()
    future.set_result(4)
    assert (blocked.result(), awaiting.result()) == (4, 4)
