"""Raw pyzmq over ipc, as one would write it without a library.

One caller at a time: DEALER to ROUTER. Many in flight, and eight threads: a PUSH/PULL
pair a thread, and one server thread that reads one inbox.
"""

from __future__ import annotations

import os
import threading
import time
from typing import TYPE_CHECKING

import msgpack
import zmq

from benchmarks._probes import (
    cpu_per_call,
    idle_arrivals,
    rate,
    time_each,
    time_threads,
)

if TYPE_CHECKING:
    from benchmarks._systems._system import Place

THREADS = 8
_HELLO = 2**32


def _endpoint(place: Place, name: str) -> str:
    return f"ipc://{place.folder / name}"


class ZmqCallee:
    """Two server threads, one for each kind of socket; never busy together."""

    def __init__(self, place: Place) -> None:
        self._context = zmq.Context()
        self._router = self._context.socket(zmq.ROUTER)
        self._router.bind(_endpoint(place, "router"))
        self._inbox = self._context.socket(zmq.PULL)
        self._inbox.set_hwm(0)
        self._inbox.bind(_endpoint(place, "inbox"))
        self._outboxes = []
        for index in range(THREADS):
            outbox = self._context.socket(zmq.PUSH)
            outbox.set_hwm(0)
            outbox.connect(_endpoint(place, f"outbox{index}"))
            self._outboxes.append(outbox)
        self._threads = [
            threading.Thread(target=serve, name=f"zmq {name}", daemon=True)
            for name, serve in (("router", self._route), ("inbox", self._echo))
        ]
        for thread in self._threads:
            thread.start()

    def close(self) -> None:
        """End the context under the threads, which ends them."""
        self._context.term()
        for thread in self._threads:
            thread.join()

    def _route(self) -> None:
        try:
            while True:
                sender, message = self._router.recv_multipart()
                call_id, _, name = msgpack.unpackb(message)
                reply = msgpack.packb((call_id, time.monotonic_ns(), name))
                self._router.send_multipart((sender, reply))
        except zmq.ContextTerminated:
            self._router.close(linger=0)

    def _echo(self) -> None:
        try:
            while True:
                index, call_id, name = msgpack.unpackb(self._inbox.recv())
                reply = msgpack.packb((index, call_id, name))
                self._outboxes[index].send(reply)
        except zmq.ContextTerminated:
            for socket in (self._inbox, *self._outboxes):
                socket.close(linger=0)


class Lane:
    """One thread's PUSH/PULL pair."""

    def __init__(
        self, context: zmq.Context[zmq.Socket[bytes]], place: Place, index: int
    ) -> None:
        self._index = index
        self._pull = context.socket(zmq.PULL)
        self._pull.set_hwm(0)
        self._pull.bind(_endpoint(place, f"outbox{index}"))
        self._push = context.socket(zmq.PUSH)
        self._push.set_hwm(0)
        self._push.connect(_endpoint(place, "inbox"))

    def call(self) -> None:
        """Send one message and wait for its answer."""
        self._send()
        self._receive()

    def call_all(self, count: int) -> None:
        """Send `count` messages, then read as many answers."""
        for _ in range(count):
            self._send()
        for _ in range(count):
            self._receive()

    def _send(self) -> None:
        self._push.send(msgpack.packb((self._index, _HELLO, "noop")))

    def _receive(self) -> None:
        msgpack.unpackb(self._pull.recv())


class ZmqCaller:
    """The other ends. Main thread, but for the lanes."""

    def __init__(self, place: Place) -> None:
        self._context = zmq.Context()
        self._dealer = self._context.socket(zmq.DEALER)
        self._dealer.connect(_endpoint(place, "router"))
        self._lanes = [Lane(self._context, place, i) for i in range(THREADS)]
        calls = [lane.call for lane in self._lanes]
        pids = [os.getpid()]
        if place.callee_pid is not None:
            pids.append(place.callee_pid)
        self.probes = {
            "noop_rtt": lambda count: time_each(self._noop, count),
            "noop_rate": lambda count: rate(self._lanes[0].call_all, count),
            "callers2": lambda count: time_threads(calls[:2], count),
            "callers4": lambda count: time_threads(calls[:4], count),
            "callers8": lambda count: time_threads(calls, count),
            "noop_cpu": lambda count: cpu_per_call(
                self._lanes[0].call_all, pids, count
            ),
            "serve_while_idle": lambda count: idle_arrivals(self._call, count),
        }
        self._noop()
        for call in calls:
            call()

    def close(self) -> None:
        """Close the sockets."""
        self._context.destroy(linger=0)

    def _noop(self) -> int:
        return self._call(_HELLO)

    def _call(self, stamp_ns: int) -> int:
        self._dealer.send(msgpack.packb((_HELLO, stamp_ns, "noop")))
        _, answered_ns, _ = msgpack.unpackb(self._dealer.recv())
        stamp: int = answered_ns
        return stamp


def open_callee(place: Place) -> ZmqCallee:
    """Start serving."""
    return ZmqCallee(place)


def open_caller(place: Place) -> ZmqCaller:
    """Connect, and make a first call on every socket."""
    return ZmqCaller(place)
