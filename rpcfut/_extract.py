"""Which memory does a value hold?

Theory of operation: a walk over batches of objects. Of each batch the *set of types* is
looked at first, so that a list of a million numbers costs one pass in C (EXT-8). The
walk carries no paths; only when it met a type that nobody knows, a second one that does
finds where that is.
"""

from __future__ import annotations

import inspect
from collections.abc import Collection, Iterable, Iterator
from typing import TYPE_CHECKING, Any, Final

import torch

from rpcfut._derived import registration_line
from rpcfut._devices import CPU
from rpcfut._errors import ExtractionError, Origin
from rpcfut._known_types import Rule, itself, mapping_parts, steps, type_name
from rpcfut._memory import DataRef, is_pinned
from rpcfut._registry import TYPES, Snapshot

if TYPE_CHECKING:
    from rpcfut._devices import Device

__all__ = ["DataRef", "extract", "extract_device"]

_UNNAMED = Origin(what="the value")
_TENSORS: Final = {torch.Tensor}


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
    return _Walk(origin, is_host_wanted=True).run(value)


def extract_device(value: Any, *, origin: Origin | None = None) -> list[DataRef]:
    """List the memory of a value that a host thread may not just read.

    Device memory, and pinned host memory, which a GPU may be writing to.

    Args:
        value: Any value.
        origin: Where it came from, for the message.

    Returns:
        The blocks, in no particular order.

    Raises:
        ExtractionError: As `extract` does.
    """
    leaves = TYPES.snapshot.leaves
    kind = type(value)
    if kind in leaves:
        return []
    if not torch.cuda.is_initialized():
        batch = value if kind is tuple or kind is list else (value,)
        if _is_host_only(batch, leaves):
            return []
    return _Walk(origin, is_host_wanted=False).run(value)


def _is_host_only(batch: Collection[Any], leaves: frozenset[type]) -> bool:
    kinds = set(map(type, batch))
    if torch.Tensor not in kinds:
        return kinds <= leaves
    kinds.discard(torch.Tensor)
    tensors = [part for part in batch if type(part) is torch.Tensor] if kinds else batch
    return kinds <= leaves and all([tensor.is_cpu for tensor in tensors])  # noqa: C419 - twice as fast


class _Walk:
    """One walk over one value; owner thread only."""

    def __init__(self, origin: Origin | None, *, is_host_wanted: bool) -> None:
        self._origin = origin or _UNNAMED
        self._is_host_wanted = is_host_wanted
        self._types = TYPES.snapshot
        self._blocks: dict[tuple[Device, int], DataRef] = {}
        # Ids stay ours only while the objects live, and rules may make objects.
        self._seen: dict[int, object] = {}
        self._batches: list[Iterable[Any]] = []

    def run(self, value: object) -> list[DataRef]:
        self._batches.append((value,))
        leaves = self._types.leaves
        skips_host = not self._is_host_wanted and not torch.cuda.is_initialized()
        while self._batches:
            batch = self._batches.pop()
            kinds = set(map(type, batch))
            if kinds <= leaves:
                continue
            if skips_host and kinds == _TENSORS:
                batch = [tensor for tensor in batch if not tensor.is_cpu]
            for part in batch:
                kind = type(part)
                if kind is torch.Tensor and part.layout is torch.strided:
                    self._visit_dense(part, value)
                elif kind not in leaves:
                    self._visit(part, value)
        return list(self._blocks.values())

    def _visit_dense(self, tensor: torch.Tensor, root: object) -> None:
        """Do what `tensor_parts` would, for the commonest type without lists."""
        if tensor.requires_grad or not tensor.is_cpu or tensor.is_quantized:
            self._visit(tensor, root)
            return
        storage = tensor.untyped_storage()
        pointer = storage.data_ptr()
        if (CPU, pointer) not in self._blocks and pointer:
            self._take(DataRef(CPU, pointer, storage.nbytes(), tensor))

    def _visit(self, part: Any, root: object) -> None:
        kind = type(part)
        if kind is DataRef:
            self._take(part)
            return
        key = id(part)
        if key in self._seen:
            return
        self._seen[key] = part
        rule = self._types.rules.get(kind) or self._types.find_rule(kind)
        if rule is itself:
            self._batches.append(part)
        elif rule is mapping_parts:
            self._batches.append(part.values())
            self._batches.append(part.keys())
        elif rule is None:
            raise _unknown(root, self._types, self._origin)
        else:
            try:
                self._batches.append(_parts_of(part, rule, self._types))
            except Exception as error:
                raise _rule_failed(root, part, rule, error, self._origin) from error

    def _take(self, ref: DataRef) -> None:
        if ref.device.type == "cpu" and not (
            self._is_host_wanted or is_pinned(ref.owner)
        ):
            return
        key = (ref.device, ref.pointer)
        known = self._blocks.get(key)
        if known is None or known.nbytes < ref.nbytes:
            self._blocks[key] = ref


