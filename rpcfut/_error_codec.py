"""Exceptions <-> bytes (RPC-3, RPC-4).

Theory of operation: `encode_error` must not fail, whatever the exception does. So each
thing that is asked of it is asked through `ask`, what Python itself keeps in it is
read past its class (`own`), and each text is cut and cleaned. A node may take its
share of `_NODES_NBYTES` and no more, so that the body always decodes. The exceptions
of a chain become a list of nodes that refer to later ones by index, so that there are
no cycles on the wire. `decode_error` makes only types of two closed tables,
the built-in subclasses of Exception and this library's own, without running a
constructor on what it was sent, and those that were registered, by their unflatten. All
others become a `RemoteError`.
"""

from __future__ import annotations

import builtins
import re
import traceback
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NoReturn

import msgpack

from rpcfut import _errors
from rpcfut._decode import cost_of, decode
from rpcfut._encode import encode
from rpcfut._error_text import MAX_NOTE, MAX_TEXT, Room, ask, clean, own
from rpcfut._errors import DecodeError, EncodeError, RemoteError, RpcError
from rpcfut._known_types import type_name
from rpcfut._registry import TYPES
from rpcfut._wire_weights import FREE_NBYTES, Budget

if TYPE_CHECKING:
    import torch

    from rpcfut._devices import Device
    from rpcfut_transport import Buffer

MAX_CHAIN: Final = 20
_RECEIVED_TEXT = MAX_TEXT + 100  # with the remark that it was cut
_MAX_ITEMS = 20  # notes, members of a group, attributes
_MAX_FRAMES = 100
_MAX_ARGS = 1000
_MAX_ARGS_NBYTES = 64 * 1024
_MAX_NAME = 200  # of an attribute
# All nodes of a chain together; each has an equal share.
_NODES_NBYTES = 4 << 20
_NODES_COST = FREE_NBYTES // 2
# Twice that: what is not counted as a node's share (the remarks that something was cut,
# names of attributes, msgpack's own bytes) is at most 2 MB in the longest chain.
_MAX_BODY_NBYTES = 8 << 20

_BUILTIN: Final[dict[str, type[Exception]]] = {
    f"builtins.{name}": kind
    for name, kind in vars(builtins).items()
    if isinstance(kind, type) and issubclass(kind, Exception) and kind.__name__ == name
}
_OWN: Final[dict[str, type[RpcError]]] = {
    type_name(kind): kind
    for kind in vars(_errors).values()
    if isinstance(kind, type) and issubclass(kind, RpcError)
}
# What a built-in type keeps outside of args and __dict__.
_FIELDS: Final[tuple[tuple[type[Exception], tuple[str, ...]], ...]] = (
    (OSError, ("errno", "strerror", "filename", "filename2")),
    (ImportError, ("msg", "name", "path")),
    (NameError, ("name",)),
    (AttributeError, ("name",)),
    (StopIteration, ("value",)),
    (
        SyntaxError,
        (
            *("msg", "filename", "lineno", "offset", "text"),
            *("end_lineno", "end_offset", "print_file_and_line"),
        ),
    ),
)


