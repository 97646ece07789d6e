"""Device arrays on the inline plane: through host memory.

Theory of operation. Sending: the elements are copied into host memory of ours on the
stream that is current at the call; whoever sends the bytes waits for the marks behind
all such copies (STR-8). Receiving: the bytes are copied to the device on the stream
that is current where the value is decoded; the future's marks cover that copy. The
copies themselves are the seam's.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from rpcfut._devices import Device, parse_device
from rpcfut._errors import DecodeError
from rpcfut._extract import extract_device
from rpcfut._streams import Mark, record_current, seam_of, used_devices

if TYPE_CHECKING:
    from rpcfut._seam import Seam
    from rpcfut_transport import Buffer


class Staging:
    """The copies of one message. Owner thread only."""

    def __init__(self) -> None:
        self._devices: dict[Device, None] = {}

    def stage(self, source: Any) -> Buffer:
        """Copy an array's elements into host memory of ours.

        Args:
            source: A contiguous uint8 tensor of one dimension, on a device or in pinned
                host memory, or another kind's array. Device memory is read on the
                current stream; the buffer is complete once the `marks` have passed.
                Pinned memory may still be written by a device, and nobody can see by
                which stream, so the host waits for the current streams of all used
                devices and then copies: the caller may overwrite it at once.
        """
        device = parse_device(source.device)
        if device.type == "cpu":
            return _copy_of_pinned(source)
        self._devices[device] = None
        seam = seam_of(device)
        for ref in extract_device(source):
            # The caller may drop it before the copy has run (STR-11).
            seam.keep_alive(ref, seam.current_stream(device))
        return seam.copy_to_host(source)

    def marks(self) -> tuple[Mark, ...]:
        """Marks behind all copies so far, on the current streams of their devices."""
        return record_current(self._devices)


def _copy_of_pinned(tensor: torch.Tensor) -> Buffer:
    for mark in record_current(used_devices()):
        mark.event.synchronize()
    copy = bytearray(tensor.nbytes)
    torch.frombuffer(copy, dtype=torch.uint8).copy_(tensor)
    return copy


def place(tensor: torch.Tensor, device: Device) -> Any:
    """Copy a received host tensor to a device, on its current stream there.

    Raises:
        DecodeError: When there is no such kind of device.
    """
    return _seam_here(device).copy_from_host(tensor, device)


def _seam_here(device: Device) -> Seam:
    try:
        return seam_of(device)
    except LookupError as error:
        raise DecodeError(
            f"an array of {device} arrived at a worker that cannot use such devices: "
            f"{error}"
        ) from error
