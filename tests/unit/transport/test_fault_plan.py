"""What a plan says goes wrong does go wrong, is counted, and nothing else does."""

from __future__ import annotations

import pytest

from rpcfut_transport import (
    FaultKind,
    FaultPlan,
    FaultRule,
    Kind,
    LocalProtocolError,
    MemoryLink,
    MemoryNetwork,
)
from rpcfut_transport._wire import HEADER_NBYTES, Header, encode_header

CALLS = tuple(range(1, 6))


def _links(plan: FaultPlan, count: int = 3) -> list[MemoryLink]:
    """Links that reach each other by their place in the list."""
    network = MemoryNetwork(plan)
    links = [MemoryLink(network) for _ in range(count)]
    for link in links:
        for rank, other in enumerate(links):
            link.connect(rank, other.address)
    return links


def _message(kind: Kind, number: int, sender: int = 0) -> list[bytes]:
    return [encode_header(Header(kind, number, sender, 1, 2, None, 0)), b"x" * number]


def _send_calls(link: MemoryLink, rank: int = 1, kind: Kind = Kind.CALL) -> None:
    for number in CALLS:
        link.send(rank, _message(kind, number))


def _arrived(link: MemoryLink) -> list[int]:
    """The numbers of the whole messages that came."""
    numbers = []
    while (frames := link.receive(0)) is not None:
        assert list(map(bytes, frames)) in [
            _message(kind, len(frames[1]), sender)
            for kind in Kind
            for sender in range(3)
        ]
        numbers.append(len(frames[1]))
    return numbers


@pytest.mark.parametrize(
    ("fault", "expected"),
    [
        (FaultKind.DROP, [1, 3, 5]),
        (FaultKind.DOUBLE, [1, 2, 2, 3, 4, 4, 5]),
        (FaultKind.DELAY, [1, 3, 5]),
        (FaultKind.REORDER, [1, 3, 2, 5, 4]),
    ],
)
def test_it_happens_to_the_messages_with_the_given_numbers(fault, expected) -> None:
    with FaultPlan([FaultRule(fault=fault, at=frozenset({2, 4}))]) as plan:
        sender, receiver, _ = _links(plan)
        _send_calls(sender)
        assert _arrived(receiver) == expected
        assert plan.count(fault) == 2


def test_what_is_delayed_arrives_when_told_in_its_order() -> None:
    with FaultPlan([FaultRule(fault=FaultKind.DELAY, at=frozenset({1, 3}))]) as plan:
        sender, receiver, _ = _links(plan)
        _send_calls(sender)
        assert _arrived(receiver) == [2, 4, 5]
        assert plan.delayed_count == 2
        assert plan.release() == 2
        assert _arrived(receiver) == [1, 3]


def test_what_was_to_be_overtaken_by_nobody_arrives_when_told() -> None:
    with FaultPlan([FaultRule(fault=FaultKind.REORDER, at=frozenset({5}))]) as plan:
        sender, receiver, _ = _links(plan)
        _send_calls(sender)
        assert _arrived(receiver) == [1, 2, 3, 4]
        assert (plan.delayed_count, plan.release(), plan.delayed_count) == (1, 1, 0)
        assert _arrived(receiver) == [5]


def test_messages_of_other_ways_do_not_overtake() -> None:
    with FaultPlan([FaultRule(fault=FaultKind.REORDER, at=frozenset({1}))]) as plan:
        first, receiver, third = _links(plan)
        first.send(1, _message(Kind.CALL, 1))
        third.send(1, _message(Kind.CALL, 2))
        first.send(2, _message(Kind.CALL, 3))
        assert _arrived(receiver) == [2]
        first.send(1, _message(Kind.CALL, 4))
        assert _arrived(receiver) == [4, 1]


@pytest.mark.parametrize("fault", [FaultKind.TRUNCATE, FaultKind.CORRUPT])
def test_a_spoilt_message_is_another_and_the_next_is_whole(fault) -> None:
    with FaultPlan([FaultRule(fault=fault, at=frozenset({1}))]) as plan:
        sender, receiver, _ = _links(plan)
        message = _message(Kind.CALL, 9)
        sender.send(1, message)
        spoilt = receiver.receive(0)
        assert spoilt is not None
        assert type(spoilt[0]) is bytes
        assert b"".join(spoilt) != b"".join(message)
        sender.send(1, _message(Kind.CALL, 3))
        assert _arrived(receiver) == [3]


