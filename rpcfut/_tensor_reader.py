"""A table of dense tensors and its buffers, not trusted -> tensors (RPC-9, RPC-10).

Each tensor owns its memory, or keeps alive a frame that is its own; those that shared
memory where they came from share it here, and what one shows of another's writes is
what it showed there.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, Final, TypeAlias

import torch

from rpcfut._devices import CPU, Device, parse_device
from rpcfut._dtypes import DTYPES, dtype_of
from rpcfut._errors import DecodeError
from rpcfut._tensor_copies import extent_of, is_dense_strided
from rpcfut._tensor_table import (
    ALIGNMENT,
    CONJUGATE,
    META,
    NEGATIVE,
    OWN_FRAME_NBYTES,
    PARAMETER,
    REQUIRES_GRAD,
    SHARED,
    Row,
    read_table,
    rows,
)
from rpcfut._wire_weights import most_without_bytes

if TYPE_CHECKING:
    from rpcfut_transport import Buffer

Place: TypeAlias = Callable[[torch.Tensor, Device], Any]

_ALIGNMENT = 16
_MAX_NBYTES = 1 << 62
_DENSE: Final = frozenset(DTYPES)
# Flags that say more than where the elements lie.
_MARKED: Final = REQUIRES_GRAD | PARAMETER | CONJUGATE | NEGATIVE | META
_NOT_FALSE_OR_TRUE = bytes((0, 1))


class TensorReader:
    """The dense tensors of one value; owner thread only.

    Args:
        data: The table.
        buffers: The buffers of the message.

    Raises:
        ValueError: When it makes no sense, or not with these buffers; also another of
            the errors that bytes without sense cause.
        DecodeError: When it asks for too much memory.
    """

    def __init__(self, data: Buffer, buffers: Sequence[Buffer]) -> None:
        table = read_table(data)
        self._devices = [CPU, *map(_device, table.devices)]
        self._count_left = most_without_bytes(memoryview(data).nbytes)
        # Those that are more than elements on the host.
        self._late: dict[int, Row] = {}
        self._came: dict[int, torch.Tensor] = {}
        frames = _Frames(buffers, table.first_frame)
        self._hulls: list[tuple[torch.Tensor, int]] = []
        for nbytes, device in table.hulls():
            if device >= len(self._devices):
                raise ValueError(f"device {device} of {len(self._devices)}")
            flat = _over(frames.take(nbytes, is_alone=device > 0), nbytes)
            self._hulls.append((flat, device))
        self._hosts = [
            self._join(number, row, frames) for number, row in enumerate(rows(table))
        ]
        self.frames = frames.close()

    def __repr__(self) -> str:
        return f"<TensorReader: {len(self._hosts)} tensors in {self.frames}>"

    def tensors(self, place: Place) -> list[torch.Tensor]:
        """Put the tensors where they belong, with their flags.

        Args:
            place: As for `decode`.
        """
        made = self._hosts
        if len(self._devices) > 1:
            made = self._placed(place)
        for number, row in self._late.items():
            if row.flags & _MARKED:
                made[number] = _flagged(made[number], row.flags)
        if len(self._devices) > 1:
            self._came = {id(t): h for t, h in zip(made, self._hosts, strict=True)}
        return made

    def on_host(self, tensor: torch.Tensor) -> torch.Tensor:
        """The elements of one of the tensors as they came, on the host."""
        return self._came.get(id(tensor), tensor)

    def _placed(self, place: Place) -> list[torch.Tensor]:
        hulls = [
            place(flat, self._devices[device]) if device else flat
            for flat, device in self._hulls
        ]
        made = self._hosts.copy()
        for number, row in self._late.items():
            if row.device and row.flags & SHARED:
                made[number] = _view(hulls[row.hull], row, made[number].dtype)
            elif row.device:
                made[number] = place(made[number], self._devices[row.device])
        return made

    def _join(self, number: int, row: Row, frames: _Frames) -> torch.Tensor:
        dtype = dtype_of(row.dtype)
        if row.flags & _MARKED or row.device or dtype not in _DENSE:
            self._require_sense(row, dtype)
            self._late[number] = row
        if row.flags & (META | SHARED) or 0 in row.shape:
            self._count_left -= 1
            if self._count_left < 0:
                raise DecodeError("tensors that take too much memory for their message")
        if row.flags & META:
            return _meta(row, dtype)
        if row.flags & SHARED:
            flat, device = self._hulls[row.hull]
            if device != row.device:
                raise ValueError(f"a tensor on {row.device} in a hull on {device}")
            _require_inside(flat, row, dtype)
            return _view(flat, row, dtype)
        return _own(row, dtype, frames)

    def _require_sense(self, row: Row, dtype: torch.dtype) -> None:
        if dtype not in _DENSE:
            raise ValueError(f"a dense tensor of {dtype}")
        if row.device >= len(self._devices):
            raise ValueError(f"device {row.device} of {len(self._devices)}")
        is_float = dtype.is_floating_point or dtype.is_complex
        if row.flags & (REQUIRES_GRAD | NEGATIVE) and not is_float:
            raise ValueError(f"flags {row.flags} for {dtype}")
        if row.flags & CONJUGATE and not dtype.is_complex:
            raise ValueError(f"a conjugated tensor of {dtype}")
        if row.flags & META and row.flags & (SHARED | CONJUGATE | NEGATIVE):
            raise ValueError(f"flags {row.flags} for a tensor without data")


def _require_inside(flat: torch.Tensor, row: Row, dtype: torch.dtype) -> None:
    if len(row.strides) != len(row.shape) or 0 in row.shape:
        raise ValueError(f"shape {row.shape}, strides {row.strides} in a hull")
    nbytes = extent_of(row.shape, row.strides) * dtype.itemsize
    if row.offset % dtype.itemsize or row.offset + nbytes > flat.numel():
        raise ValueError(f"{nbytes} bytes at {row.offset} of {flat.numel()}")
    if math.prod(row.shape) * dtype.itemsize >= _MAX_NBYTES:
        raise ValueError(f"shape {row.shape}")
    if dtype is torch.bool:
        _require_bools(flat, row)


def _view(flat: torch.Tensor, row: Row, dtype: torch.dtype) -> torch.Tensor:
    whole = flat[: flat.numel() - flat.numel() % dtype.itemsize].view(dtype)
    view = whole.as_strided(row.shape, row.strides, row.offset // dtype.itemsize)
    # What torch knows as a view cannot be detached in place, as optimizers do.
    return view.detach()


def _own(row: Row, dtype: torch.dtype, frames: _Frames) -> torch.Tensor:
    shape, strides = row.shape, row.strides
    numel = shape[0] if len(shape) == 1 else math.prod(shape)
    if not numel:
        if strides or math.prod(n for n in shape if n) >= _MAX_NBYTES // 16:
            raise ValueError(f"shape {shape}, strides {strides}")
        # Not torch.empty: it warns for complex32.
        empty = torch.empty(0, dtype=torch.uint8).view(dtype)
        return empty.resize_(shape)
    nbytes = numel * dtype.itemsize
    if strides and not is_dense_strided(shape, strides):
        raise ValueError(f"strides {strides} for shape {shape}")
    memory = frames.take(nbytes, is_alone=row.device > 0)
    if nbytes < OWN_FRAME_NBYTES:
        owned = bytearray(memory)
        if dtype is torch.bool and owned.translate(None, _NOT_FALSE_OR_TRUE):
            raise ValueError("a bool that is neither 0 nor 1")
        tensor = torch.frombuffer(owned, dtype=dtype)
    else:
        flat = _over(memory, nbytes)
        if dtype is torch.bool and int(flat.max()) > 1:
            raise ValueError("a bool that is neither 0 nor 1")
        tensor = flat.view(dtype).detach() if dtype is not torch.uint8 else flat
    # In place: a view could not be detached in place, as optimizers do.
    if strides:
        return tensor.as_strided_(shape, strides)
    return tensor if len(shape) == 1 else tensor.resize_(shape)


def _meta(row: Row, dtype: torch.dtype) -> torch.Tensor:
    if row.device:
        raise ValueError("a meta tensor on a device")
    shape, strides = row.shape, row.strides
    if len(strides) != len(shape) or extent_of(shape, strides) >= _MAX_NBYTES // 16:
        raise ValueError(f"shape {shape}, strides {strides}")
    if math.prod(n for n in shape if n) >= _MAX_NBYTES // 16:
        raise ValueError(f"shape {shape}")
    return torch.empty_strided(shape, strides, dtype=dtype, device="meta")


def _flagged(tensor: torch.Tensor, flags: int) -> torch.Tensor:
    if flags & CONJUGATE:
        tensor = torch._conj(tensor).detach()  # noqa: SLF001 - has no public name
    if flags & NEGATIVE:
        tensor = torch._neg_view(tensor).detach()  # noqa: SLF001 - as above
    needs_grad = bool(flags & REQUIRES_GRAD)
    if flags & PARAMETER:
        return torch.nn.Parameter(tensor, requires_grad=needs_grad)
    return tensor.requires_grad_() if needs_grad else tensor


def _require_bools(hull: torch.Tensor, row: Row) -> None:
    """Refuse a view of bools over other bytes, in time bounded by the hull's size."""
    shown = [(n, s) for n, s in zip(row.shape, row.strides, strict=True) if s]
    shape, strides = [n for n, _ in shown], [s for _, s in shown]
    if math.prod(shape) > hull.numel():
        shape, strides = [extent_of(shape, strides)], [1]
    if int(hull.as_strided(shape, strides, row.offset).max()) > 1:
        raise ValueError("a bool that is neither 0 nor 1")


