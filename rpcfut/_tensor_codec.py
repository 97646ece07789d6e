"""Dense tensors <-> descriptor and one buffer each (RPC-9).

Only the visible elements travel. They lie in the buffer in the order of the tensor's
strides if these are dense, so that a transposed or channels_last tensor is one plain
copy, else row by row. A conjugated or negated view arrives as what it shows.

Value semantics: two tensors that share memory arrive as two that do not.

Descriptor: ``[buffer or None, dtype, flags, device or None, ndim, *shape, *strides]``;
a tensor without elements has no buffer, one in row-major order no strides, one that lay
on the host no device.
"""

from __future__ import annotations

import contextlib
import math
import mmap
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final, TypeAlias

import torch

from rpcfut._devices import CPU, Device, parse_device
from rpcfut._memory import is_pinned
from rpcfut_transport import Buffer

Stage: TypeAlias = Callable[[Any], Buffer]
Place: TypeAlias = Callable[[torch.Tensor, Device], Any]

# Received memory of this size is used as it lies; copying less is cheaper than to keep
# a whole message alive for it.
IN_PLACE_MIN_NBYTES = 64 * 1024
_ALIGNMENT = 16
_MMAP_MIN_NBYTES = 128 * 1024
_HUGE_MIN_NBYTES = 4 << 20
_REQUIRES_GRAD = 1
_MAX_STRIDE = 1 << 62

# A dtype's number on the wire is its place here: append only.
DTYPES: Final[tuple[torch.dtype, ...]] = (
    *(torch.bool, torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64),
    *(torch.float16, torch.float32, torch.float64, torch.bfloat16),
    *(torch.complex32, torch.complex64, torch.complex128),
    *(torch.uint16, torch.uint32, torch.uint64),
    *(torch.float8_e4m3fn, torch.float8_e4m3fnuz, torch.float8_e5m2),
    *(torch.float8_e5m2fnuz, torch.float8_e8m0fnu, torch.float4_e2m1fn_x2),
    *(torch.bits8, torch.bits16, torch.bits1x8, torch.bits2x4, torch.bits4x2),
)
_DTYPE_CODES = {dtype: code for code, dtype in enumerate(DTYPES)}


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceArray:
    """Stands for a dense array of a kind of device that torch does not know.

    The wire format of such a type flattens its objects to this, and is given back what
    the seam of the device makes of the elements.

    Args:
        source: What the seam copies to the host; its ``device`` is a `Device`.
        dtype: Type of the elements.
        shape: Their number along each dimension; row by row in the copy.
    """

    source: Any
    dtype: torch.dtype
    shape: tuple[int, ...]


def split_device_array(
    array: DeviceArray, stage: Stage, buffers: list[Buffer]
) -> list[Any]:
    """Describe an array as `split_tensor` describes a tensor; `stage` copies it."""
    index = None
    if math.prod(array.shape):
        index = len(buffers)
        buffers.append(stage(array.source))
    code, device = _DTYPE_CODES[array.dtype], str(array.source.device)
    return [index, code, 0, device, len(array.shape), *array.shape]


def write_dtype(dtype: torch.dtype) -> bytes:
    """Write a dtype, as a value by itself.

    Raises:
        TypeError: When it has no number.
    """
    if dtype not in _DTYPE_CODES:
        raise TypeError(f"is {dtype}, which cannot travel; send its name")
    return bytes((_DTYPE_CODES[dtype],))


def read_dtype(data: bytes) -> torch.dtype:
    """Read what `write_dtype` wrote."""
    (code,) = data
    return DTYPES[code]


def tensor_refusal(tensor: torch.Tensor) -> str | None:  # noqa: PLR0911 - a list of rules
    """Say why a tensor cannot travel, and the way out; None if it can."""
    if tensor.is_nested:
        return "is a nested tensor; send list(x.unbind())"
    if tensor.is_quantized:
        return (
            "is quantised; send its dequantize(), or int_repr(), scale and zero point"
        )
    if tensor.layout is not torch.strided:
        return (
            f"is sparse ({tensor.layout}); send its to_dense(), or its indices and "
            "values"
        )
    if tensor.is_meta:
        return "is on the meta device and has no data; send its shape and dtype"
    if tensor.dtype not in _DTYPE_CODES:
        return f"has dtype {tensor.dtype}, which cannot travel; send another view of it"
    if tensor.requires_grad and not tensor.is_leaf:
        return "is part of an autograd graph, which stays here; send x.detach()"
    return None


def split_tensor(
    tensor: torch.Tensor, stage: Stage, buffers: list[Buffer]
) -> list[Any]:
    """Copy a tensor's elements to a buffer of ours and describe it.

    The tensor must pass `tensor_refusal`. A host tensor is copied before this returns,
    once, without the GIL; `stage` says when the others are.

    Args:
        tensor: The tensor.
        stage: As for `encode`.
        buffers: Where the buffer is appended.

    Returns:
        The descriptor.
    """
    flags = _REQUIRES_GRAD if tensor.requires_grad else 0
    plain = tensor.detach() if flags else tensor
    shape, strides = plain.shape, plain.stride()
    is_dense = True
    kept: Sequence[int] = ()
    if strides != _row_major(shape):
        is_dense = is_dense_strided(shape, strides)
        kept = strides if is_dense else ()
    device = None
    if not plain.is_cpu:
        device = str(Device(plain.device.type, plain.get_device()))
    index = None
    if plain.numel():
        index = len(buffers)
        if device is None and not is_pinned(plain):
            buffers.append(_copy_of(plain, is_dense=is_dense))
        else:
            buffers.append(stage(_flat_bytes(plain, is_dense=is_dense)))
    code = _DTYPE_CODES[plain.dtype]
    return [index, code, flags, device, len(shape), *shape, *kept]


