"""What users of the peers met, each kind with the right outcome: messages and peers.

Rows B02, B11, B80, B85, in memory and on sockets; between processes: test_delivery.py.
"""

from __future__ import annotations

import os
import random
import threading
from typing import TYPE_CHECKING

import pytest

from rpcfut import RpcTimeoutError
from rpcfut.transport import (
    FaultKind,
    FaultPlan,
    FaultRule,
    Kind,
    MonotonicClock,
    PeerLost,
)
from tests.support.faulty import Group, agents_with_faults
from tests.support.links import (
    PATIENCE_S,
    RecordingHandler,
    RecordingSink,
    make_link_maker,
    start_collector_of_zmq,
    start_endpoint,
)
from tests.support.threads import Running, run_together, wait_until

if TYPE_CHECKING:
    from rpcfut_transport import IncomingCall

LINKS = pytest.mark.parametrize("link_kind", ["memory", "zmq"])
CLIENTS, CALLS = 64, 200
SOAK_S = float(os.environ.get("RPCFUT_SOAK_S", "10"))


@pytest.fixture(scope="module", autouse=True)
def _collector_of_zmq() -> None:
    start_collector_of_zmq()


def add(a: int, b: int) -> int:
    return a + b


# ---- B02 ----------------------------------------------------------------------------


class _Hesitant(RecordingHandler):
    """Answers some calls at once and others never."""

    endpoint = None

    def on_call(self, call: IncomingCall) -> None:
        if call.call_id % 2:
            self.endpoint.reply(call, is_error=False, body=call.body)


def _call_and_lose(caller, incarnation: int, moment: int) -> list[RecordingSink]:
    """Call 20 times from four threads; rank 1 is lost after so many calls."""
    sinks: list[RecordingSink] = []
    now = threading.Event()

    def call() -> None:
        for _ in range(5):
            sink = RecordingSink()
            try:
                caller.call(1, None, sink, b"question")
            except PeerLost as error:
                sink.on_lost(error)  # refused: that is its end
            sinks.append(sink)
            if len(sinks) > moment:
                now.set()

    def lose() -> None:
        assert now.wait(PATIENCE_S)
        caller.lose_peer(1, incarnation, "it was killed")

    assert run_together(call, call, call, call, lose) == [None] * 5
    return sinks


@LINKS
@pytest.mark.parametrize("seed", range(2))
def test_b02_calls_in_flight_when_their_callee_is_lost_end_once(
    link_kind: str, seed: int
) -> None:
    """B02: 20 calls of four threads, and a loss at any moment among them.

    Those that come while the loss is worked on end, too, or are refused.
    """
    make, dice = make_link_maker(link_kind), random.Random(seed)
    caller = start_endpoint(0, make(), RecordingHandler())
    try:
        for incarnation in range(1, 21):
            handler = _Hesitant()
            callee = start_endpoint(1, make(), handler, incarnation=incarnation)
            handler.endpoint = callee
            callee.add_peer(caller.record)
            caller.add_peer(callee.record)
            sinks = _call_and_lose(caller, incarnation, dice.randrange(20))
            assert len(sinks) == 20
            assert {sink.wait()[0] for sink in sinks} <= {"result", "lost"}
            assert caller.pending_count == 0
            callee.close()
            assert all(len(sink.ends) == 1 for sink in sinks)
    finally:
        caller.close()


# ---- B11 ----------------------------------------------------------------------------


