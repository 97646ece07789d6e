"""FUT-2, FUT-8: awaiting in asyncio; a future of concurrent.futures to its users."""

from __future__ import annotations

import asyncio
import concurrent.futures
import threading
from typing import TYPE_CHECKING, Any

import pytest

from rpcfut import Future
from tests.support.threads import Gate, Running

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine


def _run(coroutine: Coroutine[Any, Any, Any]) -> Any:
    async def in_time() -> Any:
        return await asyncio.wait_for(coroutine, 10)

    return asyncio.run(in_time())


async def _wait_for(future: Future[Any]) -> Any:
    return await future


def test_a_done_future_is_awaited_at_once() -> None:
    """A value, an error and a cancelled one need no loop turn."""
    value: Future[int] = Future()
    value.set_result(1)
    failed: Future[int] = Future()
    error = ValueError("no")
    failed.set_exception(error)
    cancelled: Future[int] = Future()
    cancelled.cancel()
    assert _run(_wait_for(value)) == 1
    with pytest.raises(ValueError, match="no") as caught:
        _run(_wait_for(failed))
    assert caught.value is error
    with pytest.raises(concurrent.futures.CancelledError):
        _run(_wait_for(cancelled))


def test_a_pending_future_wakes_its_task_from_another_thread() -> None:
    """The loop is told in the one way that is safe from another thread."""
    future: Future[int] = Future()

    async def main() -> int:
        asyncio.get_running_loop().call_soon(
            lambda: threading.Thread(target=future.set_result, args=(3,)).start()
        )
        return await future

    assert _run(main()) == 3


def test_the_loop_goes_on_while_a_task_awaits() -> None:
    """A task that awaits does not block the loop: another one completes it."""
    future: Future[int] = Future()

    async def complete() -> None:
        await asyncio.sleep(0)
        future.set_result(4)

    async def main() -> int:
        value, _ = await asyncio.gather(future, complete())
        return value

    assert _run(main()) == 4


def test_an_error_comes_out_of_await() -> None:
    """With the same object and type."""
    future: Future[int] = Future()
    error = KeyError("mine")

    async def main() -> BaseException:
        asyncio.get_running_loop().call_soon(future.set_exception, error)
        try:
            await future
        except KeyError as caught:
            return caught
        raise AssertionError("it had a value")

    assert _run(main()) is error


def test_cancelling_the_awaiting_task_cancels_the_future() -> None:
    """As asyncio's own futures are."""
    future: Future[int] = Future()

    async def main() -> None:
        task = asyncio.ensure_future(_wait_for(future))
        await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    _run(main())
    assert future.cancelled()


def test_callbacks_of_a_future_cancelled_by_a_task_do_not_block_its_loop() -> None:
    """They run on the pool: the task never asked to run them (FUT-3)."""
    future: Future[int] = Future()
    may_go_on = Gate()
    child = future.then(
        lambda _: (may_go_on.pass_through(), threading.current_thread().name)
    )

    async def main() -> None:
        task = asyncio.ensure_future(_wait_for(future))
        await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert not child.done()
        may_go_on.set()

    _run(main())
    assert child.wait(10)[1].startswith("rpcfut-callback-")


def test_a_timeout_of_asyncio_cancels_the_future() -> None:
    """`asyncio.wait_for` cancels what it waits for."""
    future: Future[int] = Future()

    async def main() -> None:
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(future, 0.001)

    _run(main())
    assert future.cancelled()


def test_two_tasks_may_await_one_future() -> None:
    """Both get the value; so does a third one that comes late."""
    future: Future[int] = Future()

    async def main() -> list[int]:
        tasks = [asyncio.ensure_future(_wait_for(future)) for _ in range(2)]
        await asyncio.sleep(0)
        future.set_result(6)
        return [*await asyncio.gather(*tasks), await future]

    assert _run(main()) == [6, 6, 6]


def test_tasks_of_two_loops_may_await_one_future() -> None:
    """Each loop is woken on its own."""
    future: Future[int] = Future()
    runners = [Running(lambda: _run(_wait_for(future))) for _ in range(2)]
    future.set_result(7)
    assert [runner.result() for runner in runners] == [7, 7]


