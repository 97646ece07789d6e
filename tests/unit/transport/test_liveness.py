"""A process that dies on this host is noticed at once (RPC-7)."""

from __future__ import annotations

import os
import queue
import subprocess
import sys
import threading
from contextlib import contextmanager
from typing import TYPE_CHECKING

import pytest

from rpcfut_transport import ClosedError, describe_this_process
from rpcfut_transport._liveness import (
    PidWatch,
    host_id,
    pid_namespace,
    process_start_time,
)
from tests.support.links import PATIENCE_S

if TYPE_CHECKING:
    from collections.abc import Iterator


@contextmanager
def _process() -> Iterator[subprocess.Popen[bytes]]:
    """Run a process that waits until its input ends."""
    with subprocess.Popen(
        [sys.executable, "-S", "-c", "input()"],
        stdin=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
    ) as process:
        try:
            yield process
        finally:
            process.kill()


@contextmanager
def _watch() -> Iterator[PidWatch]:
    watch = PidWatch()
    try:
        yield watch
    finally:
        watch.close()


def _watch_process(watch: PidWatch, rank: int, pid: int) -> queue.SimpleQueue:
    lost: queue.SimpleQueue[tuple[int, str]] = queue.SimpleQueue()
    watch.watch(rank, os.pidfd_open(pid), lambda *what: lost.put(what), f"{pid} ended")
    return lost


def test_a_killed_process_is_reported_once_while_it_is_a_zombie() -> None:
    """Nobody has to collect the child first."""
    with _watch() as watch, _process() as one, _process() as two:
        lost = _watch_process(watch, 1, one.pid)
        others = _watch_process(watch, 2, two.pid)
        one.kill()
        assert lost.get(timeout=PATIENCE_S) == (1, f"{one.pid} ended")
        two.kill()
        assert others.get(timeout=PATIENCE_S)[0] == 2
        assert lost.empty()
        assert repr(watch) == "<PidWatch open watched=0>"


def test_a_process_that_was_lost_before_is_reported_at_once() -> None:
    """A peer that died before it was added does not look alive for ever."""
    with _watch() as watch, _process() as process:
        pidfd = os.pidfd_open(process.pid)
        process.kill()
        process.wait()
        lost: queue.SimpleQueue[tuple[int, str]] = queue.SimpleQueue()
        watch.watch(1, pidfd, lambda *what: lost.put(what))
        assert lost.get(timeout=PATIENCE_S) == (1, "its process ended")
        watch.watch(2, None, lambda *what: lost.put(what), "nobody listens")
        assert lost.get(timeout=PATIENCE_S) == (2, "nobody listens")


def test_who_reports_may_raise_close_and_watch_again() -> None:
    """What is called back may do anything, and the thread goes on or ends cleanly."""
    with _watch() as watch, _process() as one, _process() as two:
        lost: queue.SimpleQueue[str] = queue.SimpleQueue()

        def watch_other(rank: int, reason: str) -> None:
            watch.watch(2, os.pidfd_open(two.pid), close_all)
            lost.put("one")
            raise ValueError("from a handler")

        def close_all(rank: int, reason: str) -> None:
            watch.close()
            lost.put("two")

        watch.watch(1, os.pidfd_open(one.pid), watch_other)
        one.kill()
        assert lost.get(timeout=PATIENCE_S) == "one"
        two.kill()
        assert lost.get(timeout=PATIENCE_S) == "two"


def test_a_forgotten_process_is_not_reported() -> None:
    """A peer that said goodbye may exit."""
    with _watch() as watch, _process() as one, _process() as two:
        forgotten = _watch_process(watch, 1, one.pid)
        lost = _watch_process(watch, 2, two.pid)
        watch.unwatch(1)
        watch.unwatch(7)
        one.kill()
        one.wait()
        two.kill()
        lost.get(timeout=PATIENCE_S)
        assert forgotten.empty()


def test_close_may_be_repeated_and_ends_the_thread_and_its_descriptors() -> None:
    """Nothing is left, and nothing can be watched after."""
    before = len(os.listdir("/proc/self/fd"))
    with _process() as process:
        watch = PidWatch()
        _watch_process(watch, 1, process.pid)
        watch.close()
        watch.close()
        assert "rpcfut-liveness" not in {t.name for t in threading.enumerate()}
        assert repr(watch) == "<PidWatch closed watched=0>"
        with pytest.raises(ClosedError):
            _watch_process(watch, 1, process.pid)
        watch.unwatch(1)
    assert len(os.listdir("/proc/self/fd")) == before


def test_what_names_this_process_is_stable() -> None:
    """Two records of one process agree, and one of another host does not."""
    first = describe_this_process(rank=0, name="w0", incarnation=1, address="a")
    second = describe_this_process(rank=0, name="w0", incarnation=1, address="a")
    assert first == second
    assert first.start_time == process_start_time(os.getpid())
    assert (first.pid_namespace, first.host_id) == (pid_namespace(), host_id())
    assert first.sees_pids_of(second)


def test_a_process_that_is_gone_has_no_start_time() -> None:
    """The kernel's highest pid is far above any that exists."""
    assert process_start_time(2**31 - 1) is None
