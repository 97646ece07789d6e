"""The calls that one worker serves, by who called."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rpcfut._serving import ServedCall


class ServedTable:
    """All calls that came and are not answered yet. Any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._calls: dict[tuple[int, int], ServedCall] = {}

    def __repr__(self) -> str:
        return f"<ServedTable: {len(self._calls)} calls>"

    def __len__(self) -> int:
        return len(self._calls)

    def add(self, rank: int, call_id: int, call: ServedCall) -> None:
        """Take note of a call that came."""
        with self._lock:
            self._calls[rank, call_id] = call

    def remove(self, rank: int, call_id: int, call: ServedCall) -> None:
        """Take note that a call was answered."""
        with self._lock:
            # A restarted caller counts from 1 again.
            if self._calls.get((rank, call_id)) is call:
                del self._calls[rank, call_id]

    def find(self, rank: int, call_id: int) -> ServedCall | None:
        """The call of a caller; None if it did not come or was answered."""
        with self._lock:
            return self._calls.get((rank, call_id))

    def all(self) -> list[ServedCall]:
        """The calls that are not answered yet."""
        with self._lock:
            return list(self._calls.values())

    def take_of(self, rank: int) -> list[ServedCall]:
        """Forget the calls of a caller that is gone, and return them."""
        with self._lock:
            keys = [key for key in self._calls if key[0] == rank]
            return [self._calls.pop(key) for key in keys]
