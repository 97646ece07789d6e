"""Tensors that are made of dense ones <-> a kind and parts (RPC-9).

Sparse, quantised and nested tensors. Their parts are values, among them dense tensors,
which travel like any others; so memory that two of them share is shared on arrival.
Nothing that a kernel would follow, an index or an offset, is believed: it is checked on
the host before it is used.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable
from typing import Any, Final, TypeAlias

import torch

from rpcfut._dtypes import QUANTISED
from rpcfut._tensor_copies import is_dense_strided
from rpcfut._tensor_rules import attribute_refusal

# The elements of a dense tensor on the host, as they came.
OnHost: TypeAlias = Callable[[torch.Tensor], torch.Tensor]

_COMPRESSED: Final = {
    torch.sparse_csr: ("crow_indices", "col_indices"),
    torch.sparse_bsr: ("crow_indices", "col_indices"),
    torch.sparse_csc: ("ccol_indices", "row_indices"),
    torch.sparse_bsc: ("ccol_indices", "row_indices"),
}
_LAYOUT_OF: Final = {str(layout): layout for layout in _COMPRESSED}
_LEAF: Final = 1
_PARAMETER: Final = 2
_PER_CHANNEL: Final = frozenset(
    {torch.per_channel_affine, torch.per_channel_affine_float_qparams}
)
_SEVERAL_IN_A_BYTE: Final = {torch.quint4x2: 2, torch.quint2x4: 4}
# What holds the numbers of a quantised tensor.
_HOLDERS: Final = {
    torch.qint8: torch.int8,
    torch.quint8: torch.uint8,
    torch.qint32: torch.int32,
    torch.quint4x2: torch.uint8,
    torch.quint2x4: torch.uint8,
}
_INDICES: Final = frozenset({torch.int32, torch.int64})


def is_jagged(kind: type) -> bool:
    """Whether this is torch's class of nested tensors with the jagged layout."""
    module = sys.modules.get("torch.nested._internal.nested_tensor")
    return module is not None and kind is getattr(module, "NestedTensor", None)


def is_made_of_tensors(tensor: torch.Tensor) -> bool:
    """Whether a tensor is sent as `split_layout` says, not as elements."""
    return tensor.layout is not torch.strided or tensor.is_quantized or tensor.is_nested


def split_layout(tensor: torch.Tensor) -> list[Any]:
    """Take a tensor apart: a kind, flags, and parts.

    Raises:
        TypeError: When it cannot travel; says why, and the way out.
    """
    reason = _refusal(tensor)
    if reason is not None:
        raise TypeError(reason)
    flags = _LEAF if tensor.requires_grad else 0
    flags |= _PARAMETER if type(tensor) is torch.nn.Parameter else 0
    plain = tensor.detach()
    if is_jagged(type(plain)):
        kind, parts = "jagged", _split_jagged(plain)
    elif plain.is_nested:
        kind, parts = "nested", list(plain.unbind())
    elif plain.is_quantized:
        kind, parts = "quantised", _split_quantised(plain)
    elif plain.layout is torch.sparse_coo:
        is_coalesced = tensor.is_coalesced()
        parts = [is_coalesced, tensor.shape, plain._indices(), plain._values()]  # noqa: SLF001 - the public ones refuse what is not coalesced
        kind = "sparse"
    else:
        names = _COMPRESSED[plain.layout]
        indices = [getattr(plain, name)() for name in names]
        parts = [str(plain.layout), tensor.shape, *indices, plain.values()]
        kind = "compressed"
    return [kind, flags, *parts]


def _refusal(tensor: torch.Tensor) -> str | None:
    if tensor.requires_grad and not tensor.is_leaf:
        return "is part of an autograd graph, which stays here; send x.detach()"
    is_sparse = tensor.layout is torch.sparse_coo or tensor.layout in _COMPRESSED
    if not (is_sparse or tensor.is_quantized or tensor.is_nested):
        return f"has layout {tensor.layout}, which cannot travel; send x.to_dense()"
    if tensor.is_meta:
        return (
            "is on the meta device and has no data, and is not dense; send its shape "
            "and dtype"
        )
    if tensor.is_quantized and tensor.dtype not in QUANTISED:
        return f"has dtype {tensor.dtype}, which cannot travel; send x.dequantize()"
    return attribute_refusal(tensor)


