"""What users of the peers met, each kind with the right outcome: futures.

Each of these was seen to fail with its fault put in: `tests/faults`. Rows with further
tests, or with tests elsewhere, have their name there: ``pytest tests -k b33``. Streams,
memory and extractors stand in test_field_reports_streams.py.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import logging
import threading
import time
import weakref
from typing import TYPE_CHECKING, Any

import pytest

import rpcfut
from rpcfut import Cancelled, Failure, Future, Value
from rpcfut._exposed import ExposedTable
from rpcfut._registry import isolated_registry
from rpcfut._unobserved import REPORTER
from rpcfut.testing import local_cluster
from tests.support import remote
from tests.support.garbage import all_locks_held, settle
from tests.support.threads import Gate, Running, run_together, running

if TYPE_CHECKING:
    from collections.abc import Callable

# Every way to block until a future is done, with a limit in seconds.
READS: dict[str, Callable[[Future[Any], float], object]] = {
    "wait": lambda future, limit: future.wait(timeout=limit),
    "result": lambda future, limit: future.result(timeout=limit),
    "exception": lambda future, limit: future.exception(timeout=limit),
    "wait_all": lambda future, limit: rpcfut.wait_all([future], timeout=limit),
    "as_completed": lambda future, limit: [
        done.value() for done in rpcfut.as_completed([future], timeout=limit)
    ],
}
each_read = pytest.mark.parametrize("read", READS.values(), ids=READS.keys())


@pytest.fixture
def error_log(caplog: pytest.LogCaptureFixture) -> pytest.LogCaptureFixture:
    gc.collect()  # what other tests forgot is reported before
    assert REPORTER.flush(10)
    caplog.clear()
    caplog.set_level(logging.ERROR, logger="rpcfut")
    return caplog


def fail(_: object = None) -> None:
    raise ValueError("on purpose")


def failed(text: str = "on purpose") -> Future[Any]:
    future: Future[Any] = Future()
    future.set_exception(ValueError(text))
    return future


def done() -> Future[int]:
    future: Future[int] = Future()
    future.set_result(1)
    return future


async def awaited(future: Future[int]) -> int:
    return await future


@each_read
def test_b10_a_wait_may_be_limited_and_leaves_the_future_usable(read) -> None:
    """And says what it waited for, so that it can be debugged."""
    future: Future[int] = Future()
    error = Running(lambda: read(future, 0.01)).outcome()
    assert isinstance(error, TimeoutError)
    assert f"made at {__file__}" in str(error)
    assert not future.done()
    future.set_result(3)
    assert future.wait(timeout=10) == 3


def test_b26_a_parents_error_reaches_the_end_of_the_chain(error_log) -> None:
    """And a raising callback fails its child, or is logged, and stops no later one."""
    parent: Future[int] = Future()
    end = parent.then(lambda f: f.value() + 1).then(lambda f: f.value() + 1)
    raising = parent.then(fail)
    later = Gate()
    parent.add_done_callback(fail)
    parent.add_done_callback(lambda _: later.set())
    parent.set_exception(KeyError("too late"))
    assert isinstance(end.exception(timeout=10), KeyError)
    assert isinstance(raising.exception(timeout=10), ValueError)
    later.pass_through()
    assert len(error_log.records) == 1
    record = error_log.records[0]
    assert f"fail(), registered at {__file__}" in record.getMessage()
    assert str(record.exc_info[1]) == "on purpose"


def test_b27_a_failure_that_nobody_saw_is_reported_once(error_log) -> None:
    """Of a future, a child and a call: each with where it comes from."""
    exposed = ExposedTable()
    exposed.expose(remote.fail)
    with local_cluster("alice", "bob", exposed=exposed) as (alice, _):
        call = alice.rpc_async("bob", remote.fail, ("KeyError",))
        settle_done(call)
        del call
    failed("forgotten")
    child = done().then(fail)
    settle_done(child)
    del child
    gc.collect()
    assert REPORTER.flush(10)
    told = [record.getMessage() for record in error_log.records]
    assert len(told) == 3, told
    assert sum("remote:fail on worker 'bob'" in text for text in told) == 1
    assert sum(f"made at {__file__}" in text for text in told) == 2


def settle_done(future: Future[Any]) -> None:
    """Wait until a future is done, without looking at it."""
    pause = threading.Event()
    for _ in range(1000):
        if future.done():
            return
        pause.wait(0.01)
    raise AssertionError(f"not done: {future!r}")


@each_read
def test_b27_a_failure_that_somebody_saw_is_not_reported(read, error_log) -> None:
    future = failed()
    with contextlib.suppress(ValueError):
        read(future, 0)
    del future
    gc.collect()
    assert REPORTER.flush(10)
    assert error_log.text == ""


@pytest.mark.parametrize("order", [1, -1], ids=["slow first", "failed first"])
def test_b28_waiting_for_many_fails_at_the_first_failure(order) -> None:
    """Without waiting for the slow one; the other forms wait for all, and tell all."""
    slow: Future[int] = Future()
    members = [slow, failed("fast")][::order]
    error = Running(lambda: rpcfut.wait_all(members, timeout=5)).outcome()
    assert isinstance(error, ValueError)
    outcomes = rpcfut.gather_outcomes(members)
    everything = rpcfut.collect_all(members)
    assert not outcomes.done()
    assert not everything.done()
    slow.set_result(1)
    kinds = {type(outcome) for outcome in outcomes.wait(timeout=10)}
    assert kinds == {Value, Failure}
    with pytest.raises(ValueError, match="fast"):
        rpcfut.wait_all(everything.wait(timeout=10), timeout=10)


class Racer:
    """A value that takes its time to be looked into."""


def test_b29_of_eight_that_complete_at_once_one_wins() -> None:
    """All eight have seen the future pending; the others are told, nothing changes."""
    future: Future[Racer] = Future()
    barrier = threading.Barrier(8)

    def meet(_racer: Racer) -> tuple[object, ...]:
        barrier.wait(10)
        return ()

    def complete(racer: Racer) -> Racer:
        future.set_result(racer)
        return racer

    waiters = [Running(lambda: future.wait(timeout=10)) for _ in range(4)]
    with isolated_registry():
        rpcfut.register_extractor(Racer, meet)
        ends = run_together(*(lambda: complete(Racer()) for _ in range(8)))
    (winner,) = [end for end in ends if isinstance(end, Racer)]
    losers = [end for end in ends if end is not winner]
    assert {type(end) for end in losers} == {rpcfut.InvalidStateError}
    with pytest.raises(rpcfut.InvalidStateError):
        future.set_exception(ValueError("too late"))
    assert not future.try_set_result(Racer())
    assert not future.cancel()
    assert {waiter.result() for waiter in waiters} == {winner}
    assert future.wait() is winner


def test_b30_a_raising_callback_is_the_same_before_and_after(error_log) -> None:
    """Nobody but its child and the log is told; later ones run."""
    before: Future[int] = Future()
    after = done()
    later = [Gate(), Gate()]
    children = []
    for future, gate in zip((before, after), later, strict=True):
        future.add_done_callback(fail)
        children.append(future.then(lambda _: fail()))
        future.add_done_callback(lambda _, gate=gate: gate.set())
    before.set_result(1)
    errors = [child.exception(timeout=10) for child in children]
    assert [type(error) for error in errors] == [ValueError, ValueError]
    for gate in later:
        gate.pass_through()
    assert error_log.text.count("the done callback fail()") == 2
    assert len(error_log.records) == 2
    assert before.wait() == after.wait() == 1


def test_b31_callbacks_keep_their_order_when_completed_midway() -> None:
    """One at a time: those that come while the first one runs wait for it."""
    future: Future[int] = Future()
    seen: list[int] = []
    entered, may_go_on = Gate(), Gate()

    def first(_: Future[int]) -> None:
        entered.set()
        may_go_on.pass_through()
        seen.append(0)

    def add(number: int) -> None:
        register = future.then if number % 2 else future.add_done_callback
        register(lambda _: seen.append(number))

    future.then(first)
    for number in range(1, 50):
        add(number)
    with running(lambda: future.set_result(0)):
        entered.pass_through()
        for number in range(50, 100):
            add(number)
        last = future.then(lambda _: None)
        may_go_on.set()
        last.wait(timeout=10)
    assert seen == list(range(100))


class Touching:
    """Has another thread use futures, when it is looked into, compared or dropped."""

    def __init__(self, future: Future[Any]) -> None:
        self.touched: list[str] = []
        self._is_busy = False
        self._future = future

    def touch(self, when: str) -> None:
        """Another thread does with the future what takes its lock."""
        if self._is_busy:
            return

        def use() -> None:
            self._future.then(id)
            self._future.add_done_callback(id)
            self._future.remove_done_callback(id)
            self._future.explain()

        self._is_busy = True
        Running(use).result()
        self._is_busy = False
        self.touched.append(when)

    def __call__(self, _: object) -> None:
        """Run as a callback."""
        self.touch("called")

    def __eq__(self, other: object) -> bool:
        self.touch("compared")
        return self is other

    __hash__ = object.__hash__


class Held:
    """Touches when the last reference to it goes."""

    def __init__(self, touching: Touching) -> None:
        self._touching = touching

    def __call__(self, _: object) -> None:
        """Run as a callback."""

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Held)

    __hash__ = object.__hash__

    def __del__(self) -> None:
        self._touching.touch("dropped")


def test_b32_no_lock_is_held_while_user_code_runs() -> None:
    """In a callback, in an extractor, in a comparison, when the last reference goes."""
    future: Future[Any] = Future()
    touching, dropped = Touching(future), Touching(future)
    child = future.then(touching)
    future.add_done_callback(touching)
    assert Running(lambda: future.remove_done_callback(touching)).result() == 1
    future.add_done_callback(Held(dropped))
    assert Running(lambda: future.remove_done_callback(Held(dropped))).result() == 1
    assert dropped.touched == ["dropped"] * 2
    with isolated_registry():
        rpcfut.register_extractor(Touching, lambda value: value.touch("extracted"))
        Running(lambda: future.set_result(touching)).result()
    child.wait(timeout=10)
    assert {"called", "extracted", "compared"} <= set(touching.touched)


def test_b32_chains_on_many_threads_do_not_deadlock() -> None:
    def work() -> None:
        for _ in range(30):
            futures: list[Future[int]] = [Future() for _ in range(50)]
            children = [future.then(lambda f: f.value()) for future in futures]
            for number, future in enumerate(futures):
                future.set_result(number)
            assert [child.wait(timeout=10) for child in children] == list(range(50))

    assert run_together(*[work] * 4) == [None] * 4


def litter() -> None:
    """Leave cyclic garbage: failed futures, pending ones with callbacks, children."""
    for _ in range(20):
        pending: Future[object] = Future()
        pending.add_done_callback(lambda _, f=pending: f)
        cycle: list[object] = [failed("garbage"), pending, pending.then(fail)]
        cycle.append(cycle)


def test_b33_collecting_futures_inside_a_callback_does_not_deadlock() -> None:
    def work(_: Future[int]) -> int:
        litter()
        return gc.collect()

    future: Future[int] = Future()
    children = [future.then(work) for _ in range(10)]
    Running(lambda: future.set_result(1)).result()
    for child in children:
        child.wait(timeout=10)


def test_b33_finalisers_take_no_lock_and_do_no_work(error_log) -> None:
    """Collected by a thread that holds all our locks, while another holds the log's."""
    done().then(lambda f: f.value()).wait(10)  # all that is shared is there
    failed("the first one starts the thread that reports").exception()
    gc.collect()
    assert REPORTER.flush(10)
    gc.disable()
    try:
        litter()

        def collect() -> int:
            with all_locks_held() as count:
                gc.collect()
            return count

        with error_log.handler.lock:
            assert Running(collect).result() > 5
    finally:
        gc.enable()
    assert REPORTER.flush(10)
    assert error_log.text.count("ValueError: garbage") == 20


