"""What a received value costs in memory, counted before it is made (RPC-10).

Theory of operation. A byte of a body can become up to 180 bytes of memory: five bytes
are an empty deque. So containers and extension values are counted while msgpack reads
them, each with the bytes that it and what becomes of it take, as measured; `Budget`
refuses the first one too many. Sender and receiver count alike, so that a value is
refused where it is sent. Of a body of N bytes with B buffers,

- what is counted takes at most ``max(64 MB, 12 N) + 1.2 kB * B``, as a tensor with
  elements brings its buffer;
- plain numbers and texts are not counted. They take at most 30 N: a text of one or two
  characters is three bytes, and an object of 80.

A small body cannot take more than the 64 MB, and is not counted.

A tensor takes 900 bytes. One with elements of its own brings at least `ALIGNMENT` bytes
of a buffer; the others of a table of N bytes may take ``max(64 MB, 32 N)``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from msgpack import ExtType

from rpcfut._errors import DecodeError
from rpcfut._wire_codes import FIRST_MARK, MAX_CONTAINERS, Code

if TYPE_CHECKING:
    from collections.abc import Collection

FREE_NBYTES: Final = 64 << 20
_PER_BYTE: Final = 12
_PER_BUFFER: Final = 1200
_PER_TABLE_BYTE: Final = 32
_TENSOR: Final = 900
# No byte becomes more than 200.
SMALL_BODY_NBYTES: Final = FREE_NBYTES // 200

# An object with its place in what holds it; and for each element.
_LIST: Final = (72, 8)
_MAP: Final = (160, 40)
_EMPTY_MAP: Final = 72
# An extension value: the object; and for each of its bytes, since a text may be wide.
_SCALARS: Final[dict[int, int]] = {
    Code.DECIMAL: 130,
    Code.UUID: 110,
    Code.PURE_POSIX_PATH: 220,
    Code.POSIX_PATH: 220,
    Code.PURE_WINDOWS_PATH: 220,
    Code.BYTEARRAY: 90,
}
_OTHER_SCALAR: Final = 40
_SCALAR_BYTE: Final = 4
# What msgpack writes by itself as well, and what is counted where its table is read.
_FREE: Final = frozenset({Code.INT, Code.TENSOR})
# What joining adds to the list of parts, which goes as the object is made: for the
# object, and for each part.
_JOINED: Final[dict[int, tuple[int, int]]] = {
    Code.TUPLE: (0, 8),
    Code.SET: (400, 32),
    Code.FROZENSET: (400, 32),
    Code.DICT: (150, 32),
    Code.ORDERED_DICT: (200, 64),
    Code.DEFAULT_DICT: (200, 32),
    Code.COUNTER: (150, 32),
    Code.DEQUE: (720, 16),
    Code.STRUCT: (200, 16),
    Code.REGISTERED: (200, 16),
    Code.LAYOUT_TENSOR: (1800, 8),
    Code.ARRAY: (200, 8),
}
_OTHER_JOINED: Final = (60, 8)
_PLAIN: Final = frozenset({type(None), bool, int, float, str, bytes})


def limit_of(body_nbytes: int, buffer_count: int) -> int:
    """What a body of this size may cost, in bytes."""
    return max(FREE_NBYTES, _PER_BYTE * body_nbytes) + _PER_BUFFER * buffer_count


def _weight(parts: Collection[object], code: int | None) -> int:
    length = len(parts)
    base, each = _LIST
    if code is None:
        return base + each * length
    more_base, more_each = _JOINED.get(code, _OTHER_JOINED)
    return base + more_base + (each + more_each) * length


def _map_weight(made: Collection[object]) -> int:
    base, each = _MAP
    return base + each * len(made) if made else _EMPTY_MAP


def _scalar_weight(code: int, data: bytes) -> int:
    return _SCALARS.get(code, _OTHER_SCALAR) + _SCALAR_BYTE * len(data)


def most_without_bytes(table_nbytes: int) -> int:
    """How many tensors a table of this size may have that bring no bytes."""
    return max(FREE_NBYTES, _PER_TABLE_BYTE * table_nbytes) // _TENSOR


class Budget:
    """Counts what is being unpacked; owner thread only.

    Args:
        nbytes: What it may cost.
    """

    def __init__(self, nbytes: int) -> None:
        self.nbytes = nbytes
        self.left = nbytes
        self._containers = 0

    def __repr__(self) -> str:
        return f"<Budget: {self.left} of {self.nbytes} bytes left>"

    def take_list(self, made: list[Any]) -> list[Any]:
        """Count a list as msgpack made it; a mark is an object with a code."""
        code = getattr(made[0], "code", None) if made else None
        self._take(_weight(made, code))
        self._count_container()
        return made

    def take_map(self, made: dict[str, Any]) -> dict[str, Any]:
        """Count a dict."""
        self._take(_map_weight(made))
        self._count_container()
        return made

    def take_ext(self, code: int, data: bytes) -> None:
        """Count an extension value; a mark is part of its list."""
        if code not in _FREE and code < FIRST_MARK:
            self._take(_scalar_weight(code, data))

    def _count_container(self) -> None:
        self._containers += 1
        if self._containers > MAX_CONTAINERS:
            raise DecodeError(f"more than {MAX_CONTAINERS} lists and dicts in one body")

    def _take(self, weight: int) -> None:
        self.left -= weight
        if self.left < 0:
            raise DecodeError(
                f"a body whose values take more than {self.nbytes} bytes of memory"
            )


def weigh(lowered: object) -> int:
    """What the receiver will count for a lowered value."""
    total = 0
    ahead = [lowered]
    while ahead:
        part = ahead.pop()
        if type(part) is ExtType:
            if part.code not in _FREE and part.code < FIRST_MARK:
                total += _scalar_weight(part.code, part.data)
            continue
        if type(part) is dict:
            total += _map_weight(part)
            held: Collection[object] = part.values()
        elif type(part) is list:
            head = part[0] if part else None
            is_marked = type(head) is ExtType and head.code >= FIRST_MARK
            total += _weight(part, head.code if is_marked else None)  # type: ignore[union-attr]  # is_marked says that it has one
            held = part
        else:
            continue
        if not _PLAIN.issuperset(map(type, held)):
            ahead.extend(held)
    return total