def join_layout(parts: list[Any], on_host: OnHost) -> torch.Tensor:
    """Make the tensor of its parts, which are not trusted.

    Args:
        parts: What `split_layout` made.
        on_host: Gives the elements of a dense tensor where they can be checked.

    Raises:
        ValueError: When they make no sense; also another of the errors that such parts
            cause.
    """
    kind, flags, *rest = parts
    if type(flags) is not int or not 0 <= flags <= _LEAF | _PARAMETER:
        raise ValueError(f"flags {flags!r}")
    with torch.no_grad():
        made = _JOINERS[kind](rest, on_host)
    needs_grad = bool(flags & _LEAF)
    if flags & _PARAMETER:
        return torch.nn.Parameter(made, requires_grad=needs_grad)
    return made.requires_grad_() if needs_grad else made


def _require_plain(*tensors: object) -> None:
    for tensor in tensors:
        is_plain = type(tensor) is torch.Tensor and tensor.layout is torch.strided
        if not is_plain or tensor.is_meta or tensor.requires_grad:  # type: ignore[attr-defined] # a tensor, see is_plain
            raise ValueError("a part that is no dense tensor without a gradient")


def _require_size(shape: object) -> torch.Size:
    if type(shape) is not torch.Size:
        raise ValueError("a shape that is none")
    return shape


def _join_sparse(parts: list[Any], on_host: OnHost) -> torch.Tensor:
    is_coalesced, shape, indices, values = parts
    _require_plain(indices, values)
    if type(is_coalesced) is not bool:
        raise ValueError("is_coalesced is no bool")

    def make(indices: torch.Tensor, values: torch.Tensor, check: bool) -> torch.Tensor:  # noqa: FBT001 - of the next lines only
        return torch.sparse_coo_tensor(
            indices,
            values,
            _require_size(shape),
            is_coalesced=is_coalesced,
            check_invariants=check,
        )

    if indices.dtype != torch.int64:
        raise ValueError(f"indices of {indices.dtype}")
    host = make(on_host(indices), on_host(values), True)  # noqa: FBT003 - as above
    return host if values.is_cpu else make(indices, values, False)  # noqa: FBT003 - as above


def _join_compressed(parts: list[Any], on_host: OnHost) -> torch.Tensor:
    text, shape, compressed, plain, values = parts
    _require_plain(compressed, plain, values)
    layout = _LAYOUT_OF[text]

    host = torch.sparse_compressed_tensor(
        on_host(compressed),
        on_host(plain),
        on_host(values),
        _require_size(shape),
        layout=layout,
        check_invariants=True,
    )
    if values.is_cpu:
        return host
    return torch.sparse_compressed_tensor(
        compressed, plain, values, shape, layout=layout, check_invariants=False
    )


def _split_jagged(tensor: Any) -> list[Any]:
    return [
        tensor._ragged_idx,  # noqa: SLF001 - has no public name
        tensor._values,  # noqa: SLF001 - the public one copies
        tensor.offsets(),
        tensor.lengths(),
    ]


def _join_jagged(parts: list[Any], on_host: OnHost) -> torch.Tensor:
    ragged, values, offsets, lengths = parts
    _require_plain(values, offsets, *([] if lengths is None else [lengths]))
    if type(ragged) is not int or not 1 <= ragged <= values.dim():
        raise ValueError(f"ragged dimension {ragged!r}")
    ends = on_host(offsets)
    if ends.dtype not in _INDICES or ends.dim() != 1 or not ends.numel():
        raise ValueError("offsets that are no row of numbers")
    starts, sizes = ends[:-1], ends.diff()
    if lengths is not None:
        sizes = on_host(lengths)
        if sizes.dtype not in _INDICES or sizes.shape != starts.shape:
            raise ValueError("lengths that are not one for each offset")
    reach = values.shape[ragged - 1]
    bounds = torch.cat([starts, sizes, starts + sizes, ends[-1:], ends.diff()])
    if int(bounds.min()) < 0 or int(bounds.max()) > reach:
        raise ValueError(f"offsets beyond {reach}")
    made: torch.Tensor = torch.nested.nested_tensor_from_jagged(
        values, offsets, lengths, jagged_dim=ragged
    )
    return made


def _join_nested(parts: list[Any], _: OnHost) -> torch.Tensor:
    _require_plain(*parts)
    return torch.nested.as_nested_tensor(parts, layout=torch.strided)


