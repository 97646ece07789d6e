"""Who takes the end of each open call, under one lock.

Theory of operation: the session decides, this class makes its decisions atomic. A
call's sink is taken out in the same step that ends the call, so of an answer, a
timeout, a lost peer and a close that race, exactly one gets the sink (RPC-2). Whoever
got it calls it, after the lock is released: no method here calls out.
"""

from __future__ import annotations

import math
import threading
from enum import Enum

from rpcfut_transport._calls import Counters, ReplySink
from rpcfut_transport._errors import ClosedError, LocalProtocolError
from rpcfut_transport._session import OpenCall, PeerState, Session


class LedgerState(Enum):
    """Where a ledger is in its life."""

    NEW = "new"
    RUNNING = "running"
    CLOSED = "closed"


class Ledger:
    """Open calls with their sinks, and the peers. Any thread; never blocks for long.

    Args:
        owner: Name of the worker, for messages.
    """

    def __init__(self, owner: str) -> None:
        self._owner = owner
        self._lock = threading.Lock()
        self._state = LedgerState.NEW
        self._session = Session()
        self._sinks: dict[int, ReplySink] = {}
        # Until when the reader sleeps; -inf while it is about to look by itself.
        self._wakes_at_s = -math.inf
        self._dropped = 0
        self._malformed = 0

    @property
    def state(self) -> LedgerState:
        """Where it is in its life."""
        return self._state

    @property
    def alive_count(self) -> int:
        """How many peers are alive."""
        with self._lock:
            return self._session.alive_count

    @property
    def pending_count(self) -> int:
        """How many calls are open."""
        with self._lock:
            return self._session.pending_count

    @property
    def counters(self) -> Counters:
        """What was not used so far."""
        with self._lock:
            return Counters(
                late_replies=self._session.late_replies,
                dropped=self._dropped + self._session.dropped_replies,
                malformed=self._malformed,
            )

    def start(self) -> None:
        """Let calls be opened.

        Raises:
            LocalProtocolError: When it was started before.
            ClosedError: When it was closed.
        """
        with self._lock:
            if self._state is LedgerState.CLOSED:
                raise self.closed_error()
            if self._state is LedgerState.RUNNING:
                raise LocalProtocolError(f"{self._owner!r} was started before")
            self._state = LedgerState.RUNNING

    def close(self) -> list[ReplySink]:
        """End all calls, and let no more be opened.

        Returns:
            Whom to tell; nobody when it was closed before.
        """
        with self._lock:
            self._state = LedgerState.CLOSED
            return self._take_locked(self._session.on_close())

    def closed_error(self) -> ClosedError:
        """Return the error for whoever comes too late."""
        return ClosedError(f"the endpoint of {self._owner!r} was closed")

    def check_new_peer(self, rank: int, incarnation: int) -> None:
        """See `Session.check_new_peer`."""
        with self._lock:
            self._session.check_new_peer(rank, incarnation)

    def add_peer(self, rank: int, name: str, incarnation: int) -> None:
        """See `Session.add_peer`."""
        with self._lock:
            self._session.add_peer(rank, name, incarnation)

    def incarnation_of(self, rank: int) -> int:
        """Return which life of a peer is alive.

        Raises:
            UnknownPeer: When there is no such peer.
            PeerLost: When it left or is lost.
        """
        with self._lock:
            return self._session.require_alive(rank).incarnation

    def accepts(self, rank: int, incarnation: int) -> bool:
        """See `Session.accepts`."""
        with self._lock:
            return self._session.accepts(rank, incarnation)

    def open_call(
        self, rank: int, deadline_s: float | None, sink: ReplySink
    ) -> tuple[int, bool]:
        """Open a call; see `Session.open_call`.

        Returns:
            Its id, and whether the reader must be woken to see its deadline.

        Raises:
            LocalProtocolError: When it was not started.
            ClosedError: When it was closed.
        """
        with self._lock:
            if self._state is LedgerState.CLOSED:
                raise self.closed_error()
            if self._state is LedgerState.NEW:
                raise LocalProtocolError(f"start {self._owner!r} before it calls")
            call_id = self._session.open_call(rank, deadline_s)
            self._sinks[call_id] = sink
            if deadline_s is None or deadline_s >= self._wakes_at_s:
                return call_id, False
            self._wakes_at_s = -math.inf  # one wake is enough until the reader looks
            return call_id, True

    def find_call(self, call_id: int) -> OpenCall | None:
        """Return an open call; None when it has ended."""
        with self._lock:
            return self._session.find_call(call_id)

    def abandon_call(self, call_id: int) -> bool:
        """End a call whose sink is not to be told; say whether it was open."""
        with self._lock:
            self._sinks.pop(call_id, None)
            return self._session.close_call(call_id)

    def take_reply(self, call_id: int, rank: int, incarnation: int) -> ReplySink | None:
        """End the call that an answer is for; None when it is not to be delivered."""
        with self._lock:
            if self._session.on_reply(call_id, rank, incarnation):
                return self._sinks.pop(call_id)
            return None

    def take_expired(self, now_s: float) -> tuple[list[ReplySink], float] | None:
        """End the calls whose time is over, before the reader sleeps.

        Returns:
            Whom to tell, and until when the reader may sleep; None when closed.
        """
        with self._lock:
            if self._state is LedgerState.CLOSED:
                return None
            sinks = self._take_locked(self._session.on_tick(now_s))
            deadline_s = self._session.next_deadline_s()
            self._wakes_at_s = math.inf if deadline_s is None else deadline_s
            return sinks, self._wakes_at_s

    def end_peer(
        self, rank: int, state: PeerState, reason: str
    ) -> tuple[str, list[ReplySink]]:
        """Mark a peer as gone and end its calls; see `Session.end_peer`.

        Returns:
            Its name, and whom to tell.
        """
        with self._lock:
            sinks = self._take_locked(self._session.end_peer(rank, state, reason))
            return self._session.name_of(rank), sinks

    def count_dropped(self) -> None:
        """Count a message that was not for us or not from a peer."""
        with self._lock:
            self._dropped += 1

    def count_malformed(self) -> None:
        """Count a message that does not decode."""
        with self._lock:
            self._malformed += 1

    def _take_locked(self, call_ids: list[int]) -> list[ReplySink]:
        return [self._sinks.pop(call_id) for call_id in call_ids]

    def __repr__(self) -> str:
        with self._lock:
            return (
                f"<Ledger {self._owner!r} {self._state.value} "
                f"peers={self._session.alive_count} "
                f"pending={self._session.pending_count}>"
            )
