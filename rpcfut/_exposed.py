"""The functions that peers may call, and the names by which they call them.

A name is ``module:qualname``. It is matched exactly against what was exposed; nothing
is looked up by attribute and nothing is imported for a peer (RPC-10). ``__main__`` and
``__mp_main__`` are one module: a spawned child re-runs the main file under the latter.
"""

from __future__ import annotations

import difflib
import importlib
import inspect
import sys
import threading
from collections.abc import Hashable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar, overload

from rpcfut._errors import FunctionRefusedError, NotExposedError
from rpcfut._function_names import (
    find_torch_function,
    function_path,
    is_same,
    refuse_generator,
)
from rpcfut._streams import record_in_use

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import ModuleType

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
        is_serial: Whether its calls run one at a time, in the order they came.
        marks: Behind what was queued where it was exposed (STR-9).
    """

    function: Callable[..., Any]
    is_ordered: bool
    is_serial: bool
    marks: tuple[Mark, ...]


class ExposedTable:
    """What one agent lets its peers call. Any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._functions: dict[str, Exposed] = {}
        self._names: dict[Callable[..., Any], str] = {}
        self._packages: tuple[str, ...] = ()
        self.has_serial = False  # whether any function is served one call at a time

    def __repr__(self) -> str:
        return f"<ExposedTable {sorted(self._functions)}>"

    @overload
    def expose(
        self,
        function: F,
        *,
        name: str | None = None,
        ordered: bool = True,
        serial: bool = False,
    ) -> F: ...

    @overload
    def expose(
        self,
        function: None = None,
        *,
        name: str | None = None,
        ordered: bool = True,
        serial: bool = False,
    ) -> Callable[[F], F]: ...

    def expose(
        self,
        function: F | None = None,
        *,
        name: str | None = None,
        ordered: bool = True,
        serial: bool = False,
    ) -> Any:
        """Let peers call a function; usable as a decorator, with or without arguments.

        Args:
            function: A function at the top level of a module, or any callable if a name
                is given.
            name: The name by which peers call it, instead of ``module:qualname``.
            ordered: See `rpcfut.expose`.
            serial: See `rpcfut.expose`.

        Returns:
            The function itself.

        Raises:
            FunctionRefusedError: When it has no name that a peer could use.
            ValueError: When another function was given that name. A function that is
                defined again under its old path replaces the old one.
        """
        if function is None:
            return lambda f: self.expose(f, name=name, ordered=ordered, serial=serial)
        if not isinstance(name, str | None):
            raise TypeError(f"expose(name=...) wants text, got {name!r}")
        if not callable(function):
            raise FunctionRefusedError(f"not a function: {function!r}")
        refuse_generator(function)
        key = name if name is not None else function_path(function)
        made = Exposed(
            function=function,
            is_ordered=ordered,
            is_serial=serial,
            marks=record_in_use(()),
        )
        with self._lock:
            entry = self._functions.get(key)
            known = entry.function if entry is not None else None
            # A path names one function: another one there is its new definition, as
            # when a cell of a notebook is run again. A given name may be a mistake.
            if name is not None and known is not None and not is_same(known, function):
                raise ValueError(
                    f"{key!r} is exposed already, as {known!r}; pass name= to give "
                    f"{function!r} another name"
                )
            self._functions[key] = made
            self.has_serial = self.has_serial or serial
            if isinstance(function, Hashable):
                self._names[function] = key
        return function

    def expose_torch(self, *names: str) -> None:
        """Let peers call functions of torch; see `rpcfut.expose_torch`.

        Raises:
            FunctionRefusedError: When one of them is not a function on tensors; none is
                exposed then.
        """
        found = {
            f"torch:{n.removeprefix('torch.')}": find_torch_function(n) for n in names
        }
        for name, function in found.items():
            self.expose(function, name=name)

    def expose_path(self, path: str) -> None:
        """Let peers call what a path stands for, importing it here and now.

        Args:
            path: ``module:qualname`` for one function; ``module`` for all functions
                that it defines at its top level, except those whose name starts with an
                underscore; ``package.*`` for the same in the package and in all modules
                below it, those that are imported later too.

        Raises:
            FunctionRefusedError: When there is no such thing.
        """
        if not isinstance(path, str):
            raise FunctionRefusedError(
                f"expose= wants paths, as 'package.module:function', got {path!r}"
            )
        module, colon, qualname = path.removesuffix(".*").partition(":")
        try:
            found: Any = importlib.import_module(module)
            for part in qualname.split(".") if colon else ():
                found = getattr(found, part)
        except (ImportError, AttributeError, ValueError) as error:
            raise FunctionRefusedError(f"cannot expose {path!r}: {error}") from error
        if path.endswith(".*"):
            self._packages += (module,)
        elif colon:
            self.expose(found, name=path)
        else:
            for name in [n for n in vars(found) if is_public(found, n)]:
                self.expose(getattr(found, name))

    def name_of(self, function: str | Callable[..., Any]) -> str:
        """The name by which a peer knows a function. The caller's side.

        Raises:
            FunctionRefusedError: For a lambda, a local function, a bound method, a
                generator, or anything else that another process cannot find by name.
        """
        if isinstance(function, str):
            module, _, qualname = function.partition(":")
            return f"__main__:{qualname}" if module == "__mp_main__" else function
        known = self._names.get(function) if isinstance(function, Hashable) else None
        return known if known is not None else function_path(function)

    def is_serial(self, name: str) -> bool:
        """Whether calls of that name run one at a time. The callee's side."""
        entry = self._functions.get(name)
        return entry is not None and entry.is_serial

    def find(self, name: str, worker: str) -> Exposed:
        """The function of a name. The callee's side.

        Args:
            name: What the peer asked for: hostile input.
            worker: The own name, for the message.

        Raises:
            NotExposedError: When it is not exposed; the message has the line to add.
        """
        entry = self._functions.get(name) or self._find_in_packages(name)
        if entry is not None:
            return entry
        shown = name if len(name) <= _MAX_SHOWN else name[:_MAX_SHOWN] + "..."
        raise NotExposedError(
            f"{shown!r} is not exposed on worker {worker!r}{line_to_add(shown)}"
            f"{self._similar(shown)}"
        )

    def _similar(self, shown: str) -> str:
        """A name that may have been meant. Peers may call it, so it is no secret."""
        by_last = {name.rpartition(":")[2]: name for name in tuple(self._functions)}
        last = shown.rpartition(":")[2]
        close = difflib.get_close_matches(last, [*by_last], n=1, cutoff=0.75)
        return f" (did you mean {by_last[close[0]]!r}?)" if close else ""

    def _find_in_packages(self, name: str) -> Exposed | None:
        module, _, qualname = name.partition(":")
        if not any(f"{module}.".startswith(f"{p}.") for p in self._packages):
            return None
        place = sys.modules.get(module)
        if place is None or not is_public(place, qualname):
            return None
        self.expose(getattr(place, qualname), name=name)
        return self._functions[name]


def line_to_add(name: str) -> str:
    """What exposes a name, in words; the name may hold anything."""
    module, _, qualname = name.partition(":")
    is_path = all(part.isidentifier() for part in f"{module}.{qualname}".split("."))
    if is_path and module == "torch":
        return f"; call rpcfut.expose_torch({qualname!r}) there"
    if is_path and module != "__main__" and module not in sys.modules:
        return (
            f": its module is not imported there; add `import {module}` to that "
            f"worker's script, and @rpcfut.expose above `def {qualname}` in it"
        )
    place = f"`def {qualname}` in {module}" if is_path else "the function"
    return (
        f"; add @rpcfut.expose above {place}, or call "
        f"rpcfut.expose(function, name={name!r}) there"
    )


def is_public(module: ModuleType, name: str) -> bool:
    """Whether a module defines a function of that name for others to use."""
    found = vars(module).get(name)
    return (
        not name.startswith("_")
        and inspect.isfunction(found)
        and not inspect.isgeneratorfunction(found)
        and not inspect.isasyncgenfunction(found)
        and found.__module__ == module.__name__
        and found.__qualname__ == name
    )
