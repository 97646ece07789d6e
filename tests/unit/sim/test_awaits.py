"""STR-2 for reads in a task or out of a group; stream contexts and awaits."""

from __future__ import annotations

import asyncio
import threading
from typing import TYPE_CHECKING, Any

import pytest
import trio

from rpcfut import (
    Future,
    StreamContextError,
    Value,
    as_completed,
    collect_all,
    gather_outcomes,
    wait_all,
)
from rpcfut.testing import SimArray, simulate
from tests.support.fake_seam import FakeSeam, installed
from tests.support.threads import Running

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Iterator

    from rpcfut.testing import Simulation

LOOPS: dict[str, Callable[[Callable[[], Coroutine[Any, Any, Any]]], Any]] = {
    "asyncio": lambda function: asyncio.run(function()),
    "trio": trio.run,
}


@pytest.fixture(params=range(4))
def sim(request: pytest.FixtureRequest) -> Iterator[Simulation]:
    """Two devices and a seed; a race that nobody took fails the test."""
    with simulate(2, seed=request.param) as simulation:
        yield simulation


def complete(sim: Simulation, *futures: Future[SimArray]) -> None:
    """Complete futures on another thread, each on a stream of its own."""

    def work() -> None:
        for future in futures:
            with sim.stream(0):
                future.set_result(sim.array([1.0]).add_(1.0))

    Running(work).result()


def pending(count: int) -> list[Future[SimArray]]:
    """Some futures."""
    return [Future() for _ in range(count)]


def test_members_of_collect_all_are_read_on_the_readers_streams(
    sim: Simulation,
) -> None:
    """In the frame that reads them, whichever that is."""
    futures = pending(3)
    everything = collect_all(futures)
    complete(sim, *futures)
    with sim.stream(0):
        assert [f.value().clone().tolist() for f in everything.wait(10)] == [[2.0]] * 3
    child = everything.then(lambda f: [m.value().add_(1.0) for m in f.value()])
    assert [a.tolist() for a in child.wait(10)] == [[3.0]] * 3


def test_members_of_as_completed_and_wait_all_too(sim: Simulation) -> None:
    """The stream that is current at the read waits."""
    futures = pending(3)
    complete(sim, *futures)
    with sim.stream(0):
        for future in as_completed(futures, 10):
            future.value().add_(1.0)
            future.then(lambda f: f.value().add_(1.0)).wait(10)
        values = wait_all(futures)
        assert [value.clone().tolist() for value in values] == [[4.0]] * 3


def test_values_of_gathered_outcomes_are_waited_for(sim: Simulation) -> None:
    """An outcome hands out its value without asking anybody."""
    futures = [*pending(2), Future[SimArray]()]
    futures[2].set_exception(ValueError("no"))
    outcomes = gather_outcomes(futures)
    complete(sim, *futures[:2])
    with sim.stream(0):
        found = [o.value for o in outcomes.wait(10) if isinstance(o, Value)]
        assert [array.clone().tolist() for array in found] == [[2.0]] * 2


@pytest.mark.parametrize("run", LOOPS.values(), ids=LOOPS)
def test_await_waits_on_the_streams_that_are_current_after_it(
    sim: Simulation, run: Any
) -> None:
    """Not on those of the loop's callback that woke the task."""
    (future,) = pending(1)
    mine = sim.stream(0)

    async def main() -> list[float]:
        sim.set_stream(mine)
        threading.Thread(target=complete, args=(sim, future)).start()
        value = await future
        return value.clone().tolist()

    assert Running(lambda: run(main)).result() == [2.0]


async def hold(stream: Any, future: Future[Any]) -> None:
    """What one must not do: await inside a stream context."""
    with stream:
        await future


async def wait_for(future: Future[Any]) -> None:
    """What anybody may do."""
    await future


def outcomes_of(*steps: Coroutine[Any, Any, Any], complete: Any) -> list[Any]:
    """Run tasks on one loop up to their awaits, then complete what they wait for."""

    async def main() -> list[Any]:
        tasks = [asyncio.ensure_future(step) for step in steps]
        await asyncio.sleep(0)
        complete()
        return await asyncio.gather(*tasks, return_exceptions=True)

    return Running(lambda: asyncio.run(main())).result()


