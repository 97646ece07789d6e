"""Workers that are killed or stopped with calls under way (RPC-7, RPC-2).

On one host; on two, `test_parted` has the same.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
from contextlib import contextmanager, suppress
from multiprocessing import get_context
from typing import TYPE_CHECKING, Any

import pytest

from rpcfut_transport.links._inbox_folder import sweep
from tests.support import remote_liveness
from tests.support.group import children
from tests.support.pid_namespace import why_no_pid_namespace

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

pytestmark = pytest.mark.timeout(150)

SEEN_WITHIN_S = 2.0  # what is promised
LATE_S = 15.0  # for what a busy machine adds to the times of heartbeats
LOST_AFTER_S = 2.0
NO_NAMESPACE = why_no_pid_namespace()
TURNS = range(20)


@pytest.fixture(autouse=True)
def _swept() -> Iterator[None]:
    """Remove what killed workers leave, as the next worker would."""
    yield
    sweep(tempfile.gettempdir())


@pytest.fixture
def busy() -> Iterator[None]:
    """Keep all processors busy."""
    burners = [
        subprocess.Popen([sys.executable, "-S", "-c", "while True: pass"])
        for _ in range(os.cpu_count() or 1)
    ]
    try:
        yield
    finally:
        for burner in burners:
            burner.kill()
            burner.wait()


def _run(function: Callable[..., Any], count: int, *args: object) -> Any:
    """Run a group, and return what rank 0 saw: others may be killed."""
    with children(function, count, *args) as group:
        return group[0].result(120)


# ---- killed ---------------------------------------------------------------------


def _kill_with_a_child(within_s: float) -> None:
    errors, took_s, late, alive, are_pending = _run(
        remote_liveness.kill_it_with_a_child, 3
    )
    assert errors == {"PeerLostError"}
    assert took_s < within_s
    assert "'w1' is gone: its process" in late
    assert alive == 2
    assert are_pending


def test_b01_a_killed_peer_fails_all_that_waits_though_its_child_holds_sockets() -> (
    None
):
    """B01: pending calls, what follows from them, and later ones; nobody else's."""
    _kill_with_a_child(SEEN_WITHIN_S)


def _kill_at_a_random_moment(seed: int) -> None:
    seen, counts, alive = _run(remote_liveness.kill_it_at_a_random_moment, 3, seed)
    assert set(seen) <= {"right", "PeerLostError"}
    assert sum(seen.values()) == 20
    assert counts == dict.fromkeys(range(20), 1), "each ends exactly once"
    assert alive == 2


@pytest.mark.parametrize("seed", range(10))
def test_b02_20_calls_end_once_when_their_callee_is_killed(seed: int) -> None:
    """B02: at a random moment while they are made, sent, run or answered."""
    _kill_at_a_random_moment(seed)


def test_b87_a_peer_that_dies_with_a_full_pipe_delays_nobody() -> None:
    """B87: calls to another one are answered before, and after; those to it fail."""
    while_stopped, pending, after, filled = _run(remote_liveness.fill_it_and_kill_it, 3)
    assert while_stopped == {"right": 50}
    assert pending == 50
    assert after == {"right": 100}
    assert filled == {"PeerLostError": 50}


# ---- stopped --------------------------------------------------------------------


def test_rpc7_a_peer_that_is_stopped_for_three_seconds_fails_nothing() -> None:
    """RPC-7: what was sent before and meanwhile is answered when it goes on."""
    assert _run(remote_liveness.stop_it_for_a_while, 2, 3.0) == {"right": 40}


# ---- in another pid namespace ---------------------------------------------------


@contextmanager
def _across(inside: int, lost_after_s: float | None) -> Iterator[tuple[Any, Any, int]]:
    """Two workers that have joined; the pipes to them, and the process of w1."""
    pipes = [get_context("spawn").Pipe() for _ in range(2)]
    args = (inside, lost_after_s, [theirs for _, theirs in pipes])
    with children(remote_liveness.call_across, 2, *args) as group:
        for ours, _ in pipes:
            assert ours.poll(60), "the two do not meet"
            assert ours.recv() == "joined"
        pid = group[1].process.pid
        assert pid is not None
        try:
            yield pipes[0][0], pipes[1][0], pid
        finally:
            for sign in (signal.SIGCONT, signal.SIGKILL):
                with suppress(ProcessLookupError):
                    os.kill(pid, sign)
    for pipe in (end for pair in pipes for end in pair):
        pipe.close()


def _told(pipe: Any) -> tuple[str, float, str]:
    assert pipe.poll(90), "nothing ended"
    told = pipe.recv()
    assert isinstance(told, tuple), told
    return told


def _kill_across(inside: int, within_s: float) -> None:
    with _across(inside, None) as (caller, _, pid):
        os.kill(pid, signal.SIGKILL)
        caller.send("acted")
        kind, took_s, text = _told(caller)
    assert kind == "PeerLostError"
    assert took_s < within_s
    assert "its process" in text


@pytest.mark.skipif(bool(NO_NAMESPACE), reason=NO_NAMESPACE)
@pytest.mark.parametrize("inside", [0, 1])
def test_rpc7_a_killed_peer_is_seen_from_another_pid_namespace(inside: int) -> None:
    """RPC-7: the kernel names the process that listens, whoever sees its number."""
    _kill_across(inside, SEEN_WITHIN_S)


@pytest.mark.skipif(bool(NO_NAMESPACE), reason=NO_NAMESPACE)
def test_rpc7_heartbeats_tell_where_the_kernel_does_not() -> None:
    """RPC-7: an older kernel, and a peer that is killed in another pid namespace."""
    with _across(0, LOST_AFTER_S) as (caller, _, pid):
        os.kill(pid, signal.SIGKILL)
        caller.send("acted")
        kind, took_s, text = _told(caller)
    assert kind == "PeerLostError"
    assert took_s < 1.4 * LOST_AFTER_S + LATE_S
    assert f"lost_after_s={LOST_AFTER_S:g}" in text


@pytest.mark.skipif(bool(NO_NAMESPACE), reason=NO_NAMESPACE)
def test_rpc2_a_peer_that_was_taken_for_lost_hears_of_it_when_it_goes_on() -> None:
    """RPC-2: it sees the other one live, so else its call would wait for ever."""
    with _across(0, LOST_AFTER_S) as (caller, stopped, pid):
        os.kill(pid, signal.SIGSTOP)
        caller.send("acted")
        assert _told(caller)[0] == "PeerLostError"
        os.kill(pid, signal.SIGCONT)
        stopped.send("acted")
        kind, _, text = _told(stopped)
    assert kind == "PeerLostError"
    assert "took this worker for lost" in text


# ---- often ----------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(1000, 1200))
def test_b02_20_calls_end_once_200_times(seed: int) -> None:
    """B02: as above."""
    _kill_at_a_random_moment(seed)


@pytest.mark.slow
@pytest.mark.usefixtures("busy")
@pytest.mark.parametrize("turn", TURNS)
def test_b01_and_others_with_all_processors_busy(turn: int) -> None:
    """B01, B02, B87, RPC-7: again and again, where every thread is late."""
    _kill_at_a_random_moment(turn)
    late = SEEN_WITHIN_S + LATE_S
    _kill_with_a_child(late)
    test_b87_a_peer_that_dies_with_a_full_pipe_delays_nobody()
    test_rpc7_a_peer_that_is_stopped_for_three_seconds_fails_nothing()
    if not NO_NAMESPACE:
        _kill_across(turn % 2, late)
