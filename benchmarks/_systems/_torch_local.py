"""torch's own future and its extraction by pickling, in one process."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch._jit_internal import _extract_tensors

from benchmarks import _local

if TYPE_CHECKING:
    from benchmarks._systems._system import Place


class TorchLocal:
    """Main thread."""

    def __init__(self) -> None:
        host = _local.host_tensor()
        tensors = _local.hundred_tensors()
        ints = _local.million_ints()
        self.probes = {
            "then_host": lambda count: _local.time_then(_new, host, count),
            "then_done": lambda count: _local.time_then_done(_new, host, count),
            "then_device": lambda count: _local.time_then(
                _new_on_device, _local.device_tensor(), count
            ),
            "extract_list100": lambda count: _local.time_extraction(
                _extract_tensors, tensors, count
            ),
            "extract_1e6_ints": lambda count: _local.time_extraction(
                _extract_tensors, ints, count
            ),
        }

    def close(self) -> None:
        """Nothing is open."""


def _new() -> torch.futures.Future[torch.Tensor]:
    return torch.futures.Future()


def _new_on_device() -> torch.futures.Future[torch.Tensor]:
    return torch.futures.Future(devices=[0])


def open_caller(_place: Place) -> TorchLocal:
    """Make the values."""
    return TorchLocal()
