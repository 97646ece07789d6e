"""Which memory does a value hold?

Theory of operation: a walk over batches of objects. Of each batch the *set of types* is
looked at first, so that a list of a million numbers costs one pass in C (EXT-8); dense
host tensors are taken a batch at a time, too. The walk carries no paths; only when it
met a type that nobody knows, a second one that does finds where that is (`_blame`).
"""

from __future__ import annotations

import dataclasses
from itertools import repeat
from operator import attrgetter
from typing import TYPE_CHECKING, Any, Final

import torch
from torch import Tensor

from rpcfut._audit import find_missed
from rpcfut._blame import parts_of, rule_failed, unknown_type
from rpcfut._devices import CPU
from rpcfut._errors import Origin
from rpcfut._memory import (
    CUDA_PINNED,
    DataRef,
    PinnedMemory,
    has_pinned,
    is_pinned_block,
    plain_cuda_block,
)
from rpcfut._parts import Rule, itself, leaf, mapping_parts
from rpcfut._type_registry import current_types

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable

    from rpcfut._devices import Device
    from rpcfut._snapshot import Snapshot

__all__ = ["DataRef", "extract", "extract_by", "extract_device"]

_UNNAMED = Origin(what="the value")
_FLAGS: Final = attrgetter("is_cpu", "requires_grad", "is_quantized")
_PLAIN_FLAGS: Final = {(True, False, False)}
_NEW: Final[Any] = tuple.__new__  # DataRef() takes twice as long


def extract(value: object, *, origin: Origin | None = None) -> list[DataRef]:
    """List all memory that a value holds, on the host too, each block once (EXT-6).

    Any thread; does not block and queues no work on any device.

    Args:
        value: Any value.
        origin: Where it came from, for the message.

    Returns:
        The blocks, in no particular order.

    Raises:
        ExtractionError: When nobody has said what a type in it holds (EXT-3), or the
            function that should say it raised.
    """
    types = current_types().snapshot
    return _Walk(types, origin, CUDA_PINNED, is_host_wanted=True).run(value)


def extract_device(
    value: Any, *, origin: Origin | None = None, pinned: PinnedMemory = CUDA_PINNED
) -> list[DataRef]:
    """List the memory of a value that a host thread may not just read.

    Device memory, and pinned host memory, which a GPU may be writing to.

    Args:
        value: Any value.
        origin: Where it came from, for the message.
        pinned: How to tell pinned host memory.

    Returns:
        The blocks, in no particular order.

    Raises:
        ExtractionError: As `extract` does.
    """
    types = current_types().snapshot
    kind = type(value)
    if kind is Tensor and value.is_cpu and not pinned.is_in_use():
        return []
    if kind in types.leaves:
        return []
    if kind is Tensor and value.is_cuda:
        ref = plain_cuda_block(value)
        if ref is not None:
            return [ref]
    batch = value if kind is tuple or kind is list else (value,)
    if _is_host_only(batch, types.leaves, pinned):
        return []
    return _Walk(types, origin, pinned, is_host_wanted=False).run(value)


def extract_by(
    extractor: Callable[[Any], object], value: Any, *, origin: Origin | None = None
) -> list[DataRef]:
    """As `extract_device`, with a function that says what the value itself holds.

    Args:
        extractor: As for `register_extractor`, for this value only.
        value: Any value.
        origin: Where it came from, for the message.

    Raises:
        ExtractionError: As `extract` does.
    """
    types = current_types().snapshot
    try:
        parts = parts_of(value, extractor, types)
    except Exception as error:
        origin = origin or _UNNAMED
        raise rule_failed(value, value, extractor, error, origin, types) from error
    return extract_device(list(parts), origin=origin)


def _is_host_only(
    batch: Collection[Any], leaves: frozenset[type], pinned: PinnedMemory
) -> bool:
    kinds = set(map(type, batch))
    if torch.Tensor not in kinds:
        return kinds <= leaves
    kinds.discard(torch.Tensor)
    tensors = [part for part in batch if type(part) is torch.Tensor] if kinds else batch
    return kinds <= leaves and _are_host_only(tensors, pinned)


def _are_host_only(tensors: Collection[torch.Tensor], pinned: PinnedMemory) -> bool:
    if not all([tensor.is_cpu for tensor in tensors]):  # noqa: C419 - twice as fast
        return False
    if not pinned.is_in_use():
        return True
    try:
        return not has_pinned(tensors, pinned)
    except NotImplementedError:  # sparse, say
        return False


