"""The link on ZeroMQ: Unix sockets on this host, encrypted TCP between hosts.

Theory of operation: a PULL socket is the inbox; each peer has a PUSH socket under a
lock of its own, so a slow send to one delays no other. Queues are unbounded, so a send
never blocks. The inbox also listens inside the process, for `ZmqLink.wake`.

Who may talk to us (RPC-10): the Unix socket lies in a folder that only our user can
enter, and asks the kernel for the sender's user id. The TCP socket takes only those
that have the secret half of a key which the `Door` knows, and only messages in the
names of the keys' owners. ZeroMQ gives each place where a socket listens the options
that were set before, so one inbox can have both. Whom we talk to: see `_way`.
"""

from __future__ import annotations

import logging
import math
import os
import threading
from typing import TYPE_CHECKING

import zmq

from rpcfut_transport._buffers import KEEP_ALIVE_MIN_NBYTES, Buffer, require_frames
from rpcfut_transport._errors import ClosedError, LinkError, UnknownPeer
from rpcfut_transport._wire import WAKE_FRAME
from rpcfut_transport.links._address import is_tcp
from rpcfut_transport.links._inbox_folder import (
    IPC_SCHEME,
    InboxFolder,
    require_own_user_id,
)
from rpcfut_transport.links._limits import (
    make_context,
    raise_file_limit,
    require_room,
)
from rpcfut_transport.links._monitor import WayMonitor
from rpcfut_transport.links._network import Network
from rpcfut_transport.links._options import LinkOptions
from rpcfut_transport.links._way import LINGER_MS, Way, open_file_way

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rpcfut_transport.links._link import OnWay

_log = logging.getLogger(__name__)

_WAKE_ADDRESS = "inproc://wake"
_READER_TIMEOUT_S = 2.0
_MAX_TIMEOUT_MS = 2**31 - 1
_FOREVER_MS = -1


