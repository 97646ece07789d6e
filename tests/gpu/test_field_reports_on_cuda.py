"""What users of the peers met with calls on GPUs, each kind as a test.

As in test_rules_on_cuda.py a latch makes each race certain. The same rows on the
simulated device: tests/unit/test_field_reports_calls.py. B50 and B56 stand in
test_values_on_cuda.py.
"""

from __future__ import annotations

import queue
from typing import TYPE_CHECKING, Any

import pytest
import torch

from rpcfut import Future
from rpcfut.testing import local_cluster
from tests.support.latch import Latch
from tests.support.rounds import SIZE, held_write, in_rounds
from tests.support.served_on_cuda import (
    WAIT_S,
    Served,
    free_streams_taken,
    is_answer,
    wait_until_idle,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

    from rpcfut._agent import Agent

pytestmark = [pytest.mark.gpu(n=1), pytest.mark.timeout(180)]


@pytest.fixture
def workers() -> Iterator[list[Agent]]:
    """A server, and two workers that call it."""
    with local_cluster("server", "one", "two") as agents:
        yield agents


class Stage:
    """A function of a pipeline, whose kernels wait for a latch of each call."""

    def __init__(self, number: int) -> None:
        self.number = number
        self._held: queue.SimpleQueue[tuple[Latch, torch.cuda.Stream]] = (
            queue.SimpleQueue()
        )

    def __call__(self, tensor: torch.Tensor) -> torch.Tensor:
        latch, stream = Latch(), torch.cuda.current_stream(0)
        result = torch.zeros_like(tensor)
        latch.hold(stream)
        result.add_(tensor).mul_(2).add_(self.number)
        self._held.put((latch, stream))
        return result

    def release(self) -> None:
        """Let the kernels of one call run, after all others had their chance."""
        latch, stream = self._held.get(timeout=WAIT_S)
        latch.open_after_chance(stream)


def test_b48_a_pipeline_of_async_calls_gives_what_the_local_one_gives(
    workers: list[Agent],
) -> None:
    """Four stages on two workers; the kernels of each are late, the host never is."""
    stages = [Stage(number) for number in range(4)]
    pair = workers[:2]
    for stage in stages:
        for agent in pair:
            agent.exposed.expose(stage, name=f"stage {stage.number}")

    def call(number: int, done: Future[Any]) -> Future[Any]:
        caller, callee = pair[number % 2], pair[1 - number % 2]
        return caller.rpc_async(callee.info, f"stage {number}", (done.value(),))

    def is_right(turn: int) -> bool:
        latch = Latch()
        stream, tensor = held_write(latch, turn)
        first: Future[Any] = Future()
        last, expected = first, float(turn)
        for number in range(4):
            last = last.then(lambda done, number=number: call(number, done))
            expected = expected * 2 + number
        with torch.cuda.stream(stream):
            first.set_result(tensor)
        latch.open_after_chance(stream)
        for stage in stages:
            stage.release()
        return is_answer(last, expected)

    in_rounds(is_right)


def test_b49_calls_that_change_one_tensor_keep_their_order_whoever_makes_them(
    workers: list[Agent],
) -> None:
    """One worker fills it and has its answer; then another multiplies; then a read."""
    server, one, two = workers
    served = Served()
    total = torch.zeros(SIZE, device="cuda:0")
    torch.cuda.current_stream(0).synchronize()
    latches: queue.SimpleQueue[Latch] = queue.SimpleQueue()

    def fill(value: float) -> None:
        latches.get(timeout=WAIT_S).hold(torch.cuda.current_stream(0))
        total.fill_(value)

    def multiply(factor: float) -> None:
        total.mul_(factor)

    server.exposed.expose(fill, name="fill")
    server.exposed.expose(served.saying_so(multiply), name="multiply")
    server.exposed.expose(total.clone, name="read")

    def is_right(turn: int) -> bool:
        latch = Latch()
        latches.put(latch)
        one.rpc_sync("server", "fill", (turn,), timeout=WAIT_S)
        wait_until_idle(server)
        with free_streams_taken():
            two.rpc_sync("server", "multiply", (10,), timeout=WAIT_S)
            latch.open_after_chance(served.stream())
            return is_answer(one.rpc_async("server", "read"), 10 * turn)

    in_rounds(is_right)
