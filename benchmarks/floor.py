"""The floor: the least that a call can cost over the link that rpcfut uses by default.

PUSH/PULL over ipc, one thread a side, and 24 bytes of msgpack each way: the call's id,
a time and a name. No queue, no futures, no threads to hand over to.
"""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING

import msgpack
import zmq

from benchmarks._probes import idle_arrivals, time_each

if TYPE_CHECKING:
    from pathlib import Path

    from benchmarks._systems._system import Place

PAYLOAD_NBYTES = 24
_FIRST_ID = 2**32
_CALLER_INBOX = "caller"
_CALLEE_INBOX = "callee"


def pack(call_id: int, stamp_ns: int) -> bytes:
    """Return a payload of 24 bytes, for ids and stamps from 2**32 on."""
    packed: bytes = msgpack.packb((call_id, stamp_ns, "noop"))
    return packed


def unpack(payload: bytes) -> tuple[int, int, str]:
    """Return the payload's parts."""
    call_id, stamp_ns, name = msgpack.unpackb(payload)
    return call_id, stamp_ns, name


class FloorCallee:
    """Answers each message, on one thread, with the time it was read."""

    def __init__(self, place: Place) -> None:
        self._context = zmq.Context()
        self._inbox = _pull(self._context, place.folder / _CALLEE_INBOX)
        self._outbox = _push(self._context, place.folder / _CALLER_INBOX)
        self._thread = threading.Thread(target=self._serve, name="floor", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """End the context under the thread, which ends it."""
        self._context.term()
        self._thread.join()

    def _serve(self) -> None:
        try:
            while True:
                call_id, _, _ = unpack(self._inbox.recv())
                self._outbox.send(pack(call_id, time.monotonic_ns()))
        except zmq.ContextTerminated:
            self._inbox.close(linger=0)
            self._outbox.close(linger=0)


class FloorCaller:
    """Sends one message at a time and waits for its answer. Main thread."""

    def __init__(self, place: Place) -> None:
        self._context = zmq.Context()
        self._inbox = _pull(self._context, place.folder / _CALLER_INBOX)
        self._outbox = _push(self._context, place.folder / _CALLEE_INBOX)
        self._next_id = _FIRST_ID
        self.probes = {
            "noop_rtt": lambda count: time_each(self._noop, count),
            "serve_while_idle": lambda count: idle_arrivals(self.call, count),
        }
        self._noop()

    def call(self, stamp_ns: int) -> int:
        """Send a stamp and return the callee's."""
        self._next_id += 1
        self._outbox.send(pack(self._next_id, stamp_ns))
        _, answered_ns, _ = unpack(self._inbox.recv())
        return answered_ns

    def close(self) -> None:
        """Close the sockets."""
        self._context.destroy(linger=0)

    def _noop(self) -> int:
        return self.call(_FIRST_ID)


def open_callee(place: Place) -> FloorCallee:
    """Start serving."""
    return FloorCallee(place)


def open_caller(place: Place) -> FloorCaller:
    """Connect, and make the first call."""
    return FloorCaller(place)


def _pull(context: zmq.Context[zmq.Socket[bytes]], path: Path) -> zmq.Socket[bytes]:
    socket = context.socket(zmq.PULL)
    socket.bind(f"ipc://{path}")
    return socket


def _push(context: zmq.Context[zmq.Socket[bytes]], path: Path) -> zmq.Socket[bytes]:
    socket = context.socket(zmq.PUSH)
    socket.connect(f"ipc://{path}")
    return socket
