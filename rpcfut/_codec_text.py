"""Paths and ways out, for messages about what cannot travel."""

from __future__ import annotations

import types
from collections.abc import Mapping
from itertools import pairwise
from typing import TYPE_CHECKING, Final

import torch

from rpcfut._derived import registration_line
from rpcfut._known_types import steps

if TYPE_CHECKING:
    from collections.abc import Sequence

_SHOWN_STEPS = 8  # of a path, at each end
_HINTS: Final[tuple[tuple[type | tuple[type, ...], str], ...]] = (
    (memoryview, "is a view of memory; send bytes(x)"),
    (types.MappingProxyType, "is a view of a dict; send dict(x)"),
    (torch.nn.Module, "is a module; send its state_dict()"),
    (torch.Tensor, "is a tensor subclass; send x.as_subclass(torch.Tensor)"),
    ((torch.UntypedStorage, torch.TypedStorage), "is a storage; send a tensor over it"),
    (torch.Generator, "is a generator; send its get_state()"),
    (BaseException, "is an exception; raise it, or register its type"),
    (types.FunctionType, "is a function; send its name"),
    (type, "is a class; send its name"),
)


def hint(value: object) -> str:
    """Say why a known type cannot travel, and the way out."""
    for kinds, text in _HINTS:
        if isinstance(value, kinds):
            return text
    kind = type(value)
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


def path_to(chain: Sequence[object], root: str) -> str:
    """Write the path from the first object of a chain to the last.

    Args:
        chain: Objects, each held by the one before.
        root: What the first is called.
    """
    parts = [_step(holder, held) for holder, held in pairwise(chain)]
    if len(parts) > 2 * _SHOWN_STEPS:
        left_out = f" ... {len(parts) - 2 * _SHOWN_STEPS} more ... "
        parts[_SHOWN_STEPS:-_SHOWN_STEPS] = [left_out]
    return root + "".join(parts)


def _step(holder: object, held: object) -> str:
    for step, child in steps(holder):
        if child is held:
            return step
    if isinstance(held, Mapping):
        return ""  # a registered object flattened to its fields by name
    return ".<flattened>"
