"""The experiments: what is run, on which systems, how often."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Experiment:
    """One probe that several systems answer, interleaved.

    Args:
        name: The probe's name in each system's table of probes.
        systems: Whom to ask, in order.
        quick: Samples a round with ``--quick``; seconds a state for `idle_cpu`.
        full: The same without it.
        rounds: How many rounds.
    """

    name: str
    systems: tuple[str, ...]
    quick: int
    full: int
    rounds: int = 5


_CALLS = ("rpcfut", "torch", "zmq", "floor")
_RPC = ("rpcfut", "torch")
_LOCAL = ("rpcfut_local", "torch_local")

# then_device comes last: with a CUDA context the host futures cost more.
EXPERIMENTS = (
    Experiment(
        name="noop_rtt", systems=(*_CALLS, "rpcfut_secret"), quick=400, full=4000
    ),
    Experiment(name="noop_rate", systems=_CALLS[:3], quick=2000, full=10_000),
    Experiment(name="callers8", systems=_CALLS[:3], quick=60, full=500),
    Experiment(name="callers2", systems=_CALLS[:3], quick=100, full=1000),
    Experiment(name="callers4", systems=_CALLS[:3], quick=80, full=700),
    Experiment(name="noop_cpu", systems=_CALLS[:3], quick=2000, full=10_000),
    Experiment(name="await_rtt", systems=("rpcfut",), quick=300, full=3000),
    Experiment(name="serve_while_idle", systems=_CALLS, quick=20, full=200),
    Experiment(name="serve_after_wait", systems=_RPC, quick=200, full=1000),
    Experiment(name="then_host", systems=_LOCAL, quick=1000, full=10_000),
    Experiment(name="then_done", systems=_LOCAL, quick=1000, full=10_000),
    Experiment(name="extract_list100", systems=_LOCAL, quick=200, full=2000),
    Experiment(
        name="extract_list100_public",
        systems=("rpcfut_local",),
        quick=200,
        full=2000,
    ),
    Experiment(
        name="extract_list100_cuda",
        systems=("rpcfut_local",),
        quick=200,
        full=2000,
    ),
    Experiment(name="extract_1e6_ints", systems=_LOCAL, quick=3, full=20),
    Experiment(name="idle_cpu", systems=_RPC, quick=2, full=10, rounds=1),
    Experiment(name="then_device", systems=_LOCAL, quick=500, full=5000),
)
