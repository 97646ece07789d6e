"""The registry of types, for extraction and for the wire; and what a context adds.

Theory of operation: what is known stands in one frozen snapshot. A lookup reads the
snapshot and takes no lock. A registration makes a new snapshot under the lock and swaps
it in, which also drops what was derived from the old one. Registrations are
process-wide, as types are; `isolated_registry` takes back those made inside it, and
`extractors` lays further ones over them for a context (a task, a ``with`` block).

The snapshot that readers see is made when the first of them asks, since only then is it
known whether it is to be audited: importing reads no environment.
"""

from __future__ import annotations

import dataclasses
import os
import threading
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TYPE_CHECKING, Final, TypeAlias

from rpcfut._known_types import RULES
from rpcfut._paths import type_name
from rpcfut._snapshot import (
    LIBRARY,
    Snapshot,
    WireFormat,
    audited,
    initial_snapshot,
    with_rule,
)

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from rpcfut._parts import Rule

AUDIT_VARIABLE: Final = "RPCFUT_AUDIT_EXTRACTORS"


class TypeRegistry:
    """The holder of the snapshot; any thread. Registering is rare, reading is not."""

    snapshot: Snapshot

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._known = initial_snapshot()
        self._is_audit: bool | None = None

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> Snapshot:
            # Called once: a property would cost each reader as much as the look-up.
            if name != "snapshot":
                raise AttributeError(name)
            with self._lock:
                self._is_audit = os.environ.get(AUDIT_VARIABLE, "0") not in {"", "0"}
                self._show_locked(self._known)
                return self.__dict__["snapshot"]

    def _show_locked(self, known: Snapshot) -> None:
        self._known = known
        if self._is_audit is not None:
            self.snapshot = audited(known) if self._is_audit else known

    def __repr__(self) -> str:
        now = self._known
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
            now = self._known
            if not override:
                self._refuse_second(now, "extractor", kind)
            self._show_locked(
                with_rule(now, kind, rule, subclasses=subclasses, place=place)
            )

    def add_builtin(self, kind: type, rule: Rule) -> None:
        """Give one of the library's own types a rule, unless it has one."""
        with self._lock:
            now = self._known
            if kind not in now.rules:
                self._show_locked(
                    with_rule(now, kind, rule, subclasses=False, place=LIBRARY)
                )

    def add_wire(
        self, form: WireFormat, rule: Rule, *, override: bool, place: str
    ) -> None:
        """Register what objects of a type hold and how they travel, or neither.

        Raises:
            ValueError: When the type or the wire name is taken.
        """
        with self._lock:
            now = self._known
            if not override:
                self._refuse_second(now, "extractor", form.kind)
                self._refuse_second(now, "wire format", form.kind)
                self._refuse_same_name(now, form)
            now = with_rule(now, form.kind, rule, subclasses=False, place=place)
            former = now.wire_by_name.get(form.name)
            by_type = {k: v for k, v in now.wire_by_type.items() if v is not former}
            by_name = {
                k: v for k, v in now.wire_by_name.items() if v.kind is not form.kind
            }
            self._show_locked(
                dataclasses.replace(
                    now,
                    wire_by_type={**by_type, form.kind: form},
                    wire_by_name={**by_name, form.name: form},
                    places={**now.places, ("wire format", form.kind): place},
                )
            )

    @contextmanager
    def isolated(self) -> Iterator[TypeRegistry]:
        """Take back, at the end, whatever was registered inside.

        Whether to audit is asked anew inside.
        """
        with self._lock:
            before, was_audit = self._known, self._is_audit
            self._forget_locked(dataclasses.replace(before, derived={}))
        try:
            yield self
        finally:
            with self._lock:
                self._forget_locked(before)
                if was_audit is not None:
                    self._is_audit = was_audit
                    self._show_locked(before)

    def _forget_locked(self, known: Snapshot) -> None:
        self._known, self._is_audit = known, None
        self.__dict__.pop("snapshot", None)

    @staticmethod
    def _refuse_second(now: Snapshot, what: str, kind: type) -> None:
        known = now.rules if what == "extractor" else now.wire_by_type
        if kind in known:
            place = now.places.get((what, kind), LIBRARY)
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


class ScopedTypes:
    """What is known in a context: rules of its own over those of another; any thread.

    Args:
        base: What is known around it, and goes on changing.
        rules: What objects of some types hold.
        place: Where they were given.
    """

    def __init__(
        self, base: TypeRegistry | ScopedTypes, rules: Mapping[type, Rule], place: str
    ) -> None:
        self._base = base
        self._rules = dict(rules)
        self._place = place
        self._built: tuple[Snapshot, Snapshot] | None = None

    def __repr__(self) -> str:
        return f"<ScopedTypes {len(self._rules)} extractors over {self._base!r}>"

    @property
    def snapshot(self) -> Snapshot:
        """What is known at this moment."""
        below, built = self._base.snapshot, self._built
        if built is not None and built[0] is below:
            return built[1]
        now = below
        for kind, rule in self._rules.items():
            now = with_rule(now, kind, rule, subclasses=False, place=self._place)
        if below.is_audit:
            now = audited(now)
        self._built = (below, now)
        return now


TYPES: Final = TypeRegistry()

Types: TypeAlias = TypeRegistry | ScopedTypes
_current: Final[ContextVar[Types]] = ContextVar("rpcfut_types", default=TYPES)
current_types: Final = _current.get


@contextmanager
def types_in_use(types: Types) -> Iterator[None]:
    """Have the calling frame, and what it calls, use what is known to `types`."""
    token = _current.set(types)
    try:
        yield
    finally:
        _current.reset(token)
