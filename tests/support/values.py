"""Values of the types that travel without being registered."""

from __future__ import annotations

import datetime as dt
import math
import re
from collections import Counter, OrderedDict, defaultdict, deque
from pathlib import PurePosixPath
from typing import Any

import torch
from hypothesis import strategies as st

from rpcfut._dtypes import DTYPES

# torch cannot print the others, and hypothesis would.
PRINTABLE = [dtype for dtype in DTYPES if not re.search(r"int[1-7]$", str(dtype))]

_ZONES = st.one_of(
    st.none(),
    st.just(dt.UTC),
    st.builds(lambda m: dt.timezone(dt.timedelta(minutes=m)), st.integers(-1439, 1439)),
)

hashables = st.recursive(
    st.one_of(
        st.none(),
        st.booleans(),
        st.integers(),
        st.integers(-(2**70), 2**70),
        st.floats(),
        st.text(st.characters(codec=None), max_size=8),
        st.binary(max_size=8),
        st.complex_numbers(),
        st.decimals().filter(lambda d: not d.is_snan()),  # has no hash
        st.fractions(),
        st.uuids(),
        st.dates(),
        st.datetimes(timezones=_ZONES),
        st.times(timezones=_ZONES),
        st.timedeltas(),
        st.builds(range, st.integers(), st.integers(), st.integers(1, 9)),
        st.builds(PurePosixPath, st.text("ab/.", max_size=6)),
        st.sampled_from(DTYPES),
        st.builds(torch.Size, st.lists(st.integers(0, 9), max_size=3)),
        st.just(...),
    ),
    lambda inner: st.one_of(
        st.lists(inner, max_size=3).map(tuple), st.frozensets(inner, max_size=3)
    ),
    max_leaves=5,
)


@st.composite
def tensors(draw: st.DrawFn) -> torch.Tensor:
    """Any dense tensor, viewed in any way, with any bits."""
    dtype = draw(st.sampled_from(PRINTABLE))
    shape = draw(st.lists(st.integers(0, 4), max_size=4))
    nbytes = math.prod(shape) * dtype.itemsize
    raw = draw(st.binary(min_size=nbytes, max_size=nbytes))
    if dtype is torch.bool:
        raw = bytes(byte & 1 for byte in raw)
    flat = torch.frombuffer(bytearray(raw or b"0"), dtype=torch.uint8)
    tensor = flat[:nbytes].view(dtype).view(shape)
    for _ in range(draw(st.integers(0, 2))):
        tensor = draw(st.sampled_from(_VIEWS))(tensor)
    return tensor


_VIEWS: list[Any] = [
    lambda t: t,
    lambda t: t.permute(list(reversed(range(t.dim())))),
    lambda t: t[::2] if t.dim() else t,
    lambda t: t.unsqueeze(0),
    lambda t: t.unsqueeze(-1).expand(*t.shape, 3),
    lambda t: t[..., 1:] if t.dim() else t,
    lambda t: t.conj() if t.dtype in {torch.complex64, torch.complex128} else t,
]

values = st.recursive(
    st.one_of(hashables, tensors(), st.binary(max_size=9).map(bytearray)),
    lambda inner: st.one_of(
        st.lists(inner, max_size=4),
        st.lists(inner, max_size=4).map(tuple),
        st.dictionaries(st.text(max_size=4), inner, max_size=4),
        st.dictionaries(hashables, inner, max_size=4),
        st.sets(hashables, max_size=4),
        st.builds(deque, st.lists(inner, max_size=3), st.integers(3, 5)),
        st.lists(st.tuples(hashables, inner), max_size=3).map(OrderedDict),
        st.dictionaries(hashables, inner, max_size=3).map(
            lambda d: defaultdict(list, d)
        ),
        st.builds(Counter, st.lists(st.text(max_size=2), max_size=5)),
        st.builds(slice, inner, inner, inner),
    ),
    max_leaves=12,
)
