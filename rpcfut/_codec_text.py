"""Paths and ways out, for messages about what cannot travel."""

from __future__ import annotations

import functools
import types
import zoneinfo
from concurrent.futures import Future
from itertools import chain, pairwise
from typing import TYPE_CHECKING, Final

import torch

from rpcfut._derived import registration_line
from rpcfut._known_types import field_names, steps
from rpcfut._memory import numpy_type

if TYPE_CHECKING:
    from collections.abc import Sequence

_SHOWN_STEPS = 8  # of a path, at each end
_FUNCTION: Final = "is a function; send its name"
_HINTS: Final[tuple[tuple[type | tuple[type, ...], str], ...]] = (
    (memoryview, "is a view of memory; send bytes(x)"),
    (types.MappingProxyType, "is a view of a dict; send dict(x)"),
    (types.SimpleNamespace, "has no wire format; send vars(x)"),
    (zoneinfo.ZoneInfo, "is a time zone, whose rules cannot travel; send x.key"),
    (torch.nn.Module, "is a module; send its state_dict()"),
    (torch.Tensor, "is a tensor subclass; send x.as_subclass(torch.Tensor)"),
    ((torch.UntypedStorage, torch.TypedStorage), "is a storage; send a tensor over it"),
    (torch.Generator, "is a generator; send its get_state()"),
    ((torch.finfo, torch.iinfo), "has no wire format; send the dtype, as text"),
    (torch.qscheme, "has no wire format; send str(x)"),
    ((torch.Stream, torch.Event), "is a queue of a device here; leave it out"),
    (BaseException, "is an exception; raise it, or register its type"),
    ((types.FunctionType, types.BuiltinFunctionType), _FUNCTION),
    ((types.MethodType, functools.partial), _FUNCTION),
    ((types.MethodDescriptorType, types.WrapperDescriptorType), _FUNCTION),
    (types.MethodWrapperType, _FUNCTION),
    ((type, types.GenericAlias, types.UnionType), "is a class; send its name"),
    (Future, "is a future; wait for it and send its value, or return it"),
)


def hint(value: object) -> str:
    """Say why a known type cannot travel, and the way out."""
    for kinds, text in _HINTS:
        if isinstance(value, kinds):
            return text
    kind = type(value)
    if isinstance(value, numpy_type("dtype") or ()):
        return "is a NumPy dtype; send x.str"
    line = registration_line(kind)
    if hasattr(kind, "__cuda_array_interface__") or hasattr(kind, "__dlpack__"):
        return f"has no wire format; send torch.as_tensor(x), or call {line}"
    for base in (str, int, float, list, dict, tuple, set, bytes):
        if issubclass(kind, base):
            return (
                f"is a subclass of {base.__name__} without a wire format; send "
                f"{base.__name__}(x), or call {line}"
            )
    return f"has no wire format; on both workers call {line}"


def path_to(objects: Sequence[object], root: str) -> str:
    """Write the path from the first of some objects to the last.

    Args:
        objects: Objects, each held by the one before.
        root: What the first is called.
    """
    owners = [None, *objects]
    parts = [
        _step(owner, holder, held)
        for owner, (holder, held) in zip(owners, pairwise(objects), strict=False)
    ]
    if len(parts) > 2 * _SHOWN_STEPS:
        left_out = f" ... {len(parts) - 2 * _SHOWN_STEPS} more ... "
        parts[_SHOWN_STEPS:-_SHOWN_STEPS] = [left_out]
    return root + "".join(parts)


def _step(owner: object, holder: object, held: object) -> str:
    """How a path goes from `holder` to `held`; `owner` is what holds the holder."""
    named = steps(owner) if _is_flat_form(owner, holder) else ()
    for step, child in chain(named, steps(holder)):
        if child is held:
            return step
    return "" if _is_flat_form(holder, held) else ".<flattened>"


def _is_flat_form(value: object, flat: object) -> bool:
    """Whether an object was flattened to its fields, which the path then names."""
    if type(flat) is dict:
        return flat.keys() == set(field_names(type(value)) or ())
    return type(flat) is tuple and len(flat) == len(getattr(value, "_fields", ()))
