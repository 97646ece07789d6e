"""The half of a link that other hosts reach: encrypted TCP, for members only."""

from __future__ import annotations

import errno
import logging
import threading
from typing import TYPE_CHECKING

import zmq

from rpcfut_transport._errors import LinkError
from rpcfut_transport._wire import GUEST_KINDS, KIND_AT, SENDER_RANK, pack_rank
from rpcfut_transport.links._address import tcp_address
from rpcfut_transport.links._curve import (
    check_public_key,
    guest_key_pair,
    new_key_pair,
)
from rpcfut_transport.links._door import DOMAIN, NOBODY, Door
from rpcfut_transport.links._own_host import choose_host
from rpcfut_transport.links._way import HANDSHAKE_MS, Way, open_tcp_way

if TYPE_CHECKING:
    from rpcfut_transport.links._options import NetworkOptions
    from rpcfut_transport.links._way import Prepare

_log = logging.getLogger(__name__)

_TAKEN = (errno.EADDRINUSE, errno.EACCES)
_INTRODUCTION_MS = 2000
# What ZeroMQ calls the other side of a Unix socket. Those of TCP are numbers.
_BY_FILE = "localhost:"


class Network:
    """Keys, the door, and the ways to other hosts. Any thread, unless it says another.

    Made and closed by the link.

    Args:
        context: The link's own; the door takes a name in it.
        options: Where to listen.

    Raises:
        LinkError: When there is no such address, or ZeroMQ cannot encrypt.
    """

    def __init__(
        self, context: zmq.Context[zmq.Socket[bytes]], options: NetworkOptions
    ) -> None:
        self._context = context
        self._host = choose_host(options.interface, options.toward)
        self._ports = options.ports
        self._keys = new_key_pair()
        self._guest = guest_key_pair(options.group_key)
        self._lock = threading.Lock()
        self._peers: dict[int, tuple[str, str]] = {}  # rank: address and public key
        self._refused = 0
        self.address = ""
        self._door = Door(context, self._guest.public, f"rpcfut-door-{self._host}")

    @property
    def public_key(self) -> str:
        """The key that others must know."""
        return self._keys.public

    @property
    def refused_count(self) -> int:
        """How many messages were dropped, since they came in another's name."""
        return self._refused

    def listen(self, inbox: zmq.Socket[bytes]) -> None:
        """Have an inbox listen here, too; where it listens already, nothing changes.

        Raises:
            LinkError: When no port is free, or the operating system refuses.
        """
        inbox.set(zmq.IPV6, ":" in self._host)
        inbox.set(zmq.CURVE_SERVER, 1)
        inbox.set(zmq.CURVE_SECRETKEY, self._keys.secret.encode())
        inbox.set(zmq.ZAP_DOMAIN, DOMAIN)
        inbox.set(zmq.ZAP_ENFORCE_DOMAIN, 1)
        inbox.set(zmq.HANDSHAKE_IVL, HANDSHAKE_MS)
        inbox.set(zmq.TCP_KEEPALIVE, 1)
        port = self._bind(inbox)
        self.address = tcp_address(self._host, port)

    def _bind(self, inbox: zmq.Socket[bytes]) -> int:
        if self._ports is None:
            return self._bind_to(inbox, "*")
        first, last = self._ports
        for port in range(first, last + 1):
            try:
                return self._bind_to(inbox, port)
            except LinkError as error:
                cause = error.__cause__
                if not isinstance(cause, zmq.ZMQError) or cause.errno not in _TAKEN:
                    raise
        raise LinkError(
            f"no port from {first} to {last} is free at {self._host}: the range needs "
            "one for each worker on this host; give more with ports="
        )

    def _bind_to(self, inbox: zmq.Socket[bytes], port: int | str) -> int:
        try:
            inbox.bind(tcp_address(self._host, port))
        except zmq.ZMQError as error:
            raise LinkError(
                f"cannot listen at {tcp_address(self._host, port)}: {error}"
            ) from error
        endpoint = inbox.get(zmq.LAST_ENDPOINT)
        assert isinstance(endpoint, bytes)
        return int(endpoint.rpartition(b":")[2])

    def open_way(self, address: str, public_key: str, prepare: Prepare) -> Way:
        """Open the way to whoever has a key.

        Args:
            address: Where it listens.
            public_key: The public half of its key.
            prepare: Called with the socket before it connects.

        Raises:
            LinkError: When the address or the key is none.
        """
        return open_tcp_way(self._context, address, public_key, self._keys, prepare)

    def admit(self, rank: int, address: str, public_key: str) -> None:
        """Let the key of a peer in, and use what it says in the name of its rank.

        Raises:
            LinkError: When the key is none.
        """
        check_public_key(public_key, f"rank {rank}")
        with self._lock:
            self._peers[rank] = address, public_key
        self._door.admit(public_key, pack_rank(rank))

    def forget(self, rank: int) -> None:
        """Use nothing any more of what a peer says."""
        with self._lock:
            self._peers.pop(rank, None)
        self._door.forget(pack_rank(rank))

    def introduce(self, rank: int) -> None:
        """Show a peer that we know the key of the group, and which key will be ours."""
        with self._lock:
            address, public_key = self._peers.get(rank, ("", ""))
        if not address:
            return
        way = open_tcp_way(
            self._context, address, public_key, self._guest, lambda _: None
        )
        if way.socket is not None:
            way.socket.send(self._keys.public.encode(), zmq.NOBLOCK)
        way.close(_INTRODUCTION_MS)

    def refuse_strangers(self) -> None:
        """See `Door.refuse_strangers`."""
        self._door.refuse_strangers()

    def accepts(self, frame: zmq.Frame, first: bytes) -> bool:
        """Whether a message comes from whom it says. The reader.

        Args:
            frame: Its first frame, as it came.
            first: What is in it.
        """
        try:
            if str(frame.get("Peer-Address")).startswith(_BY_FILE):
                return True  # the kernel has seen that it is one of our user
            key = str(frame.get("User-Id"))
        except zmq.ZMQError:
            return self._refuse("a connection without a key")
        rank = self._door.rank_of(key)
        if rank == first[SENDER_RANK]:
            return True
        return self._accepts_from_guest(key, rank, first)

    def _accepts_from_guest(self, key: str, rank: bytes | None, first: bytes) -> bool:
        if key == self._guest.public:
            self._admit_guest(first)
            return False
        if rank == NOBODY and first[KIND_AT] in GUEST_KINDS:
            return True
        return self._refuse(f"the owner of {key}, in the name of another")

    def _admit_guest(self, first: bytes) -> None:
        key = first.decode(errors="replace")
        try:
            check_public_key(key, "a guest")
        except LinkError as error:
            self._refuse(str(error))
            return
        self._door.admit_guest(key)

    def _refuse(self, whose: str) -> bool:
        self._refused += 1
        _log.debug("%s drops a message from %s", self.address, whose)
        return False

    def close(self) -> None:
        """Let nobody in. Idempotent; does not wait."""
        self._door.close()

    def join(self) -> None:
        """Wait for the last thread, once the context is terminated; 2 s at most."""
        self._door.join()

    def __repr__(self) -> str:
        return f"<Network {self.address!r} {self._door!r}>"
