"""Exceptions <-> bytes (RPC-3, RPC-4).

Theory of operation: `encode_error` must not fail, whatever the exception does. So each
thing that is asked of it is asked through `ask`, what Python itself keeps in it is
read past its class (`own`), and each text is cut and cleaned. A node may take its
share of `_NODES_NBYTES` and no more, so that the body always decodes. The exceptions
of a chain become a list of nodes that refer to later ones by index, so that there are
no cycles on the wire.

Each node says its type, text and traceback in words; beside them may stand what makes
it again: its *state*, if the type is in the closed table of `_error_types`, or its
*value*, if the type was registered. If that is missing, or fails here, the words become
a `RemoteError`. One that is passed on by a worker between keeps the words of the first.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, NoReturn

import msgpack

from rpcfut._decode import cost_of, decode
from rpcfut._encode import encode
from rpcfut._error_chain import MAX_CHAIN, chain_of, members_of
from rpcfut._error_text import (
    MAX_LINE,
    MAX_NOTE,
    MAX_TEXT,
    Room,
    ask,
    clean,
    clean_line,
    own,
    traceback_text,
    user_frames,
)
from rpcfut._error_types import OF_THE_CALL, REMADE, State, remake, state_of
from rpcfut._errors import DecodeError, EncodeError, RemoteError, RpcError
from rpcfut._known_types import module_name, type_name
from rpcfut._registry import TYPES
from rpcfut._wire_weights import FREE_NBYTES, Budget

if TYPE_CHECKING:
    from collections.abc import Mapping

    import torch

    from rpcfut._call_info import CallInfo
    from rpcfut._devices import Device
    from rpcfut_transport import Buffer

_RECEIVED_TEXT = MAX_TEXT + 100  # with the remark that it was cut
_RECEIVED_LINE = MAX_LINE + 100
_MAX_ITEMS = 20  # notes, attributes
_MAX_ARGS = 1000
_MAX_ARGS_NBYTES = 64 * 1024
# All nodes of a chain together; each has an equal share.
_NODES_NBYTES = 4 << 20
_NODES_COST = FREE_NBYTES // 2
# Twice that: what is not counted as a node's share (the remarks that something was cut,
# names of attributes, msgpack's own bytes) is at most 2 MB in the longest chain.
_MAX_BODY_NBYTES = 8 << 20
_TRACEBACK_NOTE = "remote traceback"
# Set on one of this library's own errors that came from a peer.
_CAME = "_came_from_a_peer"
_SAID: Final = ("type_name", "text", "worker", "function", "call_site", "hint")


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
    chain = chain_of(error)
    numbers = {id(link): number for number, link in enumerate(chain.links)}
    count = len(chain.links)
    shares = (_NODES_NBYTES // count, _NODES_COST // count)
    nodes = [
        _node(link, number, numbers, Room(*shares))
        for number, link in enumerate(chain.links)
    ]
    body = {
        "worker": clean_line(worker),
        "function": clean_line(function),
        "nodes": nodes,
        "left_out": chain.left_out,
    }
    packed: bytes = msgpack.packb(body)
    return packed


def _node(
    error: BaseException, number: int, numbers: dict[int, int], room: Room
) -> dict[str, object]:
    def later(other: BaseException | None) -> int | None:
        found = numbers.get(id(other))
        return found if found is not None and found > number else None

    kind = type(error)
    is_known = REMADE.get(ask(lambda: type_name(kind), "")) is kind
    value = ask(lambda: _registered(error, room), None)
    return {
        "type": room.line(ask(lambda: type_name(kind), "<a type without a name>")),
        "text": room.text(ask(lambda: str(error), "<its __str__ raised>")),
        "traceback": room.text(ask(lambda: traceback_text(error), "<no traceback>")),
        "state": _state(error, room) if is_known and _may_be_itself(error) else None,
        "value": value,
        "hint": room.line(ask(lambda: _hint(kind), "")),
        "said": _said(error, room) if kind is RemoteError else None,
        "notes": ask(lambda: _notes(error, room), list[str]()),
        "cause": later(own(error, "__cause__")),
        "context": later(own(error, "__context__")),
        "suppress": bool(own(error, "__suppress_context__")),
        "members": [n for n in map(later, members_of(error)) if n is not None],
    }


def _may_be_itself(error: BaseException) -> bool:
    """Whether the caller could not take it for an error of another call.

    One of this library's own that the function let pass, or that a future which it
    returned had from a third worker, speaks of a call that the function made.
    """
    if not issubclass(type(error), OF_THE_CALL):
        return True
    return next(user_frames(error), None) is None and _CAME not in vars(error)


def _notes(error: BaseException, room: Room) -> list[str]:
    notes = getattr(error, "__notes__", ())
    if not isinstance(notes, (list, tuple)):
        return []
    texts = [note for note in notes if isinstance(note, str)][:_MAX_ITEMS]
    limits = [
        MAX_TEXT if text.startswith(_TRACEBACK_NOTE) else MAX_NOTE for text in texts
    ]
    return [room.text(t, n) for t, n in zip(texts, limits, strict=True)]


def _said(error: BaseException, room: Room) -> dict[str, str]:
    """What a `RemoteError` that is passed on tells of its origin."""
    words = vars(error)
    return {
        name: room.text(words[name] if type(words.get(name)) is str else "")
        for name in (*_SAID, "remote_traceback")
    }


def _state(error: Any, room: Room) -> dict[str, object] | None:
    """What makes the exception again, with texts for what cannot travel."""
    state = ask(lambda: state_of(error), None)
    if state is None:
        return None
    inner = Room(_MAX_ARGS_NBYTES, _NODES_COST)
    args = [_arg(arg, inner, room) for arg in state.args[:_MAX_ARGS]]
    if len(state.args) > _MAX_ARGS:
        args.append(f"[cut: it has {len(state.args)} arguments]")
    fields = dict(list(state.fields.items())[-_MAX_ITEMS:])  # the type's own come last
    plain = {name: _plain(value, room) for name, value in fields.items()}
    return {"args": args, "fields": {n: b for n, b in plain.items() if b is not None}}


def _arg(arg: object, *rooms: Room) -> bytes | str:
    """Write an argument as a value where it is a small plain one, else as text."""
    text = ask(lambda: str(arg), None)
    body = _plain(arg, *rooms) if text is not None else None
    if body is not None:
        return body
    cut = "<its __str__ raised>" if text is None else text
    for room in rooms:
        cut = room.text(cut, MAX_NOTE)
    return cut


def _plain(value: object, *rooms: Room) -> bytes | None:
    """Encode a value that needs no buffers and has room; None if it is another."""
    encoded = ask(lambda: encode(value, stage=_refuse_tensor), None)
    if encoded is None or encoded.buffers or len(encoded.body) > _MAX_ARGS_NBYTES:
        return None
    cost = ask(lambda: cost_of(encoded.body), None)
    if cost is None or not all(room.has_taken(encoded.body, cost) for room in rooms):
        return None
    return encoded.body


def _refuse_tensor(_: torch.Tensor) -> NoReturn:
    raise EncodeError("no tensors in exceptions")


def _registered(error: BaseException, room: Room) -> bytes | None:
    is_ours = type(error) in TYPES.snapshot.wire_by_type
    return _plain(error, room) if is_ours else None


def _hint(kind: type) -> str:
    """The line that would bring exceptions of a type back as themselves."""
    name = kind.__name__
    if kind in TYPES.snapshot.wire_by_type:
        return f"have its flatten return something small, without tensors, for {name}"
    is_theirs = issubclass(kind, Exception) and module_name(kind) != "builtins"
    if not is_theirs or issubclass(kind, RpcError) or kind in REMADE.values():
        return ""
    return (
        f"call rpcfut.register_type({name}, lambda e: e.args, lambda args: "
        f"{name}(*args)) on both workers"
    )


def decode_error(body: Buffer, call: CallInfo | None = None) -> BaseException:
    """Make the exception that `encode_error` wrote; this cannot fail either (RPC-4).

    Any thread.

    Args:
        body: The bytes, not trusted.
        call: The call that they answer: what its maker knows of it is not taken from
            the bytes.

    Returns:
        The exception, with the remote traceback as a note; a `DecodeError` if the bytes
        make no sense.
    """
    try:
        return _decode_error(body, call)
    except (
        *(ValueError, TypeError, ArithmeticError, LookupError, AttributeError),
        *(RuntimeError, MemoryError, msgpack.UnpackException),
    ) as error:
        where = f" from {call}" if call is not None else ""
        text = f"an error reply{where} that makes no sense: {error}"
        failure = DecodeError(clean(text, MAX_NOTE))
        failure.__cause__ = error
        return failure


def _decode_error(body: Buffer, call: CallInfo | None) -> BaseException:
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
    place = _Place(message, call)
    nodes = message["nodes"]
    if not isinstance(nodes, list) or not 0 < len(nodes) <= MAX_CHAIN:
        raise ValueError("no exception, or too many")
    made: dict[int, BaseException] = {}
    for number in reversed(range(len(nodes))):
        made[number] = _Node(nodes[number], made, budget, place).make(
            is_raised=number == 0
        )
    left_out = message["left_out"]
    if type(left_out) is int and left_out > 0:
        _note(made[0], f"[cut: {left_out} more exceptions of its chain are left out]")
    return made[0]


class _Place:
    """Where an exception was raised, and where the call was made."""

    def __init__(self, message: Mapping[str, Any], call: CallInfo | None) -> None:
        self.worker = clean_line(message["worker"] if call is None else call.to)
        function = message["function"] if call is None else call.function
        self.function = clean_line(function)
        self.site = ""
        if call is not None:
            self.site = clean_line(f"{call.site}, on worker {call.worker!r}")

    def __str__(self) -> str:
        called = f", called at {self.site}" if self.site else ""
        return f"worker {self.worker!r}, function {self.function!r}{called}"


class _Node:
    """One received exception, read with care; owner thread only."""

    def __init__(
        self,
        fields: dict[str, Any],
        made: dict[int, BaseException],
        budget: Budget,
        place: _Place,
    ) -> None:
        self._fields = fields
        self._budget = budget
        self._place = place
        self._made = made
        self._members = [made[number] for number in fields["members"]]

    def _linked(self, name: str) -> BaseException | None:
        number = self._fields[name]
        return None if number is None else self._made[number]

    def make(self, *, is_raised: bool) -> BaseException:
        """Make the exception, and link it to those that were made before."""
        there = clean(self._fields["traceback"], _RECEIVED_TEXT)
        error = self._itself() or self._remote_error(there)
        for note in self._fields["notes"][:_MAX_ITEMS]:
            _note(error, clean(note, _RECEIVED_TEXT))
        is_told = type(error) is RemoteError and self._fields["said"] is None
        if not is_told and there:
            _note(error, f"{_TRACEBACK_NOTE} ({self._place}):\n{there}".rstrip())
        elif not is_told and is_raised:
            _note(error, f"answered by {self._place}")
        links = vars(BaseException)
        links["__cause__"].__set__(error, self._linked("cause"))
        links["__context__"].__set__(error, self._linked("context"))
        suppress = self._fields["suppress"] is True
        links["__suppress_context__"].__set__(error, suppress)
        return error

    def _itself(self) -> BaseException | None:
        """Make the exception as itself; None if it is to be a `RemoteError`."""
        if self._fields["value"] is not None:
            return self._registered()
        kind = REMADE.get(self._fields["type"])
        state = self._fields["state"]
        if kind is None or state is None:
            return None
        error = ask(lambda: self._remade(kind, state), None)
        if error is not None and issubclass(kind, RpcError):
            setattr(error, _CAME, True)
        return error

    def _remade(
        self, kind: type[Exception], state: Mapping[str, Any]
    ) -> Exception | None:
        args = tuple(
            arg if isinstance(arg, str) else _value(arg, self._budget)
            for arg in state["args"]
        )
        fields = {
            name: _value(body, self._budget) for name, body in state["fields"].items()
        }
        members = [error for error in self._members if isinstance(error, Exception)]
        return remake(kind, State(args, fields), members)

    def _registered(self) -> Exception | None:
        try:
            error = _value(self._fields["value"], self._budget)
        except DecodeError as problem:
            self._fields["hint"] = f"{problem}"
            return None
        return error if isinstance(error, Exception) else None

    def _remote_error(self, there: str) -> RemoteError:
        said = self._fields["said"]
        place = self._place
        if said is None:
            said = {
                "type_name": self._fields["type"],
                "text": self._fields["text"],
                "remote_traceback": there,
                "worker": place.worker,
                "function": place.function,
                "call_site": place.site,
                "hint": self._fields["hint"],
            }
        line = {
            name: clean_line(said[name], _RECEIVED_LINE)
            for name in _SAID
            if name != "text"
        }
        hint = line.pop("hint")
        error = RemoteError(
            text=clean(said["text"], _RECEIVED_TEXT),
            remote_traceback=clean(said["remote_traceback"], _RECEIVED_TEXT),
            **line,
        )
        error.hint = hint
        error.exceptions = tuple(self._members)
        return error


def _note(error: BaseException, text: str) -> None:
    """Add a note, unless the class of a registered exception has none."""
    ask(lambda: BaseException.add_note(error, text), None)


def _value(body: bytes, budget: Budget) -> object:
    return decode(body, [], place=_refuse_place, budget=budget)


def _refuse_place(_: torch.Tensor, device: Device) -> NoReturn:
    raise DecodeError(f"a tensor on {device} in an exception")


# The answer if `encode_error` failed after all.
FALLBACK_BODY: Final[bytes] = encode_error(
    RpcError("failed, and so did encoding its error: that worker's log says more"),
    worker="unknown",
    function="unknown",
)
