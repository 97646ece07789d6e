"""`examples/quickstart.py` on simulated arrays: a server, three workers, real calls.

The agents share one process and a memory link; their calls go through the whole codec,
to and from devices by copies that an adversary delays. What the example does right
shows here as no race and the right weights under every seed. The server's half alone,
with answers made by hand: test_parameter_server.py.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import pytest

import rpcfut
from rpcfut import Future
from rpcfut.testing import RaceError, SimArray, local_cluster, simulate

if TYPE_CHECKING:
    from rpcfut._agent import Agent
    from rpcfut.testing import Simulation

SEEDS = range(40)
MANY = range(200)
WORKERS = ["worker1", "worker2", "worker3"]
ROUNDS = 3
RATE = -0.125  # what a gradient is multiplied by; all is exact in floating point
WAIT_S = 15

Weights = dict[str, SimArray]
Apply = Callable[[Future[Any]], float]
Chain = Callable[[Future[Any], Apply], Future[float]]


@dataclasses.dataclass
class GradientBatch:
    """Gradients of one mini-batch, as a worker returns them."""

    gradients: Weights
    loss: float
    examples: int


def expose_gradients(sim: Simulation, worker: Agent, number: int) -> None:
    """Be a worker: data of its own, made on a stream of its own, and a function."""
    with sim.stream(0):
        images = sim.array([1.0 + number, 2.0])
        labels = sim.array([float(number), 1.0])

        def compute_gradients(weights: Weights, shift: float) -> GradientBatch:
            error = weights["w"] * images + weights["b"] + labels * shift
            gradients = {"w": error * images, "b": error}
            return GradientBatch(gradients, sum(error.tolist()), len(error))

        worker.exposed.expose(compute_gradients, name="compute_gradients")


def train(sim: Simulation, server: Agent, then: Chain) -> list[float]:
    """Be the server: all rounds, and the weights at the end. As in the example."""
    weights = {"w": sim.zeros(2), "b": sim.zeros(2)}

    def apply(done: Future[GradientBatch]) -> float:
        batch = done.value()
        for name, gradient in batch.gradients.items():
            weights[name].add_(gradient * RATE)
        return batch.loss

    for number in range(ROUNDS):
        snapshot = {name: weight.clone() for name, weight in weights.items()}
        calls = [
            server.rpc_async(worker, "compute_gradients", (snapshot, number + 1.0))
            for worker in WORKERS
        ]
        for loss in [then(call, apply) for call in calls]:
            assert isinstance(loss.wait(WAIT_S), float)
    return weights["w"].tolist() + weights["b"].tolist()


def expected() -> list[float]:
    """The weights at the end, worked out on the host."""
    w, b = [0.0, 0.0], [0.0, 0.0]
    for number in range(ROUNDS):
        old_w, old_b = list(w), list(b)
        for worker in range(len(WORKERS)):
            images, labels = [1.0 + worker, 2.0], [float(worker), 1.0]
            for i in range(2):
                shifted = labels[i] * (number + 1.0)
                error = old_w[i] * images[i] + old_b[i] + shifted
                w[i] += error * images[i] * RATE
                b[i] += error * RATE
    return w + b


def run(seed: int, make_chain: Callable[[], Chain]) -> list[float]:
    """The whole example under one seed; what the server's weights are at the end."""
    with simulate(seed=seed) as sim, local_cluster("server", *WORKERS) as agents:
        rpcfut.register_type(GradientBatch)
        for number, worker in enumerate(agents[1:]):
            expose_gradients(sim, worker, number)
        with sim.stream(0):
            return train(sim, agents[0], make_chain())


def on_one_stream() -> Chain:
    """As the example: callbacks given one stream run one at a time, in order."""
    updates = rpcfut.stream("sim:0")
    return lambda call, apply: call.then(apply, stream=updates)


def on_any_stream() -> Chain:
    """The naive form: each callback has a stream of its own."""
    return lambda call, apply: call.then(apply)


def by_hand() -> Chain:
    """Without callbacks: wait, and apply on the server's own stream."""

    def chain(call: Future[Any], apply: Apply) -> Future[float]:
        call.wait(WAIT_S)
        done: Future[float] = Future()
        done.set_result(apply(call))
        return done

    return chain


@pytest.mark.parametrize("chain", [on_one_stream, by_hand])
def test_the_example_is_clean_and_right_under_every_seed(
    chain: Callable[[], Chain],
) -> None:
    for seed in SEEDS:
        assert run(seed, chain) == expected(), f"with seed {seed}"


def test_callbacks_without_an_order_are_a_race_under_every_seed() -> None:
    """STR-13: callbacks of different futures have none."""
    for seed in SEEDS:
        with pytest.raises(RaceError):
            run(seed, on_any_stream)


@pytest.mark.slow
@pytest.mark.timeout(120)
def test_the_same_under_many_seeds() -> None:
    for seed in MANY:
        assert run(seed, on_one_stream) == expected(), f"with seed {seed}"
        with pytest.raises(RaceError):
            run(seed, on_any_stream)
