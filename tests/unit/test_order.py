"""The order of handlers on the devices (STR-9, STR-13), on the simulated device."""

from __future__ import annotations

import asyncio
import threading
from contextlib import suppress
from typing import TYPE_CHECKING

import pytest

from rpcfut import Future
from rpcfut._exposed import ExposedTable
from rpcfut._order import DeviceOrder
from rpcfut._stream_pool import StreamPool
from rpcfut._streams import record_current, record_in_use
from rpcfut.testing import RaceError, SimArray, local_cluster, simulate
from tests.support.fake_seam import FAKE0, FAKE1, installed

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from rpcfut.testing import Simulation

SEEDS = range(8)


@pytest.fixture(params=SEEDS)
def sim(request: pytest.FixtureRequest) -> Iterator[Simulation]:
    with simulate(1, seed=request.param) as simulation:
        yield simulation


@pytest.fixture
def table() -> ExposedTable:
    return ExposedTable()


@pytest.fixture
def call(sim: Simulation, table: ExposedTable) -> Iterator[Callable[[int, str], None]]:
    """Calls the server from one of two clients, and waits."""
    with local_cluster("server", "one", "two", exposed=table) as agents:
        yield lambda client, name: agents[client].rpc_sync("server", name, timeout=20)


def add_one(array: SimArray) -> Callable[[], None]:
    """A handler that adds to an array in place, and returns nothing."""

    def add() -> None:
        array.add_(1.0)

    return add


def reader(array: SimArray, into: list[list[float]]) -> Callable[[], None]:
    def read() -> None:
        into.append(array.tolist())

    return read


def test_a_handler_comes_after_what_answered_calls_launched(
    sim: Simulation, table: ExposedTable, call: Callable[[int, str], None]
) -> None:
    """Whoever made them, and though they return nothing."""
    p, seen = sim.array([0.0]), []
    table.expose(add_one(p), name="add")
    table.expose(reader(p, seen), name="read")
    for client, name in ((1, "add"), (2, "add"), (1, "add"), (2, "read")):
        call(client, name)
    assert seen == [[3.0]]


def test_a_handler_comes_after_one_that_raised(
    sim: Simulation, table: ExposedTable, call: Callable[[int, str], None]
) -> None:
    p, seen = sim.array([0.0]), []

    def add_and_raise() -> None:
        p.add_(1.0)
        raise KeyError("after the launch")

    table.expose(add_and_raise, name="raise")
    table.expose(reader(p, seen), name="read")
    with pytest.raises(KeyError):
        call(1, "raise")
    call(2, "read")
    assert seen == [[1.0]]


def test_a_handler_comes_after_a_future_that_one_returned(
    sim: Simulation, table: ExposedTable, call: Callable[[int, str], None]
) -> None:
    """Also after what a callback launched in place."""
    p, seen = sim.array([0.0]), []
    start: Future[None] = Future()
    start.set_result(None)
    table.expose(lambda: start.then(lambda _: add_one(p)()), name="later")
    table.expose(reader(p, seen), name="read")
    for client, name in ((1, "later"), (2, "later"), (1, "read")):
        call(client, name)
    assert seen == [[2.0]]


@pytest.mark.parametrize("first", [True, False])
def test_unordered_handlers_neither_wait_nor_are_waited_for(
    sim: Simulation,
    table: ExposedTable,
    call: Callable[[int, str], None],
    *,
    first: bool,
) -> None:
    """So two that write the same memory race; the simulated device says so."""
    p = sim.array([0.0])
    table.expose(add_one(p), name="first", ordered=first)
    table.expose(add_one(p), name="second", ordered=not first)
    call(1, "first")
    with pytest.raises(RaceError):
        call(2, "second")
    assert len(sim.take_races()) == 1


@pytest.mark.parametrize("kind", ["plain", "raising", "async", "future"])
def test_serial_calls_come_one_after_the_other_on_the_device(
    sim: Simulation,
    table: ExposedTable,
    call: Callable[[int, str], None],
    kind: str,
) -> None:
    """Though their callers waited for none of them, and however each ends."""
    p, seen = sim.array([0.0]), []
    pause = threading.Event()
    start: Future[None] = Future()
    start.set_result(None)

    def plain() -> None:
        pause.wait(0.002)
        p.add_(1.0)

    def raising() -> None:
        plain()
        raise KeyError("after the launch")

    async def driven() -> None:
        await asyncio.sleep(0.002)
        p.add_(1.0)

    ways = {
        "plain": plain,
        "raising": raising,
        "async": driven,
        "future": lambda: start.then(lambda _: plain()),
    }
    table.expose(ways[kind], name="add", serial=True)
    table.expose(reader(p, seen), name="read")

    def add(client: int) -> None:
        with suppress(KeyError):
            call(client, "add")

    clients = [threading.Thread(target=add, args=(1 + n % 2,)) for n in range(6)]
    for client in clients:
        client.start()
    for client in clients:
        client.join(15)
    call(1, "read")
    assert seen == [[6.0]]


def test_a_handler_comes_after_what_was_queued_where_it_was_exposed(
    sim: Simulation, table: ExposedTable, call: Callable[[int, str], None]
) -> None:
    seen: list[list[float]] = []
    with sim.stream(0):
        p = sim.array([1.0]).add_(1.0)
        table.expose(reader(p, seen), name="read", ordered=False)
    call(1, "read")
    assert seen == [[2.0]]


def test_a_handler_comes_after_what_was_queued_before_its_worker_joined(
    sim: Simulation, table: ExposedTable
) -> None:
    seen: list[list[float]] = []
    with sim.stream(0):
        p = sim.array([1.0])
        table.expose(reader(p, seen), name="read")
        p.add_(1.0)
        with local_cluster("server", exposed=table) as (server,):
            server.rpc_sync("server", "read", timeout=20)
    assert seen == [[2.0]]


def test_passed_work_is_not_waited_for_and_the_rest_by_one_event_a_device() -> None:
    with installed() as seam:
        pool = StreamPool()
        order = DeviceOrder(pool.lease)
        assert order.marks() == ()
        for _ in range(3):
            order.note(record_in_use(()))
        first = order.marks()
        assert sorted(mark.device for mark in first) == [FAKE0, FAKE1]
        assert order.marks() == first, "nothing was noted since"
        assert len(seam.created) == 2
        waits = [entry for entry in seam.log if entry.verb == "wait"]
        assert len(waits) == 6
        assert {entry.stream for entry in waits} == set(seam.created)
        order.note(record_current([FAKE1]))
        newest = order.marks()
        assert {mark.device for mark in newest} == {FAKE0, FAKE1}
        assert {mark.device for mark in {*newest} - {*first}} == {FAKE1}
        for mark in newest:
            mark.event.passed.set()
        assert order.marks() == ()
        order.close()
        order.close()
        assert {pool.lease(device)[0] for device in (FAKE0, FAKE1)} == {*seam.created}
