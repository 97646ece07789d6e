"""FUT-7: collect_all, wait_all, gather_outcomes, as_completed."""

from __future__ import annotations

import concurrent.futures
import gc
import threading
import time
import weakref
from typing import TYPE_CHECKING, Any

import pytest

from rpcfut import (
    Cancelled,
    Failure,
    Future,
    Value,
    as_completed,
    collect_all,
    gather_outcomes,
    wait_all,
)
from tests.support.threads import Running, run_together

if TYPE_CHECKING:
    from collections.abc import Callable

GROUPS: dict[str, Callable[[Any], Any]] = {
    "collect_all": collect_all,
    "gather_outcomes": gather_outcomes,
    "wait_all": wait_all,
    "as_completed": as_completed,
}


def done(value: Any = 1) -> Future[Any]:
    """A future with a value."""
    future: Future[Any] = Future()
    future.set_result(value)
    return future


def failed(error: BaseException) -> Future[Any]:
    """A future with an error."""
    future: Future[Any] = Future()
    future.set_exception(error)
    return future


def cancelled() -> Future[Any]:
    """A cancelled future."""
    future: Future[Any] = Future()
    future.cancel()
    return future


@pytest.mark.parametrize("group", GROUPS.values(), ids=GROUPS)
@pytest.mark.parametrize("wrong", [None, 3, concurrent.futures.Future()], ids=repr)
def test_what_is_no_future_is_named_by_its_index(group: Any, wrong: Any) -> None:
    """At once, at the call, not when somebody waits."""
    with pytest.raises(TypeError, match="at index 1"):
        group([done(), wrong])


@pytest.mark.parametrize(("name", "group"), GROUPS.items())
def test_one_future_is_not_many(name: str, group: Any) -> None:
    """The message has what to write."""
    with pytest.raises(TypeError, match=rf"write {name}\(\[future\]\)"):
        group(done())


def test_no_futures_are_done_at_once() -> None:
    """Nobody has to wait for nothing."""
    assert collect_all([]).wait(0) == []
    assert gather_outcomes([]).wait(0) == []
    assert wait_all([]) == []
    assert list(as_completed([])) == []


def test_collect_all_gives_the_done_futures_in_order() -> None:
    """As torch's: also when one failed, after the last one, duplicates twice."""
    a, b, c = Future[int](), Future[int](), Future[int]()
    everything = collect_all(iter([a, b, c, a]))
    error = ValueError("no")
    c.set_result(3)
    a.set_exception(error)
    assert not everything.done()
    b.cancel()
    members = everything.wait(0)
    assert [id(m) for m in members] == [id(m) for m in (a, b, c, a)]
    assert (members[0].exception(), members[2].value()) == (error, 3)


def test_collect_all_of_done_ones_is_done() -> None:
    """Whatever way they ended."""
    members = [done(), failed(ValueError()), cancelled()]
    assert collect_all(members).wait(0) == members


def test_collect_all_chains_and_awaits_nothing_on_the_completing_thread() -> None:
    """Callbacks run where those of any future do."""
    a, b = Future[int](), Future[int]()
    total = collect_all([a, b]).then(lambda f: sum(m.value() for m in f.value()))
    a.set_result(1)
    b.set_result(2)
    assert total.wait(10) == 3


def test_a_growing_chain_of_groups_does_not_recurse() -> None:
    """The first one completed last: three thousand groups complete in a loop."""
    first: Future[int] = Future()
    last: Future[Any] = first
    for _ in range(3000):
        last = collect_all([last, done()])
    first.set_result(1)
    assert last.done()


def test_members_that_end_at_one_moment_complete_the_group_once() -> None:
    """Two threads race for being the last one."""
    for _ in range(200):
        a, b = Future[int](), Future[int]()
        everything = collect_all([a, b])
        run_together(lambda a=a: a.set_result(1), lambda b=b: b.set_result(2))
        assert [m.value() for m in everything.wait(10)] == [1, 2]


def test_gather_outcomes_gives_each_ending() -> None:
    """A value, an error with its object, a cancellation: for `match`."""
    error = KeyError("mine")
    pending: Future[Any] = Future()
    outcomes = gather_outcomes([done(5), failed(error), pending, cancelled()])
    assert not outcomes.done()
    pending.set_result(6)
    match outcomes.wait(0):
        case [Value(5), Failure(found), Value(6), Cancelled()]:
            assert found is error
        case other:
            raise AssertionError(other)


