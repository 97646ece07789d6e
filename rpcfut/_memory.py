"""Blocks of memory, and how a tensor, storage or array names the ones it lies in."""

from __future__ import annotations

import ctypes
import dataclasses
import math
import sys
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import torch
import torch.utils.dlpack

from rpcfut._devices import CPU, Device

if TYPE_CHECKING:
    from collections.abc import Callable, Collection

# DLPack's numbers for memory that the host reads like its own; the other ones are
# device memory, and their device type is the name that torch gives it.
_DLPACK_HOST = frozenset({1, 3, 11})
_DLPACK_NAMES = {2: "cuda", 10: "cuda", 13: "cuda"}
_DLPACK_NO_SYNC = -1

_PARTS = {
    torch.sparse_coo: ("_indices", "_values"),
    torch.sparse_csr: ("crow_indices", "col_indices", "values"),
    torch.sparse_bsr: ("crow_indices", "col_indices", "values"),
    torch.sparse_csc: ("ccol_indices", "row_indices", "values"),
    torch.sparse_bsc: ("ccol_indices", "row_indices", "values"),
}
_PER_CHANNEL = frozenset(
    {torch.per_channel_affine, torch.per_channel_affine_float_qparams}
)
_MEMO = "_rpcfut_unpinned_by"


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


# ---- pinned host memory ------------------------------------------------------------


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class PinnedMemory:
    """How to tell host memory that a GPU reads and writes by itself; any thread.

    Args:
        is_in_use: Whether there can be any yet; asking about a tensor before that
            would start CUDA.
        is_pinned: Whether a dense host tensor lies in it.
    """

    is_in_use: Callable[[], bool]
    is_pinned: Callable[[torch.Tensor], bool]


CUDA_PINNED: Final = PinnedMemory(
    is_in_use=torch.cuda.is_initialized, is_pinned=torch.Tensor.is_pinned
)


def is_pinned(owner: object) -> bool:
    """Whether this is a host tensor that the GPU reads and writes by itself.

    Nothing can be pinned before CUDA is in use, and asking would start CUDA.
    """
    return (
        isinstance(owner, torch.Tensor)
        and CUDA_PINNED.is_in_use()
        and owner.layout is torch.strided
        and owner.is_pinned()
    )


def has_pinned(tensors: Collection[torch.Tensor], pinned: PinnedMemory) -> bool:
    """Whether one of some dense host tensors is pinned.

    The driver takes a microsecond to say so, so it is asked once for each storage,
    which remembers a no for as long as it lives.

    Raises:
        NotImplementedError: When one of the tensors has no storage.
    """
    storages = [tensor.untyped_storage().__dict__ for tensor in tensors]
    if all([storage.get(_MEMO) is pinned for storage in storages]):  # noqa: C419 - faster
        return False
    for tensor, storage in zip(tensors, storages, strict=True):
        if storage.get(_MEMO) is not pinned:
            if pinned.is_pinned(tensor):
                return True
            storage[_MEMO] = pinned
    return False


def is_pinned_block(ref: DataRef, pinned: PinnedMemory) -> bool:
    """Whether a block of host memory is pinned, whoever owns it."""
    if not pinned.is_in_use():
        return False
    owner = ref.owner
    if type(owner) in {torch.Tensor, torch.nn.Parameter}:
        return has_pinned((owner,), pinned)  # type: ignore[arg-type] # a tensor, see above
    byte = (ctypes.c_char * 1).from_address(ref.pointer)
    return pinned.is_pinned(torch.frombuffer(byte, dtype=torch.uint8))


# ---- torch -------------------------------------------------------------------------


def plain_cuda_block(tensor: torch.Tensor) -> DataRef | None:
    """The one block of a dense CUDA tensor without a gradient; None for any other.

    What `tensor_parts` finds as well, in a tenth of the time: most values are this.
    """
    is_plain = (
        tensor.layout is torch.strided
        and not tensor.requires_grad
        and tensor.grad is None
        and not tensor.is_quantized
        and not tensor.is_nested
        and not tensor._is_zerotensor()  # noqa: SLF001 - has no public name
    )
    if not is_plain:
        return None
    storage = tensor.untyped_storage()
    index = tensor.get_device()
    return DataRef(Device("cuda", index), storage.data_ptr(), storage.nbytes(), tensor)


def tensor_parts(tensor: torch.Tensor) -> list[object]:
    """Name the memory of a tensor, and the tensors that it is made of.

    The gradient is among them: it is written by the same kernels, so that who waits
    for the tensor must wait for it too. It is never sent.
    """
    parts = _gradient(tensor)
    names = _PARTS.get(tensor.layout)
    if names is not None:
        parts.extend(getattr(tensor, name)() for name in names)
    elif tensor.layout is torch.strided:
        if not tensor._is_zerotensor():  # noqa: SLF001 - has no public name
            parts.extend(storage_parts(tensor.untyped_storage(), tensor))
        if tensor.is_quantized and tensor.qscheme() in _PER_CHANNEL:
            parts.append(tensor.q_per_channel_scales())
            parts.append(tensor.q_per_channel_zero_points())
    elif tensor.layout is not torch._mkldnn:  # type: ignore[attr-defined]  # noqa: SLF001 - has no public name
        raise TypeError(f"no rule for a tensor of layout {tensor.layout}")
    return parts


