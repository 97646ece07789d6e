"""Types that users registered: for extraction (EXT-2) and for the wire.

Theory of operation: what is known stands in one frozen snapshot. A lookup reads the
snapshot and takes no lock. A registration makes a new snapshot under the lock and swaps
it in, which also drops what was derived from the old one. Registrations are
process-wide, as types are; `isolated_registry` takes back those made inside it.
"""

from __future__ import annotations

import dataclasses
import functools
import inspect
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from typing import Any, Final, TypeVar, overload

from rpcfut._derived import derived_form, rule_from, wire_name
from rpcfut._known_types import (
    LEAVES,
    NATIVE,
    RULES,
    Rule,
    family_rule,
    leaf,
    type_name,
)

T = TypeVar("T")
C = TypeVar("C", bound=type)
F = TypeVar("F", bound=Callable[..., object])

_DERIVED_LIMIT = 4096


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class WireFormat:
    """How a registered type travels.

    Args:
        kind: The type.
        name: What it is called on the wire.
        flatten: Makes a supported value of an object.
        unflatten: Makes the object again.
    """

    kind: type
    name: str
    flatten: Callable[..., object]
    unflatten: Callable[..., object]


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Snapshot:
    """All that is known at one moment; never changed, but for the memory `derived`."""

    rules: Mapping[type, Rule]
    leaves: frozenset[type]
    bases: Mapping[type, Rule]
    wire_by_type: Mapping[type, WireFormat]
    wire_by_name: Mapping[str, WireFormat]
    places: Mapping[tuple[str, type], str]
    derived: dict[type, Rule]

    def find_rule(self, kind: type) -> Rule | None:
        """Find a type's rule: its own, a registered base's, its family's (EXT-5)."""
        rule = self.rules.get(kind) or self.derived.get(kind)
        if rule is not None:
            return rule
        for base in kind.__mro__[1:]:
            rule = self.bases.get(base)
            if rule is not None:
                break
        else:
            rule = family_rule(kind)
        if rule is not None:
            if len(self.derived) >= _DERIVED_LIMIT:
                self.derived.clear()  # classes made in a loop must not pile up
            self.derived[kind] = rule
        return rule


def _initial() -> Snapshot:
    return Snapshot(
        rules=RULES,
        leaves=LEAVES,
        bases={},
        wire_by_type={},
        wire_by_name={},
        places={},
        derived={},
    )


class TypeRegistry:
    """The holder of the snapshot; any thread. Registering is rare, reading is not."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self.snapshot = _initial()

    def __repr__(self) -> str:
        now = self.snapshot
        return (
            f"<TypeRegistry {len(now.rules) - len(RULES)} extractors, "
            f"{len(now.wire_by_type)} wire formats>"
        )

    def add_rule(
        self, kind: type, rule: Rule, *, override: bool, subclasses: bool, place: str
    ) -> None:
        """Register what objects of a type hold.

        Raises:
            ValueError: When the type has a rule and `override` is not given.
        """
        with self._lock:
            now = self.snapshot
            if not override:
                self._refuse_second(now, "extractor", kind)
            self.snapshot = _with_rule(
                now, kind, rule, subclasses=subclasses, place=place
            )

    def add_wire(
        self, form: WireFormat, rule: Rule, *, override: bool, place: str
    ) -> None:
        """Register what objects of a type hold and how they travel, or neither.

        Raises:
            ValueError: When the type or the wire name is taken.
        """
        with self._lock:
            now = self.snapshot
            if not override:
                self._refuse_second(now, "extractor", form.kind)
                self._refuse_second(now, "wire format", form.kind)
                self._refuse_same_name(now, form)
            now = _with_rule(now, form.kind, rule, subclasses=False, place=place)
            former = now.wire_by_name.get(form.name)
            by_type = {k: v for k, v in now.wire_by_type.items() if v is not former}
            by_name = {
                k: v for k, v in now.wire_by_name.items() if v.kind is not form.kind
            }
            self.snapshot = dataclasses.replace(
                now,
                wire_by_type={**by_type, form.kind: form},
                wire_by_name={**by_name, form.name: form},
                places={**now.places, ("wire format", form.kind): place},
            )

    @contextmanager
    def isolated(self) -> Iterator[TypeRegistry]:
        """Take back, at the end, whatever was registered inside."""
        with self._lock:
            before = self.snapshot
            self.snapshot = dataclasses.replace(before, derived={})
        try:
            yield self
        finally:
            with self._lock:
                self.snapshot = before

    @staticmethod
    def _refuse_second(now: Snapshot, what: str, kind: type) -> None:
        known = now.rules if what == "extractor" else now.wire_by_type
        if kind in known:
            place = now.places.get((what, kind), "rpcfut itself")
            raise ValueError(
                f"second {what} for {type_name(kind)}: the first is from {place}; "
                "pass override=True to replace it"
            )

    @staticmethod
    def _refuse_same_name(now: Snapshot, form: WireFormat) -> None:
        other = now.wire_by_name.get(form.name)
        if other is not None:
            place = now.places[("wire format", other.kind)]
            raise ValueError(
                f"the wire name {form.name!r} of {type_name(form.kind)} is taken by "
                f"{type_name(other.kind)}, from {place}; pass name= to give one of "
                "them another, or override=True to replace it"
            )


def _with_rule(
    now: Snapshot, kind: type, rule: Rule, *, subclasses: bool, place: str
) -> Snapshot:
    bases = {k: v for k, v in now.bases.items() if k is not kind}
    if subclasses:
        bases[kind] = rule
    return dataclasses.replace(
        now,
        rules={**now.rules, kind: rule},
        leaves=now.leaves | {kind} if rule is leaf else now.leaves - {kind},
        bases=bases,
        places={**now.places, ("extractor", kind): place},
        derived={},
    )


TYPES: Final = TypeRegistry()


def isolated_registry() -> AbstractContextManager[TypeRegistry]:
    """Context manager: registrations made inside it end with it. Process-wide."""
    return TYPES.isolated()


def register_builtin(kind: type, rule: Rule = leaf) -> None:
    """Give one of the library's own types a rule; again is harmless."""
    if kind not in TYPES.snapshot.rules:
        TYPES.add_rule(
            kind, rule, override=True, subclasses=False, place="rpcfut itself"
        )


