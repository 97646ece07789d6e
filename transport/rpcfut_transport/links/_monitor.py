"""What happens to the ways to peers: ZeroMQ tells, one thread listens.

Theory of operation: each way's socket reports on an inproc socket of its own, which
this thread alone reads and closes. It closes it once it has read that there is nothing
more to come, never before: ZeroMQ's own thread would wait for a reader. An eventfd
wakes the thread when a way is added.
"""

from __future__ import annotations

import itertools
import logging
import os
import struct
import threading
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import zmq

from rpcfut_transport._clock import MonotonicClock
from rpcfut_transport._errors import ClosedError
from rpcfut_transport._patience import Patience, in_ms
from rpcfut_transport.links._handshake import Handshake
from rpcfut_transport.links._link import WayEvent

if TYPE_CHECKING:
    from rpcfut_transport.links._link import OnWay

_log = logging.getLogger(__name__)

_EVENT = struct.Struct("=HI")
_numbers = itertools.count(1)
_EVENTS = (
    zmq.EVENT_CONNECTED
    | zmq.EVENT_HANDSHAKE_SUCCEEDED
    | zmq.EVENT_HANDSHAKE_FAILED_AUTH
    | zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL
    | zmq.EVENT_DISCONNECTED
    | zmq.EVENT_MONITOR_STOPPED
)
_CLOSE_TIMEOUT_S = 2.0


@dataclass(slots=True, kw_only=True)
class _Watched:
    reports: zmq.Socket[bytes]
    address: str
    on_way: OnWay
    handshake: Handshake = field(default_factory=Handshake)
    is_open: bool = False
    is_refused: bool = False


