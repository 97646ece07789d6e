"""The table's rows: what each shows, of whom, and its goal.

Rows are added, never renamed.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from benchmarks._goals import (
    Goal,
    are_met,
    at_least_times,
    at_most,
    at_most_over,
    at_most_times,
    below,
    faster_times,
    goals_text,
)
from benchmarks._measure import Missing, Reading, Rounds, Statistic

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """Where a value comes from.

    Args:
        system: Whose.
        experiment: Which.
        statistic: Of each round's samples.
        scale: Times this, it is in the row's unit; latencies are sampled in ns.
    """

    system: str
    experiment: str
    statistic: Statistic = Statistic.P50
    scale: float = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One row as planned."""

    name: str
    unit: str
    own: Source
    peers: Mapping[str, Source]
    goals: tuple[Goal, ...] = ()

    def sources(self) -> tuple[Source, ...]:
        """Return every source that the row needs."""
        return (self.own, *self.peers.values())


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """One row as measured.

    Args:
        notes: Why something is missing, by "rpcfut" or the peer's name.
    """

    name: str
    unit: str
    rpcfut: float | None
    peers: Mapping[str, float | None]
    goal: str
    met: bool | None
    notes: Mapping[str, str]


_NS_TO_US = 1e-3
_NS_TO_MS = 1e-6


def _us(system: str, experiment: str, statistic: Statistic = Statistic.P50) -> Source:
    return Source(
        system=system, experiment=experiment, statistic=statistic, scale=_NS_TO_US
    )


def _calls(experiment: str, statistic: Statistic, *peers: str) -> dict[str, Source]:
    return {peer: _us(peer, experiment, statistic) for peer in peers}


def _local(name: str, *goals: Goal) -> Row:
    peers = {"torch": _us("torch_local", name)}
    own = _us("rpcfut_local", name)
    return Row(name=name, unit="us", own=own, peers=peers, goals=goals)


def _callers(name: str, experiment: str, statistic: Statistic) -> Row:
    alone = _us("rpcfut", "noop_rtt", statistic)
    peers = _calls(experiment, statistic, "torch", "zmq") | {"1 caller": alone}
    return Row(
        name=name, unit="us", own=_us("rpcfut", experiment, statistic), peers=peers
    )


