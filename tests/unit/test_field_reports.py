"""What users of the peers met, each kind with the right outcome (futures and streams).

Rows whose tests need more room: B32, B39 also in test_soak.py; B52, B53 on a GPU in
tests/gpu/test_rules_on_cuda.py; B54 in test_extract*.py; B132 in tests/typing; B133 in
test_future_wait.py.
"""

from __future__ import annotations

import asyncio
import gc
import logging
import threading
import weakref

import pytest
import torch

import rpcfut
from rpcfut import Future
from rpcfut._registry import isolated_registry
from rpcfut.testing import SimArray, simulate


@pytest.fixture
def error_log(caplog: pytest.LogCaptureFixture) -> pytest.LogCaptureFixture:
    caplog.set_level(logging.ERROR, logger="rpcfut")
    return caplog


def fail(_: object = None) -> None:
    raise ValueError("on purpose")


def test_b10_a_wait_may_be_limited_and_leaves_the_future_usable() -> None:
    future: Future[int] = Future()
    with pytest.raises(TimeoutError):
        future.wait(timeout=0.01)
    future.set_result(3)
    assert future.wait() == 3


def test_b26_a_parents_error_reaches_the_end_of_the_chain(error_log) -> None:
    """And a raising done callback is logged, and stops no later one."""
    parent: Future[int] = Future()
    end = parent.then(lambda f: f.value() + 1).then(lambda f: f.value() + 1)
    later = threading.Event()
    parent.add_done_callback(fail)
    parent.add_done_callback(lambda _: later.set())
    parent.set_exception(TimeoutError("too late"))
    with pytest.raises(TimeoutError, match="too late"):
        end.wait(timeout=10)
    assert later.wait(10)
    assert "on purpose" in error_log.text


def test_b27_a_failure_that_nobody_saw_is_reported_once(error_log) -> None:
    future: Future[int] = Future()
    future.set_exception(ValueError("nobody saw me"))
    del future
    gc.collect()
    pause = threading.Event()
    for _ in range(200):  # the report comes from another thread
        if "nobody saw me" in error_log.text:
            break
        pause.wait(0.05)
    assert error_log.text.count("ValueError: nobody saw me") == 1


def test_b28_waiting_for_many_fails_at_the_first_failure() -> None:
    """Without waiting for the slow one; the other form waits for all outcomes."""
    slow: Future[int] = Future()
    failed: Future[int] = Future()
    failed.set_exception(ValueError("fast"))
    with pytest.raises(ValueError, match="fast"):
        rpcfut.wait_all([slow, failed], timeout=10)
    outcomes = rpcfut.gather_outcomes([slow, failed])
    assert not outcomes.done()
    slow.set_result(1)
    assert len(outcomes.wait(timeout=10)) == 2


