"""What messages call a type, and the way to an object inside a value."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Mapping
from typing import Any, Final

from rpcfut._parts import slot_readers

_SLICE: Final = ("start", "stop", "step")


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
        yield from ((f"[{_key_text(key)}]", item) for key, item in value.items())
        yield from ((f".<key {_key_text(key)}>", key) for key in value)
    elif isinstance(value, (list, tuple, deque)):
        names = getattr(value, "_fields", None)
        for number, item in enumerate(value):
            yield f".{names[number]}" if names else f"[{number}]", item
    elif isinstance(value, (set, frozenset)):
        yield from ((".<element>", item) for item in value)
    elif isinstance(value, slice):
        yield from ((f".{name}", getattr(value, name)) for name in _SLICE)
    yield from _attribute_steps(value)


def _attribute_steps(value: object) -> Iterator[tuple[str, object]]:
    names = [slot.__name__ for slot in slot_readers(type(value))]
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
