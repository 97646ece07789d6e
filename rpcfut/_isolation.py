"""A clean thread for what peers call (RPC-6).

A pool thread serves many callers. What one function left behind, by a context that it
entered and never left or a switch that it set, must not change what the next computes.
All of this is per thread or per context; switches of the whole process are the user's.
"""

# ruff: noqa: SLF001 - torch has no public way to ask for most of this

from __future__ import annotations

import contextvars
from typing import TYPE_CHECKING, ParamSpec, TypeVar

import torch
from torch.overrides import _pop_mode as pop_function_mode
from torch.utils._python_dispatch import _pop_mode as pop_dispatch_mode

if TYPE_CHECKING:
    from collections.abc import Callable

P = ParamSpec("P")
T = TypeVar("T")

_AUTOCAST_TYPES = ("cpu", "cuda")


def run_isolated(function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    """Call a function with gradients on, and without what others left on this thread.

    Off are inference mode, autocast, torch's function and dispatch modes (a default
    device is one of them) and hooks of saved tensors; context variables have no value.
    """
    _clean_thread()
    context = contextvars.Context()
    if torch.is_inference_mode_enabled():
        with torch.inference_mode(mode=False):
            return context.run(function, *args, **kwargs)
    return context.run(function, *args, **kwargs)


def _clean_thread() -> None:
    # Asking costs a tenth of a microsecond, setting several.
    if not torch.is_grad_enabled():
        torch.set_grad_enabled(True)
    if torch._C._is_any_autocast_enabled():
        for kind in _AUTOCAST_TYPES:
            torch.set_autocast_enabled(kind, enabled=False)
        torch.clear_autocast_cache()
    while torch._C._len_torch_function_stack():
        pop_function_mode()
    while torch._C._len_torch_dispatch_stack():
        pop_dispatch_mode()
    hooks = torch._C._autograd
    ignore_tracing = True
    while hooks._top_saved_tensors_default_hooks(ignore_tracing) is not None:
        hooks._pop_saved_tensors_default_hooks()
