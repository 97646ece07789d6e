"""Memory whose allocator cannot be told who reads it.

torch's allocator is told of each reader (`record_stream`) and keeps the block until
that reader's stream is through. CuPy's pool knows one stream only. So the owner itself
is held here, from the first reader on, until nobody else holds it and what its readers'
streams held at that moment has passed: that is what `record_stream` does, without the
allocator's help (STR-2, STR-11).
"""

from __future__ import annotations

import sys
import threading
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable

    from rpcfut._seam import Event

# References to an owner that is only held here: the entry's, and sys.getrefcount's own.
_OURS = 2


class _Entry:
    __slots__ = ("events", "owner", "streams")

    def __init__(self, owner: Any) -> None:
        self.owner = owner
        self.streams: list[Any] = []
        self.events: list[Event] | None = None  # once nobody else holds the owner


class Holding:
    """Owners that are held for their readers. Any thread.

    Args:
        record: Records an event at the end of a stream; None if it is idle.
    """

    def __init__(self, record: Callable[[Any], Event | None]) -> None:
        self._record = record
        self._lock = threading.Lock()
        self._entries: dict[int, _Entry] = {}

    def __len__(self) -> int:
        return len(self._entries)

    def __repr__(self) -> str:
        return f"<Holding {len(self._entries)} owners>"

    def hold(self, owner: Any, stream: Any) -> None:
        """Keep `owner` until `stream` is through with what it reads of it."""
        with self._lock:
            entry = self._entries.setdefault(id(owner), _Entry(owner))
            if stream not in entry.streams:
                entry.streams.append(stream)
            entry.events = None  # somebody holds it again

    def sweep(self) -> None:
        """Drop the owners that nobody reads any more. Cheap when there are none."""
        if not self._entries:
            return
        dropped = []
        with self._lock:
            for key, entry in list(self._entries.items()):
                if self._is_over_locked(entry):
                    dropped.append(self._entries.pop(key))
        del dropped  # outside the lock: finalisers may run here

    def _is_over_locked(self, entry: _Entry) -> bool:
        if entry.events is None:
            if sys.getrefcount(entry.owner) > _OURS:
                return False
            found = [self._record(stream) for stream in entry.streams]
            entry.events = [event for event in found if event is not None]
        entry.events = [event for event in entry.events if not event.query()]
        return not entry.events
