"""FUT-3: callbacks run in order, one at a time, under no lock, and none is lost."""

from __future__ import annotations

import concurrent.futures
import gc
import itertools
import logging
import threading
import weakref
from typing import TYPE_CHECKING, Any

import pytest

from rpcfut import Future
from rpcfut._callbacks import MAX_NESTING
from tests.support.threads import Gate, Running, run_together

if TYPE_CHECKING:
    from collections.abc import Callable

CHAIN = 100_000


def _done(value: Any = None) -> Future[Any]:
    future: Future[Any] = Future()
    future.set_result(value)
    return future


@pytest.mark.parametrize("round_", range(10))
def test_callbacks_run_in_order_while_another_thread_completes(round_: int) -> None:
    """The order is that of registration, before, during and after completion."""
    del round_
    future: Future[int] = Future()
    ran: list[int] = []
    last: list[Future[None]] = []

    def register() -> None:
        last.extend(future.then(lambda _, i=i: ran.append(i)) for i in range(100))

    run_together(register, lambda: future.set_result(1))
    for child in last:
        child.wait(10)
    assert ran == list(range(100))


def test_callbacks_of_one_future_run_one_at_a_time() -> None:
    """A callback that dawdles on one thread holds up the next one, on any thread."""
    future: Future[int] = Future()
    entered, may_go_on = Gate(), Gate()
    inside: list[str] = []
    overlaps: list[list[str]] = []

    def first(_: object) -> None:
        inside.append("first")
        entered.set()
        may_go_on.pass_through()
        inside.remove("first")

    def later(_: object) -> None:
        overlaps.append(inside.copy())

    future.add_done_callback(first)
    setter = Running(lambda: future.set_result(1))
    entered.pass_through()
    children = [future.then(later) for _ in range(5)]
    with pytest.raises(TimeoutError):
        children[0].wait(0)
    may_go_on.set()
    for child in children:
        child.wait(10)
    setter.result()
    assert overlaps == [[]] * 5


def test_a_callback_sees_the_same_before_and_after_completion() -> None:
    """It gets the done future itself; what it returns is the child's value."""
    before: Future[int] = Future()
    early = before.then(lambda f: (f, f.done(), f.value()))
    before.set_result(5)
    late = before.then(lambda f: (f, f.done(), f.value()))
    assert early.wait(10) == late.wait(10) == (before, True, 5)


def test_set_result_runs_what_was_registered_before_it() -> None:
    """When it returns these have run, on the same thread."""
    future: Future[int] = Future()
    threads: list[int] = []
    child = future.then(lambda _: threads.append(threading.get_ident()))
    grandchild = child.then(lambda _: threads.append(threading.get_ident()))
    future.set_result(1)
    assert grandchild.done()
    assert threads == [threading.get_ident()] * 2


def test_callbacks_registered_after_completion_run_on_the_pool() -> None:
    """`then` on a done future never runs user code inside `then`."""
    thread = _done().then(lambda _: threading.current_thread().name).wait(10)
    assert thread.startswith("rpcfut-callback-")


def test_set_result_does_not_run_what_its_callbacks_register() -> None:
    """Who keeps registering cannot hold the user's thread for ever."""
    future: Future[int] = Future()
    names: list[str] = []
    finished = Gate()

    def again(f: Future[int]) -> None:
        names.append(threading.current_thread().name)
        if len(names) < 5:
            f.add_done_callback(again)
        else:
            finished.set()

    future.add_done_callback(again)
    future.set_result(1)
    finished.pass_through()
    assert names[0] == threading.current_thread().name
    assert all(name.startswith("rpcfut-callback-") for name in names[1:])


def test_a_callback_may_use_any_future_since_no_lock_is_held() -> None:
    """It registers on, reads, completes and waits for futures, its own parent too."""
    parent: Future[int] = Future()
    others = [Future[int]() for _ in range(3)]

    def use_everything(f: Future[int]) -> Any:
        late = f.then(lambda g: g.value() + 1)
        repr(f)
        others[0].set_result(f.value())
        others[1].cancel()
        others[2].then(lambda g: g.value())
        assert not f.cancel()
        assert f.exception() is None
        return _done(late)

    child = parent.then(use_everything)
    parent.set_result(1)
    assert child.wait(10).wait(10) == 2
    assert others[0].wait(0) == 1
    assert others[1].cancelled()


