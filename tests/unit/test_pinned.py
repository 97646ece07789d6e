"""STR-2: who reads pinned memory runs on the host; the device watcher waits for it."""

from __future__ import annotations

import asyncio
import threading
from typing import TYPE_CHECKING

import pytest

from rpcfut import DataRef, Future
from rpcfut._callbacks import isolated_runtime, run_here
from rpcfut._completion import Completion
from rpcfut._devices import CPU
from rpcfut._future_core import complete
from rpcfut._outcome import Value
from rpcfut._streams import Mark, installed_seam
from tests.support.fake_seam import FAKE0, FakeEvent, FakeSeam, FakeStream

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture
def event() -> Iterator[FakeEvent]:
    """The event behind the copy that fills the memory."""
    seam = FakeSeam(used=())
    with installed_seam("fake", seam), isolated_runtime():
        yield FakeEvent(FakeStream(FAKE0))


def fill(future: Future[str], event: FakeEvent) -> None:
    """Complete a future with pinned memory that is being filled."""
    mark = Mark(FakeSeam(), FAKE0, event)
    block = DataRef(CPU, 4096, 8, object())
    complete(future, Completion(Value("filled"), (mark,), (block,)), run_here)


@pytest.mark.parametrize("when", ["before", "after"])
def test_a_callback_starts_once_pinned_memory_is_filled(
    event: FakeEvent, when: str
) -> None:
    """Registered before or after; neither set_result nor a pool thread waits."""
    future: Future[str] = Future()
    ran_on: list[str] = []

    def note(_: Future[str]) -> None:
        assert event.query()
        ran_on.append(threading.current_thread().name)

    child = future.then(note) if when == "before" else None
    fill(future, event)
    child = child or future.then(note)
    assert future.done()
    assert not child.done()
    event.passed.set()
    child.wait(10)
    assert ran_on[0].startswith("rpcfut-callback")


def test_an_await_goes_on_once_pinned_memory_is_filled(event: FakeEvent) -> None:
    """The loop turns meanwhile."""
    future: Future[str] = Future()
    fill(future, event)

    async def main() -> str:
        task = asyncio.ensure_future(_awaited(future))
        for _ in range(50):
            await asyncio.sleep(0)
        assert not task.done()
        event.passed.set()
        return await asyncio.wait_for(task, 10)

    assert asyncio.run(main()) == "filled"


async def _awaited(future: Future[str]) -> str:
    return await future


def test_what_is_filled_already_is_not_handed_to_the_watcher(event: FakeEvent) -> None:
    event.passed.set()
    future: Future[str] = Future()
    threads: list[threading.Thread] = []
    future.then(lambda _: threads.append(threading.current_thread()))
    fill(future, event)
    assert threads == [threading.current_thread()]
