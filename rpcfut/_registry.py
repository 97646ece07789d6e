"""What users call to say what a type holds (EXT-2), and how it travels."""

from __future__ import annotations

import contextlib
import functools
import inspect
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from typing import Any, TypeVar, overload

from rpcfut._derived import derived_form, rule_from, wire_name
from rpcfut._known_types import NATIVE
from rpcfut._parts import Rule, leaf
from rpcfut._pickler_walk import pickle_rule
from rpcfut._snapshot import WireFormat
from rpcfut._type_registry import (
    TYPES,
    ScopedTypes,
    TypeRegistry,
    current_types,
    types_in_use,
)

__all__ = [
    "TYPES",
    "WireFormat",
    "extractors",
    "isolated_registry",
    "no_device_data",
    "register_builtin",
    "register_extractor",
    "register_type",
]

T = TypeVar("T")
C = TypeVar("C", bound=type)
F = TypeVar("F", bound=Callable[..., object])


def isolated_registry() -> AbstractContextManager[TypeRegistry]:
    """Context manager: registrations made inside it end with it. Process-wide."""
    return TYPES.isolated()


@contextmanager
def extractors(rules: Mapping[type, Callable[..., object] | None]) -> Iterator[None]:
    """Say what some types hold, inside a ``with`` block only (EXT-2).

    Follows asyncio tasks, and callbacks that are registered inside. What is given here
    goes before what is registered; the rest of the process is as before. Types that
    travel have to be registered for the process, by `register_type`: the peer's
    messages are read outside of any block.

    Args:
        rules: For each type, what `register_extractor` takes, or None for "no device
            memory".

    Raises:
        TypeError: When a key is no class, or a value not callable.
    """
    for kind, rule in rules.items():
        _require_class("extractors", kind)
        _require_rule(f"extractors({{{kind.__qualname__}: ...}})", rule or leaf)
    with types_in_use(
        ScopedTypes(
            current_types(), {k: r or leaf for k, r in rules.items()}, _caller()
        )
    ):
        yield


def register_builtin(kind: type, rule: Rule = leaf) -> None:
    """Give one of the library's own types a rule; again is harmless."""
    TYPES.add_builtin(kind, rule)


@overload
def register_extractor(
    kind: type, function: None = None, *, override: bool = ..., subclasses: bool = ...
) -> Callable[[F], F]: ...


@overload
def register_extractor(
    kind: type, function: F, *, override: bool = ..., subclasses: bool = ...
) -> F: ...


@overload
def register_extractor(
    kind: type, *, by_pickle: bool, override: bool = ..., subclasses: bool = ...
) -> None: ...


def register_extractor(
    kind: type,
    function: F | None = None,
    *,
    by_pickle: bool = False,
    override: bool = False,
    subclasses: bool = False,
) -> F | Callable[[F], F] | None:
    """Say which memory the objects of a type hold (EXT-2).

    Args:
        kind: The type.
        function: Is given an object and returns or yields what it holds: tensors,
            containers, other objects, or `DataRef`s. The walk goes on from there.
            Left out, the call is a decorator.
        by_pickle: In place of a function: find tensors and arrays by pickling the
            object to nowhere. Slow; for types that nobody can take apart.
        override: Replace what was registered for this type.
        subclasses: The rule is good for subclasses too.

    Returns:
        The function, or the decorator; None with `by_pickle`.

    Raises:
        TypeError: When `kind` is no class, `function` not callable, or given together
            with `by_pickle`.
        ValueError: When the type has an extractor already.
    """
    _require_class("register_extractor", kind)
    place = _caller()

    def register(rule: F) -> F:
        _require_rule(f"register_extractor({kind.__qualname__}, ...)", rule)
        TYPES.add_rule(
            kind, rule, override=override, subclasses=subclasses, place=place
        )
        return rule

    if by_pickle:
        if function is not None:
            raise TypeError(
                f"register_extractor({kind.__qualname__}) got a function and "
                "by_pickle=True; they are two ways to say the same"
            )
        register(pickle_rule(_has_extractor))  # type: ignore[arg-type] # not the decorated one
        return None
    return register if function is None else register(function)


