"""By which name a worker knows a function of another (RPC-10).

A name is ``module:qualname``; ``__main__`` and ``__mp_main__`` are one module. torch's
functions are ``torch:add``, ``torch:nn.functional.relu``: most have no module of their
own to be found in.
"""

from __future__ import annotations

import inspect
from typing import TYPE_CHECKING, Any, Final

import torch

from rpcfut._errors import FunctionRefusedError
from rpcfut._known_types import module_name

if TYPE_CHECKING:
    from collections.abc import Callable

_TORCH_NAMESPACES: Final = ("", "linalg.", "fft.", "special.", "nn.functional.")
_TORCH_BUILTIN: Final = frozenset(
    {"torch._C._linalg", "torch._C._fft", "torch._C._special", "torch._C._nn"}
)
_TORCH_PYTHON: Final = frozenset({"torch.functional", "torch.nn.functional"})
# What computes on tensors, and yet reaches for more than its arguments.
_TORCH_REFUSED: Final = frozenset({"from_file"})


def function_path(function: Callable[..., Any]) -> str:
    """``module:qualname`` of a function at the top level of a module or class.

    Raises:
        FunctionRefusedError: When it has no such path, with the way out.
    """
    module = getattr(function, "__module__", None)
    qualname = getattr(function, "__qualname__", None)
    if not callable(function):
        raise FunctionRefusedError(
            f"not a function: {function!r}; give a function at the top level of a "
            "module, or its name"
        )
    if inspect.ismethod(function):
        raise FunctionRefusedError(
            f"cannot call the bound method {qualname} on another worker: its object "
            "lives here; expose a function at the top level of a module that finds the "
            "object over there"
        )
    refuse_generator(function)
    torch_name = torch_name_of(function)
    if torch_name is not None:
        return f"torch:{torch_name}"
    if not isinstance(module, str) or not isinstance(qualname, str):
        raise FunctionRefusedError(
            f"cannot call {function!r} on another worker: it has no module and name; "
            "wrap it in a function at the top level of a module"
        )
    if "<lambda>" in qualname:
        raise FunctionRefusedError(
            f"cannot call a lambda on another worker (made in {module}): no other "
            "process can find it; write `def` at the top level of a module and expose "
            "it"
        )
    if "<locals>" in qualname:
        raise FunctionRefusedError(
            f"cannot call the local function {qualname} on another worker: no other "
            f"process can find it; move it to the top level of {module} and expose it"
        )
    return f"{module_name(function)}:{qualname}"


def refuse_generator(function: Callable[..., Any]) -> None:
    """Raise FunctionRefusedError for a generator function, with the way out."""
    if inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function):
        raise FunctionRefusedError(
            f"no peer can call {function!r}: a call has one answer, and a generator "
            "many; return a list, or have the callee call back with each"
        )


def torch_name_of(function: object) -> str | None:
    """The name below ``torch`` of one of its functions on tensors; None for others."""
    own_name = getattr(function, "__name__", None)
    if not isinstance(own_name, str):
        return None
    for namespace in _TORCH_NAMESPACES:
        # torch.linalg.norm calls itself linalg_norm.
        name = own_name.removeprefix(namespace.replace(".", "_"))
        if _find_torch(namespace + name) is function:
            return namespace + name
    return None


def find_torch_function(name: str) -> Callable[..., Any]:
    """The function of a name below ``torch``, if it only computes on tensors.

    Raises:
        FunctionRefusedError: When there is none, or it does more than that.
    """
    if not isinstance(name, str):
        raise FunctionRefusedError(f"expose_torch() wants names, got {name!r}")
    found = _find_torch(name.removeprefix("torch."))
    if found is None:
        raise FunctionRefusedError(
            "expose_torch() takes functions that compute on tensors, by their names "
            f"below torch, as 'add' or 'nn.functional.relu', got {name!r}; put "
            "anything else into a function of your own, and expose that"
        )
    return found


def _find_torch(name: str) -> Callable[..., Any] | None:
    namespace, dot, last = name.rpartition(".")
    if namespace + dot not in _TORCH_NAMESPACES or name in _TORCH_REFUSED:
        return None
    place: Any = torch
    for part in namespace.split(".") if namespace else ():
        place = getattr(place, part)
    found: Any = vars(place).get(last)
    if last.startswith("_") or not callable(found):
        return None
    if inspect.isbuiltin(found):
        operators = torch._C._VariableFunctions  # noqa: SLF001 - torch.add and the like
        is_operator = getattr(operators, last, None) is found
        return found if is_operator or found.__module__ in _TORCH_BUILTIN else None
    is_ours = inspect.isfunction(found) and found.__module__ in _TORCH_PYTHON
    return found if is_ours else None


def is_same(one: Callable[..., Any], other: Callable[..., Any]) -> bool:
    """Whether both are one function, perhaps of a module that was run twice."""
    if one is other:
        return True
    if inspect.ismethod(one) and inspect.ismethod(other):
        return one == other
    one, other = inspect.unwrap(one), inspect.unwrap(other)
    if not (inspect.isfunction(one) and inspect.isfunction(other)):
        return False
    # Two closures share their code and are not one function.
    has_closure = one.__closure__ is not None or other.__closure__ is not None
    return one.__code__ == other.__code__ and not has_closure
