"""Dense tensors -> rows of a table and buffers (RPC-9); `_tensor_reader` reads them.

A tensor alone is sent as its visible elements: in the order of its strides if these are
dense, so that a transposed or channels_last tensor is one plain copy, else row by row.
Tensors of one value whose byte ranges overlap are sent once, as the hull of these
ranges, and share memory on arrival as they do here; unless the hull is more than twice
what they show, which is refused. The bits travel as they lie: a conjugated or negated
view arrives as one.
"""

from __future__ import annotations

import ctypes
import math
from collections.abc import Callable, Collection, Sequence
from ctypes import string_at
from dataclasses import dataclass
from operator import add
from typing import Any, NamedTuple, TypeAlias

import torch
from torch.utils._python_dispatch import _disable_current_modes

from rpcfut._devices import Device
from rpcfut._dtypes import NUMBER_OF
from rpcfut._memory import CUDA_PINNED, is_pinned
from rpcfut._overlap import overlapping
from rpcfut._tensor_copies import (
    Frames,
    copy_of,
    extent_of,
    flat_bytes,
    is_dense_strided,
    raw_bits,
    row_major,
)
from rpcfut._tensor_rules import (
    dense_refusal,
    has_modes,
    lazy_flags,
    require_no_wrapper,
    start_of,
    storage_start,
)
from rpcfut._tensor_table import (
    META,
    OWN_FRAME_NBYTES,
    PARAMETER,
    REQUIRES_GRAD,
    SHARED,
    STRIDED,
    Table,
    device_of,
    head_of,
)
from rpcfut_transport import Buffer

Stage: TypeAlias = Callable[[Any], Buffer]

# What suits every dtype.
_ALIGNMENT = 16


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceArray:
    """Stands for a dense array of a kind of device that torch does not know.

    The wire format of such a type flattens its objects to this, and is given back what
    the seam of the device makes of the elements.

    Args:
        source: What the seam copies to the host; its ``device`` is a `Device`.
        dtype: Type of the elements.
        shape: Their number along each dimension; row by row in the copy.
    """

    source: Any
    dtype: torch.dtype
    shape: tuple[int, ...]


class TooFarApart(Exception):  # noqa: N818 - told to the user as an EncodeError
    """Tensors share memory, and most of what lies between them is none of theirs.

    Args:
        first: Number of a tensor.
        second: Number of one that shares memory with it.
        hull_nbytes: What would be sent.
        nbytes: What they show.
    """

    def __init__(self, first: int, second: int, hull_nbytes: int, nbytes: int) -> None:
        super().__init__(first, second)
        self.first = first
        self.second = second
        self.hull_nbytes = hull_nbytes
        self.nbytes = nbytes


