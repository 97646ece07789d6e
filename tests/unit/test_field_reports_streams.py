"""What users of the peers met, each kind with the right outcome: streams, extractors.

As test_field_reports.py. Devices are simulated here; B51 to B53 also have tests on a
GPU, B54 in test_extract_known.py.
"""

from __future__ import annotations

import dataclasses
import datetime as dt
import enum
import gc
import threading
import weakref
from pathlib import Path
from typing import Any

import pytest
import torch

import rpcfut
from rpcfut import Future
from rpcfut._registry import isolated_registry
from rpcfut.testing import SimArray, local_cluster, simulate
from tests.support.garbage import settle


@pytest.mark.parametrize("is_done", [False, True], ids=["in set_result", "on the pool"])
def test_b40_a_dropped_future_frees_its_value(*, is_done: bool) -> None:
    """The child that was made from it holds nothing of it, nor does an idle thread."""
    value = torch.ones(10)
    live = weakref.WeakSet([value])
    future: Future[torch.Tensor] = Future()
    if is_done:
        future.set_result(value)
    child = future.then(lambda f: f.value().sum().item())
    together = rpcfut.gather_outcomes([future.then(lambda f: f.value().numel())])
    if not is_done:
        future.set_result(value)
    assert child.wait(timeout=10) == 10
    assert len(together.wait(timeout=10)) == 1
    del value, future
    settle(live, rounds=60)
    assert len(live) == 0


@pytest.mark.parametrize("how", ["done callback", "then", "flattened", "collected"])
def test_b43_a_value_passed_on_into_a_second_future_is_right(how) -> None:
    """No devices are declared anywhere."""
    with simulate() as sim:
        first: Future[SimArray] = Future()
        second: Future[SimArray] = Future()
        if how == "done callback":
            first.add_done_callback(lambda f: second.set_result(f.wait()))
        elif how == "then":
            first.then(lambda f: second.set_result(f.value()))
        elif how == "flattened":
            start: Future[None] = Future()
            second = start.then(lambda _: first)
            start.set_result(None)
        else:
            second = rpcfut.collect_all([first]).then(lambda f: f.value()[0].value())
        with sim.stream(0):
            first.set_result(sim.array([2.0]))
        assert second.wait(timeout=10).tolist() == [2.0]


def test_b43_a_device_value_in_a_future_for_the_host_is_an_error() -> None:
    """At once and by name, never stale data."""
    with simulate() as sim:
        future: Future[SimArray] = Future(devices=["cpu"])
        future.set_result(sim.array([2.0]))
        with pytest.raises(rpcfut.DeviceMismatchError, match="sim:0"):
            future.wait(timeout=10)


def test_b44_a_future_completed_by_a_helper_on_its_own_stream_is_right() -> None:
    with simulate() as sim:
        outer: Future[None] = Future()

        def handler(_: Future[None]) -> Future[SimArray]:
            inner: Future[SimArray] = Future()

            def helper() -> None:
                with sim.stream(0):
                    inner.set_result(sim.array([4.0]))

            threading.Thread(target=helper).start()
            return inner

        child = outer.then(handler)
        outer.set_result(None)
        assert child.wait(timeout=10).tolist() == [4.0]


def test_b44_a_served_function_may_leave_its_result_to_a_helper() -> None:
    """The caller's stream comes after the helper's, not after the request's."""

    def serve() -> Future[SimArray]:
        inner: Future[SimArray] = Future()

        def helper() -> None:
            with sim.stream(0):
                inner.set_result(sim.array([4.0]))

        threading.Thread(target=helper).start()
        return inner

    with simulate() as sim, local_cluster("alice", "bob") as (alice, bob):
        bob.exposed.expose(serve, name="serve")
        with sim.stream(0):
            assert alice.rpc_sync("bob", "serve", timeout=10).tolist() == [4.0]


@pytest.mark.parametrize("used", [(0,), (0, 1)], ids=["never used", "used before"])
def test_b45_a_result_on_a_device_that_no_argument_used_is_right(used) -> None:
    with simulate(2, used=used) as sim:
        parent: Future[SimArray] = Future()
        child = parent.then(lambda f: f.value().to(sim.device(1)) + 1.0)
        with sim.stream(0):
            parent.set_result(sim.array([1.0], device=0))
        with sim.stream(1):
            assert child.wait(timeout=10).tolist() == [2.0]


