"""What is lost, peers and calls, as far as the connections to peers tell.

A pure state machine beside the session: what a connection that broke may have swallowed
(`Doubts`), and whose connection stays away (`Absences`).
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from rpcfut_transport._absence import Absences
from rpcfut_transport._calls import CallKey
from rpcfut_transport._doubts import LONG_S, Doubts
from rpcfut_transport.links._link import WayEvent

if TYPE_CHECKING:
    from rpcfut_transport._patience import Patience
    from rpcfut_transport._session import Session

_LOOK_FOR_LONG_S = 5.0  # how often; a look may pass over every open call


class Losses:
    """Decides what is lost. Its driver holds a lock, and ends what is.

    Args:
        session: The calls and the peers.
        patience: When a peer without a connection counts as lost.
    """

    def __init__(self, session: Session, patience: Patience) -> None:
        self._session = session
        self._absences = Absences(patience)
        self._doubts = Doubts()
        self._looks_for_long_at_s = -math.inf

    def on_way(self, rank: int, event: WayEvent, now_s: float) -> bool:
        """Take note of what happens to the way to a living peer.

        Returns:
            Whether it is open again, after it was broken.
        """
        if event is WayEvent.OPENING:
            self._absences.on_opening(rank, now_s)
        elif event is WayEvent.BROKEN:
            self._absences.on_broken(rank, now_s)
        elif event is WayEvent.OPENED and self._absences.on_open(rank):
            self.on_reopened(rank)
            return True
        return False

    def on_reopened(self, rank: int) -> None:
        """Take note that there is a new connection to a peer, or from it."""
        calls = self._session.doubtful(math.inf)
        self._doubts.on_reopened(rank, (i for i, call in calls if call.rank == rank))

    def on_gone(self, rank: int) -> None:
        """Take note that a peer is gone."""
        self._absences.on_open(rank)
        self._doubts.on_gone(rank)

    def on_told(self, call: CallKey, now_s: float, *, is_here: bool) -> bool:
        """Take what a callee says of a call.

        Returns:
            Whether the call is lost, if it is still open.
        """
        return self._doubts.on_told(call.rank, call.call_id, now_s, is_here=is_here)

    def take_asks(self, now_s: float) -> list[CallKey]:
        """Take the calls whose callees are to be asked whether they have them."""
        if now_s >= self._looks_for_long_at_s:
            self._looks_for_long_at_s = now_s + _LOOK_FOR_LONG_S
            self._doubts.on_open_for(
                (call_id, call.rank, now_s - call.opened_s)
                for call_id, call in self._session.doubtful(now_s - LONG_S)
            )
        asks = []
        for rank, call_id in self._doubts.take_asks(now_s):
            call = self._session.find_doubtful(call_id)
            if call is None:
                self._doubts.on_over(rank, call_id)
            else:
                asks.append(CallKey(call_id, rank, call.incarnation))
        return asks

    def take_lost(self, now_s: float) -> list[tuple[int, int, str]]:
        """Take the peers that were away for too long: rank, incarnation, reason."""
        return [
            (rank, self._session.require_alive(rank).incarnation, reason)
            for rank, reason in self._absences.take_lost(now_s)
        ]

    def next_look_s(self, now_s: float) -> float:
        """When to take again; infinity for never."""
        times = (self._absences.next_look_s(), self._doubts.next_ask_s(now_s))
        return min((at_s for at_s in times if at_s is not None), default=math.inf)

    def __repr__(self) -> str:
        return f"<Losses {self._absences!r} {self._doubts!r}>"