def test_a_stream_context_that_spans_an_await_is_an_error(sim: Simulation) -> None:
    """It leaks to the tasks that run meanwhile; the message names both streams."""
    sim.array([1.0])  # the device is in use
    first, second = pending(2)
    one, two = sim.stream(0), sim.stream(0)
    error, _ = outcomes_of(
        hold(one, first),
        hold(two, second),
        complete=lambda: complete(sim, first, second),
    )
    assert isinstance(error, StreamContextError)
    assert f"was <SimStream: {one.queue}" in str(error)
    assert f"is <SimStream: {two.queue}" in str(error)
    assert "leave it before every await" in str(error)


def test_the_task_that_a_stream_context_leaked_to_is_told(sim: Simulation) -> None:
    """It would go on under a stream that it did not choose."""
    sim.array([1.0])
    mine, theirs = pending(2)
    error, _ = outcomes_of(
        wait_for(mine),
        hold(sim.stream(0), theirs),
        complete=lambda: complete(sim, mine, theirs),
    )
    assert isinstance(error, StreamContextError)
    assert "here or in another task of this thread" in str(error)


def test_a_stream_context_between_two_awaits_is_right(sim: Simulation) -> None:
    """Entered after one and left before the next."""
    first, second = pending(2)

    async def use() -> list[float]:
        value = await first
        with sim.stream(0):
            total = first.value().clone()
        other: Future[SimArray] = Future()
        other.set_result(value)
        await second
        with sim.stream(0):
            return [*second.value().clone().tolist(), float(len(total))]

    (result,) = outcomes_of(use(), complete=lambda: complete(sim, first, second))
    assert result == [2.0, 1.0]


@pytest.mark.parametrize("run", LOOPS.values(), ids=LOOPS)
def test_without_used_devices_an_await_asks_no_seam(run: Any) -> None:
    """A host-only program pays nothing for streams."""
    future: Future[int] = Future()
    with installed(FakeSeam(used=())) as seam:

        async def main() -> int:
            threading.Thread(target=future.set_result, args=(1,)).start()
            return await future

        assert run(main) == 1
        assert seam.log == []


def test_each_step_of_then_async_is_ordered(sim: Simulation) -> None:
    """Behind the parent and what was queued where it was registered (STR-3)."""
    (gate,) = pending(1)
    target = sim.array([1.0])
    parent = Future[SimArray]()
    with sim.stream(0):
        mine = sim.array([10.0])

        async def add(done: Future[SimArray]) -> SimArray:
            mine.add_(1.0)
            total = done.value().clone()
            await gate
            return total.add_(mine)

        child = parent.then_async(add)
    parent.set_result(target)
    complete(sim, gate)
    with sim.stream(0):
        assert child.wait(10).clone().tolist() == [12.0]


def test_what_a_coroutine_did_in_place_is_waited_for(sim: Simulation) -> None:
    """Though it returned nothing of it (STR-5)."""
    target = sim.array([1.0])
    parent = Future[SimArray]()

    async def add(done: Future[SimArray]) -> None:
        await asyncio.sleep(0)
        done.value().add_(1.0)

    child = parent.then_async(add)
    parent.set_result(target)
    child.wait(10)
    assert target.clone().tolist() == [2.0]


def test_a_task_spawned_by_a_coroutine_has_the_loops_streams(sim: Simulation) -> None:
    """Its work is the user's to join: the child does not wait for it (STR-9)."""
    target = sim.array([1.0])
    sim.synchronize()
    parent = Future[SimArray]()
    seen: list[Any] = []

    async def spawned() -> None:
        seen.append(sim.current_stream(0))

    async def spawn(_done: Future[SimArray]) -> None:
        seen.append(sim.current_stream(0))
        await asyncio.ensure_future(spawned())

    child = parent.then_async(spawn)
    parent.set_result(target)
    child.wait(10)
    assert seen[0] != seen[1]
    assert seen[1] == sim.default_stream(0)
