"""STR-3: callbacks given one stream run one at a time, in their parents' order."""

from __future__ import annotations

import itertools
import random
import threading
from typing import TYPE_CHECKING, Any

import pytest

import rpcfut
from rpcfut import Future
from rpcfut._callbacks import isolated_runtime
from rpcfut._lanes import Lanes, Ticket
from tests.support.threads import Gate, Running, run_together

if TYPE_CHECKING:
    from collections.abc import Iterator

    from rpcfut._callbacks import CallbackRuntime


@pytest.fixture
def runtime() -> Iterator[CallbackRuntime]:
    """Lanes and threads of the test's own."""
    with isolated_runtime() as mine:
        yield mine


class _Parameter:
    """A number that is read, changed and written back, with a gate in between."""

    def __init__(self) -> None:
        self.value = 0
        self.read = threading.Semaphore(0)
        self.may_write = Gate()

    def add(self, n: int) -> None:
        old = self.value
        self.read.release()
        self.may_write.pass_through()
        self.value = old + n


def test_plain_callbacks_of_two_futures_lose_updates() -> None:
    """Without a stream they run at once, as torch's do: this is what lanes are for."""
    parameter = _Parameter()
    parents = [Future[int]() for _ in range(2)]
    children = [p.then(lambda f: parameter.add(f.value())) for p in parents]
    setters = [Running(lambda p=p: p.set_result(1)) for p in parents]
    for _ in parents:
        assert parameter.read.acquire(timeout=10), "they do not run at once any more"
    parameter.may_write.set()
    for setter, child in zip(setters, children, strict=True):
        setter.result()
        child.wait(10)
    assert parameter.value == 1, "one update was lost"


def test_with_a_stream_no_update_is_lost() -> None:
    """The second callback enters only when the first has left."""
    parameter = _Parameter()
    host = rpcfut.stream("cpu")
    parents = [Future[int]() for _ in range(2)]
    children = [
        p.then(lambda f: parameter.add(f.value()), stream=host) for p in parents
    ]
    setters = [Running(lambda p=p: p.set_result(1)) for p in parents]
    assert parameter.read.acquire(timeout=10)
    for parent in parents:
        parent.wait(10)
    assert not parameter.read.acquire(blocking=False)
    parameter.may_write.set()
    for setter, child in zip(setters, children, strict=True):
        setter.result()
        child.wait(10)
    assert parameter.value == 2


class _Log:
    """What ran in a lane, and whether two callbacks were in it at once."""

    def __init__(self) -> None:
        self.ran: list[int] = []
        self.inside: list[int] = []
        self.overlaps: list[int] = []

    def note(self, f: Future[int]) -> None:
        self.inside.append(f.value())
        if len(self.inside) != 1:
            self.overlaps.append(f.value())
        self.ran.append(f.value())
        self.inside.pop()


class _Completer:
    """Completes futures and knows in which order; any thread."""

    def __init__(self, futures: list[Future[int]]) -> None:
        self._futures = futures
        self._lock = threading.Lock()
        self._setters: list[Running] = []
        self.completed: list[int] = []

    def complete(self, numbers: list[int]) -> None:
        for i in numbers:
            # A setter each: the lock is held for the completion, not for callbacks.
            with self._lock:
                self.completed.append(i)
                self._setters.append(
                    Running(lambda i=i: self._futures[i].set_result(i))
                )
                self._futures[i].wait(10)

    def join(self) -> None:
        for setter in self._setters:
            setter.result()


@pytest.mark.parametrize("seed", range(3))
def test_callbacks_run_one_at_a_time_in_the_order_their_parents_completed(
    seed: int, runtime: CallbackRuntime
) -> None:
    """600 futures completed by 8 threads, plain callbacks of the same among them."""
    host = rpcfut.stream("cpu")
    futures = [Future[int]() for _ in range(600)]
    log, completer = _Log(), _Completer(futures)

    def register(part: int) -> list[Future[Any]]:
        children: list[Future[Any]] = []
        for future in futures[part::3]:
            children.append(future.then(lambda f: f.value()))
            children.append(future.then(log.note, stream=host))
            children.append(future.then(lambda f: f.value()))
        return children

    parts = run_together(*(lambda part=part: register(part) for part in range(3)))
    order = random.Random(seed).sample(range(600), 600)
    assert (
        run_together(
            *(lambda part=part: completer.complete(order[part::8]) for part in range(8))
        )
        == [None] * 8
    )
    for child in itertools.chain(*parts):
        child.wait(10)
    completer.join()
    assert log.overlaps == []
    assert log.ran == completer.completed
    assert repr(runtime.lanes) == "<Lanes: {}>"


def test_a_lane_callback_on_a_done_future_takes_its_turn() -> None:
    """The rules are the same after completion (FUT-3)."""
    host = rpcfut.stream("cpu")
    entered, may_go_on = Gate(), Gate()
    ran: list[str] = []
    parent: Future[int] = Future()
    done: Future[int] = Future()
    done.set_result(1)

    def hold(_: object) -> None:
        entered.set()
        may_go_on.pass_through()
        ran.append("first")

    first = parent.then(hold, stream=host)
    setter = Running(lambda: parent.set_result(1))
    entered.pass_through()
    second = done.then(lambda _: ran.append("second"), stream=host)
    plain = Future[int]()
    plain.set_result(1)
    assert plain.then(lambda f: f.value()).wait(10) == 1
    assert not second.done()
    may_go_on.set()
    second.wait(10)
    first.wait(10)
    setter.result()
    assert ran == ["first", "second"]


