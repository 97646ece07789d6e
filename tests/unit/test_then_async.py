"""FUT-4: then_async; STR-3 and STR-5 for each step of a coroutine."""

from __future__ import annotations

import asyncio
import concurrent.futures
import threading
from typing import TYPE_CHECKING, Any

import pytest

from rpcfut import DeadlockError, ExtractionError, Future
from rpcfut._callbacks import isolated_runtime
from tests.support.fake_seam import FAKE0, Box, FakeArray, FakeSeam, installed
from tests.support.threads import Gate, Running

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture
def seam() -> Iterator[FakeSeam]:
    """Two fake devices, with threads and streams of their own."""
    with installed() as fake:
        yield fake


@pytest.fixture(autouse=True)
def _own_loop(request: pytest.FixtureRequest) -> Iterator[None]:
    """Threads of their own: the loop's is not to outlive the test."""
    if "seam" in request.fixturenames:
        yield
        return
    with isolated_runtime():
        yield


def done(value: Any = 1) -> Future[Any]:
    """A future with a value."""
    future: Future[Any] = Future()
    future.set_result(value)
    return future


def test_the_child_gets_what_the_coroutine_returns() -> None:
    """It may await futures, which a plain callback must not block for."""
    inner: Future[int] = Future()

    async def add(parent: Future[int]) -> int:
        return parent.value() + await inner

    parent: Future[int] = Future()
    child = parent.then_async(add)
    parent.set_result(1)
    assert not child.done()
    inner.set_result(2)
    assert child.wait(10) == 3


def test_the_child_fails_with_what_the_coroutine_raises() -> None:
    """The same object; a parent's error passes through."""
    error = ValueError("mine")
    failing: Future[int] = Future()
    failing.set_exception(error)

    async def read(parent: Future[int]) -> int:
        await asyncio.sleep(0)
        return parent.value()

    assert failing.then_async(read).exception(10) is error


def test_many_coroutines_share_one_thread() -> None:
    """A thousand that wait cost no thousand threads."""
    gate: Future[None] = Future()

    async def wait(parent: Future[int]) -> str:
        await gate
        return threading.current_thread().name

    children = [done().then_async(wait) for _ in range(1000)]
    gate.set_result(None)
    assert {c.wait(10) for c in children} == {"rpcfut-callback-loop"}


def test_a_later_callback_does_not_wait_for_the_coroutine() -> None:
    """Only for its start."""
    never: Future[None] = Future()

    async def wait(_parent: Future[int]) -> None:
        await never

    parent = done()
    child = parent.then_async(wait)
    assert parent.then(lambda f: f.value()).wait(10) == 1
    never.cancel()
    assert isinstance(child.exception(10), concurrent.futures.CancelledError)


def test_what_is_no_async_def_is_refused() -> None:
    """With the way out."""
    child = done().then_async(lambda f: f.value())  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="give a plain function to then"):
        child.wait(10)
    with pytest.raises(TypeError, match="must be callable"):
        done().then_async(3)  # type: ignore[arg-type]


def test_cancelling_the_child_cancels_the_coroutine() -> None:
    """Its `finally` runs; what it awaits is cancelled with it."""
    inner: Future[int] = Future()
    suspended, ended = Gate(), Gate()

    async def wait(_parent: Future[int]) -> int:
        try:
            asyncio.get_running_loop().call_soon(suspended.set)
            return await inner
        finally:
            ended.set()

    child = done().then_async(wait)
    suspended.pass_through()
    child.cancel()
    ended.pass_through()
    concurrent.futures.wait([inner], timeout=10)
    assert inner.cancelled()
    with pytest.raises(concurrent.futures.CancelledError):
        child.wait(0)


def test_a_child_cancelled_before_does_not_start_it() -> None:
    """Nobody wants its result."""
    parent: Future[int] = Future()
    started = []

    async def note(_parent: Future[int]) -> None:
        started.append(1)

    child = parent.then_async(note)
    child.cancel()
    parent.set_result(1)
    parent.then(lambda f: f.value()).wait(10)
    assert started == []


