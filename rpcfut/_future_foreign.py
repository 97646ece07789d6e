"""What `concurrent.futures` looks at in a future of ours.

Its `wait` and `as_completed` hold the futures' conditions, read `_state` and put
themselves on `_waiters`. Here these are views of our own state, made when asked for:
the constructor over there makes a condition for each future, which takes longer than
all the rest of ours.
"""

from __future__ import annotations

import concurrent.futures
import threading
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from rpcfut import _callbacks
from rpcfut._outcome import Cancelled, Failure

if TYPE_CHECKING:
    from rpcfut._outcome import Outcome

T = TypeVar("T")

_FINISHED = "FINISHED"  # the states that concurrent.futures looks for
_CANCELLED = "CANCELLED_AND_NOTIFIED"
_PENDING = "PENDING"


class ForeignFace(concurrent.futures.Future[T], Generic[T]):
    """A future as `concurrent.futures` sees it. Any thread."""

    _outcome: Outcome[T] | None = None
    _lock: threading.Lock
    _foreign_waiters: list[Any] | None = None
    _foreign_condition: threading.Condition | None = None

    def running(self) -> bool:
        """Always False: a future does not know who works for it."""
        return False

    def set_running_or_notify_cancel(self) -> bool:
        """For executors of `concurrent.futures`: whether the work may start."""
        return not self.cancelled()

    def _get_snapshot(self) -> tuple[bool, bool, T | None, BaseException | None]:
        """From Python 3.14 on asyncio copies a future's state by this, not `result`.

        Returns:
            Whether it is done, whether it was cancelled, its value and its error.
        """
        if self._outcome is None or isinstance(self._outcome, Cancelled):
            return self._outcome is not None, self._outcome is not None, None, None
        error = self.exception()
        return True, False, None if error is not None else self.result(), error

    @property
    def _state(self) -> str:  # type: ignore[override]  # an attribute over there
        if self._outcome is None:
            return _PENDING
        return _CANCELLED if isinstance(self._outcome, Cancelled) else _FINISHED

    @property
    def _condition(self) -> threading.Condition:  # type: ignore[override]  # as above
        _callbacks.about_to_block()  # whoever asks is about to wait
        condition = self._foreign_condition
        if condition is None:
            # Two threads may make one each; both are over the one lock that counts,
            # and nobody waits on a condition of ours.
            condition = self._foreign_condition = threading.Condition(self._lock)
        return condition

    @property
    def _waiters(self) -> list[Any]:  # type: ignore[override]  # as above
        if self._foreign_waiters is None:
            self._foreign_waiters = []
        return self._foreign_waiters

    def _tell(self, waiter: Any) -> None:
        """Tell a waiter of `concurrent.futures` how the future ended."""
        if isinstance(self._outcome, Failure):
            waiter.add_exception(self)
        elif isinstance(self._outcome, Cancelled):
            waiter.add_cancelled(self)
        else:
            waiter.add_result(self)
