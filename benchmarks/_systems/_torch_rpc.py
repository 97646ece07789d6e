"""torch.distributed.rpc, with its defaults."""

from __future__ import annotations

import os
import threading
import time
import warnings
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import TYPE_CHECKING

import torch
from torch.distributed import rpc

from benchmarks._probes import (
    arrivals_after_wait,
    cpu_per_call,
    idle_arrivals,
    idle_shares,
    pause,
    rate,
    time_each,
    time_threads,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

    from benchmarks._systems._system import Place

CALLER = "caller"
CALLEE = "callee"
_THREADS = 8


def noop() -> None:
    """Do nothing."""


def stamp(_sent_ns: int) -> int:
    """Return the time of entry."""
    return time.monotonic_ns()


def wait_back() -> int:
    """Wait for a call of our own, and return when that wait ended."""
    rpc.rpc_sync(CALLER, noop)
    return time.monotonic_ns()


def hold(seconds: float) -> None:
    """Answer late."""
    pause(seconds)


class TorchCallee:
    """Serves on torch's threads."""

    def __init__(self, place: Place) -> None:
        _init(place, CALLEE, 1)

    def close(self) -> None:
        """Leave together: torch logs an error for a peer that is gone."""
        rpc.shutdown(graceful=True)


class TorchCaller:
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
            "serve_while_idle": lambda count: idle_arrivals(_call_stamp, count),
            "serve_after_wait": lambda count: arrivals_after_wait(
                _call_wait_back, _call_stamp, count
            ),
            "idle_cpu": self._idle_cpu,
        }
        _call_noop()

    def close(self) -> None:
        """Leave together: torch logs an error for a peer that is gone."""
        rpc.shutdown(graceful=True)

    def _idle_cpu(self, window_s: int) -> list[float]:
        states = {"nothing": _nothing, "waiter": _waiter}
        return idle_shares(states, self._pids, lambda: _call_all(500), window_s)


def _init(place: Place, name: str, rank: int) -> None:
    options = rpc.TensorPipeRpcBackendOptions(
        init_method=f"file://{place.folder / 'store'}", rpc_timeout=120
    )
    warnings.filterwarnings("ignore", module="torch.distributed")
    rpc.init_rpc(name, rank=rank, world_size=2, rpc_backend_options=options)


def _call_noop() -> None:
    rpc.rpc_sync(CALLEE, noop)


def _call_all(count: int) -> None:
    torch.futures.wait_all([rpc.rpc_async(CALLEE, noop) for _ in range(count)])


def _call_stamp(sent_ns: int) -> int:
    arrived_ns: int = rpc.rpc_sync(CALLEE, stamp, args=(sent_ns,))
    return arrived_ns


def _call_wait_back() -> int:
    ended_ns: int = rpc.rpc_sync(CALLEE, wait_back)
    return ended_ns


def _nothing(_seconds: float) -> AbstractContextManager[None]:
    return nullcontext()


@contextmanager
def _waiter(seconds: float) -> Iterator[None]:
    future = rpc.rpc_async(CALLEE, hold, args=(seconds,))
    thread = threading.Thread(target=future.wait, name="waiter", daemon=True)
    thread.start()
    yield
    thread.join()


def open_callee(place: Place) -> TorchCallee:
    """Join the group."""
    return TorchCallee(place)


def open_caller(place: Place) -> TorchCaller:
    """Join the group, and make the first call."""
    return TorchCaller(place)
