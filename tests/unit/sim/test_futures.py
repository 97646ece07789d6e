"""Futures on the simulated device: what each rule of streams is good for.

Each test runs under several seeds; a rule that does not hold is a `RaceError`.
"""

from __future__ import annotations

import threading
from functools import partial
from typing import TYPE_CHECKING

import pytest

import rpcfut
from rpcfut import Future
from rpcfut.testing import RaceError, SimArray, UseAfterFreeError, simulate

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from rpcfut.testing import Simulation

SEEDS = range(8)


@pytest.fixture(params=SEEDS)
def sim(request: pytest.FixtureRequest) -> Iterator[Simulation]:
    """Two devices and a seed; a race that nobody took fails the test."""
    with simulate(2, seed=request.param) as simulation:
        yield simulation


def on_thread(function: Callable[[], object]) -> None:
    """Run on another thread, to the end; its error is raised here."""
    failed: list[BaseException] = []

    def run() -> None:
        try:
            function()
        except BaseException as error:  # noqa: BLE001 - raised below
            failed.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    if failed:
        raise failed[0]


def made_on_a_side_stream(sim: Simulation, value: float = 1.0) -> Future[SimArray]:
    """A future that another thread completed, on a stream of its own."""
    future: Future[SimArray] = Future()

    def work() -> None:
        with sim.stream(0):
            future.set_result(sim.array([value]).add_(1.0))

    on_thread(work)
    return future


READERS: dict[str, Callable[[Future[SimArray]], SimArray]] = {
    "wait": lambda future: future.wait(),
    "result": lambda future: future.result(),
    "value": lambda future: future.value(),
}


@pytest.mark.parametrize("how", READERS)
def test_a_value_of_a_side_stream_can_be_read_on_any_stream(
    sim: Simulation, how: str
) -> None:
    """STR-1, STR-2: the reader's stream waits, whichever it is."""
    future = made_on_a_side_stream(sim)
    assert READERS[how](future).tolist() == [2.0]
    with sim.stream(0):
        assert READERS[how](future).clone().tolist() == [2.0]
    on_thread(lambda: READERS[how](future).clone())


def test_a_value_on_two_devices_can_be_read_on_both(sim: Simulation) -> None:
    """STR-1: one event for each device."""
    future: Future[list[SimArray]] = Future()
    with sim.stream(0), sim.stream(1):
        future.set_result([sim.array([1.0], device=0), sim.array([2.0], device=1)])
    first, second = future.wait()
    assert first.to(second.device).add_(second).tolist() == [3.0]


def test_a_hand_made_future_without_events_is_a_race(sim: Simulation) -> None:
    """That something is done on the host says nothing about the device."""
    box: list[SimArray] = []
    done = threading.Event()

    def work() -> None:
        with sim.stream(0):
            box.append(sim.array([1.0]))
        done.set()

    on_thread(work)
    assert done.wait(5)
    with pytest.raises(RaceError, match="load_"):
        box[0].tolist()
    assert len(sim.take_races()) == 1


def test_what_a_reader_drops_lives_until_its_stream_is_through(
    sim: Simulation,
) -> None:
    """STR-2, STR-11: reading tells the allocator."""
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


def test_what_a_reader_drops_is_lost_if_nobody_tells_the_allocator(
    sim: Simulation,
) -> None:
    """What the test before would see without that."""
    home, reader = sim.stream(0), sim.stream(0)
    with home:
        value = sim.array([1.0])
    reader.wait_stream(home)
    with reader:
        copy = value.clone()
    del value
    with home, pytest.raises(UseAfterFreeError):
        sim.array([5.0])
    assert len(sim.take_races()) == 1
    assert len(copy) == 1


def test_a_callback_comes_after_its_parent_and_the_code_before_then(
    sim: Simulation,
) -> None:
    """STR-3: it waits for the parent's events and for the streams at `then`."""
    future: Future[SimArray] = Future()
    with sim.stream(0), sim.stream(1):
        here = sim.array([1.0], device=0)
        here_too = sim.array([10.0], device=1)
        child = future.then(
            lambda f: f.value().add_(here).add_(here_too.to(here.device))
        )
    with sim.stream(0):
        future.set_result(sim.array([100.0]))
    assert child.wait().tolist() == [111.0]


