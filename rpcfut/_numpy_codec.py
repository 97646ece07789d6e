"""NumPy arrays and scalars, where both processes have imported NumPy.

Descriptor of an array: ``[buffer or None, dtype, order, *shape]``, where order is ``C``
or ``F``; a scalar: ``[dtype, bytes]``, or ``["U", text]`` and ``["S", bytes]``, since
the dtype of a text forgets the zeros at its end. Else a dtype is written as NumPy's own
short text. One without a size is refused: NumPy would make it one byte an element.
"""

from __future__ import annotations

import math
import re
import sys
from typing import TYPE_CHECKING, Any

from rpcfut._tensor_codec import IN_PLACE_MIN_NBYTES, allocate

if TYPE_CHECKING:
    from collections.abc import Callable

    from rpcfut_transport import Buffer

# Numbers, texts and times; no objects, no records, nothing that names a type.
_DTYPE = re.compile(r"[<>|=]?(?:[?biufcSU]\d+|[mM]8(?:\[[0-9]*[a-zA-Zμ]{1,2}\])?)")


def numpy_refusal(value: Any) -> str | None:
    """Say why an array or scalar cannot travel; None if it can."""
    if isinstance(value, (str, bytes)):
        return None
    if value.dtype.hasobject:
        return "is an array of objects; send x.tolist()"
    if _DTYPE.fullmatch(value.dtype.str) is None or value.dtype.names is not None:
        return f"has dtype {value.dtype}; send its fields as separate arrays"
    if value.dtype.itemsize == 0:
        return f"has dtype {value.dtype} of 0 bytes; send x.tolist()"
    return None


def split_array(array: Any, buffers: list[Buffer]) -> list[Any]:
    """Copy an array to a buffer of ours, once, and describe it."""
    is_fortran = array.flags.f_contiguous and not array.flags.c_contiguous
    order = "F" if is_fortran else "C"
    index = None
    if array.nbytes:
        numpy: Any = sys.modules["numpy"]
        buffer = allocate(array.nbytes)
        copy = numpy.frombuffer(buffer, dtype=array.dtype)
        numpy.copyto(copy.reshape(array.shape, order=order), array)
        index = len(buffers)
        buffers.append(buffer)
    return [index, array.dtype.str, order, *array.shape]


def join_array(parts: list[Any], take: Callable[[object], Buffer]) -> Any:
    """Make an array of its descriptor, which is not trusted, and its buffer."""
    index, text, order, *shape = parts
    dtype = _dtype(text)
    if order not in {"C", "F"} or len(shape) > 32:
        raise ValueError(f"an array of order {order!r}, {len(shape)} dimensions")
    if any(type(n) is not int or not 0 <= n < 1 << 62 for n in shape):
        raise ValueError(f"shape {shape}")
    numpy: Any = sys.modules["numpy"]
    buffer = bytearray() if index is None else take(index)
    view = memoryview(buffer)
    if math.prod(shape) * dtype.itemsize != view.nbytes:
        raise ValueError(f"shape {shape} of {dtype} in {view.nbytes} bytes")
    if view.nbytes == 0:
        return numpy.zeros(shape, dtype=dtype, order=order)
    is_kept = view.nbytes >= IN_PLACE_MIN_NBYTES and not view.readonly
    owned = buffer if is_kept else bytearray(view)
    return numpy.frombuffer(owned, dtype=dtype).reshape(shape, order=order)


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
