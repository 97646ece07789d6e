"""Who comes and goes, told to whoever wants to know, in order."""

from __future__ import annotations

import logging
import threading
from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, Self

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from rpcfut._workers import WorkerInfo

_log = logging.getLogger("rpcfut.watch")


@dataclass(frozen=True, slots=True)
class WorkerEvent:
    """A worker came or went.

    Args:
        kind: ``"joined"``; ``"left"`` when it said goodbye, ``"lost"`` when it ended
            without, or cannot be reached any more.
        worker: Which worker.
        reason: Why it is gone; empty for one that joined.
    """

    kind: Literal["joined", "left", "lost"]
    worker: WorkerInfo
    reason: str = ""


class Watch:
    """One who is told. Any thread; made by `rpcfut.watch_workers`.

    Its callback runs on pool threads, for one event at a time, in order, until it is
    closed or this worker leaves. A context manager that closes it.
    """

    def __init__(
        self,
        callback: Callable[[WorkerEvent], object],
        submit: Callable[[Callable[[], None]], None],
        site: str,
    ) -> None:
        self._callback = callback
        self._submit = submit
        self._site = site
        self._lock = threading.Lock()
        self._events: deque[WorkerEvent] = deque()
        self._is_running = False
        self._is_closed = False

    def __repr__(self) -> str:
        state = "closed" if self._is_closed else "open"
        return f"<Watch by {self._site} {state}, {len(self._events)} events to tell>"

    @property
    def is_closed(self) -> bool:
        """Whether it tells no more."""
        return self._is_closed

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Tell no more; a callback that runs goes on. Idempotent, does not block."""
        with self._lock:
            self._is_closed = True
            self._events.clear()

    def tell(self, events: Iterable[WorkerEvent]) -> None:
        """Have the callback called with these, after all earlier ones."""
        with self._lock:
            if self._is_closed:
                return
            self._events.extend(events)
            if self._is_running or not self._events:
                return
            self._is_running = True
        try:
            self._submit(self._run)
        except RuntimeError:
            self.close()  # the pool is closed: this worker has left

    def _run(self) -> None:
        while (event := self._next()) is not None:
            try:
                self._callback(event)
            except BaseException:  # noqa: BLE001 - logged with the place that gave it
                _log.exception(
                    "the callback given to watch_workers at %s raised for %s",
                    self._site,
                    event,
                )

    def _next(self) -> WorkerEvent | None:
        with self._lock:
            if not self._events:
                self._is_running = False
                return None
            return self._events.popleft()
