"""What the processes of the tests of bounded queues run (RPC-8).

Rank 0 looks at what its peers do to it; ``w1`` is stopped, ``w2`` is called meanwhile.
"""

from __future__ import annotations

import os
import re
import signal
import threading
from collections import Counter
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import rpcfut
from rpcfut._process import current_agent
from tests.support.threads import Running, wait_until

if TYPE_CHECKING:
    from collections.abc import Iterator

MIB = 2**20
LARGE = 8 * MIB
PATIENCE_S = 60


@rpcfut.expose
def size_of(load: bytes) -> int:
    """Return how long what came is."""
    return len(load)


@rpcfut.expose(serial=True)
def read_slowly(load: bytes) -> int:
    """Take a moment for each call, one at a time."""
    threading.Event().wait(0.001)
    return len(load)


@rpcfut.expose
def rss_here() -> int:
    """Return how much memory this process has now, in bytes."""
    return rss()


@rpcfut.expose
def pid_here() -> int:
    """Return this process's id."""
    return os.getpid()


_made: list[int] = []


@rpcfut.expose
def make(nbytes: int) -> bytes:
    """Return a large answer."""
    _made.append(nbytes)
    return b"x" * nbytes


_asked: list[rpcfut.Future[bytes]] = []


@rpcfut.expose
def ask_for(to: str, nbytes: int, times: int) -> None:
    """Call a worker for large answers; `sum_of_answers` waits for them."""
    _asked.extend(rpcfut.rpc_async(to, make, (nbytes,)) for _ in range(times))


@rpcfut.expose
def sum_of_answers() -> int:
    """Wait for all that was asked for, and return how much it was."""
    return sum(len(future.wait(PATIENCE_S)) for future in _asked)


def rss() -> int:
    """How much memory this process has now, in bytes."""
    found = re.search(r"VmRSS:\s+(\d+) kB", Path("/proc/self/status").read_text())
    assert found is not None
    return int(found[1]) * 1024


class Growth:
    """By how much this process grows, looked at all the time."""

    def __init__(self) -> None:
        self._before = rss()
        self.most = 0
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._look, daemon=True)
        self._thread.start()

    def _look(self) -> None:
        while not self._stop.wait(0.005):
            self.most = max(self.most, rss() - self._before)

    def end(self) -> int:
        """Stop looking, and return the most in bytes."""
        self._stop.set()
        self._thread.join()
        return self.most


@contextmanager
def _joined(
    rank: int, count: int, rendezvous: str, **options: Any
) -> Iterator[rpcfut.Agent]:
    rpcfut.init_rpc(f"w{rank}", rank, count, init_method=rendezvous, **options)
    try:
        yield current_agent()
    finally:
        rpcfut.shutdown(timeout=20)


def _load(nbytes: int) -> bytes:
    """Make an argument anew: one that is sent twice is kept once."""
    return b"x" * nbytes


def _waiting(agent: rpcfut.Agent) -> int:
    return agent._endpoint.rooms.look()[1].waiting


def _queued(agent: rpcfut.Agent) -> int:
    return agent._endpoint.rooms.look()[1].calls_nbytes


def overload_the_stopped(
    rank: int, count: int, rendezvous: str, when_full: str, bound: int
) -> Any:
    """Rank 0 stops w1 and makes 200 calls of 10 MB to it; lets it go on."""
    seen: dict[str, Any] = {}
    options = {"queue_nbytes": bound, "when_full": when_full}
    with _joined(rank, count, rendezvous, **options) as agent:
        if rank != 0:
            return None
        pid = rpcfut.rpc_sync("w1", pid_here)
        rpcfut.rpc_sync("w1", size_of, (_load(10_000_000),))
        os.kill(pid, signal.SIGSTOP)
        growth = Growth()
        futures: list[rpcfut.Future[int]] = []
        ends: Counter[str] = Counter()

        def call_all() -> None:
            for _ in range(200):
                try:
                    load = _load(10_000_000)
                    futures.append(rpcfut.rpc_async("w1", size_of, (load,)))
                except rpcfut.QueueFullError as error:
                    ends[str(error).partition(": ")[2]] += 1

        caller = Running(call_all)
        if when_full == "block":
            wait_until(lambda: _waiting(agent) == 1)
        else:
            caller.result()
        seen["sent"] = len(futures)
        seen["pending"] = agent._endpoint.pending_count
        seen["queued"] = _queued(agent)
        seen["growth"] = growth.end()
        os.kill(pid, signal.SIGCONT)
        wait_until(lambda: len(futures) + ends.total() == 200, PATIENCE_S)
        caller.result()
        seen["values"] = Counter(future.wait(PATIENCE_S) for future in futures)
        seen["refused"] = ends
        wait_until(lambda: _queued(agent) == 0)
    return seen


