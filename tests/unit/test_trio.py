"""FUT-8: awaiting in trio, and that nobody has to have trio."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import threading
from typing import Any

import pytest
import trio

from rpcfut import Future
from tests.support.threads import Gate, Running


def later(future: Future[Any], value: Any) -> None:
    """Complete a future on another thread, soon."""
    threading.Thread(target=future.set_result, args=(value,)).start()


def test_a_trio_task_awaits_a_future() -> None:
    """A pending one, a done one, one that fails; from another thread."""

    async def main() -> None:
        with trio.fail_after(10):
            future: Future[int] = Future()
            later(future, 3)
            assert await future == 3
            assert await future == 3
            failing: Future[int] = Future()
            threading.Thread(target=failing.set_exception, args=(KeyError(1),)).start()
            with pytest.raises(KeyError):
                await failing

    trio.run(main)


def test_trio_goes_on_while_a_task_awaits_b36() -> None:
    """Another task of the same loop completes the future."""
    future: Future[int] = Future()

    async def complete() -> None:
        await trio.lowlevel.checkpoint()
        future.set_result(4)

    async def main() -> None:
        with trio.fail_after(10):
            async with trio.open_nursery() as nursery:
                nursery.start_soon(complete)
                assert await future == 4

    Running(lambda: trio.run(main)).result()


def test_a_cancelled_trio_task_cancels_the_future() -> None:
    """Its callbacks run on the pool, so that the loop is not blocked."""
    future: Future[int] = Future()
    may_go_on = Gate()
    child = future.then(lambda _: may_go_on.pass_through())

    async def main() -> None:
        with trio.move_on_after(0.001) as scope:
            await future
        assert scope.cancelled_caught
        may_go_on.set()

    trio.run(main)
    assert future.cancelled()
    assert not future._hooks
    child.wait(10)


def test_a_result_after_the_run_ended_is_no_error() -> None:
    """Nobody is left to be woken."""
    future: Future[int] = Future()
    awaiters = []

    async def main() -> None:
        awaiters.append(future.__await__())
        next(awaiters[0])

    trio.run(main)
    future.set_result(1)
    assert future.wait(0) == 1
    awaiters[0].close()


def test_loops_of_both_kinds_await_one_future() -> None:
    """In one process, at once; trio being imported does not disturb asyncio."""
    future: Future[int] = Future()

    async def read() -> int:
        return await future

    results: list[int] = []
    threads = [
        threading.Thread(target=lambda: results.append(trio.run(read))),
        threading.Thread(target=lambda: results.append(asyncio.run(read()))),
    ]
    for thread in threads:
        thread.start()
    future.set_result(5)
    for thread in threads:
        thread.join(10)
    assert results == [5, 5]


@pytest.mark.timeout(60)
def test_trio_is_not_imported_by_us() -> None:
    """An asyncio program that has no trio, or does not want it, gets none."""
    script = (
        "import asyncio, sys, rpcfut\n"
        "async def main():\n"
        "    future = rpcfut.Future()\n"
        "    asyncio.get_running_loop().call_soon(future.set_result, 1)\n"
        "    return await future\n"
        "print(asyncio.run(main()), 'trio' in sys.modules)\n"
    )
    child = subprocess.run(
        [sys.executable, "-c", script],
        capture_output=True,
        text=True,
        timeout=50,
        check=False,
        env={"PYTHONPATH": ":".join(sys.path), "OMP_NUM_THREADS": "1"},
    )
    assert (child.stdout, child.stderr) == ("1 False\n", "")
