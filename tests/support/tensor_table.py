"""Tensors of every dtype, layout and flag, and what each keeps on the wire (RPC-9).

Each row is a name and a function that makes the tensor. `looks` says all that must be
the same on arrival.
"""

from __future__ import annotations

import math
import struct
import warnings
from collections.abc import Callable
from typing import Any, Final

import torch

from rpcfut._dtypes import DTYPES
from tests.support.exact import bits

Make = Callable[[], torch.Tensor]


def looks(tensor: Any) -> tuple[object, ...]:
    """All that must be the same on arrival, bit by bit.

    Elements with gaps between them arrive row by row.
    """
    head = (
        *(type(tensor), tensor.dtype, tensor.layout, tensor.device),
        *(tensor.requires_grad, tensor.is_leaf, tensor.is_nested, tensor.is_quantized),
    )
    plain = tensor.detach()
    if tensor.is_nested:
        parts = [looks(part) for part in plain.unbind()]
        return (*head, getattr(plain, "_ragged_idx", None), *parts)
    head = (*head, tensor.shape)
    if tensor.layout is torch.sparse_coo:
        parts = [looks(plain._indices()), looks(plain._values())]
        return (*head, tensor.is_coalesced(), *parts)
    if tensor.layout in {torch.sparse_csr, torch.sparse_bsr}:
        parts = [looks(plain.crow_indices()), looks(plain.col_indices())]
        return (*head, *parts, looks(plain.values()))
    if tensor.layout in {torch.sparse_csc, torch.sparse_bsc}:
        parts = [looks(plain.ccol_indices()), looks(plain.row_indices())]
        return (*head, *parts, looks(plain.values()))
    if tensor.is_quantized:
        return (*head, plain.stride(), *_numbers_of_quantised(plain))
    is_kept = _is_dense(plain) or plain.is_meta
    row_by_row = torch.empty(plain.shape, device="meta").stride()
    strides = plain.stride() if is_kept else row_by_row
    lazy = (tensor.is_conj(), tensor.is_neg())
    return (*head, strides, *lazy, b"" if tensor.is_meta else bits(plain))


def _numbers_of_quantised(plain: torch.Tensor) -> tuple[object, ...]:
    numbers = bits(plain.int_repr())
    if plain.qscheme() is torch.per_tensor_affine:
        return (numbers, struct.pack("d", plain.q_scale()), plain.q_zero_point())
    scales, zeros = plain.q_per_channel_scales(), plain.q_per_channel_zero_points()
    return (numbers, looks(scales), looks(zeros), plain.q_per_channel_axis())


def _is_dense(tensor: torch.Tensor) -> bool:
    step = 1
    for stride, length in sorted(zip(tensor.stride(), tensor.shape, strict=True)):
        if length != 1 and stride != step:
            return False
        step *= length
    return tensor.numel() > 0


def _of(dtype: torch.dtype) -> torch.Tensor:
    raw = torch.arange(7, 7 + 4 * 6 * dtype.itemsize, dtype=torch.uint8)
    raw = raw % 2 if dtype is torch.bool else raw * 37
    return raw.view(dtype).view(4, 6)


def _quiet(make: Make) -> Make:
    def quiet() -> torch.Tensor:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return make()

    return quiet


_COMPLEX = torch.tensor([1 + 2j, -0.0 - 0j, complex(math.nan, math.inf)])


def _nan_payloads() -> torch.Tensor:
    raw = struct.pack("<3Q", 0x7FF0_DEAD_BEEF_0001, 0xFFF8 << 48, 1 << 63)
    return torch.frombuffer(bytearray(raw), dtype=torch.float64)


def _per_channel(dtype: torch.dtype, kind: torch.dtype) -> Make:
    def make() -> torch.Tensor:
        scales = torch.tensor([0.1, 0.25, 0.5])
        zeros = torch.tensor([1, 0, 2], dtype=kind)
        values = torch.arange(15.0).view(3, 5) / 4
        return torch.quantize_per_channel(values, scales, zeros, 0, dtype)

    return _quiet(make)


def _per_tensor(dtype: torch.dtype) -> Make:
    values = torch.arange(12.0).view(3, 4) / 4
    return _quiet(lambda: torch.quantize_per_tensor(values, 0.1, 3, dtype))


def _sparse(layout: torch.layout, block: tuple[int, int] | None) -> Make:
    dense = torch.eye(4) + torch.eye(4).roll(1, 0)
    return _quiet(lambda: dense.to_sparse(layout=layout, blocksize=block))


def _nested(layout: torch.layout, **options: Any) -> Make:
    parts = [torch.arange(6.0).view(2, 3), torch.arange(9.0).view(3, 3)]
    return _quiet(lambda: torch.nested.nested_tensor(parts, layout=layout, **options))


def _with_lengths() -> torch.Tensor:
    values = torch.arange(24.0).view(8, 3)
    offsets, lengths = torch.tensor([0, 3, 8]), torch.tensor([2, 4])
    return torch.nested.nested_tensor_from_jagged(values, offsets, lengths)


