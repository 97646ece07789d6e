"""The link on ZeroMQ: same host, same user, over Unix sockets.

Theory of operation: a PULL socket is the inbox; each peer has a PUSH socket under a
lock of its own, so a slow send to one delays no other. Queues are unbounded, so a send
never blocks. The inbox also listens inside the process, for `ZmqLink.wake`.

Who may talk to us (RPC-10): the inbox lies in a folder that only our user can enter,
and asks the kernel for the sender's user id. Whom we talk to: an address comes from a
store that anyone may write to. So the folder in it is opened once, checked through the
descriptor, and the socket is reached through that descriptor: whoever moves or links
folders after the check changes nothing.
"""

from __future__ import annotations

import logging
import math
import os
import stat
import threading
from pathlib import Path
from typing import TYPE_CHECKING

import zmq

from rpcfut_transport._buffers import KEEP_ALIVE_MIN_NBYTES, Buffer, require_frames
from rpcfut_transport._errors import ClosedError, LinkError, UnknownPeer
from rpcfut_transport._wire import WAKE_FRAME
from rpcfut_transport.links._inbox_folder import INBOX, InboxFolder

if TYPE_CHECKING:
    from collections.abc import Sequence

_log = logging.getLogger(__name__)

_SCHEME = "ipc://"
_WAKE_ADDRESS = "inproc://wake"
_LINGER_MS = 1000
_READER_TIMEOUT_S = 2.0
_MAX_TIMEOUT_MS = 2**31 - 1
_FOREVER_MS = -1


class _Way:
    """The way to one peer. Any thread; ``lock`` guards the socket."""

    __slots__ = ("folder_fd", "lock", "socket")

    def __init__(self, socket: zmq.Socket[bytes], folder_fd: int) -> None:
        self.lock = threading.Lock()
        self.socket: zmq.Socket[bytes] | None = socket
        self.folder_fd = folder_fd

    def close(self, linger_ms: int) -> None:
        with self.lock:
            socket, self.socket = self.socket, None
            if socket is not None:
                socket.close(linger_ms)
                os.close(self.folder_fd)


