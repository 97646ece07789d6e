"""Body and buffers, not trusted -> values."""

from __future__ import annotations

import struct
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any, Final, TypeAlias

import msgpack

from rpcfut import _numpy_codec
from rpcfut._errors import DecodeError, RpcError
from rpcfut._registry import TYPES
from rpcfut._tensor_layouts import join_layout
from rpcfut._tensor_reader import Place, TensorReader
from rpcfut._wire_codes import (
    FIRST_MARK,
    MAX_BODY_NBYTES,
    MAX_DEPTH,
    TABLE_BYTE,
    TABLE_HEAD,
    Code,
)
from rpcfut._wire_types import COMPOUNDS, SCALARS, join_struct, read_int
from rpcfut._wire_weights import FREE_NBYTES, SMALL_BODY_NBYTES, Budget, limit_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    import torch

    from rpcfut_transport import Buffer

# What readers and joiners raise on bytes that make no sense.
_SENSELESS: Final = (
    *(ValueError, TypeError, ArithmeticError, LookupError, AttributeError),
    *(AssertionError, RuntimeError, struct.error, msgpack.UnpackException),
)


class _Mark:
    """Stands at the head of a list and says what the rest is."""

    __slots__ = ("code",)

    def __init__(self, code: Code) -> None:
        self.code = code

    def __repr__(self) -> str:
        return f"<mark of a {self.code.name}>"


_READ_MARKS: Final[dict[int, _Mark]] = {
    code: _Mark(code) for code in Code if code >= FIRST_MARK
}
_LIFTED: Final = frozenset({list, dict, _Mark})
_READERS: Final[dict[int, Callable[[bytes], object]]] = {
    **{scalar.code: scalar.read for scalar in SCALARS.values()},
    Code.INT: read_int,
    Code.BYTEARRAY: bytearray,
}
_JOINERS: Final[dict[int, Callable[[list[Any]], object]]] = {
    **{compound.code: compound.join for compound in COMPOUNDS.values()},
    Code.STRUCT: join_struct,
    Code.ARRAY_SCALAR: _numpy_codec.join_scalar,
}

_PEEK_NBYTES: Final = 1024  # a longer name is no name of a function


def decode(
    body: Buffer,
    buffers: Sequence[Buffer],
    *,
    place: Place,
    budget: Budget | None = None,
    outer_depth: int = 0,
) -> object:
    """Turn bytes from a peer into the value (RPC-9, RPC-10).

    Any thread. Large writable buffers become the memory of host tensors and arrays.

    Args:
        body: What `encode` made; not trusted.
        buffers: Its buffers, in order.
        place: Is given a tensor on the host and the device that it was sent from, and
            returns the tensor where it belongs. Its errors pass through.
        budget: What the value may cost, if it is part of something larger; then it has
            no tensors.
        outer_depth: As for `encode`.

    Returns:
        The value.

    Raises:
        DecodeError: When the bytes make no sense, are over a limit, or name a type that
            is not registered here.
    """
    decoder = _Decoder(buffers, place)
    packed = memoryview(body)
    if packed.nbytes and packed[0] == TABLE_BYTE and budget is None:
        packed = decoder.read_table(packed)
    nbytes = packed.nbytes
    if nbytes > MAX_BODY_NBYTES:
        raise DecodeError(f"a body of {nbytes} bytes; {MAX_BODY_NBYTES} are allowed")
    if budget is None and nbytes > SMALL_BODY_NBYTES:
        budget = Budget(limit_of(nbytes, len(buffers)))
    try:
        raw = _unpack(packed, budget, decoder.read_ext)
        return decoder.finish(decoder.lift(raw, -outer_depth))
    except RecursionError as error:
        raise DecodeError(
            "a value that is nested too deeply for what is left of this thread's "
            "stack: call sys.setrecursionlimit"
        ) from error


def peek_name(body: Buffer) -> str | None:
    """The name at the start of a call, read without decoding the rest; None if none."""
    packed = memoryview(body)
    unpacker = msgpack.Unpacker(raw=False, max_str_len=_PEEK_NBYTES)
    try:
        if packed.nbytes and packed[0] == TABLE_BYTE:
            packed = packed[TABLE_HEAD.size + TABLE_HEAD.unpack_from(packed)[1] :]
        unpacker.feed(bytes(packed[:_PEEK_NBYTES]))
        unpacker.read_array_header()
        name = unpacker.unpack()
    except (ValueError, struct.error, msgpack.OutOfData):
        return None
    return name if isinstance(name, str) else None


def cost_of(body: Buffer) -> int:
    """What decoding will take from a budget.

    Raises:
        DecodeError: When that is more than any body may cost.
    """
    budget = Budget(FREE_NBYTES)
    _unpack(body, budget, _read_ext)
    return budget.nbytes - budget.left


_ReadExt: TypeAlias = Callable[[int, bytes], object]


def _unpack(body: Buffer, budget: Budget | None, read_ext: _ReadExt) -> object:
    nbytes = memoryview(body).nbytes
    options: dict[str, Any] = {"ext_hook": read_ext}
    if budget is not None:
        options = {
            "ext_hook": partial(_count_ext, budget, read_ext),
            "list_hook": budget.take_list,
            "object_hook": budget.take_map,
        }
    try:
        return msgpack.unpackb(
            body,
            raw=False,
            strict_map_key=True,
            timestamp=1,  # a code that msgpack reads by itself; this way it is a float
            unicode_errors="surrogatepass",
            max_str_len=nbytes,
            max_bin_len=nbytes,
            max_array_len=nbytes,
            max_map_len=nbytes,
            max_ext_len=nbytes,
            **options,
        )
    except RpcError:
        raise
    except (*_SENSELESS, MemoryError) as error:
        raise DecodeError(f"a body that is no value: {_brief(error)}") from error