class WayMonitor:
    """Tells what happens to ways. Any thread; owns one, from the first way on.

    Args:
        context: Of the ways' sockets. It must not be terminated before `close`.
        name: The thread's name.
        patience: How often to ask for signs of life, and how long to wait for them.
    """

    def __init__(
        self,
        context: zmq.Context[zmq.Socket[bytes]],
        name: str,
        patience: Patience | None = None,
    ) -> None:
        self._context = context
        self._patience = patience or Patience()
        self._name = name
        self._lock = threading.Lock()
        self._added: list[_Watched] = []
        self._watched = 0
        self._thread: threading.Thread | None = None
        self._wake_fd: int | None = None
        self._is_closed = False
        self._clock = MonotonicClock()

    def watch(self, socket: zmq.Socket[bytes], address: str, on_way: OnWay) -> None:
        """Watch a socket before it connects, by heartbeats. Does not block.

        Before the socket is closed, its monitor must be disabled.

        Args:
            socket: A socket that connects to one address.
            address: That address, for messages.
            on_way: Called with what happens and why, on the thread of this monitor. It
                must not block.

        Raises:
            ClosedError: When `close` was called.
        """
        place = f"inproc://way-{next(_numbers)}"
        with self._lock:
            if self._is_closed:
                raise ClosedError("this WayMonitor was closed")
            self._keep_alive(socket)
            socket.monitor(place, _EVENTS)
            reports = self._context.socket(zmq.PAIR)
            reports.set(zmq.LINGER, 0)
            reports.set(zmq.RCVHWM, 0)  # ZeroMQ's own thread must never wait for ours
            reports.connect(place)
            self._added.append(
                _Watched(reports=reports, address=address, on_way=on_way)
            )
            self._start_locked()

    def _keep_alive(self, socket: zmq.Socket[bytes]) -> None:
        """Have a connection that is silent be made anew; ZeroMQ's thread sees to it."""
        patience = self._patience
        socket.set(zmq.HEARTBEAT_IVL, in_ms(patience.heartbeat_s))
        socket.set(zmq.HEARTBEAT_TIMEOUT, in_ms(patience.silence_s))
        # A try to connect into a void would go on for minutes, in ever longer steps.
        socket.set(zmq.CONNECT_TIMEOUT, in_ms(patience.retry_s))
        socket.set(zmq.RECONNECT_IVL_MAX, in_ms(patience.retry_s))

    def close(self) -> None:
        """Stop, once the ways are closed. Idempotent; waits for at most 2 s."""
        with self._lock:
            self._is_closed = True
            self._wake_locked()
            thread = self._thread
        if thread is not None and thread is not threading.current_thread():
            thread.join(_CLOSE_TIMEOUT_S)

    def _start_locked(self) -> None:
        if self._thread is None:
            self._wake_fd = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
            self._thread = threading.Thread(
                target=self._run, args=(self._wake_fd,), name=self._name, daemon=True
            )
            self._thread.start()
        else:
            self._wake_locked()

    def _wake_locked(self) -> None:
        if self._wake_fd is not None:
            os.eventfd_write(self._wake_fd, 1)

    def _run(self, wake_fd: int) -> None:
        watched: dict[zmq.Socket[bytes], _Watched] = {}
        poller = zmq.Poller()
        poller.register(wake_fd, zmq.POLLIN)
        try:
            while self._take_added(watched, poller):
                for ready, _ in poller.poll():
                    if ready == wake_fd:
                        os.eventfd_read(wake_fd)
                    elif not self._read(watched[ready]):
                        poller.unregister(ready)
                        del watched[ready]
                        ready.close()
        finally:
            self._release(watched, wake_fd)

    def _take_added(
        self, watched: dict[zmq.Socket[bytes], _Watched], poller: zmq.Poller
    ) -> bool:
        """Take the new ways over; say whether to go on."""
        with self._lock:
            added, self._added = self._added, []
            is_closed = self._is_closed
        for way in added:
            watched[way.reports] = way
            poller.register(way.reports, zmq.POLLIN)
            self._tell(way, WayEvent.OPENING, "")
        self._watched = len(watched)
        return bool(watched) or not is_closed

    def _read(self, way: _Watched) -> bool:
        """Take one report; say whether there will be more."""
        event, _ = _EVENT.unpack(way.reports.recv_multipart()[0])
        if event == zmq.EVENT_CONNECTED:
            way.handshake.on_connected(self._clock.now_s())
        elif event == zmq.EVENT_HANDSHAKE_SUCCEEDED:
            way.handshake.on_done()
            way.is_open = True
            self._tell(way, WayEvent.OPENED, "")
        elif event == zmq.EVENT_HANDSHAKE_FAILED_AUTH:
            self._refuse(way, f"{way.address} does not let this worker's key in")
        elif event == zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL:
            self._refuse(way, f"what listens at {way.address} is no worker")
        elif event == zmq.EVENT_DISCONNECTED:
            self._on_disconnected(way)
        return bool(event != zmq.EVENT_MONITOR_STOPPED)

    def _on_disconnected(self, way: _Watched) -> None:
        if way.is_open:
            way.is_open = False
            self._tell(way, WayEvent.BROKEN, f"the connection to {way.address} ended")
        elif way.handshake.on_broken(self._clock.now_s()):
            self._refuse(
                way, f"what listens at {way.address} has not the key it should"
            )

    def _refuse(self, way: _Watched, reason: str) -> None:
        if not way.is_refused:
            way.is_refused = True
            self._tell(way, WayEvent.REFUSED, reason)

    def _tell(self, way: _Watched, event: WayEvent, reason: str) -> None:
        _log.debug("the way to %s is %s %s", way.address, event.value, reason)
        try:
            way.on_way(event, reason)
        except Exception:  # noqa: BLE001 - logged; the thread serves others too
            _log.exception("on_way of %s raised", way.address)

    def _release(
        self, watched: dict[zmq.Socket[bytes], _Watched], wake_fd: int
    ) -> None:
        with self._lock:
            self._is_closed = True
            added, self._added = self._added, []
            self._wake_fd = None
        for way in (*watched.values(), *added):
            way.reports.close()
        os.close(wake_fd)

    def __repr__(self) -> str:
        state = "closed" if self._is_closed else "open"
        return f"<WayMonitor {state} watched={self._watched}>"
