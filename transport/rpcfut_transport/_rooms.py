"""Room for messages on their way to each peer, and who waits for it (RPC-8).

Theory of operation: `_flow` decides, this class makes its decisions atomic and sends
what one side tells the other. Room for a call is reserved in the step that opens it, so
the ledger holds the same lock; nothing here sends or wakes with it held.

Answers have no room to wait for, since nobody could: a call whose caller does not read
its answers is *parked* before it starts, and goes on once the caller has read.

Whoever waits or is parked has asked the peer to tell. Both ways may be cut for a while,
so the reader repeats that now and then (`repeat_asking`).
"""

from __future__ import annotations

import threading
from collections import deque
from enum import Enum
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

from rpcfut_transport._errors import QueueFull
from rpcfut_transport._flow import (
    FlowNote,
    Inflow,
    Outflow,
    Ticket,
    TicketState,
    decode_note,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    from rpcfut_transport._calls import IncomingCall, Work
    from rpcfut_transport._crew import Crew
    from rpcfut_transport._sender import Outbox, Sender

_DEEP = 16  # calls; a peer with more does not wait for the next one
QUEUE_NBYTES = 256 * 2**20


class Admission(Enum):
    """What is to become of a call that could start."""

    STARTS = "starts"
    WAITS = "waits"  # until its caller reads answers: park it
    ENDS = "ends"  # its caller is gone


_STARTS = Admission.STARTS  # a look-up less for each call


class QueueView(NamedTuple):
    """What is on its way between this worker and a peer, for reports.

    Args:
        calls_nbytes: Calls to it that it has not started.
        answers_nbytes: Answers to it that it has not read.
        waiting: How many threads wait for room to call it.
        parked: How many of its calls wait until it reads its answers.
    """

    calls_nbytes: int
    answers_nbytes: int
    waiting: int
    parked: int


class _Peer:
    """Both directions of one peer in one life."""

    __slots__ = (
        "acked_answers",
        "answered",
        "answers_in",
        "bound",
        "called",
        "calls_in",
        "calls_out",
        "in_lock",
        "incarnation",
        "is_ended",
        "name",
        "outbox",
        "parked",
        "rank",
    )

    def __init__(
        self, rank: int, name: str, incarnation: int, bound: int, outbox: Outbox
    ) -> None:
        self.rank = rank
        self.name = name
        self.incarnation = incarnation
        self.bound = bound
        self.outbox = outbox
        self.is_ended = False
        self.calls_out = Outflow(bound)
        self.acked_answers = 0  # the reader writes it
        self.called = 0  # calls that took room
        self.answered = 0  # answers that came; the reader writes it
        self.in_lock = threading.Lock()
        self.calls_in = Inflow(bound)
        self.answers_in = Inflow(bound)
        self.parked: deque[Work] = deque()

    @property
    def answers_nbytes(self) -> int:
        """Answers that the peer has not read."""
        return self.outbox.sent_answers - self.acked_answers

    @property
    def is_over(self) -> bool:
        """Whether these are too many for another call of it to start."""
        return self.answers_nbytes > self.bound and not self.is_ended


class Rooms:
    """The queues of one worker to and from all its peers. Any thread; does not block.

    Args:
        bound: How many bytes may be on their way to a peer, of calls and of answers
            each; a single message may be larger.
        sender: Sends what a peer is told.
        crew: Runs calls that were parked.
    """

    def __init__(self, bound: int, sender: Sender, crew: Crew) -> None:
        self.bound = bound
        self.lock = threading.Lock()
        self._sender = sender
        self._crew = crew
        self._peers: dict[int, _Peer] = {}
        self._staged: dict[int, tuple[int, int]] = {}

    def __repr__(self) -> str:
        views = self.look().values()
        return (
            f"<Rooms of {self.bound} bytes: {sum(v.waiting for v in views)} wait, "
            f"{sum(v.parked for v in views)} parked>"
        )

    def add_peer(self, rank: int, name: str, incarnation: int) -> None:
        """Make a peer known, or another life of it."""
        outbox = self._sender.begin_life(rank)
        with self.lock:
            self._peers[rank] = _Peer(rank, name, incarnation, self.bound, outbox)

    def end_peer(self, rank: int) -> None:
        """Take note that a peer is gone: nobody waits for it any more."""
        with self.lock:
            peer = self._peers.pop(rank, None)
            ended = [] if peer is None else peer.calls_out.end()
        _wake(ended)
        if peer is not None:
            peer.is_ended = True
            if peer.parked:
                self._crew.submit(partial(self._resume, peer))

    def close(self) -> None:
        """End all waits; what is parked is dropped."""
        with self.lock:
            peers, self._peers = self._peers, {}
            ended = [t for peer in peers.values() for t in peer.calls_out.end()]
        _wake(ended)

    def look(self) -> dict[int, QueueView]:
        """What is queued, by rank. Takes no lock."""
        return {
            rank: QueueView(
                peer.calls_out.queued_nbytes,
                peer.answers_nbytes,
                peer.calls_out.waiting_count,
                len(peer.parked),
            )
            for rank, peer in self._peers.copy().items()
        }

    def queued_nbytes(self) -> dict[int, int]:
        """How much is on its way to each peer, by rank. Takes no lock."""
        views = self.look().items()
        return {rank: view.calls_nbytes + view.answers_nbytes for rank, view in views}

    # ---- calls out ------------------------------------------------------------------

    def reserve_locked(self, rank: int, nbytes: int, ticket: Ticket | None) -> bool:
        """Take room for a call to a living peer, that of a ticket if it has one.

        Returns:
            Whether the peer has many calls of ours to answer already.

        Raises:
            QueueFull: When there is none.
        """
        peer = self._peers[rank]
        flow = peer.calls_out
        if (ticket is None or not flow.use(ticket)) and not flow.reserve(nbytes):
            raise self.no_room(rank, nbytes)
        peer.called += 1
        return peer.called - peer.answered > _DEEP

    def no_room(self, rank: int, nbytes: int) -> QueueFull:
        """The error that says how much is on its way to a peer."""
        peer = self._peers.get(rank)
        if peer is None:  # gone, by now
            return QueueFull(f"of rank {rank}", 0, self.bound, nbytes)
        queued_nbytes = peer.calls_out.queued_nbytes
        return QueueFull(peer.name, queued_nbytes, self.bound, nbytes)

    def draw(self, rank: int, nbytes: int, wake: Callable[[], None]) -> Ticket:
        """Queue for room to call a peer.

        Args:
            rank: The peer; if it is gone, the ticket is ended.
            nbytes: How much the call takes.
            wake: Called once there is nothing more to wait for, perhaps before this
                returns, never with a lock held; must not block.
        """
        with self.lock:
            peer = self._peers.get(rank)
            if peer is None:
                ticket = Ticket(Outflow(0), nbytes, wake)
                ticket.state = TicketState.ENDED
                return ticket
            ticket = peer.calls_out.draw(nbytes, wake)
            is_first = peer.calls_out.waiting_count == 1
        if ticket.state is not TicketState.WAITS:
            wake()
        elif is_first:
            self._tell(peer)
        return ticket

    def give_back(self, rank: int, ticket: Ticket) -> None:
        """Undo a ticket that was not used; nothing happens if it was."""
        with self.lock:
            granted = ticket.flow.give_back(ticket)
        self._after_change(rank, granted)

    def release(self, rank: int, nbytes: int) -> None:
        """Give back the room of a call that was not sent."""
        with self.lock:
            peer = self._peers.get(rank)
            granted = []
            if peer is not None:
                peer.called -= 1
                granted = peer.calls_out.release(nbytes)
        self._after_change(rank, granted)

    def stage(self, call_id: int, rank: int, nbytes: int) -> None:
        """Keep the room of a call that is sent later; until `unstage`."""
        self._staged[call_id] = rank, nbytes

    def unstage(self, call_id: int, *, is_sent: bool) -> None:
        """Take note that a call was sent, or never will be. Nothing happens twice."""
        staged = self._staged.pop(call_id, None)
        if staged is not None and not is_sent:
            self.release(*staged)

    def _after_change(self, rank: int, granted: list[Ticket]) -> None:
        _wake(granted)
        peer = self._peers.get(rank)
        if peer is not None and peer.calls_out.waiting_count:
            self._tell(peer)  # it may wait for less now

    # ---- messages that came ---------------------------------------------------------

    def on_call(self, rank: int, nbytes: int) -> None:
        """Take note of a call that came. The reader."""
        peer = self._peers.get(rank)
        if peer is not None:
            peer.calls_in.arrive(nbytes)

    def on_answer(self, rank: int, incarnation: int, nbytes: int) -> None:
        """Take note of an answer that came and was filed. The reader."""
        peer = self._peers.get(rank)
        if peer is None or peer.incarnation != incarnation:
            return
        peer.answered += 1
        if peer.answers_in.pass_on(nbytes):
            self._tell(peer)

    def on_note(self, rank: int, body: memoryview) -> Work | None:
        """Take what a living peer tells; the reader. Returns work for parked calls.

        Raises:
            RemoteProtocolError: When it makes no sense.
        """
        note = decode_note(body)
        peer = self._peers.get(rank)
        if peer is None:
            return None
        with self.lock:
            flow, acked = peer.calls_out, peer.calls_out.acked
            granted = flow.on_ack(note.taken_calls)
            # Only after news, or two that wait for each other would never stop asking.
            tells = flow.acked > acked and flow.waiting_count > 0
        _wake(granted)
        with peer.in_lock:
            tells |= peer.calls_in.on_sent(note.sent_calls)
            tells |= peer.answers_in.on_sent(note.sent_answers)
            tells |= peer.calls_in.on_wanted(note.wanted_calls)
            tells |= peer.answers_in.on_wanted(note.wanted_answers)
        is_news = note.taken_answers > peer.acked_answers
        if is_news:
            peer.acked_answers = min(note.taken_answers, peer.outbox.sent_answers)
        goes_on = is_news and bool(peer.parked)
        is_over = peer.is_over
        if tells or (goes_on and is_over):
            self._tell(peer)
        return partial(self._resume, peer) if goes_on and not is_over else None

    # ---- calls in -------------------------------------------------------------------

    def start(self, call: IncomingCall, *, is_cancelled: bool) -> Admission:
        """Take note that a call starts now, or ends unstarted; or say that it may not.

        Args:
            call: The call.
            is_cancelled: Whether it only ends: that needs no room.
        """
        peer = self._peers.get(call.sender_rank)
        if peer is None or peer.incarnation != call.sender_incarnation:
            return Admission.ENDS
        queued_nbytes = peer.outbox.sent_answers - peer.acked_answers
        if queued_nbytes > self.bound and not is_cancelled and peer.is_over:
            return Admission.WAITS
        with peer.in_lock:
            tells = peer.calls_in.take(call.nbytes)
        if tells:
            self._tell(peer)
        return _STARTS

    def park(self, call: IncomingCall, work: Work) -> None:
        """Have work done once the caller of a call has read its answers, or is gone."""
        peer = self._peers.get(call.sender_rank)
        if peer is None or peer.incarnation != call.sender_incarnation:
            self._crew.submit(work)
            return
        peer.parked.append(work)
        if not peer.is_over:
            self._crew.submit(partial(self._resume, peer))  # perhaps nobody saw it
        elif len(peer.parked) == 1:
            self._tell(peer)

    def _resume(self, peer: _Peer) -> None:
        """Do one parked work, and have the next one done by another thread. Crew."""
        if peer.is_over:
            return
        try:
            work = peer.parked.popleft()
        except IndexError:
            return
        if peer.parked:
            self._crew.submit(partial(self._resume, peer))
        work()

    # ---- what peers are told --------------------------------------------------------

    def repeat_asking(self) -> None:
        """Ask those again for whom somebody waits: the first time may be lost."""
        for peer in list(self._peers.values()):
            if peer.calls_out.waiting_count or peer.parked:
                self._tell(peer)

    def _tell(self, peer: _Peer) -> None:
        """Tell a peer what was taken of its messages, and what is waited for."""
        with self.lock:
            wanted_calls = peer.calls_out.wanted_total
        wanted_answers = 0
        if peer.parked and peer.is_over:
            wanted_answers = peer.outbox.sent_answers - self.bound
        with peer.in_lock:
            taken = peer.calls_in.tell(), peer.answers_in.tell()
        note = FlowNote(*taken, 0, 0, wanted_calls, wanted_answers)
        self._sender.send_note(peer.rank, peer.incarnation, note)


def _wake(tickets: list[Ticket]) -> None:
    for ticket in tickets:
        ticket.wake()
