"""The order of handlers on the devices (STR-13).

Theory of operation. A handler's work comes after the work of every call that this
worker had answered before: who saw a call complete, and then makes another, must not
see the second overtake the first on the device, whoever made either. One private stream
per device collects that order: it waits for what each answered call launched, and a
handler's streams wait for an event at its end. So both ends cost a few calls, however
many calls are unfinished on the device, and a handler waits for nothing that it would
not have to wait for anyway. The stream is one of the pool's: making one may wait for a
device that is busy.
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any

from rpcfut._streams import record_streams

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from rpcfut._devices import Device
    from rpcfut._streams import Mark


class DeviceOrder:
    """What the calls answered so far have launched. Any thread; never waits.

    Args:
        lease: Gives a pool stream of a device and what returns it.
    """

    def __init__(
        self, lease: Callable[[Device], tuple[Any, Callable[[], None]]]
    ) -> None:
        self._lease = lease
        self._releases: list[Callable[[], None]] = []
        self._lock = threading.Lock()
        self._streams: dict[Device, Any] = {}
        self._newest: dict[Device, Mark] = {}
        self._grown: set[Device] = set()  # devices whose newest mark is out of date
        self._joined: tuple[Mark, ...] = ()

    def __repr__(self) -> str:
        return f"<DeviceOrder on {sorted(map(str, self._streams))}>"

    def join(self, marks: tuple[Mark, ...]) -> None:
        """Have all handlers, ordered or not, come after `marks` (STR-9).

        These lie behind what was queued where this worker joined.
        """
        self._joined = marks
        self.note(marks)

    @property
    def joined(self) -> tuple[Mark, ...]:
        """What a handler that is not ordered has to wait for."""
        self._joined = tuple(m for m in self._joined if not m.event.query())
        return self._joined

    def note(self, marks: Iterable[Mark]) -> None:
        """Have all later handlers come after `marks`.

        Call it before the answer is sent: whoever sees that may call at once.
        """
        for mark in marks:
            with self._lock:
                stream = self._streams.get(mark.device)
                if stream is None:
                    stream, release = self._lease(mark.device)
                    self._streams[mark.device] = stream
                    self._releases.append(release)
                mark.seam.wait(stream, mark.event)
                self._grown.add(mark.device)

    def marks(self) -> tuple[Mark, ...]:
        """What a handler that starts now has to wait for: at most one mark a device."""
        if not self._streams:
            return ()
        with self._lock:
            for device in self._grown:
                self._newest.pop(device, None)
                for mark in record_streams([(device, self._streams[device])]):
                    self._newest[device] = mark
            self._grown.clear()
            for device, mark in list(self._newest.items()):
                if mark.event.query():
                    del self._newest[device]
            return tuple(self._newest.values())

    def close(self) -> None:
        """Give the streams back. Idempotent; nothing is noted after it."""
        with self._lock:
            releases, self._releases = self._releases, []
        for release in releases:
            release()