def _row_major(shape: Sequence[int]) -> tuple[int, ...]:
    strides = []
    step = 1
    for length in reversed(shape):
        strides.append(step)
        step *= max(length, 1)
    return tuple(reversed(strides))


def is_dense_strided(shape: Sequence[int], strides: Sequence[int]) -> bool:
    """Whether these strides reach each place of a gapless block exactly once."""
    step = 1
    wide = sorted((s, n) for n, s in zip(shape, strides, strict=True) if n != 1)
    for stride, length in wide:
        if stride != step or length == 0:
            return False
        step *= length
    return all(0 <= stride < _MAX_STRIDE for stride in strides)


def allocate(nbytes: int) -> bytearray | memoryview:
    """Make a writable buffer.

    A large one comes from the kernel: a bytearray would be written twice, the first
    time with zeros. Huge pages halve the time of the copy that follows; private, since
    an anonymous map is shared with forked children by default.
    """
    if nbytes < _MMAP_MIN_NBYTES:
        return bytearray(nbytes)
    pages = mmap.mmap(-1, nbytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    if nbytes >= _HUGE_MIN_NBYTES:
        with contextlib.suppress(OSError):  # a kernel without huge pages
            pages.madvise(mmap.MADV_HUGEPAGE)
    return memoryview(pages)


def _copy_of(tensor: torch.Tensor, *, is_dense: bool) -> Buffer:
    buffer = allocate(tensor.nbytes)
    copy = torch.frombuffer(buffer, dtype=tensor.dtype)
    if is_dense:
        copy.as_strided(tensor.shape, tensor.stride()).copy_(tensor)
    else:
        copy.view(tensor.shape).copy_(tensor)
    return buffer


def _flat_bytes(tensor: torch.Tensor, *, is_dense: bool) -> torch.Tensor:
    """View a tensor as the bytes that travel; queue a gather if it is not dense."""
    tensor = tensor.resolve_conj().resolve_neg()
    if is_dense:
        flat = tensor.as_strided((tensor.numel(),), (1,))
    else:
        flat = tensor.contiguous().view(-1)
    return flat.view(torch.uint8)


def join_tensor(
    parts: list[Any], take: Callable[[object], Buffer]
) -> tuple[torch.Tensor, Device | None, bool]:
    """Make a tensor on the host of its descriptor and buffer.

    Args:
        parts: The descriptor, not trusted.
        take: Gives the buffer of an index, once.

    Returns:
        A writable tensor that owns its memory or keeps it alive, the device that it lay
        on unless that was the host, and whether it required grad.

    Raises:
        ValueError: When the descriptor makes no sense.
    """
    index, code, flags, device, ndim, *numbers = parts
    _require_small_ints(code, flags, ndim, *numbers)
    if code >= len(DTYPES) or flags > _REQUIRES_GRAD or ndim > 64:
        raise ValueError(f"a tensor of dtype {code}, flags {flags}, {ndim} dimensions")
    shape, strides = numbers[:ndim], numbers[ndim:]
    if len(shape) != ndim or len(strides) not in {0, ndim}:
        raise ValueError(f"{len(numbers)} numbers for {ndim} dimensions")
    if strides and not is_dense_strided(shape, strides):
        raise ValueError(f"strides {strides} for shape {shape}")
    dtype = DTYPES[code]
    if flags and not (dtype.is_floating_point or dtype.is_complex):
        raise ValueError(f"requires_grad for {dtype}")
    tensor = _dense(dtype, shape, strides, None if index is None else take(index))
    return tensor, None if device is None else _device(device), flags == _REQUIRES_GRAD


def _device(text: object) -> Device:
    device = parse_device(text) if isinstance(text, str) else CPU
    if device == CPU:
        raise ValueError(f"{text!r} as the device of a tensor")
    return device


def _require_small_ints(*numbers: object) -> None:
    for number in numbers:
        if type(number) is not int or not 0 <= number < 1 << 62:
            raise ValueError(f"{number!r} where a size was expected")


def _dense(
    dtype: torch.dtype, shape: list[int], strides: list[int], buffer: Buffer | None
) -> torch.Tensor:
    numel = math.prod(shape)
    if numel == 0:
        # torch multiplies the lengths that are not 0.
        if buffer is not None or any(n >= 1 << 31 for n in shape):
            raise ValueError(f"shape {shape} with a buffer")
        # Not torch.empty: it warns for complex32.
        return torch.empty(0, dtype=torch.uint8).view(dtype).view(shape)
    nbytes = 0 if buffer is None else memoryview(buffer).nbytes
    if buffer is None or numel * dtype.itemsize != nbytes:
        raise ValueError(f"shape {shape} of {dtype} in {nbytes} bytes")
    flat = _over(buffer, nbytes)
    if dtype is torch.bool and int(flat.max()) > 1:
        raise ValueError("a bool that is neither 0 nor 1")
    flat = flat.view(dtype)
    return flat.as_strided(shape, strides) if strides else flat.view(shape)


def _over(buffer: Buffer, nbytes: int) -> torch.Tensor:
    """View a received buffer as bytes, or copy it where it cannot be used."""
    view = memoryview(buffer)
    if nbytes >= IN_PLACE_MIN_NBYTES and not view.readonly and view.c_contiguous:
        flat = torch.frombuffer(view, dtype=torch.uint8)
        if flat.data_ptr() % _ALIGNMENT == 0:
            return flat
    return torch.frombuffer(bytearray(view), dtype=torch.uint8)
