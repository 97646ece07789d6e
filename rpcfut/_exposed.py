"""The functions that peers may call, and the names by which they call them.

A name is ``module:qualname``. It is matched exactly against what was exposed; nothing
is looked up by attribute and nothing is imported for a peer (RPC-10). ``__main__`` and
``__mp_main__`` are one module: a spawned child re-runs the main file under the latter.
"""

from __future__ import annotations

import inspect
import sys
import threading
from collections.abc import Hashable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar, overload

from rpcfut._errors import FunctionRefusedError, NotExposedError
from rpcfut._known_types import module_name
from rpcfut._streams import record_in_use

if TYPE_CHECKING:
    from collections.abc import Callable

    from rpcfut._streams import Mark

F = TypeVar("F", bound="Callable[..., Any]")

_MAX_SHOWN = 200


@dataclass(frozen=True, slots=True, kw_only=True)
class Exposed:
    """A function that peers may call, and how it is served.

    Args:
        function: The function.
        is_ordered: Whether its work comes after that of earlier calls on the device,
            and before that of later ones (STR-13).
        marks: Behind what was queued where it was exposed (STR-9).
    """

    function: Callable[..., Any]
    is_ordered: bool
    marks: tuple[Mark, ...]


class ExposedTable:
    """What one agent lets its peers call. Any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._functions: dict[str, Exposed] = {}
        self._names: dict[Callable[..., Any], str] = {}

    def __repr__(self) -> str:
        return f"<ExposedTable {sorted(self._functions)}>"

    @overload
    def expose(
        self, function: F, *, name: str | None = None, ordered: bool = True
    ) -> F: ...

    @overload
    def expose(
        self, function: None = None, *, name: str | None = None, ordered: bool = True
    ) -> Callable[[F], F]: ...

    def expose(
        self,
        function: F | None = None,
        *,
        name: str | None = None,
        ordered: bool = True,
    ) -> Any:
        """Let peers call a function; usable as a decorator, with or without arguments.

        Args:
            function: A function at the top level of a module, or any callable if a name
                is given.
            name: The name by which peers call it, instead of ``module:qualname``.
            ordered: See `rpcfut.expose`.

        Returns:
            The function itself.

        Raises:
            FunctionRefusedError: When it has no name that a peer could use.
            ValueError: When another function was given that name. A function that is
                defined again under its old path replaces the old one.
        """
        if function is None:
            return lambda f: self.expose(f, name=name, ordered=ordered)
        if not isinstance(name, str | None):
            raise TypeError(f"expose(name=...) wants text, got {name!r}")
        if not callable(function):
            raise FunctionRefusedError(f"not a function: {function!r}")
        if inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(
            function
        ):
            raise FunctionRefusedError(
                f"cannot expose {function!r}: a call has one answer, and a generator "
                "many; return a list, or have the callee call back with each"
            )
        key = name if name is not None else function_path(function)
        made = Exposed(function=function, is_ordered=ordered, marks=record_in_use(()))
        with self._lock:
            entry = self._functions.get(key)
            known = entry.function if entry is not None else None
            # A path names one function: another one there is its new definition, as
            # when a cell of a notebook is run again. A given name may be a mistake.
            if name is not None and known is not None and not _is_same(known, function):
                raise ValueError(
                    f"{key!r} is exposed already, as {known!r}; pass name= to give "
                    f"{function!r} another name"
                )
            self._functions[key] = made
            if isinstance(function, Hashable):
                self._names[function] = key
        return function

    def name_of(self, function: str | Callable[..., Any]) -> str:
        """The name by which a peer knows a function. The caller's side.

        Raises:
            FunctionRefusedError: For a lambda, a local function, a bound method, or
                anything else that another process cannot find by name.
        """
        if isinstance(function, str):
            module, _, qualname = function.partition(":")
            return f"__main__:{qualname}" if module == "__mp_main__" else function
        known = self._names.get(function) if isinstance(function, Hashable) else None
        return known if known is not None else function_path(function)

    def find(self, name: str, worker: str) -> Exposed:
        """The function of a name. The callee's side.

        Args:
            name: What the peer asked for: hostile input.
            worker: The own name, for the message.

        Raises:
            NotExposedError: When it is not exposed; the message has the line to add.
        """
        entry = self._functions.get(name)
        if entry is not None:
            return entry
        shown = name if len(name) <= _MAX_SHOWN else name[:_MAX_SHOWN] + "..."
        module, _, qualname = shown.partition(":")
        if qualname and module != "__main__" and module not in sys.modules:
            raise NotExposedError(
                f"{shown!r} is not exposed on worker {worker!r}: its module is not "
                f"imported there; add `import {module}` to that worker's script, and "
                f"@rpcfut.expose above `def {qualname}` in it"
            )
        place = f"`def {qualname}` in {module}" if qualname else "the function"
        raise NotExposedError(
            f"{shown!r} is not exposed on worker {worker!r}; add @rpcfut.expose above "
            f"{place}, or call rpcfut.expose(function, name={shown!r}) there"
        )


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


def _is_same(one: Callable[..., Any], other: Callable[..., Any]) -> bool:
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
