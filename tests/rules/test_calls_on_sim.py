"""The stream rules of calls, by their names: agents in one process, simulated devices.

Each rule is tried under many seeds. The devices are held up where it must not lean on
luck: a call that carries arrays does not leave then. The same rules on a real GPU:
tests/gpu/test_call_rules_on_cuda.py.
"""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

import pytest
import torch

import rpcfut
from rpcfut import Future
from rpcfut._exposed import ExposedTable
from rpcfut.testing import RaceError, SimArray, local_cluster, simulate

if TYPE_CHECKING:
    from rpcfut._agent import Agent
    from rpcfut.testing import Simulation

SEEDS = range(50)
MANY = range(200)
WAIT_S = 15

Add = Callable[[SimArray, SimArray], Any]
Call = Callable[[int], Future[Any]]


def over_seeds(rule: Callable[[Simulation, Agent, Agent], None]) -> Callable[[], None]:
    """Try a rule on two devices, with a worker that calls and one that serves."""

    def test() -> None:
        for seed in SEEDS:
            try:
                with (
                    simulate(2, seed=seed) as sim,
                    local_cluster("caller", "server") as (caller, server),
                ):
                    rule(sim, caller, server)
            except BaseException as error:
                error.add_note(f"with seed {seed}")
                raise

    test.__doc__ = rule.__doc__
    return test


@dataclasses.dataclass
class Pair:
    """A type that travels field by field."""

    left: SimArray
    right: SimArray


@dataclasses.dataclass
class Count:
    """A type without arrays."""

    number: float


class Packed:
    """A type whose unpacking is work for the device."""

    def __init__(self, array: SimArray) -> None:
        self.array = array


def register_packed() -> None:
    """Let `Packed` travel: each of its elements arrives with 1 added."""
    rpcfut.register_type(Packed, lambda p: p.array, lambda array: Packed(array + 1.0))


def double(array: SimArray) -> SimArray:
    """Work of a handler."""
    return array * 2.0


# ---- STR-8: what a call takes with it -----------------------------------------------


@over_seeds
def test_str8_device_arguments_may_be_overwritten_in_stream_order(
    sim: Simulation, caller: Agent, server: Agent
) -> None:
    """The call carries what its stream had made of the argument when it was called."""
    server.exposed.expose(double, name="double")
    with sim.stream(0):
        array = sim.array([2.0, 3.0])
        with sim.held():
            future = caller.rpc_async("server", "double", (array,))
            array.fill_(7.0)
            assert not future.done()
    with sim.stream(0):
        assert future.wait(WAIT_S).tolist() == [4.0, 6.0]


@over_seeds
def test_str8_each_device_has_its_own_current_stream(
    sim: Simulation, caller: Agent, server: Agent
) -> None:
    rpcfut.register_type(Pair)

    def swap(pair: Pair) -> Pair:
        return Pair(
            left=pair.right.to(sim.device(0)), right=pair.left.to(sim.device(1))
        )

    server.exposed.expose(swap, name="swap")
    with sim.stream(1), sim.stream(0):
        pair = Pair(left=sim.array([1.0], 0), right=sim.array([2.0], 1))
        with sim.held():
            future = caller.rpc_async("server", "swap", (pair,))
            pair.left.fill_(7.0)
            pair.right.fill_(7.0)
    back = future.wait(WAIT_S)
    assert (back.left.tolist(), back.right.tolist()) == ([2.0], [1.0])
    assert (str(back.left.device), str(back.right.device)) == ("sim:0", "sim:1")


@over_seeds
def test_str8_host_arguments_may_be_overwritten_at_once(
    sim: Simulation, caller: Agent, server: Agent
) -> None:
    """Also when the call stays behind for the copy of an array beside them."""
    seen: list[object] = []
    server.exposed.expose(lambda *args: seen.append(args[1:]), name="see")
    tensor, data, numbers = torch.ones(2), bytearray(b"1" * 5000), [1]
    with sim.held():
        future = caller.rpc_async(
            "server", "see", (sim.zeros(1), tensor, data, numbers)
        )
        tensor.zero_()
        data[:] = b"0" * 5000
        numbers.clear()
        assert not future.done()
    future.wait(WAIT_S)
    ((got, got_data, got_numbers),) = seen  # type: ignore[misc]
    assert got.tolist() == [1.0, 1.0]
    assert (got_data, got_numbers) == (b"1" * 5000, [1])


