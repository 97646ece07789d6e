"""Whether two values are the same, bit by bit, and where they are not.

Knows nothing of the codec: it looks at types, bits, order, layout and attributes by
Python's and torch's own means.
"""

from __future__ import annotations

import datetime as dt
import decimal
import enum
import struct
from collections import OrderedDict, defaultdict, deque
from fractions import Fraction
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


def difference(a: Any, b: Any, path: str = "value") -> str | None:
    """Say where two values differ first; None if they are the same."""
    return next(_differences(a, b, path), None)


def same(a: Any, b: Any) -> bool:
    """Whether two values have equal types and equal bits, all the way down."""
    return difference(a, b) is None


def _differences(a: Any, b: Any, path: str) -> Iterator[str]:
    if type(a) is not type(b):
        yield f"{path}: {type(a)} and {type(b)}"
    elif isinstance(a, torch.Tensor):
        yield from _tensor_differences(a, b, path)
    elif isinstance(a, np.ndarray):
        yield from _facts(_array_facts(a), _array_facts(b), path)
        yield from _strides((a.shape, _steps(a)), (b.shape, _steps(b)), path)
    elif isinstance(a, np.generic):
        yield from _facts(_scalar_facts(a), _scalar_facts(b), path)
    elif isinstance(a, (enum.Enum, type)):
        # Not every Python keeps a flag without a name.
        is_same_flag = isinstance(a, enum.Flag) and a.value == b.value
        if a is not b and not is_same_flag:
            yield f"{path}: {a!r} and {b!r}"
    else:
        yield from _parts(a, b, path)


def _tensor_differences(a: Any, b: Any, path: str) -> Iterator[str]:
    if _is_special(a):
        from tests.support.tensor_table import looks

        yield from _facts(looks(a), looks(b), path)
    else:
        yield from _facts(_tensor_facts(a), _tensor_facts(b), path)
        yield from _strides((a.shape, a.stride()), (b.shape, b.stride()), path)


def _is_special(a: torch.Tensor) -> bool:
    """Whether it is more than elements that lie somewhere."""
    is_dense = a.layout is torch.strided and not a.is_nested
    return not is_dense or a.is_quantized or a.is_meta


def _parts(a: Any, b: Any, path: str) -> Iterator[str]:
    if isinstance(a, (list, tuple, deque)):
        yield from _facts([len(a)], [len(b)], path)
        for number, (x, y) in enumerate(zip(a, b, strict=False)):
            yield from _differences(x, y, f"{path}[{number}]")
    elif isinstance(a, dict):
        yield from _differences(list(a.items()), list(b.items()), f"{path}.items()")
    elif isinstance(a, (set, frozenset)):
        yield from _set_differences(a, b, path)
    elif isinstance(a, slice):
        yield from _differences(_slice(a), _slice(b), path)
    else:
        yield from _facts(_plain_facts(a), _plain_facts(b), path)
    if isinstance(a, deque):
        yield from _facts([a.maxlen], [b.maxlen], f"{path}.maxlen")
    if isinstance(a, defaultdict) and a.default_factory is not b.default_factory:
        yield f"{path}.default_factory"
    yield from _attribute_differences(a, b, path)


def _slice(a: slice) -> tuple[Any, ...]:
    return (a.start, a.stop, a.step)


def _set_differences(a: Any, b: Any, path: str) -> Iterator[str]:
    yield from _facts([len(a)], [len(b)], path)
    left = list(b)
    for x in a:
        found = next((n for n, y in enumerate(left) if same(x, y)), None)
        if found is None:
            yield f"{path}: {x!r} is missing"
        else:
            del left[found]


def _attribute_differences(a: Any, b: Any, path: str) -> Iterator[str]:
    if isinstance(a, (dt.tzinfo, Fraction, decimal.Decimal)):
        return
    if type(a).__module__ in {"pathlib", "uuid"}:
        return
    names = list(getattr(a, "__dict__", ()))
    if not isinstance(a, (tuple, OrderedDict)):
        for base in type(a).__mro__:
            slots = vars(base).get("__slots__", ())
            names += [n for n in slots if n != "__weakref__" and hasattr(a, n)]
    for name in names:
        if name == "__orig_class__":
            continue  # of typing
        if not hasattr(b, name):
            yield f"{path}.{name} is missing"
        else:
            yield from _differences(
                getattr(a, name), getattr(b, name), f"{path}.{name}"
            )


def _facts(a: Any, b: Any, path: str) -> Iterator[str]:
    if a != b:
        yield f"{path}: {a!r:.300} and {b!r:.300}"


def _plain_facts(a: Any) -> list[Any]:
    for kinds, facts in _FACTS:
        if isinstance(a, kinds):
            return facts(a)
    is_record = hasattr(type(a), "__dataclass_fields__")
    is_record |= hasattr(type(a), "__attrs_attrs__")
    return [] if is_record else [a]  # fields are attributes


_FACTS: list[tuple[Any, Callable[[Any], list[Any]]]] = [
    (float, lambda a: [struct.pack("<d", a)]),
    (complex, lambda a: [struct.pack("<dd", a.real, a.imag)]),
    (decimal.Decimal, lambda a: [a.as_tuple()]),
    (Fraction, lambda a: [a.numerator, a.denominator]),
    ((dt.datetime, dt.time), lambda a: [a.isoformat(), a.fold, repr(a.tzinfo)]),
    (dt.tzinfo, lambda a: [repr(a), a.tzname(None)]),
    (torch.device, lambda a: [a.type, a.index]),
]


_RAW = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


def bits(tensor: torch.Tensor) -> bytes:
    """The elements of a dense host tensor, row by row, as bytes."""
    plain = tensor.detach().resolve_conj().resolve_neg()
    if plain.numel() == 0:
        return b""
    copy = bytearray(plain.nbytes)
    kind = _RAW.get(plain.dtype.itemsize, plain.dtype)  # not all dtypes can be copied
    torch.frombuffer(copy, dtype=kind).view(plain.shape).copy_(plain.view(kind))
    return bytes(copy)


def _is_dense(shape: tuple[int, ...], strides: tuple[int, ...]) -> bool:
    expected = 1
    for step, length in sorted(zip(strides, shape, strict=True)):
        if length == 1:
            continue
        if step != expected:
            return False
        expected *= length
    return True


def _strides(a: Any, b: Any, path: str) -> Iterator[str]:
    """Compare the strides of what is dense and not empty; others need not stay."""
    if 0 not in a[0] and _is_dense(*a) and _is_dense(*b):
        strides = [
            [step for length, step in zip(*c, strict=True) if length > 1]
            for c in (a, b)
        ]
        yield from _facts(*strides, f"{path}, strides")


def _steps(array: Any) -> list[int]:
    return [stride // (array.itemsize or 1) for stride in array.strides]


def _tensor_facts(a: torch.Tensor) -> list[Any]:
    dense = a if a.layout is torch.strided else a.detach().to_dense()
    return [a.dtype, a.shape, a.device, a.requires_grad, a.layout, bits(dense)]


def _array_facts(a: Any) -> list[Any]:
    return [a.dtype.str, a.shape, a.tobytes()]


def _scalar_facts(a: Any) -> list[Any]:
    if isinstance(a, np.longdouble):
        return [repr(a)]  # some of its bytes mean nothing
    length = len(a) if isinstance(a, (str, bytes)) else None
    return [a.dtype.str, a.tobytes(), length]
