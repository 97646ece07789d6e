"""rpcfut's future and extractor, in one process without workers.

The extractor is the form that a future uses; the public one lists host memory too.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import rpcfut
from benchmarks import _local
from rpcfut._extract import extract_device
from rpcfut._memory import CUDA_PINNED, PinnedMemory

if TYPE_CHECKING:
    import torch

    from benchmarks._systems._system import Place


class RpcfutLocal:
    """Main thread."""

    def __init__(self) -> None:
        host = _local.host_tensor()
        tensors = _local.hundred_tensors()
        ints = _local.million_ints()
        self.probes = {
            "then_host": lambda count: _local.time_then(_new, host, count),
            "then_done": lambda count: _local.time_then_done(_new, host, count),
            "then_device": lambda count: _local.time_then(
                _new, _local.device_tensor(), count
            ),
            "extract_list100": lambda count: _local.time_extraction(
                extract_device, tensors, count
            ),
            "extract_list100_public": lambda count: _local.time_extraction(
                rpcfut.extract, tensors, count
            ),
            "extract_list100_cuda": lambda count: _local.time_extraction(
                _extract_as_with_cuda, tensors, count
            ),
            "extract_1e6_ints": lambda count: _local.time_extraction(
                extract_device, ints, count
            ),
        }

    def close(self) -> None:
        """Nothing is open."""


# As where CUDA is in use, so that each tensor might lie in pinned memory.
_IN_USE = PinnedMemory(is_in_use=lambda: True, is_pinned=CUDA_PINNED.is_pinned)


def _extract_as_with_cuda(value: object) -> object:
    return extract_device(value, pinned=_IN_USE)


def _new() -> rpcfut.Future[torch.Tensor]:
    return rpcfut.Future()


def open_caller(_place: Place) -> RpcfutLocal:
    """Make the values."""
    return RpcfutLocal()