def load_the_stopped(
    rank: int, count: int, rendezvous: str, ending: str, calls: int, nbytes: int
) -> Any:
    """Rank 0 stops w1, has calls wait for it, calls w2; then w1 goes on, or dies."""
    bound = calls * (nbytes + 400)
    with _joined(rank, count, rendezvous, queue_nbytes=bound) as agent:
        if rank != 0:
            return None
        seen: dict[str, Any] = {"bound": bound}
        pid = rpcfut.rpc_sync("w1", pid_here)
        load = b"x" * nbytes
        os.kill(pid, signal.SIGSTOP)
        growth = Growth()
        futures = [rpcfut.rpc_async("w1", size_of, (load,)) for _ in range(calls)]
        blocked = Running(lambda: rpcfut.rpc_async("w1", size_of, (b"x" * LARGE,)))
        wait_until(lambda: _waiting(agent) == 1)
        seen["queued"] = _queued(agent)
        seen["others"] = {rpcfut.rpc_sync("w2", size_of, (load,)) for _ in range(200)}
        seen["growth"] = growth.end()
        os.kill(pid, signal.SIGCONT if ending == "continued" else signal.SIGKILL)
        seen["ends"] = Counter(_end_of(future) for future in futures)
        seen["blocked"] = _end_of(blocked.result())
        seen["others after"] = rpcfut.rpc_sync("w2", size_of, (load,))
    return seen


def _end_of(future: rpcfut.Future[int]) -> Any:
    error = future.exception(PATIENCE_S)
    return future.value() if error is None else type(error).__name__


def feed_a_slow_reader(rank: int, count: int, rendezvous: str) -> Any:
    """Rank 0 makes 2,000 calls of 100 KB to w1, which takes one at a time."""
    with _joined(rank, count, rendezvous, queue_nbytes=4 * MIB):
        if rank != 0:
            return None
        rpcfut.rpc_sync("w1", read_slowly, (_load(100_000),))
        before = rpcfut.rpc_sync("w1", rss_here)
        growth, there = Growth(), 0
        futures = []
        for number in range(2000):
            futures.append(rpcfut.rpc_async("w1", read_slowly, (_load(100_000),)))
            if number % 100 == 0:
                there = max(there, rpcfut.rpc_sync("w1", rss_here) - before)
        values = Counter(future.wait(PATIENCE_S) for future in futures)
        return {"values": values, "here": growth.end(), "there": there}


def answer_the_stopped(rank: int, count: int, rendezvous: str, ending: str) -> Any:
    """w1 asks rank 0 for 400 answers of 1 MB and is stopped; it goes on, or dies."""
    with _joined(rank, count, rendezvous, queue_nbytes=16 * MIB) as agent:
        if rank != 0:
            return None
        seen: dict[str, Any] = {}
        pid = rpcfut.rpc_sync("w1", pid_here)
        growth = Growth()
        # It is stopped in the middle: its answers do not come as fast as it asks.
        link = agent._endpoint._link
        send, stopped = link.send, threading.Event()

        def stop_and_send(rank: int, frames: Any) -> None:
            if rank == 1 and len(_made) >= 5 and not stopped.is_set():
                stopped.set()
                os.kill(pid, signal.SIGSTOP)
            send(rank, frames)

        link.send = stop_and_send  # type: ignore[method-assign]
        asking = rpcfut.rpc_async("w1", ask_for, ("w0", MIB, 400))
        assert stopped.wait(PATIENCE_S)

        def parked() -> int:
            return agent._endpoint.rooms.look()[1].parked

        def counts() -> tuple[int, int, int]:
            return len(_made), parked(), len(agent._dispatcher.served)

        def has_settled() -> bool:
            seen = counts()
            threading.Event().wait(0.2)
            return 0 < seen[1] == seen[2] and counts() == seen

        # All that came and was not answered is parked: nothing runs any more.
        wait_until(has_settled)
        seen["made"], seen["parked"] = len(_made), parked()
        seen["growth"] = growth.end()
        seen["other"] = rpcfut.rpc_sync("w2", size_of, (b"x",))
        if ending == "continued":
            os.kill(pid, signal.SIGCONT)
            asking.wait(PATIENCE_S)
            seen["sum"] = rpcfut.rpc_sync("w1", sum_of_answers)
            seen["made after"] = len(_made)
        else:
            os.kill(pid, signal.SIGKILL)
            asking.exception(PATIENCE_S)
            wait_until(lambda: not agent._dispatcher.running)
            seen["made after"] = len(_made)
        return seen


def interrupt_a_wait_for_room(rank: int, count: int, rendezvous: str) -> Any:
    """Rank 0's main thread waits for room to the stopped w1, and gets Ctrl-C."""
    with _joined(rank, count, rendezvous, queue_nbytes=MIB) as agent:
        if rank != 0:
            return None
        # A job in the background inherits that the signal is ignored.
        signal.signal(signal.SIGINT, signal.default_int_handler)
        pid = rpcfut.rpc_sync("w1", pid_here)
        load = b"x" * 600_000
        os.kill(pid, signal.SIGSTOP)
        sent = rpcfut.rpc_async("w1", size_of, (load,))

        def interrupt() -> None:
            wait_until(lambda: _waiting(agent) == 1)
            os.kill(os.getpid(), signal.SIGINT)

        interrupter = Running(interrupt)
        how = "nothing"
        try:
            rpcfut.rpc_async("w1", size_of, (load,))
        except KeyboardInterrupt:
            how = "KeyboardInterrupt"
        interrupter.result()
        seen = {"how": how, "waiting": _waiting(agent)}
        seen["pending"] = agent._endpoint.pending_count
        os.kill(pid, signal.SIGCONT)
        seen["value"] = sent.wait(PATIENCE_S)
        seen["next"] = rpcfut.rpc_sync("w1", size_of, (load,))
        wait_until(lambda: _queued(agent) == 0)
        return seen
