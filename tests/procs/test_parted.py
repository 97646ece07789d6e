"""Workers on two hosts that are cut off, stopped or killed (RPC-7, RPC-2)."""

from __future__ import annotations

import itertools
import os
import signal
import tempfile
import threading
from contextlib import contextmanager
from multiprocessing import get_context
from typing import TYPE_CHECKING, Any

import pytest

from rpcfut_transport.links._inbox_folder import sweep
from tests.support import parted
from tests.support.group import children
from tests.support.hosts import Cable, two_hosts, why_no_namespaces

if TYPE_CHECKING:
    from collections.abc import Iterator

NO_HOSTS = why_no_namespaces()
LOST_AFTER_S = 5.0
LATE_S = 10.0  # for what a busy machine adds to that
_ports = itertools.count(29700)
pytestmark = [
    pytest.mark.timeout(150),
    pytest.mark.skipif(bool(NO_HOSTS), reason=NO_HOSTS),
]


@pytest.fixture(scope="module")
def cable() -> Iterator[Cable]:
    """Two hosts for all tests of this module."""
    with two_hosts() as found:
        yield found


class _Act:
    """What is done to rank 1 or to its cable, and how long it lasts."""

    def __init__(self, cable: Cable) -> None:
        self._cable = cable

    def cut(self) -> None:
        self._cable.run(1, "ip", "link", "set", "eth0", "down")

    def mend(self) -> None:
        self._cable.run(1, "ip", "link", "set", "eth0", "up")
        address = f"{self._cable.address(1, 6)}/64"
        self._cable.run(1, "ip", "addr", "replace", address, "dev", "eth0", "nodad")


@contextmanager
def _swept() -> Iterator[None]:
    """Remove what killed workers leave, as the next worker would."""
    yield
    sweep(tempfile.gettempdir())


def _run(cable: Cable, act: Any, undo: Any, lasts_s: float | None) -> Any:
    """Do something to rank 1, for a while or for good; how rank 0's calls ended."""
    pipes = [get_context("spawn").Pipe() for _ in range(2)]
    place = f"tcp://{cable.address(0)}:{next(_ports)}"
    ends = [end for _, end in pipes]
    args = (cable.names, place, LOST_AFTER_S, ends)
    with _swept(), children(parted.call_the_other, 2, *args) as group:
        caller = pipes[0][0]
        assert caller.poll(60), "the two do not meet"
        pid = caller.recv()
        try:
            act(pid)
            caller.send("acted")
            if lasts_s is None:
                caller.send("for good")
                return group[0].result(90)
            threading.Event().wait(lasts_s)
        finally:
            undo(pid)
        caller.send("undone")
        seen = group[0].result(90)
        pipes[1][0].send("end")
        group[1].result(90)
        return seen


def test_a_cut_shorter_than_the_limit_fails_no_worker(cable: Cable) -> None:
    """What the connection swallowed is found, and all calls end."""
    act = _Act(cable)
    state, _, ends, again = _run(
        cable, lambda _: act.cut(), lambda _: act.mend(), LOST_AFTER_S / 2
    )
    assert state == "pending"
    assert set(ends) <= {"right", "MessageLostError"}
    assert sum(ends.values()) == parted.CALLS
    assert again == 7


def test_a_cut_for_good_loses_the_peer(cable: Cable) -> None:
    """Also the calls that were made after it."""
    act = _Act(cable)
    state, took_s, ends, _ = _run(
        cable, lambda _: act.cut(), lambda _: act.mend(), None
    )
    assert state == "PeerLostError"
    assert took_s < 1.2 * LOST_AFTER_S + LATE_S
    assert ends == {"PeerLostError": parted.CALLS}


def test_a_peer_that_stops_for_less_than_the_limit_is_not_lost(cable: Cable) -> None:
    state, _, ends, again = _run(
        cable,
        lambda pid: os.kill(pid, signal.SIGSTOP),
        lambda pid: os.kill(pid, signal.SIGCONT),
        3.0,
    )
    assert state == "pending"
    assert ends == {"right": parted.CALLS}
    assert again == 7


@pytest.mark.parametrize("sign", [signal.SIGKILL, signal.SIGSTOP])
def test_a_peer_that_is_killed_or_stopped_for_good_is_lost(
    cable: Cable, sign: signal.Signals
) -> None:
    """On another host there is no process to watch: heartbeats say so."""
    state, took_s, ends, _ = _run(
        cable, lambda pid: os.kill(pid, sign), lambda _: None, None
    )
    assert state == "PeerLostError"
    assert took_s < 1.2 * LOST_AFTER_S + LATE_S
    assert set(ends) <= {"PeerLostError", "right"}
