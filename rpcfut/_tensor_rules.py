"""Which dense tensors can be sent, and what they are beside elements (RPC-9).

A tensor's ``.grad``, hooks, and attributes whose name starts with ``_`` belong to this
process and stay here; other attributes would be missed, and are refused.
"""

from __future__ import annotations

from typing import Any, Final

import torch

from rpcfut._dtypes import DTYPES
from rpcfut._tensor_table import CONJUGATE, META, NEGATIVE

_DENSE: Final = frozenset(DTYPES)


def _keys_of_plain_tensors() -> frozenset[int]:
    kinds = [torch.empty(0)]
    with torch.inference_mode():
        kinds.append(torch.empty(0))
    return frozenset(map(_keys, kinds))


def is_plain_on_host(tensor: torch.Tensor) -> bool:
    """Whether a tensor is dense, on the host, and no lazy view or wrapper.

    True is certain; False means that it has to be looked at.
    """
    return _keys(tensor) in _PLAIN_KEYS


def _keys(tensor: torch.Tensor) -> int:
    """What torch dispatches on: device, layout, lazy views, wrappers."""
    return torch._C._dispatch_keys(tensor).raw_repr()  # noqa: SLF001 - six questions in one; slower ones follow where it says less


_PLAIN_KEYS: Final = _keys_of_plain_tensors()


def dense_refusal(tensor: torch.Tensor) -> str | None:
    """Say why a tensor, known to be dense, cannot travel; None if it can."""
    if tensor.requires_grad and not tensor.is_leaf:
        return "is part of an autograd graph, which stays here; send x.detach()"
    if tensor.dtype not in _DENSE:
        return (
            f"has dtype {tensor.dtype}, which cannot travel; send "
            "x.view(torch.uint8), and the dtype's name"
        )
    return attribute_refusal(tensor)


def attribute_refusal(tensor: torch.Tensor) -> str | None:
    """Say which attribute of a tensor would be missed on arrival."""
    for name in tensor.__dict__:
        if not name.startswith("_"):
            return (
                f"has the attribute {name!r}, which would be lost; send x.detach(), "
                "and the attribute beside it"
            )
    return None


def lazy_flags(tensor: torch.Tensor) -> int:
    if tensor.is_meta:
        return META
    conjugate = CONJUGATE if tensor.is_conj() else 0
    return conjugate | (NEGATIVE if tensor.is_neg() else 0)


def start_of(tensor: torch.Tensor, extent: int) -> int:
    """Address of the first byte, of `extent` that must be there."""
    try:
        start: int = tensor.data_ptr()
        nbytes = tensor.untyped_storage().nbytes()
    except (NotImplementedError, RuntimeError) as error:
        raise TypeError(
            f"has no memory of its own ({str(error).splitlines()[0]}); send the tensor "
            "that it stands for, outside of torch.func, vmap and torch.compile"
        ) from error
    at = int(tensor.storage_offset()) * tensor.dtype.itemsize
    if not start or at + extent > nbytes:
        raise TypeError(
            f"shows {extent} bytes from byte {at}, and its storage was resized to "
            f"{nbytes}: its memory was freed, as FSDP does with parameters that are "
            "not in use; gather it before it is sent"
        )
    return start


def storage_start(tensor: torch.Tensor) -> int:
    return tensor.data_ptr() - int(tensor.storage_offset()) * tensor.dtype.itemsize


def require_no_wrapper(tensor: torch.Tensor) -> None:
    if torch._is_functional_tensor(tensor):  # noqa: SLF001 - has no public name
        raise TypeError(
            "is a wrapper that torch.compile traces with; send the tensor that it "
            "stands for, outside of torch.compile"
        )


def has_modes() -> bool:
    """Whether the caller entered a mode under which a copy may copy nothing."""
    c: Any = torch._C  # noqa: SLF001 - has no public name
    return bool(c._len_torch_dispatch_stack() or c._len_torch_function_stack())  # noqa: SLF001 - as above
