"""Arrays, streams, events and memory of the simulated device."""

from __future__ import annotations

import gc
import math
import sys
import threading
from contextlib import suppress

import pytest

from rpcfut.testing import RaceError, SimArray, UseAfterFreeError, simulate

SEEDS = range(30)


def here() -> str:
    """The place of the caller's call, as errors name it."""
    frame = sys._getframe(1)
    return f"{frame.f_code.co_filename}:{frame.f_lineno}"


@pytest.mark.parametrize("seed", SEEDS)
def test_operations_on_one_stream_give_what_they_say(seed: int) -> None:
    """The order of a stream is enough, however late it runs."""
    with simulate(seed=seed) as sim:
        a = sim.array([1.0, 2.0])
        b = a.clone().add_(1.0).mul_(a)
        c = (a + b) * 2.0
        a.fill_(9.0)
        assert sim.host_read(c) == [6.0, 16.0]
        assert b.tolist() == [2.0, 6.0]
        assert a.copy_(b).tolist() == [2.0, 6.0]
        assert sim.zeros(3).tolist() == [0.0] * 3
        assert a.add_(a).tolist() == [4.0, 12.0]


@pytest.mark.parametrize("seed", SEEDS)
def test_a_copy_between_devices_is_ordered_on_both(seed: int) -> None:
    """It runs on the source's stream; the target's stream waits before and after."""
    with simulate(2, seed=seed) as sim:
        a = sim.array([1.0], device=0)
        b = sim.zeros(1, device=1).copy_(a).add_(1.0)
        a.fill_(7.0)
        assert b.tolist() == [2.0]
        assert a.to(sim.device(1)).tolist() == [7.0]


def test_a_copy_to_a_device_does_not_order_its_other_streams() -> None:
    """Only the two current streams take part."""
    with simulate(2) as sim:
        b = sim.zeros(1, device=1)
        sim.synchronize()
        b.copy_(sim.array([1.0], device=0))
        with sim.stream(1), pytest.raises(RaceError, match="copy_"):
            b.add_(1.0)
        assert len(sim.take_races()) == 1


def test_a_race_names_both_operations_and_places() -> None:
    """Whoever reads the message knows which two lines to look at."""
    with simulate() as sim:
        a = sim.zeros(2)
        made = here().rsplit(":", 1)[0]
        sim.synchronize()
        with sim.stream():
            a.fill_(1.0)
            first = here()
        with sim.stream(), pytest.raises(RaceError) as caught:
            a.clone()
        error = caught.value
        assert sim.take_races() == [error]
    file, line = first.rsplit(":", 1)
    assert error.first.name == "fill_"
    assert error.first.kind == "write"
    assert error.first.place == "stream 1 of sim:0"
    assert error.first.site == f"{file}:{int(line) - 1}"
    assert error.second.name == "clone"
    assert error.second.kind == "read"
    assert error.second.place == "stream 2 of sim:0"
    for text in (str(error.first), str(error.second), made, "array 1 (2 elements"):
        assert text in str(error)


@pytest.mark.parametrize("seed", SEEDS)
def test_a_race_is_found_whatever_the_seed(seed: int) -> None:
    """Each time, not one run in five."""
    with simulate(seed=seed) as sim:
        a = sim.zeros(1)
        with sim.stream(), pytest.raises(RaceError):
            a.add_(1.0)
        assert len(sim.take_races()) == 1


def test_a_race_shows_in_the_values_when_it_is_only_recorded() -> None:
    """A missing wait gives a really wrong value under some seeds."""
    seen = set()
    for seed in SEEDS:
        with simulate(seed=seed, raise_at_once=False) as sim:
            a = sim.zeros(1)
            sim.synchronize()
            a.add_(1.0)
            with sim.stream():
                seen.add(a.clone().tolist()[0])
            assert len(sim.take_races()) == 1
    assert seen == {0.0, 1.0}


def test_a_swallowed_race_comes_up_at_the_end() -> None:
    """Nothing that catches too much can hide it."""

    def program() -> None:
        with simulate() as sim:
            a = sim.zeros(1)
            for _ in range(2):
                with sim.stream(), suppress(RaceError):
                    a.fill_(1.0)

    with pytest.raises(RaceError) as caught:
        program()
    assert len(caught.value.__notes__) == 1


def test_another_error_keeps_its_place_and_names_the_races() -> None:
    """The race may be the reason for what failed."""

    def program() -> None:
        with simulate() as sim:
            a = sim.zeros(1)
            with sim.stream(), suppress(RaceError):
                a.fill_(1.0)
            raise KeyError("other")

    with pytest.raises(KeyError) as caught:
        program()
    assert "the simulation also found: race on array 1" in caught.value.__notes__[0]


def test_a_refused_operation_leaves_no_trace() -> None:
    """What raised was not queued."""
    with simulate() as sim:
        a = sim.zeros(1)
        side = sim.stream()
        with side, pytest.raises(RaceError):
            a.fill_(5.0)
        assert len(sim.take_races()) == 1
        sim.synchronize()
        assert a.tolist() == [0.0]


