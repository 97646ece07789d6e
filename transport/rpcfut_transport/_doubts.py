"""Which open calls may have been swallowed by a connection that broke, and which were.

Theory of operation: a pure state machine. When a connection breaks, what was under way
on it is lost, and nobody is told; nothing is sent again (RPC-5). So after a new one is
made, and when a call is open for long, the callee is asked whether it has the call. It
has it until the answer was handed to the link, and messages of one connection arrive in
order. So "not here", while the call is still open, means that the call or its answer is
lost; and which of the two, nobody knows.

What came by an earlier connection may be read after what comes by the next one, for as
long as the reader has a backlog. So one "not here" is not believed: it is asked again
after `CONFIRM_S`, and only the second one ends the call.

At most `WINDOW` questions to one peer are unanswered at a time, so that a peer that is
stopped does not find a heap of them. A new connection forgets those that were: they may
be lost, too.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

CONFIRM_S = 2.0
WINDOW = 64
LONG_S = 20.0  # a call that is open for so long is asked about, then when twice as old


@dataclass(slots=True)
class _Line:
    """The questions to one peer."""

    queue: deque[int] = field(default_factory=deque)
    asked: set[int] = field(default_factory=set)

    @property
    def can_ask(self) -> bool:
        return bool(self.queue) and len(self.asked) < WINDOW


class Doubts:
    """What to ask peers about calls that were sent. Its driver holds a lock."""

    def __init__(self) -> None:
        self._lines: dict[int, _Line] = {}
        self._missing: dict[int, float] = {}  # "not here" so far, since when
        self._again: deque[tuple[float, int, int]] = deque()  # when, rank, call
        self._next_age_s: dict[int, float] = {}

    def on_reopened(self, rank: int, call_ids: Iterable[int]) -> None:
        """Take note of a new connection to or from a peer.

        Args:
            rank: The peer.
            call_ids: The calls to it that were sent and are not known to be over.
        """
        self._lines.pop(rank, None)
        self._line_of(rank).queue.extend(call_ids)

    def on_open_for(self, ages: Iterable[tuple[int, int, float]]) -> None:
        """Take a look at all calls that are open for `LONG_S` or longer.

        Args:
            ages: Of each its id, its callee's rank and its age in seconds.
        """
        earlier, self._next_age_s = self._next_age_s, {}
        for call_id, rank, age_s in ages:
            next_age_s = earlier.get(call_id, LONG_S)
            if age_s >= next_age_s:
                next_age_s = 2 * age_s
                self._line_of(rank).queue.append(call_id)
            self._next_age_s[call_id] = next_age_s

    def on_told(self, rank: int, call_id: int, now_s: float, *, is_here: bool) -> bool:
        """Take what a peer says about a call.

        Returns:
            Whether the call, if it is still open, is lost.
        """
        line = self._lines.get(rank)
        if line is not None:
            line.asked.discard(call_id)
        if is_here:
            self._missing.pop(call_id, None)
            return False
        if call_id not in self._missing:
            self._missing[call_id] = now_s
            self._again.append((now_s + CONFIRM_S, rank, call_id))
        if now_s < self._missing[call_id] + CONFIRM_S:
            return False
        del self._missing[call_id]
        return True

    def on_gone(self, rank: int) -> None:
        """Take note that a peer is gone: its calls have ended."""
        self._lines.pop(rank, None)
        for _, _, call_id in (item for item in self._again if item[1] == rank):
            self._missing.pop(call_id, None)
        self._again = deque(item for item in self._again if item[1] != rank)

    def take_asks(self, now_s: float) -> list[tuple[int, int]]:
        """Take what is to be asked now: ranks and calls, some of which may be over."""
        while self._again and self._again[0][0] <= now_s:
            _, rank, call_id = self._again.popleft()
            self._line_of(rank).queue.appendleft(call_id)
        asks: list[tuple[int, int]] = []
        for rank, line in self._lines.items():
            while line.can_ask:
                call_id = line.queue.popleft()
                line.asked.add(call_id)
                asks.append((rank, call_id))
        return asks

    def on_over(self, rank: int, call_id: int) -> None:
        """Take note that a call that was to be asked about is over: nobody is asked."""
        self.on_told(rank, call_id, 0.0, is_here=True)

    def next_ask_s(self, now_s: float) -> float | None:
        """When to call `take_asks`; None for never."""
        if any(line.can_ask for line in self._lines.values()):
            return now_s
        return self._again[0][0] if self._again else None

    def _line_of(self, rank: int) -> _Line:
        return self._lines.setdefault(rank, _Line())

    def __repr__(self) -> str:
        waiting = sum(len(line.queue) for line in self._lines.values())
        asked = sum(len(line.asked) for line in self._lines.values())
        return f"<Doubts asked={asked} waiting={waiting} missing={len(self._missing)}>"
