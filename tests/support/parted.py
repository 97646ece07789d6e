"""What two workers on two hosts run while what joins them is cut."""

from __future__ import annotations

import os
from collections import Counter
from typing import TYPE_CHECKING, Any

import rpcfut
from rpcfut.transport import MonotonicClock
from tests.support.hosts import enter
from tests.support.networked import SECRET

if TYPE_CHECKING:
    from multiprocessing.connection import Connection

PATIENCE_S = 60.0
CALLS = 20


@rpcfut.expose
def pid_here() -> int:
    """Return this process's id."""
    return os.getpid()


@rpcfut.expose
def same(number: int) -> int:
    """Return a number."""
    return number


@rpcfut.expose
def never() -> rpcfut.Future[None]:
    """Return what is never done."""
    return rpcfut.Future()


def call_the_other(
    rank: int,
    count: int,
    rendezvous: str,
    names: tuple[str, ...],
    init_method: str,
    lost_after_s: float,
    pipes: list[Connection],
) -> Any:
    """Rank 0 calls while the parent does something to rank 1; how its calls ended.

    The parent is told rank 1's process; it answers before, and after, it has acted.
    """
    del rendezvous
    enter(names[rank], None, f"node{rank}")
    rpcfut.init_rpc(
        f"w{rank}",
        rank,
        count,
        init_method=init_method,
        secret=SECRET,
        lost_after_s=lost_after_s,
    )
    pipe = pipes[rank]
    if rank != 0:
        pipe.recv()
        rpcfut.shutdown(graceful=False)
        return None
    clock = MonotonicClock()
    waits = rpcfut.rpc_async("w1", never)
    pipe.send(rpcfut.rpc_sync("w1", pid_here))
    pipe.recv()
    start_s = clock.now_s()
    calls = [rpcfut.rpc_async("w1", same, (number,)) for number in range(CALLS)]
    if pipe.recv() == "for good":
        error = waits.exception(PATIENCE_S)
        seen = type(error).__name__, clock.now_s() - start_s
    else:
        seen = "pending" if not waits.done() else repr(waits.exception()), 0.0
    ends = Counter(_end_of(call, number) for number, call in enumerate(calls))
    again = "" if seen[0] != "pending" else rpcfut.rpc_sync("w1", same, (7,), None, 30)
    rpcfut.shutdown(graceful=False)
    return *seen, ends, again


def _end_of(call: rpcfut.Future[int], number: int) -> str:
    error = call.exception(PATIENCE_S)
    if error is not None:
        return type(error).__name__
    return "right" if call.result() == number else "wrong"
