"""What every link does: carries frames between the inboxes of workers."""

from __future__ import annotations

from collections.abc import Callable
from enum import Enum
from typing import TYPE_CHECKING, Protocol, TypeAlias

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rpcfut_transport._buffers import Buffer


class WayEvent(Enum):
    """What happens to a way that is watched."""

    OPENING = "opening"  # the first thing that is told
    OPENED = "opened"  # what is sent leaves, and what waited for this, too
    BROKEN = "broken"  # it is tried again; what was under way may be lost
    REFUSED = "refused"  # one of the two has a wrong key; trying again will not help


OnWay: TypeAlias = Callable[[WayEvent, str], None]


class Link(Protocol):
    """One inbox, and ways to the inboxes of others.

    Messages from one sender arrive in the order in which they were sent. A message to a
    peer that is gone vanishes: a link does not know who lives. Its owner closes it.
    """

    @property
    def address(self) -> str:
        """Where others reach this inbox. Any thread."""
        ...

    def connect(
        self,
        rank: int,
        address: str,
        public_key: str = "",
        on_way: OnWay | None = None,
    ) -> None:
        """Open the way to a peer's inbox; an earlier way of that rank is closed.

        Owner thread; does not wait for the peer.

        Args:
            rank: The number that `send` will use.
            address: What the peer's link has as one of its addresses. Hostile input: it
                is checked before use.
            public_key: The peer's, if it has one: only who has the other half of it is
                heard as that rank, and spoken to at an address of another host.
            on_way: Told what happens to the way, and why, on a thread of the link. It
                must not block, but may close the way. A link without connections tells
                nothing.

        Raises:
            LinkError: When the address is none, or not to be trusted.
            ClosedError: When `close` was called.
        """
        ...

    def introduce(self, rank: int) -> None:
        """Have a peer listen to us that may not know us yet, to what asks it to.

        Any thread; does not block; nothing happens where no keys are needed.
        """
        ...

    def disconnect(self, rank: int) -> None:
        """Close the way to a peer; what has not left yet is dropped.

        Any thread; does not block; nothing happens for an unknown rank.
        """
        ...

    def send(self, rank: int, frames: Sequence[Buffer]) -> None:
        """Send a message.

        Any thread; never blocks. Frames of fewer than `KEEP_ALIVE_MIN_NBYTES` bytes are
        copied; larger ones are kept alive, and must not be written to again.

        Args:
            rank: A peer that was connected.
            frames: At least one contiguous buffer.

        Raises:
            LocalProtocolError: When the frames cannot be sent.
            UnknownPeer: When the rank is not connected.
            ClosedError: When `close` was called.
            LinkError: When the operating system refuses.
        """
        ...

    def receive(self, timeout_s: float | None) -> list[bytes | memoryview] | None:
        """Take the next message from the inbox.

        One thread at a time, the reader; blocks without the GIL.

        Args:
            timeout_s: How long to wait at most; None for ever.

        Returns:
            The frames: the first as bytes, the others as writable views that keep their
            memory alive. None when time was up or `wake` was called.

        Raises:
            ClosedError: When `close` was called.
            LinkError: When the operating system refuses.
        """
        ...

    def wake(self) -> None:
        """Have the current or the next `receive` return None.

        Any thread; never blocks; nothing happens on a closed link.
        """
        ...

    def close(self) -> None:
        """Close the inbox and all ways; what was sent has a second to leave.

        Idempotent. Any thread that is not inside `receive`; a reader that is inside is
        woken first. Takes 4 s at most.
        """
        ...
