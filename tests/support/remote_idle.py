"""Workers that do little, and how much of a core they take for it."""

from __future__ import annotations

import asyncio
import os
import threading
import time
from typing import TYPE_CHECKING

import rpcfut
from tests.support import remote

if TYPE_CHECKING:
    from collections.abc import Callable

_WINDOW_S = 2.0
_SETTLE_S = 0.25  # the watchdog and the pool come to rest
_TRAFFIC = 300
_EVERY_S = 0.01


_may_leave = threading.Event()
_demanded: list[rpcfut.Future[int]] = []


@rpcfut.expose
def until_demanded() -> rpcfut.Future[int]:
    _demanded.append(rpcfut.Future())
    return _demanded[-1]


@rpcfut.expose
def demand() -> None:
    _demanded.pop().set_result(1)


@rpcfut.expose
def let_leave() -> None:
    _may_leave.set()


def cpu_seconds(pid: int) -> float:
    """What all threads of a process used, to the nanosecond; see clock_getcpuclockid.

    A share of it in a window does not grow when other processes want the processor.
    """
    return time.clock_gettime((~pid << 3) | 2)


def share_of_core(pids: list[int], work: Callable[[], object]) -> list[float]:
    """Percent of a core that each process uses while `work` runs."""
    begin_ns = time.perf_counter_ns()
    before = [cpu_seconds(pid) for pid in pids]
    work()
    after = [cpu_seconds(pid) for pid in pids]
    wall_s = (time.perf_counter_ns() - begin_ns) / 1e9
    return [100 * (b - a) / wall_s for a, b in zip(before, after, strict=True)]


def pause(seconds: float = _WINDOW_S) -> None:
    threading.Event().wait(seconds)


def be_idle(rank: int, count: int, rendezvous: str) -> dict[str, list[float]] | None:
    """Rank 0 measures both: after traffic, with a waiter, with an asyncio waiter."""
    rpcfut.init_rpc(f"w{rank}", rank, count, init_method=rendezvous)
    if rank != 0:
        _may_leave.wait(60)  # shutdown() looks now and then whether its calls ended
        rpcfut.shutdown()
        return None
    pids = [os.getpid(), rpcfut.rpc_sync("w1", remote.pid_here)]
    found = {}
    for state, waiter in (
        ("nothing", None),
        ("a waiter", lambda call: call.wait()),
        ("an asyncio waiter", lambda call: asyncio.run(_await(call))),
    ):
        for future in [
            rpcfut.rpc_async("w1", remote.add, (1,)) for _ in range(_TRAFFIC)
        ]:
            future.wait(30)
        call = thread = None
        if waiter is not None:
            call = rpcfut.rpc_async("w1", until_demanded)
            thread = threading.Thread(target=waiter, args=(call,))
            thread.start()
        pause(_SETTLE_S)
        found[state] = share_of_core(pids, pause)
        if thread is not None:
            rpcfut.rpc_sync("w1", demand)
            thread.join()
    rpcfut.rpc_sync("w1", let_leave)
    rpcfut.shutdown(timeout=20)
    return found


async def _await(call: rpcfut.Future[int]) -> int:
    return await call


def call_now_and_then(rank: int, count: int, rendezvous: str) -> list[float] | None:
    """Rank 0 makes a call every 10 ms, and measures both."""
    rpcfut.init_rpc(f"w{rank}", rank, count, init_method=rendezvous)
    if rank != 0:
        _may_leave.wait(60)  # shutdown() looks now and then whether its calls ended
        rpcfut.shutdown()
        return None
    pids = [os.getpid(), rpcfut.rpc_sync("w1", remote.pid_here)]

    def work() -> None:
        for _ in range(int(_WINDOW_S / _EVERY_S)):
            rpcfut.rpc_sync("w1", remote.add, (1,), timeout=30)
            pause(_EVERY_S)

    work()  # first calls cost more
    found = share_of_core(pids, work)
    rpcfut.rpc_sync("w1", let_leave)
    rpcfut.shutdown(timeout=20)
    return found