class _Frames:
    """Takes blocks out of frames, by the rule in `_tensor_table`; owner thread only."""

    def __init__(self, buffers: Sequence[Buffer], first: int) -> None:
        self._first = first
        self._rest: Iterator[Buffer] = iter(buffers[first:])
        self._count = 0
        self._pack: memoryview | None = None
        self._used = 0

    def take(self, nbytes: int, *, is_alone: bool) -> memoryview:
        """Take the next block."""
        if is_alone or nbytes >= OWN_FRAME_NBYTES:
            frame = self._next()
            if frame.nbytes != nbytes:
                raise ValueError(f"{nbytes} bytes in a frame of {frame.nbytes}")
            return frame
        start = self._used + -self._used % ALIGNMENT
        if self._pack is None or start + nbytes > OWN_FRAME_NBYTES:
            self._end_pack()
            self._pack = self._next()
            start = 0
        self._used = start + nbytes
        block = self._pack[start : self._used]
        if block.nbytes != nbytes:
            raise ValueError(f"{nbytes} bytes at {start} of {self._pack.nbytes}")
        return block

    def close(self) -> range:
        """Check that the last pack was used up; return the numbers of the frames."""
        self._end_pack()
        return range(self._first, self._first + self._count)

    def _next(self) -> memoryview:
        frame = next(self._rest, None)
        if frame is None:
            raise ValueError(f"more tensors than {self._count} frames hold")
        self._count += 1
        return memoryview(frame).cast("B")

    def _end_pack(self) -> None:
        if self._pack is not None and self._pack.nbytes != self._used:
            raise ValueError(f"{self._used} of {self._pack.nbytes} bytes of a pack")


def _device(text: str) -> Device:
    device = parse_device(text)
    if device == CPU:
        raise ValueError(f"{text!r} as the device of a tensor")
    return device


def _over(view: memoryview, nbytes: int) -> torch.Tensor:
    """View a received buffer as bytes, or copy it where it cannot be used."""
    if nbytes >= OWN_FRAME_NBYTES and not view.readonly and view.c_contiguous:
        flat = torch.frombuffer(view, dtype=torch.uint8)
        if flat.data_ptr() % _ALIGNMENT == 0:
            return flat
    return torch.frombuffer(bytearray(view), dtype=torch.uint8)