def test_a_callback_behind_one_that_waits_for_its_lane_keeps_its_place() -> None:
    """Callbacks of one future run in order, also if one is held up (FUT-3)."""
    host = rpcfut.stream("cpu")
    entered, may_go_on = Gate(), Gate()
    ran: list[int] = []
    holder, future = Future[int](), Future[int]()

    def hold(_: object) -> None:
        entered.set()
        may_go_on.pass_through()

    holder.then(hold, stream=host)
    children = [
        future.then(lambda _: ran.append(0)),
        future.then(lambda _: ran.append(1), stream=host),
        future.then(lambda _: ran.append(2)),
    ]
    setter = Running(lambda: holder.set_result(1))
    entered.pass_through()
    future.set_result(1)
    children[0].wait(10)
    assert ran == [0]
    may_go_on.set()
    children[2].wait(10)
    setter.result()
    assert ran == [0, 1, 2]


def test_a_raising_callback_leaves_its_lane(runtime: CallbackRuntime) -> None:
    """The next one runs as if nothing had happened."""
    host = rpcfut.stream("cpu")
    parents = [Future[int]() for _ in range(3)]
    failed = parents[0].then(lambda _: 1 // 0, stream=host)
    refused = parents[1].then(lambda _: object(), stream=host)
    fine = parents[2].then(lambda f: f.value(), stream=host)
    for parent in parents:
        parent.set_result(1)
    assert isinstance(failed.exception(10), ZeroDivisionError)
    assert isinstance(refused.exception(10), rpcfut.ExtractionError)
    assert fine.wait(10) == 1
    assert repr(runtime.lanes) == "<Lanes: {}>"


def test_a_long_lane_is_a_loop() -> None:
    """Ten thousand callbacks behind one that holds the lane do not recurse."""
    host = rpcfut.stream("cpu")
    entered, may_go_on = Gate(), Gate()
    holder = Future[int]()

    def hold(_: object) -> None:
        entered.set()
        may_go_on.pass_through()

    holder.then(hold, stream=host)
    setter = Running(lambda: holder.set_result(1))
    entered.pass_through()
    ran: list[int] = []
    parents = [Future[int]() for _ in range(10_000)]
    children = []
    for i, parent in enumerate(parents):
        children.append(parent.then(lambda _, i=i: ran.append(i), stream=host))
        parent.set_result(1)
    may_go_on.set()
    children[-1].wait(15)
    setter.result()
    assert ran == list(range(10_000))


# ---- the lanes alone ----------------------------------------------------------------


def test_tickets_of_two_lanes_in_opposite_order_form_no_circle() -> None:
    """All tickets of one future are taken in one step."""
    lanes = Lanes()
    first = lanes.take([["a"], ["b"]])
    second = lanes.take([["b"], ["a"]])
    resumed: list[str] = []
    assert lanes.start(first[0], _never)
    assert not lanes.start(second[0], lambda: resumed.append("second, b"))
    lanes.finish(first[0])
    assert lanes.start(first[1], _never)
    assert resumed == []
    lanes.finish(first[1])
    assert resumed == ["second, b"]
    lanes.finish(second[0])
    assert lanes.start(second[1], _never)
    lanes.finish(second[1])
    assert repr(lanes) == "<Lanes: {}>"


def test_a_ticket_of_two_lanes_waits_for_both() -> None:
    """It is resumed once, by whoever leaves last."""
    lanes = Lanes()
    (a,), (b,), (both,) = (lanes.take([keys]) for keys in (["a"], ["b"], ["a", "b"]))
    resumed: list[str] = []
    assert lanes.start(a, _never)
    assert lanes.start(b, _never)
    assert not lanes.start(both, lambda: resumed.append("both"))
    lanes.finish(a)
    assert resumed == []
    lanes.finish(b)
    assert resumed == ["both"]
    lanes.finish(both)
    assert repr(lanes) == "<Lanes: {}>"


def test_a_ticket_that_is_not_ready_holds_its_place() -> None:
    """Those behind it wait, whoever is ready first."""
    lanes = Lanes()
    (early,), (late,) = lanes.take([["a"]]), lanes.take([["a"]])
    resumed: list[str] = []
    assert not lanes.start(late, lambda: resumed.append("late"))
    assert repr(lanes) == "<Lanes: {'a': 2}>"
    assert lanes.start(early, _never)
    lanes.finish(early)
    assert resumed == ["late"]


def _never() -> None:
    raise AssertionError("a ticket that may run at once is not resumed")


@pytest.mark.parametrize("seed", range(100))
def test_random_tickets_all_run_in_the_order_they_were_taken(seed: int) -> None:
    """No program of lanes gets stuck, and each lane is a queue."""
    rng = random.Random(seed)
    lanes = Lanes()
    futures: list[list[Ticket]] = []
    for _ in range(20):
        wanted = [
            rng.sample("abc", rng.randint(1, 3)) for _ in range(rng.randint(1, 4))
        ]
        futures.append(lanes.take(wanted))
    place = {id(t): i for i, t in enumerate(t for ts in futures for t in ts)}
    ran: list[Ticket] = []
    ready = [iter(tickets) for tickets in futures]
    may_run: list[tuple[Ticket, Iterator[Ticket]]] = []

    def advance(tickets: Iterator[Ticket]) -> None:
        ticket = next(tickets, None)
        if ticket is None:
            return
        if lanes.start(ticket, lambda: may_run.append((ticket, tickets))):
            may_run.append((ticket, tickets))

    rng.shuffle(ready)
    for tickets in ready:
        advance(tickets)
    while may_run:
        ticket, tickets = may_run.pop(rng.randrange(len(may_run)))
        ran.append(ticket)
        lanes.finish(ticket)
        advance(tickets)
    assert len(ran) == len(place), "it got stuck"
    for key in "abc":
        order = [place[id(t)] for t in ran if key in t.keys]
        assert order == sorted(order)
    assert repr(lanes) == "<Lanes: {}>"
