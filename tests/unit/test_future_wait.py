"""FUT-2: wait, result, exception, value; time-outs, the GIL and Ctrl-C."""

from __future__ import annotations

import concurrent.futures
import subprocess
import sys
import textwrap
from typing import Any

import pytest

from rpcfut import Future, InvalidStateError
from tests.support.threads import Gate, Running

READS = {
    "wait": lambda f, t: f.wait(t),
    "result": lambda f, t: f.result(t),
    "exception": lambda f, t: f.exception(t),
}


@pytest.mark.parametrize("read", READS.values(), ids=READS)
def test_a_wait_that_timed_out_leaves_the_future_usable(read: Any) -> None:
    """It raises TimeoutError, and the value still arrives at the next wait."""
    future: Future[int] = Future()
    with pytest.raises(TimeoutError, match="not done after 0 s"):
        read(future, 0)
    with pytest.raises(TimeoutError):
        read(future, -1)
    assert not future.done()
    future.set_result(7)
    assert future.wait(0) == 7


def test_waits_that_time_out_leave_nothing_behind() -> None:
    """A thousand polls of a pending future do not pile up."""
    future: Future[int] = Future()
    for _ in range(1000):
        with pytest.raises(TimeoutError):
            future.wait(0)
    assert not future._hooks


def test_a_timeout_longer_than_the_system_allows_is_no_error() -> None:
    """A user who means "very long" gets that."""
    future: Future[int] = Future()
    with_value = Running(lambda: future.wait(1e30))
    future.set_result(1)
    assert with_value.result() == 1


def test_result_is_wait_and_exception_is_the_error() -> None:
    """The names of torch.futures and of concurrent.futures read the same thing."""
    future: Future[int] = Future()
    error = ValueError("no")
    future.set_exception(error)
    assert future.exception() is error
    for read in (future.wait, future.result, future.value):
        with pytest.raises(ValueError, match="no") as caught:
            read()
        assert caught.value is error


def test_value_before_the_end_is_refused() -> None:
    """`value` never waits: read too early it says so."""
    future: Future[int] = Future()
    with pytest.raises(InvalidStateError, match="before the future is done"):
        future.value()
    future.set_result(3)
    assert future.value() == 3


def test_a_wait_lets_other_threads_run() -> None:
    """Waits release the GIL: the thread that completes is Python, too."""
    future: Future[int] = Future()
    entered = Gate()

    def wait() -> int:
        entered.set()
        return future.wait(10)

    waiter = Running(wait)
    entered.pass_through()
    assert sum(range(100_000)) == 4999950000
    future.set_result(1)
    assert waiter.result() == 1


def test_a_cancelled_future_raises_when_read() -> None:
    """Each reader gets a CancelledError of its own."""
    future: Future[int] = Future()
    waiter = Running(future.wait)
    future.cancel()
    assert isinstance(waiter.outcome(), concurrent.futures.CancelledError)
    assert waiter.outcome() is not Running(future.wait).outcome()


_INTERRUPTED = """
    import os, signal, threading
    import rpcfut

    signal.signal(signal.SIGINT, signal.default_int_handler)
    future = rpcfut.Future()
    child = future.then(lambda f: f.value() + 1)

    def interrupt_the_wait():
        pause = threading.Event()
        while not {waited}._hooks:
            pause.wait(0.001)
        {interrupt}

    threading.Thread(target=interrupt_the_wait, daemon=True).start()
    try:
        {wait}
    except KeyboardInterrupt:
        print("interrupted")
    assert not {waited}._hooks, {waited}._hooks
    future.set_result(1)
    print(future.wait(5), child.wait(5))
"""


# The second way is seen by this thread's bytecode loop only: nothing ends the call in
# which the main thread blocks, as when a signal comes just before it does.
SIGNALS = {
    "Ctrl-C": "os.kill(os.getpid(), signal.SIGINT)",
    "a signal that wakes nobody": (
        "signal.pthread_kill(threading.get_ident(), signal.SIGINT)"
    ),
}


@pytest.mark.timeout(60)
@pytest.mark.parametrize("interrupt", SIGNALS.values(), ids=SIGNALS)
@pytest.mark.parametrize(
    ("waited", "wait"),
    [
        ("future", "future.wait()"),
        ("child", "child.exception(timeout=60)"),
        ("future", "rpcfut.wait_all([child, future])"),
        ("child", "next(rpcfut.as_completed([child], timeout=60))"),
    ],
)
def test_b133_ctrl_c_ends_a_wait_and_loses_nothing(
    waited: str, wait: str, interrupt: str
) -> None:
    """KeyboardInterrupt comes out of wait(); the future and its child still work."""
    script = textwrap.dedent(
        _INTERRUPTED.format(waited=waited, wait=wait, interrupt=interrupt)
    )
    child = subprocess.run(
        [sys.executable, "-c", script],
        capture_output=True,
        text=True,
        timeout=20,
        check=False,
        env={"PYTHONPATH": ":".join(sys.path), "OMP_NUM_THREADS": "1"},
    )
    assert (child.returncode, child.stderr) == (0, "")
    assert child.stdout == "interrupted\n1 2\n"


def test_a_future_is_generic() -> None:
    """`Future[int]` can be written at run time, too."""
    assert Future[int]().done() is False


def test_then_wants_something_to_call() -> None:
    """What cannot be called is refused where it is given, not on a pool thread."""
    future: Future[int] = Future()
    with pytest.raises(TypeError, match="must be callable"):
        future.then(3)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="must be callable"):
        future.add_done_callback(None)  # type: ignore[arg-type]
