"""What processes run in tests of messages to peers that do not read them."""

from __future__ import annotations

import contextlib
import os
import signal
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

import rpcfut
from tests.support.remote import add, echo, pid_here
from tests.support.threads import wait_until

if TYPE_CHECKING:
    from collections.abc import Iterator

PATIENCE_S = 40.0


def stop(pid: int) -> None:
    """Stop a process, and return when none of its threads runs any more."""
    os.kill(pid, signal.SIGSTOP)
    tasks = Path(f"/proc/{pid}/task")
    wait_until(
        lambda: all(
            (task / "stat").read_text().rpartition(")")[2].split()[0] == "T"
            for task in tasks.iterdir()
        )
    )


@contextlib.contextmanager
def _stopped(pid: int) -> Iterator[None]:
    stop(pid)
    try:
        yield
    finally:
        os.kill(pid, signal.SIGCONT)


def call_while_it_is_stopped(
    rank: int, count: int, rendezvous: str, calls: int
) -> list[int] | None:
    """Rank 0 calls w1 very often, none of which it reads, until it goes on."""
    rpcfut.init_rpc(f"w{rank}", rank, count, init_method=rendezvous)
    sums = None
    if rank == 0:
        pid = rpcfut.rpc_sync("w1", pid_here)
        with _stopped(pid):
            sent = [rpcfut.rpc_async("w1", add, (n, 1)) for n in range(calls)]
        sums = rpcfut.wait_all(sent, timeout=PATIENCE_S)
    rpcfut.shutdown(timeout=PATIENCE_S)
    return sums


def overwrite_while_it_is_stopped(
    rank: int, count: int, rendezvous: str, times: int
) -> list[bool] | None:
    """Rank 0 writes to what it sent, while w1 has not read it."""
    rpcfut.init_rpc(f"w{rank}", rank, count, init_method=rendezvous)
    whole = None
    if rank == 0:
        pid = rpcfut.rpc_sync("w1", pid_here)
        sent = []
        large, small = torch.empty(50_000), torch.empty(25)  # 200 kB, 100 bytes
        text = bytearray(100_000)
        with _stopped(pid):
            for number in range(times):
                large.fill_(number)
                small.fill_(number)
                text[:] = bytes([number]) * len(text)
                sent.append(rpcfut.rpc_async("w1", echo, ([large, text, small],)))
            for tensor in (large, small):
                tensor.fill_(-1)
            text[:] = b"\xff" * len(text)
        whole = []
        for number, future in enumerate(sent):
            one, middle, other = future.wait(PATIENCE_S)
            whole.append(
                bool((one == number).all())
                and bool((other == number).all())
                and middle == bytes([number]) * len(text)
            )
    rpcfut.shutdown(timeout=PATIENCE_S)
    return whole


def leave_one_that_does_not_read(rank: int, count: int, rendezvous: str) -> Any:
    """Rank 0 leaves while megabytes wait for w1, which is stopped."""
    rpcfut.init_rpc(f"w{rank}", rank, count, init_method=rendezvous)
    if rank != 0:
        rpcfut.shutdown(timeout=PATIENCE_S)
        return None
    pid = rpcfut.rpc_sync("w1", pid_here)
    stop(pid)
    sent = [rpcfut.rpc_async("w1", echo, (torch.zeros(50_000),)) for _ in range(50)]
    rpcfut.shutdown(timeout=1)
    ends = {type(future.exception(0)).__name__ for future in sent}
    os.kill(pid, signal.SIGKILL)
    return ends