class TensorWriter:
    """The dense tensors of one value; owner thread only.

    What is known of each tensor lies in lists by its number: an object for each would
    cost more than the copy of a small tensor.

    Args:
        stage: As for `encode`.
    """

    def __init__(self, stage: Stage) -> None:
        self._stage = stage
        self._tensors: list[Any] = []
        self._originals: list[torch.Tensor] = []
        self._number_of: dict[int, int] = {}
        self._heads: list[int] = []
        self._starts: list[int] = []
        self._extents: list[int] = []
        self._nbytes: list[int] = []
        # Shapes, and strides of those that need them; where those of a tensor start.
        self._lengths: list[int] = []
        self._places: list[int] = []
        # Those whose elements do not fill their extent, each once.
        self._gapped: set[int] = set()
        self._devices: dict[str, int] = {}

    def __repr__(self) -> str:
        return f"<TensorWriter: {len(self._tensors)} tensors>"

    def __len__(self) -> int:
        return len(self._tensors)

    def number_of(self, tensor: object) -> int | None:
        """The number of a tensor that was added; None for another."""
        return self._number_of.get(id(tensor))

    def add(self, tensor: torch.Tensor, *, is_plain: bool) -> int:
        """Number a dense tensor; the same object gets the same number.

        Args:
            tensor: The tensor.
            is_plain: What `is_plain_on_host` says of it.

        Raises:
            TypeError: When it cannot travel; says why, and the way out.
        """
        number = self._number_of.get(id(tensor))
        if number is not None:
            return number
        reason = dense_refusal(tensor)
        if reason is not None:
            raise TypeError(reason)
        flags = REQUIRES_GRAD if tensor.requires_grad else 0
        if type(tensor) is torch.nn.Parameter:
            flags |= PARAMETER
        original, device = tensor, 0
        if not is_plain:
            require_no_wrapper(tensor)
            if tensor._is_zerotensor():  # noqa: SLF001 - has no public name
                tensor = tensor.detach().clone()
            flags |= lazy_flags(tensor)
            device = self._device(tensor)
        number = len(self._tensors)
        flags |= self._add_extent(tensor, number, is_meta=flags & META != 0)
        shape = tensor.shape
        self._heads.append(head_of(NUMBER_OF[tensor.dtype], flags, device, len(shape)))
        self._places.append(len(self._lengths))
        self._lengths += shape
        if flags & STRIDED:
            self._lengths += tensor.stride()
        self._number_of[id(original)] = number
        # Kept, so that no other takes its address; and the original for its id.
        self._tensors.append(tensor)
        if original is not tensor:
            self._originals.append(original)
        return number

    def _add_extent(self, tensor: torch.Tensor, number: int, *, is_meta: bool) -> int:
        """Note where a tensor lies; return `STRIDED` if its strides are sent."""
        shape, nbytes = tensor.shape, 0 if is_meta else tensor.nbytes
        start, extent = 0, nbytes
        flags = STRIDED if is_meta else 0
        if nbytes:
            if 1 in shape or not tensor.is_contiguous():
                strides = tensor.stride()
                if not is_dense_strided(shape, strides):
                    self._gapped.add(number)
                    extent = extent_of(shape, strides) * tensor.dtype.itemsize
                elif strides != row_major(shape):
                    flags = STRIDED
            start = start_of(tensor, extent)
        self._starts.append(start)
        self._extents.append(extent)
        self._nbytes.append(nbytes)
        return flags

    def add_array(self, array: DeviceArray) -> None:
        """Number an array of a device that torch does not know."""
        name, shape = str(array.source.device), array.shape
        device = self._devices.setdefault(name, len(self._devices) + 1)
        self._number_of[id(array)] = len(self._tensors)
        self._tensors.append(array)
        self._heads.append(head_of(NUMBER_OF[array.dtype], 0, device, len(shape)))
        # Where it lies is not known, so it overlaps nothing.
        self._starts.append(0)
        self._extents.append(0)
        self._nbytes.append(math.prod(shape) * array.dtype.itemsize)
        self._places.append(len(self._lengths))
        self._lengths += shape

    def _device(self, tensor: torch.Tensor) -> int:
        if tensor.is_cpu or tensor.is_meta:
            return 0
        name = str(Device(tensor.device.type, tensor.get_device()))
        return self._devices.setdefault(name, len(self._devices) + 1)

    def finish(self, buffers: list[Buffer]) -> tuple[Table, int]:
        """Copy all elements and list the tensors.

        Host memory is copied before this returns; `stage` says when device memory is.

        Args:
            buffers: Where the frames are appended.

        Returns:
            The table, and how many of the tensors bring no bytes of their own.

        Raises:
            TooFarApart: When tensors share memory that cannot be sent as their hull.
        """
        if has_modes():
            with torch._C.DisableTorchFunction(), _disable_current_modes():  # noqa: SLF001 - has no public name
                return self._finish(buffers)
        return self._finish(buffers)

    def _finish(self, buffers: list[Buffer]) -> tuple[Table, int]:
        first_frame = len(buffers)
        hulls = self._hulls() if len(self._tensors) > 1 else []
        frames = Frames(buffers)
        for hull in hulls:
            self._copy_hull(hull, frames)
        shared = {view.number for hull in hulls for view in hull.views}
        self._copy_own(shared, frames)
        frames.close()
        heads, numbers = self._heads, self._lengths
        if hulls:
            heads, numbers = self._with_hulls(hulls)
        table = Table(first_frame, list(self._devices), heads, numbers, len(hulls))
        return table, len(shared) + self._nbytes.count(0)

    def _copy_own(self, shared: Collection[int], frames: Frames) -> None:
        may_be_pinned = CUDA_PINNED.is_in_use()
        for number, nbytes in enumerate(self._nbytes):
            if not nbytes or number in shared:
                continue
            is_plain = not device_of(self._heads[number]) and not may_be_pinned
            if is_plain and nbytes < OWN_FRAME_NBYTES and number not in self._gapped:
                # Under the GIL, and still less than what torch takes to copy a few.
                frames.add(string_at(self._starts[number], nbytes))
            else:
                self._copy(number, frames)

    def _copy(self, number: int, frames: Frames) -> None:
        tensor, nbytes = self._tensors[number], self._nbytes[number]
        if type(tensor) is DeviceArray:
            frames.add(self._stage(tensor.source), is_alone=True)
            return
        is_dense = number not in self._gapped
        device = device_of(self._heads[number])
        if device or is_pinned(tensor):
            flat = flat_bytes(tensor, is_dense=is_dense)
            frames.add(self._stage(flat), is_alone=device != 0)
        elif nbytes >= OWN_FRAME_NBYTES:
            frames.add(copy_of(raw_bits(tensor), is_dense=is_dense))
        else:
            raw = raw_bits(tensor)
            compact = raw if is_dense else raw.contiguous()
            frames.add(string_at(compact.data_ptr(), nbytes))

    def _hulls(self) -> list[_Hull]:
        starts, extents = self._starts, self._extents
        if self._devices:
            # No address of a device is one of another.
            devices = [device_of(head) << 64 for head in self._heads]
            starts = list(map(add, starts, devices))
        ends = list(map(add, starts, extents))
        numbers = [number for number, start in enumerate(self._starts) if start]
        return [self._hull(group) for group in overlapping(numbers, starts, ends)]

    def _hull(self, group: list[int]) -> _Hull:
        first = group[0]
        # Not the first byte of all, but one before that suits every dtype.
        base = storage_start(self._tensors[first])
        start = self._starts[first] - (self._starts[first] - base) % _ALIGNMENT
        nbytes = max(self._starts[n] + self._extents[n] for n in group) - start
        shown = sum(self._nbytes[number] for number in group)
        if nbytes > 2 * shown:
            if all(self._shows_the_same(first, number) for number in group):
                shape = self._tensors[first].shape
                return _Hull(
                    None,
                    self._nbytes[first],
                    [_View(number, row_major(shape), 0) for number in group],
                )
            raise TooFarApart(first, group[1], nbytes, shown)
        views = []
        for number in group:
            offset = self._starts[number] - start
            tensor = self._tensors[number]
            if offset % tensor.dtype.itemsize:
                raise TooFarApart(first, number, nbytes, shown)
            views.append(_View(number, tensor.stride(), offset))
        return _Hull(start, nbytes, views)

    def _shows_the_same(self, first: int, other: int) -> bool:
        a, b = self._tensors[first], self._tensors[other]
        return ((self._starts[first], a.shape, a.stride(), a.dtype.itemsize)) == (
            self._starts[other],
            b.shape,
            b.stride(),
            b.dtype.itemsize,
        )

    def _copy_hull(self, hull: _Hull, frames: Frames) -> None:
        first = hull.views[0].number
        if hull.start is None:
            self._copy(first, frames)
            return
        tensor, device = self._tensors[first], device_of(self._heads[first])
        pinned = any(is_pinned(self._tensors[view.number]) for view in hull.views)
        if device or pinned:
            flat = torch.empty(0, dtype=torch.uint8, device=tensor.device)
            at = hull.start - storage_start(tensor)
            flat.set_(tensor.untyped_storage(), at, (hull.nbytes,), (1,))
            frames.add(self._stage(flat), is_alone=device != 0)
        elif hull.nbytes < OWN_FRAME_NBYTES:
            frames.add(string_at(hull.start, hull.nbytes))
        else:
            here = (ctypes.c_char * hull.nbytes).from_address(hull.start)
            frames.add(copy_of(torch.frombuffer(here, dtype=torch.uint8)))

    def _with_hulls(self, hulls: Sequence[_Hull]) -> tuple[list[int], list[int]]:
        """Heads and numbers of a table in which some tensors are views of hulls."""
        heads = self._heads.copy()
        numbers: list[int] = []
        shared: dict[int, tuple[int, _View]] = {}
        for index, hull in enumerate(hulls):
            numbers += (hull.nbytes, device_of(heads[hull.views[0].number]))
            shared |= {view.number: (index, view) for view in hull.views}
        ends = [*self._places[1:], len(self._lengths)]
        for number, (place, end) in enumerate(zip(self._places, ends, strict=True)):
            if number not in shared:
                numbers += self._lengths[place:end]
                continue
            index, view = shared[number]
            heads[number] |= (SHARED | STRIDED) << 8
            numbers += (index, view.offset)
            numbers += self._tensors[number].shape
            numbers += view.strides
        return heads, numbers


class _View(NamedTuple):
    """A tensor in a hull.

    Args:
        number: Its number.
        strides: In elements.
        offset: Where it starts, in bytes.
    """

    number: int
    strides: Sequence[int]
    offset: int


class _Hull(NamedTuple):
    """A block that several tensors share.

    Args:
        start: Address of its first byte; None when all show the same elements, which
            are sent row by row.
        nbytes: Its size.
        views: The tensors, in the order of their addresses.
    """

    start: int | None
    nbytes: int
    views: list[_View]