def test_another_thread_can_use_a_future_while_its_callback_runs() -> None:
    """No lock is held: the other thread would hang otherwise."""
    future: Future[int] = Future()

    def ask_elsewhere(f: Future[int]) -> tuple[bool, int]:
        return Running(lambda: (f.then(lambda _: 0) is f, f.wait(0))).result()

    child = future.then(ask_elsewhere)
    future.set_result(3)
    assert child.wait(10) == (False, 3)


@pytest.mark.timeout(120)
def test_a_chain_of_a_hundred_thousand_completes_without_recursion() -> None:
    """Long chains are a loop."""
    first: Future[int] = Future()
    last: Future[int] = first
    for _ in range(CHAIN):
        last = last.then(lambda f: f.value() + 1)
    first.set_result(0)
    assert last.wait(100) == CHAIN


@pytest.mark.timeout(120)
def test_a_chain_that_never_completes_is_freed_without_recursion() -> None:
    """A hundred thousand children hang on one another; the interpreter survives."""
    first: Future[int] = Future()
    last: Future[int] = first
    for _ in range(CHAIN):
        last = last.then(lambda f: f.value())
    gone = weakref.ref(last)
    del last, first
    gc.collect()
    assert gone() is None


def test_a_chain_that_ran_keeps_nothing_alive() -> None:
    """A child keeps its parent only until it ran: values do not pile up."""
    first: Future[Any] = Future()
    last = first
    for _ in range(50):
        last = last.then(lambda f: [f.value()])
    gone = weakref.ref(first)
    first.set_result([1])
    del first
    last.wait(10)
    assert gone() is None


def test_a_raising_callback_fails_its_child_and_nothing_else() -> None:
    """Later callbacks still run, and the parent keeps its value."""
    future: Future[int] = Future()
    error = ValueError("mine")

    def fail(_: object) -> None:
        raise error

    failed = future.then(fail)
    fine = future.then(lambda f: f.value())
    future.set_result(1)
    assert failed.exception(10) is error
    assert fine.wait(10) == future.value() == 1


