"""How much is on its way to a peer, and when there is room for more (RPC-8).

Theory of operation: pure state machines; no thread, lock, clock or socket. Calls and
answers are counted apart, in bytes that only ever add up::

    sender    Outflow   reserved ----------------------> acked
    receiver  Inflow               arrived ---> taken ---> told

A call is *taken* when its function starts, an answer when it is filed; from then on it
is not the queue's. The receiver tells its total now and then, and at once when it
reaches what the sender says that it waits for. Totals that come twice, late or in the
wrong order do no harm: the highest counts.

A connection that breaks may swallow messages. So each telling also carries how much its
sender has sent before it; what did not arrive by then never will (links keep the order)
and counts as taken.

Who finds no room gets a *ticket*. Tickets are granted in the order in which they were
drawn, so nobody starves behind small calls; what is granted is reserved.
"""

from __future__ import annotations

import struct
from collections import deque
from enum import Enum
from typing import TYPE_CHECKING, NamedTuple

from rpcfut_transport._errors import RemoteProtocolError
from rpcfut_transport._wire import HEADER_NBYTES

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from rpcfut_transport._buffers import Buffer

FRAME_NBYTES = 128  # what a queued frame takes beside its bytes, about
_FIRST_NBYTES = HEADER_NBYTES + FRAME_NBYTES
_MAX_STEP_NBYTES = 1 << 20
_MAX_TOTAL = 2**64 - 1
_NOTE = struct.Struct("<6Q")


def message_nbytes(body: Buffer, buffers: Sequence[Buffer] = ()) -> int:
    """How much room a message takes: its frames, and what each takes beside."""
    nbytes = len(body) + _FIRST_NBYTES
    if buffers:
        nbytes += sum(memoryview(frame).nbytes + FRAME_NBYTES for frame in buffers)
    return nbytes


def frames_nbytes(frames: Sequence[Buffer]) -> int:
    """The same of a message that came, header included."""
    nbytes = len(frames[0]) + FRAME_NBYTES
    if len(frames) > 1:
        nbytes += sum(len(frame) + FRAME_NBYTES for frame in frames[1:])
    return nbytes


class TicketState(Enum):
    """What became of a ticket."""

    WAITS = "waits"
    GRANTED = "granted"
    ENDED = "ended"  # it was used or given back, or the peer is gone


class Ticket:
    """A place in the queue for room. Made by `Outflow.draw`.

    Args:
        flow: What it is for room in.
        nbytes: How much room.
        wake: Called by the driver, without locks, once it is granted or ended.
    """

    __slots__ = ("flow", "nbytes", "state", "wake")

    def __init__(self, flow: Outflow, nbytes: int, wake: Callable[[], None]) -> None:
        self.flow = flow
        self.nbytes = nbytes
        self.wake = wake
        self.state = TicketState.WAITS

    def __repr__(self) -> str:
        return f"<Ticket for {self.nbytes} bytes: {self.state.value}>"


class Outflow:
    """What one worker has on its way to a peer. Its driver holds a lock.

    Args:
        bound: How many bytes may be on their way; a single message may be larger.
    """

    __slots__ = ("_waiting", "acked", "bound", "reserved")

    def __init__(self, bound: int) -> None:
        self.bound = bound
        self.reserved = 0
        self.acked = 0
        self._waiting: deque[Ticket] = deque()

    def __repr__(self) -> str:
        return (
            f"<Outflow {self.queued_nbytes} of {self.bound} bytes, "
            f"{len(self._waiting)} wait>"
        )

    @property
    def queued_nbytes(self) -> int:
        """How much is on its way."""
        return self.reserved - self.acked

    @property
    def waiting_count(self) -> int:
        """How many tickets wait."""
        return len(self._waiting)

    def reserve(self, nbytes: int) -> bool:
        """Take room, if there is some and nobody waits for it."""
        reserved = self.reserved + nbytes
        if self._waiting or (
            reserved - self.acked > self.bound and self.reserved > self.acked
        ):
            return False
        self.reserved = reserved
        return True

    def release(self, nbytes: int) -> list[Ticket]:
        """Give back room of what was not sent; returns the tickets that it grants."""
        self.reserved -= nbytes
        self.acked = min(self.acked, self.reserved)
        return self._grant()

    def draw(self, nbytes: int, wake: Callable[[], None]) -> Ticket:
        """Queue for room; the ticket may be granted already."""
        ticket = Ticket(self, nbytes, wake)
        self._waiting.append(ticket)
        self._grant()
        return ticket

    def use(self, ticket: Ticket) -> bool:
        """Turn a ticket into room that is taken; False when it is not granted."""
        if ticket.flow is not self or ticket.state is not TicketState.GRANTED:
            return False
        ticket.state = TicketState.ENDED
        return True

    def give_back(self, ticket: Ticket) -> list[Ticket]:
        """Undo a ticket, unless it is ended; returns the others that this grants."""
        state, ticket.state = ticket.state, TicketState.ENDED
        if state is TicketState.GRANTED:
            return self.release(ticket.nbytes)
        if state is TicketState.WAITS:
            self._waiting.remove(ticket)
            return self._grant()
        return []

    def on_ack(self, total: int) -> list[Ticket]:
        """Take note of what the receiver has taken; returns the tickets granted."""
        if total <= self.acked:
            return []
        self.acked = min(total, self.reserved)
        return self._grant()

    def end(self) -> list[Ticket]:
        """End all tickets that wait: the peer is gone. Returns them."""
        ended = list(self._waiting)
        self._waiting.clear()
        for ticket in ended:
            ticket.state = TicketState.ENDED
        return ended

    @property
    def wanted_total(self) -> int:
        """What the receiver must have taken before anything changes; 0 if nobody waits.

        That is when the first ticket fits, or nothing is on its way.
        """
        if not self._waiting:
            return 0
        lacking = self.reserved + self._waiting[0].nbytes - self.bound
        return min(self.reserved, lacking)

    def _grant(self) -> list[Ticket]:
        granted: list[Ticket] = []
        while self._waiting:
            nbytes, used = self._waiting[0].nbytes, self.queued_nbytes
            if used and used + nbytes > self.bound:
                break
            ticket = self._waiting.popleft()
            ticket.state = TicketState.GRANTED
            self.reserved += nbytes
            granted.append(ticket)
        return granted


