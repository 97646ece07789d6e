"""Queues between processes stay within their bound, and end whole (RPC-8)."""

from __future__ import annotations

import os
from collections import Counter
from typing import TYPE_CHECKING, Any

import pytest

from tests.support import remote_bounds
from tests.support.group import children
from tests.support.remote_bounds import LARGE, MIB

if TYPE_CHECKING:
    from collections.abc import Callable

pytestmark = pytest.mark.timeout(180)

REPEATS = int(os.environ.get("RPCFUT_BOUND_REPEATS", "20"))
LOAD = 10_000_000
SLACK = 48 * MIB  # the arguments of the call that waits, copies on their way, threads


def _run(function: Callable[..., Any], count: int, *args: object) -> dict[str, Any]:
    """Run a group, and return what rank 0 saw: others may be killed."""
    with children(function, count, *args) as group:
        seen: dict[str, Any] = group[0].result(120)
        return seen


def _repeated(count: int = REPEATS) -> pytest.MarkDecorator:
    return pytest.mark.parametrize("turn", range(count))


@pytest.mark.parametrize("bound", [64 * MIB])
def test_b88_a_stopped_peer_blocks_its_callers_within_the_bound(bound: int) -> None:
    """B88: 200 calls of 10 MB would be 2 GB; all are answered once it goes on."""
    seen = _run(remote_bounds.overload_the_stopped, 2, "block", bound)
    assert seen["sent"] == seen["pending"] == bound // LOAD
    assert seen["queued"] <= bound
    assert seen["growth"] < bound + SLACK
    assert seen["values"] == {LOAD: 200}


@pytest.mark.parametrize("bound", [64 * MIB])
def test_b88_calls_to_a_stopped_peer_fail_at_the_bound(bound: int) -> None:
    """B88: with `fail`, the rest is refused with figures, and none of it is kept."""
    seen = _run(remote_bounds.overload_the_stopped, 2, "fail", bound)
    assert seen["sent"] == seen["pending"] == bound // LOAD
    assert seen["growth"] < bound + SLACK
    assert seen["values"] == {LOAD: bound // LOAD}
    ((text, times),) = seen["refused"].items()
    assert times == 200 - bound // LOAD
    assert "57.2 MiB of calls wait for worker 'w1', of at most 64.0 MiB" in text


@pytest.mark.parametrize("ending", ["continued", "killed"])
def test_a_stopped_peer_with_a_full_queue_harms_nobody_else(ending: str) -> None:
    """20,000 calls and 500 MB wait; another peer is called; then all end."""
    _check_load(ending, 20_000)


def _check_load(ending: str, calls: int) -> None:
    seen = _run(remote_bounds.load_the_stopped, 3, ending, calls, 25_000)
    bound = seen["bound"]
    assert bound * 0.95 < seen["queued"] <= bound
    # What a pending call takes here, its future and all, is not in the queue.
    assert seen["growth"] < bound + SLACK + calls * 8000
    assert seen["others"] == {25_000}
    assert seen["others after"] == 25_000
    lost = "PeerLostError"
    assert seen["ends"] == {lost if ending == "killed" else 25_000: calls}
    assert seen["blocked"] == (lost if ending == "killed" else LARGE)


def test_a_peer_that_reads_slowly_is_fed_at_its_own_pace() -> None:
    """200 MB of calls pass through a queue of 4 MB, on both sides."""
    seen = _run(remote_bounds.feed_a_slow_reader, 2)
    assert seen["values"] == {100_000: 2000}
    assert seen["here"] < 4 * MIB + SLACK
    assert seen["there"] < 4 * MIB + SLACK


@pytest.mark.parametrize("ending", ["continued", "killed"])
def test_b88_a_caller_that_reads_no_answers_is_not_served(ending: str) -> None:
    """Its calls are parked: 400 MB of answers do not pile up here."""
    seen = _run(remote_bounds.answer_the_stopped, 3, ending)
    assert seen["made"] <= 16 + 5 + 16 + 1, "the bound, and as many as run at a time"
    assert seen["growth"] < (16 + 16) * MIB + SLACK
    assert seen["parked"] > 0
    assert seen["other"] == 1
    if ending == "continued":
        assert seen["sum"] == 400 * MIB
        assert seen["made after"] == 400
    else:
        assert seen["made after"] == seen["made"]


def test_ctrl_c_ends_a_wait_for_room_and_leaves_nothing() -> None:
    """FUT-2: the call was not made, and the next one is."""
    seen = _run(remote_bounds.interrupt_a_wait_for_room, 2)
    assert seen == {
        "how": "KeyboardInterrupt",
        "waiting": 0,
        "pending": 1,
        "value": 600_000,
        "next": 600_000,
    }


@pytest.mark.slow
@_repeated()
@pytest.mark.parametrize("ending", ["continued", "killed"])
def test_repeated_a_full_queue_ends_whole(ending: str, turn: int) -> None:
    """As above, smaller, many times."""
    del turn
    _check_load(ending, 1000)


@pytest.mark.slow
@_repeated()
@pytest.mark.parametrize("ending", ["continued", "killed"])
def test_repeated_parked_calls_end_whole(ending: str, turn: int) -> None:
    """As above, many times."""
    del turn
    test_b88_a_caller_that_reads_no_answers_is_not_served(ending)


@pytest.mark.slow
@_repeated()
def test_repeated_ctrl_c_leaves_nothing(turn: int) -> None:
    """As above, many times."""
    del turn
    test_ctrl_c_ends_a_wait_for_room_and_leaves_nothing()


@pytest.mark.slow
@_repeated(max(1, REPEATS // 4))
def test_repeated_blocked_callers_all_get_their_turn(turn: int) -> None:
    """As above, many times."""
    del turn
    seen = _run(remote_bounds.overload_the_stopped, 2, "block", 32 * MIB)
    assert seen["values"] == Counter({LOAD: 200})
