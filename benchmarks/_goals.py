"""Goals: a text for the table, and whether a value meets it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

Values: TypeAlias = Mapping[str, float | None]
"""The peers' values by name; None was not measured."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Goal:
    """One condition on a row's value.

    Args:
        text: The condition in words.
        check: Takes the value and the peers'; None when a peer's is missing.
    """

    text: str
    check: Callable[[float, Values], bool | None]


def at_most(limit: float, unit: str) -> Goal:
    """Want ``value <= limit``."""
    return Goal(text=f"<= {limit:g} {unit}", check=lambda value, _: value <= limit)


def below(limit: float, unit: str) -> Goal:
    """Want ``value < limit``."""
    return Goal(text=f"< {limit:g} {unit}", check=lambda value, _: value < limit)


def at_most_times(factor: float, peer: str) -> Goal:
    """Want ``value <= factor * peer``."""
    return _against(peer, f"<= {factor:g} x {peer}", lambda v, p: v <= factor * p)


def at_most_over(extra: float, unit: str, peer: str) -> Goal:
    """Want ``value <= extra + peer``."""
    text = f"<= {extra:g} {unit} + {peer}"
    return _against(peer, text, lambda v, p: v <= extra + p)


def at_least_times(factor: float, peer: str) -> Goal:
    """Want ``value >= factor * peer``, of a rate."""
    return _against(peer, f">= {factor:g} x {peer}", lambda v, p: v >= factor * p)


def faster_times(factor: float, peer: str) -> Goal:
    """Want ``value * factor <= peer``, of a time."""
    text = f">= {factor:g} x faster than {peer}"
    return _against(peer, text, lambda v, p: v * factor <= p)


def _against(peer: str, text: str, test: Callable[[float, float], bool]) -> Goal:
    def check(value: float, peers: Values) -> bool | None:
        theirs = peers.get(peer)
        return None if theirs is None else test(value, theirs)

    return Goal(text=text, check=check)


def goals_text(goals: Sequence[Goal]) -> str:
    """Return the goals in words; "stated" when the row has none."""
    return ", ".join(goal.text for goal in goals) or "stated"


def are_met(goals: Sequence[Goal], value: float | None, peers: Values) -> bool | None:
    """Return whether every goal is met.

    False as soon as one goal is missed for certain; None when there is no goal, no
    value, or a goal whose peer was not measured.
    """
    if value is None or not goals:
        return None
    verdicts = [goal.check(value, peers) for goal in goals]
    if False in verdicts:
        return False
    return None if None in verdicts else True
