"""Rounds of a race that a latch makes certain, and what a reader sees in each."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import torch

from tests.support.latch import Latch

if TYPE_CHECKING:
    from collections.abc import Callable

REPEATS = int(os.environ.get("RPCFUT_ROUNDS", "50"))
SIZE = 1 << 16


def in_rounds(is_right: Callable[[int], bool]) -> None:
    """Run all rounds, after one that only warms up, and fail if any was wrong."""
    with Latch.made_open():
        is_right(0)
    wrong = sum(not is_right(turn) for turn in range(1, REPEATS + 1))
    assert wrong == 0, f"wrong in {wrong} of {REPEATS} rounds"


def is_all(tensor: torch.Tensor, value: float) -> bool:
    """Whether every element is `value`; waits for the current stream only."""
    return tensor.min().item() == tensor.max().item() == value


def held_write(latch: Latch, value: float) -> tuple[torch.cuda.Stream, torch.Tensor]:
    """A tensor of zeros that becomes `value` on a side stream once the latch opens."""
    tensor = torch.zeros(SIZE, device="cuda:0")
    stream = torch.cuda.Stream(0)
    stream.wait_stream(torch.cuda.current_stream(0))
    latch.hold(stream)
    with torch.cuda.stream(stream):
        tensor.fill_(value)
    tensor.record_stream(stream)
    return stream, tensor


def reads(latch: Latch, read: Callable[[], torch.Tensor], value: float) -> bool:
    """Whether a side stream sees `value`, if it reads while the latch is shut."""
    reader = torch.cuda.Stream(0)
    with torch.cuda.stream(reader):
        seen = read().clone()
    latch.open_after_chance(reader)
    with torch.cuda.stream(reader):
        return is_all(seen, value)