def test_streams_are_current_for_one_thread() -> None:
    """As in torch: another thread starts on the default stream."""
    seen = []
    with simulate(2) as sim:
        side = sim.stream(1)
        with side as entered:
            assert entered is side
            assert sim.current_stream(1) is side
            assert sim.current_device() == side.device
            thread = threading.Thread(target=lambda: seen.append(sim.current_stream(1)))
            thread.start()
            thread.join()
        assert sim.current_device() == sim.device(0)
        assert sim.current_stream(1).queue is sim.default_stream(1).queue
        assert seen[0].queue is sim.default_stream(1).queue


@pytest.mark.parametrize("seed", SEEDS)
def test_a_polled_event_orders_once_it_has_passed(seed: int) -> None:
    """Polling comes to an end, and what was seen counts."""
    with simulate(seed=seed) as sim:
        a = sim.zeros(1)
        event = sim.event()
        assert event.query()
        event.record()
        while not event.query():
            pass
        side = sim.stream()
        with side:
            a.add_(1.0)
        while not side.query():
            pass
        assert a.tolist() == [1.0]


def test_an_event_keeps_the_place_it_was_recorded_at() -> None:
    """A wait is for the last recording before it, not for a later one."""
    with simulate() as sim:
        a, side = sim.zeros(1), sim.stream()
        event = sim.event()
        event.record()
        event.wait(side)
        a.fill_(1.0)
        event.record()
        with side, pytest.raises(RaceError):
            a.clone()
        assert len(sim.take_races()) == 1


def test_streams_wait_for_streams() -> None:
    """wait_stream and the host's synchronize are orders."""
    with simulate() as sim:
        a, side = sim.zeros(1), sim.stream()
        side.wait_stream(sim.default_stream())
        with side:
            a.add_(1.0)
            sim.event().record()
        sim.default_stream().wait_event(side.record_event())
        a.add_(1.0)
        sim.default_stream().synchronize()
        with sim.stream():
            a.add_(1.0)
            assert a.tolist() == [3.0]


def test_host_memory_is_not_waited_for() -> None:
    """The host must wait for a copy itself, on the way out and on the way in."""
    with simulate() as sim:
        a, buffer = sim.array([1.0, 2.0]), sim.host_buffer(2)
        a.copy_to_host(buffer)
        with pytest.raises(RaceError, match="tolist on the host"):
            buffer.tolist()
        sim.synchronize()
        assert buffer.tolist() == [1.0, 2.0]
        buffer.write([3.0, 4.0])
        a.copy_(buffer)
        with pytest.raises(RaceError, match="write on the host"):
            buffer.write([0.0, 0.0])
        assert a.tolist() == [3.0, 4.0]
        assert len(sim.take_races()) == 2


def test_memory_is_used_again_at_once_on_its_stream() -> None:
    """As in torch, and right: the stream orders the two owners."""
    with simulate() as sim:
        a = sim.array([1.0])
        pointer = a.ref.pointer
        b = a.clone()
        del a
        c = sim.array([2.0])
        assert c.ref.pointer == pointer
        assert b.tolist() == [1.0]
        with sim.stream():
            other = sim.zeros(1)
        assert other.ref.pointer != pointer


@pytest.mark.parametrize("seed", SEEDS)
def test_memory_used_by_another_stream_must_be_kept(seed: int) -> None:
    """The error names who reads, where it was freed, and who has it now."""
    with simulate(seed=seed) as sim:
        a, side = sim.array([1.0]), sim.stream()
        side.wait_stream(sim.default_stream())
        with side:
            out = a.clone()
        del a
        died = here()
        new = sim.empty(1)
        with pytest.raises(UseAfterFreeError) as caught:
            new.fill_(2.0)
        error = caught.value
        assert sim.take_races() == [error]
        del out
    file, line = died.rsplit(":", 1)
    assert error.first.name == "clone"
    assert error.second.name == "fill_"
    assert error.former.freed_at == f"{file}:{int(line) - 1}"
    assert error.former.freed_at in str(error)
    assert str(error.allocation) in str(error)


def test_memory_freed_too_early_is_really_overwritten() -> None:
    """The late read sees the new owner's values under some seeds."""
    seen = set()
    for seed in SEEDS:
        with simulate(seed=seed, raise_at_once=False) as sim:
            a, side = sim.array([1.0]), sim.stream()
            side.wait_stream(sim.default_stream())
            with side:
                out = a.clone()
            del a
            new = sim.array([2.0])
            with side:
                seen.add(out.tolist()[0])
            assert isinstance(sim.take_races()[0], UseAfterFreeError)
            del new
    assert seen == {1.0, 2.0}