def _gradient(tensor: torch.Tensor) -> list[object]:
    # Reading .grad of any other tensor warns.
    if not tensor.requires_grad or not (tensor.is_leaf or tensor.retains_grad):
        return []
    return [] if tensor.grad is None else [tensor.grad]


def subclass_parts(tensor: torch.Tensor) -> list[object]:
    """Name the inner tensors of a tensor subclass, as it tells torch's compiler."""
    flatten: Any = type(tensor).__tensor_flatten__  # type: ignore[attr-defined]  # only given those that have it
    names, _ = flatten(tensor)
    return [*(getattr(tensor, name) for name in names), *_gradient(tensor)]


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
    return storage_parts(storage._untyped_storage, storage)  # noqa: SLF001 - untyped() warns


# ---- NumPy -------------------------------------------------------------------------


def numpy_type(name: str) -> type | None:
    """A class of NumPy, if this process has imported NumPy: we never do."""
    found = getattr(sys.modules.get("numpy"), name, None)
    return found if isinstance(found, type) else None


def numpy_array_type() -> type | None:
    """``numpy.ndarray``, if this process has imported NumPy."""
    return numpy_type("ndarray")


def is_numpy_scalar(kind: type) -> bool:
    """Whether this is one of NumPy's own scalar types."""
    base = numpy_type("generic")
    return base is not None and issubclass(kind, base) and kind.__module__ == "numpy"


def ndarray_parts(array: Any) -> list[object]:
    """Name the memory of a NumPy array, all that it is a view of, and its objects."""
    parts: list[object] = []
    if array.dtype.hasobject:
        parts.extend(array.ravel().tolist())
    while type(array.base) is type(array):
        array = array.base
    if isinstance(array.base, (torch.Tensor, memoryview)):
        parts.append(array.base)
    if array.nbytes:
        interface = array.__array_interface__
        first, end = _byte_range({**interface, "itemsize": array.itemsize})
        start = interface["data"][0] + first
        parts.append(DataRef(CPU, start, end - first, array))
    return parts


def numpy_void_parts(record: Any) -> list[object]:
    """What one record of a structured array holds; it is a view of the array."""
    parts: list[object] = [] if record.base is None else [record.base]
    if record.dtype.hasobject:
        parts.append(record.item())
    return parts


def memoryview_parts(view: memoryview) -> list[object]:
    """What a memoryview looks into, if that may be more than memory of Python's own."""
    exporter = view.obj
    return [exporter] if type(exporter) is numpy_array_type() else []


# ---- arrays of other libraries -----------------------------------------------------


def array_interface_parts(array: Any) -> list[object]:
    """Name the memory of an object with ``__cuda_array_interface__``, as CuPy's.

    Its stream is not waited for: whoever wrote the array has to have done so on, or
    before, the stream that is current for torch.
    """
    interface = array.__cuda_array_interface__
    pointer = interface["data"][0]
    if not pointer:
        return []
    first, end = _byte_range(interface)
    if end == first:
        return []
    return [DataRef(_array_device(array), pointer + first, end - first, array)]


def _byte_range(interface: Any) -> tuple[int, int]:
    itemsize = interface.get("itemsize") or int(interface["typestr"][2:])
    shape = interface["shape"]
    if 0 in shape:
        return 0, 0
    strides = interface.get("strides")
    if strides is None:
        return 0, itemsize * math.prod(shape)
    reach = [(n - 1) * step for n, step in zip(shape, strides, strict=True)]
    first = sum(step for step in reach if step < 0)
    return first, sum(step for step in reach if step > 0) + itemsize


def _array_device(array: Any) -> Device:
    if hasattr(array, "__dlpack_device__"):
        _, index = array.__dlpack_device__()
        return Device("cuda", int(index))
    index = getattr(getattr(array, "device", None), "id", None)
    if isinstance(index, int):
        return Device("cuda", index)
    if torch.cuda.device_count() == 1:
        return Device("cuda", 0)
    raise TypeError(
        "its __cuda_array_interface__ does not say on which device it lies; give it "
        "__dlpack_device__, or register an extractor that returns a rpcfut.DataRef"
    )


def dlpack_parts(array: Any) -> list[object]:
    """Name the memory of an object with ``__dlpack__``.

    The producer is told not to synchronise: extraction queues no work on any stream.
    """
    kind, index = array.__dlpack_device__()
    if kind not in _DLPACK_HOST and kind not in _DLPACK_NAMES:
        raise TypeError(f"no rule for DLPack device type {int(kind)}:{index}")
    if kind in _DLPACK_HOST:
        device, capsule = CPU, array.__dlpack__()
    else:
        device = Device(_DLPACK_NAMES[kind], int(index))
        capsule = array.__dlpack__(stream=_DLPACK_NO_SYNC)
    storage = torch.utils.dlpack.from_dlpack(capsule).untyped_storage()
    return [ref._replace(device=device, owner=array) for ref in storage_parts(storage)]
