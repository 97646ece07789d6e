"""Time, as an object that is passed in.

All deadlines are seconds on one monotonic clock. Only this module reads it.
"""

from __future__ import annotations

import threading
import time
from typing import Protocol


class Clock(Protocol):
    """A monotonic clock. Any thread; never blocks."""

    def now_s(self) -> float:
        """Return the time in seconds; it never goes back."""
        ...


class MonotonicClock:
    """The clock of the operating system. Any thread."""

    now_s = staticmethod(time.monotonic)  # no call around it: each future asks

    def __repr__(self) -> str:
        return f"<MonotonicClock now_s={self.now_s():.3f}>"


class ManualClock:
    """A clock that stands still until a test moves it. Any thread.

    Whoever sleeps until a deadline does not see the clock move: wake it afterwards.

    Args:
        start_s: The first reading, in seconds.
    """

    def __init__(self, start_s: float = 0.0) -> None:
        self._lock = threading.Lock()
        self._now_s = start_s

    def now_s(self) -> float:
        """Return the time in seconds; it never goes back."""
        return self._now_s

    def advance(self, seconds: float) -> None:
        """Move the clock forward.

        Args:
            seconds: How far, at least 0.

        Raises:
            ValueError: When seconds is negative or no number.
        """
        if not seconds >= 0:
            raise ValueError(f"a clock only moves forward, got {seconds!r} seconds")
        with self._lock:
            self._now_s += seconds

    def __repr__(self) -> str:
        return f"<ManualClock now_s={self._now_s:.3f}>"
