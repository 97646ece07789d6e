"""When a worker may leave: once nobody waits for it, nor it for anybody.

In a group of fixed size all leave together: a worker that has no calls of its own left
says READY, serves on, and leaves when all others are ready, have left or are lost. From
an open group each leaves when it has answered what it was asked, and the others go on.
"""

from __future__ import annotations

import logging
import threading
from typing import TYPE_CHECKING

from rpcfut_transport import Kind

if TYPE_CHECKING:
    from collections.abc import Callable, Collection

    from rpcfut._workers import WorkerInfo, WorkerTable
    from rpcfut_transport import Clock, Endpoint

_log = logging.getLogger("rpcfut.agent")

_POLL_S = 0.02
_REMIND_S = 10.0


class Leaving:
    """What keeps one worker from leaving. Any thread; owned by the agent.

    Args:
        info: The worker.
        endpoint: Its calls, and the way to its peers.
        workers: Who is in the group.
        clock: Measures timeouts.
        serving: The calls whose functions, or what they returned, have not ended.
    """

    def __init__(
        self,
        info: WorkerInfo,
        endpoint: Endpoint,
        workers: WorkerTable,
        clock: Clock,
        serving: Collection[object],
    ) -> None:
        self._info = info
        self._endpoint = endpoint
        self._workers = workers
        self._clock = clock
        self._changed = threading.Condition()
        self._is_ready = False
        self.away: set[int] = set()  # ranks that are ready to leave, left, or lost
        self.serving = serving

    def __repr__(self) -> str:
        state = "ready" if self._is_ready else "staying"
        return f"<Leaving of {self._info.name!r} {state}: {len(self.serving)} served>"

    @property
    def others(self) -> set[int]:
        """The ranks of the other members."""
        return {w.rank for w in self._workers} - {self._info.rank}

    def note_away(self, rank: int) -> None:
        """Take note that a peer is ready to leave, left, or is lost."""
        with self._changed:
            self.away.add(rank)
            self._changed.notify_all()

    def note_joined(self, rank: int) -> None:
        """Take note that a peer came, perhaps in the place of an earlier one."""
        with self._changed:
            self.away.discard(rank)
            is_ready = self._is_ready
        if is_ready:
            self._endpoint.send_notice(rank, Kind.READY)

    def wait(self, timeout_s: float | None, *, alone: bool) -> None:
        """Wait until nothing keeps the worker, or the time is over.

        Args:
            timeout_s: How long; None for as long as it takes.
            alone: Whether the others stay.
        """
        deadline_s = None if timeout_s is None else self._clock.now_s() + timeout_s
        is_done = self._wait_until(self._has_no_calls, deadline_s)
        if is_done and not alone:
            self._say_ready()
        is_free = self._has_answered if alone else self._are_all_ready
        if not (is_done and self._wait_until(is_free, deadline_s)):
            _log.warning(
                "worker %r leaves after %s s: %s",
                self._info.name,
                timeout_s,
                self._why(),
            )

    def wait_for_goodbyes(self, timeout_s: float) -> None:
        """Wait until all others have gone, or the time is over."""
        self._wait_until(lambda: not self.others, self._clock.now_s() + timeout_s)

    def _say_ready(self) -> None:
        with self._changed:
            self._is_ready = True
        for rank in self.others:
            self._endpoint.send_notice(rank, Kind.READY)

    def _has_answered(self) -> bool:
        return not self.serving

    def _has_no_calls(self) -> bool:
        return self._endpoint.pending_count == 0

    def _are_all_ready(self) -> bool:
        return self._has_answered() and self.others <= self.away

    def _why(self) -> str:
        waits_for = [w.name for w in self._workers if w.rank in self.others - self.away]
        return (
            f"{self._endpoint.pending_count} of its calls are pending, "
            f"{len(self.serving)} "
            f"are served, and of these workers it did not hear that they leave: "
            f"{waits_for}"
        )

    def _wait_until(
        self, condition: Callable[[], bool], deadline_s: float | None
    ) -> bool:
        remind_s = self._clock.now_s() + _REMIND_S
        while not condition():
            now_s = self._clock.now_s()
            left_s = _POLL_S if deadline_s is None else min(_POLL_S, deadline_s - now_s)
            if left_s <= 0:
                return False
            if now_s >= remind_s:
                remind_s = now_s + _REMIND_S
                _log.info("worker %r waits to leave: %s", self._info.name, self._why())
            with self._changed:
                # Calls end without a notification: look again now and then.
                self._changed.wait(left_s)
        return True
