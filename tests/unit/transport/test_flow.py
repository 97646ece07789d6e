"""The queue to a peer is bounded, loses no room, and keeps its order (RPC-8)."""

from __future__ import annotations

from collections import deque

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from rpcfut_transport import RemoteProtocolError, Ticket, TicketState, message_nbytes
from rpcfut_transport._flow import (
    FlowNote,
    Inflow,
    Outflow,
    decode_note,
    encode_note,
    frames_nbytes,
)
from rpcfut_transport._wire import HEADER_NBYTES

BOUND = 100
SIZES = st.integers(1, 160)


def _nothing() -> None:
    """Nobody waits."""


def test_an_empty_queue_takes_a_message_of_any_size() -> None:
    """Else a large call could never be made."""
    flow = Outflow(BOUND)
    assert flow.reserve(1000)
    assert not flow.reserve(1)
    flow.on_ack(1000)
    assert flow.reserve(1000)


def test_b88_room_is_given_in_the_order_in_which_it_was_asked_for() -> None:
    """A large call is not starved by small ones that would fit."""
    flow = Outflow(BOUND)
    assert flow.reserve(60)
    large, small = flow.draw(90, _nothing), flow.draw(1, _nothing)
    assert not flow.reserve(1)
    assert flow.on_ack(60) == [large, small]


def test_whoever_gives_up_lets_the_next_one_pass() -> None:
    flow = Outflow(BOUND)
    assert flow.reserve(60)
    large, small = flow.draw(90, _nothing), flow.draw(1, _nothing)
    assert flow.give_back(large) == [small]
    assert (large.state, small.state) == (TicketState.ENDED, TicketState.GRANTED)
    assert flow.give_back(large) == []


def test_a_ticket_is_good_for_one_call_to_one_life_of_a_peer() -> None:
    flow, other = Outflow(BOUND), Outflow(BOUND)
    ticket = flow.draw(10, _nothing)
    assert not other.use(ticket)
    assert flow.use(ticket)
    assert not flow.use(ticket)
    assert flow.give_back(ticket) == []
    assert flow.queued_nbytes == 10


def test_b88_the_receiver_tells_now_and_then_and_when_it_is_waited_for() -> None:
    """Not for every message; but a sender with a smaller bound gets what it needs."""
    flow = Inflow(800)
    assert [flow.take(30) for _ in range(4)] == [False, False, False, True]
    assert flow.tell() == 120
    assert not flow.on_wanted(150)
    assert not flow.take(29)
    assert flow.take(1)
    assert flow.tell() == 150
    assert flow.on_wanted(150), "perhaps the last telling was lost"
    assert not flow.on_wanted(0)


def test_b88_room_of_what_was_swallowed_comes_back() -> None:
    """The next telling of the sender says how much that was; twice does no harm."""
    flow = Inflow(BOUND)
    flow.arrive(30)
    assert not flow.on_wanted(80)
    assert flow.on_sent(110)
    assert flow.tell() == 80
    assert not flow.on_sent(110)
    flow.take(30)
    assert flow.tell() == 110


@pytest.mark.parametrize("total", [0, 2**64 - 1])
def test_a_peer_that_lies_about_what_it_sent_confuses_nobody_else(total: int) -> None:
    """What is told stays a number that fits its place."""
    flow = Inflow(BOUND)
    flow.arrive(50)
    flow.take(50)
    for said in (total, 0, 2**64 - 1, total):
        flow.on_sent(said)
        encode_note(FlowNote(flow.tell(), 0, 0, 0, 0, 0))


def test_a_peer_that_lies_about_what_it_took_gets_a_bound_all_the_same() -> None:
    flow = Outflow(BOUND)
    assert flow.reserve(60)
    flow.on_ack(2**64 - 1)
    assert flow.queued_nbytes == 0
    assert flow.reserve(60)
    assert not flow.reserve(60)


def test_both_sides_count_a_message_alike() -> None:
    body, buffers = b"x" * 10, [b"y" * 70_000, memoryview(b"z" * 8).cast("d")]
    sent = message_nbytes(body, buffers)
    came: list[bytes | memoryview] = [b"h" * HEADER_NBYTES + body]
    came += [memoryview(frame).cast("B") for frame in buffers]
    assert sent == frames_nbytes(came)


def test_a_note_of_the_wrong_length_is_refused() -> None:
    note = FlowNote(1, 2, 3, 4, 5, 2**64 - 1)
    assert decode_note(encode_note(note)) == note
    for body in (b"", encode_note(note)[:-1], encode_note(note) + b"\0"):
        with pytest.raises(RemoteProtocolError, match="the body of an ACK has 48"):
            decode_note(body)


