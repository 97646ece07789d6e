"""The server's half of `examples/quickstart.py` on simulated arrays.

Round by round, gradients come in as futures, each made on a stream of its own by a
thread of its own; `then` callbacks apply them to the parameters in place. What the
example does right shows here as no race and the right sum under every seed; what it
avoids, as a `RaceError` under every seed.
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

import pytest

import rpcfut
from rpcfut import Future
from rpcfut.testing import RaceError, SimArray, simulate

if TYPE_CHECKING:
    from collections.abc import Callable

    from rpcfut.testing import Simulation

SEEDS = range(200)
WORKERS = 3
ROUNDS = 3
RATE = -0.5  # what a gradient is multiplied by; exact in floating point

Answer = dict[str, SimArray]


class Server:
    """Parameters, and what is done with an answer."""

    def __init__(self, sim: Simulation) -> None:
        self.sim = sim
        self.weights = {"w": sim.zeros(2), "b": sim.zeros(1)}

    def apply(self, done: Future[Answer]) -> None:
        """Take a step; reads, changes and writes each parameter."""
        for name, gradient in done.value().items():
            weight = self.weights[name]
            weight.copy_(weight + gradient * RATE)

    def snapshot(self) -> Answer:
        """What is sent to the workers in a round."""
        return {name: weight.clone() for name, weight in self.weights.items()}

    def read(self) -> list[float]:
        """All parameters, on the host."""
        return self.weights["w"].tolist() + self.weights["b"].tolist()


def answer(sim: Simulation, future: Future[Answer], sent: Answer, step: float) -> None:
    """Be a worker: gradients that depend on what was sent, on a stream of its own."""
    with sim.stream(0) as mine:
        # A call ties what it sends to the streams that are current (STR-8).
        mine.wait_stream(sim.default_stream(0))
        future.set_result({name: weight + step for name, weight in sent.items()})


def answer_all(sim: Simulation, futures: list[Future[Answer]], sent: Answer) -> None:
    """Answer on one thread for each worker; which one comes first is left open."""
    threads = [
        threading.Thread(target=answer, args=(sim, future, sent, float(1 + number)))
        for number, future in enumerate(futures)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def expected() -> list[float]:
    """The parameters after all rounds, worked out one by one."""
    weight = 0.0
    for _ in range(ROUNDS):
        weight += RATE * sum(weight + 1 + number for number in range(WORKERS))
    return [weight] * 3


def train(server: Server, then: Callable[[Future[Answer]], Future[None]]) -> None:
    """All rounds, as `train` in the example."""
    for _ in range(ROUNDS):
        sent = server.snapshot()
        futures: list[Future[Answer]] = [Future() for _ in range(WORKERS)]
        steps = [then(future) for future in futures]
        answer_all(server.sim, futures, sent)
        for step in steps:
            step.wait(10)


@pytest.mark.parametrize("seed", SEEDS)
def test_steps_on_one_stream_are_right(seed: int) -> None:
    """STR-3: they run one at a time, so none is lost, and each round sees the last."""
    with simulate(seed=seed) as sim:
        server = Server(sim)
        updates = rpcfut.stream("sim:0")
        train(server, lambda future: future.then(server.apply, stream=updates))
        assert server.read() == expected()


@pytest.mark.parametrize("seed", SEEDS)
def test_steps_without_an_order_are_a_race(seed: int) -> None:
    """STR-13: callbacks of different futures have none; the first alone is let by."""
    with simulate(seed=seed) as sim:
        p = sim.zeros(1)
        futures: list[Future[SimArray]] = [Future() for _ in range(WORKERS)]
        steps = [future.then(lambda f: p.add_(f.value())) for future in futures]
        for future in futures:
            with sim.stream(0):
                future.set_result(sim.array([1.0]))
        errors = [step.exception(10) for step in steps]
        assert sum(isinstance(error, RaceError) for error in errors) == WORKERS - 1
        assert len(sim.take_races()) == WORKERS - 1


@pytest.mark.parametrize("seed", SEEDS)
def test_reading_before_the_steps_were_waited_for_is_a_race(seed: int) -> None:
    """The children are what orders a reader behind the steps."""
    with simulate(seed=seed) as sim:
        server = Server(sim)
        updates = rpcfut.stream("sim:0")
        sent = server.snapshot()
        future: Future[Answer] = Future()
        step = future.then(server.apply, stream=updates)
        answer(sim, future, sent, 1.0)
        assert step.done()
        with pytest.raises(RaceError):
            server.read()
        assert len(sim.take_races()) == 1
        step.wait(10)
        assert server.read() == [RATE] * 3
