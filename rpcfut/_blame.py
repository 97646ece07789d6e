"""Whose fault is it that a value's memory cannot be found, and what would help.

Reached only when something went wrong, but for `parts_of`.
"""

from __future__ import annotations

import inspect
from collections.abc import Collection, Iterable, Iterator
from typing import TYPE_CHECKING, Any

from rpcfut._derived import registration_line
from rpcfut._errors import ExtractionError, Origin
from rpcfut._known_types import advice_for
from rpcfut._memory import DataRef
from rpcfut._parts import Rule, itself, leaf
from rpcfut._paths import steps, type_name

if TYPE_CHECKING:
    from rpcfut._snapshot import Snapshot


def parts_of(part: object, rule: Rule, types: Snapshot) -> Collection[Any]:
    """Ask a rule what an object holds; be strict about what it may answer.

    A dict that was iterated would give its keys and hide its values; a tensor would
    give its rows. So whatever is a value by itself counts as one part.
    """
    parts = rule(part)
    if isinstance(parts, (list, tuple)) or rule is itself:
        if type(parts) is DataRef:
            return (parts,)
        return parts  # type: ignore[return-value] # `itself` is for collections only
    if parts is None:
        raise TypeError("it returned None; return a list, [] if there is nothing")
    if types.find_rule(type(parts)) is not None:
        return (parts,)
    if isinstance(parts, Iterable):
        return list(parts)
    raise TypeError(f"it returned {parts!r}; return a list of what the object holds")


def unknown_type(root: object, types: Snapshot, origin: Origin) -> ExtractionError:
    """The error for a value that holds something of an unknown type (EXT-3)."""
    path, kind = origin.path_root, type(root)
    for path, part, rule in _paths(root, types, origin):  # noqa: B007 - the last one counts
        kind = type(part)
        if rule is None:
            break
    lines = []
    advice = advice_for(kind)
    if advice is not None:
        lines.append(advice.advice)
    if advice is None or advice.may_register:
        name = kind.__qualname__
        lines.append(registration_line(kind))
        unsent = [
            f"or, if it never travels: @rpcfut.register_extractor({name})",
            f"or, if it holds no device memory: rpcfut.no_device_data({name})",
        ]
        lines += [] if origin.is_sent else unsent
    return _error(origin, type_name(kind), path, "\n".join(lines))


def rule_failed(
    root: object,
    part: object,
    rule: Rule,
    error: Exception,
    origin: Origin,
    types: Snapshot,
) -> ExtractionError:
    """The error for a value of which a rule could not say what it holds."""
    path = origin.path_root
    for path, found, _ in _paths(root, types, origin):  # noqa: B007 - as above
        if found is part:
            break
    return _error(origin, type_name(type(part)), path, _what_failed(rule, error))


def _what_failed(rule: Rule, error: Exception) -> str:
    if rule is leaf:
        return f"no_device_data() is wrong: it {error}"
    if getattr(rule, "__module__", "").startswith("rpcfut.") and inspect.isfunction(
        rule
    ):
        return str(error)
    code = inspect.unwrap(rule).__code__ if inspect.isfunction(rule) else None
    place = f" ({code.co_filename}:{code.co_firstlineno})" if code else ""
    name = getattr(rule, "__qualname__", repr(rule))
    if isinstance(error, LookupError) and str(error).startswith("missed "):
        return f"its extractor {name}{place} {error}"
    return f"its extractor {name}{place} raised {type(error).__name__}: {error}"


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
            parts = list(parts_of(part, rule, types))
        except Exception:  # noqa: BLE001, S112 - the first walk reports it, if it is its
            continue
        named = {id(child): step for step, child in reversed(list(steps(part)))}
        ahead.extend(
            (path + named.get(id(child), f".<part {number}>"), child)
            for number, child in reversed(list(enumerate(parts)))
        )
