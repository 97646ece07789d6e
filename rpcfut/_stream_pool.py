"""Streams of our own for callbacks.

torch's pool has 32 streams that everybody shares: false dependencies, and a deadlock
behind a kernel that spins. Ours are few and private. Nobody waits for a stream: with
none free a new one is made, up to a limit, and from there on one is shared (STR-3). The
stream released last is handed out first, since its queue is the likeliest to be warm
and short.
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any

from rpcfut._streams import seam_of

if TYPE_CHECKING:
    from collections.abc import Callable

    from rpcfut._devices import Device

LIMIT = 32


class StreamPool:
    """The pool streams of all devices. Any thread.

    Args:
        limit: How many streams a device may have before one is shared.
    """

    def __init__(self, *, limit: int = LIMIT) -> None:
        self._limit = limit
        self._lock = threading.Lock()
        self._free: dict[Device, list[Any]] = {}
        self._all: dict[Device, list[Any]] = {}
        self._next_shared = 0

    def __repr__(self) -> str:
        counts = {
            str(d): f"{len(self._free[d])}/{len(a)}" for d, a in self._all.items()
        }
        return f"<StreamPool free/all: {counts}>"

    def lease(self, device: Device) -> tuple[Any, Callable[[], None]]:
        """Take a stream of `device`; returns it and what gives it back."""
        with self._lock:
            free = self._free.setdefault(device, [])
            known = self._all.setdefault(device, [])
            if free:
                stream = free.pop()
                return stream, lambda: free.append(stream)
            if len(known) >= self._limit:
                self._next_shared = (self._next_shared + 1) % len(known)
                return known[self._next_shared], _nothing
            # Under the lock, or threads that come at once would pass the limit.
            stream = seam_of(device).create_stream(device)
            known.append(stream)
            return stream, lambda: free.append(stream)


def _nothing() -> None:
    """A shared stream has an owner already; there is nothing to give back."""
