"""FUT-6, B27: a failed future that nobody looked at is reported once."""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import gc
import logging
import subprocess
import sys
import threading
from typing import TYPE_CHECKING, Any

import pytest

from rpcfut import (
    Future,
    _callbacks,
    as_completed,
    collect_all,
    gather_outcomes,
    wait_all,
)
from rpcfut._call_info import PendingCall
from rpcfut._future_binding import bind_call
from rpcfut._unobserved import REPORTER
from tests.support.threads import Gate, Running

if TYPE_CHECKING:
    from collections.abc import Callable


def reports(caplog: pytest.LogCaptureFixture) -> list[logging.LogRecord]:
    """What was reported so far; everything that can be collected is, before."""
    gc.collect()
    assert REPORTER.flush(10)
    return [r for r in caplog.records if r.name == "rpcfut.future"]


def failed(error: BaseException | None = None) -> Future[Any]:
    """A future that failed, made here."""
    future: Future[Any] = Future()
    future.set_exception(error or ValueError("lost"))
    return future


def test_a_lost_error_is_reported_once_b27(caplog: pytest.LogCaptureFixture) -> None:
    """At error level, with the error and the line that made the future."""
    failed()
    (record,) = reports(caplog)
    assert record.levelno == logging.ERROR
    assert record.exc_info is not None
    assert str(record.exc_info[1]) == "lost"
    line = failed.__code__.co_firstlineno + 2
    assert f"made at {__file__}:{line}" in record.getMessage()
    assert len(reports(caplog)) == 1


