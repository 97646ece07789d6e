"""Each stream rule on the simulated device, by its name; the mutants are caught here.

A rule that does not hold shows as a `RaceError` or as a wrong value, whatever the seed.
The same rules on a real GPU: tests/gpu/test_rules_on_cuda.py.
"""

from __future__ import annotations

import threading
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING

import pytest
import torch

import rpcfut
from rpcfut import Future, _callbacks
from rpcfut._handover import Made, hand_over
from rpcfut._stream_pool import StreamPool
from rpcfut.testing import (
    BrokenCaptureError,
    RaceError,
    SimArray,
    local_cluster,
    simulate,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from rpcfut.testing import Simulation

SEEDS = range(5)


@pytest.fixture(params=SEEDS)
def sim(request: pytest.FixtureRequest) -> Iterator[Simulation]:
    """Two devices; a race that nobody saw fails the test."""
    with simulate(2, seed=request.param) as simulation:
        yield simulation


class Opaque:
    """A type that nobody registered, with an array inside."""

    def __init__(self, array: SimArray) -> None:
        self.array = array


def made_aside(sim: Simulation, value: float = 2.0) -> Future[SimArray]:
    """A future of an array that a side stream made."""
    future: Future[SimArray] = Future()
    with sim.stream(0):
        future.set_result(sim.array([value]))
    return future


def test_str1_completing_records_on_the_completing_threads_stream(
    sim: Simulation,
) -> None:
    future = made_aside(sim)
    assert future.wait().tolist() == [2.0]


def test_str2_reading_makes_the_readers_stream_wait(sim: Simulation) -> None:
    future = made_aside(sim)
    with sim.stream(0):
        copy = future.wait().clone()
        assert copy.tolist() == [2.0]
    assert future.result().tolist() == [2.0]


def test_str2_the_allocator_is_told_who_reads(sim: Simulation) -> None:
    home = sim.stream(0)
    future: Future[SimArray] = Future()
    with home:
        future.set_result(sim.array([1.0]))
    with sim.stream(0):
        copy = future.wait().clone()
        del future
        with home:
            sim.array([5.0])
        assert copy.tolist() == [1.0]


def test_str3_a_callback_comes_after_its_parents_work(sim: Simulation) -> None:
    child = made_aside(sim).then(lambda f: f._outcome.value * 2.0)  # type: ignore[union-attr]
    assert child.wait().tolist() == [4.0]


def test_str3_a_callback_comes_after_the_code_before_then(sim: Simulation) -> None:
    future: Future[None] = Future()
    with sim.stream(0):
        before = sim.array([1.0])
        child = future.then(lambda _: before + before)
    future.set_result(None)
    assert child.wait().tolist() == [2.0]


def test_str3_callbacks_given_one_stream_do_not_interleave() -> None:
    with simulate() as sim:
        stream = rpcfut.stream("sim:0")
        total = sim.zeros(1)
        inside = [threading.Event(), threading.Event()]

        def update(number: int, f: Future[SimArray]) -> None:
            new = total + f.value()
            inside[number].set()
            # If the other one may come between, it has time to; if not, this ends.
            inside[1 - number].wait(0.2)
            total.copy_(new)

        futures: list[Future[SimArray]] = [Future(), Future()]
        children = [
            f.then(partial(update, number), stream=stream)
            for number, f in enumerate(futures)
        ]
        value = sim.array([1.0])
        threads = [
            threading.Thread(target=f.set_result, args=(value,)) for f in futures
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(10)
        for child in children:
            child.wait(10)
        assert total.tolist() == [2.0]


def test_str4_the_childs_events_come_from_what_is_returned(sim: Simulation) -> None:
    """On the stream that was current when the callback returned."""
    side = sim.stream(0)

    def switch(_: Future[None]) -> SimArray:
        sim.set_stream(side)
        return sim.array([1.0])

    future: Future[None] = Future()
    child = future.then(switch)
    future.set_result(None)
    assert child.wait().tolist() == [1.0]


@pytest.mark.parametrize("ending", ["nothing", "raises", "unknown"])
def test_str5_what_was_launched_in_place_is_waited_for(
    sim: Simulation, ending: str
) -> None:
    p = sim.zeros(1)

    def work(_: Future[None]) -> object:
        p.add_(3.0)
        if ending == "raises":
            raise KeyError("on purpose")
        return Opaque(p) if ending == "unknown" else None

    future: Future[None] = Future()
    child = future.then(work)
    future.set_result(None)
    child.exception()
    assert p.tolist() == [3.0]


def test_str6_an_unknown_type_never_hides_behind_the_parents_events(
    sim: Simulation,
) -> None:
    def work(f: Future[SimArray]) -> Opaque:
        with sim.stream(0):
            return Opaque(f.value() + 1.0)

    parent: Future[SimArray] = Future()
    child = parent.then(work)
    with sim.stream(0):
        parent.set_result(sim.array([2.0]))
    assert child.done()  # it ran inside set_result, and failed at once
    error = child.exception()
    if error is None:
        child.wait().array.tolist()  # what happens if it is let through
    assert isinstance(error, rpcfut.ExtractionError)


def test_str7_without_declared_devices_they_come_from_the_value(
    sim: Simulation,
) -> None:
    future: Future[SimArray] = Future()
    with sim.stream(1):
        future.set_result(sim.array([2.0], device=1))
    assert future.wait().tolist() == [2.0]
    declared: Future[SimArray] = Future(devices=["sim:0"])
    declared.set_result(sim.zeros(1, device=1))
    assert isinstance(declared.exception(), rpcfut.DeviceMismatchError)


class Pass:
    """A backward pass whose one kernel adds a gradient to that of a leaf.

    The graph lies on the host, so a hook runs under the streams that the pass has; it
    does what torch's engine does for a node that was made on `node` in the forward
    pass: have that wait for these streams, and at the end these for that.
    """

    def __init__(self, sim: Simulation) -> None:
        self._sim = sim
        self._node = sim.stream(0)
        with self._node:
            self.grad = sim.zeros(1)

    def start(self, gradient: SimArray | None) -> Future[None]:
        """Hand the pass over, with an explicit gradient or an implicit one."""

        def run(_: torch.Tensor) -> None:
            its = self._sim.current_stream(0)
            root = self._sim.array([1.0]) if gradient is None else gradient
            self._node.wait_stream(its)
            with self._node:
                self.grad.add_(root)
            its.wait_stream(self._node)

        loss = torch.ones(1, requires_grad=True).sum()
        loss.register_hook(run)
        return rpcfut.backward(loss)


def test_str10_an_implicit_gradient_is_safe(sim: Simulation) -> None:
    """Whatever is current: forward, caller and reader have streams of their own."""
    one = Pass(sim)
    with sim.stream(0):
        future = one.start(None)
    with sim.stream(0):
        future.wait(5)
        assert one.grad.tolist() == [1.0]


def test_str10_an_explicit_gradient_of_the_callers_stream_is_safe(
    sim: Simulation,
) -> None:
    one = Pass(sim)
    with sim.stream(0):
        future = one.start(sim.array([2.0]))
    with sim.stream(0):
        future.wait(5)
        assert one.grad.tolist() == [2.0]


def test_str10_an_explicit_gradient_of_another_stream_is_a_race() -> None:
    """Nothing orders the two; here it is found, whatever the seed."""
    for seed in SEEDS:
        with simulate(seed=seed) as sim:
            one = Pass(sim)
            with sim.stream(0):
                gradient = sim.array([2.0])
            error = one.start(gradient).exception(5)
            assert isinstance(error, RaceError)
            assert len(sim.take_races()) == 1


def test_str10_an_explicit_gradient_of_a_joined_stream_is_safe(sim: Simulation) -> None:
    one = Pass(sim)
    other = sim.stream(0)
    with other:
        gradient = sim.array([2.0])
    with sim.stream(0) as mine:
        mine.wait_stream(other)
        future = one.start(gradient)
    with sim.stream(0):
        future.wait(5)
        assert one.grad.tolist() == [2.0]


def test_str10_a_step_chained_to_the_pass_is_safe(sim: Simulation) -> None:
    one = Pass(sim)
    with sim.stream(0):
        step = one.start(None).then(lambda _: one.grad.mul_(3.0))
    assert step.wait(5).tolist() == [3.0]


def test_str10_gradients_live_until_their_reader_is_through(sim: Simulation) -> None:
    """The future's value is None, and yet the allocator is told who reads."""
    home, made = sim.stream(0), list[SimArray]()

    def run() -> Made[None]:
        with home:
            made.append(sim.array([1.0]))
        sim.current_stream(0).wait_stream(home)
        return Made(None, list(made))

    future = hand_over(run, what="backward pass")
    with sim.stream(0):
        future.wait(5)
        copy = made.pop().clone()
        del future
        with home:
            sim.array([5.0])
        assert copy.tolist() == [1.0]


def test_str11_memory_lives_until_the_last_reader_is_through(sim: Simulation) -> None:
    """The callback reads on its stream; everybody else drops the value."""
    home = sim.stream(0)
    future: Future[SimArray] = Future()
    with home:
        future.set_result(sim.array([1.0]))
    child = future.then(lambda f: f.value().clone())
    copy = child.wait(5)
    del future, child
    with home:
        sim.array([5.0])
    assert copy.tolist() == [1.0]


def test_str12_a_device_that_nobody_used_gets_no_streams_or_events() -> None:
    """Whatever futures do on the other one, and though the future may lie on it."""
    with simulate(2, used=(0,)) as sim:
        value: Future[SimArray] = Future(devices=["sim:0", "sim:1"])
        child = value.then(lambda f: f.value() * 2.0)
        awaited = child.then_async(twice)
        with sim.stream(0):
            value.set_result(sim.array([1.0]))
        assert awaited.wait(5).tolist() == [4.0]
        backward = Pass(sim).start(None)
        rpcfut.collect_all([value, child]).wait(5)
        backward.wait(5)
        assert [device.index for device in sim.used_devices] == [0]


async def twice(f: Future[SimArray]) -> SimArray:
    return await f * 2.0


def test_str12_pool_streams_are_used_again_so_memory_is_too(sim: Simulation) -> None:
    """500 callbacks that allocate reserve at most 3 x what one of them holds."""
    # Here the library's own pool: the simulation's gives each callback a new stream.
    _callbacks.runtime().streams = StreamPool()
    length = 64  # what the allocator rounds up to
    nbytes = len(sim.array([0.0] * length)) * 8
    for _ in range(500):
        parent: Future[None] = Future()
        child = parent.then(lambda _: sim.zeros(length))
        parent.set_result(None)
        assert child.wait(5).tolist() == [0.0] * length
        del parent, child
    reserved = sim.reserved_nbytes(0)
    assert reserved <= 3 * nbytes, f"{reserved} bytes of {nbytes}"


def test_str14_what_would_break_a_capture_is_refused(sim: Simulation) -> None:
    """Before any call to the device, so that the capture goes on; nothing is done."""
    ready, pending = made_aside(sim), Future[SimArray]()
    ready.wait()
    acts: dict[str, Callable[[], object]] = {
        "set_result": lambda: pending.set_result(sim.zeros(1)),
        "try_set_result": lambda: pending.try_set_result(sim.zeros(1)),
        "then": lambda: pending.then(lambda f: f.value()),
        "then_async": lambda: pending.then_async(twice),
        "add_done_callback": lambda: pending.add_done_callback(print),
        "wait": ready.wait,
        "result": ready.result,
        "value": ready.value,
        "exception": ready.exception,
        "await": lambda: list(ready.__await__()),
        "backward": lambda: rpcfut.backward(torch.ones(1, requires_grad=True).sum()),
    }
    refused = []
    with suppress(BrokenCaptureError), sim.capture(0):
        captured = sim.array([5.0])
        for name, act in acts.items():
            try:
                act()
            except rpcfut.CaptureError:
                refused.append(name)
            except BrokenCaptureError:
                pass  # it came too late
        captured.add_(1.0)
    assert refused == list(acts)
    assert not pending.done()
    with sim.stream(0):
        pending.set_result(sim.array([3.0]))
    assert pending.wait().tolist() == [3.0]


def test_str14_a_call_is_refused_before_a_byte_is_sent(sim: Simulation) -> None:
    with local_cluster("a", "b") as (a, b):
        called: list[int] = []
        b.exposed.expose(called.append, name="note")
        refused = False
        with sim.capture(0):
            try:
                a.rpc_async("b", "note", (1,))
            except rpcfut.CaptureError:
                refused = True
        assert refused
        a.rpc_async("b", "note", (2,)).wait(5)
        assert called == [2]


def test_str14_callbacks_run_while_another_thread_captures(sim: Simulation) -> None:
    """They run on streams of their own, and on none that is being captured."""
    future = made_aside(sim)
    may_run = threading.Event()

    def work(f: Future[SimArray]) -> SimArray:
        may_run.wait(5)
        return f.value() * 2.0

    parent: Future[SimArray] = Future()
    child = parent.then(work)
    setter = threading.Thread(target=lambda: parent.set_result(future.wait()))
    setter.start()
    with sim.capture(0):
        may_run.set()
        setter.join(5)
    assert child.wait(5).tolist() == [4.0]