class ZmqLink:
    """A `Link` over Unix sockets, for processes of one user on one host.

    Its inbox lies in a folder of its own (see `InboxFolder`), removed when closed. Its
    owner closes it.

    Raises:
        LinkError: When the path would be too long for a socket, the user id says
            nothing, or the operating system refuses.
    """

    def __init__(self) -> None:
        _require_own_user_id()
        self._folder = InboxFolder()
        self._path = self._folder.inbox
        self._lock = threading.Lock()
        self._ways: dict[int, _Way] = {}
        self._is_closed = False
        self._inbox_lock = threading.Lock()
        self._wake_lock = threading.Lock()
        self._is_wake_wanted = False
        self._timeout_ms = _FOREVER_MS
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self._inbox = self._context.socket(zmq.PULL)
        self._waker = self._context.socket(zmq.PUSH)
        try:
            self._inbox.set(zmq.RCVHWM, 0)
            self._inbox.set(zmq.LINGER, 0)
            self._inbox.set(zmq.IPC_FILTER_UID, os.getuid())
            self._inbox.bind(f"{_SCHEME}{self._path}")
            self._inbox.bind(_WAKE_ADDRESS)
            self._waker.set(zmq.SNDHWM, 0)
            self._waker.set(zmq.LINGER, 0)
            self._waker.connect(_WAKE_ADDRESS)
        except zmq.ZMQError as error:
            self.close()
            raise LinkError(f"cannot listen on {self._path!r}: {error}") from error

    @property
    def address(self) -> str:
        """Where others reach this inbox. Any thread."""
        return f"{_SCHEME}{self._path}"

    def connect(self, rank: int, address: str) -> None:
        """See `Link.connect`."""
        folder_fd = _open_trusted_folder(address)
        with self._lock:
            if self._is_closed:
                os.close(folder_fd)
                raise ClosedError(f"the link {self.address!r} was closed")
            try:
                socket = self._context.socket(zmq.PUSH)
                socket.set(zmq.SNDHWM, 0)
                socket.connect(f"{_SCHEME}/proc/self/fd/{folder_fd}/{INBOX}")
            except zmq.ZMQError as error:
                os.close(folder_fd)
                raise LinkError(f"cannot connect to {address!r}: {error}") from error
            way = _Way(socket, folder_fd)
            earlier = self._ways.get(rank)
            self._ways[rank] = way
        if earlier is not None:
            earlier.close(linger_ms=0)

    def disconnect(self, rank: int) -> None:
        """See `Link.disconnect`."""
        with self._lock:
            way = self._ways.pop(rank, None)
        if way is not None:
            way.close(linger_ms=0)

    def send(self, rank: int, frames: Sequence[Buffer]) -> None:
        """See `Link.send`."""
        require_frames(frames)
        way = self._ways.get(rank)
        if way is None:
            raise self._no_way(rank)
        last = len(frames) - 1
        with way.lock:
            socket = way.socket
            if socket is None:
                raise self._no_way(rank)
            try:
                for index, frame in enumerate(frames):
                    socket.send(
                        frame,
                        zmq.NOBLOCK if index == last else zmq.NOBLOCK | zmq.SNDMORE,
                        copy=memoryview(frame).nbytes < KEEP_ALIVE_MIN_NBYTES,
                    )
            except zmq.ZMQError as error:
                raise LinkError(f"cannot send to rank {rank}: {error}") from error
            except BaseException:
                # An interrupt, perhaps between two frames: end the message, or the next
                # one would become part of it. The peer counts it as malformed.
                socket.send(b"", zmq.NOBLOCK)
                raise

    def receive(self, timeout_s: float | None) -> list[bytes | memoryview] | None:
        """See `Link.receive`."""
        timeout_ms = _FOREVER_MS if timeout_s is None else _to_ms(timeout_s)
        with self._inbox_lock:
            if self._is_closed:
                raise ClosedError(f"the link {self.address!r} was closed")
            inbox = self._inbox
            try:
                if timeout_ms != self._timeout_ms:
                    inbox.set(zmq.RCVTIMEO, timeout_ms)
                    self._timeout_ms = timeout_ms
                first = inbox.recv()
                frames: list[bytes | memoryview] = [first]
                while inbox.get(zmq.RCVMORE):
                    frames.append(inbox.recv(copy=False).buffer)
            except zmq.Again:
                return None
            except zmq.ZMQError as error:
                raise LinkError(f"cannot read {self._path!r}: {error}") from error
        return None if first == WAKE_FRAME else frames

    def wake(self) -> None:
        """See `Link.wake`. Also in a signal handler, so it never waits for the lock."""
        self._is_wake_wanted = True
        while self._is_wake_wanted and self._wake_lock.acquire(blocking=False):
            # Whoever fails to get it leaves the wish to us, who look again.
            try:
                self._is_wake_wanted = False
                if not self._waker.closed:
                    self._waker.send(WAKE_FRAME, zmq.NOBLOCK)
            finally:
                self._wake_lock.release()

    def close(self) -> None:
        """See `Link.close`."""
        with self._lock:
            if self._is_closed:
                return
            self._is_closed = True
            ways = list(self._ways.values())
        for way in ways:
            way.close(_LINGER_MS)
        self.wake()
        with self._wake_lock:
            self._waker.close()
        # A socket must not be closed while another thread reads from it.
        if self._inbox_lock.acquire(timeout=_READER_TIMEOUT_S):
            self._inbox.close()
            self._inbox_lock.release()
            self._context.term()
        else:
            _log.warning("the reader of %r does not return; left open", self.address)
        self._folder.close()

    def _no_way(self, rank: int) -> ClosedError | UnknownPeer:
        if self._is_closed:
            return ClosedError(f"the link {self.address!r} was closed")
        return UnknownPeer(rank, sorted(self._ways))

    def __repr__(self) -> str:
        state = "closed" if self._is_closed else "open"
        return f"<ZmqLink {self.address!r} {state} peers={len(self._ways)}>"


def _to_ms(timeout_s: float) -> int:
    # Rounded up: a wait that ends before its deadline would be repeated at once.
    return min(max(math.ceil(timeout_s * 1000), 0), _MAX_TIMEOUT_MS)


def _require_own_user_id() -> None:
    overflow_uid = int(Path("/proc/sys/kernel/overflowuid").read_text(encoding="ascii"))
    if os.getuid() == overflow_uid:
        raise LinkError(
            f"user id {overflow_uid} stands for every user without an id here, so it "
            "cannot tell ours from others: run under a user id of your own"
        )


def _open_trusted_folder(address: str) -> int:
    """Open the folder of an address if only our user can put a socket there.

    Raises:
        LinkError: When the address is none of ours.
    """
    folder, slash, name = address.removeprefix(_SCHEME).rpartition("/")
    is_path = address.startswith(f"{_SCHEME}/") and slash and name == INBOX
    if not is_path or "\0" in address:
        raise LinkError(f"got the address {address!r}, wanted 'ipc:///…/{INBOX}'")
    try:
        fd = os.open(folder, os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError as error:
        raise LinkError(f"cannot open the folder of {address!r}: {error}") from error
    found = os.fstat(fd)
    mode = stat.S_IMODE(found.st_mode)
    if found.st_uid != os.getuid() or mode != stat.S_IRWXU:
        os.close(fd)
        raise LinkError(
            f"the folder of {address!r} belongs to user {found.st_uid} with mode "
            f"{mode:#o}; wanted user {os.getuid()} and mode 0o700, "
            "so that nobody else can listen there"
        )
    return fd
