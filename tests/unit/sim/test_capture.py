"""Captures on the simulated device: work is not run, and orders break them."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import pytest

from rpcfut.testing import BrokenCaptureError, SimStream, Simulation, simulate

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


@pytest.fixture(params=range(5))
def sim(request: pytest.FixtureRequest) -> Iterator[Simulation]:
    """Two devices and a seed."""
    with simulate(2, seed=request.param) as simulation:
        yield simulation


def test_what_is_queued_in_a_capture_is_not_run(sim: Simulation) -> None:
    x = sim.array([1.0])
    with sim.capture(0) as stream:
        assert sim.current_stream(0) is stream
        x.add_(1.0)
        made = sim.array([5.0])
    assert sim.current_stream(0).queue is sim.default_stream(0).queue
    assert x.tolist() == [1.0]
    with stream:
        assert math.isnan(made.tolist()[0])


def test_other_streams_go_on_meanwhile(sim: Simulation) -> None:
    x = sim.array([1.0])
    with sim.capture(0):
        x.add_(1.0)
        with sim.stream(0) as other:
            other.wait_stream(sim.default_stream(0))
            assert x.add_(2.0).tolist() == [3.0]


ORDERS: dict[str, Callable[[Simulation, SimStream, SimStream], object]] = {
    "an event on it": lambda _sim, captured, _: captured.record_event(),
    "a wait on it": lambda _sim, captured, other: captured.wait_stream(other),
    "a wait for it": lambda _sim, captured, other: other.wait_stream(captured),
    "an event to wait for": lambda _sim, captured, other: captured.wait_event(
        other.record_event()
    ),
    "the host waits": lambda _sim, captured, _: captured.synchronize(),
    "the host waits for all": lambda sim, _captured, _: sim.synchronize(),
    "the host asks": lambda _sim, captured, _: captured.query(),
    "the host reads": lambda sim, _captured, _: sim.zeros(1).tolist(),
}


@pytest.mark.parametrize("name", ORDERS)
def test_an_order_breaks_the_capture_there_and_at_its_end(
    sim: Simulation, name: str
) -> None:
    other = sim.stream(0)

    def capture() -> None:
        with (
            sim.capture(0) as captured,
            pytest.raises(BrokenCaptureError, match="being captured since"),
        ):
            ORDERS[name](sim, captured, other)

    with pytest.raises(BrokenCaptureError, match=r"test_capture\.py:\d+"):
        capture()
    sim.synchronize()


def test_a_block_that_raises_ends_its_capture(sim: Simulation) -> None:
    with pytest.raises(KeyError), sim.capture(0) as captured:
        raise KeyError
    captured.synchronize()


def test_an_event_makes_a_device_used(sim: Simulation) -> None:
    """As on a real one, where it makes a context."""
    default = sim.default_stream(1)
    assert sim.used_devices == []
    default.record_event()
    assert [device.index for device in sim.used_devices] == [1]
