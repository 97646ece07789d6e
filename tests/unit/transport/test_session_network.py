"""Workers on a network that loses, doubles, delays, reorders and cuts (RPC-2, RPC-5).

Three endpoints with their sessions, without threads, are driven step by step. A naive
model of each says what every single message must do.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    Bundle,
    RuleBasedStateMachine,
    invariant,
    multiple,
    precondition,
    rule,
)

from rpcfut_transport import (
    Kind,
    ManualClock,
    MemoryNetwork,
    PeerLost,
    RemoteProtocolError,
    UnknownPeer,
)
from rpcfut_transport._wire import decode_message, split_batch
from tests.support.links import RecordingSink
from tests.support.lockstep import HeldMessages, Life

if TYPE_CHECKING:
    from rpcfut_transport import IncomingCall

RANKS = st.integers(0, 2)
TOKEN_NBYTES = 8


@dataclass
class Call:
    """A call as the model sees it."""

    token: bytes
    rank: int
    incarnation: int
    deadline_s: float | None
    sink: RecordingSink
    call_id: int = 0
    is_sent: bool = False
    end: tuple[str, Any] | None = None


@dataclass
class Model:
    """What one life of a worker must do, by the book, and slowly."""

    life: Life
    peers: dict[int, tuple[int, bool]] = field(default_factory=dict)  # alive?
    calls: dict[int, Call] = field(default_factory=dict)
    unconfirmed: set[int] = field(default_factory=set)
    served: Counter[tuple[int, int, int]] = field(default_factory=Counter)
    newest: dict[int, int] = field(default_factory=dict)
    is_closed: bool = False
    late: int = 0
    dropped: int = 0
    malformed: int = 0

    def knows(self, rank: int, incarnation: int) -> bool:
        return self.peers.get(rank) == (incarnation, True)

    def open(self) -> list[Call]:
        return [call for call in self.calls.values() if call.end is None]

    def end(self, call: Call, how: str, what: Any = None, *, early: bool) -> None:
        assert call.end is None
        call.end = (how, what)
        if early and call.is_sent:
            self.unconfirmed.add(call.call_id)

    def pass_time(self, now_s: float) -> None:
        for call in self.open():
            if call.deadline_s is not None and call.deadline_s <= now_s:
                self.end(call, "timeout", early=True)

    def lose(self, rank: int) -> None:
        incarnation, _ = self.peers[rank]
        self.peers[rank] = (incarnation, False)
        for call in self.open():
            if call.rank == rank:
                self.end(call, "lost", early=False)
        self.unconfirmed = {i for i in self.unconfirmed if self.calls[i].rank != rank}

    def take(self, frames: list[Any]) -> None:
        """File a message that arrived."""
        try:
            header, body = decode_message(frames)
            if header.kind is Kind.BATCH:
                for message in split_batch(body):
                    self.take([message])
                return
        except RemoteProtocolError:
            self.malformed += 1
            return
        sender = (header.sender_rank, header.sender_incarnation)
        if header.target_incarnation != self.life.record.incarnation:
            self.dropped += 1
        elif header.kind in {Kind.RESULT, Kind.ERROR}:
            self.take_answer(header, sender, bytes(body))
        elif not self.knows(*sender):
            self.dropped += 1
        else:
            self.take_from_peer(header, sender)

    def take_from_peer(self, header: Any, sender: tuple[int, int]) -> None:
        if header.kind is Kind.ASK:
            self.is_new(header)  # answered in any case
        elif header.kind is Kind.CALL:
            if self.is_new(header):
                self.served[(header.call_id, *sender)] += 1
            else:
                self.dropped += 1
        elif header.kind is Kind.TELL:
            call = self.calls.get(header.call_id)
            is_open = call is not None and call.end is None
            if not is_open or (call.rank, call.incarnation) != sender:
                self.dropped += 1
        elif header.kind is Kind.GOODBYE:
            self.lose(header.sender_rank)

    def is_new(self, header: Any) -> bool:
        """Whether it was sent after all that came from its sender before."""
        if header.number <= self.newest.get(header.sender_rank, 0):
            return False
        self.newest[header.sender_rank] = header.number
        return True

    def take_answer(self, header: Any, sender: tuple[int, int], body: bytes) -> None:
        call = self.calls.get(header.call_id)
        if call is None:
            self.dropped += 1
        elif call.end is not None:
            self.late += 1
            if (call.rank, call.incarnation) == sender:
                self.unconfirmed.discard(call.call_id)
        elif (call.rank, call.incarnation) != sender:
            self.dropped += 1
        else:
            how = "result" if header.kind is Kind.RESULT else "error"
            self.end(call, how, (body, []), early=False)


class Network(RuleBasedStateMachine):
    """Whatever the network does, each call ends once, and is served once at most."""

    calls = Bundle("calls")

    def __init__(self) -> None:
        super().__init__()
        self.held = HeldMessages()
        self.network = MemoryNetwork(self.held)
        self.clock = ManualClock(100.0)
        self.tokens = 0
        self.lives = 0
        self.now: dict[int, Model] = {}
        self.all: list[Model] = []
        self.executed: Counter[bytes] = Counter()
        self.serving: list[tuple[Model, IncomingCall]] = []
        for rank in range(3):
            self.begin(rank)
        for rank in range(3):
            self.meet(rank)

    def begin(self, rank: int) -> None:
        self.lives += 1
        model = Model(Life(self.network, self.clock, rank, self.lives))
        self.now[rank] = model
        self.all.append(model)

    def meet(self, rank: int) -> None:
        """Have a worker know all that live now and that it has not met."""
        model = self.now[rank]
        for other, another in self.now.items():
            record = another.life.record
            if not model.peers.get(other, (0, False))[1] and (
                model.peers.get(other, (0, False))[0] != record.incarnation
            ):
                model.life.meet(record)
                model.peers[other] = (record.incarnation, True)
                model.newest.pop(other, None)

    def teardown(self) -> None:
        try:
            self.settle()
        finally:
            for model in self.all:
                model.life.endpoint.close()

    # ---- what workers do ------------------------------------------------------------

    @rule(
        target=calls,
        caller=RANKS,
        callee=RANKS,
        timeout_s=st.none() | st.integers(0, 5),
        at_once=st.booleans(),
    )
    def call(
        self, caller: int, callee: int, timeout_s: int | None, *, at_once: bool
    ) -> Any:
        model = self.now[caller]
        self.tokens += 1
        token = b"%0*d" % (TOKEN_NBYTES, self.tokens)
        incarnation, is_alive = model.peers.get(callee, (0, False))
        deadline_s = None if timeout_s is None else self.clock.now_s() + timeout_s
        sink = RecordingSink()
        call = Call(token, callee, incarnation, deadline_s, sink)
        endpoint = model.life.endpoint
        try:
            if at_once:
                call.call_id = endpoint.call(callee, timeout_s, sink, token)
                call.is_sent = True
            else:
                call.call_id = endpoint.open_call(callee, timeout_s, sink)
        except (PeerLost, UnknownPeer):
            assert not is_alive
            return multiple()
        assert is_alive
        assert call.call_id not in model.calls
        model.calls[call.call_id] = call
        return (model, call)

    @rule(target=calls, caller=RANKS, callee=RANKS, count=st.integers(17, 20))
    def call_often(self, caller: int, callee: int, count: int) -> Any:
        """So many calls at once that small messages share frames."""
        made = [self.call(caller, callee, None, at_once=True) for _ in range(count)]
        return multiple(*(one for one in made if isinstance(one, tuple)))

    @rule(found=calls)
    def send(self, found: tuple[Model, Call]) -> None:
        model, call = found
        if model.is_closed or call.is_sent:
            return
        is_open = call.end is None
        assert model.life.endpoint.send_call(call.call_id, call.token) == is_open
        call.is_sent = is_open

    @rule(found=calls)
    def give_up(self, found: tuple[Model, Call]) -> None:
        model, call = found
        is_open = call.end is None
        assert model.life.endpoint.abandon_call(call.call_id) == is_open
        if is_open:
            model.end(call, "given up", early=True)

    @rule(found=calls)
    def ask(self, found: tuple[Model, Call]) -> None:
        model, call = found
        is_asked = call.end is None and call.is_sent
        assert model.life.endpoint.ask(call.call_id) == is_asked

    @precondition(lambda self: self.serving)
    @rule(place=st.integers(0, 8), is_error=st.booleans())
    def answer(self, place: int, *, is_error: bool) -> None:
        model, call = self.serving.pop(place % len(self.serving))
        # What was cut on its way is answered as well, with what nobody mistakes.
        body = b"answer to " + bytes(call.body)
        is_sent = model.life.endpoint.reply(call, is_error=is_error, body=body)
        is_known = model.knows(call.sender_rank, call.sender_incarnation)
        assert is_sent == (is_known and not model.is_closed)

    @rule(seconds=st.integers(0, 3))
    def let_time_pass(self, seconds: int) -> None:
        self.clock.advance(seconds)
        for model in self.now.values():
            model.pass_time(self.clock.now_s())
            model.life.read()

    @rule(rank=RANKS, other=RANKS)
    def lose(self, rank: int, other: int) -> None:
        model = self.now[rank]
        incarnation, is_alive = model.peers.get(other, (0, False))
        model.life.lose(other, incarnation, "it ended")
        if is_alive:
            model.lose(other)

    @rule(rank=RANKS, says_goodbye=st.booleans())
    def restart(self, rank: int, *, says_goodbye: bool) -> None:
        model = self.now[rank]
        if says_goodbye:
            for other in range(3):
                model.life.endpoint.send_notice(other, Kind.GOODBYE)
        model.life.endpoint.close()
        for call in model.open():
            model.end(call, "lost", early=False)
        model.unconfirmed.clear()
        model.is_closed = True
        self.begin(rank)
        self.meet(rank)

    @rule(rank=RANKS)
    def flush(self, rank: int) -> None:
        self.now[rank].life.flush()

    @rule(rank=RANKS)
    def meet_those_who_came(self, rank: int) -> None:
        self.meet(rank)

    # ---- what the network does ------------------------------------------------------

    def waiting(self) -> list[tuple[str, str]]:
        return self.held.waiting()

    def take_out(self, way: int, place: int) -> tuple[list[Any], Any]:
        ways = self.waiting()
        messages = self.held.ways[ways[way % len(ways)]]
        return messages.pop(place % len(messages))

    def arrive(self, message: list[Any], deliver: Any) -> None:
        deliver(list(message))
        for model in self.now.values():
            if model.life.link._inbox.qsize():
                model.pass_time(self.clock.now_s())
                model.take(message)
                model.life.read()
                self.take_served(model)

    def take_served(self, model: Model) -> None:
        queue = model.life.handler.calls
        while queue.qsize():
            call = queue.get()
            self.executed[call.call_id, call.sender_incarnation] += 1
            self.serving.append((model, call))

    @precondition(waiting)
    @rule(way=st.integers(0, 8))
    def deliver(self, way: int) -> None:
        self.arrive(*self.take_out(way, 0))

    @precondition(waiting)
    @rule(way=st.integers(0, 8), place=st.integers(0, 8))
    def deliver_out_of_order(self, way: int, place: int) -> None:
        self.arrive(*self.take_out(way, place))

    @precondition(waiting)
    @rule(way=st.integers(0, 8), is_late=st.booleans())
    def double(self, way: int, *, is_late: bool) -> None:
        message, deliver = self.take_out(way, 0)
        self.arrive(message, deliver)
        if is_late:
            self.held.ways.setdefault(("again", ""), []).append((message, deliver))
        else:
            self.arrive(message, deliver)

    @precondition(waiting)
    @rule(way=st.integers(0, 8), place=st.integers(0, 8))
    def drop(self, way: int, place: int) -> None:
        self.take_out(way, place)

    @precondition(waiting)
    @rule(way=st.integers(0, 8), left=st.integers(0, 80))
    def truncate(self, way: int, left: int) -> None:
        (first, *_), deliver = self.take_out(way, 0)
        self.arrive([first[: min(left, len(first) - 1)]], deliver)

    # ---- what must hold -------------------------------------------------------------

    @invariant()
    def each_call_ends_once_as_the_model_says(self) -> None:
        for model in self.all:
            for call in model.calls.values():
                if call.end is None or call.end[0] == "given up":
                    assert call.sink.ends == []
                    continue
                ((how, what),) = call.sink.ends
                assert how == call.end[0]
                if how in {"result", "error"}:
                    assert what == call.end[1]
                    # Its own answer, or one that was cut.
                    assert (b"answer to " + call.token).startswith(what[0])

    @invariant()
    def nothing_is_executed_twice(self) -> None:
        assert set(self.executed.values()) <= {1}

    @invariant()
    def counters_add_up(self) -> None:
        for model in self.all:
            endpoint, counters = model.life.endpoint, model.life.endpoint.counters
            assert endpoint.pending_count == len(model.open())
            assert counters.unconfirmed == len(model.unconfirmed)
            assert counters.late_replies == model.late
            assert counters.dropped == model.dropped
            assert counters.malformed == model.malformed

    def settle(self) -> None:
        """Let all arrive, and answer all; what is open then, losses of peers end."""
        for rank in self.now:
            self.flush(rank)
        while self.waiting() or self.serving:
            if self.waiting():
                self.deliver(0)
            else:
                model, _ = self.serving[0]
                self.answer(0, is_error=False)
                model.life.flush()
        self.let_time_pass(3600)
        for rank in range(3):
            for other in range(3):
                self.lose(rank, other)
        self.each_call_ends_once_as_the_model_says()
        self.nothing_is_executed_twice()
        self.counters_add_up()
        for model in self.all:
            assert not model.open()
            assert not model.unconfirmed


TestNetwork = pytest.mark.timeout(120)(Network.TestCase)
TestNetwork.settings = settings(
    max_examples=100,
    stateful_step_count=50,
    deadline=None,
    # A machine that is busy with other tests is no slow strategy.
    suppress_health_check=[HealthCheck.too_slow],
)
