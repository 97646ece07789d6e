"""The exception types that are made here of what a peer sent: a closed table (RPC-4).

No constructor is run on received arguments, except that of the Unicode errors, whose
arguments are checked, and of a group, which is given exceptions that were made before.
"""

from __future__ import annotations

import builtins
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import torch

from rpcfut._error_text import ask, clean
from rpcfut._errors import (
    CaptureError,
    DecodeError,
    DeviceMismatchError,
    EncodeError,
    ExtractionError,
    NotExposedError,
    PoolExhaustedError,
    RpcError,
)
from rpcfut._known_types import type_name
from rpcfut._wire_weights import FREE_NBYTES

if TYPE_CHECKING:
    from collections.abc import Mapping

MAX_ITEMS: Final = 20  # notes, attributes
NODES_COST: Final = FREE_NBYTES // 2  # of all exceptions of a chain
TRACEBACK_NOTE: Final = "remote traceback"
# Set on one of this library's own errors that came from a peer.
FROM_A_PEER: Final = "_came_from_a_peer"
# What a `RemoteError` tells beside its traceback.
SAID: Final = ("type_name", "text", "worker", "function", "call_site", "hint")

# What a callee says about the call that it was sent. All others of this library's own
# speak of another call: a timeout or a lost peer must not be taken for this one's.
OF_THE_CALL: Final[tuple[type[RpcError], ...]] = (
    CaptureError,
    DecodeError,
    DeviceMismatchError,
    EncodeError,
    ExtractionError,
    NotExposedError,
    PoolExhaustedError,
    RpcError,
)
# Asked for by name as built-in ones are, to try again with less.
_TORCH: Final[tuple[type[Exception], ...]] = (
    torch.OutOfMemoryError,
    torch.linalg.LinAlgError,  # type: ignore[attr-defined]  # public, not exported
)
_BUILTIN: Final[tuple[type[Exception], ...]] = tuple(
    kind
    for name, kind in vars(builtins).items()
    if isinstance(kind, type) and issubclass(kind, Exception) and kind.__name__ == name
)
REMADE: Final[dict[str, type[Exception]]] = {
    type_name(kind): kind for kind in (*_BUILTIN, *_TORCH, *OF_THE_CALL)
}

_POSITIONS: Final = ("lineno", "offset", "end_lineno", "end_offset")
# A traceback is printed with as many characters.
_MAX_POSITION: Final = 1 << 16
# What a built-in type keeps outside of args and __dict__; the first that fits counts.
_FIELDS: Final[tuple[tuple[type[Exception], tuple[str, ...]], ...]] = (
    (
        BlockingIOError,
        ("errno", "strerror", "filename", "filename2", "characters_written"),
    ),
    (OSError, ("errno", "strerror", "filename", "filename2")),
    (ImportError, ("msg", "name", "path")),
    (NameError, ("name",)),
    (AttributeError, ("name",)),
    (StopIteration, ("value",)),
    (SyntaxError, ("msg", "filename", "text", "print_file_and_line", *_POSITIONS)),
)
_MAX_NAME: Final = 200
_MAX_OBJECT: Final = 4096  # bytes or characters that a Unicode error shows
_MARGIN: Final = 100


class State(NamedTuple):
    """What an exception of a type in the table is made of.

    Args:
        args: Its args, of which texts are shown as they are.
        fields: Its attributes.
    """

    args: tuple[object, ...]
    fields: Mapping[str, object]


def state_of(error: Exception) -> State:
    """Take an exception of a type in the table apart."""
    kind = type(error)
    if kind is ExceptionGroup:
        return State((error.message,), vars(error))  # type: ignore[attr-defined]  # a group has one
    if _has_positions(kind):
        return State(_window(error), {})
    fields = dict(vars(error))
    for name in _fields(kind):
        value = getattr(error, name, None)
        if value is not None:
            fields[name] = value
    return State(error.args, {n: v for n, v in fields.items() if _may_set(kind, n)})


def remake(
    kind: type[Exception], state: State, members: list[Exception]
) -> Exception | None:
    """Make an exception of a type in the table; None if that makes no sense.

    Args:
        kind: The type.
        state: What it is made of; not trusted.
        members: The exceptions of a group.
    """
    if _has_positions(kind):
        return _unicode_error(kind, state.args)
    args = tuple(_shown(arg) for arg in state.args)
    if issubclass(kind, SyntaxError) and ask(lambda: kind(*args), None) is None:
        return None  # nobody could copy it: the constructor takes its arguments apart
    if kind is ExceptionGroup:
        message = args[0] if len(args) == 1 else None
        if type(message) is not str or not members:
            return None
        error: Exception = ExceptionGroup(message, members)
    else:
        # The class decides where it keeps errno; a base of it cannot make one.
        new = OSError.__new__ if issubclass(kind, OSError) else kind.__new__
        error = new(kind)
        error.args = args
    for name, value in state.fields.items():
        if _may_set(kind, name) and _makes_sense(kind, name, value):
            setattr(error, name, _shown(value))
    is_printable = ask(lambda: type(str(error)) is str, otherwise=False)
    return error if is_printable else None


def _shown(value: object) -> object:
    """Clean what str() of an exception shows as it is."""
    return clean(value) if type(value) is str else value


def _fields(kind: type) -> tuple[str, ...]:
    for base, names in _FIELDS:
        if issubclass(kind, base):
            return names
    return ()


def _may_set(kind: type, name: object) -> bool:
    """Whether an attribute is the user's, or one that the type keeps."""
    if type(name) is not str or len(name) > _MAX_NAME or not name.isidentifier():
        return False
    return name in _fields(kind) or not (name.startswith("_") or hasattr(kind, name))


def _makes_sense(kind: type, name: str, value: object) -> bool:
    """Whether Python can print a SyntaxError of such a position."""
    if not issubclass(kind, SyntaxError) or name not in _fields(kind):
        return True
    if name in _POSITIONS:
        return type(value) is int and -1 <= value <= _MAX_POSITION
    return name == "print_file_and_line" or type(value) is str


def _has_positions(kind: type) -> bool:
    return issubclass(kind, UnicodeError) and kind is not UnicodeError


def _window(error: Any) -> tuple[object, ...]:
    """Arguments that make a Unicode error again, of a part of what it complains of."""
    start, end, size = error.start, error.end, len(error.object)
    text, reason = error.object, error.reason
    if size > _MAX_OBJECT:
        first = max(0, min(start, size) - _MARGIN)
        text = text[first : min(end + _MARGIN, first + _MAX_OBJECT)]
        start, end = start - first, min(end - first, len(text))
        reason = f"{reason} [cut: position 0 was {first} of {size}]"
    head = () if type(error) is UnicodeTranslateError else (error.encoding,)
    return (*head, text, start, end, reason)


def _unicode_error(kind: type[Exception], args: tuple[object, ...]) -> Exception | None:
    shape = [type(arg) for arg in args]
    middle = [int, int, str]
    expected = {
        UnicodeDecodeError: [str, bytes, *middle],
        UnicodeEncodeError: [str, str, *middle],
        UnicodeTranslateError: [str, *middle],
    }
    if shape != expected.get(kind):
        return None
    *head, text, start, end, reason = args
    if not 0 <= start <= end <= len(text):  # type: ignore[operator,arg-type]  # checked by shape
        return None
    return kind(*map(_shown, head), text, start, end, _shown(reason))