def test_b34_a_callback_may_return_a_future() -> None:
    """Of a value, an error, a future again, or cancelled; the child ends as that."""
    value, error, cancelled = Future[int](), Future[int](), Future[int]()
    outer: Future[None] = Future()
    inner = (value, error, cancelled, value.then(lambda _: value))
    children = [outer.then(lambda _, f=f: f) for f in inner]
    outer.set_result(None)
    assert not any(child.done() for child in children)
    value.set_result(7)
    error.set_exception(KeyError("no"))
    cancelled.cancel()
    outcomes = rpcfut.gather_outcomes(children).wait(timeout=10)
    assert [type(end) for end in outcomes] == [Value, Failure, Cancelled, Value]
    assert outcomes[0].value == outcomes[3].value == 7


def test_b34_a_callback_may_wait_for_another_one() -> None:
    """More of them at once than the pool has threads to begin with."""

    def wait_for_another(_: Future[int]) -> int:
        return done().then(lambda f: f.value()).wait(timeout=10)

    children = [done().then(wait_for_another) for _ in range(40)]
    assert [child.wait(timeout=10) for child in children] == [1] * 40


@each_read
def test_b35_waiting_lets_other_threads_run(read) -> None:
    """Without the GIL, and asleep."""
    ticks = 0
    stop = threading.Event()

    def tick() -> None:
        nonlocal ticks
        while not stop.wait(0.005):
            ticks += 1

    def lets_run() -> bool:
        ticks_before, cpu_s_before = ticks, time.thread_time()
        with pytest.raises(TimeoutError):
            read(Future(), 0.3)
        # Sixty, on an idle machine; one or two if they only run before and after.
        return ticks - ticks_before > 4 and time.thread_time() - cpu_s_before < 0.15

    with running(tick):
        try:
            assert any(lets_run() for _ in range(8)), "the wait keeps the GIL, or spins"
        finally:
            stop.set()


