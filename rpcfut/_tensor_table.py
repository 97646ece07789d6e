"""The packed descriptors of the dense tensors of one value (RPC-9).

Theory of operation. Each tensor is a row. Its elements are a *block* of its own, or a
view into a *hull*, a block that several tensors of the value share. A row says how the
elements lie there: by ``shape`` and ``strides`` in elements, from ``offset`` in bytes.

Where a block lies is not written, but follows from the sizes, hulls first and then the
rows in order: one of `OWN_FRAME_NBYTES` or more is a frame of its own, as is each one
of a device; the others follow each other in *packs*, each at a multiple of `ALIGNMENT`.
A block that does not fit opens the next pack. So no place can be out of range, or used
twice. A tensor without elements, or without data (meta), has no block.

Layout, little-endian::

    u32 first frame | u32 hulls | u32 rows | u32 numbers | u8 devices
    per device:  u8 length, text
    per row:     u32 = dtype | flags << 8 | device << 16 | dimensions << 24
    numbers:     u64 each
        per hull:  nbytes, device
        per row:   [hull, offset, if SHARED] shape [strides, if STRIDED]

Device 0 is the host.
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, Final, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

REQUIRES_GRAD: Final = 1
PARAMETER: Final = 2
STRIDED: Final = 4
SHARED: Final = 8
CONJUGATE: Final = 16
NEGATIVE: Final = 32
META: Final = 64
_ALL_FLAGS: Final = 127

# Less is copied out of a pack: that costs less than to keep a message alive for it.
OWN_FRAME_NBYTES: Final = 64 * 1024
ALIGNMENT: Final = 64
MAX_NDIM: Final = 64
_MAX_DEVICE: Final = 255
_MAX_NUMBER: Final = 1 << 62
_HEAD = struct.Struct("<IIIIB")


class Table(NamedTuple):
    """All tensors of a value, packed.

    Args:
        first_frame: Number of the first buffer that holds blocks.
        devices: Names of the devices but the host.
        heads: What fits in 32 bits of each tensor.
        numbers: The rest: hulls, then tensors.
        hull_count: How many hulls there are.
    """

    first_frame: int
    devices: Sequence[str]
    heads: Sequence[int]
    numbers: Sequence[int]
    hull_count: int

    def hulls(self) -> list[tuple[int, int]]:
        """Size in bytes and device of each hull."""
        end = 2 * self.hull_count
        return list(zip(self.numbers[0:end:2], self.numbers[1:end:2], strict=True))


class Row(NamedTuple):
    """One tensor.

    Args:
        dtype: Its number.
        flags: What else it is.
        device: Number of its device in the table; 0 for the host.
        shape: Its lengths.
        strides: In elements; empty for row by row.
        hull: Number of the hull that it is a view of; -1 if its block is its own.
        offset: Where it starts in the hull, in bytes.
    """

    dtype: int
    flags: int
    device: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    hull: int
    offset: int


def head_of(dtype: int, flags: int, device: int, ndim: int) -> int:
    """Pack what fits in 32 bits.

    Raises:
        TypeError: When there are too many dimensions or devices.
    """
    if ndim > MAX_NDIM or device > _MAX_DEVICE:
        raise TypeError(
            f"has {ndim} dimensions and lies on the {device}th device; at most "
            f"{MAX_NDIM} and {_MAX_DEVICE} can travel: send x.flatten(), and its shape"
        )
    return dtype | flags << 8 | device << 16 | ndim << 24


def flags_of(head: int) -> int:
    """The flags in a head."""
    return head >> 8 & 255


def device_of(head: int) -> int:
    """The device in a head."""
    return head >> 16 & 255


def write_table(table: Table) -> bytes:
    """Write a table."""
    first_frame, devices, heads, numbers, hull_count = table
    names = [name.encode() for name in devices]
    return b"".join(
        (
            _HEAD.pack(first_frame, hull_count, len(heads), len(numbers), len(names)),
            *[bytes((len(name),)) + name for name in names],
            struct.pack(f"<{len(heads)}I{len(numbers)}Q", *heads, *numbers),
        )
    )


def read_table(data: bytes | bytearray | memoryview) -> Table:
    """Read a table, not trusted.

    Raises:
        ValueError: When it makes no sense by itself. Its rows were not looked at.
        struct.error, IndexError: When it is too short.
    """
    first_frame, hull_count, row_count, number_count, device_count = _HEAD.unpack_from(
        data
    )
    at = _HEAD.size
    devices: list[str] = []
    for _ in range(device_count):
        end = at + 1 + data[at]
        devices.append(bytes(data[at + 1 : end]).decode("ascii"))
        at = end
    if at + 4 * row_count + 8 * number_count != len(data):
        raise ValueError(f"{len(data)} bytes for {row_count} tensors")
    heads = struct.unpack_from(f"<{row_count}I", data, at)
    numbers = struct.unpack_from(f"<{number_count}Q", data, at + 4 * row_count)
    if numbers and max(numbers) >= _MAX_NUMBER:
        raise ValueError(f"{max(numbers)} where a size was expected")
    table = Table(first_frame, devices, heads, numbers, hull_count)
    if 2 * hull_count > number_count:
        raise ValueError(f"{hull_count} hulls in {number_count} numbers")
    return table


def rows(table: Table) -> Iterator[Row]:
    """Take the tensors of a table apart, one by one.

    Raises:
        ValueError: When a row makes no sense by itself.
    """
    numbers = table.numbers
    at = 2 * table.hull_count
    for head in table.heads:
        ndim = head >> 24
        flags = head >> 8 & 255
        hull, offset = -1, 0
        if flags & SHARED:
            hull, offset = numbers[at : at + 2]
            at += 2
        end = at + ndim
        shape = numbers[at:end]
        strides: Sequence[int] = ()
        if flags & STRIDED:
            at, end = end, end + ndim
            strides = numbers[at:end]
        at = end
        if at > len(numbers) or ndim > MAX_NDIM or flags > _ALL_FLAGS:
            raise ValueError(f"a tensor of {ndim} dimensions, flags {flags}")
        yield Row(head & 255, flags, head >> 16 & 255, shape, strides, hull, offset)  # type: ignore[arg-type]  # slices of a tuple
    if at != len(numbers):
        raise ValueError(f"{len(numbers)} numbers, {at} are used")
