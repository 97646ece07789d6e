"""A peer as the session sees it, and where it is in its life."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum


class PeerState(Enum):
    """Where a peer is in its life."""

    ALIVE = "alive"
    LEFT = "left"
    LOST = "lost"
    REFUSED = "refused"  # one of the two has a wrong key


@dataclass(slots=True, kw_only=True)
class Peer:
    """A peer as the session sees it.

    Args:
        name: Its name, for messages.
        incarnation: Which life of it.
        state: Where it is in its life.
        reason: Why it is gone; empty while it is alive.
    """

    name: str
    incarnation: int
    state: PeerState = PeerState.ALIVE
    reason: str = ""
