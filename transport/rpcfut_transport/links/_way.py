"""The ways to peers' inboxes: one PUSH socket each.

Whom we talk to: an address comes from a store that anyone may write to. So the folder
in the address of a Unix socket is opened once, checked through the descriptor, and the
socket is reached through that descriptor: whoever moves or links folders after the
check changes nothing. Of an address of TCP nothing can be checked; there the peer has
to have the secret half of the key in its record.
"""

from __future__ import annotations

import os
import threading
from typing import TYPE_CHECKING

import zmq

from rpcfut_transport._errors import LinkError
from rpcfut_transport.links._address import parse_tcp_address
from rpcfut_transport.links._curve import KeyPair, check_public_key
from rpcfut_transport.links._inbox_folder import INBOX, IPC_SCHEME, open_trusted_folder

if TYPE_CHECKING:
    from collections.abc import Callable

    Prepare = Callable[[zmq.Socket[bytes]], None]

HANDSHAKE_MS = 5000
LINGER_MS = 1000
_RECONNECT_MAX_MS = 1000


class Way:
    """The way to one peer. Any thread; ``lock`` guards the socket."""

    __slots__ = ("_folder_fd", "lock", "socket")

    def __init__(self, socket: zmq.Socket[bytes], folder_fd: int | None = None) -> None:
        self.lock = threading.Lock()
        self.socket: zmq.Socket[bytes] | None = socket
        self._folder_fd = folder_fd

    def close(self, linger_ms: int) -> None:
        """Close it; what has not left yet has so long to leave."""
        with self.lock:
            socket, self.socket = self.socket, None
            if socket is not None:
                socket.disable_monitor()
                socket.close(linger_ms)
                if self._folder_fd is not None:
                    os.close(self._folder_fd)

    def __repr__(self) -> str:
        return f"<Way {'closed' if self.socket is None else 'open'}>"


def open_file_way(
    context: zmq.Context[zmq.Socket[bytes]], address: str, prepare: Prepare
) -> Way:
    """Open the way to a Unix socket of our user.

    Args:
        context: Of the socket.
        address: Where it listens.
        prepare: Called with the socket before it connects.

    Raises:
        LinkError: When the address is none, or not to be trusted.
    """
    folder_fd = open_trusted_folder(address)
    try:
        socket = _connect(
            context, f"{IPC_SCHEME}/proc/self/fd/{folder_fd}/{INBOX}", prepare
        )
    except zmq.ZMQError as error:
        os.close(folder_fd)
        raise LinkError(f"cannot connect to {address!r}: {error}") from error
    return Way(socket, folder_fd)


def open_tcp_way(
    context: zmq.Context[zmq.Socket[bytes]],
    address: str,
    public_key: str,
    keys: KeyPair,
    prepare: Prepare,
) -> Way:
    """Open the way to whoever has the secret half of a key.

    Args:
        context: Of the socket.
        address: Where it listens.
        public_key: Of the peer.
        keys: Who we are.
        prepare: Called with the socket before it connects.

    Raises:
        LinkError: When the address or the key is none.
    """
    host, _ = parse_tcp_address(address)
    check_public_key(public_key, address)

    def set_up(socket: zmq.Socket[bytes]) -> None:
        socket.set(zmq.IPV6, ":" in host)
        socket.set(zmq.CURVE_SERVERKEY, public_key.encode())
        socket.set(zmq.CURVE_PUBLICKEY, keys.public.encode())
        socket.set(zmq.CURVE_SECRETKEY, keys.secret.encode())
        socket.set(zmq.HANDSHAKE_IVL, HANDSHAKE_MS)
        socket.set(zmq.RECONNECT_IVL_MAX, _RECONNECT_MAX_MS)
        socket.set(zmq.TCP_KEEPALIVE, 1)
        prepare(socket)

    try:
        return Way(_connect(context, address, set_up))
    except zmq.ZMQError as error:
        raise LinkError(f"cannot connect to {address!r}: {error}") from error


def _connect(
    context: zmq.Context[zmq.Socket[bytes]], address: str, set_up: Prepare
) -> zmq.Socket[bytes]:
    socket = context.socket(zmq.PUSH)
    try:
        socket.set(zmq.SNDHWM, 0)
        # Also for a link that is collected without having been closed.
        socket.set(zmq.LINGER, LINGER_MS)
        set_up(socket)
        socket.connect(address)
    except BaseException:
        socket.close(0)
        raise
    return socket