def test_b36_awaiting_does_not_block_the_loop() -> None:
    """Nor do two loops that await one future; both wake up by themselves."""
    future: Future[int] = Future()
    turned = [Gate(), Gate()]

    async def main(gate: Gate) -> int:
        task = asyncio.ensure_future(awaited(future))
        for _ in range(20):  # the loop turns while the task waits
            await asyncio.sleep(0)
        assert not task.done()
        gate.set()
        return await task

    loops = [Running(lambda gate=gate: asyncio.run(main(gate))) for gate in turned]
    for gate in turned:
        gate.pass_through()
    threading.Event().wait(0.05)  # the loops go to sleep
    future.set_result(5)
    assert [loop.result() for loop in loops] == [5, 5]


@pytest.mark.parametrize("how", ["shielded", "limited", "raced"])
def test_b37_a_result_after_the_await_was_given_up_is_quiet(how, error_log) -> None:
    """Shielded, the future is untouched; a late result disturbs nobody."""
    future: Future[int] = Future()
    complaints: list[object] = []

    async def give_up() -> None:
        task = asyncio.ensure_future(awaited(future))
        await asyncio.sleep(0)
        if how == "raced":
            future.set_result(5)
            task.cancel()
        waited = asyncio.shield(task) if how == "shielded" else task
        with pytest.raises((TimeoutError, asyncio.CancelledError)):
            await asyncio.wait_for(waited, 0.01)

    async def main() -> None:
        loop = asyncio.get_running_loop()
        loop.set_exception_handler(lambda _, context: complaints.append(context))
        await give_up()
        if how != "raced":
            assert future.try_set_result(5) == (how == "shielded")
        for _ in range(5):
            await asyncio.sleep(0)

    asyncio.run(main())
    if how == "limited":
        assert future.cancelled()
    else:
        assert Running(lambda: future.wait(timeout=10)).result() == 5
    assert complaints == []
    # Another test's forgotten failures may be reported late, on a thread of their own.
    mine = [r for r in error_log.records if "nobody looked" not in r.getMessage()]
    assert mine == []


