"""Workers on a network that fails: every call ends, with the right value or an error.

In memory and on real sockets (RPC-2, RPC-3, RPC-5, RPC-9).
"""

from __future__ import annotations

import threading
from collections import Counter

import pytest
import torch

import rpcfut
from rpcfut import Failure, RpcError, RpcTimeoutError, Value
from rpcfut.transport import FaultKind, FaultPlan, FaultRule, Kind
from tests.support.faulty import agents_with_faults, plan_of
from tests.support.links import start_collector_of_zmq

LINKS = pytest.mark.parametrize("link_kind", ["memory", "zmq"])
UNMISTAKABLE = [fault for fault in FaultKind if fault is not FaultKind.CORRUPT]
ROUNDS = 6


@pytest.fixture(scope="module", autouse=True)
def _collector_of_zmq() -> None:
    start_collector_of_zmq()


class Tally:
    """What was executed how often; its functions are exposed under their names."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self.seen: Counter[int] = Counter()

    def functions(self):
        def add(number: int, text: str) -> list[object]:
            with self._lock:
                self.seen[number] += 1
            return [number, text]

        def scale(tensor: torch.Tensor, factor: int) -> torch.Tensor:
            return tensor * factor

        def fail(number: int) -> None:
            raise KeyError(number)

        for function in (add, scale, fail):
            function.__qualname__ = function.__name__
        return add, scale, fail


def _call_all(agents, first: int, timeout_s: float):
    """Calls of all kinds from each to each; futures, and what each must bring."""
    sent = []
    number = first
    for _ in range(ROUNDS):
        for agent in agents:
            for other in agents:
                to = other.info.name
                number += 1
                text = f"{agent.info.name} {to} {number}"
                small = torch.arange(50.0) + number
                large = torch.arange(30_000.0) + number
                for name, args, expected in (
                    ("add", (number, text), [number, text]),
                    ("scale", (small, 3), small * 3),
                    ("scale", (large, 2), large * 2),
                    ("fail", (number,), KeyError(number)),
                ):
                    name = f"{__name__}:{name}"
                    future = agent.rpc_async(to, name, args, timeout=timeout_s)
                    sent.append((future, expected))
    return sent


def _is_right(outcome: object, expected: object) -> bool:
    match outcome:
        case Value(torch.Tensor() as value):
            return isinstance(expected, torch.Tensor) and torch.equal(value, expected)
        case Value(value):
            return not isinstance(expected, torch.Tensor) and value == expected
        case Failure(KeyError() as error):
            return isinstance(expected, KeyError) and error.args == expected.args
        case _:
            return False


def _outcomes(sent):
    outcomes = rpcfut.gather_outcomes([future for future, _ in sent]).wait(60)
    return list(zip(outcomes, (expected for _, expected in sent), strict=True))


@LINKS
@pytest.mark.parametrize("fault", UNMISTAKABLE)
@pytest.mark.timeout(60)
def test_no_fault_brings_a_wrong_value_or_an_end_that_does_not_come(
    link_kind: str, fault: FaultKind
) -> None:
    """A call ends with what it must bring, or with an error; a worker goes on."""
    tally = Tally()
    # Of what is cut, the callee's decoder may say so; the rest is only lost.
    allowed = RpcError if fault is FaultKind.TRUNCATE else RpcTimeoutError
    with (
        plan_of(fault, chance=0.1) as plan,
        agents_with_faults(link_kind, plan, *tally.functions()) as agents,
    ):
        faulty = _outcomes(_call_all(agents, 0, 1.0))
        plan.stop()
        healthy = _outcomes(_call_all(agents, 1000, 60.0))
        wrong = [
            (outcome, expected)
            for outcome, expected in faulty
            if not _is_right(outcome, expected)
            and not (
                isinstance(outcome, Failure) and isinstance(outcome.error, allowed)
            )
        ]
        assert wrong == []
        assert any(_is_right(*pair) for pair in faulty)
        assert all(_is_right(*pair) for pair in healthy)
        assert set(tally.seen.values()) == {1}, "nothing runs twice"


@LINKS
@pytest.mark.parametrize("header_only", [False, True])
@pytest.mark.timeout(60)
def test_garbage_ends_no_worker(link_kind: str, *, header_only: bool) -> None:
    """Between two workers all may be wrong; a third one talks to both."""
    ways = ((0, 1), (1, 0))
    plan = FaultPlan(
        FaultRule(
            fault=FaultKind.CORRUPT,
            sender=sender,
            receiver=receiver,
            chance=0.3,
            header_only=header_only,
        )
        for sender, receiver in ways
    )
    tally = Tally()
    with plan, agents_with_faults(link_kind, plan, *tally.functions()) as agents:
        garbled = _outcomes(_call_all(agents[:2], 0, 1.0))
        assert all(isinstance(outcome, (Value, Failure)) for outcome, _ in garbled)
        for pair in ((agents[0], agents[2]), (agents[1], agents[2])):
            sane = [
                (future, expected)
                for agent, other in (pair, pair[::-1])
                for future, expected in _call_one(agent, other)
            ]
            assert all(_is_right(*pair) for pair in _outcomes(sane))


def _call_one(agent, other):
    name = f"{__name__}:add"
    future = agent.rpc_async(other.info.name, name, (-1, "sane"), timeout=30)
    yield future, [-1, "sane"]


@LINKS
def test_a_call_whose_cancel_is_lost_ends_all_the_same(link_kind: str) -> None:
    """The caller's half ends at once; the callee's runs to its end, once."""
    started, may_end = threading.Event(), threading.Event()
    ran = []

    def wait_for_it() -> None:
        started.set()
        assert may_end.wait(15)
        ran.append(1)

    wait_for_it.__qualname__ = "wait_for_it"
    with (
        plan_of(FaultKind.DROP, Kind.CANCEL, chance=1.0) as plan,
        agents_with_faults(link_kind, plan, wait_for_it, count=2) as agents,
    ):
        future = agents[0].rpc_async("w1", wait_for_it)
        assert started.wait(15)
        assert future.cancel()
        assert future.cancelled()
        may_end.set()
        future = agents[0].rpc_async("w1", wait_for_it)
        assert future.wait(15) is None
        assert len(ran) == 2
