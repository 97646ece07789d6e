"""Calls between real processes."""

from __future__ import annotations

import os
import re
import signal
import socket

import pytest

from tests.support import remote
from tests.support.group import children, run_group

pytestmark = pytest.mark.timeout(90)


def test_calls_of_every_kind_come_back_equal() -> None:
    """Tensors, registered classes, nested, self and chained calls; STR-8."""
    seen, _ = run_group(remote.call_peers, 2)
    assert seen == {
        "sum": True,
        "pair": ("Pair", "r", [1.0, 1.0, 1.0]),
        "nested": 50,
        "self": 2,
        "by rank": 2,
        "later": 6,
        "chained": 12,
    }


def test_rpc7_a_killed_peer_fails_its_callers_and_nobody_else() -> None:
    """RPC-7, B01: all calls pending to it fail within 2 s, others go on."""
    with children(remote.be_killed, 3) as group:
        errors, took_s, child_error, alive, text = group[0].result()
        group[2].result()
    assert errors == {"PeerLostError"}
    assert child_error == "PeerLostError"
    assert took_s < 2  # what is promised, not how fast it is
    assert alive == 2
    assert "w1" in text


def test_b99_a_duplicate_name_is_refused_naming_both_ranks() -> None:
    """B99: the second one fails, and the first is told why the group failed."""
    texts = run_group(remote.take_name, 2, "twin")
    assert sorted(text.split(":")[0] for text in texts) == [
        "DuplicateNameError",
        "RendezvousError",
    ]
    for text in texts:
        assert re.search("ranks [01] and [01] both want the name 'twin'", text)


def test_b97_a_missing_rank_is_named() -> None:
    """B97: the error says who did not come."""
    texts = run_group(remote.be_alone, 2)
    for text in texts:
        assert text.startswith("MissingWorkersError: rank 2 of 3 did not come")


def test_b98_a_process_can_join_again_after_shutdown() -> None:
    """B98: init and shutdown may be repeated."""
    assert run_group(remote.join_twice, 2) == [[1, 2], [1, 2]]


def test_b105_exit_without_shutdown_keeps_the_exit_code() -> None:
    """B105: nothing hangs, nothing aborts."""
    with children(remote.leave_without_shutdown, 2) as group:
        assert [child.result() for child in group] == [2, 2]
        for child in group:
            child.process.join(15)
        assert [child.process.exitcode for child in group] == [0, 0]


def test_rpc7_a_stopped_peer_is_not_lost() -> None:
    """RPC-7: stopped and continued, nothing fails."""
    with children(remote.serve_only, 2) as group:
        os.kill(group[1].process.pid, signal.SIGSTOP)
        assert not group[0].results.poll(1)
        os.kill(group[1].process.pid, signal.SIGCONT)
        assert [child.result() for child in group] == ["left", "left"]


def test_a_stopped_peer_does_not_answer_and_a_dead_one_confirms_nothing() -> None:
    """RPC-2, FUT-9, FUT-10: calls end in time, and what they held is let go."""
    with children(remote.ask_the_stopped, 2) as group:
        seen = group[0].result()
    assert "no answer after 0.3 s" in seen["late"]
    assert "worker 'w1' did not say where it is" in seen["late"]
    assert "worker 'w1' does not say where it is" in seen["kept"]
    assert seen["value"] == 2
    assert seen["unconfirmed"] == 2, "the late one and the one given up"
    assert seen["unconfirmed before it died"] == 1


@pytest.mark.parametrize("turn", range(3))
def test_rpc1_ranks_meet_over_tcp_whoever_leaves_first(turn: int) -> None:
    """RPC-1: rank 0 hosts the store and keeps it until it leaves."""
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port = probe.getsockname()[1]
    with children(remote.meet_over_tcp, 3, f"tcp://127.0.0.1:{port}") as group:
        assert [child.result() for child in group] == [turn_ + 1 for turn_ in range(3)]


def test_a_worker_that_ends_by_an_error_is_lost_not_left() -> None:
    """Its peers hear that its process ended, not that it said goodbye."""
    with children(remote.crash_after_joining, 2) as group:
        assert "its process" in group[0].result()
        with pytest.raises(AssertionError, match="on purpose"):
            group[1].result()


def test_a_call_that_comes_while_the_callee_still_joins_is_served() -> None:
    """A peer that is ready a moment earlier calls, and what it calls may call on."""
    for _ in range(3):
        with children(remote.relay_at_once, 3) as group:
            assert [child.result() for child in group] == ["w2", None, None]


def test_a_second_try_to_join_meets_the_others() -> None:
    """The first one came too early; nothing of it stays in the way."""
    with children(remote.try_twice, 2) as group:
        assert [child.result() for child in group] == [2, 1]
