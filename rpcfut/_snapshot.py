"""What is known about types at one moment."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Final

from rpcfut._known_types import LEAVES, RULES, family_rule
from rpcfut._parts import Rule, leaf
from rpcfut._pickler_walk import is_by_pickle

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

LIBRARY: Final = "rpcfut itself"
_DERIVED_LIMIT: Final = 4096


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
    """All that is known at one moment; never changed, but for the memory `derived`.

    Args:
        rules: What objects of a type hold.
        leaves: The types whose objects hold nothing.
        bases: Rules that are good for subclasses.
        wire_by_type: How objects of a type travel.
        wire_by_name: The same, by what the type is called on the wire.
        places: Where a type was registered, by what for.
        derived: Rules of types in no table, found by base or family.
        is_audit: Whether what users say is checked (EXT-7).
        users: The types that users said something about, in audit mode; else none.
    """

    rules: Mapping[type, Rule]
    leaves: frozenset[type]
    bases: Mapping[type, Rule]
    wire_by_type: Mapping[type, WireFormat]
    wire_by_name: Mapping[str, WireFormat]
    places: Mapping[tuple[str, type], str]
    derived: dict[type, Rule]
    is_audit: bool = False
    users: frozenset[type] = frozenset()

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

    def has_extractor(self, kind: type) -> bool:
        """Whether somebody registered this type, or a base of it for its subclasses."""
        if kind in self.rules:
            return kind not in RULES
        return any(base in self.bases for base in kind.__mro__)

    def is_audited(self, kind: type) -> bool:
        """Whether what users say about a type is to be checked (EXT-7)."""
        return not self.users.isdisjoint(kind.__mro__)


def initial_snapshot() -> Snapshot:
    return Snapshot(
        rules=RULES,
        leaves=LEAVES,
        bases={},
        wire_by_type={},
        wire_by_name={},
        places={},
        derived={},
    )


def with_rule(
    now: Snapshot, kind: type, rule: Rule, *, subclasses: bool, place: str
) -> Snapshot:
    """The same, knowing one type more."""
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


def audited(now: Snapshot) -> Snapshot:
    """The same in audit mode: what users said holds nothing is looked at, too."""
    users = frozenset(
        kind
        for kind, rule in now.rules.items()
        if RULES.get(kind) is not rule
        and now.places.get(("extractor", kind)) != LIBRARY
        and not is_by_pickle(rule)
    )
    return dataclasses.replace(
        now, is_audit=True, users=users, leaves=now.leaves - users, derived={}
    )
