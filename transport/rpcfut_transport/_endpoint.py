"""One worker's end of all conversations: drives session, link and liveness.

Theory of operation: one thread at a time, the *reader*, takes messages from the link,
files them, and ends calls whose time is over; the inbox says which thread. The ledger
decides, under its lock; links, sinks and handlers are called here, with no lock held.
The reader sleeps until the earliest deadline that it knew; whoever opens a call that
ends earlier wakes it.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from rpcfut_transport._contacts import Contacts
from rpcfut_transport._crew import Threads
from rpcfut_transport._errors import (
    AuthenticationError,
    ClosedError,
    LocalProtocolError,
    PeerLost,
    UnknownPeer,
)
from rpcfut_transport._filing import Filing
from rpcfut_transport._flow import message_nbytes
from rpcfut_transport._inbox import Inbox
from rpcfut_transport._ledger import Ledger
from rpcfut_transport._outgoing import Outgoing
from rpcfut_transport._peer_state import PeerState
from rpcfut_transport._reader import Reader
from rpcfut_transport._rooms import QUEUE_NBYTES, Rooms
from rpcfut_transport._sender import Sender
from rpcfut_transport._wire import Kind

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rpcfut_transport._buffers import Buffer
    from rpcfut_transport._calls import (
        CallView,
        Counters,
        Handler,
        IncomingCall,
        PeerView,
        ReplySink,
        Work,
    )
    from rpcfut_transport._clock import Clock
    from rpcfut_transport._crew import Crew
    from rpcfut_transport._patience import Patience
    from rpcfut_transport._peers import PeerRecord
    from rpcfut_transport.links._link import Link

_log = logging.getLogger(__name__)

_JOIN_TIMEOUT_S = 5.0
_NOTICES = frozenset({Kind.READY, Kind.GOODBYE})
_SAYS = _NOTICES | {Kind.JOIN, Kind.WELCOME}


class Endpoint:
    """Calls peers, takes their calls, and notices when they are gone. Any thread.

    Owns the link and closes it; is closed by whoever made it.

    Args:
        record: This worker, as its peers see it; its address is the link's.
        link: How frames travel.
        clock: What deadlines are measured on.
        handler: Takes what peers start.
        crew: The threads that read when nobody waits, and run what handlers return.
        queue_nbytes: How much may be on its way to a peer, see `Rooms`.
        patience: When a peer without a connection counts as lost.
    """

    def __init__(  # noqa: PLR0913 - its options, by name
        self,
        record: PeerRecord,
        link: Link,
        clock: Clock,
        handler: Handler,
        crew: Crew | None = None,
        *,
        queue_nbytes: int = QUEUE_NBYTES,
        patience: Patience | None = None,
    ) -> None:
        self._record = record
        self._link = link
        self._clock = clock
        self._handler = handler
        self._crew = crew if crew is not None else Threads(record.name)
        self.inbox = Inbox(
            record.name,
            self._pull,
            link.wake,
            self._crew,
            self._stop,
            self._flush,
        )
        self._sender = sender = Sender(record, link, self.inbox.tick)
        self.rooms = Rooms(queue_nbytes, sender, self._crew)
        self._ledger = ledger = Ledger(record.name, self.rooms, patience)
        self._contacts = contacts = Contacts(
            record, link, ledger, sender, clock, self._end_peer
        )
        self._filing = filing = Filing(
            record,
            clock,
            ledger,
            sender,
            handler,
            self.note_left,
            contacts.on_lost_to,
            self.rooms,
        )
        # Calls to peers; not methods of this class, since each costs a frame.
        calls = Outgoing(link, clock, ledger, sender, self.rooms)
        self.open_call, self.send_call = calls.open_call, calls.send_call
        self.call, self.abandon_call, self.ask = (
            calls.call,
            calls.abandon_call,
            calls.ask,
        )
        self._reader = Reader(
            link, clock, ledger, sender, filing, self.rooms, contacts.lose
        )

    @property
    def record(self) -> PeerRecord:
        """This worker, as its peers see it."""
        return self._record

    @property
    def pending_count(self) -> int:
        """How many calls wait for their answer."""
        return self._ledger.pending_count

    @property
    def counters(self) -> Counters:
        """What was not used so far."""
        return self._ledger.counters

    def look(self) -> tuple[list[PeerView], list[CallView]]:
        """Return the peers and the open calls, oldest first, for reports.

        Takes no lock, so it also works while somebody hangs with one.
        """
        return self._ledger.look()

    def start(self) -> None:
        """Start reading. Does not block.

        Raises:
            LocalProtocolError: When it was started before.
            ClosedError: When it was closed.
        """
        self._ledger.start()
        self.inbox.start()

    def add_peer(self, peer: PeerRecord) -> None:
        """Make a peer known, this worker itself included. Does not wait for it.

        Messages of a peer that is not known yet are dropped.

        Raises:
            LocalProtocolError: When the rank is taken by a living peer.
            LinkError: When the address is none, or not to be trusted.
            ClosedError: When this endpoint is closed.
        """
        with self._contacts.lock:
            self._ledger.check_new_peer(peer.rank, peer.incarnation)
            proof = self._contacts.open(peer)
            self.rooms.add_peer(peer.rank, peer.name, peer.incarnation)
            self._ledger.add_peer(peer.rank, peer.name, peer.incarnation)
            self._contacts.watch(peer, proof)
        _log.debug("%s knows %s", self._record.name, peer)

    def reply(
        self,
        call: IncomingCall,
        *,
        is_error: bool,
        body: Buffer,
        buffers: Sequence[Buffer] = (),
    ) -> bool:
        """Answer a call of a peer. Does not block; never raises because it is gone.

        With `is_error` it reaches `ReplySink.on_error`. Frames as for `send_call`.

        Returns:
            False when nobody waits any more: the peer is gone, or this endpoint closed.

        Raises:
            LocalProtocolError: When the frames cannot be sent.
        """
        if not self._ledger.accepts(call.sender_rank, call.sender_incarnation):
            return False
        kind = Kind.ERROR if is_error else Kind.RESULT
        return self._sender.send_or_log(
            call.sender_rank,
            kind,
            call.call_id,
            call.sender_incarnation,
            body,
            buffers,
            may_hold=self._crew.has_more,
            nbytes=message_nbytes(body, buffers),
        )

    def send_notice(self, rank: int, kind: Kind, body: bytes = b"") -> bool:
        """Tell a peer that we are READY, say GOODBYE, JOIN or WELCOME. Does not block.

        Returns:
            False when the peer is gone or unknown, or this endpoint closed.

        Raises:
            LocalProtocolError: When the kind is none of these.
        """
        if kind not in _SAYS:
            raise LocalProtocolError(f"{kind!r} is none of {sorted(_SAYS)!r}")
        try:
            incarnation = self._ledger.incarnation_of(rank)
        except (PeerLost, UnknownPeer):
            return False
        if kind is Kind.JOIN:
            self._link.introduce(rank)
        return self._sender.send_or_log(rank, kind, 0, incarnation, body)

    def lose_peer(self, rank: int, incarnation: int, reason: str) -> None:
        """Count a peer as lost, if that life of it is alive. Does not block."""
        self._contacts.unwatch(rank)
        self._end_peer(rank, incarnation, PeerState.LOST, reason)

    def note_left(self, rank: int, incarnation: int) -> None:
        """Take note that a peer left, if that life of it is alive. Does not block."""
        self._contacts.unwatch(rank)
        self._end_peer(rank, incarnation, PeerState.LEFT, "left")

    def close(self) -> None:
        """Fail all open calls, end the threads, close the link. Idempotent.

        Waits for the reader for at most 5 s, then for the liveness thread for 2 s and
        for the link for 4 s. A reader that calls this is not waited for.
        """
        sinks = self._ledger.close()
        self.rooms.close()
        self._fail(sinks, self._ledger.closed_error())
        self._flush()
        self.inbox.close(_JOIN_TIMEOUT_S)
        self._contacts.close()
        self._link.close()

    def _flush(self) -> None:
        if self._sender.has_held:
            self._sender.flush()

    def _pull(self, timeout_s: float | None) -> Sequence[Work]:
        return self._reader.pull(timeout_s)

    def _stop(self, error: BaseException) -> None:
        """Fail all calls because the inbox cannot be read any more."""
        sinks = self._ledger.close()
        self.rooms.close()
        _log.error("%s cannot read its inbox", self._record.name, exc_info=error)
        self._fail(sinks, ClosedError(f"{self._record.name!r} stopped: {error}"))

    def _end_peer(
        self, rank: int, incarnation: int, state: PeerState, reason: str
    ) -> bool:
        """Close the way to a peer and fail its calls; say whether it was alive."""
        with self._contacts.lock:
            if not self._ledger.accepts(rank, incarnation):
                return False
            self._link.disconnect(rank)
            name, sinks = self._ledger.end_peer(rank, state, reason)
            self.rooms.end_peer(rank)
        kind = AuthenticationError if state is PeerState.REFUSED else PeerLost
        self._fail(sinks, kind(name, reason))
        if state is not PeerState.LEFT:
            self._filing.tell(self._handler.on_peer_lost, rank, reason)
        return True

    def _fail(self, sinks: list[ReplySink], error: PeerLost | ClosedError) -> None:
        for sink in sinks:
            self._filing.tell(sink.on_lost, error)

    def __repr__(self) -> str:
        ledger = self._ledger
        return (
            f"<Endpoint {self._record.name!r} rank={self._record.rank} "
            f"{ledger.state.value} peers={ledger.alive_count} "
            f"pending={ledger.pending_count}>"
        )