def encode_error(error: BaseException, *, worker: str, function: str) -> bytes:
    """Turn an exception into bytes; this cannot fail (RPC-3).

    Any thread.

    Args:
        error: The exception; with its chain, notes and traceback.
        worker: Name of the worker where it was raised.
        function: Name of the function that raised it.

    Returns:
        A body for `decode_error`.
    """
    chain = _chain(error)
    numbers = {id(link): number for number, link in enumerate(chain)}
    count = len(chain)
    shares = (_NODES_NBYTES // count, _NODES_COST // count)
    nodes = [
        _node(link, number, numbers, Room(*shares)) for number, link in enumerate(chain)
    ]
    body = {"worker": clean(worker), "function": clean(function), "nodes": nodes}
    packed: bytes = msgpack.packb(body)
    return packed


def _chain(error: BaseException) -> list[BaseException]:
    """List an exception and those that it refers to, nearest first, each once."""
    chain = [error]
    seen = {id(error)}
    for link in chain:
        linked = (own(link, "__cause__"), own(link, "__context__"), *_members(link))
        for other in linked:
            if other is not None and id(other) not in seen and len(chain) < MAX_CHAIN:
                seen.add(id(other))
                chain.append(other)
    return chain


def _members(error: BaseException) -> tuple[BaseException, ...]:
    is_group = type(error) is ExceptionGroup
    return error.exceptions[:_MAX_ITEMS] if is_group else ()  # type: ignore[attr-defined]  # narrowed by is_group


def _node(
    error: BaseException, number: int, numbers: dict[int, int], room: Room
) -> dict[str, object]:
    def later(other: BaseException | None) -> int | None:
        found = numbers.get(id(other))
        return found if found is not None and found > number else None

    kind = type(error)
    return {
        "type": room.text(ask(lambda: type_name(kind), "<a type without a name>")),
        "text": room.text(ask(lambda: str(error), "<its __str__ raised>")),
        "traceback": room.text(ask(lambda: _traceback(error), "<no traceback>")),
        "args": ask(lambda: _args(error, room), list[bytes | str]()),
        "value": ask(lambda: _registered(error, room), None),
        "notes": ask(lambda: _notes(error, room), list[str]()),
        "attributes": ask(lambda: _attributes(error, room), dict[str, bytes]()),
        "cause": later(own(error, "__cause__")),
        "context": later(own(error, "__context__")),
        "suppress": bool(own(error, "__suppress_context__")),
        "members": [n for n in map(later, _members(error)) if n is not None],
    }


def _traceback(error: BaseException) -> str:
    """The frames, without those of ours that called the function."""
    frames = traceback.extract_tb(own(error, "__traceback__"))
    while frames and frames[0].filename.startswith(_OWN_FOLDER):
        del frames[0]
    return "".join(traceback.format_list(frames[-_MAX_FRAMES:]))


def _notes(error: BaseException, room: Room) -> list[str]:
    notes = getattr(error, "__notes__", ())
    if not isinstance(notes, (list, tuple)):
        return []
    texts = [note for note in notes if isinstance(note, str)][:_MAX_ITEMS]
    limits = [MAX_TEXT if _is_traceback_note(text) else MAX_NOTE for text in texts]
    return [room.text(t, n) for t, n in zip(texts, limits, strict=True)]


def _args(error: BaseException, room: Room) -> list[bytes | str]:
    """Write each argument as a value where it is a small plain one, else as text."""
    args: tuple[object, ...] = own(error, "args")
    inner = Room(_MAX_ARGS_NBYTES, _NODES_COST)
    written: list[bytes | str] = []
    for arg in args[:_MAX_ARGS]:
        body = _plain(arg, inner, room)
        if body is None:
            text = ask(lambda arg=arg: str(arg), "<its __str__ raised>")  # type: ignore[misc]  # a default binds the loop's arg
            written.append(room.text(inner.text(text, MAX_NOTE)))
        else:
            written.append(body)
    if len(args) > _MAX_ARGS:
        written.append(f"[cut: it has {len(args)} arguments]")
    return written


def _plain(value: object, *rooms: Room) -> bytes | None:
    """Encode a value that needs no buffers and has room; None if it is another."""
    if type(value) is str:
        value = clean(value)
    try:
        body, buffers = encode(value, stage=_refuse_tensor)
        if buffers or len(body) > _MAX_ARGS_NBYTES:
            return None
        cost = cost_of(body)
    except (RpcError, RecursionError):
        return None
    return body if all(room.has_taken(body, cost) for room in rooms) else None


def _refuse_tensor(_: torch.Tensor) -> NoReturn:
    raise EncodeError("no tensors in exceptions")


def _attributes(error: BaseException, room: Room) -> dict[str, bytes]:
    names = [name for name in vars(error) if _is_sent(name)][:_MAX_ITEMS]
    found = {name: getattr(error, name) for name in names}
    for name in _fields(type(error)):
        if getattr(error, name, None) is not None:
            found[name] = getattr(error, name)
    plain = {name: _plain(value, room) for name, value in found.items()}
    return {name: body for name, body in plain.items() if body is not None}


def _is_sent(name: object) -> bool:
    """Whether the receiver would set an attribute of this name."""
    is_short = type(name) is str and len(name) <= _MAX_NAME
    return is_short and name.isidentifier() and not name.startswith("__")  # type: ignore[attr-defined]  # is_short says that it is a str


def _fields(kind: type) -> tuple[str, ...]:
    for base, names in _FIELDS:
        if issubclass(kind, base):
            return names
    return ()


def _registered(error: BaseException, room: Room) -> bytes | None:
    is_ours = type(error) in TYPES.snapshot.wire_by_type
    return _plain(error, room) if is_ours else None


def decode_error(body: Buffer) -> BaseException:
    """Make the exception that `encode_error` wrote; this cannot fail either (RPC-4).

    Any thread.

    Args:
        body: The bytes, not trusted.

    Returns:
        The exception, with the remote traceback as a note; a `DecodeError` if the bytes
        make no sense.
    """
    try:
        return _decode_error(body)
    except (
        *(ValueError, TypeError, ArithmeticError, LookupError, AttributeError),
        *(RuntimeError, MemoryError, msgpack.UnpackException),
    ) as error:
        failure = DecodeError(f"an error reply that makes no sense: {error}"[:300])
        failure.__cause__ = error
        return failure


def _decode_error(body: Buffer) -> BaseException:
    if memoryview(body).nbytes > _MAX_BODY_NBYTES:
        raise ValueError(f"{memoryview(body).nbytes} bytes")
    budget = Budget(FREE_NBYTES)
    message = msgpack.unpackb(
        body,
        strict_map_key=True,
        max_array_len=1 << 16,
        max_map_len=64,
        max_ext_len=0,
        list_hook=budget.take_list,
        object_hook=budget.take_map,
    )
    worker, function = clean(message["worker"]), clean(message["function"])
    nodes = message["nodes"]
    if not isinstance(nodes, list) or not 0 < len(nodes) <= MAX_CHAIN:
        raise ValueError("no exception, or too many")
    made: dict[int, BaseException] = {}
    for number in reversed(range(len(nodes))):
        node = _Node(nodes[number], made, budget)
        made[number] = node.make(worker, function, is_first=number == 0)
    return made[0]


class _Node:
    """One received exception, read with care; owner thread only."""

    def __init__(
        self, fields: dict[str, Any], made: dict[int, BaseException], budget: Budget
    ) -> None:
        self._fields = fields
        self._made = made
        self._budget = budget

    def _text(self, name: str) -> str:
        return clean(self._fields[name], _RECEIVED_TEXT)

    def _linked(self, name: str) -> BaseException | None:
        number = self._fields[name]
        return None if number is None else self._made[number]

    def make(self, worker: str, function: str, *, is_first: bool) -> BaseException:
        """Make the exception, and link it to those that were made before."""
        remote_traceback = self._text("traceback")
        error = self._rebuilt()
        if error is None:
            error = RemoteError(
                self._text("type"),
                self._text("text"),
                remote_traceback=remote_traceback,
                worker=worker,
                function=function,
            )
        for note in self._fields["notes"][:_MAX_ITEMS]:
            error.add_note(clean(note, _RECEIVED_TEXT))
        if remote_traceback or (is_first and self._fields["type"] not in _OWN):
            where = f"worker {worker!r}, function {function!r}"
            error.add_note(f"{_TRACEBACK_NOTE} ({where}):\n{remote_traceback}".rstrip())
        error.__cause__ = self._linked("cause")
        error.__context__ = self._linked("context")
        error.__suppress_context__ = self._fields["suppress"] is True
        return error

    def _rebuilt(self) -> BaseException | None:
        """Make the exception as itself; None if it is to be a `RemoteError`."""
        if self._fields["value"] is not None:
            return _registered_error(self._fields["value"], self._budget)
        name = self._fields["type"]
        kind = _BUILTIN.get(name) or _OWN.get(name)
        if kind is None:
            return None
        args = tuple(
            arg if isinstance(arg, str) else _value(arg, self._budget)
            for arg in self._fields["args"]
        )
        if kind is ExceptionGroup:
            return self._group()
        if issubclass(kind, UnicodeError) and kind is not UnicodeError:
            return _unicode_error(kind, args)
        # The class decides where it keeps errno; a base of it cannot make one.
        new = OSError.__new__ if issubclass(kind, OSError) else kind.__new__
        error = new(kind)
        error.args = args
        for key, body in self._fields["attributes"].items():
            if key.isidentifier() and not key.startswith("__"):
                setattr(error, key, _value(body, self._budget))
        return error

    def _group(self) -> BaseException | None:
        members = [self._made[number] for number in self._fields["members"]]
        exceptions = [error for error in members if isinstance(error, Exception)]
        text = self._text("text")
        message = re.sub(r" \(\d+ sub-exceptions?\)$", "", text)
        return ExceptionGroup(message, exceptions) if exceptions else None


_TRACEBACK_NOTE = "remote traceback"
_OWN_FOLDER = f"{Path(__file__).parent}/"


def _is_traceback_note(text: str) -> bool:
    return text.startswith(_TRACEBACK_NOTE)


def _value(body: bytes, budget: Budget) -> object:
    return decode(body, [], place=_refuse_place, budget=budget)


def _refuse_place(_: torch.Tensor, device: Device) -> NoReturn:
    raise DecodeError(f"a tensor on {device} in an exception")


def _registered_error(body: bytes, budget: Budget) -> BaseException | None:
    """Make a registered exception; None if its type is not registered here."""
    try:
        error = _value(body, budget)
    except DecodeError:
        return None
    return error if isinstance(error, Exception) else None


def _unicode_error(kind: type[Exception], args: tuple[object, ...]) -> Exception | None:
    """Make an error whose constructor reads its arguments as positions in a text."""
    shape = [type(arg) for arg in args]
    middle = [int, int, str]
    expected = {
        UnicodeDecodeError: [str, bytes, *middle],
        UnicodeEncodeError: [str, str, *middle],
        UnicodeTranslateError: [str, *middle],
    }
    if shape != expected.get(kind):
        return None
    *_, text, start, end, _ = args
    if not 0 <= start <= end <= len(text):  # type: ignore[operator,arg-type]  # checked by shape
        return None
    return kind(*args)


# The answer if `encode_error` failed after all.
FALLBACK_BODY: Final[bytes] = encode_error(
    RpcError("failed, and so did encoding its error: that worker's log says more"),
    worker="unknown",
    function="unknown",
)