@overload
def register_extractor(
    kind: type, function: None = None, *, override: bool = ..., subclasses: bool = ...
) -> Callable[[F], F]: ...


@overload
def register_extractor(
    kind: type, function: F, *, override: bool = ..., subclasses: bool = ...
) -> F: ...


def register_extractor(
    kind: type,
    function: F | None = None,
    *,
    override: bool = False,
    subclasses: bool = False,
) -> F | Callable[[F], F]:
    """Say which memory the objects of a type hold (EXT-2).

    Args:
        kind: The type.
        function: Is given an object and returns or yields what it holds: tensors,
            containers, other objects, or `DataRef`s. The walk goes on from there.
            Left out, the call is a decorator.
        override: Replace what was registered for this type.
        subclasses: The rule is good for subclasses too.

    Returns:
        The function, or the decorator.

    Raises:
        TypeError: When `kind` is no class, or `function` not callable.
        ValueError: When the type has an extractor already.
    """
    _require_class("register_extractor", kind)
    place = _caller()

    def register(rule: F) -> F:
        if not callable(rule):
            raise TypeError(
                f"register_extractor({kind.__qualname__}, ...) wants a function that "
                f"is given an object and returns what it holds, got {rule!r}"
            )
        TYPES.add_rule(
            kind, rule, override=override, subclasses=subclasses, place=place
        )
        return rule

    return register if function is None else register(function)


def no_device_data(kind: C, *, override: bool = False, subclasses: bool = False) -> C:
    """Say that the objects of a type hold no device memory (EXT-2).

    Args:
        kind: The type.
        override: Replace what was registered for this type.
        subclasses: The same is true of subclasses.

    Returns:
        The type, so that it works as a decorator of a class.

    Raises:
        TypeError: When `kind` is no class.
        ValueError: When the type has an extractor already.
    """
    _require_class("no_device_data", kind)
    TYPES.add_rule(
        kind, leaf, override=override, subclasses=subclasses, place=_caller()
    )
    return kind


@overload
def register_type(
    kind: type[T],
    flatten: Callable[[T], object] | None = None,
    unflatten: Callable[[Any], T] | None = None,
    *,
    name: str | None = None,
    override: bool = False,
) -> type[T]: ...


@overload
def register_type(
    *, name: str | None = None, override: bool = False
) -> Callable[[type[T]], type[T]]: ...


def register_type(
    kind: type[T] | None = None,
    flatten: Callable[[T], object] | None = None,
    unflatten: Callable[[Any], T] | None = None,
    *,
    name: str | None = None,
    override: bool = False,
) -> type[T] | Callable[[type[T]], type[T]]:
    """Say what the objects of a type hold and how they travel, in one go (EXT-2).

    A dataclass, an attrs class, a named tuple or an enum needs no functions, and
    ``@register_type`` is enough. A dataclass is rebuilt field by field, as by
    `copy.copy`: ``__init__`` and ``__post_init__`` do not run again.

    Args:
        kind: The type. Left out, the call is a decorator with options.
        flatten: Makes a supported value (tuple, list, dict, tensor ...) of an object.
        unflatten: Makes the object again from that value.
        name: What the type is called on the wire, the same on every worker; default
            ``module:qualname``, with ``__main__`` for a spawned child's main module.
        override: Replace what was registered for this type or name.

    Returns:
        The type, or the decorator.

    Raises:
        TypeError: When `kind` is no class, one function is missing, or neither is given
            for a type that they cannot be derived for.
        ValueError: When the type or the name is registered already.
    """
    if kind is None:
        return functools.partial(register_type, name=name, override=override)
    _require_class("register_type", kind)
    if kind in NATIVE:
        raise ValueError(f"the wire format of {kind.__qualname__} cannot be replaced")
    rule: Rule
    if flatten is not None and unflatten is not None:
        rule = rule_from(flatten)
    elif flatten is None and unflatten is None:
        rule, flatten, unflatten = derived_form(kind)
    else:
        missing = "flatten" if flatten is None else "unflatten"
        raise TypeError(
            f"register_type({kind.__qualname__}) got one function of two: "
            f"{missing} is missing"
        )
    form = WireFormat(
        kind=kind,
        name=wire_name(kind) if name is None else name,
        flatten=flatten,
        unflatten=unflatten,
    )
    TYPES.add_wire(form, rule, override=override, place=_caller())
    return kind


def _require_class(function: str, kind: object) -> None:
    if not isinstance(kind, type):
        raise TypeError(f"{function} wants a class, got {kind!r}")


def _caller() -> str:
    frame = inspect.currentframe()
    while frame is not None and frame.f_code.co_filename in {
        __file__,
        functools.__file__,
    }:
        frame = frame.f_back
    if frame is None:
        return "an unknown place"
    return f"{frame.f_code.co_filename}:{frame.f_lineno}"
