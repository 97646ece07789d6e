"""Every error that the transport raises.

TransportError (a RuntimeError)
├── LocalProtocolError     you used it wrongly; nothing was sent
├── RemoteProtocolError    they sent something that makes no sense
├── ClosedError            you closed it
├── PeerLost               they are gone
│   └── AuthenticationError  one of the two has a wrong key
├── MessageLost            a connection broke with your call or its answer on it
├── UnknownPeer            you never added a peer of that rank
├── QueueFull              too much is on its way to this peer already
└── LinkError              the way to a peer is refused, or not to be trusted
"""

from __future__ import annotations

_MAX_SHOWN = 32


class TransportError(RuntimeError):
    """Base of all errors of the transport."""


class LocalProtocolError(TransportError):
    """This process broke the rules; nothing was sent."""


class RemoteProtocolError(TransportError):
    """A peer broke the rules; what it sent was not used."""


class ClosedError(TransportError):
    """This process closed the object before or during the operation."""


class PeerLost(TransportError):  # noqa: N818 - says what happened to the peer
    """The peer is gone: it died, or it left.

    Args:
        peer: Name of the peer.
        reason: Why it counts as gone, as in ``"its process 4711 ended"``.
    """

    def __init__(self, peer: str, reason: str) -> None:
        super().__init__(f"peer {peer!r} is gone: {reason}")
        self.peer = peer
        self.reason = reason


class AuthenticationError(PeerLost):
    """The peer and this process do not take each other for what they say they are.

    Args:
        peer: Name of the peer.
        reason: What does not fit, as in ``"tcp://… does not let this key in"``.
    """

    def __init__(self, peer: str, reason: str) -> None:
        super().__init__(peer, reason)
        self.args = (f"the keys of this worker and of peer {peer!r} differ: {reason}",)


class MessageLost(TransportError):  # noqa: N818 - says what happened to the message
    """A connection broke, and a call or its answer was on it.

    Args:
        peer: Name of the callee, which is alive and does not have the call.
    """

    def __init__(self, peer: str) -> None:
        super().__init__(
            f"the connection to {peer!r} broke while the call or its answer was on it; "
            "it may or may not have run, and runs no more"
        )
        self.peer = peer


class UnknownPeer(TransportError, LookupError):  # noqa: N818 - pairs with PeerLost
    """No peer of this rank was added.

    Args:
        rank: The rank that was asked for.
        known: The ranks that exist.
    """

    def __init__(self, rank: int, known: list[int]) -> None:
        shown = ", ".join(map(repr, known[:_MAX_SHOWN]))
        more = len(known) - _MAX_SHOWN
        shown += f", and {more} more" if more > 0 else ""
        super().__init__(f"no peer has rank {rank!r}; known ranks: [{shown}]")
        self.rank = rank
        self.known = known


class QueueFull(TransportError):  # noqa: N818 - says what happened to the queue
    """There is no room for a call; nothing was sent (RPC-8).

    Args:
        peer: Name of the peer.
        queued_nbytes: How much of calls is on its way to it.
        bound: How much may be.
        nbytes: How much the call takes.
    """

    def __init__(self, peer: str, queued_nbytes: int, bound: int, nbytes: int) -> None:
        super().__init__(
            f"{in_units(queued_nbytes)} of calls wait for worker {peer!r}, of at most "
            f"{in_units(bound)}, and this one takes {in_units(nbytes)}"
        )
        self.peer = peer
        self.queued_nbytes = queued_nbytes
        self.bound = bound
        self.nbytes = nbytes


def in_units(nbytes: int) -> str:
    """A size, in words."""
    if nbytes < 10_000:
        return f"{nbytes} bytes"
    kib = nbytes / 2**10
    return f"{kib:.1f} KiB" if kib < 1000 else f"{kib / 2**10:.1f} MiB"


class LinkError(TransportError):
    """The way to a peer cannot be opened, used or trusted; the message says why."""
