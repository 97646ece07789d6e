"""How arrays of the simulated device travel between agents.

Theory of operation. On the wire an array is what a tensor of float64 on ``sim:0`` would
be. What is sent is a copy of its elements to host memory, queued on the stream that is
current where it is encoded. That memory holds garbage until the *host* knows that the
copy has run: bytes that leave earlier arrive as NaN, whatever the seed.
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING

import torch

from rpcfut._errors import DecodeError
from rpcfut._registry import TYPES, WireFormat, register_type
from rpcfut._tensor_writer import DeviceArray
from rpcfut.testing._sim_array import SimArray, new_array
from rpcfut.testing._sim_errors import (
    Allocation,
    Operation,
    RaceError,
    UseAfterFreeError,
)

if TYPE_CHECKING:
    from rpcfut._devices import Device
    from rpcfut.testing._sim_machine import Machine
    from rpcfut.testing._sim_stream import CurrentStreams

_GARBAGE = float("nan")


def register_types() -> None:
    """Say where arrays have their memory, and how they and races travel."""
    form = WireFormat(
        kind=SimArray,
        name="rpcfut.testing:SimArray",
        flatten=_flatten,
        unflatten=_unflatten,
    )
    TYPES.add_wire(form, lambda array: [array.ref], override=False, place=__name__)
    for part in (Allocation, Operation):
        register_type(part)
    register_type(
        RaceError,
        lambda race: (race.first, race.second, race.allocation),
        lambda parts: RaceError(*parts),
    )
    register_type(
        UseAfterFreeError,
        lambda race: (race.first, race.second, race.allocation, race.former),
        lambda parts: UseAfterFreeError(*parts),
    )


def _flatten(array: SimArray) -> DeviceArray:
    return DeviceArray(source=array, dtype=torch.float64, shape=(len(array),))


def _unflatten(array: object) -> SimArray:
    """Take what `copy_from_host` made."""
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