def test_blocking_the_loop_is_refused_b34() -> None:
    """It would stop all coroutines, the one that completes it included."""

    async def wait(_parent: Future[int]) -> None:
        Future[int]().wait(5)

    with pytest.raises(DeadlockError, match="await the future instead"):
        done().then_async(wait).wait(10)


def test_a_task_of_asyncio_it_is() -> None:
    """Timeouts and task groups work."""

    async def main(_parent: Future[int]) -> str:
        assert asyncio.current_task() is not None
        try:
            async with asyncio.timeout(0.001):
                await Future[int]()
        except TimeoutError:
            return "timed out"
        return "not"

    assert done().then_async(main).wait(10) == "timed out"


def test_an_unknown_type_fails_the_child() -> None:
    """The message names the coroutine and where it was registered (EXT-3)."""

    async def unknown(_parent: Future[int]) -> Box:
        return Box(1)

    with pytest.raises(ExtractionError, match=rf"unknown\(\) registered at {__file__}"):
        done().then_async(unknown).wait(10)


def test_the_loop_ends_with_its_runtime() -> None:
    """What still waits is cancelled."""
    with isolated_runtime():
        suspended = Gate()

        async def wait(_parent: Future[int]) -> None:
            asyncio.get_running_loop().call_soon(suspended.set)
            await Future[int]()

        child = done().then_async(wait)
        suspended.pass_through()
    concurrent.futures.wait([child], timeout=10)
    assert child.cancelled()


def test_each_step_has_the_same_streams_of_its_own(seam: FakeSeam) -> None:
    """Also while others have run in between; behind the parent's marks (STR-3)."""
    gates = [Future[None](), Future[None]()]
    parent = done(FakeArray(FAKE0))

    def current() -> list[str]:
        return [stream.name for stream in seam.current()]

    suspended = threading.Semaphore(0)

    async def look(gate: Future[None]) -> list[list[str]]:
        before = current()
        asyncio.get_running_loop().call_soon(suspended.release)
        await gate
        return [before, current()]

    children = [parent.then_async(lambda _, g=g: look(g)) for g in gates]
    for _ in gates:
        assert suspended.acquire(timeout=10)
    for gate in reversed(gates):
        gate.set_result(None)
    (first, again), (second, second_again) = (c.wait(10) for c in children)
    assert (first, second) == (again, second_again)
    assert set(first).isdisjoint(second)


def test_the_child_waits_for_what_the_steps_launched(seam: FakeSeam) -> None:
    """Whatever the coroutine returned (STR-5)."""

    async def launch(_parent: Future[Any]) -> str:
        await asyncio.sleep(0)
        seam.launched_on = seam.current()  # type: ignore[attr-defined]
        return "host value"

    child = done().then_async(launch)
    child.wait(10)
    waited = seam.waited_for(seam.current_stream(FAKE0))
    assert seam.launched_on[0] in waited  # type: ignore[attr-defined]


def test_the_streams_are_given_back(seam: FakeSeam) -> None:
    """A hundred, one after the other, need no hundred streams."""

    async def step(_parent: Future[Any]) -> None:
        await asyncio.sleep(0)

    for _ in range(100):
        done().then_async(step).wait(10)
    assert len(seam.created) <= 8


def test_a_device_that_fails_in_a_step_fails_the_child(seam: FakeSeam) -> None:
    """Nothing hangs."""
    gate: Future[None] = Future()
    suspended = Gate()

    async def wait(_parent: Future[Any]) -> None:
        asyncio.get_running_loop().call_soon(suspended.set)
        await gate

    child = done().then_async(wait)
    suspended.pass_through()
    seam.fails_in = "make_current"
    gate.set_result(None)
    error = Running(lambda: concurrent.futures.wait([child], timeout=10)).result()
    seam.fails_in = None
    assert error.done == {child}
    assert isinstance(child.exception(), OSError)
