"""Which calls are open, to whom, and until when.

Theory of operation: a pure state machine. It has no thread, lock, socket or clock; its
driver holds a lock, tells it what happened and when, and does what it returns.

A call is open from `Session.open_call` until exactly one of these returns its id or
says yes: `on_reply`, `close_call`, `on_tick`, `end_peer`, `on_close`. So whoever ends a
call knows that nobody else does (RPC-2, RPC-5).

A peer is alive until it leaves or is lost, and never comes back: a restarted one is
added again, as a new incarnation (RPC-7)::

    add_peer --> ALIVE --end_peer--> LEFT or LOST --add_peer--> ALIVE
                                                   (another incarnation)

A call that was sent and then ended by its caller, by a timeout or by giving it up, is
*unconfirmed* until the callee has answered all the same, or is gone: until then the
callee may still read what the call carried (FUT-9).

Deadlines lie in a heap. An entry whose call has ended stays there until its time comes
or the heap is mostly such entries; so `next_deadline_s` may be too early, never too
late. That is on purpose: with one timeout for all calls the earliest entry hardly
changes, and the driver's reader need not be woken for every call.
"""

from __future__ import annotations

import heapq
from typing import TYPE_CHECKING, Any, Final

from rpcfut_transport._errors import (
    AuthenticationError,
    LocalProtocolError,
    PeerLost,
    UnknownPeer,
)
from rpcfut_transport._open_call import OpenCall
from rpcfut_transport._peer_state import Peer, PeerState

if TYPE_CHECKING:
    from collections.abc import Iterator

_COMPACT_MIN_ENTRIES = 64
_new: Final[Any] = tuple.__new__  # OpenCall() takes twice as long


