"""Says what is pending to whoever asks, while all other threads may hang.

Theory of operation: a thread of its own sleeps in `poll` on a Unix socket in the
worker's folder, which only our user can enter; the kernel also says who connects.
Whoever does gets the answer at once, and the connection ends: nothing is read, so there
is nothing that a client could say wrong. What does not fit into the socket's buffer is
sent as the client reads it, without blocking, for two seconds at most and to a few
clients at a time.

A forked child has the sockets, but not the thread: it answers nobody. A connection is
shut down before it is closed, so that its end is seen also where such a child still
holds it.
"""

from __future__ import annotations

import contextlib
import logging
import os
import select
import socket
import struct
import threading
from pathlib import Path
from typing import TYPE_CHECKING

from rpcfut_transport import MonotonicClock

if TYPE_CHECKING:
    from collections.abc import Callable

_log = logging.getLogger("rpcfut.control")

_CLOSE_S = 2.0
_CLIENT_S = 2.0
_RETRY_S = 1.0
_MAX_CLIENTS = 8
_BACKLOG = 64
_UCRED = struct.Struct("3i")  # pid, uid, gid of SO_PEERCRED


def peer_process(connection: socket.socket) -> tuple[int, int]:
    """The pid and the user id of who connected or listens, as the kernel knows them.

    The pid is 0 for a process that is not visible here.
    """
    got = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _UCRED.size)
    pid, uid, _ = _UCRED.unpack(got)
    return pid, uid


class ControlServer:
    """Answers at a path until it is closed. Owned by an agent.

    Args:
        name: The worker's name, for the thread.
        path: Where to listen, in a folder that only our user can enter.
        answer: Makes the answer, on the thread of this server. Must not wait for
            anybody.

    Raises:
        OSError: When the operating system refuses.
    """

    def __init__(self, name: str, path: str, answer: Callable[[], bytes]) -> None:
        self._path = path
        self._answer = answer
        self._clock = MonotonicClock()
        self._is_closed = False
        self._clients: list[_Client] = []
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            self._listener.setblocking(False)  # noqa: FBT003 - the socket's signature
            self._listener.bind(path)
            self._listener.listen(_BACKLOG)
            self._wake_fd = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        except OSError:
            self._listener.close()
            raise
        self._thread = threading.Thread(
            target=self._run, name=f"rpcfut-control-{name}", daemon=True
        )
        self._thread.start()

    def __repr__(self) -> str:
        state = "closed" if self._is_closed else "open"
        return f"<ControlServer {self._path!r} {state} clients={len(self._clients)}>"

    def close(self) -> None:
        """Stop answering and remove the socket. Owner thread; takes 2 s at most.

        Idempotent.
        """
        if self._is_closed:
            return
        self._is_closed = True
        with contextlib.suppress(OSError):
            Path(self._path).unlink()
        os.eventfd_write(self._wake_fd, 1)
        self._thread.join(_CLOSE_S)
        if not self._thread.is_alive():
            os.close(self._wake_fd)

    def _run(self) -> None:
        try:
            while not self._is_closed:
                self._turn()
        except BaseException:  # noqa: BLE001 - logged; the worker goes on without it
            _log.exception("nobody can ask any more what is pending")
        for client in self._clients:
            client.close()
        self._listener.close()

    def _turn(self) -> None:
        """Sleep until somebody comes, goes on reading or has taken too long."""
        poller = select.poll()
        for fd in (self._listener.fileno(), self._wake_fd):
            poller.register(fd, select.POLLIN)
        for client in self._clients:
            poller.register(client.socket, select.POLLOUT)
        ready = {fd for fd, _ in poller.poll(self._patience_ms())}
        now_s = self._clock.now_s()
        for client in tuple(self._clients):
            is_late = client.until_s <= now_s
            if is_late or (client.socket.fileno() in ready and client.send()):
                self._drop(client)
        if self._listener.fileno() in ready:
            self._take()

    def _patience_ms(self) -> float | None:
        if not self._clients:
            return None
        left_s = self._clients[0].until_s - self._clock.now_s()
        return max(0.0, left_s) * 1000 + 1

    def _take(self) -> None:
        try:
            connection, _ = self._listener.accept()
        except BlockingIOError:  # it has gone again
            return
        except OSError as error:  # out of descriptors: it would be ready for ever
            _log.warning("cannot answer who asks what is pending: %s", error)
            select.select([self._wake_fd], [], [], _RETRY_S)
            return
        connection.setblocking(False)  # noqa: FBT003 - as above
        client = _Client(connection, self._clock.now_s() + _CLIENT_S)
        try:
            if peer_process(connection)[1] == os.getuid():
                client.left = memoryview(self._answer())
        except Exception:  # noqa: BLE001 - logged; who asks gets an empty answer
            _log.exception("cannot say what is pending")
        if client.send():
            client.close()
            return
        self._clients.append(client)
        if len(self._clients) > _MAX_CLIENTS:
            self._drop(self._clients[0])

    def _drop(self, client: _Client) -> None:
        self._clients.remove(client)
        client.close()


class _Client:
    """Somebody who asked and has not read the whole answer yet."""

    def __init__(self, connection: socket.socket, until_s: float) -> None:
        self.socket = connection
        self.until_s = until_s
        self.left = memoryview(b"")

    def send(self) -> bool:
        """Send what can be sent now; say whether that was the rest."""
        try:
            while self.left:
                self.left = self.left[self.socket.send(self.left) :]
        except BlockingIOError:
            return False
        except OSError:  # it has gone
            return True
        return True

    def close(self) -> None:
        with contextlib.suppress(OSError):
            self.socket.shutdown(socket.SHUT_RDWR)
        self.socket.close()
