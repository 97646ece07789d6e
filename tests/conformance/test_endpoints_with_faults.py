"""Endpoints on a network that fails: each call ends once, nobody is served twice.

The same scenarios on the memory link and on real sockets (RPC-2, RPC-3, RPC-5).
"""

from __future__ import annotations

import pytest

from rpcfut_transport import FaultKind, FaultPlan, FaultRule, Kind, PeerLost
from rpcfut_transport._wire import (
    MAX_BUFFERS,
    WAKE_FRAME,
    Header,
    encode_batch,
    encode_header,
)
from tests.support.faulty import KINDS, Group, endpoints_with_faults, plan_of
from tests.support.links import RecordingSink, make_link_maker
from tests.support.threads import wait_until

LINKS = pytest.mark.parametrize("link_kind", ["memory", "zmq"])
CALLS = 40


def _call_all(endpoints, timeout_s: float, name: str) -> dict[bytes, RecordingSink]:
    """Calls from each to each and to itself, each with a body of its own."""
    sinks: dict[bytes, RecordingSink] = {}
    for number in range(CALLS):
        for caller, _ in endpoints:
            for callee, _ in endpoints:
                ranks = (caller.record.rank, callee.record.rank)
                body = f"{name} {number} {ranks}".encode()
                sinks[body] = sink = RecordingSink()
                buffers = [body * 2] if number % 2 else []
                try:
                    caller.call(ranks[1], timeout_s, sink, body, buffers)
                except PeerLost as error:  # garbage can read as a goodbye
                    sink.on_lost(error)
    return sinks


def _buffers_of(body: bytes) -> list[bytes]:
    return [body * 2] if int(body.split()[1]) % 2 else []


def _is_cut(found: object, body: bytes) -> bool:
    """Whether an answer is the right one, whole or without its end."""
    got, buffers = found
    whole = b"".join([body, *_buffers_of(body)])
    return whole.startswith(b"".join([got, *buffers]))


UNMISTAKABLE = [fault for fault in FaultKind if fault is not FaultKind.CORRUPT]


@LINKS
@pytest.mark.parametrize("fault", UNMISTAKABLE)
def test_each_call_ends_once_whatever_happens_to_messages(
    link_kind: str, fault: FaultKind
) -> None:
    """And when the network works again, so does every worker."""
    with (
        plan_of(fault) as plan,
        endpoints_with_faults(link_kind, plan) as endpoints,
    ):
        sinks = _call_all(endpoints, 1.0, "faulty")
        ends = {body: sink.wait() for body, sink in sinks.items()}
        plan.stop()
        again = _call_all(endpoints, 60.0, "healthy")
        for body, sink in again.items():
            assert sink.wait() == ("result", (body, _buffers_of(body)))
        assert {how for how, _ in ends.values()} <= {"result", "timeout"}
        assert any(how == "result" for how, _ in ends.values())
        for body, (how, found) in ends.items():
            if how == "result" and fault is FaultKind.TRUNCATE:
                assert _is_cut(found, body)
            elif how == "result":
                assert found == (body, _buffers_of(body))
        for sink in (*sinks.values(), *again.values()):
            assert len(sink.ends) == 1
        for _, handler in endpoints:
            assert set(handler.served.values()) == {1}


@LINKS
@pytest.mark.parametrize("header_only", [False, True])
def test_garbage_ends_no_worker(link_kind: str, *, header_only: bool) -> None:
    """What was said to a worker may have been a goodbye; but others can talk to it.

    Nothing checks bytes on their way: the kernel does, and encryption between hosts. So
    this is what a sender might do that is out of its mind.
    """
    rule = FaultRule(fault=FaultKind.CORRUPT, chance=0.3, header_only=header_only)
    with (
        FaultPlan([rule]) as plan,
        endpoints_with_faults(link_kind, plan) as endpoints,
    ):
        sinks = _call_all(endpoints, 0.5, "garbled")
        ends = [sink.wait() for sink in sinks.values()]
        assert {how for how, _ in ends} <= {"result", "error", "timeout", "lost"}
        plan.stop()
        sane = endpoints.join()
        for endpoint, _ in endpoints[:-1]:
            there, back = RecordingSink(), RecordingSink()
            sane.call(endpoint.record.rank, 60.0, there, b"there")
            endpoint.call(sane.record.rank, 60.0, back, b"back")
            assert there.wait() == ("result", (b"there", []))
            assert back.wait() == ("result", (b"back", []))
        assert all(len(sink.ends) == 1 for sink in sinks.values())


@LINKS
@pytest.mark.parametrize("kind", KINDS)
def test_a_doubled_message_is_as_good_as_one(link_kind: str, kind: Kind) -> None:
    """A call runs once, an answer counts once (RPC-5)."""
    with (
        plan_of(FaultKind.DOUBLE, kind, chance=1.0) as plan,
        endpoints_with_faults(link_kind, plan) as endpoints,
    ):
        sinks = _call_all(endpoints, 60.0, "twice")
        for body, sink in sinks.items():
            assert sink.wait() == ("result", (body, _buffers_of(body)))
        caller, _ = endpoints[0]
        given_up = caller.open_call(1, None, RecordingSink())
        caller.send_call(given_up, b"given up")
        caller.abandon_call(given_up)
        # A last call, whose answer comes after all copies.
        last = _call_all(endpoints, 60.0, "last")
        for sink in last.values():
            assert sink.wait()[0] == "result"
        for _, handler in endpoints:
            assert set(handler.served.values()) == {1}
        if kind is not Kind.CANCEL:
            unused = sum(
                e.counters.late_replies + e.counters.dropped for e, _ in endpoints
            )
            assert unused >= len(sinks), "each copy is counted"