@pytest.mark.parametrize("seed", SEEDS)
def test_kept_memory_is_safe(seed: int) -> None:
    """It goes to nobody before the stream is through with it."""
    with simulate(seed=seed) as sim:
        a, side = sim.array([1.0]), sim.stream()
        side.wait_stream(sim.default_stream())
        with side:
            out = a.clone()
        a.keep_alive(side)
        del a
        new = sim.array([2.0])
        with side:
            assert out.tolist() == [1.0]
        assert new.tolist() == [2.0]


def test_an_array_in_a_cycle_is_freed_by_the_collector() -> None:
    """A death at an odd moment is seen to at the next call."""
    with simulate() as sim:
        a = sim.array([1.0])
        pointer = a.ref.pointer
        cycle: list[object] = [a]
        cycle.append(cycle)
        del a, cycle
        gc.collect()
        assert sim.array([2.0]).ref.pointer == pointer


def test_new_memory_is_garbage() -> None:
    """Whoever reads before writing does not get zeros by luck."""
    with simulate() as sim:
        assert all(map(math.isnan, sim.empty(2).tolist()))


def test_a_full_device_runs_its_work_before_it_refuses() -> None:
    """Memory that others hold back is reclaimed under pressure."""
    with simulate(memory_nbytes=1024) as sim:
        first = sim.zeros(64)
        with sim.stream():
            kept = sim.zeros(64)
        del kept
        second = sim.zeros(64)
        with pytest.raises(MemoryError, match="1024 of 1024 are in use"):
            sim.zeros(1)
        assert first.tolist() == second.tolist()


def test_a_wrong_size_or_device_is_refused() -> None:
    """The message names the arrays."""
    with simulate(2) as sim:
        a = sim.zeros(2)
        with pytest.raises(ValueError, match="lengths differ"):
            a.add_(sim.zeros(3))
        with pytest.raises(ValueError, match=r"copy one of them with to\(\)"):
            a.add_(sim.zeros(2, device=1))
        with pytest.raises(ValueError, match="no device 2: there are 2"):
            sim.zeros(1, device=2)
        with pytest.raises(ValueError, match="3 values"):
            a.load_([1, 2, 3])
        with pytest.raises(ValueError, match="1 values"):
            sim.host_buffer(2).write([1.0])
    with pytest.raises(ValueError, match="needs a device"), simulate(0):
        pass


def test_devices_are_used_from_first_touch() -> None:
    """As a context on a real device."""
    with simulate(4, used=[3]) as sim:
        assert [d.index for d in sim.used_devices] == [3]
        sim.zeros(1, device=1)
        sim.stream(0)
        sim.current_stream(2)
        assert [d.index for d in sim.used_devices] == [0, 1, 3]
        sim.device(2)
        assert len(sim.used_devices) == 4


def test_one_seed_is_one_run() -> None:
    """A program with one thread can be repeated."""

    def run(seed: int) -> tuple[list[float], str]:
        with simulate(seed=seed, raise_at_once=False) as sim:
            a, streams = sim.zeros(4), [sim.stream() for _ in range(4)]
            sim.synchronize()
            for step in range(20):
                with streams[step * 7 % 4]:
                    a.mul_(2.0).add_(float(step))
            state = repr(sim)
            assert sim.take_races()
            sim.synchronize()
            return a.tolist(), state

    runs = [run(seed) for seed in range(20)]
    assert runs == [run(seed) for seed in range(20)]
    assert len({values[0] for values, _ in runs}) > 5


def test_many_threads_may_queue_at_once() -> None:
    """No operation is lost, and the order of each stream holds."""
    with simulate(2) as sim:
        arrays = [sim.zeros(1, device=i % 2) for i in range(8)]
        sim.synchronize()

        def work(array: SimArray) -> None:
            with sim.stream(array.device):
                for _ in range(200):
                    array.add_(1.0)
                    array.clone()

        threads = [threading.Thread(target=work, args=(a,)) for a in arrays]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        sim.synchronize()
        assert [a.tolist() for a in arrays] == [[200.0]] * 8


def test_the_end_runs_what_is_queued_and_closes_the_device() -> None:
    """An array that outlives its simulation says so."""
    with simulate() as sim:
        a = sim.zeros(1)
        assert "1 streams" in repr(sim)
    with pytest.raises(RuntimeError, match="the simulation is over"):
        a.add_(1.0)
    assert "tasks waiting: {}" in repr(sim)


def test_reprs_tell_the_state() -> None:
    """What a debugger shows is what counts."""
    with simulate() as sim:
        a, side = sim.zeros(2), sim.stream()
        assert repr(a) == "<SimArray of 2 elements on sim:0>"
        assert len(a) == 2
        assert repr(sim.host_buffer(3)) == "<HostBuffer of 3 elements on cpu:0>"
        assert repr(side) == "<SimStream: stream 1 of sim:0, 0 tasks waiting>"
        event = sim.event()
        assert repr(event) == "<SimEvent, not recorded>"
        event.record(side)
        event.synchronize()
        assert repr(event) == "<SimEvent on stream 1 of sim:0, passed>"
