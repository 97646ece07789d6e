"""Extractor and wire format for types that declare what they are made of."""

from __future__ import annotations

import enum
import functools
from typing import TYPE_CHECKING, Any, Final

from rpcfut._known_types import field_names, is_named_tuple
from rpcfut._parts import (
    Rule,
    attribute_parts,
    itself,
    leaf,
    slot_readers,
    tuple_and_attributes,
)
from rpcfut._paths import module_name, type_name

if TYPE_CHECKING:
    from collections.abc import Callable

# Where typing notes that a Box was made as Box[int]; comparing and copying forget it.
_GENERIC_ORIGIN: Final = "__orig_class__"


def rule_from(flatten: Callable[..., object]) -> Rule:
    """Make an extractor of a flatten function: an object holds what it is made of."""

    @functools.wraps(flatten)
    def rule(value: object) -> list[object]:
        return [flatten(value)]

    return rule


def wire_name(kind: type) -> str:
    """Name a type for the wire."""
    return f"{module_name(kind)}:{kind.__qualname__}"


def registration_line(kind: type) -> str:
    """The line that registers a type, to be written beside its class."""
    is_derivable = (
        issubclass(kind, enum.Enum)
        or (issubclass(kind, tuple) and is_named_tuple(kind))
        or field_names(kind) is not None
    )
    functions = "" if is_derivable else ", flatten, unflatten"
    return f"rpcfut.register_type({kind.__qualname__}{functions})"


def derived_form(
    kind: type,
) -> tuple[Rule, Callable[..., object], Callable[..., Any]]:
    """Make both functions for a type whose parts are declared."""
    if issubclass(kind, enum.Flag):
        return leaf, lambda member: member._value_, kind
    if issubclass(kind, enum.Enum):
        # Not kind[name]: of an enum of texts, that is a letter.
        return leaf, lambda member: member._name_, kind.__members__.__getitem__
    if issubclass(kind, tuple) and is_named_tuple(kind):
        make: Any = kind._make  # type: ignore[attr-defined]  # a named tuple has it
        if not kind.__dictoffset__:
            return itself, tuple, make
        return tuple_and_attributes, functools.partial(_flatten_tuple, kind), make
    names = field_names(kind)
    if names is None:
        raise TypeError(
            f"{type_name(kind)} is no dataclass, attrs class, named tuple or enum: "
            f"write rpcfut.register_type({kind.__qualname__}, flatten, unflatten)"
        )
    _require_plain_object(kind)
    return (
        attribute_parts,
        functools.partial(_flatten_fields, kind, names, _other_slots(kind, names)),
        functools.partial(_unflatten_fields, kind, names),
    )


def _require_plain_object(kind: type) -> None:
    """Refuse a class whose objects are more than their fields: a dict, an exception."""
    try:
        object.__new__(kind)
    except TypeError as error:
        raise TypeError(
            f"{type_name(kind)} cannot be rebuilt from its fields alone ({error}): "
            f"write rpcfut.register_type({kind.__qualname__}, flatten, unflatten)"
        ) from error


def _flatten_tuple(kind: type, value: tuple[object, ...]) -> object:
    for name in vars(value):
        raise _lost(kind, name)
    return tuple(value)


def _flatten_fields(
    kind: type, names: tuple[str, ...], other_slots: tuple[str, ...], value: object
) -> object:
    more = [
        name
        for name in getattr(value, "__dict__", ())
        if name not in names
        and name != _GENERIC_ORIGIN
        and not isinstance(getattr(kind, name, None), functools.cached_property)
    ]
    more += [name for name in other_slots if hasattr(value, name)]
    if more:
        raise _lost(kind, more[0])
    return {name: getattr(value, name) for name in names}


def _other_slots(kind: type, names: tuple[str, ...]) -> tuple[str, ...]:
    """The slots that are no fields; those of an attrs class cache properties."""
    return tuple(
        slot.__name__
        for slot in slot_readers(kind)
        if slot.__name__ not in names
        and "__attrs_attrs__" not in vars(slot.__objclass__)
    )


def _lost(kind: type, name: str) -> TypeError:
    return TypeError(
        f"attribute {name!r} of this {kind.__qualname__} is no field and would be "
        "lost; declare it, or register flatten and unflatten"
    )


def _unflatten_fields(kind: type, names: tuple[str, ...], values: object) -> object:
    if not isinstance(values, dict) or values.keys() != set(names):
        got = sorted(map(str, values)) if isinstance(values, dict) else values
        raise ValueError(
            f"fields of {kind.__qualname__} are {sorted(names)} here and {got!r} on "
            "the other side: do both run the same version?"
        )
    made: object = object.__new__(kind)
    for name in names:
        object.__setattr__(made, name, values[name])
    return made
