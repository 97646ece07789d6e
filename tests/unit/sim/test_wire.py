"""How arrays and races of the simulated device travel, and how it is held up."""

from __future__ import annotations

import math
import struct

import pytest
import torch

from rpcfut._codec import decode, encode
from rpcfut._devices import Device
from rpcfut._errors import DecodeError
from rpcfut._staging import Staging, place
from rpcfut._tensor_writer import DeviceArray
from rpcfut.testing import (
    RaceError,
    SimArray,
    Simulation,
    UseAfterFreeError,
    local_cluster,
    simulate,
)

WAIT_S = 15


def trip(value: object, sim: Simulation) -> object:
    """What arrives of a value; the host waits in between, as the watcher does."""
    staging = Staging()
    body, buffers = encode(value, stage=staging.stage)
    sim.synchronize()
    return decode(body, buffers, place=place)


@pytest.mark.parametrize("length", [0, 1, 70])
def test_an_array_arrives_with_its_elements_on_its_device(length: int) -> None:
    values = [float(number) / 4 for number in range(length)]
    with simulate(2) as sim:
        array = sim.array(values, 1)
        back = trip({"x": [array]}, sim)
        (arrived,) = back["x"]  # type: ignore[index]
        assert arrived.tolist() == values
        assert arrived.device == sim.device(1)
        arrived.add_(1.0)
        assert array.tolist() == values


def test_what_is_sent_is_garbage_until_the_host_waited_for_the_copy() -> None:
    """Whatever has run by then: bytes that leave too early are wrong each time."""
    for seed in range(20):
        with simulate(seed=seed) as sim:
            staging = Staging()
            _, (buffer,) = encode(sim.array([3.0]), stage=staging.stage)
            assert math.isnan(struct.unpack("=d", buffer)[0])
            for mark in staging.marks():
                mark.event.synchronize()
            assert struct.unpack("=d", buffer) == (3.0,)


def test_the_copy_of_an_argument_is_an_operation_that_races() -> None:
    with simulate() as sim:
        with sim.stream():
            array = sim.array([1.0])
        with pytest.raises(RaceError, match="the read by the copy of a call"):
            encode(array, stage=Staging().stage)
        assert len(sim.take_races()) == 1


def test_an_array_of_a_kind_of_device_that_is_not_here_is_refused() -> None:
    with pytest.raises(DecodeError, match="cannot use such devices: no seam for"):
        place(torch.ones(1, dtype=torch.float64), Device("sim", 0))


def test_a_message_that_holds_no_array_is_refused() -> None:
    with simulate() as sim:
        here = sim.device(0)
        for tensor in (torch.ones(1), torch.ones(1, 1, dtype=torch.float64)):
            with pytest.raises(DecodeError, match=r"for sim:0, whose arrays"):
                place(tensor, here)
        body, buffers = encode(sim.array([1.0]), stage=lambda _: bytearray(8))
        with pytest.raises(DecodeError, match="a Tensor where an array was expected"):
            decode(body, buffers, place=lambda tensor, _: tensor)


def test_a_device_array_that_is_empty_has_no_buffer() -> None:
    with simulate() as sim:
        source = sim.empty(0)
        array = DeviceArray(source=source, dtype=torch.float64, shape=(0,))
        _, buffers = encode(array, stage=lambda _: pytest.fail("nothing to stage"))
        assert buffers == []


def test_a_race_in_a_function_reaches_its_caller_as_itself() -> None:
    with simulate() as sim, local_cluster("w0", "w1") as (w0, w1):
        with sim.stream(0):
            array = sim.array([1.0])
        w1.exposed.expose(array.tolist, name="list")
        future = w0.rpc_async("w1", "list")
        error = future.exception(WAIT_S)
        assert isinstance(error, RaceError)
        (race,) = sim.take_races()
        assert (error.first, error.second) == (race.first, race.second)
        assert str(error) == str(race)
        assert error.first.name == "load_"


def test_memory_freed_too_early_by_a_function_reaches_its_caller_as_itself() -> None:
    with simulate() as sim, local_cluster("w0", "w1") as (w0, w1):

        def lose() -> None:
            home = sim.stream(0)
            with home:
                array = sim.array([1.0])
            sim.current_stream(0).wait_stream(home)
            array.clone()
            del array
            with home:
                sim.array([2.0])

        w1.exposed.expose(lose, name="lose")
        error = w0.rpc_async("w1", "lose").exception(WAIT_S)
        assert isinstance(error, UseAfterFreeError)
        assert error.first.name == "clone"
        assert error.former.number < error.allocation.number
        assert len(sim.take_races()) == 1


def test_a_race_that_came_from_a_worker_is_not_found_twice() -> None:
    def race() -> None:
        with simulate() as sim, local_cluster("w0", "w1") as (w0, w1):
            with sim.stream(0):
                array = sim.array([1.0])
            w1.exposed.expose(array.tolist, name="list")
            w0.rpc_sync("w1", "list", timeout=WAIT_S)

    with pytest.raises(RaceError) as caught:
        race()
    notes = "\n".join(caught.value.__notes__)
    assert "function 'list'" in notes
    assert "also found" not in notes


def test_devices_that_are_held_up_answer_no_to_whoever_asks() -> None:
    for seed in range(20):
        with simulate(seed=seed) as sim:
            array: SimArray = sim.array([1.0])
            event = sim.current_stream().record_event()
            with sim.held():
                assert not any(event.query() for _ in range(50))
                assert not sim.current_stream().query()
                with pytest.raises(ValueError, match="held up already"), sim.held():
                    pass
                assert array.tolist() == [1.0], "waiting still ends"
                assert event.query(), "the host waited for it"
            later = sim.current_stream().record_event()
            while not later.query():
                pass


def test_a_call_that_carries_an_array_stays_behind_while_devices_are_held_up() -> None:
    with simulate() as sim, local_cluster("w0", "w1") as (w0, w1):
        w1.exposed.expose(lambda array: array * 2.0, name="double")
        w1.exposed.expose(lambda: None, name="nothing")
        with sim.held():
            future = w0.rpc_async("w1", "double", (sim.array([2.0]),))
            w0.rpc_sync("w1", "nothing", timeout=WAIT_S)
            assert not future.done()
        assert future.wait(WAIT_S).tolist() == [4.0]