class ZmqLink:
    """A `Link` for processes of one user on one host, and for other hosts if asked to.

    Its Unix socket lies in a folder of its own, see `InboxFolder`, removed when closed.
    Its owner closes it. Raises the soft limit of open files of this process.

    Args:
        options: How it listens; by default on a Unix socket only.

    Raises:
        LinkError: When the path would be too long for a socket, the user id says
            nothing, no address or port is to be had, or the operating system refuses.
    """

    def __init__(self, options: LinkOptions | None = None) -> None:
        options = options or LinkOptions()
        raise_file_limit()
        require_room(0)
        self._folder = _make_folder() if options.uses_files else None
        self._control_folder = self._folder or _make_folder_if_possible()
        self._lock = threading.Lock()
        self._ways: dict[int, Way] = {}
        self._is_closed = False
        self._inbox_lock = threading.Lock()
        self._wake_lock = threading.Lock()
        self._is_wake_wanted = False
        self._timeout_ms = _FOREVER_MS
        self._context = make_context()
        try:
            self._inbox = self._context.socket(zmq.PULL)
            self._waker = self._context.socket(zmq.PUSH)
        except zmq.ZMQError as error:
            self._context.destroy(0)
            if self._control_folder is not None:
                self._control_folder.close()
            raise LinkError(f"cannot make a socket: {error}") from error
        self._network: Network | None = None
        self._monitor = WayMonitor(self._context, "rpcfut-ways", options.patience)
        try:
            self._listen(options)
        except BaseException:
            self.close()
            raise

    def _listen(self, options: LinkOptions) -> None:
        path = "nothing" if self._folder is None else self._folder.inbox
        try:
            self._inbox.set(zmq.RCVHWM, 0)
            self._inbox.set(zmq.LINGER, 0)
            self._inbox.set(zmq.IPC_FILTER_UID, os.getuid())
            if self._folder is not None:
                self._inbox.bind(f"{IPC_SCHEME}{path}")
            self._inbox.bind(_WAKE_ADDRESS)
            self._waker.set(zmq.SNDHWM, 0)
            self._waker.set(zmq.LINGER, 0)
            self._waker.connect(_WAKE_ADDRESS)
        except zmq.ZMQError as error:
            raise LinkError(f"cannot listen on {path!r}: {error}") from error
        if options.network is not None:
            self._network = Network(self._context, options.network)
            self._network.listen(self._inbox)

    @property
    def address(self) -> str:
        """Where others on this host reach this inbox. Any thread."""
        if self._folder is None:
            return self.tcp_address
        return f"{IPC_SCHEME}{self._folder.inbox}"

    @property
    def control_path(self) -> str:
        """Where a socket that says what is pending may be bound. Any thread.

        Empty if this worker can have no folder.
        """
        return "" if self._control_folder is None else self._control_folder.control

    @property
    def tcp_address(self) -> str:
        """Where other hosts reach this inbox; empty if they do not. Any thread."""
        return "" if self._network is None else self._network.address

    @property
    def public_key(self) -> str:
        """What others must know to reach `tcp_address`; empty if none. Any thread."""
        return "" if self._network is None else self._network.public_key

    def connect(
        self,
        rank: int,
        address: str,
        public_key: str = "",
        on_way: OnWay | None = None,
    ) -> None:
        """See `Link.connect`."""
        with self._lock:
            if self._is_closed:
                raise self._closed()
            require_room(len(self._ways))
            way = self._open_way(address, public_key, on_way)
            if self._network is not None and public_key:
                self._network.admit(rank, address, public_key)
            earlier = self._ways.get(rank)
            self._ways[rank] = way
        if earlier is not None:
            earlier.close(linger_ms=0)

    def _open_way(self, address: str, public_key: str, on_way: OnWay | None) -> Way:
        def watch(socket: zmq.Socket[bytes]) -> None:
            if on_way is not None:
                self._monitor.watch(socket, address, on_way)

        if self._network is not None and is_tcp(address):
            return self._network.open_way(address, public_key, watch)
        if self._folder is None:
            raise LinkError(f"this link uses no files, so it cannot reach {address!r}")
        return open_file_way(self._context, address, watch)

    def disconnect(self, rank: int) -> None:
        """See `Link.disconnect`."""
        with self._lock:
            way = self._ways.pop(rank, None)
            if self._network is not None:
                self._network.forget(rank)
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
                raise self._closed()
            inbox = self._inbox
            try:
                if timeout_ms != self._timeout_ms:
                    inbox.set(zmq.RCVTIMEO, timeout_ms)
                    self._timeout_ms = timeout_ms
                frame = inbox.recv(copy=False)
                first = frame.bytes
                frames: list[bytes | memoryview] = [first]
                part = frame
                while part.more:
                    part = inbox.recv(copy=False)
                    frames.append(part.buffer)
            except zmq.Again:
                return None
            except zmq.ZMQError as error:
                raise LinkError(f"cannot read {self.address!r}: {error}") from error
        if first == WAKE_FRAME:
            return None
        if self._network is not None and not self._network.accepts(frame, first):
            return None
        return frames

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

    @property
    def refused_count(self) -> int:
        """How many messages came in the name of another, and were dropped."""
        return 0 if self._network is None else self._network.refused_count

    def refuse_strangers(self) -> None:
        """Tell those no whose keys are not known, which are kept waiting until now.

        For when all members that exist are connected. Later ones introduce themselves.
        Any thread.
        """
        if self._network is not None:
            self._network.refuse_strangers()

    def introduce(self, rank: int) -> None:
        """See `Link.introduce`."""
        if self._network is not None:
            self._network.introduce(rank)

    def close(self) -> None:
        """See `Link.close`."""
        with self._lock:
            if self._is_closed:
                return
            self._is_closed = True
            ways = list(self._ways.values())
        for way in ways:
            way.close(LINGER_MS)
        self._monitor.close()
        if self._network is not None:
            self._network.close()
        self.wake()
        with self._wake_lock:
            self._waker.close()
        # A socket must not be closed while another thread reads from it.
        if self._inbox_lock.acquire(timeout=_READER_TIMEOUT_S):
            self._inbox.close()
            self._inbox_lock.release()
            self._context.term()
            if self._network is not None:
                self._network.join()
        else:
            _log.warning("the reader of %r does not return; left open", self.address)
        if self._control_folder is not None:
            self._control_folder.close()

    def _closed(self) -> ClosedError:
        return ClosedError(f"the link {self.address!r} was closed")

    def _no_way(self, rank: int) -> ClosedError | UnknownPeer:
        if self._is_closed:
            return self._closed()
        return UnknownPeer(rank, sorted(self._ways))

    def __repr__(self) -> str:
        state = "closed" if self._is_closed else "open"
        return f"<ZmqLink {self.address!r} {state} peers={len(self._ways)}>"


def _make_folder() -> InboxFolder:
    require_own_user_id()
    return InboxFolder()


def _make_folder_if_possible() -> InboxFolder | None:
    try:
        return _make_folder()
    except LinkError as error:  # a worker without files works all the same
        _log.info("python -m rpcfut pending will not find this worker: %s", error)
        return None


def _to_ms(timeout_s: float) -> int:
    # Rounded up: a wait that ends before its deadline would be repeated at once.
    return min(max(math.ceil(timeout_s * 1000), 0), _MAX_TIMEOUT_MS)