class Flows(RuleBasedStateMachine):
    """Both halves of one flow, against lists of messages.

    The way there keeps its order but may swallow what is on it; the way back may do
    anything to totals.
    """

    def __init__(self) -> None:
        super().__init__()
        self.out, self.into = Outflow(BOUND), Inflow(BOUND)
        self.tickets: deque[Ticket] = deque()  # that wait, in the order of drawing
        self.granted: list[Ticket] = []
        self.unsent: list[int] = []
        self.way: deque[int | tuple[int, int]] = deque()  # messages, and what is told
        self.arrived: list[int] = []  # and not taken
        self.sent_total = 0
        self.lost = 0  # swallowed, and not yet made good
        self.back: list[int] = []

    @property
    def outstanding(self) -> int:
        """What the sender may not forget: reserved, and not taken."""
        messages = sum(m for m in self.way if isinstance(m, int))
        granted = sum(ticket.nbytes for ticket in self.granted)
        return messages + sum(self.arrived) + sum(self.unsent) + granted + self.lost

    def note_granted(self, tickets: list[Ticket]) -> None:
        for ticket in tickets:
            assert ticket is self.tickets.popleft(), "out of order"
            assert ticket.state is TicketState.GRANTED
            assert not self.outstanding or self.outstanding + ticket.nbytes <= BOUND
            self.granted.append(ticket)

    def ask(self) -> None:
        if self.out.waiting_count:
            self.way.append((self.sent_total, self.out.wanted_total))

    @rule(nbytes=SIZES)
    def reserve(self, nbytes: int) -> None:
        outstanding = self.outstanding
        if self.out.reserve(nbytes):
            assert not self.tickets
            assert not outstanding or outstanding + nbytes <= BOUND
            self.unsent.append(nbytes)

    @rule(nbytes=SIZES)
    def draw(self, nbytes: int) -> None:
        ticket = self.out.draw(nbytes, _nothing)
        self.tickets.append(ticket)
        if ticket.state is TicketState.GRANTED:
            self.note_granted([ticket])
        elif len(self.tickets) == 1:
            self.ask()

    @precondition(lambda self: self.granted)
    @rule(data=st.data())
    def use(self, data: st.DataObject) -> None:
        ticket = data.draw(st.sampled_from(self.granted))
        self.granted.remove(ticket)
        assert self.out.use(ticket)
        self.unsent.append(ticket.nbytes)

    @precondition(lambda self: self.granted or self.tickets)
    @rule(data=st.data())
    def give_back(self, data: st.DataObject) -> None:
        ticket = data.draw(st.sampled_from([*self.granted, *self.tickets]))
        queue = self.granted if ticket in self.granted else self.tickets
        queue.remove(ticket)
        self.note_granted(self.out.give_back(ticket))
        self.ask()

    @precondition(lambda self: self.unsent)
    @rule(data=st.data(), is_sent=st.booleans())
    def send_or_release(self, data: st.DataObject, *, is_sent: bool) -> None:
        nbytes = data.draw(st.sampled_from(self.unsent))
        self.unsent.remove(nbytes)
        if is_sent:
            self.way.append(nbytes)
            self.sent_total += nbytes
        else:
            self.note_granted(self.out.release(nbytes))
            self.ask()

    @rule(count=st.integers(1, 3))
    def arrive(self, count: int) -> None:
        for _ in range(min(count, len(self.way))):
            item = self.way.popleft()
            if isinstance(item, int):
                self.into.arrive(item)
                self.arrived.append(item)
                continue
            total, wanted = item
            must_tell = self.into.on_sent(total)
            self.lost = 0
            if self.into.on_wanted(wanted) or must_tell:
                self.back.append(self.into.tell())

    @rule(data=st.data())
    def swallow(self, data: st.DataObject) -> None:
        kept = data.draw(st.lists(st.booleans(), min_size=len(self.way)))
        for item, is_kept in zip(tuple(self.way), kept, strict=False):
            if not is_kept:
                self.way.remove(item)
                self.lost += item if isinstance(item, int) else 0
        self.ask()  # as the reader does again, now and then

    @precondition(lambda self: self.arrived)
    @rule(data=st.data())
    def take(self, data: st.DataObject) -> None:
        nbytes = data.draw(st.sampled_from(self.arrived))
        self.arrived.remove(nbytes)
        if self.into.take(nbytes):
            self.back.append(self.into.tell())

    @precondition(lambda self: self.back)
    @rule(data=st.data(), is_kept=st.booleans())
    def hear(self, data: st.DataObject, *, is_kept: bool) -> None:
        """In any order, and any number of times."""
        total = data.draw(st.sampled_from(self.back))
        if not is_kept:
            self.back.remove(total)
        before = self.out.acked
        self.note_granted(self.out.on_ack(total))
        if self.out.acked > before:
            self.ask()

    @precondition(lambda self: self.back)
    @rule()
    def lose_and_ask_again(self) -> None:
        self.back.clear()
        self.ask()

    @rule()
    def settle(self) -> None:
        """All arrives and is taken; the sender asks again, and then has all its room.

        So no room is ever lost, whatever was swallowed before.
        """
        while self.granted:
            self.unsent.append(self.granted[-1].nbytes)
            assert self.out.use(self.granted.pop())
        for nbytes in self.unsent:
            self.way.append(nbytes)
            self.sent_total += nbytes
        self.unsent.clear()
        self.way.append((self.sent_total, self.out.wanted_total))
        self.arrive(len(self.way))
        for nbytes in self.arrived:
            self.into.take(nbytes)
        self.arrived.clear()
        was_waiting = len(self.tickets)
        self.note_granted(self.out.on_ack(self.into.tell()))
        assert len(self.tickets) < was_waiting or not was_waiting
        if not self.granted:
            assert self.out.queued_nbytes == 0

    @invariant()
    def never_forgets_what_is_on_its_way(self) -> None:
        assert self.out.queued_nbytes >= self.outstanding - self.lost
        assert self.out.waiting_count == len(self.tickets)

    @invariant()
    def whoever_waits_is_heard(self) -> None:
        """Once the peer has what is wanted, it tells, unless that is on its way."""
        if not self.tickets or self.way or self.lost or self.back:
            return
        assert self.into.taken < self.out.wanted_total

    def teardown(self) -> None:
        ended = self.out.end()
        assert ended == list(self.tickets)
        assert all(ticket.state is TicketState.ENDED for ticket in ended)


TestFlows = Flows.TestCase