def _count_ext(budget: Budget, read_ext: _ReadExt, code: int, data: bytes) -> object:
    budget.take_ext(code, data)
    return read_ext(code, data)


def _read_ext(code: int, data: bytes) -> object:
    mark = _READ_MARKS.get(code)
    if mark is not None and not data:
        return mark
    reader = _READERS.get(code)
    if reader is None:
        raise DecodeError(f"extension code {code} with {len(data)} bytes is not known")
    try:
        return reader(data)
    except RpcError:
        raise
    except _SENSELESS as error:
        text = f"a {Code(code).name.lower()} that makes no sense: {_brief(error)}"
        raise DecodeError(text) from error


def _brief(error: BaseException) -> str:
    try:
        return f"{type(error).__name__}: {error}"[:300]
    except Exception:  # noqa: BLE001 - a text of a number of a million digits, say
        return type(error).__name__


class _Decoder:
    """One decoding; owner thread only."""

    def __init__(self, buffers: Sequence[Buffer], place: Place) -> None:
        self._buffers = buffers
        self._taken: set[int] = set()
        self._place = place
        self._reader: TensorReader | None = None
        self._tensors: list[torch.Tensor] = []
        self._registered = TYPES.snapshot.wire_by_name

    def read_ext(self, code: int, data: bytes) -> object:
        """Read an extension value; tensors are made once their table is read."""
        if code == Code.TENSOR:
            number = int.from_bytes(data, "little")
            if len(data) != 4 or number >= len(self._tensors):
                raise DecodeError(f"tensor {number} of {len(self._tensors)}")
            return self._tensors[number]
        return _read_ext(code, data)

    def read_table(self, body: memoryview) -> memoryview:
        """Make the tensors of a body that has some; return the rest of it."""
        try:
            _, nbytes = TABLE_HEAD.unpack_from(body)
            rest = body[TABLE_HEAD.size + nbytes :]
            table: Buffer = body[TABLE_HEAD.size :][:nbytes]
            reader = TensorReader(
                table or self._take(len(self._buffers) - 1), self._buffers
            )
        except RpcError:
            raise
        except _SENSELESS as error:
            text = f"a tensor that makes no sense: {_brief(error)}"
            raise DecodeError(text) from error
        for index in reader.frames:
            self._take(index)
        self._reader, self._tensors = reader, reader.tensors(self._place)
        return rest

    def finish(self, value: object) -> object:
        """Check that nothing was left over."""
        if len(self._taken) != len(self._buffers):
            raise DecodeError(
                f"{len(self._buffers)} buffers came, {len(self._taken)} are used"
            )
        return value

    def lift(self, raw: Any, depth: int) -> object:
        """Turn what msgpack read into the value; plain containers stay as they are."""
        kind = type(raw)
        if kind is _Mark:
            raise DecodeError(f"{raw!r} where a value was expected")
        if kind is not list and kind is not dict:
            return raw
        if depth >= MAX_DEPTH:
            raise DecodeError(f"nested too deeply: {MAX_DEPTH} levels are allowed")
        if kind is dict:
            return self._lift_dict(raw, depth)
        if _LIFTED.isdisjoint(map(type, raw)):
            return raw
        code = raw.pop(0).code if type(raw[0]) is _Mark else None
        # One by one: so what was read goes as what it becomes is made.
        for number, part in enumerate(raw):
            if type(part) in _LIFTED:
                raw[number] = self.lift(part, depth + 1)
        return raw if code is None else self._join(code, raw)

    def _lift_dict(self, raw: dict[str, Any], depth: int) -> object:
        if not _LIFTED.isdisjoint(map(type, raw.values())):
            for key, item in raw.items():
                raw[key] = self.lift(item, depth + 1)
        return raw

    def _join(self, code: Code, parts: list[Any]) -> object:
        if code is Code.REGISTERED:
            return self._join_registered(parts)
        try:
            if code is Code.LAYOUT_TENSOR and self._reader is not None:
                return join_layout(parts, self._reader.on_host)
            if code is Code.ARRAY:
                return _numpy_codec.join_array(parts, self._take)
            if code is Code.BULK_BYTES or code is Code.BULK_BYTEARRAY:
                (index,) = parts
                make = bytes if code is Code.BULK_BYTES else bytearray
                return make(self._take(index))
            return _JOINERS[code](parts)
        except RpcError:
            raise
        except _SENSELESS as error:
            text = f"a {code.name.lower()} that makes no sense: {_brief(error)}"
            raise DecodeError(text) from error

    def _join_registered(self, parts: list[Any]) -> object:
        if len(parts) != 2 or type(parts[0]) is not str:
            raise DecodeError("a registered object without its name and value")
        name, flat = parts
        form = self._registered.get(name)
        if form is None:
            raise DecodeError(
                f"type {name[:200]!r} is not registered here: import the module that "
                "registers it, or call rpcfut.register_type for it on this worker too"
            )
        try:
            return form.unflatten(flat)
        except Exception as error:
            text = f"unflatten of {name!r} raised {_brief(error)}"
            raise DecodeError(text) from error

    def _take(self, index: object) -> Buffer:
        if type(index) is not int or not 0 <= index < len(self._buffers):
            raise DecodeError(f"buffer {index!r} of {len(self._buffers)}")
        if index in self._taken:
            raise DecodeError(f"buffer {index} is used twice")
        self._taken.add(index)
        return self._buffers[index]
