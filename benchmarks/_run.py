"""A run: starts the systems, interleaves them, and returns the rows."""

from __future__ import annotations

import tempfile
import time
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from benchmarks._experiments import EXPERIMENTS, Experiment
from benchmarks._measure import Reading, UnmeasurableError, interleave
from benchmarks._pair import Pair
from benchmarks._rows import Result, Row, evaluate
from benchmarks._systems._system import SYSTEMS

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """How much to do.

    Args:
        is_quick: Take few samples.
        sample_s: Longest time for one round of one system.
        run_s: Longest time for all; what comes later is not measured.
    """

    is_quick: bool
    sample_s: float
    run_s: float


QUICK = Plan(is_quick=True, sample_s=20.0, run_s=150.0)
FULL = Plan(is_quick=False, sample_s=120.0, run_s=1500.0)


def run(rows: Sequence[Row], plan: Plan, say: Callable[[str], None]) -> list[Result]:
    """Measure the rows.

    Args:
        rows: Which.
        plan: How much to do.
        say: Is told what is being measured.
    """
    wanted = {(s.system, s.experiment) for row in rows for s in row.sources()}
    end_s = time.perf_counter() + plan.run_s
    readings: dict[tuple[str, str], Reading] = {}
    with ExitStack() as stack:
        folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="rpcfut-"))
        pairs = {
            name: stack.enter_context(Pair(system, Path(folder)))
            for name, system in SYSTEMS.items()
            if any(name == system_name for system_name, _ in wanted)
        }
        for pair in pairs.values():
            pair.start()
        for pair in pairs.values():
            pair.wait_ready()
        for experiment in EXPERIMENTS:
            asked = [s for s in experiment.systems if (s, experiment.name) in wanted]
            if asked:
                say(f"{experiment.name}: {', '.join(asked)}")
                found = _measure(experiment, asked, pairs, plan, end_s)
                readings |= {(s, experiment.name): r for s, r in found.items()}
    return [evaluate(row, readings) for row in rows]


def _measure(
    experiment: Experiment,
    systems: Sequence[str],
    pairs: dict[str, Pair],
    plan: Plan,
    end_s: float,
) -> dict[str, Reading]:
    count = experiment.quick if plan.is_quick else experiment.full

    def sample(system: str) -> Sequence[float]:
        now_s = time.perf_counter()
        if now_s >= end_s:
            raise UnmeasurableError(f"the run's {plan.run_s:.0f} s were over")
        deadline_s = min(end_s, now_s + plan.sample_s)
        return pairs[system].probe(experiment.name, count, deadline_s)

    return dict(interleave(systems, experiment.rounds, sample))
