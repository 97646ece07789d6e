"""What is known from the start (EXT-4): types, and families of types.

A *rule* is given an object and returns what it holds: memory (`DataRef`) or further
objects to look at. `LEAVES` are the types that hold neither.

A type belongs to a family by how it was made: a dataclass, a named tuple, an enum ...
A family looks at every attribute, declared or not. A class that derives from a known
container is in no family: it is unknown until somebody registers it (EXT-5).
"""

from __future__ import annotations

import dataclasses
import datetime as dt
import decimal
import enum
import fractions
import functools
import pathlib
import types
import uuid
from collections import Counter, OrderedDict, defaultdict, deque
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final, TypeAlias

import torch
from torch.nn.utils.rnn import PackedSequence
from torch.utils import _pytree

from rpcfut import _memory

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


def _mapping_and_attributes(value: Mapping[object, object]) -> list[object]:
    # A state_dict is an OrderedDict with an attribute, _metadata.
    return [*value.keys(), *value.values(), *vars(value).values()]


def _defaultdict_parts(value: defaultdict[object, object]) -> list[object]:
    return [value.default_factory, *value.keys(), *value.values()]


def _partial_parts(value: functools.partial[object]) -> list[object]:
    return [value.func, *value.args, *value.keywords.values(), *vars(value).values()]


def _method_parts(value: types.MethodType) -> tuple[object, ...]:
    return (value.__self__, value.__func__)


def _function_parts(value: types.FunctionType) -> list[object]:
    if value.__closure__ is not None:
        raise TypeError(
            f"{value.__qualname__} is a function with a closure, which may hold "
            "anything; use functools.partial or pass what it holds as values"
        )
    parts: list[object] = list(value.__defaults__ or ())
    parts.extend((value.__kwdefaults__ or {}).values())
    parts.extend(vars(value).values())
    return parts


def _builtin_function_parts(value: types.BuiltinFunctionType) -> tuple[object, ...]:
    bound = value.__self__
    return () if bound is None or isinstance(bound, types.ModuleType) else (bound,)


def _slot_readers(kind: type) -> tuple[types.MemberDescriptorType, ...]:
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
    for slot in _slot_readers(type(value)):
        try:
            parts.append(slot.__get__(value))
        except AttributeError:
            continue  # not set
    return parts


def _tuple_and_attributes(value: tuple[object, ...]) -> list[object]:
    return [*value, *getattr(value, "__dict__", {}).values()]


def _exception_parts(value: BaseException) -> list[object]:
    parts: list[object] = [*value.args, *attribute_parts(value)]
    parts.append(value.__cause__)
    parts.append(value.__context__)
    if isinstance(value, StopIteration):
        parts.append(value.value)
    if isinstance(value, BaseExceptionGroup):
        parts.extend(value.exceptions)
    return parts


LEAVES: Final[frozenset[type]] = frozenset(
    {
        *(type(None), bool, int, float, complex, str, bytes, bytearray),
        *(memoryview, range, slice, type(...), type(NotImplemented)),
        *(decimal.Decimal, fractions.Fraction, uuid.UUID),
        *(pathlib.PosixPath, pathlib.PurePosixPath),
        *(pathlib.WindowsPath, pathlib.PureWindowsPath),
        *(dt.date, dt.datetime, dt.time),
        *(dt.timedelta, dt.timezone),
        *(torch.dtype, torch.device, torch.Size, torch.layout, torch.memory_format),
        *(torch.Generator, torch.Stream, torch.Event),
        *(torch.cuda.Stream, torch.cuda.Event, torch.cuda.ExternalStream),
    }
)

# What msgpack writes by itself; nobody can give these another wire format.
NATIVE: Final[frozenset[type]] = frozenset(
    {type(None), bool, int, float, str, bytes, list, tuple, dict}
)

RULES: Final[dict[type, Rule]] = {
    **dict.fromkeys(LEAVES, leaf),
    list: itself,
    tuple: itself,
    set: itself,
    frozenset: itself,
    deque: itself,
    dict: mapping_parts,
    OrderedDict: _mapping_and_attributes,
    Counter: _mapping_and_attributes,
    defaultdict: _defaultdict_parts,
    types.MappingProxyType: mapping_parts,
    types.SimpleNamespace: attribute_parts,
    types.FunctionType: _function_parts,
    types.MethodType: _method_parts,
    types.BuiltinFunctionType: _builtin_function_parts,
    functools.partial: _partial_parts,
    torch.Tensor: _memory.tensor_parts,
    torch.nn.Parameter: _memory.tensor_parts,
    torch.UntypedStorage: _memory.storage_parts,
    torch.TypedStorage: _memory.typed_storage_parts,
    PackedSequence: _tuple_and_attributes,
}

