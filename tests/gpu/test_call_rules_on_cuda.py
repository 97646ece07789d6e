"""The stream rules of calls on a real GPU, by their names; the mutants are caught here.

Agents in one process, whose tensors go through pinned memory as between two. As in
test_rules_on_cuda.py a latch makes each race certain: nothing that waits for the GPU
may run before the host opens it, and whoever wrongly does not wait gets its chance to
run ahead. The same rules on the simulated device: tests/rules/test_calls_on_sim.py.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

import pytest
import torch

import rpcfut
from rpcfut._exposed import ExposedTable
from rpcfut.testing import local_cluster
from tests.support.latch import Latch
from tests.support.rounds import SIZE, held_write, in_rounds, reads
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


def late(value: float) -> torch.Tensor:
    """A tensor of zeros that becomes `value`, here, once the latch opens."""
    tensor = torch.zeros(SIZE, device="cuda:0")
    Held.latch.hold(torch.cuda.current_stream(0))
    return tensor.fill_(value)


class Held:
    """Travels as a number, and arrives with a tensor of it that is `late`."""

    latch: ClassVar[Latch]

    def __init__(self, value: float, tensor: torch.Tensor | None = None) -> None:
        self.value = value
        self.tensor = tensor

    @classmethod
    def unpack(cls, value: float) -> Held:
        return cls(value, late(value))


rpcfut.register_type(Held, lambda held: held.value, Held.unpack)


@pytest.fixture
def served() -> Served:
    return Served()


@pytest.fixture
def workers() -> Iterator[list[Agent]]:
    """A server, and two workers that call it."""
    with local_cluster("server", "one", "two") as agents:
        yield agents


def double(tensor: torch.Tensor) -> torch.Tensor:
    return tensor * 2


def filled(value: float) -> torch.Tensor:
    return torch.full((SIZE,), float(value), device="cuda:0")


# ---- STR-8, STR-11: what a call takes with it ----------------------------------------


def test_str8_device_arguments_may_be_overwritten_in_stream_order(
    workers: list[Agent],
) -> None:
    """The host waits for nothing: the latch is shut when `rpc_async` has returned."""
    server, one, _ = workers
    server.exposed.expose(double, name="double")

    def is_right(turn: int) -> bool:
        latch = Latch()
        stream, tensor = held_write(latch, turn)
        with torch.cuda.stream(stream):
            future = one.rpc_async("server", "double", (tensor,))
            tensor.fill_(-1)
        latch.open_after_chance(stream)
        return is_answer(future, 2 * turn)

    in_rounds(is_right)


def test_str8_host_arguments_may_be_overwritten_at_once(workers: list[Agent]) -> None:
    """Also while the call stays behind for the copy of a tensor beside them."""
    server, one, _ = workers
    server.exposed.expose(lambda device, host: host.to("cuda:0"), name="second")

    def is_right(turn: int) -> bool:
        latch = Latch()
        stream, tensor = held_write(latch, turn)
        host = torch.full((SIZE,), float(turn))
        with torch.cuda.stream(stream):
            future = one.rpc_async("server", "second", (tensor, host))
        host.fill_(-1)
        latch.open()
        return is_answer(future, turn)

    in_rounds(is_right)


def test_str11_an_argument_may_be_dropped_while_its_copy_waits(
    workers: list[Agent],
) -> None:
    """It was made on another stream, which gets its memory back, and uses it."""
    server, one, _ = workers
    server.exposed.expose(double, name="double")

    def is_right(turn: int) -> bool:
        latch = Latch()
        home, side = torch.cuda.Stream(0), torch.cuda.Stream(0)
        with torch.cuda.stream(home):
            tensor = filled(turn)
        side.wait_stream(home)
        latch.hold(side)
        with torch.cuda.stream(side):
            future = one.rpc_async("server", "double", (tensor,))
        del tensor
        with torch.cuda.stream(home):
            noise = [filled(-1) for _ in range(4)]
        home.synchronize()
        latch.open()
        right = is_answer(future, 2 * turn)
        del noise
        return right

    in_rounds(is_right)


# ---- STR-9: where a function runs, and behind what -----------------------------------


def test_str9_a_function_runs_behind_the_unpacking_of_its_arguments(
    workers: list[Agent], served: Served
) -> None:
    server, one, _ = workers
    work = served.saying_so(lambda held: held.tensor * 2)
    server.exposed.expose(work, name="work")

    def is_right(turn: int) -> bool:
        Held.latch = latch = Latch()
        future = one.rpc_async("server", "work", (Held(turn),))
        latch.open_after_chance(served.stream())
        return is_answer(future, 2 * turn)

    in_rounds(is_right)


def test_str9_a_function_runs_behind_what_was_queued_where_it_was_exposed(
    workers: list[Agent], served: Served
) -> None:
    server, one, _ = workers

    def is_right(turn: int) -> bool:
        latch = Latch()
        stream, tensor = held_write(latch, turn)
        with torch.cuda.stream(stream):
            work = served.saying_so(lambda: tensor * 2)
            server.exposed.expose(work, name=f"work {turn}")
        future = one.rpc_async("server", f"work {turn}")
        latch.open_after_chance(served.stream())
        return is_answer(future, 2 * turn)

    in_rounds(is_right)


@pytest.mark.parametrize("ordered", [True, False])
def test_str9_a_function_runs_behind_what_was_queued_where_its_worker_joined(
    served: Served, *, ordered: bool
) -> None:
    """It was exposed before."""
    kept: list[torch.Tensor] = []
    exposed = ExposedTable()
    work = served.saying_so(lambda: kept[0] * 2)
    exposed.expose(work, name="work", ordered=ordered)

    def is_right(turn: int) -> bool:
        latch = Latch()
        stream, tensor = held_write(latch, turn)
        kept[:] = [tensor]
        with (
            torch.cuda.stream(stream),
            local_cluster("server", "one", exposed=exposed) as (_, one),
        ):
            future = one.rpc_async("server", "work")
            latch.open_after_chance(served.stream())
            return is_answer(future, 2 * turn)

    in_rounds(is_right)


def test_str9_an_answer_leaves_behind_the_copies_of_its_tensors(
    workers: list[Agent], served: Served
) -> None:
    """The function returns long before its kernels have run."""
    server, one, _ = workers
    server.exposed.expose(served.saying_so(late), name="make")

    def is_right(turn: int) -> bool:
        Held.latch = latch = Latch()
        future = one.rpc_async("server", "make", (turn,))
        latch.open_after_chance(served.stream())
        return is_answer(future, turn)

    in_rounds(is_right)


def test_str9_an_answer_is_read_behind_its_unpacking(workers: list[Agent]) -> None:
    """The caller unpacks it on streams of its own; whoever reads waits for these."""
    server, one, _ = workers
    server.exposed.expose(Held, name="make")

    def is_right(turn: int) -> bool:
        Held.latch = latch = Latch()
        future = one.rpc_async("server", "make", (turn,))
        return reads(latch, lambda: future.wait(WAIT_S).tensor, turn)

    in_rounds(is_right)


# ---- STR-13: the order of handlers ---------------------------------------------------


def test_str13_a_call_comes_after_one_that_was_seen_to_complete(
    workers: list[Agent], served: Served
) -> None:
    """Its answer came while the GPU was held up; another worker calls, then."""
    server, one, two = workers
    total = torch.zeros(SIZE, device="cuda:0")
    torch.cuda.current_stream(0).synchronize()

    def write(value: float) -> None:
        Held.latch.hold(torch.cuda.current_stream(0))
        total.fill_(value)

    server.exposed.expose(write, name="write")
    server.exposed.expose(served.saying_so(lambda: total * 2), name="get")

    def is_right(turn: int) -> bool:
        Held.latch = latch = Latch()
        one.rpc_sync("server", "write", (turn,), timeout=WAIT_S)
        wait_until_idle(server)
        with free_streams_taken():
            future = two.rpc_async("server", "get")
            latch.open_after_chance(served.stream())
            return is_answer(future, 2 * turn)

    in_rounds(is_right)
