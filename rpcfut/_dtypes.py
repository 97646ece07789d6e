"""Numbers of dtypes on the wire.

A dtype's number is its place in the table: append only. A name that this torch does not
have keeps its number, so that workers with different torches understand each other, and
say so where they cannot.
"""

from __future__ import annotations

from typing import Final

import torch

_NAMES: Final = (
    *("bool", "uint8", "int8", "int16", "int32", "int64"),
    *("float16", "float32", "float64", "bfloat16"),
    *("complex32", "complex64", "complex128"),
    *("uint16", "uint32", "uint64"),
    *("float8_e4m3fn", "float8_e4m3fnuz", "float8_e5m2"),
    *("float8_e5m2fnuz", "float8_e8m0fnu", "float4_e2m1fn_x2"),
    *("bits8", "bits16", "bits1x8", "bits2x4", "bits4x2"),
    *("qint8", "quint8", "qint32", "quint4x2", "quint2x4"),
    *("int1", "int2", "int3", "int4", "int5", "int6", "int7"),
    *("uint1", "uint2", "uint3", "uint4", "uint5", "uint6", "uint7"),
)
_QUANTISED = frozenset({"qint8", "quint8", "qint32", "quint4x2", "quint2x4"})

# Those that this torch has.
DTYPE_OF: Final[dict[int, torch.dtype]] = {
    number: getattr(torch, name)
    for number, name in enumerate(_NAMES)
    if isinstance(getattr(torch, name, None), torch.dtype)
}
NUMBER_OF: Final[dict[torch.dtype, int]] = {
    dtype: number for number, dtype in DTYPE_OF.items()
}
# Those of tensors that are elements and nothing else.
DTYPES: Final[tuple[torch.dtype, ...]] = tuple(
    dtype for number, dtype in DTYPE_OF.items() if _NAMES[number] not in _QUANTISED
)
QUANTISED: Final[tuple[torch.dtype, ...]] = tuple(
    dtype for number, dtype in DTYPE_OF.items() if _NAMES[number] in _QUANTISED
)


def dtype_of(number: int) -> torch.dtype:
    """Find a dtype by its number.

    Raises:
        ValueError: When this torch does not have it, or nobody has.
    """
    dtype = DTYPE_OF.get(number)
    if dtype is not None:
        return dtype
    if number < len(_NAMES):
        raise ValueError(
            f"dtype torch.{_NAMES[number]}, which torch {torch.__version__} here does "
            "not have: send x.view(torch.uint8), or use one torch on all workers"
        )
    raise ValueError(
        f"dtype number {number}, which this release does not know: use one release "
        "of rpcfut on all workers, or send x.view(torch.uint8)"
    )


def write_dtype(dtype: torch.dtype) -> bytes:
    """Write a dtype, as a value by itself.

    Raises:
        TypeError: When it has no number.
    """
    if dtype not in NUMBER_OF:
        raise TypeError(f"is {dtype}, which cannot travel; send its name")
    return bytes((NUMBER_OF[dtype],))


def read_dtype(data: bytes) -> torch.dtype:
    """Read what `write_dtype` wrote."""
    (number,) = data
    return dtype_of(number)
