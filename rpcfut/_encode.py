"""Values -> body and buffers."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, Final, NamedTuple, NoReturn

import msgpack
import torch

from rpcfut import _numpy_codec
from rpcfut._codec_text import hint, path_to
from rpcfut._errors import EncodeError, ExtractionError, Origin
from rpcfut._extract import extract
from rpcfut._known_types import type_name
from rpcfut._memory import is_numpy_scalar, numpy_array_type
from rpcfut._registry import TYPES, WireFormat
from rpcfut._tensor_layouts import is_jagged, is_made_of_tensors, split_layout
from rpcfut._tensor_rules import is_plain_on_host
from rpcfut._tensor_table import write_table
from rpcfut._tensor_writer import DeviceArray, Stage, TensorWriter, TooFarApart
from rpcfut._wire_codes import (
    FIRST_MARK,
    INLINE_NBYTES,
    INLINE_TABLE_NBYTES,
    MAX_BODY_NBYTES,
    MAX_CONTAINERS,
    MAX_DEPTH,
    TABLE_BYTE,
    TABLE_HEAD,
    Code,
)
from rpcfut._wire_types import (
    COMPOUNDS,
    SCALARS,
    Compound,
    Scalar,
    split_struct,
    torch_struct,
    write_int,
)
from rpcfut._wire_weights import (
    SMALL_BODY_NBYTES,
    limit_of,
    most_without_bytes,
    weigh,
)
from rpcfut_transport import MAX_BUFFERS

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Sequence

    from rpcfut_transport import Buffer

_FEWER: Final = "send numbers as a tensor, or the value in several calls"
_CHANGED: Final = (
    "was changed while it was encoded; send a copy, made under the lock of whoever "
    "changes it"
)
_PLAIN: Final = frozenset({type(None), bool, int, float, str})
_SCALARS_TOO: Final = _PLAIN | SCALARS.keys()
_TEXT: Final = frozenset({str})
_MARKS: Final = {
    code: msgpack.ExtType(code, b"") for code in Code if code >= FIRST_MARK
}


class Encoded(NamedTuple):
    """What `encode` made: the body, and the buffers that it refers to by index."""

    body: bytes
    buffers: list[Buffer]


def encode(
    value: object,
    *,
    stage: Stage,
    root: str = "value",
    origin: Origin | None = None,
    outer_depth: int = 0,
) -> Encoded:
    """Turn a value into bytes, or refuse it here (RPC-9).

    Any thread. Host memory has been copied when this returns.

    Args:
        value: Any value.
        stage: Is given the elements of a tensor that is not on the plain host (device
            or pinned), as a one-dimensional contiguous uint8 tensor over them, or the
            source of a `DeviceArray`, and returns the buffer of as many bytes that will
            hold them; it is called on this thread, with the caller's streams current.
        root: What the path in a message starts with, if there is no `origin`.
        origin: Where the value came from, for messages.
        outer_depth: How many levels of the value are the library's own, and do not
            count.

    Returns:
        The body and the buffers.

    Raises:
        EncodeError: When something in the value cannot travel, or it contains itself,
            is too deep or too large.
        ExtractionError: When nobody knows a type in it at all (EXT-3).
    """
    encoder = _Encoder(stage, origin, root, outer_depth)
    try:
        lowered = encoder.lower(value)
        try:
            table = encoder.tensor_table()
        except TooFarApart as shared:
            finder = _Encoder(stage, origin, root, outer_depth)
            raise finder.sharing(value, shared) from None
        packed = _pack(lowered, root, encoder.tensors)
    except (EncodeError, ExtractionError) as error:
        # Where our walk stood says nothing; the path in the message does.
        raise error.with_traceback(None) from error.__cause__
    except RecursionError as error:
        raise EncodeError(
            f"{root} is nested too deeply for what is left of this thread's stack: "
            "send it from a frame that is less deep, or call sys.setrecursionlimit"
        ) from error
    if len(packed) > MAX_BODY_NBYTES:
        raise EncodeError(
            f"{root} makes {len(packed)} bytes without its tensors and bytes, "
            f"{MAX_BODY_NBYTES} are allowed: send numbers as a tensor, text as bytes"
        )
    if len(encoder.buffers) > MAX_BUFFERS:
        raise encoder.too_many_buffers()
    limit = limit_of(len(packed), len(encoder.buffers))
    if len(packed) > SMALL_BODY_NBYTES and weigh(lowered) > limit:
        raise EncodeError(
            f"{root} holds so many small objects that the receiver would need more "
            f"than {limit} bytes for them: {_FEWER}"
        )
    return Encoded(table + packed, encoder.buffers)


def _pack_rest(tensors: TensorWriter | None, value: Any) -> object:
    """Write what msgpack does not know: large ints, and tensors by their numbers."""
    if type(value) is int:
        return msgpack.ExtType(Code.INT, write_int(value))
    if tensors is not None and isinstance(value, (torch.Tensor, DeviceArray)):
        number = tensors.number_of(value)
        if number is not None:
            return msgpack.ExtType(Code.TENSOR, number.to_bytes(4, "little"))
    raise TypeError(f"{type_name(type(value))} appeared while the value was packed")


def _pack(lowered: object, root: str, tensors: TensorWriter | None) -> bytes:
    default = partial(_pack_rest, tensors)
    try:
        try:
            return _packer(default, None).pack(lowered)
        except UnicodeEncodeError:  # half of a surrogate pair, as in odd file names
            return _packer(default, "surrogatepass").pack(lowered)
    except (TypeError, ValueError, RuntimeError) as error:
        raise EncodeError(
            f"{root} could not be packed ({error}); "
            "did another thread change it meanwhile?"
        ) from error


def _packer(default: Callable[[Any], object], errors: str | None) -> msgpack.Packer:
    return msgpack.Packer(
        strict_types=True,
        use_bin_type=True,
        default=default,
        unicode_errors=errors,
        buf_size=4096,  # type: ignore[call-arg] # the stubs do not have it
    )


class _Encoder:
    """One encoding; owner thread only."""

    def __init__(
        self, stage: Stage, origin: Origin | None, root: str, outer_depth: int = 0
    ) -> None:
        self.buffers: list[Buffer] = []
        self.tensors: TensorWriter | None = None
        self._stage = stage
        self._watched: dict[int, list[object]] = {}
        self._origin = origin
        self._root = root if origin is None else origin.path_root
        self._open: list[object] = []
        self._max_depth = MAX_DEPTH + outer_depth
        self._container_count = 0
        self._registered = TYPES.snapshot.wire_by_type

    def lower(self, value: Any) -> object:
        """Turn a value into what msgpack writes by itself."""
        kind = type(value)
        if kind in _PLAIN:
            return value
        if kind is torch.Tensor or kind is torch.nn.Parameter:
            return self._lower_tensor(value)
        form = self._registered.get(kind)
        if form is None:
            scalar = SCALARS.get(kind)
            if scalar is not None:
                return msgpack.ExtType(scalar.code, self._written(scalar, value))
        opened = self._open
        self._enter(value)
        lowered = (
            self._lower_registered(form, value) if form else self._lower_open(value)
        )
        opened.pop()
        return lowered

    def _enter(self, value: object) -> None:
        self._open.append(value)
        if len(self._open) > self._max_depth:
            self._refuse_depth()
        self._container_count += 1
        if self._container_count > MAX_CONTAINERS:
            self._refuse_count()

    def _lower_open(self, value: Any) -> object:
        kind = type(value)
        if kind is dict and _TEXT.issuperset(map(type, value)):
            is_plain = _PLAIN.issuperset(map(type, value.values()))
            return value if is_plain else self._lower_dict(value)
        if kind is list:
            if _PLAIN.issuperset(map(type, value)):
                return value
            self._require_room(value)
            return [self.lower(part) for part in value]
        compound = COMPOUNDS.get(kind)
        if compound is not None:
            return self._marked(compound.code, self._split(compound, value))
        is_bytes = kind is bytes or kind is bytearray
        return self._lower_bytes(value) if is_bytes else self._lower_rare(value)

    def _lower_dict(self, value: dict[str, Any]) -> dict[str, object]:
        lowered = {key: self.lower(part) for key, part in list(value.items())}
        if len(lowered) != len(value):
            self._refuse(_CHANGED)
        return lowered

    def _marked(self, code: Code, parts: Sequence[object]) -> list[object]:
        if _PLAIN.issuperset(map(type, parts)):
            return [_MARKS[code], *parts]
        self._require_room(parts)
        return [_MARKS[code], *[self.lower(part) for part in parts]]

    def _split(self, compound: Compound, value: object) -> Sequence[object]:
        try:
            return compound.split(value)
        except TypeError as error:
            self._refuse(str(error), error)
        except RuntimeError as error:  # of a dict or deque that changed meanwhile
            self._refuse(_CHANGED, error)

    def _written(self, scalar: Scalar, value: object) -> bytes:
        try:
            return scalar.write(value)
        except TypeError as error:
            self._open.append(value)
            self._refuse(str(error), error)

    def _lower_registered(self, form: WireFormat, value: object) -> object:
        try:
            flat = form.flatten(value)
        except Exception as error:
            place = getattr(form.flatten, "__qualname__", "flatten")
            text = (
                f"cannot be flattened: {place} raised {type(error).__name__}: {error}"
            )
            raise self._refusal(text) from error
        return [_MARKS[Code.REGISTERED], form.name, self.lower(flat)]

    def _lower_tensor(self, tensor: torch.Tensor) -> object:
        is_plain = is_plain_on_host(tensor)
        if not is_plain and is_made_of_tensors(tensor):
            self._enter(tensor)
            lowered = self._lower_layout(tensor)
            self._open.pop()
            return lowered
        try:
            number = self._writer().add(tensor, is_plain=is_plain)
        except TypeError as error:
            self._open.append(tensor)
            self._refuse(str(error), error)
        if number in self._watched:
            self._watched[number] = [*self._open, tensor]
        return tensor  # the packer writes its number

    def _writer(self) -> TensorWriter:
        if self.tensors is None:
            self.tensors = TensorWriter(self._stage)
        return self.tensors

    def _lower_layout(self, tensor: torch.Tensor) -> object:
        try:
            parts = split_layout(tensor)
        except TypeError as error:
            self._refuse(str(error), error)
        return self._marked(Code.LAYOUT_TENSOR, parts)

    def tensor_table(self) -> bytes:
        """Copy the tensors, and write the start of a body: their table, if any.

        Raises:
            TooFarApart: When some of them share memory that cannot be sent as one.
            EncodeError: When they would be too many for the receiver.
        """
        if self.tensors is None:
            return b""
        table, count = self.tensors.finish(self.buffers)
        data = write_table(table)
        most = most_without_bytes(len(data))
        if count > most:
            raise EncodeError(
                f"{self._root} holds {count} tensors that are empty or share memory, "
                f"and the receiver would take at most {most}: join some with "
                "torch.stack or torch.cat, or send the value in several calls"
            )
        if len(data) <= INLINE_TABLE_NBYTES:
            return TABLE_HEAD.pack(TABLE_BYTE, len(data)) + data
        self.buffers.append(data)
        return TABLE_HEAD.pack(TABLE_BYTE, 0)

    def sharing(self, value: object, shared: TooFarApart) -> EncodeError:
        """The error for tensors that share memory; walks again to find their paths."""
        self._watched = {shared.first: [], shared.second: []}
        self.lower(value)
        other = path_to(self._watched[shared.first], self._root)
        self._open = self._watched[shared.second]
        return self._refusal(
            f"shares memory with {other}, and both are small parts of it: "
            f"{shared.hull_nbytes} bytes would be sent for {shared.nbytes} that they "
            "show; clone() one of them"
        )

    def _lower_bytes(self, value: bytes | bytearray) -> object:
        is_bytes = type(value) is bytes
        if len(value) <= INLINE_NBYTES:
            return value if is_bytes else msgpack.ExtType(Code.BYTEARRAY, bytes(value))
        self.buffers.append(value if is_bytes else bytes(value))
        mark = _MARKS[Code.BULK_BYTES if is_bytes else Code.BULK_BYTEARRAY]
        return [mark, len(self.buffers) - 1]

    def _lower_rare(self, value: Any) -> object:
        kind = type(value)
        if kind is DeviceArray:
            self._writer().add_array(value)
            return value  # the packer writes its number
        is_array = kind is numpy_array_type()
        if is_array or is_numpy_scalar(kind):
            reason = _numpy_codec.numpy_refusal(value)
            if reason is not None:
                self._refuse(reason)
            if is_array:
                parts = _numpy_codec.split_array(value, self.buffers)
                return [_MARKS[Code.ARRAY], *parts]
            return [_MARKS[Code.ARRAY_SCALAR], *_numpy_codec.split_scalar(value)]
        if is_jagged(kind):
            return self._lower_layout(value)
        if torch_struct(kind.__name__) is kind:
            return self._marked(Code.STRUCT, split_struct(value))
        path = path_to(self._open, self._root)
        origin = self._origin or Origin(what="the value")
        extract(value, origin=replace(origin, path_root=path, is_sent=True))
        return self._refuse(hint(value))

    def _refuse_depth(self) -> NoReturn:
        newest = self._open[-1]
        for depth, value in enumerate(self._open[:-1]):
            if value is newest:
                start = path_to(self._open[: depth + 1], self._root)
                self._open = self._open[: self._open.index(newest, depth + 1) + 1]
                self._refuse(f"is the same object as {start}: a cycle cannot travel")
        self._refuse(f"is nested too deeply: {MAX_DEPTH} levels are allowed")

    def _require_room(self, parts: Collection[object]) -> None:
        """Refuse containers that would be too many, before each is lowered."""
        if len(parts) + self._container_count > MAX_CONTAINERS:
            plain_count = sum(map(_SCALARS_TOO.__contains__, map(type, parts)))
            if len(parts) - plain_count + self._container_count > MAX_CONTAINERS:
                self._refuse_count()

    def too_many_buffers(self) -> EncodeError:
        """The error for a value that the transport would refuse."""
        return EncodeError(
            f"{self._root} holds more than {MAX_BUFFERS} tensors, arrays and long "
            "bytes, which is the limit of one message: join some with torch.stack or "
            "torch.cat, or send the value in several calls"
        )

    def _refuse_count(self) -> NoReturn:
        self._open = self._open[:1]
        self._refuse(
            f"holds more than {MAX_CONTAINERS} lists, tuples, tensors and such, each "
            f"counted as often as it is held: {_FEWER}"
        )

    def _refuse(self, reason: str, cause: Exception | None = None) -> NoReturn:
        raise self._refusal(reason) from cause

    def _refusal(self, reason: str) -> EncodeError:
        path = path_to(self._open, self._root)
        kind = type_name(type(self._open[-1]))
        parts = [f"cannot send {path}, a {kind}: it {reason}"]
        if self._origin is not None and self._origin.call is not None:
            parts.append(f"  call:     {self._origin.call}")
        return EncodeError("\n".join(parts))
