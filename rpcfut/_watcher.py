"""The one thread of an agent that waits for devices.

It starts at first use, polls all events that it was given (in no order: a stream that
is behind does not hold up another), and runs an action when all marks of its job have
passed.
"""

from __future__ import annotations

import logging
import threading
from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING

from rpcfut._cuda import relax_this_thread

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from rpcfut._streams import Mark

_log = logging.getLogger("rpcfut.watcher")

_FIRST_POLL_S = 20e-6
_MAX_POLL_S = 1e-3


@dataclass(slots=True)
class _Job:
    marks: list[Mark]
    action: Callable[[], None]
    on_error: Callable[[Exception], None]

    def run_if_passed(self) -> bool:
        """Run the action if all marks have passed; whether the job is done with."""
        try:
            self.marks = [mark for mark in self.marks if not mark.event.query()]
            if self.marks:
                return False
            self.action()
        except Exception as error:  # noqa: BLE001 - handed to whoever waits for the job
            self.on_error(error)
        return True


class DeviceWatcher:
    """Runs actions when device work has passed. Any thread; owned by an agent.

    Args:
        name: The agent's name, for the thread.
    """

    def __init__(self, name: str) -> None:
        self._name = name
        self._changed = threading.Condition()
        self._new: deque[_Job] = deque()
        self._thread: threading.Thread | None = None
        self._is_closed = False

    def __repr__(self) -> str:
        return f"<DeviceWatcher {self._name!r}: {len(self._new)} jobs not yet seen>"

    def when_passed(
        self,
        marks: Sequence[Mark],
        action: Callable[[], None],
        on_error: Callable[[Exception], None],
    ) -> None:
        """Run `action` on the watcher's thread when all marks have passed.

        Without marks, or if all have passed already, it runs here, now. Neither
        function may block.

        Args:
            marks: What to wait for.
            action: What to do then.
            on_error: Called instead, or after it, with the error of a device that
                failed or of the action: somebody waits for this job and must hear of
                it.
        """
        job = _Job(list(marks), action, on_error)
        if job.run_if_passed():
            return
        with self._changed:
            is_closed = self._is_closed
            if not is_closed:
                self._new.append(job)
                if self._thread is None:
                    self._thread = threading.Thread(
                        target=self._run,
                        name=f"rpcfut-watcher-{self._name}",
                        daemon=True,
                    )
                    self._thread.start()
                self._changed.notify()
        if is_closed:
            on_error(self._closed())

    def close(self, timeout_s: float) -> None:
        """End the thread; jobs that it still waits for get an error. Idempotent."""
        with self._changed:
            self._is_closed = True
            self._changed.notify()
            thread = self._thread
        if thread is not None and thread is not threading.current_thread():
            thread.join(timeout_s)

    def _run(self) -> None:
        jobs: list[_Job] = []
        poll_s = _FIRST_POLL_S
        while True:
            with self._changed:
                if not self._new and not self._is_closed:
                    self._changed.wait(poll_s if jobs else None)
                if self._new:
                    poll_s = _FIRST_POLL_S
                jobs.extend(self._new)
                self._new.clear()
                if self._is_closed:
                    break
            relax_this_thread()
            still = [job for job in jobs if not self._run_if_passed(job)]
            if len(still) < len(jobs):
                poll_s = _FIRST_POLL_S
            else:
                poll_s = min(2 * poll_s, _MAX_POLL_S)
            jobs = still
        for job in jobs:
            self._give_up(job)

    def _run_if_passed(self, job: _Job) -> bool:
        try:
            return job.run_if_passed()
        except Exception:  # noqa: BLE001 - a faulty on_error, not the others' fault
            self._log_fault()
            return True

    def _give_up(self, job: _Job) -> None:
        try:
            job.on_error(self._closed())
        except Exception:  # noqa: BLE001 - as above
            self._log_fault()

    def _log_fault(self) -> None:
        _log.exception("a job of the device watcher of %s failed", self._name)

    def _closed(self) -> RuntimeError:
        return RuntimeError(f"the device watcher of {self._name!r} is closed")