def test_a_callback_that_waives_the_wait_is_a_race(sim: Simulation) -> None:
    """STR-3: with after_here=False, code before `then` is not waited for."""
    future: Future[SimArray] = Future()
    with sim.stream(0):
        here = sim.array([1.0])
        child = future.then(lambda f: f.value().add_(here), after_here=False)
    with sim.stream(0):
        future.set_result(sim.array([100.0]))
    with pytest.raises(RaceError):
        child.wait()
    assert len(sim.take_races()) == 1


def test_a_callback_leaves_the_current_streams_as_they_were(sim: Simulation) -> None:
    """STR-3: also when it raised."""
    sim.device(1)
    mine = sim.stream(1)
    streams = []

    def callback(_: Future[None]) -> None:
        streams.append(sim.current_stream(1))
        raise KeyError

    with mine:
        future: Future[None] = Future()
        child = future.then(callback)
        future.set_result(None)
        assert sim.current_stream(1) is mine
        assert sim.current_device() == mine.device
    assert streams[0] is not mine
    assert streams[0].queue is not sim.default_stream(1).queue
    with pytest.raises(KeyError):
        child.wait()


def test_a_childs_events_come_from_what_the_callback_returns(sim: Simulation) -> None:
    """STR-4: not from the parent, whose work was over long before."""
    future: Future[None] = Future()
    child = future.then(lambda _: sim.array([1.0], device=1).add_(2.0))
    grandchild = child.then(lambda f: f.value() * 2.0)
    sim.device(1)
    future.set_result(None)
    with sim.stream(1):
        assert child.wait().tolist() == [3.0]
    assert grandchild.wait().tolist() == [6.0]


def test_a_value_made_on_a_stream_that_the_callback_switched_to(
    sim: Simulation,
) -> None:
    """STR-4: its event is on the stream that was current when the callback returned."""
    side = sim.stream(0)

    def callback(_: Future[None]) -> SimArray:
        sim.set_stream(side)
        return sim.array([1.0])

    future: Future[None] = Future()
    child = future.then(callback)
    future.set_result(None)
    assert sim.current_stream(0).queue is sim.default_stream(0).queue
    assert child.wait().tolist() == [1.0]


def test_a_returned_future_is_waited_for_with_its_events(sim: Simulation) -> None:
    """FUT-4, STR-4: the child is as safe as the future that the callback returned."""
    future: Future[None] = Future()
    inner: Future[SimArray] = Future()
    child = future.then(lambda _: inner)
    future.set_result(None)
    with sim.stream(0):
        inner.set_result(sim.array([3.0]))
    assert child.wait().tolist() == [3.0]


def test_what_a_callback_did_before_it_returned_a_future_is_waited_for(
    sim: Simulation,
) -> None:
    """STR-5, FUT-4: the child stands for both, whichever is later."""
    p = sim.zeros(1)
    inner: Future[SimArray] = Future()

    def callback(f: Future[SimArray]) -> Future[SimArray]:
        p.add_(f.value())
        return inner

    child = made_on_a_side_stream(sim).then(callback)
    with sim.stream(0):
        inner.set_result(sim.array([3.0]))
    assert child.wait().tolist() == [3.0]
    assert p.tolist() == [2.0]


@pytest.mark.parametrize("ends", ["returns", "raises", "is refused"])
def test_what_a_callback_did_in_place_is_waited_for(sim: Simulation, ends: str) -> None:
    """STR-5: whatever it returned. STR-6: a refused value hides nothing."""
    p = sim.zeros(1)

    def callback(f: Future[SimArray]) -> object:
        p.add_(f.value())
        if ends == "raises":
            raise KeyError(ends)
        return None if ends == "returns" else object()

    future: Future[SimArray] = Future()
    child = future.then(callback)
    with sim.stream(0):
        future.set_result(sim.array([2.0]))
    errors = {"raises": KeyError, "is refused": rpcfut.ExtractionError}
    error = child.exception()
    assert (type(error) if error else None) == errors.get(ends)
    assert p.tolist() == [2.0]


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("used", [(0,), ()])
def test_work_on_a_device_first_used_inside_is_waited_for(
    seed: int, used: tuple[int, ...]
) -> None:
    """STR-5: that device had no stream of ours when the callback began."""
    with simulate(2, seed=seed, used=used) as sim:
        found: list[SimArray] = []
        future: Future[None] = Future()
        child = future.then(lambda _: found.append(sim.array([4.0], device=1)))
        on_thread(lambda: future.set_result(None))
        with sim.stream(1):
            child.wait()
            assert found[0].tolist() == [4.0]


