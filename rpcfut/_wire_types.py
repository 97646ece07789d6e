"""How the types of `_wire_codes` are written and read, but for arrays and tensors."""

from __future__ import annotations

import datetime as dt
import struct
from collections import Counter, OrderedDict, defaultdict, deque
from decimal import Decimal
from fractions import Fraction
from pathlib import PosixPath, PurePosixPath, PureWindowsPath
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeAlias
from uuid import UUID

import torch
from torch.nn.utils.rnn import PackedSequence

from rpcfut._dtypes import read_dtype, write_dtype
from rpcfut._known_types import is_struct_sequence
from rpcfut._wire_codes import Code
from rpcfut._wire_keys import require_scattered

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

# The greatest common divisor of larger ones takes more than a moment, and a peer
# could make us compute it.
_FRACTION_BITS = 1 << 15


class Scalar(NamedTuple):
    """A type that is written as bytes."""

    code: Code
    write: Callable[[Any], bytes]
    read: Callable[[bytes], object]


class Compound(NamedTuple):
    """A type that is written as a list of parts."""

    code: Code
    split: Callable[[Any], Sequence[object]]
    join: Callable[[list[Any]], object]


_Numbers: TypeAlias = tuple[int, ...]


def _write_text(value: object) -> bytes:
    return str(value).encode("utf-8", "surrogatepass")


def _read_text(data: bytes) -> str:
    return data.decode("utf-8", "surrogatepass")


def _write_windows_path(value: PureWindowsPath) -> bytes:
    if PureWindowsPath(str(value)) != value:  # as of "//host/", to pathlib itself
        raise TypeError("has a text that means another path; send str(x)")
    return _write_text(value)


