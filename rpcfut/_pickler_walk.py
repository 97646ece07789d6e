"""Find memory by pickling an object to nowhere: slow, and only on demand.

Theory of operation: a pickler asks `persistent_id` about every object that it meets.
The answer for memory is "yes, leave it to me", and what is left to us is the list of
parts. Nothing is kept of what the pickler writes, and nothing here can unpickle: this
is the one module that may import from pickle, and it takes the pickler only (RPC-10).
"""

from __future__ import annotations

from pickle import Pickler
from typing import TYPE_CHECKING, Any

import torch

from rpcfut._memory import numpy_array_type

if TYPE_CHECKING:
    from collections.abc import Callable


class _Nowhere:
    """A file that forgets."""

    def write(self, data: Any) -> int:
        return len(data)


class _Finder(Pickler):
    """Collects what an object holds; owner thread only.

    Args:
        root: The object.
        has_extractor: Whether objects of a type are to be left to their extractor.
    """

    def __init__(self, root: object, has_extractor: Callable[[type], bool]) -> None:
        # Arrays hand out their bytes instead of copying them (EXT-8).
        super().__init__(_Nowhere(), protocol=5, buffer_callback=lambda _: None)
        self._root = root
        self._has_extractor = has_extractor
        self.found: list[object] = []

    def persistent_id(self, part: Any) -> object:
        if part is self._root or not self._is_memory(type(part)):
            return None
        self.found.append(part)
        return len(self.found)

    def _is_memory(self, kind: type) -> bool:
        return (
            issubclass(kind, (torch.Tensor, torch.UntypedStorage, torch.TypedStorage))
            or kind is numpy_array_type()
            or hasattr(kind, "__cuda_array_interface__")
            or hasattr(kind, "__dlpack__")
            or self._has_extractor(kind)
        )


def pickled_parts(root: object, has_extractor: Callable[[type], bool]) -> list[object]:
    """Find the tensors, storages and arrays that pickling an object would meet.

    Calls ``__reduce__`` and ``__getstate__`` of what it meets. Does not look at what a
    pickle names instead of holding it, such as globals of functions, nor at what they
    leave out.

    Args:
        root: The object.
        has_extractor: Types whose objects count as found, too, and are not pickled.

    Raises:
        Exception: Whatever pickling raises, if part of the object cannot be pickled.
    """
    finder = _Finder(root, has_extractor)
    finder.dump(root)
    return finder.found


class _PickleRule:
    """The rule of types that are registered by pickle."""

    def __init__(self, has_extractor: Callable[[type], bool]) -> None:
        self._has_extractor = has_extractor

    def __repr__(self) -> str:
        return "by_pickle=True"

    def __call__(self, value: object) -> list[object]:
        return pickled_parts(value, self._has_extractor)


def pickle_rule(has_extractor: Callable[[type], bool]) -> Callable[..., object]:
    """Make the rule of types that nobody can take apart.

    Args:
        has_extractor: As for `pickled_parts`.
    """
    return _PickleRule(has_extractor)


def is_by_pickle(rule: object) -> bool:
    """Whether a rule is one that `pickle_rule` made."""
    return isinstance(rule, _PickleRule)
