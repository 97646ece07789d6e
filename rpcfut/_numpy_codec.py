"""NumPy arrays and scalars, where both processes have imported NumPy.

Descriptor of an array: ``[buffer or None, dtype, order, *shape]``; order is ``C``,
``F``, or the axes from the slowest to the fastest: a dense array keeps its strides. A
received array can be written to, also where the sender's could not. A scalar:
``[dtype, bytes]``, or ``["U", text]`` and ``["S", bytes]``, since the dtype of a text
forgets the zeros at its end. Else a dtype is written as NumPy's own
short text. One without a size is refused: NumPy would make it one byte an element.
"""

from __future__ import annotations

import math
import re
import sys
from typing import TYPE_CHECKING, Any, Final

from rpcfut._tensor_copies import allocate
from rpcfut._tensor_table import OWN_FRAME_NBYTES

if TYPE_CHECKING:
    from collections.abc import Callable

    from rpcfut_transport import Buffer

# What every NumPy that we meet has; newer ones have 64.
_MAX_NDIM: Final = 32
_MAX_LENGTH: Final = 1 << 62

# Numbers, texts and times; no objects, no records, nothing that names a type.
_DTYPE = re.compile(r"[<>|=]?(?:[?biufcSU]\d+|[mM]8(?:\[[0-9]*[a-zA-Zμ]{1,2}\])?)")


def numpy_refusal(value: Any) -> str | None:  # noqa: PLR0911 - a list of rules
    """Say why an array or scalar cannot travel; None if it can."""
    if isinstance(value, (str, bytes)):
        return None
    dtype = value.dtype
    if dtype.kind == "T":
        return f"has dtype {dtype}; send x.astype('U'), or x.tolist()"
    if dtype.hasobject:
        return "is an array of objects; send x.tolist()"
    if dtype.names is not None:
        return f"has dtype {dtype}; send its fields as separate arrays"
    if _DTYPE.fullmatch(dtype.str) is None:
        return f"has dtype {dtype}; send another view of it, as x.view('u1')"
    if dtype.itemsize == 0:
        return f"has dtype {dtype} of 0 bytes; send x.tolist()"
    if value.ndim > _MAX_NDIM or max(value.shape, default=0) >= _MAX_LENGTH:
        return (
            f"has {value.ndim} dimensions, the longest of {max(value.shape)}; "
            f"{_MAX_NDIM} dimensions are allowed: send x.ravel() and x.shape"
        )
    return None


def split_array(array: Any, buffers: list[Buffer]) -> list[Any]:
    """Copy an array to a buffer of ours, once, and describe it."""
    order, laid_out = _memory_order(array)
    index = None
    if array.nbytes:
        numpy: Any = sys.modules["numpy"]
        buffer = allocate(array.nbytes)
        copy = numpy.frombuffer(buffer, dtype=array.dtype).reshape(laid_out.shape)
        numpy.copyto(copy, laid_out)
        index = len(buffers)
        buffers.append(buffer)
    return [index, array.dtype.str, order, *array.shape]


def _memory_order(array: Any) -> tuple[str | list[int], Any]:
    """Find the axes' order, and the view in which they lie row by row."""
    flags, strides = array.flags, array.strides
    if flags.c_contiguous:
        return "C", array
    if flags.f_contiguous:
        return "F", array.T
    axes = sorted(range(array.ndim), key=lambda axis: -strides[axis])
    laid_out = array.transpose(axes)
    return (axes, laid_out) if laid_out.flags.c_contiguous else ("C", array)


def join_array(parts: list[Any], take: Callable[[object], Buffer]) -> Any:
    """Make an array of its descriptor, which is not trusted, and its buffer."""
    index, text, order, *shape = parts
    dtype = _dtype(text)
    if len(shape) > _MAX_NDIM:
        raise ValueError(f"an array of {len(shape)} dimensions")
    if any(type(n) is not int or not 0 <= n < _MAX_LENGTH for n in shape):
        raise ValueError(f"shape {shape}")
    axes = _axes(order, len(shape))
    numpy: Any = sys.modules["numpy"]
    buffer = bytearray() if index is None else take(index)
    view = memoryview(buffer)
    if math.prod(shape) * dtype.itemsize != view.nbytes:
        raise ValueError(f"shape {shape} of {dtype} in {view.nbytes} bytes")
    if view.nbytes == 0:
        return numpy.zeros(shape, dtype=dtype)
    is_kept = view.nbytes >= OWN_FRAME_NBYTES and not view.readonly
    owned = buffer if is_kept else bytearray(view)
    laid_out = numpy.frombuffer(owned, dtype=dtype).reshape([shape[i] for i in axes])
    return laid_out.transpose([axes.index(axis) for axis in range(len(shape))])


def _axes(order: object, ndim: int) -> list[int]:
    """Read the axes from the slowest to the fastest."""
    if order in ("C", "F"):
        return list(range(ndim)) if order == "C" else list(reversed(range(ndim)))
    if not isinstance(order, list) or sorted(order) != list(range(ndim)):
        raise ValueError(f"an array of order {order!r:.100}")
    return order


def split_scalar(value: Any) -> list[Any]:
    """Describe a scalar."""
    if isinstance(value, str):
        return ["U", str.__str__(value)]  # NumPy's own takes zeros away
    if isinstance(value, bytes):
        return ["S", bytes(value)]
    return [value.dtype.str, value.tobytes()]


def join_scalar(parts: list[Any]) -> Any:
    """Make a scalar of its description, which is not trusted."""
    text, data = parts
    numpy: Any = _numpy()
    if text == "U" and type(data) is str:
        return numpy.str_(data)
    if text == "S" and type(data) is bytes:
        return numpy.bytes_(data)
    dtype = _dtype(text)
    if type(data) is not bytes or len(data) != dtype.itemsize or dtype.kind in "SU":
        raise ValueError(f"a {dtype} of {type(data).__name__}")
    return numpy.frombuffer(bytearray(data), dtype=dtype)[0]


def _numpy() -> Any:
    numpy = sys.modules.get("numpy")
    if numpy is None:
        raise ValueError("a NumPy value, and this process has not imported NumPy")
    return numpy


def _dtype(text: object) -> Any:
    numpy: Any = _numpy()
    if not isinstance(text, str) or _DTYPE.fullmatch(text) is None:
        raise ValueError(f"no NumPy dtype: {text!r}")
    dtype = numpy.dtype(text)
    if dtype.itemsize == 0:
        raise ValueError(f"a NumPy dtype without a size: {text!r}")
    return dtype