def test_a_result_after_the_loop_was_closed_is_no_error() -> None:
    """The future completes as ever; nobody is left to be woken."""
    future: Future[int] = Future()
    loop = asyncio.new_event_loop()
    awaiter = future.__await__()
    suspended = Gate()

    async def main() -> None:
        next(awaiter)
        suspended.set()

    loop.run_until_complete(main())
    loop.close()
    suspended.pass_through()
    future.set_result(1)
    assert future.then(lambda f: f.value()).wait(10) == 1
    awaiter.close()


def test_awaiting_without_a_loop_says_so() -> None:
    """A clear error, not a hang: under another framework, or by hand."""
    future: Future[int] = Future()
    coroutine = _wait_for(future)
    with pytest.raises(RuntimeError, match="outside a running asyncio loop"):
        coroutine.send(None)
    assert not future._hooks


def _once_waited_for(future: Future[Any], complete: Callable[[], object]) -> Running:
    """Complete a future on another thread, once concurrent.futures waits for it."""

    def run() -> None:
        pause = threading.Event()
        while not future._foreign_waiters:
            pause.wait(0.001)
        complete()

    return Running(run)


def test_concurrent_futures_waits_for_it() -> None:
    """`wait` tells done ones from pending ones, and can be called again."""
    futures = [Future[int]() for _ in range(3)]
    futures[0].set_result(1)
    done, pending = concurrent.futures.wait(futures, timeout=0)
    assert (done, pending) == ({futures[0]}, set(futures[1:]))
    setter = _once_waited_for(
        futures[1], lambda: futures[1].set_exception(ValueError())
    )
    done, pending = concurrent.futures.wait(
        futures[1:], timeout=10, return_when=concurrent.futures.FIRST_COMPLETED
    )
    setter.result()
    assert (done, pending) == ({futures[1]}, {futures[2]})
    canceller = _once_waited_for(futures[2], futures[2].cancel)
    done, _ = concurrent.futures.wait(futures, timeout=10)
    canceller.result()
    assert done == set(futures)


def test_concurrent_futures_stops_at_the_first_failure() -> None:
    """FIRST_EXCEPTION sees the error of a future of ours."""
    failing, pending = Future[int](), Future[int]()
    setter = _once_waited_for(failing, lambda: failing.set_exception(ValueError()))
    done, left = concurrent.futures.wait(
        [failing, pending], timeout=10, return_when=concurrent.futures.FIRST_EXCEPTION
    )
    setter.result()
    assert (done, left) == ({failing}, {pending})


def test_as_completed_yields_each_as_it_ends() -> None:
    """Done, completed meanwhile and cancelled ones, each once."""
    futures = [Future[int]() for _ in range(20)]
    futures[0].set_result(0)
    futures[1].cancel()

    def complete() -> None:
        for future in reversed(futures[2:]):
            future.set_result(1)

    completer = _once_waited_for(futures[2], complete)
    seen = list(concurrent.futures.as_completed(futures, timeout=10))
    completer.result()
    assert len(seen) == len(futures)
    assert set(seen) == set(futures)


def test_a_wait_of_concurrent_futures_that_timed_out_leaves_nothing() -> None:
    """Its waiter is taken off again, and later completions do not mind."""
    future: Future[int] = Future()
    concurrent.futures.wait([future], timeout=0)
    assert not future._foreign_waiters
    future.set_result(1)
    assert future.wait(0) == 1


@pytest.mark.parametrize("ending", ["value", "error", "cancelled"])
def test_wrap_future_makes_an_asyncio_future(ending: str) -> None:
    """What runs in a loop anyway may be given an asyncio future."""
    future: Future[int] = Future()

    def end() -> None:
        match ending:
            case "value":
                future.set_result(8)
            case "error":
                future.set_exception(ValueError("no"))
            case _:
                future.cancel()

    async def main() -> int:
        wrapped = asyncio.wrap_future(future)
        ender = Running(end)
        try:
            return await wrapped
        finally:
            ender.result()

    match ending:
        case "value":
            assert _run(main()) == 8
        case "error":
            with pytest.raises(ValueError, match="no"):
                _run(main())
        case _:
            with pytest.raises(asyncio.CancelledError):
                _run(main())


def test_cancelling_a_wrapped_future_cancels_ours() -> None:
    """asyncio hands the wish on."""
    future: Future[int] = Future()

    async def main() -> None:
        wrapped = asyncio.wrap_future(future)
        wrapped.cancel()
        await asyncio.sleep(0)

    _run(main())
    assert future.cancelled()