def _split_quantised(tensor: torch.Tensor) -> list[Any]:
    dtype, shape, strides = tensor.dtype, tensor.shape, tensor.stride()
    share = _SEVERAL_IN_A_BYTE.get(dtype, 1)
    holder = _HOLDERS[dtype]
    if not is_dense_strided(shape, strides) and tensor.numel():
        tensor = tensor.contiguous()
        strides = tensor.stride()
    if share > 1 and not (tensor.is_contiguous() and tensor.storage_offset() == 0):
        raise TypeError(
            f"is a view of a tensor of {dtype}, which packs several numbers into a "
            "byte; send x.clone()"
        )
    raw = torch.empty(0, dtype=holder, device=tensor.device)
    storage = tensor.untyped_storage()
    if share > 1:
        raw.set_(storage, 0, (_packed_nbytes(shape, share),), (1,))
    else:
        raw.set_(storage, tensor.storage_offset(), shape, strides)
    return [dtype, shape, raw, *_split_quantiser(tensor)]


def _packed_nbytes(shape: torch.Size, share: int) -> int:
    # torch packs the last dimension alone, so each row starts with a byte of its own.
    if not shape:
        return 1
    return math.prod(shape[:-1]) * -(-shape[-1] // share)


def _split_quantiser(tensor: torch.Tensor) -> list[Any]:
    if tensor.qscheme() in _PER_CHANNEL:
        scales, zeros = (
            tensor.q_per_channel_scales(),
            tensor.q_per_channel_zero_points(),
        )
        return [scales, zeros, tensor.q_per_channel_axis()]
    if tensor.qscheme() is torch.per_tensor_affine:
        return [tensor.q_scale(), tensor.q_zero_point(), None]
    raise TypeError(
        f"is quantised by {tensor.qscheme()}, which cannot travel; send x.dequantize()"
    )


def _crashes(dtype: torch.dtype, zero_points: torch.Tensor) -> bool:
    """Whether torch has no kernel for such a tensor, and does not check."""
    return dtype is torch.qint32 and zero_points.is_floating_point()


def _join_quantised(parts: list[Any], on_host: OnHost) -> torch.Tensor:
    dtype, shape, raw, scale, zero, axis = parts
    _require_plain(raw)
    share = _SEVERAL_IN_A_BYTE.get(dtype, 1)
    _require_size(shape)
    if raw.dtype != _HOLDERS[dtype]:
        raise ValueError(f"{dtype} held as {raw.dtype}")
    if share > 1:
        is_whole = raw.dim() == 1 and raw.numel() == _packed_nbytes(shape, share)
    else:
        is_whole = raw.shape == shape
    if not is_whole:
        raise ValueError(f"shape {shape} held as {raw.shape}")
    made = _empty_quantised(shape, dtype, (scale, zero, axis), raw.device, on_host)
    if share > 1:
        strides = torch.empty(shape, device="meta").stride()
        return made.set_(raw.untyped_storage(), 0, shape, strides)
    return made.set_(raw.untyped_storage(), raw.storage_offset(), shape, raw.stride())


def _empty_quantised(
    shape: torch.Size,
    dtype: torch.dtype,
    quantiser: tuple[Any, Any, Any],
    device: torch.device,
    on_host: OnHost,
) -> torch.Tensor:
    scale, zero, axis = quantiser
    none: list[int] = [0] * len(shape)
    if axis is None:
        if type(scale) is not float or type(zero) is not int:
            raise ValueError("a scale or zero point that is no number")
        limits = torch.iinfo(_HOLDERS[dtype])
        if not limits.min <= zero <= limits.max:
            raise ValueError(f"zero point {zero} for {dtype}")
        return torch._empty_affine_quantized(  # noqa: SLF001 - has no public name
            none, scale=scale, zero_point=zero, dtype=dtype, device=device
        )
    _require_plain(scale, zero)
    if type(axis) is not int or not 0 <= axis < len(shape):
        raise ValueError(f"axis {axis!r}")
    for each in (scale, zero):
        if on_host(each).shape != (shape[axis],):
            raise ValueError(f"{tuple(each.shape)} scales for shape {shape}")
    if _crashes(dtype, zero):
        raise ValueError(f"zero points of {zero.dtype} for {dtype}")
    none[axis] = shape[axis]
    return torch._empty_per_channel_affine_quantized(  # noqa: SLF001 - as above
        none,
        scales=scale,
        zero_points=zero,
        axis=axis,
        dtype=dtype,
        device=device,
    )


_JOINERS: Final[dict[str, Callable[[list[Any], OnHost], torch.Tensor]]] = {
    "sparse": _join_sparse,
    "compressed": _join_compressed,
    "jagged": _join_jagged,
    "nested": _join_nested,
    "quantised": _join_quantised,
}
