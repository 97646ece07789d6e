"""Who takes the end of each open call, under one lock.

Theory of operation: the session decides, this class makes its decisions atomic. A
call's sink is taken out in the same step that ends the call, so of an answer, a
timeout, a lost peer and a close that race, exactly one gets the sink (RPC-2). Whoever
got it calls it, after the lock is released: no method here calls out.
"""

from __future__ import annotations

import math
from enum import Enum
from typing import TYPE_CHECKING

from rpcfut_transport._calls import (
    CallKey,
    CallView,
    Counters,
    PeerView,
    ReplySink,
)
from rpcfut_transport._due import Due, deadline_of
from rpcfut_transport._errors import ClosedError, LocalProtocolError
from rpcfut_transport._losses import Losses
from rpcfut_transport._patience import Patience
from rpcfut_transport._session import Session

if TYPE_CHECKING:
    from rpcfut_transport._flow import Ticket
    from rpcfut_transport._open_call import OpenCall
    from rpcfut_transport._peer_state import PeerState
    from rpcfut_transport._rooms import Rooms
    from rpcfut_transport.links._link import WayEvent

SLOW_S = 60.0  # a call that is open for longer is told so
_MAX_SLOW = 8  # at a time: the callee is asked about each
_LOOK_FOR_SLOW_S = 5.0  # how often; a look may pass over every open call
_MAX_SLEEP_S = 20.0  # then the reader looks for calls that take long
_ASK_AHEAD_S = 0.05
_ASK_MIN_S = 0.02  # below, an answer would hardly come before the end


class LedgerState(Enum):
    """Where a ledger is in its life."""

    NEW = "new"
    RUNNING = "running"
    CLOSED = "closed"