def test_b45_a_served_function_may_return_a_result_on_another_device() -> None:
    def move(array: SimArray) -> SimArray:
        return array.to(sim.device(1)) + 1.0

    with simulate(2) as sim, local_cluster("alice", "bob") as (alice, bob):
        bob.exposed.expose(move, name="move")
        with sim.stream(0):
            array = sim.array([1.0])
            future = alice.rpc_async("bob", "move", (array,))
        with sim.stream(1):
            moved = future.wait(timeout=10)
            assert moved.device.index == 1
            assert moved.tolist() == [2.0]


class Box:
    """A class of a user."""

    def __init__(self, inside: object) -> None:
        self.inside = inside
        self.is_pickled = False

    def __reduce__(self) -> Any:
        self.is_pickled = True
        return Box, (self.inside,)


@dataclasses.dataclass
class Order:
    """A control message."""

    step: int
    path: Path


class Colour(enum.Enum):
    """A control message."""

    RED = 1


def error_of(value: object) -> BaseException | None:
    """How a future ends that is given a value, by a callback."""
    parent: Future[None] = Future()
    child = parent.then(lambda _: value)
    parent.set_result(None)
    return child.exception(timeout=10)


def test_b46_a_class_works_registered_fails_unregistered_passes_declared() -> None:
    """While a device is in use, where it matters."""
    with simulate() as sim:
        array = sim.array([1.0])
        error = error_of({"boxes": [0, Box(1)]})
        assert isinstance(error, rpcfut.ExtractionError)
        assert error.type_name.endswith("Box")
        assert error.path == "result['boxes'][1]"
        assert "register_type" in error.fix
        assert isinstance(error_of(Box(array)), rpcfut.ExtractionError)
        with isolated_registry():
            rpcfut.register_extractor(Box, lambda box: [box.inside])
            assert error_of([Box(array)]) is None
        with isolated_registry():
            rpcfut.no_device_data(Box)
            assert error_of([Box("control message")]) is None


@pytest.mark.parametrize(
    "message",
    [
        None,
        "go",
        {"step": 3, ("lr", 1): [0.1, b"x"]},
        {Colour.RED, frozenset({1})},
        Order(step=1, path=Path("/tmp")),
        dt.timedelta(seconds=1),
        ValueError("no"),
        Order,
    ],
    ids=repr,
)
def test_b46_plain_control_messages_never_trip_the_extractor(message: object) -> None:
    with simulate() as sim:
        sim.array([1.0])
        assert error_of(message) is None


def test_b47_a_value_may_hold_a_future_beside_a_tensor() -> None:
    """Futures are known; nothing is serialised to look for tensors."""
    with simulate() as sim, isolated_registry():
        rpcfut.register_extractor(Box, lambda box: [box.inside])
        pending: Future[int] = Future()
        future: Future[Box] = Future()
        with sim.stream(0):
            future.set_result(Box({"later": pending, "now": sim.array([1.0])}))
        box = future.wait()
        assert not box.is_pickled
        inside: Any = box.inside
        assert inside["later"] is pending
        assert inside["now"].tolist() == [1.0]


def test_b51_memory_that_was_dropped_is_not_used_again_under_a_reader() -> None:
    with simulate() as sim:
        home, reader = sim.stream(0), sim.stream(0)
        future: Future[SimArray] = Future()
        with home:
            future.set_result(sim.array([1.0]))
        with reader:
            copy = future.wait().clone()
        del future
        gc.collect()
        for _ in range(20):
            with home:
                sim.array([9.0])
        with reader:
            assert copy.tolist() == [1.0]


def test_b51_an_argument_may_be_dropped_while_it_is_sent() -> None:
    """Its memory goes to nobody else before the copy is through."""
    with simulate() as sim, local_cluster("alice", "bob") as (alice, bob):
        bob.exposed.expose(lambda array: array + 0.0, name="echo")
        home, side = sim.stream(0), sim.stream(0)
        with home:
            array = sim.array([1.0])
        with side, sim.held():  # so that the copy waits
            side.wait_stream(home)
            future = alice.rpc_async("bob", "echo", (array,))
            del array
            with home:
                for _ in range(20):
                    sim.array([9.0])
        assert future.wait(timeout=10).tolist() == [1.0]


def test_b53_a_callback_touches_no_device_that_nobody_used() -> None:
    """Inside set_result or on the pool; nor does reading, or a done callback."""
    with simulate(2, used=(1,)) as sim:
        future: Future[SimArray] = Future()
        child = future.then(lambda f: f.value() + 1.0)
        future.add_done_callback(lambda _: None)
        future.set_result(sim.array([1.0], device=1))
        child.then(lambda f: f.value() + 1.0).wait(timeout=10)
        assert [device.index for device in sim.used_devices] == [1]