class Inflow:
    """What one worker got from a peer. Its driver holds a lock, but see `arrive`.

    Args:
        bound: The bound here; the peer may have another.
    """

    __slots__ = ("_due_at", "_step", "_wanted", "arrived", "taken", "told")

    def __init__(self, bound: int) -> None:
        self._step = max(1, min(bound // 8, _MAX_STEP_NBYTES))
        self._due_at = self._step
        self._wanted = 0
        self.arrived = 0
        self.taken = 0
        self.told = 0

    def __repr__(self) -> str:
        return f"<Inflow {self.arrived - self.taken} bytes not taken, {self.told} told>"

    def arrive(self, nbytes: int) -> None:
        """Take note of a message that came. The reader; needs no lock."""
        self.arrived += nbytes

    def pass_on(self, nbytes: int) -> bool:
        """As `arrive` and `take`, in one. The reader; no lock, if only it takes."""
        self.arrived += nbytes
        self.taken += nbytes
        return self.taken >= self._due_at

    def take(self, nbytes: int) -> bool:
        """Take note that a message is the queue's no more; whether to tell the peer."""
        self.taken += nbytes
        return self.taken >= self._due_at

    def on_sent(self, total: int) -> bool:
        """Take note of what the peer had sent; whether to tell it.

        What did not arrive by then was swallowed; what came twice counted twice.
        """
        swallowed = total - self.arrived
        self.arrived = total
        return bool(swallowed) and self.take(swallowed)

    def on_wanted(self, total: int) -> bool:
        """Take note of what total the peer waits for; whether to tell it now.

        Again, even if it was told before: that telling may be lost.
        """
        self._wanted = total
        if not total:
            return False
        if self.taken >= total:
            return True
        self._due_at = min(self._due_at, total)
        return False

    def tell(self) -> int:
        """Return what to tell the peer."""
        self.told = min(max(self.taken, 0), _MAX_TOTAL)  # peers say what they like
        self._due_at = self.told + self._step
        if self._wanted > self.told:
            self._due_at = min(self._due_at, self._wanted)
        return self.told


class FlowNote(NamedTuple):
    """What the two sides of a way tell each other: the body of an ACK.

    Args:
        taken_calls: Total of the receiver's calls that were taken.
        taken_answers: The same of its answers.
        sent_calls: Total of calls that this sender had sent before.
        sent_answers: The same of answers.
        wanted_calls: The total that this sender waits for; 0 for none.
        wanted_answers: The same of answers.
    """

    taken_calls: int
    taken_answers: int
    sent_calls: int
    sent_answers: int
    wanted_calls: int
    wanted_answers: int


def encode_note(note: FlowNote) -> bytes:
    """Write the body of an ACK."""
    return _NOTE.pack(*note)


def decode_note(body: Buffer) -> FlowNote:
    """Read the body of an ACK.

    Raises:
        RemoteProtocolError: When it has another length.
    """
    if len(body) != _NOTE.size:
        raise RemoteProtocolError(
            f"the body of an ACK has {_NOTE.size} bytes, got {len(body)}"
        )
    return FlowNote(*_NOTE.unpack(body))
