"""rpcfut, with its defaults."""

from __future__ import annotations

import asyncio
import os
import threading
import time
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import TYPE_CHECKING

import rpcfut
from benchmarks._probes import (
    arrivals_after_wait,
    cpu_per_call,
    idle_arrivals,
    idle_shares,
    pause,
    rate,
    time_awaits,
    time_each,
    time_threads,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

    from benchmarks._systems._system import Place

CALLER = "caller"
CALLEE = "callee"
_THREADS = 8
_SHUTDOWN_S = 2.0


@rpcfut.expose
def noop() -> None:
    """Do nothing."""


@rpcfut.expose
def stamp(_sent_ns: int) -> int:
    """Return the time of entry."""
    return time.monotonic_ns()


@rpcfut.expose
def wait_back() -> int:
    """Wait for a call of our own, and return when that wait ended."""
    rpcfut.rpc_sync(CALLER, noop)
    return time.monotonic_ns()


@rpcfut.expose
def hold(seconds: float) -> None:
    """Answer late."""
    pause(seconds)


class RpcfutCallee:
    """Serves on rpcfut's threads."""

    def __init__(self, place: Place) -> None:
        _init(place, CALLEE, 1)

    def close(self) -> None:
        """Leave without waiting for the other."""
        rpcfut.shutdown(graceful=False, timeout=_SHUTDOWN_S)


class RpcfutCaller:
    """Calls with rpc_sync and rpc_async."""

    def __init__(self, place: Place) -> None:
        _init(place, CALLER, 0)
        self._pids = [os.getpid()]
        if place.callee_pid is not None:
            self._pids.append(place.callee_pid)
        calls = [_call_noop] * _THREADS
        self.probes = {
            "noop_rtt": lambda count: time_each(_call_noop, count),
            "noop_rate": lambda count: rate(_call_all, count),
            "callers2": lambda count: time_threads(calls[:2], count),
            "callers4": lambda count: time_threads(calls[:4], count),
            "callers8": lambda count: time_threads(calls, count),
            "noop_cpu": lambda count: cpu_per_call(_call_all, self._pids, count),
            "await_rtt": lambda count: asyncio.run(time_awaits(_start_noop, count)),
            "serve_while_idle": lambda count: idle_arrivals(_call_stamp, count),
            "serve_after_wait": lambda count: arrivals_after_wait(
                _call_wait_back, _call_stamp, count
            ),
            "idle_cpu": self._idle_cpu,
        }
        _call_noop()

    def close(self) -> None:
        """Leave without waiting for the other."""
        rpcfut.shutdown(graceful=False, timeout=_SHUTDOWN_S)

    def _idle_cpu(self, window_s: int) -> list[float]:
        states = {"nothing": _nothing, "waiter": _waiter, "asyncio": _asyncio_waiter}
        return idle_shares(states, self._pids, lambda: _call_all(500), window_s)


def _init(place: Place, name: str, rank: int) -> None:
    store = f"file://{place.folder / 'store'}"
    rpcfut.init_rpc(name, rank=rank, world_size=2, init_method=store)


def _call_noop() -> None:
    rpcfut.rpc_sync(CALLEE, noop)


def _start_noop() -> rpcfut.Future[None]:
    return rpcfut.rpc_async(CALLEE, noop)


def _call_all(count: int) -> None:
    for future in [rpcfut.rpc_async(CALLEE, noop) for _ in range(count)]:
        future.wait()


def _call_stamp(sent_ns: int) -> int:
    return rpcfut.rpc_sync(CALLEE, stamp, args=(sent_ns,))


def _call_wait_back() -> int:
    return rpcfut.rpc_sync(CALLEE, wait_back)


def _nothing(_seconds: float) -> AbstractContextManager[None]:
    return nullcontext()


@contextmanager
def _waiter(seconds: float) -> Iterator[None]:
    future = rpcfut.rpc_async(CALLEE, hold, args=(seconds,))
    thread = threading.Thread(target=future.wait, name="waiter", daemon=True)
    thread.start()
    yield
    thread.join()


@contextmanager
def _asyncio_waiter(seconds: float) -> Iterator[None]:
    async def wait() -> None:
        await rpcfut.rpc_async(CALLEE, hold, args=(seconds,))

    thread = threading.Thread(
        target=lambda: asyncio.run(wait()), name="asyncio waiter", daemon=True
    )
    thread.start()
    yield
    thread.join()


def open_callee(place: Place) -> RpcfutCallee:
    """Join the group."""
    return RpcfutCallee(place)


def open_caller(place: Place) -> RpcfutCaller:
    """Join the group, and make the first call."""
    return RpcfutCaller(place)