def test_b37_a_result_after_the_loop_was_closed_is_quiet(error_log) -> None:
    """Also for a done callback that the loop should have run."""
    future: Future[int] = Future()

    async def main() -> None:
        future.add_done_callback(fail)

    asyncio.run(main())
    future.set_result(5)
    assert future.wait() == 5
    mine = [r for r in error_log.records if "nobody looked" not in r.getMessage()]
    assert mine == []


def test_b39_callbacks_that_hold_their_own_future_do_not_leak() -> None:
    """Completed or not, run inside set_result or on the pool, with a child or not."""
    live: weakref.WeakSet[Future[Any]] = weakref.WeakSet()
    futures: list[Future[int]] = []
    children: list[Future[Any]] = []
    for _ in range(500):
        future: Future[int] = Future()
        future.add_done_callback(lambda _, f=future: f)
        with contextlib.suppress(TimeoutError):
            future.wait(timeout=0)
        futures.append(future)
        live.add(future)
    for future in futures[::2]:
        future.then(lambda _, f=future: f.done())
        future.set_result(1)
        children.append(future.then(lambda _, f=future: f.done()))
    assert all(rpcfut.wait_all(children, timeout=10))
    live.update(children)
    del future, futures, children
    settle(live, rounds=60)
    assert len(live) == 0


def test_b39_calls_that_the_transport_took_along_do_not_leak() -> None:
    """It was closed before they were answered; their callbacks hold them."""
    live: weakref.WeakSet[Future[Any]] = weakref.WeakSet()
    exposed = ExposedTable()
    exposed.expose(remote.never)
    with local_cluster("alice", "bob", exposed=exposed) as (alice, _):
        for _ in range(50):
            call = alice.rpc_async("bob", remote.never)
            call.add_done_callback(lambda _, f=call: f)
            live.add(call)
        del call
        alice.close()
        settle(live, rounds=60)
        assert len(live) == 0