def _parts_of(part: object, rule: Rule, types: Snapshot) -> Collection[Any]:
    """Ask a rule what an object holds; be strict about what it may answer.

    A dict that was iterated would give its keys and hide its values; a tensor would
    give its rows. So whatever is a value by itself counts as one part.
    """
    parts = rule(part)
    if isinstance(parts, (list, tuple)) or rule is itself:
        return parts  # type: ignore[return-value] # `itself` is for collections only
    if parts is None:
        raise TypeError("it returned None; return a list, [] if there is nothing")
    if type(parts) is DataRef or types.find_rule(type(parts)) is not None:
        return (parts,)
    if isinstance(parts, Iterable):
        return list(parts)
    raise TypeError(f"it returned {parts!r}; return a list of what the object holds")


def _unknown(root: object, types: Snapshot, origin: Origin) -> ExtractionError:
    path, kind = origin.path_root, type(root)
    for path, part, rule in _paths(root, types, origin):  # noqa: B007 - the last one counts
        kind = type(part)
        if rule is None:
            break
    name = type_name(kind)
    if issubclass(kind, torch.nn.Module):
        fix = "a module is not a value: send its state_dict()"
    else:
        short = kind.__qualname__
        fix = (
            f"{registration_line(kind)}\n"
            f"or, if it never travels: @rpcfut.register_extractor({short})\n"
            f"or, if it holds no device memory: rpcfut.no_device_data({short})"
        )
    return _error(origin, name, path, fix)


def _rule_failed(
    root: object, part: object, rule: Rule, error: Exception, origin: Origin
) -> ExtractionError:
    path = origin.path_root
    for path, found, _ in _paths(root, TYPES.snapshot, origin):  # noqa: B007 - as above
        if found is part:
            break
    if rule.__module__.startswith("rpcfut."):
        fix = str(error)
    else:
        code = inspect.unwrap(rule).__code__ if inspect.isfunction(rule) else None
        place = f" ({code.co_filename}:{code.co_firstlineno})" if code else ""
        name = getattr(rule, "__qualname__", repr(rule))
        fix = f"its extractor {name}{place} raised {type(error).__name__}: {error}"
    return _error(origin, type_name(type(part)), path, fix)


def _error(origin: Origin, name: str, path: str, fix: str) -> ExtractionError:
    return ExtractionError(
        type_name=name,
        path=path,
        what=origin.what,
        worker=origin.worker,
        call=origin.call,
        fix=fix,
    )


def _paths(
    root: object, types: Snapshot, origin: Origin
) -> Iterator[tuple[str, object, Rule | None]]:
    """Walk again, in the order of the value, with the path to each object."""
    seen: dict[int, object] = {}
    ahead: list[tuple[str, object]] = [(origin.path_root, root)]
    while ahead:
        path, part = ahead.pop()
        if type(part) in types.leaves or type(part) is DataRef or id(part) in seen:
            continue
        seen[id(part)] = part
        rule = types.find_rule(type(part))
        yield path, part, rule
        if rule is None:
            continue
        try:
            parts = list(_parts_of(part, rule, types))
        except Exception:  # noqa: BLE001, S112 - the first walk reports it, if it is its
            continue
        named = {id(child): step for step, child in reversed(list(steps(part)))}
        ahead.extend(
            (path + named.get(id(child), f".<part {number}>"), child)
            for number, child in reversed(list(enumerate(parts)))
        )