@over_seeds
def test_str11_an_argument_may_be_dropped_while_its_copy_waits(
    sim: Simulation, caller: Agent, server: Agent
) -> None:
    """It was made on another stream, which gets its memory back, and uses it."""
    server.exposed.expose(double, name="double")
    home = sim.stream(0)
    with home:
        array = sim.array([2.0])
    with sim.stream(0) as side, sim.held():
        side.wait_stream(home)
        future = caller.rpc_async("server", "double", (array,))
        del array
        with home:
            sim.array([7.0])
    assert future.wait(WAIT_S).tolist() == [4.0]


# ---- STR-9: where a function runs, and behind what ----------------------------------


@over_seeds
def test_str9_a_function_runs_on_streams_of_its_own_behind_its_arguments(
    sim: Simulation, caller: Agent, server: Agent
) -> None:
    streams = []

    def work(array: SimArray) -> SimArray:
        streams.append(sim.current_stream(0))
        return array + array

    server.exposed.expose(work, name="work")
    mine = sim.stream(0)
    with mine:
        assert caller.rpc_sync("server", "work", (sim.array([2.0]),)).tolist() == [4.0]
    assert streams[0] not in (mine, sim.default_stream(0))


@over_seeds
def test_str9_the_unpacking_of_user_types_is_waited_for(
    sim: Simulation, caller: Agent, server: Agent
) -> None:
    """Of arguments by the function, of an answer by whoever reads it, anywhere."""
    register_packed()
    server.exposed.expose(lambda packed: Packed(packed.array * 2.0), name="work")
    with sim.stream(0):
        future = caller.rpc_async("server", "work", (Packed(sim.array([2.0])),))
    with sim.stream(0):
        assert future.wait(WAIT_S).array.tolist() == [7.0]
    child = future.then(lambda f: f.value().array * 2.0)
    assert child.wait(WAIT_S).tolist() == [14.0]


@over_seeds
def test_str9_a_function_runs_behind_what_was_queued_where_it_was_exposed(
    sim: Simulation, caller: Agent, server: Agent
) -> None:
    """Whether it is ordered behind other calls or not."""
    with sim.stream(0):
        weights = sim.array([3.0])
        server.exposed.expose(lambda: weights * 2.0, name="work")
        server.exposed.expose(lambda: weights * 4.0, name="loose", ordered=False)
    assert caller.rpc_sync("server", "work", timeout=WAIT_S).tolist() == [6.0]
    assert caller.rpc_sync("server", "loose", timeout=WAIT_S).tolist() == [12.0]


@over_seeds
def test_str9_a_function_runs_behind_what_was_queued_where_its_worker_joined(
    sim: Simulation, *_: Agent
) -> None:
    """It was exposed before; whether it is ordered behind other calls or not."""
    for ordered in (True, False):
        kept: list[SimArray] = []
        exposed = ExposedTable()
        exposed.expose(lambda: kept[-1] * 2.0, name="work", ordered=ordered)  # noqa: B023 - called in the loop
        with sim.stream(0):
            kept.append(sim.array([3.0]))
            with local_cluster("c", "s", exposed=exposed) as (caller, _):
                answer = caller.rpc_sync("s", "work", timeout=WAIT_S)
                assert answer.tolist() == [6.0]


@over_seeds
def test_str9_an_answer_leaves_behind_the_copies_of_its_arrays(
    sim: Simulation, caller: Agent, server: Agent
) -> None:
    server.exposed.expose(lambda: sim.array([5.0]), name="make")
    with sim.stream(0):
        assert caller.rpc_sync("server", "make", timeout=WAIT_S).tolist() == [5.0]


@over_seeds
def test_str9_a_result_carries_the_streams_current_when_the_function_returns(
    sim: Simulation, caller: Agent, server: Agent
) -> None:

    def switch() -> SimArray:
        sim.set_stream(sim.stream(0))
        return sim.array([5.0])

    server.exposed.expose(switch, name="switch")
    assert caller.rpc_sync("server", "switch", timeout=WAIT_S).tolist() == [5.0]


@over_seeds
def test_str9_a_future_that_a_function_returns_is_answered_behind_its_work(
    sim: Simulation, caller: Agent, server: Agent
) -> None:

    def work(array: SimArray) -> Future[SimArray]:
        future: Future[SimArray] = Future()
        child = future.then(lambda f: f.value() + array)
        with sim.stream(0):
            future.set_result(sim.array([3.0]))
        return child

    server.exposed.expose(work, name="work")
    answer = caller.rpc_sync("server", "work", (sim.array([2.0]),), timeout=WAIT_S)
    assert answer.tolist() == [5.0]