class Session:
    """The open calls and the peers of one worker. Its driver holds a lock."""

    def __init__(self) -> None:
        self._peers: dict[int, Peer] = {}
        self._calls: dict[int, OpenCall] = {}
        self._deadlines: list[tuple[float, int]] = []
        self._asks: list[tuple[float, int]] = []
        self._sent: set[int] = set()  # of the open calls, those that were sent
        self._unconfirmed: dict[int, OpenCall] = {}
        self._last_slow_id = 0
        self._last_call_id = 0
        self.late_replies = 0
        self.dropped_replies = 0

    @property
    def pending_count(self) -> int:
        """How many calls are open."""
        return len(self._calls)

    @property
    def next_call_id(self) -> int:
        """The id of the call that is opened next."""
        return self._last_call_id + 1

    @property
    def unconfirmed_count(self) -> int:
        """How many ended calls a callee may still work on."""
        return len(self._unconfirmed)

    @property
    def alive_count(self) -> int:
        """How many peers are alive."""
        return sum(peer.state is PeerState.ALIVE for peer in self._peers.values())

    def name_of(self, rank: int) -> str:
        """Return the name of a peer, alive or gone.

        Raises:
            UnknownPeer: When there is none.
        """
        peer = self._peers.get(rank)
        if peer is None:
            raise UnknownPeer(rank, sorted(self._peers))
        return peer.name

    def add_peer(self, rank: int, name: str, incarnation: int) -> None:
        """Make a peer known, or a new incarnation of one that is gone.

        Raises:
            LocalProtocolError: When a peer of this rank is alive, or the gone one had
                the same incarnation.
        """
        self.check_new_peer(rank, incarnation)
        self._peers[rank] = Peer(name=name, incarnation=incarnation)

    def check_new_peer(self, rank: int, incarnation: int) -> None:
        """Check that `add_peer` would succeed.

        Raises:
            LocalProtocolError: When it would not.
        """
        known = self._peers.get(rank)
        if known is None:
            return
        if known.state is PeerState.ALIVE:
            raise LocalProtocolError(
                f"rank {rank} is {known.name!r}, which is alive; "
                "a new peer can take the rank once that one left or is lost"
            )
        if known.incarnation == incarnation:
            raise LocalProtocolError(
                f"incarnation {incarnation} of {known.name!r} (rank {rank}) is "
                f"{known.state.value}; a restarted peer needs another incarnation"
            )

    def accepts(self, rank: int, incarnation: int) -> bool:
        """Say whether messages of this sender count: it is known and alive."""
        peer = self._peers.get(rank)
        return (
            peer is not None
            and peer.incarnation == incarnation
            and peer.state is PeerState.ALIVE
        )

    def require_alive(self, rank: int) -> Peer:
        """Return the peer of this rank.

        Raises:
            UnknownPeer: When there is none.
            PeerLost: When it left or is lost.
        """
        peer = self._peers.get(rank)
        if peer is None:
            raise UnknownPeer(rank, sorted(self._peers))
        if peer.state is PeerState.REFUSED:
            raise AuthenticationError(peer.name, peer.reason)
        if peer.state is not PeerState.ALIVE:
            raise PeerLost(peer.name, peer.reason)
        return peer

    def open_call(
        self,
        rank: int,
        deadline_s: float | None,
        *,
        now_s: float = 0.0,
        ask_at_s: float | None = None,
        is_sent: bool = False,
    ) -> int:
        """Open a call.

        Args:
            rank: Whom the call goes to.
            deadline_s: When it ends unanswered, monotonic; None for never.
            now_s: The time, monotonic.
            ask_at_s: When `take_asks` is to name it, if it is still open; None for
                never.
            is_sent: Whether it is about to be sent, as by `mark_sent`.

        Returns:
            Its id, never 0, never used before.

        Raises:
            UnknownPeer: When there is no such peer.
            PeerLost: When the peer left or is lost.
        """
        peer = self.require_alive(rank)
        self._last_call_id += 1
        call_id = self._last_call_id
        self._calls[call_id] = _new(
            OpenCall, (rank, peer.incarnation, deadline_s, now_s)
        )
        if is_sent:
            self._sent.add(call_id)
        if deadline_s is not None:
            heapq.heappush(self._deadlines, (deadline_s, call_id))
            self._deadlines = self._compacted(self._deadlines)
        if ask_at_s is not None:
            heapq.heappush(self._asks, (ask_at_s, call_id))
            self._asks = self._compacted(self._asks)
        return call_id

    def mark_sent(self, call_id: int) -> OpenCall | None:
        """Take note that a call is about to be sent; None when it has ended."""
        call = self._calls.get(call_id)
        if call is not None:
            self._sent.add(call_id)
        return call

    def mark_unsent(self, call_id: int) -> None:
        """Take note that sending a call failed: its callee has nothing to confirm."""
        self._sent.discard(call_id)
        self._unconfirmed.pop(call_id, None)

    def is_sent(self, call_id: int) -> bool:
        """Say whether an open call was sent."""
        return call_id in self._sent

    def find_unconfirmed(self, call_id: int) -> OpenCall | None:
        """Return a call that its caller ended and the callee does not know of yet."""
        return self._unconfirmed.get(call_id)

    def find_call(self, call_id: int) -> OpenCall | None:
        """Return an open call; None when it has ended or never was."""
        return self._calls.get(call_id)

    def on_reply(self, call_id: int, rank: int, incarnation: int) -> bool:
        """Take an answer; the call ends if it is the right one.

        An answer to a call that has ended is counted as late. One from a peer that was
        not asked, or to a call that never was, is counted as dropped.

        Args:
            call_id: The call that it claims to answer.
            rank: Who sent it.
            incarnation: Which life of the sender.

        Returns:
            Whether to deliver it.
        """
        call = self._calls.get(call_id)
        if call is None:
            self._on_late_reply(call_id, rank, incarnation)
            return False
        if call.rank != rank or call.incarnation != incarnation:
            self.dropped_replies += 1
            return False
        del self._calls[call_id]
        self._sent.discard(call_id)
        return True

    def _on_late_reply(self, call_id: int, rank: int, incarnation: int) -> None:
        ended = self._unconfirmed.get(call_id)
        if ended is not None and (ended.rank, ended.incarnation) == (rank, incarnation):
            del self._unconfirmed[call_id]
        if 0 < call_id <= self._last_call_id:
            self.late_replies += 1
        else:
            self.dropped_replies += 1

    def close_call(self, call_id: int) -> bool:
        """End a call because the caller gave it up.

        Returns:
            Whether it was open.
        """
        return self._end_early(call_id)

    def _end_early(self, call_id: int) -> bool:
        """End a call without an answer; if it was sent, it waits to be confirmed."""
        call = self._calls.pop(call_id, None)
        if call is None:
            return False
        if call_id in self._sent:
            self._sent.discard(call_id)
            self._unconfirmed[call_id] = call
        return True

    def end_peer(self, rank: int, state: PeerState, reason: str) -> list[int]:
        """Take note that a living peer left or is lost.

        Args:
            rank: Which peer.
            state: LEFT or LOST.
            reason: Why, for the errors of later calls.

        Returns:
            The calls that fail.

        Raises:
            UnknownPeer: When there is no such peer.
            PeerLost: When it was gone before.
        """
        peer = self.require_alive(rank)
        peer.state = state
        peer.reason = reason
        ended = [call_id for call_id, call in self._calls.items() if call.rank == rank]
        for call_id in ended:
            del self._calls[call_id]
            self._sent.discard(call_id)
        for call_id, call in list(self._unconfirmed.items()):
            if call.rank == rank:
                del self._unconfirmed[call_id]
        return ended

    def on_tick(self, now_s: float) -> list[int]:
        """End the calls whose time is over.

        Args:
            now_s: The time, monotonic.

        Returns:
            Their ids, earliest deadline first.
        """
        expired: list[int] = []
        heap = self._deadlines
        if not heap or heap[0][0] > now_s:
            return expired
        while heap and (heap[0][0] <= now_s or heap[0][1] not in self._calls):
            call_id = heapq.heappop(heap)[1]
            if self._end_early(call_id):
                expired.append(call_id)
        return expired

    def take_asks(self, now_s: float) -> list[int]:
        """Take the sent calls that are still open when it is time to ask about them.

        Args:
            now_s: The time, monotonic.

        Returns:
            Their ids, each once.
        """
        due: list[int] = []
        while self._asks and self._asks[0][0] <= now_s:
            call_id = heapq.heappop(self._asks)[1]
            if call_id in self._sent:
                due.append(call_id)
        return due

    def take_slow(self, opened_before_s: float, most: int) -> list[int]:
        """Take open calls that were opened before a time, each once, oldest first.

        Returns:
            Their ids, `most` at most; further ones come with the next take.
        """
        slow: list[int] = []
        for call_id, call in self._calls.items():  # in the order of opening
            if call.opened_s > opened_before_s or len(slow) == most:
                break
            if call_id > self._last_slow_id:
                slow.append(call_id)
        if slow:
            self._last_slow_id = slow[-1]
        return slow

    def take_lost(self, call_id: int) -> bool:
        """End a call that was swallowed, also one that waits to be confirmed.

        Returns:
            Whether it was open.
        """
        self._unconfirmed.pop(call_id, None)
        self._sent.discard(call_id)
        return self._calls.pop(call_id, None) is not None

    def find_doubtful(self, call_id: int) -> OpenCall | None:
        """Return a call that was sent and of which the callee has not said the end."""
        if call_id in self._sent:
            return self._calls.get(call_id)
        return self._unconfirmed.get(call_id)

    def doubtful(self, opened_before_s: float) -> Iterator[tuple[int, OpenCall]]:
        """Go through all such calls that were opened before a time."""
        for call_id, call in self._calls.items():  # in the order of opening
            if call.opened_s > opened_before_s:
                break
            if call_id in self._sent:
                yield call_id, call
        for call_id, call in self._unconfirmed.items():
            if call.opened_s <= opened_before_s:
                yield call_id, call

    def on_close(self) -> list[int]:
        """End all calls because this worker stops.

        Returns:
            Their ids.
        """
        ended = list(self._calls)
        self._calls.clear()
        self._sent.clear()
        self._unconfirmed.clear()
        self._deadlines.clear()
        self._asks.clear()
        return ended

    def look(self) -> tuple[dict[int, Peer], dict[int, OpenCall]]:
        """Return copies of the peers and the open calls, each made in one step.

        For reports: right enough without the driver's lock, since whoever holds that
        may be what hangs.
        """
        return self._peers.copy(), self._calls.copy()

    def next_deadline_s(self) -> float | None:
        """Return when to call `on_tick` or `take_asks` at the latest; None for never.

        Never later than the earliest deadline of an open call; may be earlier.
        """
        return min(
            (heap[0][0] for heap in (self._deadlines, self._asks) if heap), default=None
        )

    def _compacted(self, heap: list[tuple[float, int]]) -> list[tuple[float, int]]:
        # Without this, a fast caller with a long timeout keeps every ended call.
        if len(heap) < _COMPACT_MIN_ENTRIES or len(heap) <= 2 * len(self._calls):
            return heap
        heap = [item for item in heap if item[1] in self._calls]
        heapq.heapify(heap)
        return heap

    def __repr__(self) -> str:
        alive = self.alive_count
        return (
            f"<Session peers={alive} gone={len(self._peers) - alive} "
            f"pending={self.pending_count} late={self.late_replies} "
            f"dropped={self.dropped_replies}>"
        )
