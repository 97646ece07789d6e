"""FUT-4: a future that a callback returns is flattened; a parent's error passes on."""

from __future__ import annotations

import concurrent.futures
import threading
from typing import Any

import pytest

from rpcfut import Future, InvalidStateError
from tests.support.threads import Gate, Running


def _parent_and_child(inner: Future[Any]) -> tuple[Future[int], Future[Any]]:
    parent: Future[int] = Future()
    return parent, parent.then(lambda _: inner)


@pytest.mark.parametrize("is_early", [True, False], ids=["done", "pending"])
@pytest.mark.parametrize("ending", ["value", "error", "cancelled"])
def test_the_child_ends_as_the_returned_future_does(
    ending: str, is_early: object
) -> None:
    """Pending, done, failed or cancelled: the child takes the outcome over."""
    error = ValueError("inner")
    inner: Future[int] = Future()

    def end() -> None:
        match ending:
            case "value":
                inner.set_result(5)
            case "error":
                inner.set_exception(error)
            case _:
                inner.cancel()

    parent, child = _parent_and_child(inner)
    if is_early:
        end()
        parent.set_result(1)
    else:
        parent.set_result(1)
        assert not child.done()
        end()
    match ending:
        case "value":
            assert child.wait(10) == 5
        case "error":
            assert child.exception(10) is error
        case _:
            with pytest.raises(concurrent.futures.CancelledError):
                child.wait(10)
            assert child.cancelled()


def test_one_level_is_flattened_as_the_type_says() -> None:
    """An inner future whose value is a future makes a child whose value is one."""
    innermost: Future[int] = Future()
    inner: Future[Future[int]] = Future()
    inner.set_result(innermost)
    parent, child = _parent_and_child(inner)
    parent.set_result(1)
    assert child.wait(10) is innermost


def test_a_child_cancelled_meanwhile_stays_cancelled() -> None:
    """The inner future comes second and changes nothing (FUT-1)."""
    inner: Future[int] = Future()
    parent, child = _parent_and_child(inner)
    parent.set_result(1)
    assert child.cancel()
    inner.set_result(2)
    assert child.cancelled()
    assert inner.value() == 2


def test_several_children_may_follow_one_future() -> None:
    """Each gets the value, and each one's callbacks run."""
    inner: Future[int] = Future()
    pairs = [_parent_and_child(inner) for _ in range(5)]
    ends = [child.then(lambda f: f.value() + 1) for _, child in pairs]
    for parent, _ in pairs:
        parent.set_result(0)
    inner.set_result(1)
    assert [end.wait(10) for end in ends] == [2] * 5


def test_followers_are_done_before_any_callback_runs() -> None:
    """A callback of the inner future may wait for the future that follows it."""
    inner: Future[int] = Future()
    parent, child = _parent_and_child(inner)
    parent.set_result(0)
    seen = inner.then(lambda _: child.done())
    inner.set_result(1)
    assert seen.wait(10) is True


def test_callbacks_of_followers_run_inside_set_result_too() -> None:
    """Flattening changes nothing about where callbacks run (FUT-3)."""
    inner: Future[int] = Future()
    parent, child = _parent_and_child(inner)
    parent.set_result(0)
    threads: list[int] = []
    child.add_done_callback(lambda _: threads.append(threading.get_ident()))
    inner.add_done_callback(lambda _: threads.append(threading.get_ident()))
    inner.set_result(1)
    assert threads == [threading.get_ident()] * 2


def test_callbacks_of_followers_may_block_for_one_another() -> None:
    """Callbacks of one completion that sit on one thread do not hang each other."""
    inner: Future[int] = Future()
    children = []
    for _ in range(2):
        parent, child = _parent_and_child(inner)
        parent.set_result(0)
        children.append(child)
    first: Future[int] = Future()
    one = children[0].then(lambda _: (first.try_set_result(1), ends[1].wait(10)))
    two = children[1].then(lambda _: (first.try_set_result(2), 2))
    ends: list[Future[Any]] = [one, two]
    setter = Running(lambda: inner.set_result(1))
    assert one.wait(10)[1][1] == 2
    setter.result()


@pytest.mark.timeout(60)
def test_an_asynchronous_loop_of_any_length_does_not_recurse() -> None:
    """Each step returns the next step's future: a chain of followers."""
    length = 20_000
    inner: Future[int] = Future()

    def step(i: int) -> Future[int]:
        done: Future[int] = Future()
        done.set_result(i)
        return done.then(lambda f: step(i + 1) if i < length else inner)

    first = step(0)
    reached_the_end = Gate()
    inner.then(lambda _: reached_the_end.set())
    inner.set_result(9)
    assert first.wait(50) == 9
    reached_the_end.pass_through()


@pytest.mark.timeout(60)
def test_a_hundred_thousand_followers_complete_without_recursion() -> None:
    """One completion ends them all in a loop (FUT-3)."""
    last: Future[int] = Future()
    future = last
    for _ in range(100_000):
        parent, child = _parent_and_child(future)
        parent.set_result(0)
        future = child
    assert not future.done()
    last.set_result(4)
    assert future.wait(50) == 4


@pytest.mark.timeout(60)
def test_followers_that_never_complete_are_freed_without_recursion() -> None:
    """The interpreter survives dropping a chain of a hundred thousand of them."""
    last: Future[int] = Future()
    future = last
    for _ in range(100_000):
        parent, child = _parent_and_child(future)
        parent.set_result(0)
        future = child
    del future, parent, child, last


def test_a_callback_that_returns_its_own_child_is_told() -> None:
    """It would wait for itself for ever."""
    parent: Future[int] = Future()
    children: list[Future[Any]] = []
    children.append(parent.then(lambda _: children[0]))
    parent.set_result(1)
    with pytest.raises(InvalidStateError, match="would wait for itself"):
        children[0].wait(10)


@pytest.mark.parametrize("read", ["wait", "result", "value"])
def test_the_parents_error_reaches_the_child_as_the_same_object(read: str) -> None:
    """A callback that reads its parent and lets the error pass forwards it."""
    parent: Future[int] = Future()
    error = KeyError("mine")
    child = parent.then(lambda f: getattr(f, read)())
    grandchild = child.then(lambda f: getattr(f, read)())
    parent.set_exception(error)
    assert grandchild.exception(10) is error
    with pytest.raises(KeyError) as caught:
        grandchild.wait(10)
    assert caught.value is error


def test_a_callback_may_handle_the_parents_error() -> None:
    """The child then has a value."""
    parent: Future[int] = Future()
    child = parent.then(lambda f: str(f.exception()))
    parent.set_exception(ValueError("seen"))
    assert child.wait(10) == "seen"


def test_children_of_a_cancelled_future_see_it_when_they_read() -> None:
    """Cancelling goes down to the children's callbacks, never up."""
    parent: Future[int] = Future()
    reads = parent.then(lambda f: f.value())
    looks = parent.then(lambda f: f.cancelled())
    parent.cancel()
    assert isinstance(reads.exception(10), concurrent.futures.CancelledError)
    assert looks.wait(10) is True
    other: Future[int] = Future()
    assert other.then(lambda f: f.value()).cancel()
    assert not other.done()
