"""Functions that test workers with a GPU expose, and what their processes run."""

from __future__ import annotations

from typing import Any

import torch

import rpcfut
from tests.support.latch import Latch
from tests.support.remote import Pair

SIZE = 1 << 16
REPEATS = 20


@rpcfut.expose
def double(x: torch.Tensor) -> torch.Tensor:
    assert x.is_cuda
    assert torch.cuda.current_stream() != torch.cuda.default_stream()
    return x * 2


@rpcfut.expose
def late_ones(cycles: int) -> torch.Tensor:
    """Ones that are written long after the function returned."""
    x = torch.zeros(SIZE, device="cuda:0")
    torch.cuda._sleep(cycles)
    x.fill_(1)
    return x


@rpcfut.expose
def turn_around(pair: Pair) -> Pair:
    return Pair(left=pair.left.neg(), right=[pair.right, pair.left.sum().item()])


def call_with_device_tensors(rank: int, count: int, rendezvous: str) -> Any:
    """Rank 0 sends device tensors to w1 and reads the answers on side streams."""
    rpcfut.init_rpc(f"w{rank}", rank, count, init_method=rendezvous)
    seen: dict[str, Any] = {}
    if rank == 0:
        seen["overwritten"] = [_overwrite(turn) for turn in range(1, REPEATS + 1)]
        seen["late"] = [_read_late() for _ in range(REPEATS)]
        pair = Pair(left=torch.ones(5, device="cuda:0"), right=torch.arange(3))
        back = rpcfut.rpc_sync("w1", turn_around, args=(pair,))
        seen["pair"] = (str(back.left.device), back.left.tolist(), back.right[1])
        child = rpcfut.rpc_async("w1", double, args=(pair.left,)).then(
            lambda f: f.value() + 1
        )
        seen["child"] = child.wait(timeout=30).tolist()
    rpcfut.shutdown(timeout=60)
    return seen


def _overwrite(turn: int) -> tuple[float, float]:
    """STR-8: the argument is the one of the call, in stream order."""
    latch, side = Latch(), torch.cuda.Stream()
    x = torch.zeros(SIZE, device="cuda:0")
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        latch.hold(side)
        x.fill_(turn)
        future = rpcfut.rpc_async("w1", double, args=(x,))
        x.zero_()
    assert not future.done()  # the copy is behind the latch; nobody waits for it here
    latch.open()
    with torch.cuda.stream(torch.cuda.Stream()):
        y = future.wait(timeout=30)
        return y.min().item(), y.max().item()


def _read_late() -> float:
    """STR-1, STR-9: an answer that the GPU has not finished is waited for there."""
    y = rpcfut.rpc_sync("w1", late_ones, args=(50_000_000,), timeout=30)
    with torch.cuda.stream(torch.cuda.Stream()):
        return rpcfut.rpc_async("w1", double, args=(y,)).wait(timeout=30).min().item()