@over_seeds
def test_str9_each_step_of_an_async_function_runs_behind_what_it_knows(
    sim: Simulation, caller: Agent, server: Agent
) -> None:
    """Its arguments, what it awaited, and its own earlier steps."""

    async def work(array: SimArray) -> SimArray:
        doubled = array * 2.0
        later: Future[SimArray] = Future()
        with sim.stream(0):
            later.set_result(sim.array([3.0]))
        return doubled + await later

    server.exposed.expose(work, name="work")
    with sim.stream(0):
        future = caller.rpc_async("server", "work", (sim.array([2.0]),))
    assert future.wait(WAIT_S).tolist() == [7.0]


@over_seeds
def test_str5_an_answer_without_arrays_comes_with_what_the_caller_unpacked(
    sim: Simulation, caller: Agent, server: Agent
) -> None:
    """Waiting for a call waits for all that was launched to take its answer apart."""
    total = sim.zeros(1)
    sim.synchronize()

    def add(number: float) -> Count:
        total.add_(number)
        return Count(number)

    rpcfut.register_type(Count, lambda count: count.number, add)
    server.exposed.expose(lambda: Count(3.0), name="count")
    caller.rpc_sync("server", "count", timeout=WAIT_S)
    assert total.tolist() == [3.0]


# ---- STR-13: the order of handlers --------------------------------------------------


def plainly(total: SimArray, array: SimArray) -> None:
    """Add in place."""
    total.add_(array)


def in_a_callback(total: SimArray, array: SimArray) -> Future[None]:
    """Add in place later, on streams that the function never sees."""
    made: Future[SimArray] = Future()
    child = made.then(lambda f: plainly(total, f.value()))
    made.set_result(array)
    return child


async def in_steps(total: SimArray, array: SimArray) -> None:
    """Add in place in the second step of a coroutine."""
    await asyncio.sleep(0)
    total.add_(array)


def and_fail(total: SimArray, array: SimArray) -> None:
    """Add in place, and raise."""
    total.add_(array)
    raise KeyError("on purpose")


def two_clients(seed: int, add: Add, work: Callable[[Call], None], **how: Any) -> float:
    """Let two clients call `add`, as `work` says, of a server; what that then holds."""
    with simulate(seed=seed) as sim, local_cluster("c0", "c1", "server") as agents:
        total = sim.zeros(1)
        exposed = agents[2].exposed
        exposed.expose(partial(add, total), name="add", **how)
        exposed.expose(lambda: total * 1.0, name="get")

        def call(client: int) -> Future[None]:
            with sim.stream(0):
                return agents[client].rpc_async("server", "add", (sim.array([1.0]),))

        work(call)
        (value,) = agents[0].rpc_sync("server", "get", timeout=WAIT_S).tolist()
        return value


def in_turn(call: Call) -> None:
    """Four calls; each client has seen the other's end, good or bad."""
    for number in range(4):
        error = call(number % 2).exception(WAIT_S)
        if isinstance(error, RaceError):
            raise error


@pytest.mark.parametrize("add", [plainly, in_a_callback, in_steps, and_fail])
def test_str13_a_call_comes_after_those_that_were_seen_to_complete(add: Add) -> None:
    """By whomever: two clients add to one array in turn, and no update is lost."""
    for seed in MANY if add is plainly else SEEDS:
        assert two_clients(seed, add, in_turn) == 4.0


def test_str13_functions_that_are_not_ordered_race() -> None:
    """Whatever the seed: nothing but their order keeps the two apart."""
    for seed in MANY:
        with pytest.raises(RaceError):
            two_clients(seed, plainly, in_turn, ordered=False)


@over_seeds
def test_str13_a_function_that_is_not_ordered_waits_for_none(
    sim: Simulation, caller: Agent, server: Agent
) -> None:
    """Whatever the seed: it races with an ordered one."""
    total = sim.zeros(1)
    server.exposed.expose(lambda: plainly(total, total), name="add")
    server.exposed.expose(lambda: total * 1.0, name="get", ordered=False)
    caller.rpc_sync("server", "add", timeout=WAIT_S)
    with pytest.raises(RaceError):
        caller.rpc_sync("server", "get", timeout=WAIT_S)
    assert len(sim.take_races()) == 1
