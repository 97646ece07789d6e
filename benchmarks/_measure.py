"""From samples to one number, and the order in which systems are sampled."""

from __future__ import annotations

import enum
import math
import statistics
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence


class UnmeasurableError(Exception):
    """There is no true number, and the message says why."""


class Statistic(enum.Enum):
    """How the samples of one round become one number."""

    P50 = "p50"
    P99 = "p99"
    WORST = "worst"

    def of(self, samples: Sequence[float]) -> float:
        """Return this statistic of the samples of one round."""
        match self:
            case Statistic.P50:
                return percentile(samples, 50)
            case Statistic.P99:
                return percentile(samples, 99)
            case Statistic.WORST:
                return max(samples)


@dataclass(frozen=True, slots=True, kw_only=True)
class Rounds:
    """The samples of every round, of one system in one experiment."""

    samples: tuple[tuple[float, ...], ...]

    def median_of(self, statistic: Statistic) -> float:
        """Return the median over the rounds of each round's statistic."""
        return statistics.median(statistic.of(round_) for round_ in self.samples)


@dataclass(frozen=True, slots=True, kw_only=True)
class Missing:
    """Why a system has no samples in an experiment."""

    reason: str


Reading: TypeAlias = Rounds | Missing


def percentile(samples: Sequence[float], percent: float) -> float:
    """Return the nearest-rank percentile: always a value that was measured.

    Args:
        samples: At least one value, in any order.
        percent: From 0, exclusive, to 100.

    Raises:
        ValueError: When there are no samples, or `percent` is out of range.
    """
    if not samples:
        raise ValueError("got no samples, wanted at least one")
    if not 0 < percent <= 100:
        raise ValueError(f"got percent={percent!r}, wanted 0 < percent <= 100")
    rank = math.ceil(len(samples) * percent / 100)
    return sorted(samples)[rank - 1]


def interleave(
    systems: Iterable[str], rounds: int, sample: Callable[[str], Sequence[float]]
) -> Mapping[str, Reading]:
    """Sample every system once a round, so that noise falls on all alike.

    A system that fails in any round has no reading, and is not asked again.

    Args:
        systems: Their names.
        rounds: How often each is sampled.
        sample: Takes a name, returns samples or raises `UnmeasurableError`.
    """
    taken: dict[str, list[tuple[float, ...]]] = {name: [] for name in systems}
    missing: dict[str, Missing] = {}
    for _ in range(rounds):
        for name, samples in taken.items():
            if name in missing:
                continue
            try:
                samples.append(tuple(sample(name)))
            except UnmeasurableError as error:
                missing[name] = Missing(reason=str(error))
    return {
        name: missing[name] if name in missing else Rounds(samples=tuple(rounds_))
        for name, rounds_ in taken.items()
    }
