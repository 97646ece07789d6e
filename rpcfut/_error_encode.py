"""Exceptions -> bytes; see `_error_codec`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, NoReturn

import msgpack

from rpcfut._decode import cost_of
from rpcfut._encode import encode
from rpcfut._error_chain import chain_of, members_of
from rpcfut._error_text import (
    MAX_NOTE,
    MAX_TEXT,
    Room,
    ask,
    clean_line,
    own,
    traceback_text,
    user_frames,
)
from rpcfut._error_types import (
    FROM_A_PEER,
    MAX_ITEMS,
    NODES_COST,
    OF_THE_CALL,
    REMADE,
    SAID,
    TRACEBACK_NOTE,
    state_of,
)
from rpcfut._errors import EncodeError, RemoteError, RpcError
from rpcfut._known_types import module_name, type_name
from rpcfut._registry import TYPES

if TYPE_CHECKING:
    import torch

_MAX_ARGS = 1000
_MAX_ARGS_NBYTES = 256 * 1024
_MAX_VALUE_NBYTES = 32 * 1024
# All nodes of a chain together; each has an equal share.
_NODES_NBYTES = 4 << 20


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
    shares = (_NODES_NBYTES // count, NODES_COST // count)
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
        "hint": room.line(ask(lambda: _hint(kind), "")) if value is None else "",
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
    return next(user_frames(error), None) is None and FROM_A_PEER not in vars(error)


def _notes(error: BaseException, room: Room) -> list[str]:
    notes = getattr(error, "__notes__", ())
    if not isinstance(notes, (list, tuple)):
        return []
    texts = [note for note in notes if isinstance(note, str)][:MAX_ITEMS]
    limits = [
        MAX_TEXT if text.startswith(TRACEBACK_NOTE) else MAX_NOTE for text in texts
    ]
    return [room.text(t, n) for t, n in zip(texts, limits, strict=True)]


def _said(error: BaseException, room: Room) -> dict[str, str]:
    """What a `RemoteError` that is passed on tells of its origin."""
    words = vars(error)
    return {
        name: room.text(words[name] if type(words.get(name)) is str else "")
        for name in (*SAID, "remote_traceback")
    }


def _state(error: Any, room: Room) -> dict[str, object] | None:
    """What makes the exception again, with texts for what cannot travel."""
    state = ask(lambda: state_of(error), None)
    if state is None:
        return None
    inner = Room(_MAX_ARGS_NBYTES, NODES_COST, room)
    args = [_arg(arg, inner) for arg in state.args[:_MAX_ARGS]]
    if len(state.args) > _MAX_ARGS:
        args.append(f"[cut: it has {len(state.args)} arguments]")
    fields = dict(list(state.fields.items())[-MAX_ITEMS:])  # the type's own come last
    plain = {name: _plain(value, room) for name, value in fields.items()}
    return {"args": args, "fields": {n: b for n, b in plain.items() if b is not None}}


def _arg(arg: object, room: Room) -> bytes | str:
    """Write an argument as a value where it is a small plain one, else as text."""
    text = ask(lambda: str(arg), None)
    if text is None:
        return room.text("<its __str__ raised>")
    body = _plain(arg, room)
    limit = MAX_TEXT if type(arg) is str else MAX_NOTE
    return body if body is not None else room.text(text, limit)


def _plain(value: object, room: Room) -> bytes | None:
    """Encode a value that needs no buffers and has room; None if it is another."""
    encoded = ask(lambda: encode(value, stage=_refuse_tensor), None)
    if encoded is None or encoded.buffers or len(encoded.body) > _MAX_VALUE_NBYTES:
        return None
    cost = ask(lambda: cost_of(encoded.body), None)
    has_room = cost is not None and room.has_taken(encoded.body, cost)
    return encoded.body if has_room else None


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
    functions = f"lambda e: e.args, lambda args: {name}(*args)"
    if (kind.__init__, kind.__new__) != (Exception.__init__, Exception.__new__):
        functions = "flatten, unflatten"  # nobody can know what it is made of
    return f"call rpcfut.register_type({name}, {functions}) on both workers"


# The answer if `encode_error` failed after all.
FALLBACK_BODY: Final[bytes] = encode_error(
    RpcError("failed, and so did encoding its error: that worker's log says more"),
    worker="unknown",
    function="unknown",
)