def _uncoalesced() -> torch.Tensor:
    return torch.sparse_coo_tensor([[0, 0, 2]], [1.0, 2.0, 3.0], (4,))


def _hybrid() -> torch.Tensor:
    return torch.sparse_coo_tensor([[0, 2]], torch.randn(2, 3), (4, 3))


_VIEWS: Final[dict[str, Callable[[torch.Tensor], torch.Tensor]]] = {
    "as it is": lambda t: t,
    "transposed": lambda t: t.t(),
    "every other column": lambda t: t[:, ::2],
    "row 1": lambda t: t[1],
    "one element": lambda t: t[2, 3],
    "no element": lambda t: t[:0],
    "expanded": lambda t: t[:1].expand(3, 6),
}

TENSORS: Final[dict[str, Make]] = {
    **{
        f"{dtype}, {name}": lambda dtype=dtype, view=view: view(_of(dtype))
        for dtype in DTYPES
        for name, view in _VIEWS.items()
    },
    "NaNs with payloads, a negative zero": _nan_payloads,
    "channels_last": lambda: torch.randn(2, 3, 4, 5).to(
        memory_format=torch.channels_last
    ),
    "channels_last_3d": lambda: torch.randn(2, 3, 4, 5, 6).to(
        memory_format=torch.channels_last_3d
    ),
    "one channel": lambda: torch.randn(2, 1, 4, 5).to(
        memory_format=torch.channels_last
    ),
    "windows": lambda: torch.arange(5.0).unfold(0, 3, 1),
    "flipped": lambda: torch.arange(10.0).flip(0),
    "diagonal": lambda: torch.eye(3).diagonal(),
    "no dimension": lambda: torch.tensor(3.5),
    "empty": lambda: torch.empty(2, 0, 3),
    "empty, transposed": lambda: torch.empty(0, 3).t(),
    "large": lambda: torch.randn(300, 1000),
    "large, transposed": lambda: torch.randn(300, 1000).t(),
    "large, with gaps": lambda: torch.randn(300, 1000)[:, ::3],
    "large, conjugated": lambda: torch.randn(99, 999, dtype=torch.complex64).conj(),
    "conjugated": lambda: _COMPLEX.conj(),
    "conjugated, with gaps": lambda: torch.randn(6, dtype=torch.complex128).conj()[::2],
    "negated": lambda: _COMPLEX.conj().imag,
    "leaf": lambda: torch.ones(3, requires_grad=True),
    "leaf, transposed": lambda: torch.randn(3, 4).t().requires_grad_(),
    "parameter": lambda: torch.nn.Parameter(torch.ones(3)),
    "parameter, frozen": lambda: torch.nn.Parameter(torch.ones(3), requires_grad=False),
    "parameter of ints": lambda: torch.nn.Parameter(
        torch.arange(3), requires_grad=False
    ),
    "meta": lambda: torch.empty(3, 4, device="meta"),
    "meta, with gaps": lambda: torch.empty(3, 4, device="meta")[:, ::2],
    "meta parameter": lambda: torch.nn.Parameter(torch.empty(3, device="meta")),
    "sparse": lambda: torch.eye(3).to_sparse(),
    "sparse, uncoalesced": _quiet(_uncoalesced),
    "sparse, hybrid": _quiet(_hybrid),
    "sparse, empty": _quiet(lambda: torch.sparse_coo_tensor(size=(3, 0))),
    "sparse, nothing in it": lambda: torch.zeros(3, 3).to_sparse(),
    "sparse leaf": lambda: torch.eye(3).to_sparse().requires_grad_(),
    "sparse parameter": lambda: torch.nn.Parameter(torch.eye(3).to_sparse()),
    "csr": _sparse(torch.sparse_csr, None),
    "csc": _sparse(torch.sparse_csc, None),
    "bsr": _sparse(torch.sparse_bsr, (2, 2)),
    "bsc": _sparse(torch.sparse_bsc, (2, 2)),
    "csr, batched": _quiet(lambda: torch.ones(2, 3, 3).to_sparse_csr()),
    "nested": _nested(torch.strided),
    "nested leaf": _nested(torch.strided, requires_grad=True),
    "jagged": _nested(torch.jagged),
    "jagged leaf": _nested(torch.jagged, requires_grad=True),
    "jagged, transposed": _quiet(lambda: _nested(torch.jagged)().transpose(1, 2)),
    "jagged, with lengths": _quiet(_with_lengths),
    **{
        f"{dtype} by tensor": _per_tensor(dtype)
        for dtype in (torch.qint8, torch.quint8, torch.qint32)
    },
    "quint8 by tensor, transposed": _quiet(lambda: _per_tensor(torch.quint8)().t()),
    "quint8 by tensor, with gaps": _quiet(
        lambda: _per_tensor(torch.quint8)()[:, ::2].contiguous()
    ),
    **{
        f"{dtype} by channel": _per_channel(dtype, torch.int64)
        for dtype in (torch.qint8, torch.quint8, torch.qint32)
    },
    **{
        f"{dtype} by channel": _per_channel(dtype, torch.float32)
        for dtype in (torch.quint4x2, torch.quint2x4)
    },
}