class _Walk:
    """One walk over one value; owner thread only.

    Args:
        types: What is known.
        origin: Where the value came from.
        pinned: How to tell pinned host memory.
        is_host_wanted: Whether to list host memory that is not pinned, too.
    """

    def __init__(
        self,
        types: Snapshot,
        origin: Origin | None,
        pinned: PinnedMemory,
        *,
        is_host_wanted: bool,
    ) -> None:
        self._types = types
        self._origin = origin or _UNNAMED
        self._pinned = pinned
        self._is_host_wanted = is_host_wanted
        self._host: dict[int, DataRef] = {}
        self._device: dict[tuple[Device, int], DataRef] = {}
        # Ids stay ours only while the objects live, and rules may make objects.
        self._seen: dict[int, object] = {}
        self._batches: list[Iterable[Any]] = []

    def run(self, value: object) -> list[DataRef]:
        self._batches.append((value,))
        leaves = self._types.leaves
        while self._batches:
            batch = self._batches.pop()
            kinds = set(map(type, batch))
            if kinds <= leaves:
                continue
            if torch.Tensor in kinds:
                batch = self._take_tensors(list(batch))
            for part in batch:
                if type(part) not in leaves:
                    self._visit(part, value)
        return [*self._host.values(), *self._device.values()]

    def _take_tensors(self, batch: list[Any]) -> list[Any]:
        """Take the host tensors of a batch all at once, if they are plain ones.

        Returns:
            What is left to visit.
        """
        tensors = [part for part in batch if type(part) is torch.Tensor]
        rest = [part for part in batch if type(part) is not torch.Tensor]
        if self._is_host_wanted:
            return rest if self._name_all(tensors) else batch
        if _are_host_only(tensors, self._pinned):
            return rest
        if self._pinned.is_in_use():
            return batch
        return [*rest, *(tensor for tensor in tensors if not tensor.is_cpu)]

    def _name_all(self, tensors: list[torch.Tensor]) -> bool:
        """Do what `tensor_parts` would for each, if all are plain host tensors."""
        if set(map(_FLAGS, tensors)) != _PLAIN_FLAGS:
            return False
        try:
            storages = list(map(torch.Tensor.untyped_storage, tensors))
            pointers = list(map(torch.UntypedStorage.data_ptr, storages))
        except (NotImplementedError, RuntimeError):  # sparse, or zeros without memory
            return False
        sizes = map(torch.UntypedStorage.nbytes, storages)
        fields = zip(repeat(CPU), pointers, sizes, tensors)
        refs = list(map(_NEW, repeat(DataRef), fields))
        blocks = dict(zip(pointers, refs, strict=True))
        if len(blocks) == len(refs) and self._host.keys().isdisjoint(blocks):
            blocks.pop(0, None)
            self._host.update(blocks)
        else:
            for ref in refs:
                if ref.pointer:
                    self._take(ref)
        return True

    def _visit(self, part: Any, root: object) -> None:
        kind = type(part)
        if kind is DataRef:
            self._take(part)
            return
        key = id(part)
        if key in self._seen:
            return
        self._seen[key] = part
        types = self._types
        rule = types.rules.get(kind) or types.find_rule(kind)
        if rule is itself:
            self._batches.append(part)
        elif rule is mapping_parts:
            self._batches.append(part.values())
            self._batches.append(part.keys())
        elif rule is None:
            raise unknown_type(root, types, self._origin)
        else:
            try:
                parts = parts_of(part, rule, types)
            except Exception as error:
                raise rule_failed(
                    root, part, rule, error, self._origin, types
                ) from error
            self._batches.append(parts)
        if types.is_audit and types.is_audited(kind):
            self._audit(part, rule, root)

    def _take(self, ref: DataRef) -> None:
        if ref.device.type != "cpu":
            key = (ref.device, ref.pointer)
            known = self._device.get(key)
            if known is None or known.nbytes < ref.nbytes:
                self._device[key] = ref
        elif self._is_host_wanted or is_pinned_block(ref, self._pinned):
            known = self._host.get(ref.pointer)
            if known is None or known.nbytes < ref.nbytes:
                self._host[ref.pointer] = ref

    def _audit(self, part: Any, rule: Rule, root: object) -> None:
        """Compare what a registered extractor leads to with what pickling meets."""
        unaudited = dataclasses.replace(self._types, is_audit=False)

        def blocks_of(value: object) -> list[DataRef]:
            # Whoever said "no device data" did not speak of host memory.
            walk = _Walk(
                unaudited, self._origin, self._pinned, is_host_wanted=rule is not leaf
            )
            return walk.run(value)

        known = {(ref.device, ref.pointer) for ref in blocks_of(part)}
        missed = find_missed(
            part,
            self._types.has_extractor,
            blocks_of,
            lambda ref: (ref.device, ref.pointer) in known,
        )
        if missed is not None:
            error = LookupError(f"missed {missed}; return that, too")
            raise rule_failed(root, part, rule, error, self._origin, self._types)