def write_int(value: int) -> bytes:
    """Write an int of any size."""
    return value.to_bytes(value.bit_length() // 8 + 1, "big", signed=True)


def read_int(data: bytes) -> int:
    """Read what `write_int` wrote."""
    return int.from_bytes(data, "big", signed=True)


def _write_delta(value: dt.timedelta) -> bytes:
    return struct.pack("<iii", value.days, value.seconds, value.microseconds)


def _read_delta(data: bytes) -> dt.timedelta:
    return dt.timedelta(*struct.unpack("<iii", data))


def _singleton(value: object) -> Callable[[bytes], object]:
    def read(data: bytes) -> object:
        if data:
            raise ValueError(f"{value!r} has no bytes")
        return value

    return read


def _write_name(value: object) -> bytes:
    return str(value).removeprefix("torch.").encode()


def _reader_of_names(kind: type, names: Sequence[str]) -> Callable[[bytes], object]:
    table = {name.encode(): getattr(torch, name) for name in names}

    def read(data: bytes) -> object:
        if data not in table:
            raise ValueError(f"no {kind.__qualname__} is called {data[:40]!r}")
        return table[data]

    return read


_LAYOUTS = (
    *("strided", "sparse_coo", "sparse_csr", "sparse_csc", "sparse_bsr"),
    *("sparse_bsc", "jagged", "_mkldnn"),
)
_MEMORY_FORMATS = (
    *("contiguous_format", "preserve_format", "channels_last", "channels_last_3d"),
)

SCALARS: Final[dict[type, Scalar]] = {
    complex: Scalar(
        Code.COMPLEX,
        lambda value: struct.pack("<dd", value.real, value.imag),
        lambda data: complex(*struct.unpack("<dd", data)),
    ),
    type(...): Scalar(Code.ELLIPSIS, lambda _: b"", _singleton(...)),
    type(NotImplemented): Scalar(
        Code.NOT_IMPLEMENTED, lambda _: b"", _singleton(NotImplemented)
    ),
    Decimal: Scalar(Code.DECIMAL, _write_text, lambda data: Decimal(_read_text(data))),
    UUID: Scalar(
        Code.UUID, lambda value: value.bytes, lambda data: UUID(bytes=bytes(data))
    ),
    PurePosixPath: Scalar(
        Code.PURE_POSIX_PATH, _write_text, lambda data: PurePosixPath(_read_text(data))
    ),
    PosixPath: Scalar(
        Code.POSIX_PATH, _write_text, lambda data: PosixPath(_read_text(data))
    ),
    PureWindowsPath: Scalar(
        Code.PURE_WINDOWS_PATH,
        _write_windows_path,
        lambda data: PureWindowsPath(_read_text(data)),
    ),
    dt.date: Scalar(
        Code.DATE,
        lambda value: struct.pack("<i", value.toordinal()),
        lambda data: dt.date.fromordinal(*struct.unpack("<i", data)),
    ),
    dt.timedelta: Scalar(Code.TIMEDELTA, _write_delta, _read_delta),
    torch.dtype: Scalar(Code.DTYPE, write_dtype, read_dtype),
    torch.device: Scalar(
        Code.DEVICE, _write_text, lambda data: torch.device(_read_text(data))
    ),
    torch.layout: Scalar(
        Code.LAYOUT, _write_name, _reader_of_names(torch.layout, _LAYOUTS)
    ),
    torch.memory_format: Scalar(
        Code.MEMORY_FORMAT,
        _write_name,
        _reader_of_names(torch.memory_format, _MEMORY_FORMATS),
    ),
}


def _join_set(parts: list[Any]) -> set[Any]:
    """Make a set; equal elements would mean that bytes were changed on the way."""
    require_scattered(parts)
    made = set(parts)
    if len(made) != len(parts):
        raise ValueError("a set has equal elements")
    return made


def _split_set(value: frozenset[Any] | set[Any]) -> Sequence[Any]:
    require_scattered(value)
    return tuple(value)


def _split_dict(value: dict[Any, Any]) -> list[Any]:
    """List keys and values in turn."""
    require_scattered(value)
    return [part for pair in value.items() for part in pair]


def _join_dict(parts: list[Any]) -> dict[Any, Any]:
    """Make a dict of keys and values in turn."""
    require_scattered(parts[::2])
    steps = iter(parts)
    made = dict(zip(steps, steps, strict=True))
    if 2 * len(made) != len(parts):
        raise ValueError("a dict has equal keys")
    return made


def _require_no_attributes(value: object, *allowed: str) -> None:
    more = [name for name in vars(value) if name not in allowed]
    if more:
        raise TypeError(
            f"has the attribute {more[0]!r}, which would be lost; delete it"
        )


def _split_ordered_dict(value: OrderedDict[Any, Any]) -> list[Any]:
    _require_no_attributes(value, "_metadata")
    return [getattr(value, "_metadata", None), *_split_dict(value)]


def _join_ordered_dict(parts: list[Any]) -> OrderedDict[Any, Any]:
    made = OrderedDict(_join_dict(parts[1:]))
    if parts[0] is not None:
        made._metadata = parts[0]  # type: ignore[attr-defined]  # noqa: SLF001 - where torch keeps it
    return made


_FACTORIES = {
    kind.__name__: kind
    for kind in (int, float, bool, complex, str, bytes, list, tuple, dict, set)
}


def _split_default_dict(value: defaultdict[Any, Any]) -> list[Any]:
    factory = value.default_factory
    name = next((name for name, kind in _FACTORIES.items() if kind is factory), None)
    if name is None and factory is not None:
        raise TypeError(
            f"has the default_factory {factory!r:.200}; only the builtin types "
            f"{', '.join(_FACTORIES)} can travel: send dict(x)"
        )
    return [name, *_split_dict(value)]


def _join_default_dict(parts: list[Any]) -> defaultdict[Any, Any]:
    factory = None if parts[0] is None else _FACTORIES[parts[0]]
    return defaultdict(factory, _join_dict(parts[1:]))


def _split_counter(value: Counter[Any]) -> list[Any]:
    _require_no_attributes(value)
    return _split_dict(value)


def _join_counter(parts: list[Any]) -> Counter[Any]:
    return Counter(_join_dict(parts))


def _require_ints(parts: list[Any]) -> _Numbers:
    if set(map(type, parts)) - {int}:
        raise TypeError("an integer was expected")
    return tuple(parts)


def _split_fraction(value: Fraction) -> _Numbers:
    if max(value.numerator.bit_length(), value.denominator.bit_length()) > (
        _FRACTION_BITS
    ):
        raise TypeError(
            f"is a Fraction of more than {_FRACTION_BITS} bits; send its numerator and "
            "denominator"
        )
    return (value.numerator, value.denominator)


def _join_fraction(parts: list[Any]) -> Fraction:
    numerator, denominator = _require_ints(parts)
    if max(numerator.bit_length(), denominator.bit_length()) > _FRACTION_BITS:
        raise ValueError(f"a Fraction of more than {_FRACTION_BITS} bits")
    return Fraction(numerator, denominator)


_MICROSECOND = dt.timedelta(microseconds=1)


def _split_zone(zone: dt.tzinfo | None) -> list[Any]:
    if zone is None:
        return [None, None]
    if type(zone) is not dt.timezone:
        raise TypeError(
            f"has a tzinfo of type {type(zone).__qualname__}, whose rules cannot "
            "travel; send x.astimezone(datetime.timezone.utc)"
        )
    offset = zone.utcoffset(None)
    name = zone.tzname(None)
    has_own_name = zone != dt.timezone(offset) or name != dt.timezone(offset).tzname(
        None
    )
    return [offset // _MICROSECOND, name if has_own_name else None]


def _join_zone(offset_us: int | None, name: str | None) -> dt.timezone | None:
    if offset_us is None:
        return None
    offset = offset_us * _MICROSECOND
    return dt.timezone(offset) if name is None else dt.timezone(offset, name)


def _split_datetime(value: dt.datetime) -> list[Any]:
    return [value.year, value.month, value.day, *_split_time(value)]


def _split_time(value: dt.datetime | dt.time) -> list[Any]:
    clock = [value.hour, value.minute, value.second, value.microsecond, value.fold]
    return [*clock, *_split_zone(value.tzinfo)]


def _join_datetime(parts: list[Any]) -> dt.datetime:
    *numbers, fold, offset_us, name = parts
    zone = _join_zone(offset_us, name)
    return dt.datetime(*_require_ints(numbers), tzinfo=zone, fold=fold)  # type: ignore[arg-type,misc]  # any count of numbers; a wrong one is a TypeError


def _join_time(parts: list[Any]) -> dt.time:
    *numbers, fold, offset_us, name = parts
    zone = _join_zone(offset_us, name)
    return dt.time(*_require_ints(numbers), tzinfo=zone, fold=fold)  # type: ignore[arg-type,misc]  # as above


def _join_timezone(parts: list[Any]) -> object:
    offset_us, name = parts
    _require_ints([offset_us])
    return _join_zone(offset_us, name)


def _split_packed(value: PackedSequence) -> tuple[Any, ...]:
    _require_no_attributes(value)
    return tuple(value)


def split_struct(value: tuple[Any, ...]) -> list[Any]:
    """Name a struct that a torch function returned, and list its elements."""
    return [type(value).__name__, *value]


def torch_struct(name: object) -> type | None:
    """Find a struct of ``torch.return_types`` by its name."""
    found = getattr(torch.return_types, name, None) if isinstance(name, str) else None
    if not isinstance(found, type) or not issubclass(found, tuple):
        return None
    return found if is_struct_sequence(found) else None


def join_struct(parts: list[Any]) -> object:
    """Make the struct again."""
    kind = torch_struct(parts[0])
    if kind is None:
        raise ValueError(f"torch.return_types has no {parts[0]!r}")
    return kind(tuple(parts[1:]))


COMPOUNDS: Final[dict[type, Compound]] = {
    tuple: Compound(Code.TUPLE, tuple, tuple),
    set: Compound(Code.SET, _split_set, _join_set),
    frozenset: Compound(
        Code.FROZENSET, _split_set, lambda parts: frozenset(_join_set(parts))
    ),
    dict: Compound(Code.DICT, _split_dict, _join_dict),
    OrderedDict: Compound(Code.ORDERED_DICT, _split_ordered_dict, _join_ordered_dict),
    defaultdict: Compound(Code.DEFAULT_DICT, _split_default_dict, _join_default_dict),
    Counter: Compound(Code.COUNTER, _split_counter, _join_counter),
    deque: Compound(
        Code.DEQUE,
        lambda value: [value.maxlen, *value],
        lambda parts: deque(parts[1:], parts[0]),
    ),
    range: Compound(
        Code.RANGE,
        lambda value: (value.start, value.stop, value.step),
        lambda parts: range(*_require_ints(parts)),
    ),
    slice: Compound(
        Code.SLICE,
        lambda value: (value.start, value.stop, value.step),
        lambda parts: slice(*parts),
    ),
    Fraction: Compound(Code.FRACTION, _split_fraction, _join_fraction),
    dt.datetime: Compound(Code.DATETIME, _split_datetime, _join_datetime),
    dt.time: Compound(Code.TIME, _split_time, _join_time),
    dt.timezone: Compound(Code.TIMEZONE, _split_zone, _join_timezone),
    torch.Size: Compound(
        Code.SIZE, tuple, lambda parts: torch.Size(_require_ints(parts))
    ),
    PackedSequence: Compound(
        Code.PACKED_SEQUENCE, _split_packed, lambda parts: PackedSequence(*parts)
    ),
}
