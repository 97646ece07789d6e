"""The walk finds what a slow one with other code finds (EXT-1, EXT-4, EXT-6)."""

from __future__ import annotations

import functools
import types
from collections import Counter, OrderedDict, defaultdict, deque
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch.nn.utils.rnn import pack_sequence

from rpcfut._extract import extract
from tests.support.oracle import blocks
from tests.support.types import (
    AttrsPair,
    FrozenLayer,
    InnerTensor,
    Layer,
    OddError,
    OldPoint,
    Point,
)
from tests.support.values import hashables


def _with_grad(length: int) -> torch.Tensor:
    leaf = torch.ones(length, requires_grad=True)
    leaf.grad = torch.zeros(length)
    return leaf


class Shown(InnerTensor):
    """One that a failing example can print."""

    def __repr__(self, **_options: object) -> str:
        return f"Shown({self.inner!r})"


SHARED = torch.arange(12.0)
ARRAY = np.arange(12.0)
_sizes = st.integers(0, 4)
_memory = st.one_of(
    st.builds(torch.ones, _sizes),
    st.builds(_with_grad, _sizes),
    st.builds(lambda n: torch.nn.Parameter(torch.ones(n)), _sizes),
    st.builds(lambda n: SHARED[n:], _sizes),
    st.builds(lambda n: torch.eye(n + 1).to_sparse(), _sizes),
    st.builds(lambda n: torch.eye(n + 1).to_sparse_csr(), _sizes),
    st.builds(lambda n: Shown(torch.ones(n + 1)), _sizes),
    st.builds(lambda n: torch.ones(n).untyped_storage(), _sizes),
    st.builds(lambda n: torch.max(torch.eye(n + 1), 0), _sizes),
    st.builds(lambda n: pack_sequence([torch.ones(n + 1)]), _sizes),
    st.builds(np.ones, _sizes),
    st.builds(lambda n: ARRAY[:: n + 1], _sizes),
    st.builds(lambda n: ARRAY[n::-1], _sizes),
)


def _caused(error: BaseException, cause: object) -> BaseException:
    error.__cause__ = OddError(cause)
    return error


def _objects(items: list[Any]) -> np.ndarray:
    array = np.empty(len(items), dtype=object)
    for number, item in enumerate(items):
        array[number] = item
    return array


def _nest(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    many = st.lists(inner, max_size=4)
    return st.one_of(
        many,
        many.map(tuple),
        many.map(deque),
        many.map(lambda items: [items, items, *items]),
        many.map(lambda items: (items.append(items), items)[1]),
        many.map(_objects),
        st.lists(_memory.filter(lambda m: m.__hash__), max_size=3).map(
            lambda items: {id(item): item for item in items}
        ),
        st.dictionaries(hashables, inner, max_size=3),
        st.dictionaries(hashables, inner, max_size=3).map(OrderedDict),
        st.dictionaries(st.text(max_size=2), inner, max_size=3).map(
            types.MappingProxyType
        ),
        st.builds(
            lambda d, x: defaultdict(functools.partial(list, x), d),
            st.dictionaries(hashables, inner, max_size=2),
            inner,
        ),
        st.builds(lambda x: Counter({"a": x}), inner),
        st.builds(lambda n: {torch.ones(n), frozenset([torch.ones(n)])}, _sizes),
        st.builds(Layer, inner, inner),
        st.builds(FrozenLayer, inner),
        st.builds(AttrsPair, inner, inner),
        st.builds(Point, inner, inner),
        st.builds(OldPoint, inner, inner),
        st.builds(slice, inner, inner, inner),
        st.builds(lambda x: types.SimpleNamespace(a=x), inner),
        st.builds(lambda x, y: functools.partial(max, x, key=y), inner, inner),
        st.builds(lambda x, y: _caused(ValueError(x), y), inner, inner),
    )


values = st.recursive(st.one_of(hashables, _memory), _nest, max_leaves=12)


def _check(count: int) -> None:
    settings(
        max_examples=count, deadline=None, suppress_health_check=list(HealthCheck)
    )(given(values)(_agrees))()


def _agrees(value: Any) -> None:
    refs = extract(value)
    found = [(str(ref.device), ref.pointer) for ref in refs]
    assert len(found) == len(set(found))
    assert set(found) == blocks(value)


@pytest.mark.filterwarnings("ignore:Sparse .* tensor support is in beta")
def test_both_find_the_same_memory() -> None:
    _check(200)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:Sparse .* tensor support is in beta")
@pytest.mark.timeout(180)
def test_both_find_the_same_memory_in_3000_values() -> None:
    _check(3000)
