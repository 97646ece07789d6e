"""Rules of Python's own objects: what containers, functions and errors hold.

A *rule* is given an object and returns what it holds: memory (`DataRef`) or further
objects to look at.
"""

from __future__ import annotations

import types
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, TypeAlias

if TYPE_CHECKING:
    import functools
    from collections import defaultdict

Rule: TypeAlias = Callable[..., object]


def leaf(_: object) -> tuple[object, ...]:
    """Rule of types that hold nothing."""
    return ()


def itself(value: object) -> object:
    """Rule of plain sequences and sets: what they hold is what they iterate."""
    return value


def mapping_parts(value: Mapping[object, object]) -> list[object]:
    """Keys and values of a mapping."""
    return [*value.keys(), *value.values()]


def mapping_and_attributes(value: Mapping[object, object]) -> list[object]:
    """Keys, values and attributes: a state_dict is an OrderedDict with _metadata."""
    return [*value.keys(), *value.values(), *vars(value).values()]


def defaultdict_parts(value: defaultdict[object, object]) -> list[object]:
    """Keys, values and what makes new ones."""
    return [value.default_factory, *value.keys(), *value.values()]


def slice_parts(value: slice) -> tuple[object, ...]:
    """The three parts, which may be any objects."""
    return (value.start, value.stop, value.step)


def partial_parts(value: functools.partial[object]) -> list[object]:
    """The function, its bound arguments and its attributes."""
    return [value.func, *value.args, *value.keywords.values(), *vars(value).values()]


def method_parts(value: types.MethodType) -> tuple[object, ...]:
    """The object and the function."""
    return (value.__self__, value.__func__)


def function_parts(value: types.FunctionType) -> list[object]:
    """Defaults and attributes; a closure is refused, globals are not looked at."""
    if value.__closure__ is not None:
        raise TypeError(
            f"{value.__qualname__} is a function with a closure, which may hold "
            "anything; use functools.partial or pass what it holds as values"
        )
    parts: list[object] = list(value.__defaults__ or ())
    parts.extend((value.__kwdefaults__ or {}).values())
    parts.extend(vars(value).values())
    return parts


def builtin_function_parts(value: types.BuiltinFunctionType) -> tuple[object, ...]:
    """The object that it is bound to, if it is."""
    bound = value.__self__
    return () if bound is None or isinstance(bound, types.ModuleType) else (bound,)


def slot_readers(kind: type) -> tuple[types.MemberDescriptorType, ...]:
    """The slots of a class and of its bases."""
    return tuple(
        member
        for base in kind.__mro__
        for member in vars(base).values()
        if isinstance(member, types.MemberDescriptorType)
        and base.__module__ != "builtins"
    )


def attribute_parts(value: object) -> list[object]:
    """Everything in the attributes and slots of an object, declared or not."""
    parts = list(getattr(value, "__dict__", {}).values())
    for slot in slot_readers(type(value)):
        try:
            parts.append(slot.__get__(value))
        except AttributeError:
            continue  # not set
    return parts


def tuple_and_attributes(value: tuple[object, ...]) -> list[object]:
    """Elements and attributes."""
    return [*value, *getattr(value, "__dict__", {}).values()]


def exception_parts(value: BaseException) -> list[object]:
    """Arguments, attributes, cause and context; the traceback is not looked at."""
    parts: list[object] = [*value.args, *attribute_parts(value)]
    parts.append(value.__cause__)
    parts.append(value.__context__)
    if isinstance(value, StopIteration):
        parts.append(value.value)
    if isinstance(value, BaseExceptionGroup):
        parts.extend(value.exceptions)
    return parts
