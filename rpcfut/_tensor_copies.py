"""How elements of tensors lie in memory, and copies of them into frames."""

from __future__ import annotations

import contextlib
import mmap
from typing import TYPE_CHECKING, Final

import torch

from rpcfut._tensor_table import ALIGNMENT, OWN_FRAME_NBYTES

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rpcfut_transport import Buffer

_MMAP_MIN_NBYTES = 128 * 1024

_HUGE_MIN_NBYTES = 4 << 20

_MAX_STRIDE = 1 << 62

# Types of the same size that every copy kernel knows.
_RAW: Final = {
    1: torch.uint8,
    2: torch.int16,
    4: torch.int32,
    8: torch.int64,
    16: torch.complex128,
}

_PAD: Final = bytes(ALIGNMENT)


def row_major(shape: Sequence[int]) -> tuple[int, ...]:
    """The strides of a tensor whose elements lie row by row."""
    if len(shape) == 1:
        return (1,)
    strides = []
    step = 1
    for length in reversed(shape):
        strides.append(step)
        step *= max(length, 1)
    return tuple(reversed(strides))


def extent_of(shape: Sequence[int], strides: Sequence[int]) -> int:
    """How many elements lie from the first to the last, both counted."""
    return sum((n - 1) * s for n, s in zip(shape, strides, strict=True)) + 1


def is_dense_strided(shape: Sequence[int], strides: Sequence[int]) -> bool:
    """Whether these strides reach each place of a gapless block exactly once."""
    step = 1
    wide = sorted((s, n) for n, s in zip(shape, strides, strict=True) if n != 1)
    for stride, length in wide:
        if stride != step or length == 0:
            return False
        step *= length
    return all(0 <= stride < _MAX_STRIDE for stride in strides)


def allocate(nbytes: int) -> bytearray | memoryview:
    """Make a writable buffer.

    A large one comes from the kernel: a bytearray would be written twice, the first
    time with zeros. Huge pages halve the time of the copy that follows; private, since
    an anonymous map is shared with forked children by default.
    """
    if nbytes < _MMAP_MIN_NBYTES:
        return bytearray(nbytes)
    pages = mmap.mmap(-1, nbytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    if nbytes >= _HUGE_MIN_NBYTES:
        with contextlib.suppress(OSError):  # a kernel without huge pages
            pages.madvise(mmap.MADV_HUGEPAGE)
    return memoryview(pages)


def raw_bits(tensor: torch.Tensor) -> torch.Tensor:
    """View a tensor's bits as a type that can be copied whatever they mean."""
    plain = tensor.detach() if tensor.requires_grad else tensor
    if plain.is_conj():
        plain = torch._conj(plain)  # noqa: SLF001 - takes the mark away, copies nothing
    if plain.is_neg():
        plain = torch._neg_view(plain)  # noqa: SLF001 - as above
    return plain.view(_RAW[plain.dtype.itemsize])


def copy_of(raw: torch.Tensor, *, is_dense: bool = True) -> Buffer:
    buffer = allocate(raw.nbytes)
    copy = torch.frombuffer(buffer, dtype=raw.dtype)
    if is_dense:
        copy.as_strided(raw.shape, raw.stride()).copy_(raw)
    else:
        copy.view(raw.shape).copy_(raw)
    return buffer


def flat_bytes(tensor: torch.Tensor, *, is_dense: bool) -> torch.Tensor:
    """View a tensor as the bytes that travel; queue a gather if it is not dense."""
    raw = raw_bits(tensor)
    if is_dense:
        flat = raw.as_strided((raw.numel(),), (1,))
    else:
        flat = raw.contiguous().view(-1)
    return flat.view(torch.uint8)


class Frames:
    """Puts blocks into frames, by the rule in `_tensor_table`; owner thread only."""

    def __init__(self, buffers: list[Buffer]) -> None:
        self._buffers = buffers
        self._parts: list[Buffer] = []
        self._used = 0
        self._at: int | None = None

    def add(self, block: Buffer, *, is_alone: bool = False) -> None:
        """Add a block."""
        nbytes = len(block) if type(block) is bytes else memoryview(block).nbytes
        if is_alone or nbytes >= OWN_FRAME_NBYTES:
            self._buffers.append(block)
            return
        gap = -self._used % ALIGNMENT
        if self._at is None or self._used + gap + nbytes > OWN_FRAME_NBYTES:
            self.close()
            self._at = len(self._buffers)
            self._buffers.append(b"")  # filled when the pack is full
        elif gap:
            self._parts.append(_PAD[:gap])
            self._used += gap
        self._parts.append(block)
        self._used += nbytes

    def close(self) -> None:
        """Write the pack that is open."""
        if self._at is not None:
            self._buffers[self._at] = b"".join(self._parts)
            self._parts, self._used, self._at = [], 0, None
