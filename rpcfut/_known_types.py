"""What is known from the start (EXT-4): types, families of types, and what is refused.

Theory of operation: three tables. `KNOWN` lists types with the *rule* of each, which is
given an object and returns what it holds: memory (`DataRef`) or further objects to look
at. A type that is not listed may belong to one of the `FAMILIES`, by how it was made: a
dataclass, a named tuple, an enum ... A class that derives from a known container is in
no family: it may hide memory in its attributes, and is unknown until somebody registers
it (EXT-5). `REFUSED` has the advice for unknown types that people do send.

docs/extractors.md shows the tables; a test keeps it up to date.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import dataclasses
import datetime as dt
import decimal
import enum
import fractions
import functools
import pathlib
import types
import uuid
import zoneinfo
from array import array
from collections import Counter, OrderedDict, defaultdict, deque
from collections.abc import Callable, Iterator
from typing import Any, Final, NamedTuple

import torch
from torch.nn.utils.rnn import PackedSequence
from torch.utils import _pytree

from rpcfut import _memory, _parts
from rpcfut._parts import Rule, leaf
from rpcfut._paths import module_name, steps, type_name

__all__ = [
    "FAMILIES",
    "KNOWN",
    "LEAVES",
    "NATIVE",
    "REFUSED",
    "RULES",
    "module_name",
    "steps",
    "type_name",
]


class Known(NamedTuple):
    """Types that share a rule.

    Args:
        kinds: The types.
        rule: What their objects hold.
        looked_at: The same in words.
    """

    kinds: tuple[type, ...]
    rule: Rule
    looked_at: str


class Family(NamedTuple):
    """Types that are known by how they were made.

    Args:
        name: What its types are.
        find: Gives a type's rule, None if the type does not belong to it.
        looked_at: What the rule looks at, in words.
    """

    name: str
    find: Callable[[type], Rule | None]
    looked_at: str


class Refused(NamedTuple):
    """Unknown types that somebody may well send.

    Args:
        name: What its types are.
        has: Whether a type is one.
        advice: What to do instead.
        may_register: Whether an extractor would help, too.
    """

    name: str
    has: Callable[[type], bool]
    advice: str
    may_register: bool = False


_VALUES: Final = (
    *(type(None), bool, int, float, complex, str, bytes, bytearray),
    *(range, type(...), type(NotImplemented)),
    *(decimal.Decimal, fractions.Fraction, uuid.UUID),
    *(pathlib.PosixPath, pathlib.PurePosixPath),
    *(pathlib.WindowsPath, pathlib.PureWindowsPath),
    *(dt.date, dt.datetime, dt.time, dt.timedelta, dt.timezone, zoneinfo.ZoneInfo),
)
_TORCH_VALUES: Final = (
    *(torch.dtype, torch.device, torch.Size, torch.layout, torch.memory_format),
    *(torch.qscheme, torch.finfo, torch.iinfo),
    *(torch.Generator, torch.Stream, torch.Event),
    *(torch.cuda.Stream, torch.cuda.Event, torch.cuda.ExternalStream),
)

KNOWN: Final[tuple[Known, ...]] = (
    Known(_VALUES, leaf, "nothing"),
    Known(_TORCH_VALUES, leaf, "nothing"),
    Known(
        (types.MethodDescriptorType, types.WrapperDescriptorType),
        leaf,
        "nothing",
    ),
    Known(
        (list, tuple, set, frozenset, deque),
        _parts.itself,
        "the elements",
    ),
    Known((dict, types.MappingProxyType), _parts.mapping_parts, "keys and values"),
    Known(
        (OrderedDict, Counter),
        _parts.mapping_and_attributes,
        "keys, values and attributes, such as a state_dict's `_metadata`",
    ),
    Known(
        (defaultdict,),
        _parts.defaultdict_parts,
        "keys, values and the default factory",
    ),
    Known((slice,), _parts.slice_parts, "start, stop and step"),
    Known(
        (memoryview,),
        _memory.memoryview_parts,
        "a NumPy array that it is a view of",
    ),
    Known(
        (types.SimpleNamespace,),
        _parts.attribute_parts,
        "the attributes",
    ),
    Known(
        (functools.partial,),
        _parts.partial_parts,
        "the function, the bound arguments, attributes",
    ),
    Known(
        (types.FunctionType,),
        _parts.function_parts,
        "defaults and attributes; globals are not looked at, a function with a "
        "closure is refused",
    ),
    Known((types.MethodType,), _parts.method_parts, "the object and the function"),
    Known(
        (types.BuiltinFunctionType, types.MethodWrapperType),
        _parts.builtin_function_parts,
        "the object that it is bound to",
    ),
    Known(
        (torch.Tensor, torch.nn.Parameter),
        _memory.tensor_parts,
        "its storage, and that of its gradient; indices and values of a sparse "
        "tensor, in every layout; the scales of one quantised by channel; not the "
        "attributes",
    ),
    Known(
        (torch.UntypedStorage,),
        _memory.storage_parts,
        "itself",
    ),
    Known((torch.TypedStorage,), _memory.typed_storage_parts, "its bytes"),
    Known((PackedSequence,), _parts.tuple_and_attributes, "its four tensors"),
)

RULES: Final[dict[type, Rule]] = {kind: row.rule for row in KNOWN for kind in row.kinds}
LEAVES: Final = frozenset(kind for kind, rule in RULES.items() if rule is leaf)

# What msgpack writes by itself; nobody can give these another wire format.
NATIVE: Final[frozenset[type]] = frozenset(
    {type(None), bool, int, float, str, bytes, list, tuple, dict}
)

# A class that derives from one of these may add attributes to memory that its family's
# rule does not look at.
_CONTAINERS: Final = (
    *(list, tuple, dict, set, frozenset, deque, memoryview),
    *(torch.Tensor, torch.UntypedStorage, torch.TypedStorage),
    *(torch.nn.Module, torch.optim.Optimizer, types.ModuleType),
)


def family_rule(kind: type) -> Rule | None:
    """Find the rule of a type that is in no table; None if it is unknown."""
    for family in FAMILIES:
        rule = family.find(kind)
        if rule is not None:
            return rule
    return None


def advice_for(kind: type) -> Refused | None:
    """Find what to say about an unknown type, beside how to register it."""
    return next((row for row in REFUSED if row.has(kind)), None)


def _find_tensor(kind: type) -> Rule | None:
    if not issubclass(kind, torch.Tensor) or not hasattr(kind, "__tensor_flatten__"):
        return None
    return _memory.subclass_parts


def _find_ndarray(kind: type) -> Rule | None:
    return _memory.ndarray_parts if kind is _memory.numpy_array_type() else None


def _find_numpy_scalar(kind: type) -> Rule | None:
    if kind is _memory.numpy_type("void"):
        return _memory.numpy_void_parts
    base = _memory.numpy_type("dtype")
    is_dtype = base is not None and issubclass(kind, base)
    return leaf if is_dtype or _memory.is_numpy_scalar(kind) else None


def _find_tuple(kind: type) -> Rule | None:
    """Named tuples, and the structs that torch's functions return."""
    if not issubclass(kind, tuple):
        return None
    if kind.__bases__ == (tuple,) and is_named_tuple(kind):
        return _parts.itself
    return _parts.itself if is_struct_sequence(kind) else None


