"""Device tensors on the inline plane: through pinned host memory.

Theory of operation. Sending: the tensor is copied into pinned memory on the stream that
is current at the call; whoever sends the bytes waits for the marks behind all such
copies (STR-8). Receiving: the bytes are copied to the device on the stream that is
current where the value is decoded; the future's marks cover that copy.
"""

from __future__ import annotations

import ctypes
from typing import TYPE_CHECKING

import torch

from rpcfut._devices import Device, parse_device
from rpcfut._errors import DecodeError
from rpcfut._streams import Mark, record_current, used_devices

if TYPE_CHECKING:
    from rpcfut_transport import Buffer


class Staging:
    """The copies of one message. Owner thread only."""

    def __init__(self) -> None:
        self._devices: dict[Device, None] = {}

    def stage(self, tensor: torch.Tensor) -> Buffer:
        """Copy a tensor's elements into host memory of ours.

        Args:
            tensor: Contiguous; on a device, or in pinned host memory. A device tensor
                is read on the current stream; the buffer is complete once the `marks`
                have passed. A pinned one may still be written by a device, and nobody
                can see by which stream, so the host waits for the current streams of
                all used devices and then copies: the caller may overwrite it at once.
        """
        nbytes = tensor.numel() * tensor.element_size()
        if tensor.is_cpu:
            for mark in record_current(used_devices()):
                mark.event.synchronize()
            copy = bytearray(nbytes)
            if nbytes:
                flat = torch.frombuffer(copy, dtype=torch.uint8)
                flat.copy_(tensor.detach().reshape(-1).view(torch.uint8))
            return copy
        self._devices[parse_device(tensor.device)] = None
        pinned = torch.empty(nbytes, dtype=torch.uint8, pin_memory=True)
        if nbytes:
            source = tensor.detach().reshape(-1).view(torch.uint8)
            pinned.copy_(source, non_blocking=True)
        return _view(pinned)

    def marks(self) -> tuple[Mark, ...]:
        """Marks behind all copies so far, on the current streams of their devices."""
        return record_current(self._devices)


def require_device(device: Device) -> None:
    """Refuse a device that this process does not have.

    Raises:
        DecodeError: When there is no such device.
    """
    if device.type == "cuda" and device.index >= torch.cuda.device_count():
        raise DecodeError(
            f"a tensor of {device} arrived at a worker that sees "
            f"{torch.cuda.device_count()} CUDA devices; send tensor.cpu(), or give "
            "this worker the device"
        )


def place(tensor: torch.Tensor, device: Device) -> torch.Tensor:
    """Copy a received host tensor to a device, on its current stream there."""
    # From pageable memory this returns once the driver has its own copy of the bytes.
    return tensor.to(str(device), non_blocking=True)


def _view(pinned: torch.Tensor) -> memoryview:
    """The bytes of a host tensor as a buffer that keeps the tensor alive."""
    array = (ctypes.c_char * pinned.numel()).from_address(pinned.data_ptr())
    array.tensor = pinned  # type: ignore[attr-defined]  # what keeps it alive
    return memoryview(array).cast("B")
