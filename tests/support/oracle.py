"""Which memory does a value hold: slowly, by recursion, sharing no code with rpcfut."""

from __future__ import annotations

import collections
import dataclasses
import functools
import types
from typing import Any

import attrs
import numpy as np
import torch
from torch.nn.utils.rnn import PackedSequence

from tests.support.types import InnerTensor


def blocks(value: Any) -> set[tuple[str, int]]:
    """Device and address of each block of memory in a value of known types."""
    found: set[tuple[str, int]] = set()
    _look(value, found, set(), [])
    return found


def _look(
    value: Any, found: set[tuple[str, int]], seen: set[int], kept: list[Any]
) -> None:
    if id(value) in seen:
        return
    seen.add(id(value))
    kept.append(value)
    if isinstance(value, torch.Tensor):
        _look_at_tensor(value, found)
    elif isinstance(value, torch.UntypedStorage):
        if value.nbytes():
            found.add(("cpu:0", value.data_ptr()))
    elif isinstance(value, np.ndarray):
        _look_at_array(value, found)
    for child in _children(value):
        _look(child, found, seen, kept)


def _look_at_array(array: Any, found: set[tuple[str, int]]) -> None:
    while isinstance(array.base, np.ndarray):
        array = array.base
    if array.size:
        found.add(("cpu:0", array.ctypes.data))


def _look_at_tensor(tensor: torch.Tensor, found: set[tuple[str, int]]) -> None:
    if isinstance(tensor, InnerTensor):
        dense = [tensor.inner]
    elif tensor.layout is torch.sparse_coo:
        dense = [tensor._indices(), tensor._values()]
    elif tensor.layout is torch.sparse_csr:
        dense = [tensor.crow_indices(), tensor.col_indices(), tensor.values()]
    else:
        dense = [tensor]
    if tensor.is_leaf and tensor.grad is not None:
        dense.append(tensor.grad)
    for part in dense:
        if part.untyped_storage().nbytes():
            pointer = part.untyped_storage().data_ptr()
            found.add((f"{part.device.type}:0", pointer))


def _children(value: Any) -> list[Any]:
    if isinstance(value, np.ndarray):
        return list(value.reshape(-1)) if value.dtype == object else []
    if isinstance(value, (dict, types.MappingProxyType)):
        children = [item for pair in value.items() for item in pair]
        if isinstance(value, collections.defaultdict):
            children.append(value.default_factory)
        return children + list(getattr(value, "__dict__", {}).values())
    if isinstance(value, PackedSequence):
        return [value[0], value[1], value[2], value[3]]
    if isinstance(value, (list, tuple, set, frozenset, collections.deque)):
        return list(value)
    return _children_of_object(value)


def _children_of_object(value: Any) -> list[Any]:
    match value:
        case slice():
            return [value.start, value.stop, value.step]
        case functools.partial():
            return [*value.args, *value.keywords.values()]
        case BaseException():
            return [*value.args, value.__cause__, value.__context__]
        case types.SimpleNamespace():
            return list(vars(value).values())
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return [getattr(value, field.name) for field in dataclasses.fields(value)]
    if attrs.has(type(value)):
        return [getattr(value, field.name) for field in attrs.fields(type(value))]
    return []