# A class that derives from one of these may add attributes to memory that its family's
# rule does not look at.
_CONTAINERS: Final = (
    *(list, tuple, dict, set, frozenset, deque, memoryview),
    *(torch.Tensor, torch.UntypedStorage, torch.TypedStorage),
    *(torch.nn.Module, types.ModuleType),
)


def family_rule(kind: type) -> Rule | None:
    """Find the rule of a type that is in no table; None if it is unknown."""
    for family in (_tensor_rule, _numpy_rule, _tuple_rule, _object_rule):
        rule = family(kind)
        if rule is not None:
            return rule
    node = _pytree.SUPPORTED_NODES.get(kind)
    if node is not None:
        flatten: Any = node.flatten_fn
        return lambda value: flatten(value)[0]
    return None


def _tensor_rule(kind: type) -> Rule | None:
    if not issubclass(kind, torch.Tensor) or not hasattr(kind, "__tensor_flatten__"):
        return None
    return _memory.subclass_parts


def _numpy_rule(kind: type) -> Rule | None:
    if kind is _memory.numpy_array_type():
        return _memory.ndarray_parts
    return leaf if _memory.is_numpy_scalar(kind) else None


def _tuple_rule(kind: type) -> Rule | None:
    """Named tuples, and the structs that torch's functions return."""
    if not issubclass(kind, tuple):
        return None
    if kind.__bases__ == (tuple,) and is_named_tuple(kind):
        return itself
    return itself if is_struct_sequence(kind) else None


def is_named_tuple(kind: type) -> bool:
    """Whether this is a class that ``namedtuple`` or ``NamedTuple`` made."""
    return isinstance(getattr(kind, "_fields", None), tuple) and hasattr(kind, "_make")


def is_struct_sequence(kind: type) -> bool:
    """Whether this is a struct such as ``torch.return_types.max``."""
    return isinstance(getattr(kind, "n_sequence_fields", None), int)


def _object_rule(kind: type) -> Rule | None:
    array = _memory.numpy_array_type()
    containers = _CONTAINERS if array is None else (*_CONTAINERS, array)
    if issubclass(kind, containers):
        return None
    if issubclass(kind, (enum.Enum, type)):
        return leaf
    if issubclass(kind, BaseException):
        return _exception_parts
    if hasattr(kind, "__cuda_array_interface__"):
        return _memory.array_interface_parts
    if hasattr(kind, "__dlpack__") and hasattr(kind, "__dlpack_device__"):
        return _memory.dlpack_parts
    return attribute_parts if field_names(kind) is not None else None


def field_names(kind: type) -> tuple[str, ...] | None:
    """Names of the fields of a dataclass or an attrs class; None for another type."""
    if dataclasses.is_dataclass(kind):
        return tuple(field.name for field in dataclasses.fields(kind))
    attributes = kind.__dict__.get("__attrs_attrs__")
    if attributes is None:
        return None
    return tuple(attribute.name for attribute in attributes)


def module_name(named: Any) -> str:
    """The module of a class or function, by the name that its users know.

    A spawned child runs the main file as ``__mp_main__``; to users, and on the wire, it
    is ``__main__``.
    """
    module: str = named.__module__
    return "__main__" if module == "__mp_main__" else module


def type_name(kind: type) -> str:
    """Module and qualified name, as messages give it."""
    return f"{module_name(kind)}.{kind.__qualname__}"


def steps(value: object) -> Iterator[tuple[str, object]]:
    """What a value holds, each with how a path in a message goes there."""
    if isinstance(value, Mapping):
        for key, item in value.items():
            yield f"[{_key_text(key)}]", item
        for key in value:
            yield f".<key {_key_text(key)}>", key
    elif isinstance(value, (list, tuple, deque)):
        names = getattr(value, "_fields", None)
        for number, item in enumerate(value):
            yield f".{names[number]}" if names else f"[{number}]", item
    elif isinstance(value, (set, frozenset)):
        for item in value:
            yield ".<element>", item
    yield from _attribute_steps(value)


def _attribute_steps(value: object) -> Iterator[tuple[str, object]]:
    names = [slot.__name__ for slot in _slot_readers(type(value))]
    for name, item in getattr(value, "__dict__", {}).items():
        yield f".{name}", item
    for name in names:
        if hasattr(value, name):
            yield f".{name}", getattr(value, name)


def _key_text(key: object) -> str:
    is_short = type(key) is not int or key.bit_length() < 256
    is_plain = type(key) in {str, int, float, bytes, bool, type(None)}
    text = repr(key) if is_plain and is_short else f"<a {type_name(type(key))}>"
    return text if len(text) <= 60 else text[:57] + "..."
