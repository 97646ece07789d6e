"""An endpoint ends every call once, and survives whatever comes in (RPC-2, 3, 5, 7)."""

from __future__ import annotations

import dataclasses
import gc
import logging
import threading
import weakref
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import pytest

from rpcfut_transport import (
    QUEUE_NBYTES,
    ClosedError,
    Counters,
    Endpoint,
    IncomingCall,
    Kind,
    LinkError,
    LocalProtocolError,
    ManualClock,
    MemoryLink,
    MemoryNetwork,
    PeerLost,
    Rooms,
    UnknownPeer,
)
from rpcfut_transport._ledger import Ledger
from rpcfut_transport._wire import (
    HEADER_NBYTES,
    MAX_REMAINING_S,
    Header,
    decode_header,
    encode_header,
)
from tests.support.links import (
    PATIENCE_S,
    EchoHandler,
    RecordingHandler,
    RecordingSink,
    start_endpoint,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

STRANGER = 9


class World:
    """One endpoint, and peers that are bare links in the hands of the test."""

    def __init__(self) -> None:
        self.network = MemoryNetwork()
        self.clock = ManualClock(100.0)
        self.handler = RecordingHandler()
        self.link = MemoryLink(self.network)
        self.endpoint = start_endpoint(0, self.link, self.handler, self.clock)
        self.peers: dict[int, MemoryLink] = {}
        for rank in (1, 2):
            self.add_peer(rank, 100 + rank)

    def add_peer(self, rank: int, incarnation: int) -> None:
        link = MemoryLink(self.network)
        link.connect(0, self.link.address)
        record = dataclasses.replace(
            self.endpoint.record,
            rank=rank,
            name=f"w{rank}",
            incarnation=incarnation,
            address=link.address,
        )
        self.endpoint.add_peer(record)
        self.peers[rank] = link

    def header(self, rank: int, kind: Kind, call_id: int = 0) -> Header:
        return Header(kind, call_id, rank, 100 + rank, 100, None, 0)

    def send(self, header: Header, body: bytes = b"", *, by: int | None = None) -> None:
        link = self.peers[header.sender_rank if by is None else by]
        link.send(0, [encode_header(header) + body])

    def settle(self) -> None:
        """Return when the endpoint has read all that was sent before."""
        self.send(self.header(2, Kind.READY))
        assert self.handler.notices.get(timeout=PATIENCE_S)[1] is Kind.READY

    def pass_time(self, seconds: float) -> None:
        self.clock.advance(seconds)
        self.link.wake()


@contextmanager
def _world() -> Iterator[World]:
    world = World()
    try:
        yield world
    finally:
        world.endpoint.close()


@pytest.mark.parametrize(
    ("kind", "how"), [(Kind.RESULT, "result"), (Kind.ERROR, "error")]
)
def test_an_answer_reaches_its_sink_once(kind: Kind, how: str) -> None:
    """A second answer is counted as late."""
    with _world() as world:
        sink = RecordingSink()
        call_id = world.endpoint.open_call(1, None, sink)
        assert world.endpoint.send_call(call_id, b"ask", [b"x"])
        world.send(world.header(1, kind, call_id), b"answer")
        world.send(world.header(1, kind, call_id), b"again")
        world.settle()
        assert sink.ends == [(how, (b"answer", []))]
        assert world.endpoint.counters.late_replies == 1
        assert world.endpoint.pending_count == 0


def test_an_answer_may_come_before_the_call_was_sent() -> None:
    """Sending afterwards says that nothing was sent."""
    with _world() as world:
        sink = RecordingSink()
        call_id = world.endpoint.open_call(1, None, sink)
        world.send(world.header(1, Kind.RESULT, call_id))
        assert sink.wait()[0] == "result"
        assert not world.endpoint.send_call(call_id, b"ask")
        assert world.peers[1].receive(0) is None


def test_an_ended_call_is_forgotten() -> None:
    """Neither an answer nor giving up leaves the sink, and what it holds, behind."""
    with _world() as world:
        sinks = [RecordingSink(), RecordingSink()]
        refs = [weakref.ref(sink) for sink in sinks]
        answered, abandoned = (world.endpoint.open_call(1, None, s) for s in sinks)
        world.send(world.header(1, Kind.RESULT, answered))
        world.endpoint.abandon_call(abandoned)
        world.settle()
        del sinks
        gc.collect()
        assert [ref() for ref in refs] == [None, None]


def test_a_timeout_ends_the_call_and_the_late_answer_is_counted() -> None:
    """The caller learns it at the deadline; the callee's work is lost."""
    with _world() as world:
        sink = RecordingSink()
        call_id = world.endpoint.open_call(1, 5.0, sink)
        world.pass_time(4.9)
        world.settle()
        assert sink.ends == []
        world.pass_time(0.1)
        assert sink.wait() == ("timeout", None)
        world.send(world.header(1, Kind.RESULT, call_id))
        world.settle()
        assert world.endpoint.counters.late_replies == 1
        assert len(sink.ends) == 1


def test_the_wire_carries_the_time_that_is_left() -> None:
    """What passed before sending is gone; the callee's clock is its own."""
    with _world() as world, _world() as callee:
        callee.clock.advance(5000.0)
        call_id = world.endpoint.open_call(1, 10.0, RecordingSink())
        world.clock.advance(4.0)
        world.endpoint.send_call(call_id, b"ask")
        (frame,) = world.peers[1].receive(PATIENCE_S) or []
        callee.peers[1].send(
            0, [encode_header(callee.header(1, Kind.CALL)._replace(remaining_s=6.0))]
        )
        call = callee.handler.calls.get(timeout=PATIENCE_S)
        assert call.deadline_s == callee.clock.now_s() + 6.0
        expected = Header(Kind.CALL, call_id, 0, 100, 101, 6.0, 0, number=1)
        assert bytes(frame) == encode_header(expected) + b"ask"


def test_a_call_without_a_deadline_has_none_over_there() -> None:
    """Nothing invents one."""
    with _world() as world:
        world.send(world.header(1, Kind.CALL, 3), b"ask")
        call = world.handler.calls.get(timeout=PATIENCE_S)
        assert (call.deadline_s, bytes(call.body)) == (None, b"ask")
        assert (call.call_id, call.sender_rank, call.sender_incarnation) == (3, 1, 101)


def test_an_abandoned_call_is_silent() -> None:
    """Its answer is late, its sink hears nothing, and it is abandoned once."""
    with _world() as world:
        sink = RecordingSink()
        call_id = world.endpoint.open_call(1, 1.0, sink)
        assert world.endpoint.abandon_call(call_id)
        assert not world.endpoint.abandon_call(call_id)
        world.send(world.header(1, Kind.RESULT, call_id))
        world.pass_time(9.0)
        world.settle()
        assert sink.ends == []
        assert world.endpoint.counters.late_replies == 1


def test_goodbye_fails_what_waits_for_the_peer() -> None:
    """The reason says that it left; calls to others wait on."""
    with _world() as world:
        gone, other = RecordingSink(), RecordingSink()
        world.endpoint.open_call(1, None, gone)
        world.endpoint.open_call(2, None, other)
        world.send(world.header(1, Kind.GOODBYE))
        how, error = gone.wait()
        assert (how, str(error)) == ("lost", "peer 'w1' is gone: left")
        assert world.handler.notices.get(timeout=PATIENCE_S) == (1, Kind.GOODBYE, 0)
        assert other.ends == []
        with pytest.raises(PeerLost, match="left"):
            world.endpoint.open_call(1, None, RecordingSink())
        assert not world.endpoint.send_notice(1, Kind.READY)


def test_a_restarted_peer_can_be_called_and_its_earlier_life_is_ignored() -> None:
    """Messages from before the restart are dropped."""
    with _world() as world:
        world.send(world.header(1, Kind.GOODBYE))
        world.handler.notices.get(timeout=PATIENCE_S)
        old = world.peers[1]
        world.add_peer(1, 201)
        call_id = world.endpoint.open_call(1, None, RecordingSink())
        assert world.endpoint.send_call(call_id, b"ask")
        assert world.peers[1].receive(PATIENCE_S) is not None
        old.send(0, [encode_header(world.header(1, Kind.RESULT, call_id))])
        world.settle()
        assert world.endpoint.pending_count == 1
        assert world.endpoint.counters.dropped == 1


def test_strangers_and_messages_for_another_life_are_dropped() -> None:
    """Only a living peer is heard, and only if it means this incarnation."""
    with _world() as world:
        sink = RecordingSink()
        call_id = world.endpoint.open_call(1, None, sink)
        answer = world.header(1, Kind.RESULT, call_id)
        world.send(answer._replace(target_incarnation=99))
        world.send(world.header(2, Kind.RESULT, call_id))
        world.send(answer._replace(sender_incarnation=99))
        world.send(world.header(STRANGER, Kind.CALL), by=1)
        world.send(world.header(STRANGER, Kind.GOODBYE), by=1)
        world.send(world.header(1, Kind.WAKE))
        world.settle()
        assert world.handler.calls.empty()
        assert sink.ends == []
        assert world.endpoint.counters == Counters(
            late_replies=0, dropped=6, malformed=0, unconfirmed=0
        )


@pytest.mark.parametrize("frame", [b"", b"RF", b"x" * 44, b"RF\x01\x63" + b"\0" * 40])
def test_a_malformed_message_is_counted_and_survived(frame: bytes) -> None:
    """The reader goes on (RPC-3)."""
    with _world() as world:
        world.peers[1].send(0, [frame])
        header = world.header(1, Kind.CALL)._replace(buffer_count=3)
        world.send(header)
        world.settle()
        assert world.endpoint.counters.malformed == 2


class _Raises(RecordingSink):
    def on_result(self, body: memoryview, buffers: list[bytes | memoryview]) -> None:
        super().on_result(body, buffers)
        raise SystemExit("from a sink")


def test_what_a_sink_or_handler_raises_is_logged_with_its_place(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Others are still served."""
    with _world() as world:
        sink = _Raises()
        call_id = world.endpoint.open_call(1, None, sink)
        with caplog.at_level(logging.ERROR, "rpcfut_transport"):
            world.send(world.header(1, Kind.RESULT, call_id))
            world.settle()
        (record,) = caplog.records
        assert record.exc_info is not None
        assert "from a sink" in str(record.exc_info[1])


def test_notices_arrive_with_their_call() -> None:
    """A cancel names the call of its sender."""
    with _world() as world:
        world.send(world.header(1, Kind.CANCEL, 77))
        assert world.handler.notices.get(timeout=PATIENCE_S) == (1, Kind.CANCEL, 77)
        assert world.endpoint.send_notice(1, Kind.READY)
        (frame,) = world.peers[1].receive(PATIENCE_S) or []
        assert bytes(frame) == encode_header(
            Header(Kind.READY, 0, 0, 100, 101, None, 0, number=1)
        )
        with pytest.raises(LocalProtocolError, match="is none of"):
            world.endpoint.send_notice(1, Kind.CALL)
        assert not world.endpoint.send_notice(STRANGER, Kind.READY)


def test_a_reply_to_who_is_gone_is_no_error() -> None:
    """The function's result has nowhere to go, and that is all."""
    with _world() as world:
        world.send(world.header(1, Kind.CALL, 1))
        call = world.handler.calls.get(timeout=PATIENCE_S)
        assert world.endpoint.reply(call, is_error=False, body=b"one")
        world.send(world.header(1, Kind.GOODBYE))
        world.handler.notices.get(timeout=PATIENCE_S)
        assert not world.endpoint.reply(call, is_error=True, body=b"two")
        world.endpoint.close()
        assert not world.endpoint.reply(call, is_error=True, body=b"three")


def test_a_call_that_cannot_be_opened_says_why() -> None:
    """A mistake is seen where it is made, and leaves nothing behind."""
    with _world() as world:
        with pytest.raises(UnknownPeer, match=r"known ranks: \[1, 2\]"):
            world.endpoint.open_call(STRANGER, None, RecordingSink())
        for timeout_s in (-1.0, float("nan")):
            with pytest.raises(LocalProtocolError, match="timeout_s"):
                world.endpoint.open_call(1, timeout_s, RecordingSink())
        world.endpoint.open_call(1, float("inf"), RecordingSink())
        assert world.endpoint.pending_count == 1


def test_a_peer_that_is_alive_keeps_its_way() -> None:
    """Adding another under its rank is refused before anything is opened."""
    with _world() as world:
        record = dataclasses.replace(
            world.endpoint.record, rank=1, address="memory://0"
        )
        with pytest.raises(LocalProtocolError, match="alive"):
            world.endpoint.add_peer(record)
        fresh = dataclasses.replace(record, rank=5)
        with pytest.raises(LinkError, match="memory://0"):
            world.endpoint.add_peer(fresh)
        with pytest.raises(UnknownPeer):
            world.endpoint.open_call(5, None, RecordingSink())


def test_close_fails_what_is_open_and_refuses_what_comes() -> None:
    """Nobody waits for an endpoint that is closed; closing twice is fine."""
    with _world() as world:
        sink = RecordingSink()
        world.endpoint.open_call(1, None, sink)
        world.endpoint.close()
        world.endpoint.close()
        how, error = sink.wait()
        assert how == "lost"
        assert isinstance(error, ClosedError)
        with pytest.raises(ClosedError):
            world.endpoint.open_call(1, None, RecordingSink())
        with pytest.raises(ClosedError):
            world.endpoint.start()
        assert not world.endpoint.send_notice(1, Kind.READY)
        assert repr(world.endpoint) == "<Endpoint 'w0' rank=0 closed peers=2 pending=0>"


def test_an_endpoint_starts_once_and_before_it_calls() -> None:
    """Before, nobody would read the answer."""
    with _world() as world:
        with pytest.raises(LocalProtocolError, match="started before"):
            world.endpoint.start()
        link = MemoryLink(world.network)
        fresh = Endpoint(world.endpoint.record, link, world.clock, RecordingHandler())
        with pytest.raises(LocalProtocolError, match="start 'w0'"):
            fresh.open_call(0, None, RecordingSink())
        assert repr(fresh) == "<Endpoint 'w0' rank=0 new peers=0 pending=0>"
        fresh.close()


class _Closes(RecordingHandler):
    endpoint: Endpoint | None = None

    def on_call(self, call: IncomingCall) -> None:
        assert self.endpoint is not None
        self.endpoint.close()
        super().on_call(call)


def test_a_handler_may_close_its_endpoint() -> None:
    """The reader that closes does not wait for itself."""
    handler = _Closes()
    link = MemoryLink(MemoryNetwork())
    endpoint = handler.endpoint = start_endpoint(0, link, handler)
    endpoint.add_peer(endpoint.record)
    sink = RecordingSink()
    endpoint.send_call(endpoint.open_call(0, None, sink), b"")
    handler.calls.get(timeout=PATIENCE_S)
    assert sink.wait()[0] == "lost"


class _BrokenLink(MemoryLink):
    def receive(self, timeout_s: float | None) -> list[bytes | memoryview] | None:
        super().receive(timeout_s)
        raise LinkError("out of order")


def test_a_link_that_breaks_fails_the_calls(caplog: pytest.LogCaptureFixture) -> None:
    """No call waits for a reader that is gone (RPC-2)."""
    link = _BrokenLink(MemoryNetwork())
    endpoint = start_endpoint(0, link, RecordingHandler())
    endpoint.add_peer(endpoint.record)
    sink = RecordingSink()
    endpoint.open_call(0, None, sink)
    link.wake()
    how, error = sink.wait()
    assert (how, str(error)) == ("lost", "'w0' stopped: out of order")
    endpoint.close()
    with pytest.raises(ClosedError):
        link.send(0, [b""])


def test_calls_that_are_opened_while_it_closes_end_once_or_are_refused() -> None:
    """64 threads race with close; none of their calls hangs or ends twice."""
    handler = EchoHandler()
    endpoint = start_endpoint(0, MemoryLink(MemoryNetwork()), handler)
    endpoint.add_peer(endpoint.record)
    gate = threading.Barrier(65)
    sinks: list[list[RecordingSink]] = [[] for _ in range(64)]

    def call_until_closed(mine: list[RecordingSink]) -> None:
        gate.wait(PATIENCE_S)
        while True:
            sink = RecordingSink()
            try:
                call_id = endpoint.open_call(0, 30.0, sink)
            except ClosedError:
                return
            mine.append(sink)
            endpoint.send_call(call_id, b"x")

    threads = [threading.Thread(target=call_until_closed, args=(m,)) for m in sinks]
    for thread in threads:
        thread.start()
    gate.wait(PATIENCE_S)
    endpoint.close()
    for thread in threads:
        thread.join(PATIENCE_S)
    for sink in (sink for mine in sinks for sink in mine):
        assert sink.wait()[0] in {"result", "lost"}
        assert len(sink.ends) == 1
    assert endpoint.pending_count == 0


def _race(world: World) -> tuple[list[RecordingSink], set[int]]:
    """Answer, expire, leave and abandon at once; return the sinks and who is silent."""
    sinks = [RecordingSink() for _ in range(40)]
    ids = [world.endpoint.open_call(1, 1.0, sink) for sink in sinks]
    gate = threading.Barrier(3)
    abandoned: set[int] = set()

    def answer() -> None:
        gate.wait(PATIENCE_S)
        for call_id in ids:
            world.send(world.header(1, Kind.RESULT, call_id))
        world.send(world.header(1, Kind.GOODBYE))

    def expire() -> None:
        gate.wait(PATIENCE_S)
        world.pass_time(2.0)

    def abandon() -> None:
        gate.wait(PATIENCE_S)
        abandoned.update(i for i in ids[::3] if world.endpoint.abandon_call(i))

    threads = [threading.Thread(target=act) for act in (answer, expire, abandon)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(PATIENCE_S)
    return sinks, {ids.index(i) for i in abandoned}


def test_answer_timeout_goodbye_and_abandon_race_for_one_end() -> None:
    """However they interleave, a call ends once, or is abandoned and silent."""
    for _ in range(30):
        with _world() as world:
            sinks, silent = _race(world)
        for index, sink in enumerate(sinks):
            assert len(sink.ends) == (0 if index in silent else 1)


def test_a_call_that_is_given_up_tells_its_callee_and_waits_to_be_confirmed() -> None:
    """Only one that was sent; an answer confirms it all the same (FUT-9)."""
    with _world() as world:
        unsent = world.endpoint.open_call(1, None, RecordingSink())
        assert world.endpoint.abandon_call(unsent)
        call_id = world.endpoint.open_call(1, None, RecordingSink())
        world.endpoint.send_call(call_id, b"")
        assert world.endpoint.abandon_call(call_id)
        assert not world.endpoint.abandon_call(call_id)
        sent = [world.peers[1].receive(PATIENCE_S) or [] for _ in range(2)]
        kinds = [(decode_header(m[0]).kind, decode_header(m[0]).call_id) for m in sent]
        assert kinds == [(Kind.CALL, call_id), (Kind.CANCEL, call_id)]
        assert world.endpoint.counters.unconfirmed == 1
        world.send(world.header(1, Kind.ERROR, call_id))
        world.settle()
        counters = world.endpoint.counters
        assert (counters.unconfirmed, counters.late_replies) == (0, 1)


def test_a_call_that_nears_its_end_is_asked_about_and_then_cancelled() -> None:
    with _world() as world:
        sink = RecordingSink()
        call_id = world.endpoint.open_call(1, 10.0, sink)
        world.endpoint.send_call(call_id, b"")
        world.clock.advance(9.99)
        world.settle()
        world.send(world.header(1, Kind.TELL, call_id), b"\1runs\x1b[2J")
        assert sink.told.get(timeout=PATIENCE_S) == "runs?[2J"
        world.clock.advance(1)
        world.settle()
        assert sink.wait() == ("timeout", None)
        kinds = [
            decode_header((world.peers[1].receive(PATIENCE_S) or [b""])[0]).kind
            for _ in range(3)
        ]
        assert kinds == [Kind.CALL, Kind.ASK, Kind.CANCEL]


def test_who_asks_is_told() -> None:
    with _world() as world:
        world.send(world.header(1, Kind.ASK, 7))
        (frame,) = world.peers[1].receive(PATIENCE_S) or []
        assert decode_header(frame)[:2] == (Kind.TELL, 7)
        assert bytes(frame[HEADER_NBYTES:]) == b"\1call 7 of rank 1 runs"


def test_what_nobody_asked_or_is_too_long_is_dropped() -> None:
    with _world() as world:
        sink = RecordingSink()
        call_id = world.endpoint.call(1, None, sink, b"")
        world.send(world.header(1, Kind.TELL, call_id), b"\1" + b"x" * 2000)
        world.send(world.header(1, Kind.TELL, call_id), b"runs")
        world.send(world.header(1, Kind.TELL, call_id))
        world.send(world.header(2, Kind.TELL, call_id), b"\1from another")
        world.send(world.header(1, Kind.TELL, call_id + 1), b"\1no call")
        world.settle()
        assert sink.told.empty()
        assert world.endpoint.counters.dropped == 5
        unsent = world.endpoint.open_call(1, None, sink)
        assert not world.endpoint.ask(unsent), "it was not sent"


def test_a_call_that_takes_long_is_noted_once() -> None:
    with _world() as world:
        sink = RecordingSink()
        world.endpoint.open_call(1, None, sink)
        for _ in range(3):
            world.clock.advance(61)
            world.settle()
        assert sink.told.get(timeout=PATIENCE_S) == "slow"
        assert sink.told.empty()


def test_a_call_that_cannot_be_sent_leaves_nothing_to_confirm() -> None:
    """Its caller gives it up, and no callee has heard of it."""
    with _world() as world:
        call_id = world.endpoint.open_call(1, None, RecordingSink())
        with pytest.raises(LocalProtocolError):
            world.endpoint.send_call(call_id, b"", [memoryview(b"abcd")[::2]])
        assert world.endpoint.abandon_call(call_id)
        assert world.endpoint.counters.unconfirmed == 0
        assert world.peers[1].receive(0) is None, "nor does it hear of it now"


@pytest.mark.parametrize("timeout_s", [10**400, 1e308, 1e10])
def test_a_timeout_of_any_length_is_one(timeout_s: float) -> None:
    """It travels as one of 31 years."""
    with _world() as world:
        call_id = world.endpoint.open_call(1, timeout_s, RecordingSink())
        world.endpoint.send_call(call_id, b"")
        (frame,) = world.peers[1].receive(PATIENCE_S) or []
        assert decode_header(frame).remaining_s == MAX_REMAINING_S


def test_slow_calls_are_looked_for_now_and_then(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Not with every message: a look may pass over all that are open."""
    nobody: Any = None
    ledger = Ledger("w0", Rooms(QUEUE_NBYTES, nobody, nobody))
    ledger.start()
    looks: list[float] = []
    take = ledger._session.take_slow
    monkeypatch.setattr(
        ledger._session, "take_slow", lambda *at: looks.append(at[0]) or take(*at)
    )
    for message in range(1000):
        ledger.take_due(100.0 + message / 100)
    assert 1 <= len(looks) <= 3