class Ledger:
    """Open calls with their sinks, and the peers. Any thread; never blocks for long.

    Args:
        owner: Name of the worker, for messages.
        rooms: Where calls take room; its lock is used.
        patience: When a peer without a connection counts as lost.
    """

    def __init__(
        self, owner: str, rooms: Rooms, patience: Patience | None = None
    ) -> None:
        self._owner = owner
        self._rooms = rooms
        self._lock = rooms.lock
        self._state = LedgerState.NEW
        self._session = Session()
        self._losses = Losses(self._session, patience or Patience())
        self._sinks: dict[int, ReplySink] = {}
        # When to look for what is due, and until when the reader sleeps (-inf while it
        # does not). Whoever opens a call lowers the first under the lock and then reads
        # the second; the reader sets the second and then reads the first again.
        self.due_at_s = -math.inf
        self._sleeps_until_s = -math.inf
        self._looks_for_slow_at_s = -math.inf
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
        return self._session.pending_count

    @property
    def counters(self) -> Counters:
        """What was not used so far."""
        with self._lock:
            return Counters(
                late_replies=self._session.late_replies,
                dropped=self._dropped + self._session.dropped_replies,
                malformed=self._malformed,
                unconfirmed=self._session.unconfirmed_count,
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
            self.due_at_s = -math.inf  # so that the reader sees it
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
        return self._session.accepts(rank, incarnation)  # reads one entry: no lock

    def open_call(  # noqa: PLR0913 - no object for each call
        self,
        rank: int,
        now_s: float,
        timeout_s: float | None,
        sink: ReplySink,
        *,
        is_sent: bool = False,
        nbytes: int = 0,
        ticket: Ticket | None = None,
    ) -> tuple[int, int, bool, bool]:
        """Open a call; see `Session.open_call`.

        Args:
            rank: Whom the call goes to.
            now_s: The time, monotonic.
            timeout_s: When it ends unanswered, from now; None for never.
            sink: Whom to tell how it ends.
            is_sent: Whether it is sent at once, as by `mark_sent`.
            nbytes: How much room it takes.
            ticket: That for this room, if one was drawn.

        Returns:
            Its id, the incarnation of the peer, whether that has much to do for us
            already, and whether the reader must be woken for the call's deadline.

        Raises:
            LocalProtocolError: When the timeout is no number of seconds from 0 on, or
                it was not started.
            ClosedError: When it was closed.
            QueueFull: When there is no room; nothing is open then.
        """
        deadline_s = ask_at_s = None
        if timeout_s is not None:
            deadline_s = deadline_of(timeout_s, now_s)
            if deadline_s is not None and deadline_s - now_s >= _ASK_MIN_S:
                ask_at_s = deadline_s - min(_ASK_AHEAD_S, (deadline_s - now_s) / 4)
        with self._lock:
            if self._state is not LedgerState.RUNNING:
                raise self._not_running()
            session = self._session
            incarnation = session.require_alive(rank).incarnation
            is_busy = self._rooms.reserve_locked(rank, nbytes, ticket)
            # First, so that a Ctrl-C from here on leaves nothing that cannot be
            # abandoned by that id.
            call_id = session.next_call_id
            sink.call_id = call_id
            self._sinks[call_id] = sink
            session.open_call(
                rank, deadline_s, now_s=now_s, ask_at_s=ask_at_s, is_sent=is_sent
            )
            first_s = deadline_s if ask_at_s is None else ask_at_s
            if first_s is None or first_s >= self.due_at_s:
                return call_id, incarnation, is_busy, False
            self.due_at_s = first_s
            return call_id, incarnation, is_busy, first_s < self._sleeps_until_s

    def _not_running(self) -> LocalProtocolError | ClosedError:
        if self._state is LedgerState.CLOSED:
            return self.closed_error()
        return LocalProtocolError(f"start {self._owner!r} before it calls")

    def begin_sleep(self) -> float:
        """Say until when the reader may sleep; calls that end earlier wake it."""
        while True:
            due_at_s = self._sleeps_until_s = self.due_at_s
            if self.due_at_s == due_at_s:
                return due_at_s

    def end_sleep(self) -> None:
        """Take note that the reader does not sleep."""
        self._sleeps_until_s = -math.inf

    def mark_sent(self, call_id: int) -> OpenCall | None:
        """See `Session.mark_sent`."""
        with self._lock:
            return self._session.mark_sent(call_id)

    def mark_unsent(self, call_id: int) -> None:
        """See `Session.mark_unsent`."""
        with self._lock:
            self._session.mark_unsent(call_id)

    def find_sent(self, call_id: int) -> OpenCall | None:
        """Return an open call that was sent; None for any other."""
        with self._lock:
            if self._session.is_sent(call_id):
                return self._session.find_call(call_id)
            return None

    def find_ended(self, call_id: int) -> CallKey | None:
        """Return a call that its caller ended and the callee did not confirm."""
        return self._ended_locked(call_id)  # reads one entry: no lock

    def abandon_call(self, call_id: int) -> tuple[bool, CallKey | None]:
        """End a call whose sink is not to be told.

        Returns:
            Whether it was open, and whom to tell if it was sent.
        """
        with self._lock:
            self._sinks.pop(call_id, None)
            was_open = self._session.close_call(call_id)
            return was_open, self._ended_locked(call_id) if was_open else None

    def _ended_locked(self, call_id: int) -> CallKey | None:
        call = self._session.find_unconfirmed(call_id)
        return None if call is None else CallKey(call_id, call.rank, call.incarnation)

    def take_reply(self, call_id: int, rank: int, incarnation: int) -> ReplySink | None:
        """End the call that an answer is for; None when it is not to be delivered."""
        with self._lock:
            if self._session.on_reply(call_id, rank, incarnation):
                return self._sinks.pop(call_id)
            return None

    def take_due(self, now_s: float) -> Due | None:
        """End the calls whose time is over, before the reader sleeps.

        Returns:
            What is to be done; None when closed.
        """
        with self._lock:
            if self._state is LedgerState.CLOSED:
                return None
            session = self._session
            call_ids = session.on_tick(now_s)
            asks = [
                CallKey(call_id, call.rank, call.incarnation)
                for call_id in session.take_asks(now_s)
                if (call := session.find_call(call_id)) is not None
            ]
            slow = self._take_slow_locked(now_s)
            asks += self._losses.take_asks(now_s)
            lost = self._losses.take_lost(now_s)
            deadline_s = session.next_deadline_s()
            self.due_at_s = min(
                now_s + _MAX_SLEEP_S,
                math.inf if deadline_s is None else deadline_s,
                self._losses.next_look_s(now_s),
            )
            return Due(
                self._take_locked(call_ids),
                [e for i in call_ids if (e := self._ended_locked(i)) is not None],
                asks,
                slow,
                lost,
            )

    def on_way(
        self, rank: int, incarnation: int, event: WayEvent, now_s: float
    ) -> tuple[bool, bool]:
        """Take note of what happens to the way to a peer.

        Returns:
            Whether it is open again, and whether the reader must be woken.
        """
        with self._lock:
            is_known = self._session.accepts(rank, incarnation)
            is_again = is_known and self._losses.on_way(rank, event, now_s)
            return is_again, self._lower_due_locked(now_s)

    def on_reopened(self, rank: int, now_s: float) -> None:
        """See `Losses.on_reopened`. The reader."""
        with self._lock:
            self._losses.on_reopened(rank)
            self._lower_due_locked(now_s)

    def on_told(
        self, call: CallKey, now_s: float, *, is_here: bool
    ) -> tuple[ReplySink | None, str]:
        """Take what a callee says of a call, which ends if it is lost. The reader.

        Returns:
            Who waits for it, and, only if it ends, the callee's name.
        """
        with self._lock:
            is_lost = self._losses.on_told(call, now_s, is_here=is_here)
            self._lower_due_locked(now_s)
            found = self._session.find_doubtful(call.call_id)
            if found is None or found[:2] != call[1:]:
                return None, ""
            if not is_lost:
                return self._sinks.get(call.call_id), ""
            self._session.take_lost(call.call_id)
            sink = self._sinks.pop(call.call_id, None)
            return sink, self._session.name_of(call.rank)

    def _lower_due_locked(self, now_s: float) -> bool:
        """Have the reader look when it is time; say whether it must be woken."""
        first_s = self._losses.next_look_s(now_s)
        if first_s >= self.due_at_s:
            return False
        self.due_at_s = first_s
        return first_s < self._sleeps_until_s

    def end_peer(
        self, rank: int, state: PeerState, reason: str
    ) -> tuple[str, list[ReplySink]]:
        """Mark a peer as gone and end its calls; see `Session.end_peer`.

        Returns:
            Its name, and whom to tell.
        """
        with self._lock:
            sinks = self._take_locked(self._session.end_peer(rank, state, reason))
            self._losses.on_gone(rank)
            return self._session.name_of(rank), sinks

    def count_dropped(self) -> None:
        """Count a message that was not for us or not from a peer."""
        with self._lock:
            self._dropped += 1

    def count_malformed(self) -> None:
        """Count a message that does not decode."""
        with self._lock:
            self._malformed += 1

    def look(self) -> tuple[list[PeerView], list[CallView]]:
        """Return the peers and the open calls, oldest first. Takes no lock."""
        peers, calls = self._session.look()
        sinks = self._sinks.copy()  # later: those that ended meanwhile have no sink
        queued = self._rooms.queued_nbytes()
        return (
            [
                PeerView(rank, p.name, p.state.value, p.reason, queued.get(rank))
                for rank, p in peers.items()
            ],
            [
                CallView(call.rank, call.opened_s, call.deadline_s, sinks[call_id])
                for call_id, call in calls.items()
                if call_id in sinks
            ],
        )

    def _take_slow_locked(self, now_s: float) -> list[ReplySink]:
        if now_s < self._looks_for_slow_at_s:
            return []
        self._looks_for_slow_at_s = now_s + _LOOK_FOR_SLOW_S
        slow = self._session.take_slow(now_s - SLOW_S, _MAX_SLOW)
        return [self._sinks[call_id] for call_id in slow]

    def _take_locked(self, call_ids: list[int]) -> list[ReplySink]:
        return [self._sinks.pop(call_id) for call_id in call_ids]

    def __repr__(self) -> str:
        with self._lock:
            return (
                f"<Ledger {self._owner!r} {self._state.value} "
                f"peers={self._session.alive_count} "
                f"pending={self._session.pending_count}>"
            )