def _is_object(kind: type) -> bool:
    array = _memory.numpy_array_type()
    containers = _CONTAINERS if array is None else (*_CONTAINERS, array)
    return not issubclass(kind, containers)


def _find_name(kind: type) -> Rule | None:
    if kind.__module__ == "typing" or kind in {types.GenericAlias, types.UnionType}:
        return leaf
    return leaf if _is_object(kind) and issubclass(kind, (enum.Enum, type)) else None


def _find_exception(kind: type) -> Rule | None:
    is_one = _is_object(kind) and issubclass(kind, BaseException)
    return _parts.exception_parts if is_one else None


def _find_cuda_array(kind: type) -> Rule | None:
    is_one = _is_object(kind) and hasattr(kind, "__cuda_array_interface__")
    return _memory.array_interface_parts if is_one else None


def _find_dlpack_array(kind: type) -> Rule | None:
    is_one = hasattr(kind, "__dlpack__") and hasattr(kind, "__dlpack_device__")
    return _memory.dlpack_parts if is_one and _is_object(kind) else None


def _find_record(kind: type) -> Rule | None:
    is_one = _is_object(kind) and field_names(kind) is not None
    return _parts.attribute_parts if is_one else None


def _find_pytree(kind: type) -> Rule | None:
    node = _pytree.SUPPORTED_NODES.get(kind)
    if node is None:
        return None
    flatten: Any = node.flatten_fn
    return lambda value: flatten(value)[0]


def is_named_tuple(kind: type) -> bool:
    """Whether this is a class that ``namedtuple`` or ``NamedTuple`` made."""
    return isinstance(getattr(kind, "_fields", None), tuple) and hasattr(kind, "_make")


