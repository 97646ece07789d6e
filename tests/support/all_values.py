"""Values of every kind that travels, nested in any way; now and then one that does not.

Types of users are those of tests.support.types; `register_all` registers them.
"""

from __future__ import annotations

import math
from collections import Counter, OrderedDict, defaultdict, deque
from pathlib import PosixPath, PureWindowsPath
from typing import Any

import numpy as np
import torch
from hypothesis import strategies as st
from torch.nn.utils.rnn import pack_sequence

from rpcfut import register_type
from tests.support.tensor_table import TENSORS
from tests.support.types import (
    AttrsPair,
    Box,
    Colour,
    Corner,
    Derived,
    FrozenLayer,
    Grade,
    HidingPoint,
    Layer,
    Lazy,
    Level,
    Modes,
    OldPoint,
    Point,
    Rights,
    SlotRecord,
)
from tests.support.values import hashables, tensors
from tests.support.wire_table import REFUSED

_RECORDS: tuple[type, ...] = (
    *(AttrsPair, Box, Derived, FrozenLayer, HidingPoint, Lazy, Layer, OldPoint, Point),
    SlotRecord,
)
_ENUMS: tuple[Any, ...] = (Colour, Corner, Grade, Level, Modes, Rights)


def register_all() -> None:
    """Register the types of users that the values hold."""
    for kind in (*_RECORDS, *_ENUMS):
        register_type(kind)


_DTYPES = (
    *("?", "i1", "<u2", ">i4", "i8", "<f2", "f4", ">f8", "c8", ">c16"),
    *("<U3", ">U2", "S3", "<M8[us]", ">m8[3D]", "M8[D]"),
)
_FLAGS = st.integers(0, 5).map(Modes)


def _bits(dtype: Any, raw: bytes, shape: list[int]) -> Any:
    """An array of any bits that are values of the dtype."""
    if dtype.kind == "U":
        codes = np.frombuffer(raw, np.uint8).reshape(-1, 4)[:, 0].astype(np.uint32)
        raw = codes.astype(f"{dtype.str[0]}u4").tobytes()
    if dtype.kind == "b":
        raw = bytes(byte & 1 for byte in raw)
    return np.frombuffer(bytearray(raw), dtype).reshape(shape)


@st.composite
def arrays(draw: st.DrawFn) -> Any:
    """Any array of numbers, texts or times, viewed in any way."""
    dtype = np.dtype(draw(st.sampled_from(_DTYPES)))
    shape = draw(st.lists(st.integers(0, 4), max_size=4))
    nbytes = math.prod(shape) * dtype.itemsize
    array = _bits(dtype, draw(st.binary(min_size=nbytes, max_size=nbytes)), shape)
    for _ in range(draw(st.integers(0, 2))):
        way = draw(st.sampled_from(("axes", "step", "back", "row", "frozen")))
        if way == "axes":
            array = array.transpose(draw(st.permutations(range(array.ndim))))
        elif way == "frozen":
            array.flags.writeable = False
        elif array.ndim:
            cut = {"step": slice(None, None, 2), "back": slice(None, None, -1)}
            array = array[cut.get(way, slice(1, None))]
    return array


@st.composite
def scalars_of_numpy(draw: st.DrawFn) -> Any:
    """Any NumPy scalar."""
    dtype = np.dtype(draw(st.sampled_from(_DTYPES)))
    raw = draw(st.binary(min_size=dtype.itemsize, max_size=dtype.itemsize))
    return _bits(dtype, raw, [1])[0]


def _parameter(tensor: torch.Tensor) -> torch.nn.Parameter:
    is_float = tensor.is_floating_point() or tensor.is_complex()
    return torch.nn.Parameter(tensor.resolve_conj(), requires_grad=is_float)


def _state_dict(value: dict[str, Any], metadata: Any) -> Any:
    made: Any = OrderedDict(value)
    made._metadata = metadata
    return made


# What is not dense elements of any bits.
_SPECIAL = [
    make
    for name, make in TENSORS.items()
    if not name.startswith(("torch.", "large", "empty"))
]
_names = st.text(st.characters(codec=None), max_size=4)
keys = st.one_of(
    hashables,
    st.sampled_from([*Colour, *Corner, *Grade, *Level, *Rights]),
    _FLAGS,
    st.builds(PosixPath, st.text("ab/.\udc80", max_size=6)),
    st.builds(PureWindowsPath, st.text("ab.", max_size=6), st.text("ab. ")),
    st.sampled_from([torch.strided, torch.channels_last, torch.device("cuda:1")]),
    st.builds(Point, hashables, hashables),
    st.floats().map(np.float64),
    st.integers(-128, 127).map(np.int8),
)
_leaves = st.one_of(
    keys,
    tensors(),
    tensors().map(_parameter),
    st.sampled_from(_SPECIAL).map(lambda make: make()),
    arrays(),
    scalars_of_numpy(),
    st.binary(max_size=9).map(bytearray),
    st.integers(0, 255).map(lambda byte: bytes([byte]) * 70_001),
    st.integers(0, 255).map(lambda byte: bytearray([byte]) * 70_001),
    st.just(NotImplemented),
    st.decimals(),
    st.integers(1, 3).map(lambda n: torch.max(torch.eye(n), 0)),
    st.lists(st.integers(1, 3), min_size=1, max_size=3).map(
        lambda sizes: pack_sequence([torch.ones(n) for n in sorted(sizes)[::-1]])
    ),
)


def _larger(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    lists = st.lists(inner, max_size=4)
    named = st.dictionaries(_names, inner, max_size=4)
    keyed = st.dictionaries(keys, inner, max_size=4)
    factories = st.sampled_from([None, int, list, dict])
    return st.one_of(
        *(lists, lists.map(tuple), named, keyed),
        st.sets(keys, max_size=4),
        st.frozensets(keys, max_size=4),
        st.builds(deque, lists, st.integers(4, 5) | st.none()),
        keyed.map(OrderedDict),
        st.builds(_state_dict, named, named),
        st.builds(defaultdict, factories, keyed),
        st.dictionaries(keys, st.integers(), max_size=3).map(Counter),
        st.builds(slice, inner, inner, inner),
        st.builds(Layer, inner, inner),
        st.builds(FrozenLayer, inner, inner),
        st.builds(AttrsPair, inner, inner),
        st.builds(SlotRecord, inner),
        st.builds(Lazy, inner),
        st.builds(Derived, st.integers()),
        st.builds(lambda item: Box[int](item), inner),
        st.builds(Point, inner, inner),
        st.builds(OldPoint, inner, inner),
        st.builds(HidingPoint, inner, inner),
    )


supported = st.recursive(_leaves, _larger, max_leaves=10)
# Registered types aside: theirs are all registered.
_refused = st.sampled_from(
    [row for row in REFUSED if "registered" not in row.kind]
).flatmap(lambda row: st.sampled_from(row.make()))
_spoilt = st.one_of(
    st.tuples(supported, _refused),
    st.builds(lambda key, value: {key: [value]}, _names, _refused),
    st.builds(Layer, supported, _refused.map(lambda value: [value])),
    st.builds(Point, supported, _refused.map(lambda value: {"x": value})),
)
# A value, and whether it travels; about one of 20 does not.
mixed = st.integers(0, 20).flatmap(
    lambda n: st.tuples(_spoilt if n == 7 else supported, st.just(n != 7))
)
