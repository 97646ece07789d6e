"""FUT-1: a future completes once, atomically: value, error or cancelled."""

from __future__ import annotations

import concurrent.futures
import threading

import pytest

from rpcfut import Future, InvalidStateError
from tests.support.threads import Gate, Running, run_together


class _Unequal:
    """A value that only is itself."""

    __slots__ = ()


def test_a_new_future_is_pending() -> None:
    """Nothing is known about it, and it says so."""
    future: Future[int] = Future()
    assert not future.done()
    assert not future.cancelled()
    assert not future.running()
    assert repr(future) == "<rpcfut.Future pending>"


def test_the_future_names_its_state() -> None:
    """Every long-lived object tells its state and counts."""
    pending: Future[int] = Future()
    pending.then(lambda f: f.value())
    value: Future[int] = Future()
    value.set_result(1)
    error: Future[int] = Future()
    error.set_exception(ValueError("no"))
    cancelled: Future[int] = Future()
    cancelled.cancel()
    assert [repr(f) for f in (pending, value, error, cancelled)] == [
        "<rpcfut.Future pending, 1 callbacks>",
        "<rpcfut.Future value of type int>",
        "<rpcfut.Future error ValueError>",
        "<rpcfut.Future cancelled>",
    ]


@pytest.mark.parametrize("round_", range(25))
def test_of_eight_racing_threads_exactly_one_completes(round_: int) -> None:
    """A second completion raises or returns False; all waiters see the winner."""
    del round_
    future: Future[str] = Future()
    waiters = [Running(lambda: future.exception(10)) for _ in range(3)]

    def set_result(name: str) -> str | None:
        try:
            future.set_result(name)
        except InvalidStateError:
            return None
        return name

    def set_exception(error: Exception) -> Exception | None:
        try:
            future.set_exception(error)
        except InvalidStateError:
            return None
        return error

    errors = [KeyError("a"), KeyError("b"), KeyError("c")]
    outcomes = run_together(
        *(lambda n=n: set_result(n) for n in ("x", "y")),
        lambda: "t" if future.try_set_result("t") else None,
        *(lambda e=e: set_exception(e) for e in errors),
        lambda: (future.try_set_result("u") and "u") or None,
        lambda: set_result("z"),
    )
    (winner,) = [o for o in outcomes if o is not None]
    seen = [waiter.result() for waiter in waiters]
    if isinstance(winner, Exception):
        assert all(error is winner for error in seen)
        with pytest.raises(KeyError):
            future.wait(0)
    else:
        assert seen == [None] * 3
        assert future.wait(0) == winner


@pytest.mark.parametrize("round_", range(25))
def test_cancel_and_set_result_never_both_win(round_: int) -> None:
    """Cancelled is an end as any other: who comes second changes nothing."""
    del round_
    future: Future[int] = Future()
    ran: list[bool] = []
    future.add_done_callback(lambda f: ran.append(f.cancelled()))
    cancelled, was_set = run_together(future.cancel, lambda: future.try_set_result(1))
    assert cancelled is not was_set
    assert future.cancelled() is cancelled
    future.then(lambda _: None).wait(10)
    assert ran == [cancelled]


def test_a_second_completion_changes_nothing() -> None:
    """The value stays the same object, and each way to complete says that it lost."""
    value = [1]
    future: Future[list[int]] = Future()
    future.set_result(value)
    with pytest.raises(InvalidStateError, match="done already"):
        future.set_result([2])
    with pytest.raises(InvalidStateError, match="done already"):
        future.set_exception(ValueError())
    assert future.try_set_result([3]) is False
    assert future.cancel() is False
    assert future.value() is value
    assert future.exception() is None


def test_a_cancelled_future_stays_cancelled() -> None:
    """`cancel` again says that it is cancelled; a late result is refused."""
    future: Future[int] = Future()
    assert future.cancel() is True
    assert future.cancel() is True
    assert future.try_set_result(1) is False
    assert future.set_running_or_notify_cancel() is False
    with pytest.raises(concurrent.futures.CancelledError):
        future.wait()
    with pytest.raises(concurrent.futures.CancelledError):
        future.exception()


def test_the_error_is_also_the_one_of_concurrent_futures() -> None:
    """Code written for the standard library catches it."""
    future: Future[int] = Future()
    future.set_result(1)
    with pytest.raises(concurrent.futures.InvalidStateError):
        future.set_result(2)


@pytest.mark.parametrize("wrong", [None, "text", ValueError])
def test_set_exception_wants_an_exception(wrong: object) -> None:
    """Something else would come out of wait() as a puzzle, so it is refused."""
    future: Future[int] = Future()
    with pytest.raises(TypeError, match="wants an exception"):
        future.set_exception(wrong)  # type: ignore[arg-type]
    assert not future.done()


def test_waiters_of_a_value_get_that_very_object() -> None:
    """All waiters see the winner's value, not a copy."""
    future: Future[dict[str, int]] = Future()
    entered = threading.Barrier(5)

    def wait() -> dict[str, int]:
        entered.wait(10)
        return future.wait(10)

    waiters = [Running(wait) for _ in range(4)]
    entered.wait(10)
    value = {"a": 1}
    future.set_result(value)
    assert all(waiter.result() is value for waiter in waiters)


def test_a_future_whose_value_cannot_be_looked_at_stays_usable() -> None:
    """A value of an unknown type fails the future at once; set_result returns."""
    future: Future[_Unequal] = Future()
    future.set_result(_Unequal())
    assert future.done()
    assert "_Unequal" in str(future.exception())


def test_set_running_asks_whether_to_start() -> None:
    """An executor of concurrent.futures may start what was not cancelled."""
    assert Future().set_running_or_notify_cancel() is True


def test_a_gate_shows_when_it_was_opened() -> None:
    """The gates of these tests do not wait for ever."""
    gate = Gate()
    gate.set()
    gate.pass_through()