def is_struct_sequence(kind: type) -> bool:
    """Whether this is a struct such as ``torch.return_types.max``."""
    return isinstance(getattr(kind, "n_sequence_fields", None), int)


FAMILIES: Final = (
    Family(
        "tensor subclasses with `__tensor_flatten__` (jagged, DTensor ...)",
        _find_tensor,
        "the inner tensors that it names, and the gradient",
    ),
    Family(
        "`numpy.ndarray`",
        _find_ndarray,
        "the array that it is a view of, to the last; its objects, if it has any",
    ),
    Family(
        "NumPy scalars and dtypes",
        _find_numpy_scalar,
        "nothing; of a record, its array and its objects",
    ),
    Family("named tuples, `torch.return_types`", _find_tuple, "the elements"),
    Family("classes, `list[int]` and such, members of enums", _find_name, "nothing"),
    Family(
        "exceptions",
        _find_exception,
        "arguments, attributes, cause, context, those in a group; not the traceback",
    ),
    Family(
        "whatever has `__cuda_array_interface__`, as CuPy's and Numba's arrays",
        _find_cuda_array,
        "its bytes, on the device that it names; its stream is not waited for",
    ),
    Family(
        "whatever has `__dlpack__` and `__dlpack_device__`",
        _find_dlpack_array,
        "its bytes; the producer is told not to synchronise",
    ),
    Family(
        "dataclasses, attrs classes",
        _find_record,
        "every attribute and slot, declared or not",
    ),
    Family(
        "what torch's pytree knows",
        _find_pytree,
        "what its flatten function returns",
    ),
)


def field_names(kind: type) -> tuple[str, ...] | None:
    """Names of the fields of a dataclass or an attrs class; None for another type."""
    if dataclasses.is_dataclass(kind):
        return tuple(field.name for field in dataclasses.fields(kind))
    attributes = kind.__dict__.get("__attrs_attrs__")
    if attributes is None:
        return None
    return tuple(attribute.name for attribute in attributes)


_FUTURES: Final = (concurrent.futures.Future, asyncio.Future, torch.futures.Future)
_OF_THIS_PROCESS: Final = frozenset(
    {
        *("_io", "_queue", "_socket", "_thread", "asyncio", "io", "multiprocessing"),
        *("queue", "socket", "ssl", "subprocess", "tempfile", "threading"),
    }
)


def _is_builtin_iterator(kind: type) -> bool:
    return kind.__module__ in {"builtins", "itertools"} and issubclass(kind, Iterator)


REFUSED: Final = (
    Refused(
        "`torch.nn.Module`",
        lambda kind: issubclass(kind, torch.nn.Module),
        "a module is not a value: send its state_dict()",
    ),
    Refused(
        "optimizers",
        lambda kind: issubclass(kind, torch.optim.Optimizer),
        "an optimizer is not a value: send its state_dict()",
    ),
    Refused(
        "Python modules",
        lambda kind: issubclass(kind, types.ModuleType),
        "a Python module is not a value: send what you need of it",
    ),
    Refused(
        "generators and iterators",
        _is_builtin_iterator,
        "an iterator cannot be looked at without using it up: make a list of it",
    ),
    Refused(
        "views of a dict",
        lambda kind: kind in {type({}.keys()), type({}.values()), type({}.items())},
        "a view of a dict changes with it: make a list of it",
    ),
    Refused(
        "tensor subclasses without `__tensor_flatten__`",
        lambda kind: issubclass(kind, torch.Tensor),
        "a tensor subclass may hold more than its own memory: give it "
        "__tensor_flatten__, or say what it holds",
        may_register=True,
    ),
    Refused(
        "subclasses of known containers",
        lambda kind: not _is_object(kind),
        "a subclass of a known type may hide memory in its attributes: say what it "
        "holds",
        may_register=True,
    ),
    Refused(
        "futures of other libraries",
        lambda kind: issubclass(kind, _FUTURES),
        "the value of a future may still be made: wait for it and pass its value on",
        may_register=True,
    ),
    Refused(
        "`UserDict`, `UserList`, `UserString`, `ChainMap`, `array.array`",
        lambda kind: kind.__module__ == "collections" or kind is array,
        "make a dict, list, str or tensor of it",
        may_register=True,
    ),
    Refused(
        "locks, queues, files, sockets, processes",
        lambda kind: kind.__module__.partition(".")[0] in _OF_THIS_PROCESS,
        "it belongs to this process, and means nothing in another: leave it out",
        may_register=True,
    ),
)
