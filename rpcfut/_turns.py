"""Tasks that run one at a time, in the order in which they came."""

from __future__ import annotations

import threading
from collections import deque
from typing import TYPE_CHECKING, TypeAlias

if TYPE_CHECKING:
    from collections.abc import Callable

Task: TypeAlias = "Callable[[Callable[[], None]], None]"


class Turns:
    """Starts each task once the one before it has said that it is over. Any thread.

    Args:
        start: Runs something on another thread; nobody waits for a turn on one.
    """

    def __init__(self, start: Callable[[Callable[[], None]], object]) -> None:
        self._start = start
        self._lock = threading.Lock()
        self._waiting: deque[Task] = deque()
        self._is_taken = False

    def __repr__(self) -> str:
        return f"<Turns: {len(self._waiting)} wait>"

    def submit(self, task: Task) -> None:
        """Add a task. It is given what says that it is over, to be called once."""
        with self._lock:
            if self._is_taken:
                self._waiting.append(task)
                return
            self._is_taken = True
        self._start(lambda: task(self._next))

    def _next(self) -> None:
        with self._lock:
            if not self._waiting:
                self._is_taken = False
                return
            task = self._waiting.popleft()
        self._start(lambda: task(self._next))
