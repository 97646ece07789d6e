"""Failed futures that nobody looked at are reported when they are collected (FUT-6).

Theory of operation. A future that fails while nobody waits for it gets an `Unseen`,
which only it refers to. Whoever looks at the error takes it off. If it dies with the
future instead, its finaliser puts a report on a queue. The garbage collector may run
the finaliser anywhere, on a thread that holds any lock, so it does nothing else; that
queue is made for being filled there. A thread, made at the first failure, logs.
"""

from __future__ import annotations

import asyncio
import atexit
import concurrent.futures
import logging
import os
import queue
import threading
from typing import TYPE_CHECKING, NamedTuple

from rpcfut._call_info import Site

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import CodeType

    from rpcfut._call_info import CallInfo

_log = logging.getLogger("rpcfut.future")
QUIET = (concurrent.futures.CancelledError, asyncio.CancelledError)
_EXIT_TIMEOUT_S = 1.0


class _Report(NamedTuple):
    error: BaseException
    made_at: tuple[CodeType, int]
    about: CallInfo | None


class Reporter:
    """Logs what finalisers report, on a thread of its own, made by `start`."""

    def __init__(self) -> None:
        self.queue: queue.SimpleQueue[_Report | threading.Event | None] = (
            queue.SimpleQueue()
        )
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None

    def __repr__(self) -> str:
        state = "not started" if self._thread is None else "started"
        return f"<Reporter {state}, {self.queue.qsize()} reports queued>"

    def start(self) -> None:
        """Start the thread, unless it was. Any thread."""
        if self._thread is not None:
            return
        with self._lock:
            if self._thread is not None:
                return
            self._thread = threading.Thread(
                target=self._run, name="rpcfut-callback-reports", daemon=True
            )
            self._thread.start()
        atexit.register(self._finish)
        os.register_at_fork(after_in_child=self._forget_thread)

    def flush(self, timeout_s: float) -> bool:
        """Wait until what was reported is logged; whether it is."""
        if self._thread is None:
            return self.queue.empty()
        reached = threading.Event()
        self.queue.put(reached)
        return reached.wait(timeout_s)

    def _run(self) -> None:
        while (report := self.queue.get()) is not None:
            if isinstance(report, threading.Event):
                report.set()
            else:
                _log_report(report)
            del report  # or its error would live until the next one

    def _finish(self) -> None:
        thread = self._thread
        if thread is not None:
            self.queue.put(None)
            thread.join(_EXIT_TIMEOUT_S)

    def _forget_thread(self) -> None:
        self._lock = threading.Lock()
        self._thread = None


REPORTER = Reporter()


class Unseen:
    """An error that nobody has looked at yet; reports it when it dies.

    Args:
        error: The error.
        made_at: Code and instruction that made the future.
        about: The call that the future belongs to, if any.
    """

    __slots__ = ("_about", "_error", "_made_at", "is_seen")

    def __init__(
        self,
        error: BaseException,
        made_at: tuple[CodeType, int],
        about: CallInfo | None,
    ) -> None:
        REPORTER.start()
        self._error = error
        self._made_at = made_at
        self._about = about
        self.is_seen = True  # until the future has failed indeed

    def __del__(
        self, _put: Callable[[_Report], None] = REPORTER.queue.put
    ) -> None:  # the argument outlives the module's names at the end of the process
        if not self.is_seen:
            _put(_Report(self._error, self._made_at, self._about))


def _log_report(report: _Report) -> None:
    _log.error(
        "a future failed and nobody looked at its error; %s",
        birth(report.made_at, report.about),
        exc_info=report.error,
    )


def birth(made_at: tuple[CodeType, int], about: CallInfo | None) -> str:
    """Where a future comes from, in words."""
    return f"call {about}" if about is not None else f"made at {Site(*made_at)}"
