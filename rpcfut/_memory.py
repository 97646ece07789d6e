"""Blocks of memory, and how a tensor, storage or array names the ones it lies in."""

from __future__ import annotations

import math
import sys
from typing import Any, NamedTuple

import torch
import torch.utils.dlpack

from rpcfut._devices import CPU, Device

# DLPack's numbers for memory that the host reads like its own; the other ones are
# device memory, and their device type is the name that torch gives it.
_DLPACK_HOST = frozenset({1, 3, 11})
_DLPACK_NAMES = {2: "cuda", 10: "cuda", 13: "cuda"}

_PARTS = {
    torch.sparse_coo: ("_indices", "_values"),
    torch.sparse_csr: ("crow_indices", "col_indices", "values"),
    torch.sparse_bsr: ("crow_indices", "col_indices", "values"),
    torch.sparse_csc: ("ccol_indices", "row_indices", "values"),
    torch.sparse_bsc: ("ccol_indices", "row_indices", "values"),
}


class DataRef(NamedTuple):
    """One block of memory that a value holds (EXT-1).

    Args:
        device: Where the block lies; pinned host memory lies on the CPU.
        pointer: Its first byte, as a number.
        nbytes: Its size.
        owner: The object that keeps it alive, a tensor where there is one.
    """

    device: Device
    pointer: int
    nbytes: int
    owner: object


def is_pinned(owner: object) -> bool:
    """Whether this is a host tensor that the GPU reads and writes by itself.

    Nothing can be pinned before CUDA is in use, and asking would start CUDA.
    """
    return (
        isinstance(owner, torch.Tensor)
        and torch.cuda.is_initialized()
        and owner.layout is torch.strided
        and owner.is_pinned()
    )


def tensor_parts(tensor: torch.Tensor) -> list[object]:
    """Name the memory of a tensor, and the tensors that it is made of.

    The gradient of a leaf is among them: it is written by the same kernels, so that
    who waits for the tensor must wait for it too. It is never sent.
    """
    parts = _gradient(tensor)
    names = _PARTS.get(tensor.layout)
    if names is not None:
        parts.extend(getattr(tensor, name)() for name in names)
    elif tensor.layout is torch.strided:
        parts.extend(storage_parts(tensor.untyped_storage(), tensor))
        if tensor.is_quantized and tensor.qscheme() is torch.per_channel_affine:
            parts.append(tensor.q_per_channel_scales())
            parts.append(tensor.q_per_channel_zero_points())
    elif tensor.layout is not torch._mkldnn:  # type: ignore[attr-defined]  # noqa: SLF001 - has no public name
        raise TypeError(f"no rule for a tensor of layout {tensor.layout}")
    return parts


def subclass_parts(tensor: torch.Tensor) -> list[object]:
    """Name the inner tensors of a tensor subclass, as it tells torch's compiler."""
    flatten: Any = type(tensor).__dict__.get("__tensor_flatten__")
    flatten = flatten or type(tensor).__tensor_flatten__  # type: ignore[attr-defined]  # only given those that have it
    names, _ = flatten(tensor)
    return [*(getattr(tensor, name) for name in names), *_gradient(tensor)]


def _gradient(tensor: torch.Tensor) -> list[object]:
    has_one = tensor.is_leaf and tensor.requires_grad and tensor.grad is not None
    return [tensor.grad] if has_one else []


def storage_parts(
    storage: torch.UntypedStorage, owner: object = None
) -> tuple[DataRef, ...]:
    """Name the memory of a storage; a meta storage has none."""
    nbytes = storage.nbytes()
    if not nbytes or storage.device.type == "meta":
        return ()
    device = storage.device
    where = CPU if device.type == "cpu" else Device(device.type, device.index or 0)
    keeper = storage if owner is None else owner
    return (DataRef(where, storage.data_ptr(), nbytes, keeper),)


def typed_storage_parts(storage: torch.TypedStorage) -> tuple[DataRef, ...]:
    """Name the memory of a storage with a dtype."""
    return storage_parts(storage.untyped(), storage)


def ndarray_parts(array: Any) -> list[object]:
    """Name the memory of a NumPy array, or its objects if it holds objects."""
    if array.dtype.hasobject:
        return list(array.flat)
    pointer = array.__array_interface__["data"][0]
    return [DataRef(CPU, pointer, array.nbytes, array)] if array.nbytes else []


def numpy_array_type() -> type | None:
    """``numpy.ndarray``, if this process has imported NumPy: we never do."""
    found = getattr(sys.modules.get("numpy"), "ndarray", None)
    return found if isinstance(found, type) else None


def is_numpy_scalar(kind: type) -> bool:
    """Whether this is one of NumPy's own scalar types."""
    base = getattr(sys.modules.get("numpy"), "generic", None)
    return (
        isinstance(base, type) and issubclass(kind, base) and kind.__module__ == "numpy"
    )


def array_interface_parts(array: Any) -> list[object]:
    """Name the memory of an object with ``__cuda_array_interface__``, as CuPy's."""
    interface = array.__cuda_array_interface__
    pointer = interface["data"][0]
    if not pointer:
        return []
    first, end = _byte_range(interface)
    device = _interface_device(array)
    return [DataRef(device, pointer + first, end - first, array)] if end > first else []


def _byte_range(interface: Any) -> tuple[int, int]:
    itemsize = int(interface["typestr"][2:])
    shape = interface["shape"]
    if 0 in shape:
        return 0, 0
    strides = interface.get("strides")
    if strides is None:
        return 0, itemsize * math.prod(shape)
    reach = [(n - 1) * step for n, step in zip(shape, strides, strict=True)]
    first = sum(step for step in reach if step < 0)
    return first, sum(step for step in reach if step > 0) + itemsize


def _interface_device(array: Any) -> Device:
    if hasattr(array, "__dlpack_device__"):
        _, index = array.__dlpack_device__()
        return Device("cuda", int(index))
    # The interface names no device; torch asks the driver whose memory it is.
    return Device("cuda", torch.as_tensor(array, device="cuda").device.index)


def dlpack_parts(array: Any) -> list[object]:
    """Name the memory of an object with ``__dlpack__``."""
    kind, index = array.__dlpack_device__()
    if kind not in _DLPACK_HOST and kind not in _DLPACK_NAMES:
        raise TypeError(f"no rule for DLPack device type {int(kind)}:{index}")
    view = torch.utils.dlpack.from_dlpack(array)
    return [ref._replace(owner=array) for ref in storage_parts(view.untyped_storage())]