def test_a_lost_child_is_reported_with_the_place_of_its_then(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """The parent was looked at: it has a child."""
    parent = failed()
    child = parent.then(lambda f: f.value())
    concurrent.futures.wait([child], timeout=10)
    del parent, child
    (record,) = reports(caplog)
    line = _first_line(test_a_lost_child_is_reported_with_the_place_of_its_then)
    assert f"made at {__file__}:{line + 5}" in record.getMessage()


def _first_line(function: Any) -> int:
    return int(function.__code__.co_firstlineno)


def test_a_lost_call_is_reported_with_its_call(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Fire and forget: what failed, where, and who called it."""
    future = Future[Any]()
    call = PendingCall(worker="a", to="b", function="step", site="train.py:12")
    bind_call(future, call)
    future.set_exception(ValueError("lost"))
    del future
    (record,) = reports(caplog)
    assert "step on worker 'b', called at train.py:12" in record.getMessage()


def _value(future: Future[Any]) -> None:
    with contextlib.suppress(ValueError):
        future.value()


def _wait(future: Future[Any]) -> None:
    with contextlib.suppress(ValueError):
        future.wait(1)


def _await(future: Future[Any]) -> None:
    async def main() -> None:
        with contextlib.suppress(ValueError):
            await future

    asyncio.run(main())


def _wrap(future: Future[Any]) -> None:
    async def main() -> None:
        with contextlib.suppress(ValueError):
            await asyncio.wrap_future(future)

    asyncio.run(main())


def _wait_all(future: Future[Any]) -> None:
    with contextlib.suppress(ValueError):
        wait_all([future])


LOOKS: dict[str, Callable[[Future[Any]], Any]] = {
    "value": _value,
    "wait": _wait,
    "exception": lambda f: f.exception(),
    "await": _await,
    "wrap_future": _wrap,
    "then": lambda f: f.then(lambda _: 1).wait(10),
    "add_done_callback": lambda f: f.add_done_callback(lambda _: None),
    "wait_all": _wait_all,
    "as_completed": lambda f: list(as_completed([f])),
    "collect_all": lambda f: collect_all([f]).wait(0),
    "gather_outcomes": lambda f: gather_outcomes([f]).wait(0),
    "_get_snapshot": lambda f: f._get_snapshot(),
}


@pytest.mark.parametrize("look", LOOKS.values(), ids=LOOKS)
def test_an_error_that_was_looked_at_is_quiet(
    look: Any, caplog: pytest.LogCaptureFixture
) -> None:
    """Whatever way, after the failure."""
    look(failed())
    assert reports(caplog) == []


@pytest.mark.parametrize("name", ["wait", "then", "add_done_callback", "collect_all"])
def test_an_error_that_is_awaited_is_quiet(
    name: str, caplog: pytest.LogCaptureFixture
) -> None:
    """Who looks before the failure has looked."""
    future: Future[Any] = Future()
    waiter = _begin(name, future)
    future.set_exception(ValueError("seen"))
    if waiter is not None:
        waiter.result()
    del future, waiter
    assert reports(caplog) == []


def _begin(name: str, future: Future[Any]) -> Running | None:
    match name:
        case "wait":
            return Running(lambda: _value_after(future))
        case "then":
            future.then(lambda _: 1)
        case "add_done_callback":
            future.add_done_callback(lambda _: None)
        case _:
            collect_all([future])
    return None


def _value_after(future: Future[Any]) -> None:
    with contextlib.suppress(ValueError):
        future.wait(10)


def test_others_of_wait_all_are_quiet(caplog: pytest.LogCaptureFixture) -> None:
    """It raised the first failure; a later one is no news."""
    first, second = Future[Any](), Future[Any]()
    first.set_exception(ValueError("first"))
    with contextlib.suppress(ValueError):
        wait_all([first, second])
    second.set_exception(ValueError("second"))
    del first, second
    assert reports(caplog) == []


def test_looking_at_its_state_is_not_looking(caplog: pytest.LogCaptureFixture) -> None:
    """Neither `done` nor `repr` nor a wait that timed out shows the error."""
    future: Future[Any] = Future()
    with pytest.raises(TimeoutError):
        future.wait(0)
    future.set_exception(ValueError("lost"))
    assert future.done()
    assert "ValueError" in repr(future)
    future.explain()
    del future
    assert len(reports(caplog)) == 1


def test_values_and_cancellations_are_quiet(caplog: pytest.LogCaptureFixture) -> None:
    """Only errors are lost; who cancelled knows."""
    Future[int]().set_result(1)
    Future[int]().cancel()
    parent: Future[int] = Future()
    parent.cancel()
    concurrent.futures.wait([parent.then(lambda f: f.value())], timeout=10)
    assert reports(caplog) == []


def test_a_second_error_of_a_done_future_is_not_lost(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Its setter got InvalidStateError; the future has a value."""
    future: Future[int] = Future()
    future.set_result(1)
    with pytest.raises(RuntimeError):
        future.set_exception(ValueError("refused"))
    del future
    assert reports(caplog) == []


def test_a_returned_future_hands_its_error_on(caplog: pytest.LogCaptureFixture) -> None:
    """Only the last of a chain of followers can have been missed."""
    child = _child_of_one_that_returned_a_failed_one()
    concurrent.futures.wait([child], timeout=10)
    del child
    assert len(reports(caplog)) == 1


def _child_of_one_that_returned_a_failed_one() -> Future[int]:
    inner: Future[int] = Future()
    parent: Future[int] = Future()
    child = parent.then(lambda _: inner)
    parent.set_result(1)
    inner.set_exception(ValueError("lost"))
    return child


class _SlowHandler(logging.Handler):
    """Holds whoever logs, with the handler's lock, until a gate opens."""

    def __init__(self) -> None:
        super().__init__()
        self.may_go_on = Gate()

    def emit(self, record: logging.LogRecord) -> None:
        self.may_go_on.pass_through()


def test_the_finaliser_only_enqueues_b33(caplog: pytest.LogCaptureFixture) -> None:
    """It runs in the middle of anything: here with locks of ours held, and no log."""
    cycle: list[Any] = [failed()]
    cycle.append(cycle)
    pool = _callbacks.runtime().pool
    handler = _SlowHandler()
    logging.getLogger("rpcfut.future").addHandler(handler)

    def collect() -> None:
        nonlocal cycle
        with pool._lock, REPORTER._lock:
            del cycle
            gc.collect()

    try:
        collector = threading.Thread(target=collect, daemon=True)
        collector.start()
        collector.join(5)
        assert not collector.is_alive(), "the finaliser waits for something"
    finally:
        handler.may_go_on.set()
        logging.getLogger("rpcfut.future").removeHandler(handler)
    assert len(reports(caplog)) == 1


@pytest.mark.timeout(60)
def test_an_error_lost_just_before_the_end_is_reported() -> None:
    """The process waits for the reports, a second at most."""
    script = "import rpcfut\nrpcfut.Future().set_exception(ValueError('lost'))\n"
    child = subprocess.run(
        [sys.executable, "-c", script],
        capture_output=True,
        text=True,
        timeout=50,
        check=False,
        env={"PYTHONPATH": ":".join(sys.path), "OMP_NUM_THREADS": "1"},
    )
    assert child.returncode == 0
    assert child.stderr.count("nobody looked at its error; made at <string>:2") == 1
