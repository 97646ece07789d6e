"""A link inside one process: same meaning as the real one, no sockets.

Public, so that tests of whatever stands on a link need no network.
"""

from __future__ import annotations

import itertools
import queue
import threading
from typing import TYPE_CHECKING

from rpcfut_transport._buffers import Buffer, require_frames
from rpcfut_transport._errors import ClosedError, LinkError, UnknownPeer

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rpcfut_transport.links._faults import FaultPlan
    from rpcfut_transport.links._link import OnWay

_Message = list[bytes | memoryview]
_Inbox = queue.SimpleQueue[_Message | None]


class MemoryNetwork:
    """Where memory links find each other. Any thread.

    Args:
        faults: What goes wrong between them; nothing, if None.
    """

    def __init__(self, faults: FaultPlan | None = None) -> None:
        self._faults = faults
        self._lock = threading.Lock()
        self._inboxes: dict[str, _Inbox] = {}
        self._numbers = itertools.count(1)

    def add_inbox(self, inbox: _Inbox) -> str:
        """Make an inbox reachable.

        Returns:
            Its address.
        """
        with self._lock:
            address = f"memory://{next(self._numbers)}"
            self._inboxes[address] = inbox
        return address

    def remove_inbox(self, address: str) -> None:
        """Make an inbox unreachable; nothing happens for an unknown address."""
        with self._lock:
            self._inboxes.pop(address, None)

    def find_inbox(self, address: str) -> _Inbox | None:
        """Return the inbox at an address; None when it is gone or never was."""
        with self._lock:
            return self._inboxes.get(address)

    def carry(self, sender: str, address: str, rank: int, message: _Message) -> None:
        """Put a message into an inbox, or do to it what the faults say.

        Args:
            sender: The address of the link that sends it.
            address: Where it goes; if nobody is there, it vanishes.
            rank: What the sender calls the receiver.
            message: Its frames, which nobody else holds.
        """
        inbox = self.find_inbox(address)
        if inbox is None:
            return
        if self._faults is None:
            inbox.put(message)
        else:
            self._faults.pass_on((sender, address), rank, message, inbox.put)

    def __repr__(self) -> str:
        return f"<MemoryNetwork inboxes={len(self._inboxes)}>"


class MemoryLink:
    """A `Link` whose messages are copied from queue to queue.

    Args:
        network: The links of one network reach each other.
    """

    def __init__(self, network: MemoryNetwork) -> None:
        self._network = network
        self._lock = threading.Lock()
        self._ways: dict[int, str] = {}
        self._inbox: _Inbox = queue.SimpleQueue()
        self._address = network.add_inbox(self._inbox)
        self._is_closed = False

    @property
    def address(self) -> str:
        """Where others reach this inbox. Any thread."""
        return self._address

    def connect(
        self,
        rank: int,
        address: str,
        public_key: str = "",
        on_way: OnWay | None = None,
    ) -> None:
        """See `Link.connect`; there are no keys, and no other hosts."""
        del public_key, on_way
        if self._network.find_inbox(address) is None:
            raise LinkError(f"no memory link has the address {address!r}")
        with self._lock:
            self._require_open()
            self._ways[rank] = address

    def introduce(self, rank: int) -> None:
        """See `Link.introduce`; nobody needs a key."""

    def disconnect(self, rank: int) -> None:
        """See `Link.disconnect`."""
        with self._lock:
            self._ways.pop(rank, None)

    def send(self, rank: int, frames: Sequence[Buffer]) -> None:
        """See `Link.send`; frames of any size are copied."""
        require_frames(frames)
        message: _Message = [bytes(frames[0])]
        message += [memoryview(bytearray(frame)) for frame in frames[1:]]
        with self._lock:  # held until the end, so that order per sender is kept
            self._require_open()
            address = self._ways.get(rank)
            if address is None:
                raise UnknownPeer(rank, sorted(self._ways))
            self._network.carry(self._address, address, rank, message)

    def receive(self, timeout_s: float | None) -> _Message | None:
        """See `Link.receive`."""
        self._require_open()
        try:
            return self._inbox.get(timeout=timeout_s)
        except queue.Empty:
            return None

    def wake(self) -> None:
        """See `Link.wake`."""
        self._inbox.put(None)

    def close(self) -> None:
        """See `Link.close`; does not block."""
        with self._lock:
            self._is_closed = True
            self._ways.clear()
        self._network.remove_inbox(self._address)
        self.wake()

    def _require_open(self) -> None:
        if self._is_closed:
            raise ClosedError(f"the link {self._address!r} was closed")

    def __repr__(self) -> str:
        state = "closed" if self._is_closed else "open"
        return f"<MemoryLink {self._address!r} {state} peers={len(self._ways)}>"