@LINKS
def test_an_answer_that_comes_late_is_counted_and_not_used(link_kind: str) -> None:
    """The caller has learnt that time was up; the next call is not answered by it."""
    rule = FaultRule(fault=FaultKind.DELAY, kind=Kind.RESULT, at=frozenset({1}))
    with (
        FaultPlan([rule]) as plan,
        endpoints_with_faults(link_kind, plan, count=2) as endpoints,
    ):
        caller, _ = endpoints[0]
        sink, following = RecordingSink(), RecordingSink()
        caller.call(1, 0.05, sink, b"late")
        assert sink.wait() == ("timeout", None)
        assert caller.counters.unconfirmed == 1
        assert plan.release() == 1
        caller.call(1, 60.0, following, b"next")
        assert following.wait() == ("result", (b"next", []))
        assert caller.counters.late_replies == 1
        assert caller.counters.unconfirmed == 0
        assert len(sink.ends) == 1


@LINKS
def test_a_call_that_is_overtaken_does_not_run(link_kind: str) -> None:
    """It came too late: what was sent after it has been answered (RPC-5)."""
    rule = FaultRule(fault=FaultKind.DELAY, kind=Kind.CALL, at=frozenset({1}))
    with (
        FaultPlan([rule]) as plan,
        endpoints_with_faults(link_kind, plan, count=2) as endpoints,
    ):
        (caller, _), (callee, handler) = endpoints
        early, late = RecordingSink(), RecordingSink()
        caller.call(1, 0.5, early, b"first")
        caller.call(1, 60.0, late, b"second")
        assert late.wait() == ("result", (b"second", []))
        plan.release()
        third = RecordingSink()
        caller.call(1, 60.0, third, b"third")
        assert third.wait()[0] == "result"
        assert early.wait() == ("timeout", None)
        assert handler.bodies == [b"second", b"third"]
        assert callee.counters.dropped >= 1


@LINKS
def test_a_network_that_loses_all_ends_calls_by_their_time(link_kind: str) -> None:
    """To one peer; calls to another are not held up."""
    rule = FaultRule(fault=FaultKind.DROP, receiver=1, chance=1.0)
    with (
        FaultPlan([rule]) as plan,
        endpoints_with_faults(link_kind, plan) as endpoints,
    ):
        caller, _ = endpoints[0]
        lost, fine = RecordingSink(), RecordingSink()
        caller.call(1, 0.3, lost, b"lost")
        caller.call(2, 60.0, fine, b"fine")
        assert fine.wait() == ("result", (b"fine", []))
        assert lost.wait() == ("timeout", None)
        assert endpoints[1][1].bodies == []
        assert plan.count(FaultKind.DROP) >= 1


def _hostile_messages(target: int) -> list[list[bytes]]:
    """What no endpoint sends."""

    def header(kind: Kind, **fields: int) -> bytes:
        return encode_header(
            Header(kind, 7, 1, 101, target, None, 0)._replace(**fields)
        )

    batch = header(Kind.BATCH)
    call = header(Kind.CALL)
    return [
        [b""],
        [b"", b"", b""],
        [b"x" * 10_000_000],
        [b""] * 20_000,
        [WAKE_FRAME],
        [WAKE_FRAME, b"and more"],
        [call[:-1]],
        [b"RF", call],
        [call, b"one too many"],
        [header(Kind.CALL, buffer_count=MAX_BUFFERS)],
        [batch, b"a buffer"],
        [encode_batch(batch, [batch, encode_batch(batch, [call])])],
        [batch + b"\xff\xff\xff\xff"],
        [batch + b"\x01"],
        [encode_batch(batch, [b"", b"short", call[:-2]])],
        [header(Kind.WAKE)],
        [header(Kind.TELL) + b"\xff" * 5000],
        [header(Kind.TELL)],
        [header(Kind.ASK) + b"words"],
        [header(Kind.RESULT, call_id=2**64 - 1)],
        [header(Kind.READY, sender_rank=2**32 - 1)],
        [header(Kind.CANCEL, sender_incarnation=0)],
    ]


@LINKS
def test_a_worker_survives_what_no_endpoint_sends(link_kind: str) -> None:
    """Through a link of its own, in the name of a member; others notice nothing."""
    make = make_link_maker(link_kind)
    group = Group(make)
    stranger = make()
    try:
        victim, other = group.join(), group.join()
        stranger.connect(0, victim.record.address)
        for _ in range(3):
            for message in _hostile_messages(victim.record.incarnation):
                stranger.send(0, message)
        stranger.send(0, [b"the last one"])
        for caller, rank in ((victim, 1), (other, 0), (victim, 0)):
            sink = RecordingSink()
            caller.call(rank, 60.0, sink, b"fine")
            assert sink.wait() == ("result", (b"fine", []))
        wait_until(lambda: victim.counters.malformed >= 3 * 10 + 1)
        assert victim.pending_count == 0
    finally:
        stranger.close()
        for endpoint, _ in group:
            endpoint.close()
