"""The rows without a worker: futures and extraction, in one process.

A system passes its own future type and extractor; the loops are the same.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol, TypeVar

import torch

from benchmarks._measure import UnmeasurableError
from benchmarks._probes import time_each

if TYPE_CHECKING:
    from collections.abc import Callable

T = TypeVar("T")
_TENSORS = 100
_INTS = 10**6


class AnyFuture(Protocol):
    """What both libraries' futures can do."""

    def then(self, callback: Callable[[Any], Any], /) -> AnyFuture:
        """Return a child that is done when the callback has returned."""

    def set_result(self, value: Any, /) -> None:
        """Complete it."""

    def wait(self) -> Any:
        """Return the value."""


def _read(future: Any) -> Any:
    return future.value()


def time_then(
    new: Callable[[], AnyFuture], value: torch.Tensor, count: int
) -> list[float]:
    """Time: a future, a child, completion, and the child's value."""

    def once() -> None:
        future = new()
        child = future.then(_read)
        future.set_result(value)
        child.wait()

    return time_each(once, count)


def time_then_done(
    new: Callable[[], AnyFuture], value: torch.Tensor, count: int
) -> list[float]:
    """Time: a child of a done future, and the child's value."""
    future = new()
    future.set_result(value)
    return time_each(lambda: future.then(_read).wait(), count)


def time_extraction(
    extract: Callable[[object], object], value: object, count: int
) -> list[float]:
    """Time: which tensors does the value hold."""
    return time_each(lambda: extract(value), count)


def host_tensor() -> torch.Tensor:
    """Return the value of the futures on the host."""
    return torch.zeros(16)


def device_tensor() -> torch.Tensor:
    """Return the value of the futures on a device.

    Raises:
        UnmeasurableError: When there is no device.
    """
    if not torch.cuda.is_available():
        raise UnmeasurableError("no CUDA device")
    return torch.zeros(16, device="cuda:0")


def hundred_tensors() -> list[torch.Tensor]:
    """Return the list of tensors to extract from."""
    return [torch.zeros(16) for _ in range(_TENSORS)]


def million_ints() -> list[int]:
    """Return the list of numbers to extract from."""
    return list(range(_INTS))