def test_a_raising_done_callback_is_logged_with_its_place(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """The log names the function and the line that registered it."""
    future: Future[int] = Future()

    def complain(_: object) -> None:
        raise ValueError("nobody hears me")

    future.add_done_callback(complain)  # the place
    line = complain.__code__.co_firstlineno + 3
    ran: list[int] = []
    future.add_done_callback(lambda f: ran.append(f.value()))
    with caplog.at_level(logging.ERROR, "rpcfut.future"):
        future.set_result(1)
    (record,) = caplog.records
    assert f"{__file__}:{line}" in record.getMessage()
    assert "complain" in record.getMessage()
    assert record.exc_info is not None
    assert isinstance(record.exc_info[1], ValueError)
    assert ran == [1]


@pytest.mark.parametrize("method", ["then", "add_done_callback"])
def test_ctrl_c_inside_a_callback_comes_out_of_set_result(method: str) -> None:
    """It is meant for the program, not for the child alone; later callbacks run."""
    future: Future[int] = Future()

    def interrupt(_: object) -> None:
        raise KeyboardInterrupt

    child = getattr(future, method)(interrupt)
    later = future.then(lambda f: f.value())
    with pytest.raises(KeyboardInterrupt):
        future.set_result(1)
    assert future.value() == 1
    assert later.wait(0) == 1
    if child is not None:
        assert isinstance(child.exception(0), KeyboardInterrupt)
    Future[int]().then(lambda f: f.value())
    _done(2).then(lambda f: f.value()).wait(10)


def test_ctrl_c_on_another_thread_only_fails_the_child() -> None:
    """Python delivers it on the main thread; elsewhere somebody raised it."""
    future: Future[int] = Future()

    def interrupt(_: object) -> None:
        raise KeyboardInterrupt

    on_the_pool = _done().then(interrupt)
    assert isinstance(on_the_pool.exception(10), KeyboardInterrupt)
    child = future.then(interrupt)
    assert Running(lambda: future.set_result(1)).outcome() is None
    assert isinstance(child.exception(10), KeyboardInterrupt)
    assert _done(1).then(lambda f: f.value()).wait(10) == 1


def test_waiting_for_what_was_put_off_on_the_own_thread_ends() -> None:
    """The first child's callbacks are put off while later callbacks run."""
    future: Future[int] = Future()
    first = future.then(lambda f: f.value() + 1)
    second = first.then(lambda f: f.value() + 1)
    third = future.then(lambda _: second.wait(10))
    future.set_result(1)
    assert third.wait(10) == 3


def _with_event(future: Future[Any]) -> Any:
    ready = Gate()
    future.add_done_callback(lambda _: ready.set())
    ready.pass_through()
    return future.value()


def _with_concurrent_futures(future: Future[Any]) -> Any:
    done, _ = concurrent.futures.wait([future], timeout=10)
    return done.pop().value()


@pytest.mark.parametrize("wait", [_with_event, _with_concurrent_futures])
def test_other_ways_to_wait_inside_a_callback_end_too(
    wait: Callable[[Future[Any]], Any],
) -> None:
    """What a child starts runs before its parent's next callback, as if nested."""
    future: Future[int] = Future()
    second = future.then(lambda f: f.value() + 1).then(lambda f: f.value() + 1)
    third = future.then(lambda _: wait(second))
    setter = Running(lambda: future.set_result(1))
    assert third.wait(10) == 3
    setter.result()


@pytest.mark.parametrize(
    "wait", [lambda f: f.wait(10), lambda f: f.exception(10), _with_concurrent_futures]
)
def test_a_child_may_wait_for_its_uncle(wait: Callable[[Future[Any]], Any]) -> None:
    """A child's callback waits for the parent's next one, which was put off."""
    future: Future[int] = Future()
    child = future.then(lambda f: f.value())
    uncle = future.then(lambda f: f.value() + 1)
    grandchild = child.then(lambda _: (wait(uncle), uncle.value()))
    setter = Running(lambda: future.set_result(1))
    assert grandchild.wait(10)[1] == 2
    setter.result()


@pytest.mark.parametrize("depth", [1, MAX_NESTING, MAX_NESTING + 1, 1000])
def test_set_result_inside_callbacks_may_nest(depth: int) -> None:
    """From a certain depth on the pool takes over; nothing recurses further."""
    futures = [Future[int]() for _ in range(depth + 1)]
    for one, other in itertools.pairwise(futures):
        one.add_done_callback(lambda f, other=other: other.set_result(f.value() + 1))
    futures[0].set_result(0)
    assert futures[-1].wait(10) == depth


def test_a_done_callback_returns_nothing_to_anybody() -> None:
    """What it returns is dropped, also if nobody knows its type."""
    future: Future[int] = Future()
    future.add_done_callback(lambda _: object())
    future.set_result(1)
    assert future.value() == 1


@pytest.mark.parametrize("round_", range(5))
def test_no_callback_is_lost_when_many_threads_register_and_complete(
    round_: int,
) -> None:
    """Each of 4 x 200 registrations runs once, whatever the order."""
    del round_
    futures = [Future[int]() for _ in range(200)]
    counts = [0] * len(futures)
    lock = threading.Lock()

    def count(i: int) -> None:
        with lock:
            counts[i] += 1

    def register() -> list[Future[None]]:
        return [f.then(lambda _, i=i: count(i)) for i, f in enumerate(futures)]

    def complete() -> list[Future[None]]:
        for future in futures:
            future.set_result(1)
        return []

    for children in run_together(*[register] * 4, complete):
        for child in children:
            child.wait(10)
    assert counts == [4] * len(futures)