def test_outcomes_can_be_passed_on() -> None:
    """A callback may return them: the library knows its own types."""
    outcomes = gather_outcomes([done(5), failed(ValueError()), cancelled()])
    assert len(outcomes.then(lambda f: f.value()).wait(10)) == 3


def test_wait_all_gives_the_values_in_order() -> None:
    """Whatever the order in which they came."""
    a, b = Future[int](), Future[int]()
    waiter = Running(lambda: wait_all([a, b, a]))
    b.set_result(2)
    a.set_result(1)
    assert waiter.result() == [1, 2, 1]


def test_wait_all_raises_at_the_first_failure_b28() -> None:
    """It does not wait for a sleeper that stands before the failure in the list."""
    never: Future[int] = Future()
    failing: Future[int] = Future()
    error = ValueError("first")
    waiter = Running(lambda: wait_all([never, failing]))
    failing.set_exception(error)
    assert waiter.outcome() is error
    assert not never._hooks


def test_wait_all_raises_what_failed_before() -> None:
    """Also with pending ones, and without a timeout."""
    with pytest.raises(ValueError, match="no"):
        wait_all([Future(), failed(ValueError("no"))])
    with pytest.raises(concurrent.futures.CancelledError):
        wait_all([Future(), cancelled()])


def test_wait_all_in_time_or_not() -> None:
    """The message says what the first one waits for; nothing is left behind."""
    pending: Future[int] = Future()
    with pytest.raises(TimeoutError, match=r"1 futures not done after 0\.01 s"):
        wait_all([done(), pending], timeout=0.01)
    assert not pending._hooks
    pending.set_result(2)
    assert wait_all([done(), pending], timeout=0) == [1, 2]


def test_as_completed_gives_each_once_as_it_ends() -> None:
    """Done ones first, each once, whatever way it ended."""
    late: Future[int] = Future()
    first, second = done(), failed(ValueError())
    order = as_completed([late, first, second, first])
    assert {next(order), next(order)} == {first, second}
    late.cancel()
    assert list(order) == [late]


def test_as_completed_in_time_or_not() -> None:
    """The clock runs from the first step; what is pending stays usable."""
    pending: Future[int] = Future()
    order = as_completed([pending, done()], timeout=0.01)
    assert next(order).done()
    with pytest.raises(TimeoutError, match="waits for somebody to call set_result"):
        next(order)
    assert not pending._hooks


def test_as_completed_left_early_leaves_nothing_behind() -> None:
    """A `break` takes the iterator off the futures."""
    pending: Future[int] = Future()
    for _ in as_completed([done(), pending]):
        break
    gc.collect()
    assert not pending._hooks


@pytest.mark.parametrize("name", ["wait_all", "as_completed"])
def test_no_callback_runs_on_a_thread_that_waits(name: str) -> None:
    """It may hold locks that the callback wants (FUT-3)."""
    future: Future[int] = Future()
    ran_on = future.then(lambda _: threading.get_ident())
    read = GROUPS[name]
    waiter = Running(lambda: (list(read([future, ran_on])), threading.get_ident()))
    completer = Running(lambda: future.set_result(1))
    completer.result()
    _, waiting_thread = waiter.result()
    assert ran_on.wait(10) != waiting_thread


def test_groups_let_go_of_their_members() -> None:
    """Nothing of a group lives on once its result is dropped."""
    members = [Future[int]() for _ in range(100)]
    refs = [weakref.ref(m) for m in members]
    outcomes = gather_outcomes(members)
    everything = collect_all(members)
    for member in members:
        member.set_result(1)
    assert wait_all(members) == [1] * 100
    del member, members, everything
    assert outcomes.wait(0) == [Value(1)] * 100
    assert not [r for r in refs if r() is not None], "no cycle, no garbage collector"


@pytest.mark.slow
@pytest.mark.timeout(60)
def test_polling_a_pending_future_does_not_grow_anything() -> None:
    """Ten thousand waits that time out."""
    pending: Future[int] = Future()
    started = time.perf_counter()
    for _ in range(10_000):
        with pytest.raises(TimeoutError):
            wait_all([pending], timeout=0)
    assert not pending._hooks
    assert time.perf_counter() - started < 30
