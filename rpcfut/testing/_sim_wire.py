"""How arrays of the simulated device travel between agents.

Theory of operation. On the wire an array is what a tensor of float64 on ``sim:0`` would
be. What is sent is a copy of its elements to host memory, queued on the stream that is
current where it is encoded. That memory holds garbage until the *host* knows that the
copy has run: bytes that leave earlier arrive as NaN, whatever the seed.
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, Final

import torch

from rpcfut._errors import DecodeError
from rpcfut._tensor_codec import DeviceArray
from rpcfut.testing._sim_array import SimArray, new_array

if TYPE_CHECKING:
    from rpcfut._devices import Device
    from rpcfut.testing._sim_machine import Machine
    from rpcfut.testing._sim_stream import CurrentStreams

WIRE_NAME: Final = "rpcfut.testing:SimArray"
_GARBAGE = float("nan")


def flatten(array: SimArray) -> DeviceArray:
    """What the codec sends of an array."""
    return DeviceArray(source=array, dtype=torch.float64, shape=(len(array),))


def unflatten(array: object) -> SimArray:
    """Take what `copy_from_host` made.

    Raises:
        TypeError: When the message held something else.
    """
    if not isinstance(array, SimArray):
        raise TypeError(f"a {type(array).__qualname__} where an array was expected")
    return array


def copy_to_host(array: SimArray) -> bytearray:
    """Queue a copy of an array to host memory; see `HostCopies`."""
    layout = struct.Struct(f"={len(array)}d")
    into = bytearray(layout.pack(*[_GARBAGE] * len(array)))
    array.copy_to_bytes("the copy of a call", lambda v: layout.pack_into(into, 0, *v))
    return into


def copy_from_host(
    machine: Machine, currents: CurrentStreams, tensor: torch.Tensor, device: Device
) -> SimArray:
    """Make an array of received elements; see `HostCopies`.

    Raises:
        DecodeError: When these are no elements of an array.
    """
    if tensor.dtype != torch.float64 or tensor.dim() != 1:
        raise DecodeError(
            f"a {tensor.dim()}-dimensional array of {tensor.dtype} for {device}, whose "
            "arrays have one dimension and float64"
        )
    return new_array(machine, currents, device, len(tensor)).load_(tensor.tolist())