def test_b29_of_eight_that_complete_at_once_one_wins() -> None:
    future: Future[int] = Future()
    barrier = threading.Barrier(8)
    won: list[int] = []

    def complete(number: int) -> None:
        barrier.wait(10)
        try:
            future.set_result(number)
        except rpcfut.InvalidStateError:
            return
        won.append(number)

    threads = [threading.Thread(target=complete, args=(n,)) for n in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(10)
    assert won == [future.wait()]


def test_b30_a_raising_callback_is_the_same_before_and_after(error_log) -> None:
    before: Future[int] = Future()
    before.add_done_callback(fail)
    child_before = before.then(fail)
    before.set_result(1)
    after: Future[int] = Future()
    after.set_result(1)
    after.add_done_callback(fail)
    child_after = after.then(fail)
    errors = [child.exception(timeout=10) for child in (child_before, child_after)]
    assert [type(error) for error in errors] == [ValueError, ValueError]
    assert error_log.text.count("the done callback fail()") == 2


def test_b31_callbacks_keep_their_order_when_completed_midway() -> None:
    future: Future[int] = Future()
    seen: list[int] = []
    halfway, completed = threading.Event(), threading.Event()

    def complete() -> None:
        halfway.wait(10)
        future.set_result(0)
        completed.set()

    thread = threading.Thread(target=complete)
    thread.start()
    children = []
    for number in range(100):
        if number == 50:
            halfway.set()
        children.append(future.then(lambda _, n=number: seen.append(n)))
    thread.join(10)
    for child in children:
        child.wait(timeout=10)
    assert seen == list(range(100))


def test_b32_chains_on_many_threads_do_not_deadlock() -> None:
    def work() -> None:
        for _ in range(30):
            futures: list[Future[int]] = [Future() for _ in range(50)]
            children = [future.then(lambda f: f.value()) for future in futures]
            for number, future in enumerate(futures):
                future.set_result(number)
            assert [child.wait(timeout=20) for child in children] == list(range(50))

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert not any(thread.is_alive() for thread in threads)


def test_b33_collecting_futures_inside_a_callback_does_not_deadlock() -> None:
    """Cyclic garbage of failed futures, collected while the library runs a callback."""

    def litter() -> None:
        for _ in range(50):
            future: Future[object] = Future()
            future.set_exception(ValueError("garbage"))
            cycle = [future]
            cycle.append(cycle)  # type: ignore[arg-type]

    def work(_: Future[int]) -> int:
        litter()
        return gc.collect()

    future: Future[int] = Future()
    children = [future.then(work) for _ in range(10)]
    future.set_result(1)
    for child in children:
        child.wait(timeout=20)


def test_b34_a_callback_may_return_a_future() -> None:
    inner: Future[int] = Future()
    outer: Future[None] = Future()
    child = outer.then(lambda _: inner)
    outer.set_result(None)
    assert not child.done()
    inner.set_result(7)
    assert child.wait(timeout=10) == 7


def test_b35_waiting_lets_other_threads_run() -> None:
    future: Future[int] = Future()
    count = 0
    stop = threading.Event()

    def spin() -> None:
        nonlocal count
        while not stop.is_set():
            count += 1

    thread = threading.Thread(target=spin)
    thread.start()
    with pytest.raises(TimeoutError):
        future.wait(timeout=0.2)
    stop.set()
    thread.join(10)
    assert count > 1000


def test_b36_awaiting_does_not_block_the_loop() -> None:
    future: Future[int] = Future()

    async def main() -> int:
        task = asyncio.ensure_future(_awaited(future))
        for _ in range(20):  # the loop turns while the task waits
            await asyncio.sleep(0)
        assert not task.done()
        future.set_result(5)
        return await asyncio.wait_for(task, 10)

    assert asyncio.run(main()) == 5


async def _awaited(future: Future[int]) -> int:
    return await future


def test_b37_a_result_after_the_await_was_given_up_is_quiet(error_log) -> None:
    """Shielded, the future is untouched; a late result disturbs nobody."""
    future: Future[int] = Future()
    complaints: list[object] = []

    async def main() -> None:
        loop = asyncio.get_running_loop()
        loop.set_exception_handler(lambda _, context: complaints.append(context))
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(asyncio.shield(future), 0.01)
        future.set_result(5)
        for _ in range(5):
            await asyncio.sleep(0)

    asyncio.run(main())
    assert future.wait() == 5
    assert complaints == []
    # Another test's forgotten failures may be reported late, on a thread of their own.
    mine = [r for r in error_log.records if "nobody looked" not in r.getMessage()]
    assert mine == []


def test_b39_callbacks_that_hold_their_own_future_do_not_leak() -> None:
    alive: weakref.WeakSet[Future[int]] = weakref.WeakSet()
    futures: list[Future[int]] = []
    for _ in range(2000):
        future: Future[int] = Future()
        future.add_done_callback(lambda _, f=future: f)
        futures.append(future)
        alive.add(future)
    for future in futures[::2]:
        future.set_result(1)
    del future, futures
    gc.collect()
    assert len(alive) == 0


def test_b40_a_dropped_future_frees_its_value() -> None:
    value = torch.ones(10)
    alive = weakref.ref(value)
    future: Future[torch.Tensor] = Future()
    child = future.then(lambda f: f.value().sum().item())
    future.set_result(value)
    del value, future
    assert child.wait(timeout=10) == 10
    gc.collect()
    assert alive() is None


def test_b43_a_value_passed_on_into_a_second_future_is_right() -> None:
    """No devices are declared anywhere."""
    with simulate() as sim:
        first: Future[SimArray] = Future()
        second: Future[SimArray] = Future()
        first.add_done_callback(lambda f: second.set_result(f.wait()))
        with sim.stream(0):
            first.set_result(sim.array([2.0]))
        assert second.wait(timeout=10).tolist() == [2.0]


def test_b44_a_future_completed_by_a_helper_on_its_own_stream_is_right() -> None:
    with simulate() as sim:
        outer: Future[None] = Future()

        def handler(_: Future[None]) -> Future[SimArray]:
            inner: Future[SimArray] = Future()

            def helper() -> None:
                with sim.stream(0):
                    inner.set_result(sim.array([4.0]))

            threading.Thread(target=helper).start()
            return inner

        child = outer.then(handler)
        outer.set_result(None)
        assert child.wait(timeout=10).tolist() == [4.0]


def test_b45_a_result_on_a_device_that_no_argument_used_is_right() -> None:
    with simulate(2) as sim:
        parent: Future[SimArray] = Future()
        there = sim.device(1)
        child = parent.then(lambda f: f.value().to(there) + 1.0)
        with sim.stream(0):
            parent.set_result(sim.array([1.0], device=0))
        with sim.stream(1):
            assert child.wait(timeout=10).tolist() == [2.0]


class Box:
    """A class of a user."""

    def __init__(self, inside: object) -> None:
        self.inside = inside


def test_b46_a_class_works_registered_fails_unregistered_passes_declared() -> None:
    def result_of(box: Box) -> BaseException | None:
        future: Future[Box] = Future()
        future.set_result(box)
        return future.exception()

    error = result_of(Box(1))
    assert isinstance(error, rpcfut.ExtractionError)
    assert "Box" in error.type_name
    assert "register_type" in error.fix
    with isolated_registry():
        rpcfut.register_extractor(Box, lambda box: [box.inside])
        assert result_of(Box(torch.ones(1))) is None
    with isolated_registry():
        rpcfut.no_device_data(Box)
        assert result_of(Box("control message")) is None


def test_b47_a_value_may_hold_a_future_beside_a_tensor() -> None:
    """Futures are known; nothing is serialised to look for tensors."""
    with simulate() as sim:
        pending: Future[int] = Future()
        future: Future[dict[str, object]] = Future()
        with sim.stream(0):
            future.set_result({"later": pending, "now": sim.array([1.0])})
        value = future.wait()
        assert value["later"] is pending
        assert value["now"].tolist() == [1.0]  # type: ignore[attr-defined]


def test_b51_memory_that_was_dropped_is_not_used_again_under_a_reader() -> None:
    with simulate() as sim:
        home, reader = sim.stream(0), sim.stream(0)
        future: Future[SimArray] = Future()
        with home:
            future.set_result(sim.array([1.0]))
        with reader:
            copy = future.wait().clone()
        del future
        for _ in range(20):
            with home:
                sim.array([9.0])
        with reader:
            assert copy.tolist() == [1.0]


def test_b53_a_callback_touches_no_device_that_nobody_used() -> None:
    with simulate(2, used=(1,)) as sim:
        future: Future[SimArray] = Future()
        future.set_result(sim.array([1.0], device=1))
        future.then(lambda f: f.value() + 1.0).wait(timeout=10)
        assert [device.index for device in sim.used_devices] == [1]