def no_device_data(kind: C, *, override: bool = False, subclasses: bool = False) -> C:
    """Say that the objects of a type hold no device memory (EXT-2).

    Args:
        kind: The type.
        override: Replace what was registered for this type.
        subclasses: The same is true of subclasses.

    Returns:
        The type, so that it works as a decorator of a class.

    Raises:
        TypeError: When `kind` is no class.
        ValueError: When the type has an extractor already.
    """
    _require_class("no_device_data", kind)
    TYPES.add_rule(
        kind, leaf, override=override, subclasses=subclasses, place=_caller()
    )
    return kind


@overload
def register_type(
    kind: type[T],
    flatten: Callable[[T], object] | None = None,
    unflatten: Callable[[Any], T] | None = None,
    *,
    name: str | None = None,
    override: bool = False,
) -> type[T]: ...


@overload
def register_type(
    *, name: str | None = None, override: bool = False
) -> Callable[[type[T]], type[T]]: ...


def register_type(
    kind: type[T] | None = None,
    flatten: Callable[[T], object] | None = None,
    unflatten: Callable[[Any], T] | None = None,
    *,
    name: str | None = None,
    override: bool = False,
) -> type[T] | Callable[[type[T]], type[T]]:
    """Say what the objects of a type hold and how they travel, in one go (EXT-2).

    A dataclass, an attrs class, a named tuple or an enum needs no functions, and
    ``@register_type`` is enough. A dataclass is rebuilt field by field, as by
    `copy.copy`: ``__init__`` and ``__post_init__`` do not run again.

    Args:
        kind: The type. Left out, the call is a decorator with options.
        flatten: Makes a supported value (tuple, list, dict, tensor ...) of an object.
        unflatten: Makes the object again from that value.
        name: What the type is called on the wire, the same on every worker; default
            ``module:qualname``, with ``__main__`` for a spawned child's main module.
        override: Replace what was registered for this type or name.

    Returns:
        The type, or the decorator.

    Raises:
        TypeError: When `kind` is no class, one function is missing, or neither is given
            for a type that they cannot be derived for.
        ValueError: When the type or the name is registered already.
    """
    if kind is None:
        return functools.partial(register_type, name=name, override=override)
    _require_class("register_type", kind)
    if kind in NATIVE:
        raise ValueError(f"the wire format of {kind.__qualname__} cannot be replaced")
    rule: Rule
    if flatten is not None and unflatten is not None:
        rule = rule_from(flatten)
    elif flatten is None and unflatten is None:
        rule, flatten, unflatten = derived_form(kind)
    else:
        missing = "flatten" if flatten is None else "unflatten"
        raise TypeError(
            f"register_type({kind.__qualname__}) got one function of two: "
            f"{missing} is missing"
        )
    form = WireFormat(
        kind=kind,
        name=wire_name(kind) if name is None else name,
        flatten=flatten,
        unflatten=unflatten,
    )
    TYPES.add_wire(form, rule, override=override, place=_caller())
    return kind


def _has_extractor(kind: type) -> bool:
    return current_types().snapshot.has_extractor(kind)


def _require_class(function: str, kind: object) -> None:
    if not isinstance(kind, type):
        raise TypeError(f"{function} wants a class, got {kind!r}")


def _require_rule(call: str, rule: object) -> None:
    if not callable(rule):
        raise TypeError(
            f"{call} wants a function that is given an object and returns what it "
            f"holds, got {rule!r}"
        )


def _caller() -> str:
    frame = inspect.currentframe()
    while frame is not None and frame.f_code.co_filename in {
        __file__,
        functools.__file__,
        contextlib.__file__,
    }:
        frame = frame.f_back
    if frame is None:
        return "an unknown place"
    return f"{frame.f_code.co_filename}:{frame.f_lineno}"
