"""Bytes, not trusted -> exceptions; see `_error_codec`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NoReturn

import msgpack

from rpcfut._decode import decode
from rpcfut._error_chain import MAX_CHAIN
from rpcfut._error_text import MAX_LINE, MAX_NOTE, MAX_TEXT, ask, clean, clean_line
from rpcfut._error_types import (
    FROM_A_PEER,
    MAX_ITEMS,
    REMADE,
    SAID,
    TRACEBACK_NOTE,
    State,
    remake,
)
from rpcfut._errors import DecodeError, RemoteError, RpcError
from rpcfut._wire_weights import FREE_NBYTES, Budget

if TYPE_CHECKING:
    from collections.abc import Mapping

    import torch

    from rpcfut._call_info import CallInfo
    from rpcfut._devices import Device
    from rpcfut_transport import Buffer

_RECEIVED_TEXT = MAX_TEXT + 100  # with the remark that it was cut
_RECEIVED_LINE = MAX_LINE + 100
# Twice what the nodes may take: what is not counted as a node's share (the remarks that
# something was cut, names of attributes, msgpack's own bytes) is at most 2 MB in the
# longest chain.
_MAX_BODY_NBYTES = 8 << 20


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
        what = f"{type(error).__name__}: {error}"
        text = f"an error reply{where} that makes no sense: {what}"
        return DecodeError(clean(text, MAX_NOTE))


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
    free = set(range(len(nodes)))
    for number in reversed(range(len(nodes))):
        # Each is a member of one group at most: groups of groups that all hold the same
        # ones would be printed as often as there are ways to reach them.
        members = [n for n in dict.fromkeys(nodes[number]["members"]) if n in free]
        free.difference_update(members)
        node = _Node(nodes[number], made, [made[n] for n in members], budget, place)
        made[number] = node.make(is_raised=number == 0)
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
        members: list[BaseException],
        budget: Budget,
        place: _Place,
    ) -> None:
        self._fields = fields
        self._budget = budget
        self._place = place
        self._made = made
        self._members = members

    def _linked(self, name: str) -> BaseException | None:
        number = self._fields[name]
        return None if number is None else self._made[number]

    def make(self, *, is_raised: bool) -> BaseException:
        """Make the exception, and link it to those that were made before."""
        there = clean(self._fields["traceback"], _RECEIVED_TEXT)
        error = self._itself()
        if error is None:
            error = self._remote_error(there)
        for note in self._fields["notes"][:MAX_ITEMS]:
            _note(error, clean(note, _RECEIVED_TEXT))
        is_told = type(error) is RemoteError and self._fields["said"] is None
        if not is_told and there:
            _note(error, f"{TRACEBACK_NOTE} ({self._place}):\n{there}".rstrip())
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
            self._fields["hint"] = "the unflatten that is registered here failed"
            return ask(self._registered, None)
        kind = REMADE.get(self._fields["type"])
        state = self._fields["state"]
        if kind is None or state is None:
            return None
        error = ask(lambda: self._remade(kind, state), None)
        if error is not None and issubclass(kind, RpcError):
            setattr(error, FROM_A_PEER, True)
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
            for name in SAID
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
