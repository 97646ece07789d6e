"""How a system is sampled: loops that are the same for every system.

All run in the caller's process. Latencies are in nanoseconds.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, TypeAlias

from benchmarks._measure import UnmeasurableError

if TYPE_CHECKING:
    from contextlib import AbstractContextManager

Probe: TypeAlias = Callable[[int], Sequence[float]]
"""Takes how many samples are wanted."""

IDLE_PAUSE_S = 0.025
AFTER_WAIT_NS = 1_000_000
SETTLE_S = 0.25
"""From the last traffic to the start of a window in which nothing should run."""

_DELAYS_NS = (0, 200_000, 400_000, 600_000, 800_000)


def pause(seconds: float) -> None:
    """Let `seconds` pass without using the processor."""
    threading.Event().wait(seconds)


def time_each(call: Callable[[], object], count: int) -> list[float]:
    """Time `count` calls one after the other, after a tenth as many unseen."""
    for _ in range(max(5, count // 10)):
        call()
    samples: list[float] = []
    for _ in range(count):
        start = time.perf_counter_ns()
        call()
        samples.append(time.perf_counter_ns() - start)
    return samples


async def time_awaits(call: Callable[[], Awaitable[object]], count: int) -> list[float]:
    """Do the same with calls that are awaited."""
    for _ in range(max(5, count // 10)):
        await call()
    samples: list[float] = []
    for _ in range(count):
        start = time.perf_counter_ns()
        await call()
        samples.append(time.perf_counter_ns() - start)
    return samples


def rate(call_all: Callable[[int], object], count: int) -> list[float]:
    """Return one sample: calls a second when `count` are in flight together."""
    call_all(max(5, count // 10))
    start = time.perf_counter_ns()
    call_all(count)
    return [count * 1e9 / (time.perf_counter_ns() - start)]


def time_threads(calls: Sequence[Callable[[], object]], count: int) -> list[float]:
    """Time `count` calls on each of as many threads as there are `calls`."""
    together = threading.Barrier(len(calls))

    def loop(call: Callable[[], object]) -> list[float]:
        together.wait()
        return time_each(call, count)

    with ThreadPoolExecutor(len(calls)) as threads:
        return [sample for samples in threads.map(loop, calls) for sample in samples]


def idle_arrivals(stamp: Callable[[int], int], count: int) -> list[float]:
    """Time from a call's start to the function's entry, on an idle callee.

    Both ends of one host share CLOCK_MONOTONIC, so one way can be measured.

    Args:
        stamp: Calls a function with the argument; it returns its own
            `time.monotonic_ns()`.
        count: How many.
    """
    samples: list[float] = []
    for _ in range(count):
        pause(IDLE_PAUSE_S)
        sent = time.monotonic_ns()
        samples.append(stamp(sent) - sent)
    return samples


def arrivals_after_wait(
    wait_back: Callable[[], int], stamp: Callable[[int], int], count: int
) -> list[float]:
    """Time the same on a callee that was in a blocking wait just now.

    The requests start at various moments of the millisecond after that wait. The
    caller spins until then: a sleep is not that exact.

    Args:
        wait_back: Calls a function that calls us back, waits for us, and returns its
            `time.monotonic_ns()` after that wait.
        stamp: As in `idle_arrivals`.
        count: How many.

    Raises:
        UnmeasurableError: When most requests start later than that.
    """
    samples: list[float] = []
    for i in range(count):
        ended = wait_back()
        due = ended + _DELAYS_NS[i % len(_DELAYS_NS)]
        while (sent := time.monotonic_ns()) < due:
            pass
        arrived = stamp(sent)
        if sent - ended < AFTER_WAIT_NS:
            samples.append(arrived - sent)
    if len(samples) < count / 2:
        raise UnmeasurableError(
            f"only {len(samples)} of {count} requests started within 1 ms of the wait"
        )
    return samples


def cpu_seconds(pid: int) -> float:
    """Return what all threads of a process of ours used, to the nanosecond.

    The clock is the kernel's for that process (see clock_getcpuclockid). The times in
    /proc/<pid>/stat are the same, in steps of 10 ms, half of what is looked for here.
    """
    return time.clock_gettime((~pid << 3) | 2)


def cpu_per_call(
    call_all: Callable[[int], object], pids: Sequence[int], count: int
) -> list[float]:
    """Return one sample: what a call takes of the processes' cores together, in ns.

    A million over it, in us, is how many calls a second one core could carry.

    Args:
        call_all: Makes so many calls, in flight together, and waits for them.
        pids: The processes.
        count: How many.
    """
    call_all(max(5, count // 10))
    before = sum(map(cpu_seconds, pids))
    call_all(count)
    return [(sum(map(cpu_seconds, pids)) - before) * 1e9 / count]


def idle_shares(
    states: Mapping[str, Callable[[float], AbstractContextManager[object]]],
    pids: Sequence[int],
    traffic: Callable[[], object],
    window_s: float,
) -> list[float]:
    """Return how many percent of a core each process uses in each state.

    Args:
        states: What the caller does in the window: each takes how long, in seconds, a
            pending call must stay pending, and waits while the context is open.
        pids: The processes.
        traffic: Makes some calls; runs before each window.
        window_s: For how long to look, a state.
    """
    shares: list[float] = []
    for state in states.values():
        traffic()
        with state(SETTLE_S + window_s + SETTLE_S):
            pause(SETTLE_S)
            start = time.perf_counter_ns()
            before = [cpu_seconds(pid) for pid in pids]
            pause(window_s)
            after = [cpu_seconds(pid) for pid in pids]
            wall_s = (time.perf_counter_ns() - start) / 1e9
        shares += [
            100 * (end - begin) / wall_s
            for begin, end in zip(before, after, strict=True)
        ]
    return shares