@LINKS
@pytest.mark.timeout(120)
def test_b11_64_clients_that_start_at_once_lose_no_call(link_kind: str) -> None:
    """B11: each fires 200 calls at one server, as soon as the others do."""
    group = Group(make_link_maker(link_kind))
    try:
        server, handler = group.join(), group[0][1]
        clients = [
            start_endpoint(rank, group._make_link(), RecordingHandler())
            for rank in range(1, CLIENTS + 1)
        ]
        for client in clients:
            group.append((client, handler))  # closed with the others
            client.add_peer(server.record)
            server.add_peer(client.record)

        def fire(client) -> list[RecordingSink]:
            sinks = [RecordingSink() for _ in range(CALLS)]
            for number, sink in enumerate(sinks):
                client.call(0, None, sink, b"%d" % number)
            return sinks

        fired = run_together(*(lambda c=client: fire(c) for client in clients))
        for sinks in fired:
            for number, sink in enumerate(sinks):
                assert sink.wait() == ("result", (b"%d" % number, []))
        assert len(handler.served) == CLIENTS * CALLS
        assert set(handler.served.values()) == {1}
        assert all(len(sink.ends) == 1 for sinks in fired for sink in sinks)
    finally:
        for endpoint, _ in group:
            endpoint.close()


@LINKS
def test_b11_a_lost_request_is_found_and_reported(link_kind: str) -> None:
    """B11: the caller is told that the callee does not have it, and it ends."""
    rule = FaultRule(fault=FaultKind.DROP, kind=Kind.CALL, at=frozenset({1}))
    with (
        FaultPlan([rule]) as plan,
        agents_with_faults(link_kind, plan, add, count=2) as agents,
    ):
        lost = agents[0].rpc_async("w1", add, (1, 2), timeout=1.0)
        found = agents[0].rpc_async("w1", add, (1, 2), timeout=30)
        assert found.wait(PATIENCE_S) == 3
        assert "not to be found: it has not arrived" in lost.explain()
        error = lost.exception(PATIENCE_S)
        assert isinstance(error, RpcTimeoutError)
        assert "not to be found: it has not arrived" in str(error)


# ---- B80 ----------------------------------------------------------------------------


@LINKS
def test_b80_nothing_claims_that_what_was_sent_has_arrived(link_kind: str) -> None:
    """B80: of a call that nobody got, neither the future nor its words say so."""
    rule = FaultRule(fault=FaultKind.DROP, receiver=1, chance=1.0)
    with (
        FaultPlan([rule]) as plan,
        agents_with_faults(link_kind, plan, add, count=2) as agents,
    ):
        future = agents[0].rpc_async("w1", add, (1, 2), timeout=0.5)
        assert not future.done()
        said = future.explain()
        assert "does not say where it is" in said
        assert "running" not in said
        error = future.exception(PATIENCE_S)
        assert isinstance(error, RpcTimeoutError)
        assert "did not say where it is" in str(error)


# ---- B85 ----------------------------------------------------------------------------


def _call_from_64_threads(link_kind: str, seconds: float) -> int:
    """How many calls 64 threads of one worker made, each with the right answer."""
    clock = MonotonicClock()
    with agents_with_faults(link_kind, FaultPlan([]), add, count=2) as agents:
        until_s = clock.now_s() + seconds

        def call(name: int) -> int:
            number = 0
            while clock.now_s() < until_s or number < 5:
                to = f"w{number % 2}"
                future = agents[0].rpc_async(to, add, (name * 1_000_000, number))
                if number % 3:
                    assert future.wait(PATIENCE_S * 2) == name * 1_000_000 + number
                number += 1
            return number

        threads = [Running(lambda n=name: call(n)) for name in range(64)]
        for thread in threads:
            thread._thread.join(seconds + 4 * PATIENCE_S)
        made = [thread.result() for thread in threads]
        wait_until(lambda: agents[0]._endpoint.pending_count == 0)
        return sum(made)


@LINKS
@pytest.mark.timeout(120)
def test_b85_64_threads_may_call_at_once(link_kind: str) -> None:
    """B85: no abort, and each answer reaches the one who asked."""
    assert _call_from_64_threads(link_kind, 0.5) >= 64 * 5


@pytest.mark.slow
@LINKS
@pytest.mark.timeout(SOAK_S + 180)
def test_b85_64_threads_may_call_for_long(link_kind: str) -> None:
    """B85: as above, for ten seconds."""
    assert _call_from_64_threads(link_kind, SOAK_S) >= 64 * 5
