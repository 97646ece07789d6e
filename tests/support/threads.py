"""Threads for tests: started together, joined in time, with what they returned."""

from __future__ import annotations

import threading
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

TIMEOUT_S = 10.0


class Gate(threading.Event):
    """An event that a test waits for, never for ever."""

    def pass_through(self) -> None:
        """Wait until the gate is open."""
        assert self.wait(TIMEOUT_S), "the gate was never opened"


class Running:
    """A function that runs on a thread of its own."""

    def __init__(self, function: Callable[[], Any]) -> None:
        self._function = function
        self._result: Any = None
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        try:
            self._result = self._function()
        except BaseException as error:  # noqa: BLE001 - told by outcome()
            self._error = error

    def outcome(self) -> Any:
        """What it returned, or the error that it raised, as an object."""
        self._thread.join(TIMEOUT_S)
        assert not self._thread.is_alive(), "the thread hangs"
        return self._result if self._error is None else self._error

    def result(self) -> Any:
        """What it returned; raises what it raised."""
        self.outcome()
        if self._error is not None:
            raise self._error
        return self._result


@contextmanager
def running(function: Callable[[], Any]) -> Iterator[Running]:
    """Run a function on another thread during the context, and join it after."""
    thread = Running(function)
    yield thread
    thread.result()


def run_together(*functions: Callable[[], Any]) -> list[Any]:
    """Run functions on threads that start at one moment; returns their outcomes."""
    barrier = threading.Barrier(len(functions))

    def start(function: Callable[[], Any]) -> Any:
        barrier.wait(TIMEOUT_S)
        return function()

    threads = [Running(lambda f=f: start(f)) for f in functions]
    return [thread.outcome() for thread in threads]


def wait_until(condition: Callable[[], bool], timeout_s: float = 20.0) -> None:
    """Wait until something is so that nobody tells of, never for ever."""
    pause = threading.Event()
    for _ in range(int(timeout_s / 0.005)):
        if condition():
            return
        pause.wait(0.005)
    raise AssertionError("what was waited for did not come about")