ROWS = (
    Row(
        name="noop_rtt_p50",
        unit="us",
        own=_us("rpcfut", "noop_rtt"),
        peers=_calls("noop_rtt", Statistic.P50, "torch", "zmq", "floor"),
        goals=(at_most_times(1.5, "floor"), faster_times(4, "torch")),
    ),
    Row(
        name="noop_rtt_p99",
        unit="us",
        own=_us("rpcfut", "noop_rtt", Statistic.P99),
        peers=_calls("noop_rtt", Statistic.P99, "torch", "zmq", "floor"),
    ),
    Row(
        name="noop_rate",
        unit="calls/s",
        own=Source(system="rpcfut", experiment="noop_rate"),
        peers={
            "torch": Source(system="torch", experiment="noop_rate"),
            "zmq": Source(system="zmq", experiment="noop_rate"),
        },
        goals=(at_least_times(5, "torch"), at_least_times(10, "torch")),
    ),
    Row(
        name="callers8_p50",
        unit="us",
        own=_us("rpcfut", "callers8"),
        peers=_calls("callers8", Statistic.P50, "torch", "zmq"),
        goals=(at_most_times(1.5, "zmq"),),
    ),
    Row(
        name="await_rtt_p50",
        unit="us",
        own=_us("rpcfut", "await_rtt"),
        peers={"noop": _us("rpcfut", "noop_rtt")},
        goals=(at_most_times(2, "noop"),),
    ),
    Row(
        name="serve_while_idle_p50",
        unit="us",
        own=_us("rpcfut", "serve_while_idle"),
        peers=_calls("serve_while_idle", Statistic.P50, "torch", "zmq", "floor"),
    ),
    Row(
        name="serve_after_wait_p99",
        unit="us",
        own=_us("rpcfut", "serve_after_wait", Statistic.P99),
        peers={
            "idle": _us("rpcfut", "serve_while_idle"),
            "torch": _us("torch", "serve_after_wait", Statistic.P99),
        },
        goals=(at_most_over(1000, "us", "idle"),),
    ),
    _local("then_host", at_most_times(2, "torch")),
    _local("then_done"),
    _local("then_device", at_most_times(1.2, "torch")),
    Row(
        name="extract_list100",
        unit="us",
        own=_us("rpcfut_local", "extract_list100"),
        peers={
            "torch": _us("torch_local", "extract_list100"),
            "extract()": _us("rpcfut_local", "extract_list100_public"),
            "with CUDA": _us("rpcfut_local", "extract_list100_cuda"),
        },
        goals=(at_most_times(1, "torch"),),
    ),
    Row(
        name="extract_1e6_ints",
        unit="ms",
        own=Source(
            system="rpcfut_local", experiment="extract_1e6_ints", scale=_NS_TO_MS
        ),
        peers={
            "torch": Source(
                system="torch_local", experiment="extract_1e6_ints", scale=_NS_TO_MS
            )
        },
        goals=(at_most(40, "ms"),),
    ),
    Row(
        name="idle_cpu",
        unit="% core",
        own=Source(system="rpcfut", experiment="idle_cpu", statistic=Statistic.WORST),
        peers={
            "torch": Source(
                system="torch", experiment="idle_cpu", statistic=Statistic.WORST
            )
        },
        goals=(below(1, "% core"),),
    ),
    # B128: how a round trip grows with the callers, beside noop_rtt and callers8.
    _callers("callers2_p50", "callers2", Statistic.P50),
    _callers("callers4_p50", "callers4", Statistic.P50),
    _callers("callers8_p99", "callers8", Statistic.P99),
    # B130: the time of both processors, which no second core makes shorter.
    Row(
        name="noop_cpu",
        unit="us",
        own=_us("rpcfut", "noop_cpu"),
        peers=_calls("noop_cpu", Statistic.P50, "torch", "zmq"),
    ),
    Row(
        name="noop_secret_p50",
        unit="us",
        own=_us("rpcfut_secret", "noop_rtt"),
        peers={"noop": _us("rpcfut", "noop_rtt")},
        goals=(at_most_times(1.3, "noop"),),
    ),
)


def read(source: Source, readings: Mapping[tuple[str, str], Reading]) -> float | str:
    """Return the source's value, or why there is none."""
    match readings.get((source.system, source.experiment)):
        case Rounds() as rounds:
            return rounds.median_of(source.statistic) * source.scale
        case Missing(reason=reason):
            return reason
        case None:
            return "not run"


def evaluate(row: Row, readings: Mapping[tuple[str, str], Reading]) -> Result:
    """Return the row as measured.

    Args:
        row: The row as planned.
        readings: By system and experiment.
    """
    found = {"rpcfut": read(row.own, readings)}
    found |= {peer: read(source, readings) for peer, source in row.peers.items()}
    values = {
        name: value if isinstance(value, float) else None
        for name, value in found.items()
    }
    own = values.pop("rpcfut")
    return Result(
        name=row.name,
        unit=row.unit,
        rpcfut=own,
        peers=values,
        goal=goals_text(row.goals),
        met=are_met(row.goals, own, values),
        notes={name: why for name, why in found.items() if isinstance(why, str)},
    )


def pick(names: Sequence[str]) -> tuple[Row, ...]:
    """Return the named rows in the table's order; all when none is named.

    Raises:
        ValueError: When there is no such row.
    """
    known = [row.name for row in ROWS]
    unknown = [name for name in names if name not in known]
    if unknown:
        raise ValueError(f"no row {unknown[0]!r}; rows: {', '.join(known)}")
    return tuple(row for row in ROWS if not names or row.name in names)