@pytest.mark.parametrize("seed", SEEDS)
def test_a_value_that_is_ready_is_kept_for_its_reader_as_well(seed: int) -> None:
    """STR-11: also where there is no event to wait for, the allocator must hear."""
    with simulate(2, seed=seed) as sim:
        home = sim.stream(0)
        future: Future[SimArray] = Future()
        with home:
            value = sim.array([1.0])
            home.synchronize()
            future.set_result(value)
            del value
        with sim.stream(0):
            copy = future.wait().clone()
            del future
            with home:
                sim.array([5.0])
            assert copy.tolist() == [1.0]


def test_a_value_on_an_undeclared_device_fails(sim: Simulation) -> None:
    """STR-7: with devices given, a value elsewhere is named."""
    future: Future[SimArray] = Future(devices=["sim:0"])
    future.set_result(sim.zeros(1, device=1))
    with pytest.raises(rpcfut.DeviceMismatchError, match="sim:1"):
        future.wait()


def test_callbacks_given_one_stream_do_not_interleave() -> None:
    """STR-3: each of them launches twice; a FIFO stream alone loses an update."""
    with simulate() as sim:
        apply = rpcfut.stream("sim:0")
        p = sim.zeros(1)
        entered = [threading.Event(), threading.Event()]

        def update(number: int, f: Future[SimArray]) -> None:
            new = p + f.value()
            entered[number].set()
            # Time for the other one to come between; it must not.
            entered[1 - number].wait(0.1)
            p.copy_(new)

        futures: list[Future[SimArray]] = [Future(), Future()]
        children = [
            f.then(partial(update, number), stream=apply)
            for number, f in enumerate(futures)
        ]
        value = sim.array([1.0])
        threads = [
            threading.Thread(target=f.set_result, args=(value,)) for f in futures
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        for child in children:
            child.wait(5)
        assert p.tolist() == [2.0]


class Pair:
    """A type of a user's own."""

    def __init__(self, first: SimArray, second: SimArray) -> None:
        self.first = first
        self.second = second


def make_pair(sim: Simulation) -> Future[Pair]:
    """A future of arrays on two devices, made on side streams."""
    future: Future[Pair] = Future()
    with sim.stream(0), sim.stream(1):
        future.set_result(Pair(sim.array([1.0], device=0), sim.array([2.0], device=1)))
    return future


def test_a_right_extractor_is_clean(sim: Simulation) -> None:
    """EXT-2: one line makes a user's type safe."""
    rpcfut.register_extractor(Pair, lambda pair: [pair.first, pair.second])
    pair = make_pair(sim).wait()
    assert pair.first.tolist() + pair.second.tolist() == [1.0, 2.0]


def test_an_extractor_that_forgets_an_array_is_found(sim: Simulation) -> None:
    """On a laptop, each time."""
    rpcfut.register_extractor(Pair, lambda pair: [pair.first])
    pair = make_pair(sim).wait()
    assert pair.first.tolist() == [1.0]
    with pytest.raises(RaceError, match="stream 1 of sim:1"):
        pair.second.tolist()
    assert len(sim.take_races()) == 1


def test_a_type_without_an_extractor_fails_the_future(sim: Simulation) -> None:
    """STR-6: what one simulation registered is gone in the next."""
    with pytest.raises(rpcfut.ExtractionError, match="Pair"):
        make_pair(sim).wait()


def test_an_owner_that_keeps_nothing_alive_is_found(sim: Simulation) -> None:
    """A DataRef with the wrong owner would let its memory go too early."""
    rpcfut.register_extractor(
        Pair, lambda pair: [pair.first.clone().ref._replace(owner=None)]
    )
    future = make_pair(sim)
    with pytest.raises(LookupError, match="must keep its memory alive"):
        future.wait()


def test_a_race_inside_a_callback_fails_the_child_and_the_simulation() -> None:
    """Nobody has to look at the child to hear of it."""

    def program() -> None:
        with simulate() as sim:
            p = sim.zeros(1)
            with sim.stream():
                hidden = sim.zeros(1)
            future: Future[None] = Future()
            child = future.then(lambda _: p.add_(hidden))
            future.set_result(None)
            assert isinstance(child.exception(), RaceError)

    with pytest.raises(RaceError):
        program()


def test_two_simulations_at_once_are_refused() -> None:
    """The seam is one for the process."""
    with simulate(), pytest.raises(ValueError, match="already has a seam"), simulate():
        pass
