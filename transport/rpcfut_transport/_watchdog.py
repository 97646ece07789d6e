"""A thread that looks after something every millisecond while there is traffic."""

from __future__ import annotations

import threading
from contextlib import suppress
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

TICK_S = 0.001
_QUIET_TICKS = 10  # then it sleeps until it is woken


class Watchdog:
    """Calls something every `TICK_S`, until nothing happens. Any thread.

    The thread starts when it is first woken.

    Args:
        name: The thread's name.
        on_tick: Called on that thread; says whether all was quiet since the last time.
    """

    def __init__(self, name: str, on_tick: Callable[[], bool]) -> None:
        self._name = name
        self._on_tick = on_tick
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None
        self._gate = threading.Lock()  # open when there is a reason to go on
        self._gate.acquire()
        self._is_closed = False
        self.is_ticking = False

    def __repr__(self) -> str:
        state = "closed" if self._is_closed else "asleep"
        return f"<Watchdog {'ticks' if self.is_ticking else state}>"

    def wake(self) -> None:
        """Tick, from now on until it is quiet. Does not block."""
        with self._lock:
            if self.is_ticking or self._is_closed:
                return
            self.is_ticking = True
            if self._thread is None:
                self._thread = threading.Thread(
                    target=self._run, name=self._name, daemon=True
                )
                self._thread.start()
        self._open()

    def close(self, timeout_s: float) -> None:
        """End the thread. Idempotent; waits for it, unless it is the calling one."""
        with self._lock:
            self._is_closed = True
            thread = self._thread
        self._open()
        if thread is not None and thread is not threading.current_thread():
            thread.join(timeout_s)

    def _open(self) -> None:
        with suppress(RuntimeError):  # it is open already
            self._gate.release()

    def _run(self) -> None:
        quiet = 0
        self._gate.acquire()
        while not self._is_closed:
            self._gate.acquire(timeout=TICK_S)
            if self._is_closed:
                break
            quiet = quiet + 1 if self._on_tick() else 0
            if quiet < _QUIET_TICKS:
                continue
            quiet = 0
            self.is_ticking = False
            # Who was about to wake it and saw it tick is seen by this look.
            if self._on_tick() and not self._is_closed:
                self._gate.acquire()
            self.is_ticking = True