def test_messages_of_any_size_can_be_spoilt() -> None:
    rules = [
        FaultRule(fault=FaultKind.TRUNCATE, receiver=1, chance=1.0),
        FaultRule(fault=FaultKind.CORRUPT, receiver=2, chance=1.0),
    ]
    with FaultPlan(rules) as plan:
        sender, *receivers = _links(plan)
        for rank, receiver in enumerate(receivers, start=1):
            for frames in ([b""], [b"", b""], [b"a"], [b"", bytearray(200_000)]):
                sender.send(rank, frames)
                spoilt = receiver.receive(0)
                assert spoilt is not None
                assert b"".join(spoilt) != b"".join(frames) or not b"".join(frames)


def test_corruption_of_headers_spares_the_rest() -> None:
    rule = FaultRule(fault=FaultKind.CORRUPT, chance=1.0, header_only=True)
    with FaultPlan([rule]) as plan:
        sender, receiver, _ = _links(plan)
        for _ in range(50):
            sender.send(1, [_message(Kind.CALL, 1)[0] + b"body", b"buffer"])
            first, buffer = receiver.receive(0) or []
            assert (first[HEADER_NBYTES:], bytes(buffer)) == (b"body", b"buffer")
            assert first[:HEADER_NBYTES] != _message(Kind.CALL, 1)[0]


def test_a_rule_is_about_its_sender_receiver_and_kind_only() -> None:
    rule = FaultRule(
        fault=FaultKind.DROP, kind=Kind.RESULT, sender=0, receiver=2, chance=1.0
    )
    with FaultPlan([rule]) as plan:
        first, second, third = _links(plan)
        _send_calls(first, 2, Kind.CALL)
        _send_calls(first, 1, Kind.RESULT)
        second.send(2, _message(Kind.RESULT, 7, sender=1))
        assert (_arrived(third), _arrived(second)) == ([*CALLS, 7], list(CALLS))
        first.send(2, [b"no message of an endpoint", b""])
        assert third.receive(0) is not None
        first.send(2, _message(Kind.RESULT, 7))
        assert _arrived(third) == []


def test_a_seed_says_which_messages_are_hit() -> None:
    def run(seed: int) -> list[int]:
        plan = FaultPlan([FaultRule(fault=FaultKind.DROP, chance=0.5)], seed)
        sender, receiver, _ = _links(plan)
        for _ in range(20):
            _send_calls(sender)
        return _arrived(receiver)

    assert run(1) == run(1)
    assert run(1) != run(2)
    assert 20 < len(run(1)) < 80


def test_of_two_rules_that_fire_the_first_counts() -> None:
    rules = [
        FaultRule(fault=FaultKind.DOUBLE, at=frozenset({2})),
        FaultRule(fault=FaultKind.DROP, at=frozenset({2, 3})),
    ]
    with FaultPlan(rules) as plan:
        sender, receiver, _ = _links(plan)
        _send_calls(sender)
        assert _arrived(receiver) == [1, 2, 2, 4, 5]


def test_after_the_end_all_arrives() -> None:
    with FaultPlan([FaultRule(fault=FaultKind.DELAY, chance=1.0)]) as plan:
        sender, receiver, _ = _links(plan)
        _send_calls(sender)
        assert _arrived(receiver) == []
        assert plan.stop() == 5
        _send_calls(sender)
        assert _arrived(receiver) == [*CALLS, *CALLS]
        assert repr(plan) == "<FaultPlan over: delay 5; 0 kept>"


def test_a_fault_that_never_came_about_fails_the_test() -> None:
    rule = FaultRule(fault=FaultKind.DROP, at=frozenset({6}))
    plan = FaultPlan([rule])
    _send_calls(_links(plan)[0])
    with pytest.raises(AssertionError, match=r"FaultKind.DROP.*\(5 fitted\)"), plan:
        pass
    # What failed first counts.
    with pytest.raises(KeyError), FaultPlan([rule]):
        raise KeyError


@pytest.mark.parametrize(
    "wrong", [{}, {"chance": 1.5}, {"chance": -0.1}, {"at": frozenset({0})}]
)
def test_a_rule_that_could_never_fire_is_refused(wrong) -> None:
    with pytest.raises(LocalProtocolError):
        FaultRule(fault=FaultKind.DROP, **wrong)


def test_a_doubled_message_is_two_that_share_no_memory() -> None:
    with FaultPlan([FaultRule(fault=FaultKind.DOUBLE, at=frozenset({1}))]) as plan:
        sender, receiver, _ = _links(plan)
        sender.send(1, [b"", b"ab"])
        one, other = (receiver.receive(0) or [])[1], (receiver.receive(0) or [])[1]
        one[0] = ord("X")
        assert bytes(other) == b"ab"
