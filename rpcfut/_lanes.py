"""Callbacks that share a stream run one at a time, in the order of their parents.

A FIFO stream alone does not do that: two threads interleave their launches, and host
tensors have no stream at all; updates get lost (STR-3).

Theory of operation. A *lane* is the queue of one stream. When a parent completes, each
of its callbacks that named streams takes a *ticket* in the lanes of all of them; all
tickets of one future are taken in one step under one lock, so any two tickets stand in
the same order in every lane that they share, and no circle of waits can form. A ticket
runs when it is ready (the callbacks before it on its own future are through) and first
in all its lanes.
"""

from __future__ import annotations

import threading
from collections import deque
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Iterable, Sequence


class Ticket:
    """A place in the lanes of some streams. Its state is guarded by the lanes' lock."""

    __slots__ = ("is_ready", "keys", "resume", "runner")

    def __init__(self, keys: Sequence[Hashable]) -> None:
        self.keys = keys
        self.is_ready = False
        self.resume: Callable[[], None] | None = None
        self.runner: int | None = None  # identity of the thread, once it runs


class Lanes:
    """The lanes of all streams, by key; empty ones are dropped. Any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._lanes: dict[Hashable, deque[Ticket]] = {}

    def __repr__(self) -> str:
        with self._lock:
            counts = {key: len(tickets) for key, tickets in self._lanes.items()}
        return f"<Lanes: {counts}>"

    def take(self, requests: Iterable[Sequence[Hashable]]) -> list[Ticket]:
        """Take one ticket per request, all in one step.

        Args:
            requests: For each callback, the keys of its streams, without repeats.
        """
        with self._lock:
            tickets = [Ticket(keys) for keys in requests]
            for ticket in tickets:
                for key in ticket.keys:
                    self._lanes.setdefault(key, deque()).append(ticket)
            return tickets

    def start(self, ticket: Ticket, resume: Callable[[], None]) -> bool:
        """Say that a ticket is ready.

        Args:
            ticket: The ticket.
            resume: Called by whoever leaves the lane before it, if the ticket must
                wait; on that thread, without a lock, and it must not block.

        Returns:
            Whether it may run now.
        """
        with self._lock:
            ticket.is_ready = True
            if self._is_first_locked(ticket):
                return True
            ticket.resume = resume
            return False

    def finish(self, ticket: Ticket) -> None:
        """Leave the lanes and resume the tickets that now come first."""
        resumed = []
        with self._lock:
            for key in ticket.keys:
                lane = self._lanes[key]
                lane.popleft()
                if not lane:
                    del self._lanes[key]
                elif lane[0].resume is not None and self._is_first_locked(lane[0]):
                    resumed.append(lane[0].resume)
                    lane[0].resume = None
        for resume in resumed:
            resume()

    def held_by(self, thread: int) -> set[Hashable]:
        """The keys of the streams on which a thread runs a callback just now."""
        with self._lock:
            return {k for k, t in self._lanes.items() if t[0].runner == thread}

    def _is_first_locked(self, ticket: Ticket) -> bool:
        return all(self._lanes[key][0] is ticket for key in ticket.keys)
