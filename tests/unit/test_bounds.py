"""Queues to workers are bounded: calls wait for room, or are refused (RPC-8)."""

from __future__ import annotations

import asyncio
import threading
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import pytest

import rpcfut
from rpcfut import AgentOptions, QueueFullError, RpcTimeoutError
from rpcfut._callbacks import isolated_runtime
from rpcfut._exposed import ExposedTable
from rpcfut.testing import local_cluster, simulate
from rpcfut.transport import MAX_BUFFERS
from tests.support.threads import Gate, Running, wait_until

if TYPE_CHECKING:
    from collections.abc import Iterator

    from rpcfut import Agent, Future
    from rpcfut.transport import QueueView

WAIT_S = 15
BOUND = 100_000
LOAD = b"x" * 40_000


class World:
    """Agents ``a``, ``b`` and ``c``; ``b`` takes one call at a time, when let go on."""

    def __init__(self, agents: list[Agent], go: Gate, started: list[int]) -> None:
        self.a, self.b, self.c = agents
        self.go = go
        self.started = started

    def call(self, *, to: Any = "b", timeout: float | None = None) -> Any:
        return self.a.rpc_async(to, "work", (LOAD,), timeout=timeout)

    def fill(self) -> list[Future[int]]:
        """Let ``b`` be busy with one call, and fill the queue to it."""
        calls = [self.call()]
        wait_until(lambda: len(self.started) == 1)
        return [*calls, self.call(), self.call()]

    def queue(self, agent: Agent | None = None, rank: int = 1) -> QueueView:
        return (agent or self.a)._endpoint.rooms.look()[rank]

    def check_empty(self) -> None:
        """Nothing is kept, nobody waits, and the next call goes through."""
        self.go.set()
        assert self.a.rpc_async("b", "work", (LOAD,)).wait(WAIT_S) == len(LOAD)
        wait_until(lambda: self.queue() == (0, 0, 0, 0), 8)
        assert self.a._endpoint.pending_count == 0


@contextmanager
def world_of(when_full: Any = "block", **options: Any) -> Iterator[World]:
    go, started = Gate(), list[int]()

    def work(load: bytes) -> int:
        started.append(1)
        go.pass_through()
        return len(load)

    exposed = ExposedTable()
    exposed.expose(work, name="work", serial=True)
    exposed.expose(len, name="len")
    options = {"queue_nbytes": BOUND, "when_full": when_full, **options}
    with local_cluster(
        "a", "b", "c", exposed=exposed, options=AgentOptions(**options)
    ) as agents:
        try:
            yield World(agents, go, started)
        finally:
            go.set()


def test_a_call_over_the_bound_waits_until_earlier_ones_have_started() -> None:
    with world_of() as world:
        calls = world.fill()
        blocked = Running(world.call)
        wait_until(lambda: world.queue().waiting == 1)
        assert world.queue().calls_nbytes <= BOUND
        assert world.a._endpoint.pending_count == 3, "it is not even open"
        assert world.a.rpc_sync("c", "len", (LOAD,), timeout=WAIT_S) == len(LOAD)
        world.go.set()
        for call in (*calls, blocked.result()):
            assert call.wait(WAIT_S) == len(LOAD)
        world.check_empty()


def test_a_call_of_any_size_goes_through_an_empty_queue() -> None:
    with world_of() as world:
        load = b"x" * (10 * BOUND)
        for _ in range(3):
            assert world.a.rpc_async("c", "len", (load,)).wait(WAIT_S) == len(load)


def test_waiting_for_room_counts_to_the_time_of_the_call() -> None:
    """It fails by its timeout, and says that it was never sent."""
    with world_of() as world:
        world.fill()
        error = world.call(timeout=0.05).exception(WAIT_S)
        assert isinstance(error, RpcTimeoutError)
        assert "no room in 0.05 s for work on worker 'b'" in str(error)
        assert "which was not sent" in str(error)
        assert "KiB of calls wait for worker 'b', of at most 97.7 KiB" in str(error)
        peers, _ = world.a._endpoint.look()
        assert peers[1].queued_nbytes == world.queue().calls_nbytes > len(LOAD)
        assert world.queue().waiting == 0
        world.check_empty()


def test_what_is_left_after_waiting_for_room_is_what_the_call_may_take() -> None:
    with world_of() as world:
        world.fill()
        blocked = Running(lambda: world.call(timeout=0.5))
        wait_until(lambda: world.queue().waiting == 1)
        world.a._endpoint.rooms.release(1, BOUND)  # as if all had been taken
        error = blocked.result().exception(WAIT_S)
        assert "no answer after 0.5 s from work on worker 'b'" in str(error)


def test_fail_refuses_at_once_and_leaves_nothing() -> None:
    """The error has the figures, and says what to do; nothing is open or kept."""
    with world_of("fail") as world:
        calls = world.fill()
        queue, pending = world.queue(), world.a._endpoint.pending_count
        for _ in range(100):
            with pytest.raises(QueueFullError) as caught:
                world.call()
        text = str(caught.value)
        assert text.startswith("cannot call work on worker 'b', called at ")
        assert "KiB of calls wait for worker 'b', of at most 97.7 KiB" in text
        assert "init_rpc(queue_nbytes=...)" in text
        assert isinstance(caught.value, rpcfut.CallRefusedError)
        assert (world.queue(), world.a._endpoint.pending_count) == (queue, pending)
        world.go.set()
        assert [c.wait(WAIT_S) for c in calls] == [len(LOAD)] * 3
        world.check_empty()


def test_a_call_to_many_is_made_to_all_or_to_none() -> None:
    with world_of("fail") as world:
        world.fill()
        with pytest.raises(QueueFullError, match="work on worker 'b'"):
            world.call(to=["c", "b", "a"])
        assert world.queue(rank=2) == world.queue(rank=0) == (0, 0, 0, 0)
        assert len(world.started) == 1
        assert world.a._endpoint.pending_count == 3
        world.go.set()
        wait_until(lambda: world.a._endpoint.pending_count == 0)
        sent = world.call(to=["c", "b", "a"])
        assert [future.wait(WAIT_S) for future in sent] == [len(LOAD)] * 3
        world.check_empty()


def test_a_call_to_many_shares_one_time() -> None:
    """Whom there is no room for fails; the others are called."""
    with world_of() as world:
        world.fill()
        on_c, on_b, again = world.call(to=["c", "b", "b"], timeout=0.3)
        assert isinstance(on_b.exception(WAIT_S), RpcTimeoutError)
        assert "there is no time left of 0.3 s" in str(again.exception(WAIT_S))
        assert isinstance(on_c.exception(WAIT_S), RpcTimeoutError), "c is busy, too"
        world.check_empty()


def test_b88_who_waits_for_room_hears_that_the_worker_is_gone() -> None:
    with world_of() as world:
        world.fill()
        blocked = Running(world.call)
        wait_until(lambda: world.queue().waiting == 1)
        world.b.close()
        error = blocked.result().exception(WAIT_S)
        assert isinstance(error, rpcfut.PeerLostError)


def test_who_waits_for_room_hears_that_we_leave() -> None:
    with world_of() as world:
        world.fill()
        blocked = Running(world.call)
        wait_until(lambda: world.queue().waiting == 1)
        world.a.close()
        assert isinstance(blocked.outcome(), rpcfut.LifecycleError)


def test_a_handler_that_waits_for_room_makes_place_for_another_thread() -> None:
    """RPC-6: one thread serves; it waits, and what it waits for is served."""
    with world_of(core_threads=1, max_threads=3) as world:
        world.fill()

        def forward() -> int:
            return world.call().wait(WAIT_S)

        world.a.exposed.expose(forward, name="forward")
        nested = world.c.rpc_async("a", "forward")
        wait_until(lambda: world.queue().waiting == 1)
        assert world.c.rpc_sync("a", "len", (LOAD,), timeout=WAIT_S) == len(LOAD)
        world.go.set()
        assert nested.wait(WAIT_S) == len(LOAD)
        world.check_empty()


def test_a_handler_is_refused_a_wait_that_would_take_the_last_thread() -> None:
    with world_of(core_threads=1, max_threads=1) as world:
        calls = [world.a.rpc_async("c", "work", (LOAD,)) for _ in range(3)]
        wait_until(lambda: len(world.started) == 1)

        def forward() -> None:
            world.a.rpc_async("c", "work", (LOAD,))

        world.a.exposed.expose(forward, name="forward")
        with pytest.raises(rpcfut.RemoteError, match="PoolExhaustedError"):
            world.b.rpc_sync("a", "forward", timeout=WAIT_S)
        assert world.queue(rank=2).waiting == 0
        world.go.set()
        assert [c.wait(WAIT_S) for c in calls] == [len(LOAD)] * 3


def test_a_coroutine_of_ours_never_stops_its_loop_to_wait() -> None:
    """It is refused, in either mode."""
    with isolated_runtime(), world_of() as world:
        world.fill()

        async def forward() -> None:
            await asyncio.sleep(0)
            await world.call()

        world.a.exposed.expose(forward, name="forward")
        with pytest.raises(rpcfut.RemoteError, match="runs coroutines, and may not"):
            world.c.rpc_sync("a", "forward", timeout=WAIT_S)
        world.check_empty()


def test_b88_a_call_that_waits_for_a_device_has_its_room_from_the_start() -> None:
    """So the thread that sends it later never waits."""
    with simulate(1) as sim, world_of("fail") as world:
        with sim.held():
            array = sim.zeros(5000)
            behind = world.a.rpc_async("b", "len", (array,))
            assert world.queue().calls_nbytes > 40_000
            more = world.a.rpc_async("b", "len", (array,))
            with pytest.raises(QueueFullError):
                world.a.rpc_async("b", "len", (array,))
            hasty = world.a.rpc_async("c", "len", (array,), timeout=0.01)
            assert isinstance(hasty.exception(WAIT_S), RpcTimeoutError)
            given_up = world.a.rpc_async("c", "len", (array,))
            given_up.cancel()
        assert behind.wait(WAIT_S) == more.wait(WAIT_S) == 5000
        wait_until(lambda: world.queue(rank=2) == (0, 0, 0, 0), 8)
        world.check_empty()


def test_b88_what_cannot_be_sent_takes_no_room(monkeypatch: pytest.MonkeyPatch) -> None:
    """For one: more buffers than the header has a place for."""
    with world_of() as world:
        sender = world.a._endpoint
        with pytest.raises(rpcfut.transport.LocalProtocolError, match="at most"):
            sender.call(1, None, _Sink(), b"", [b""] * (MAX_BUFFERS + 1))
        assert world.queue() == (0, 0, 0, 0)
        link = sender._link
        monkeypatch.setattr(link, "send", _refuse)
        with pytest.raises(rpcfut.CallRefusedError, match="on purpose"):
            world.call()
        monkeypatch.undo()
        assert world.queue() == (0, 0, 0, 0)
        world.check_empty()


def _refuse(*_: object) -> None:
    raise rpcfut.transport.LinkError("on purpose")


class _Sink:
    """Takes the end of a call that never begins."""

    call_id = 0


@pytest.mark.parametrize(
    "wrong",
    [
        {"queue_nbytes": 0},
        {"queue_nbytes": 1.5},
        {"queue_nbytes": True},
        {"when_full": "wait"},
        {"when_full": None},
    ],
)
def test_options_that_make_no_sense_are_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="must be"):
        AgentOptions(**wrong)


class Answers:
    """Calls of ``a`` whose answers it does not read while `stop` is in force."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.ran = 0
        world.go.set()

        def make() -> bytes:
            self.ran += 1
            return LOAD

        world.b.exposed.expose(make, name="make")

    @contextmanager
    def unread(self) -> Iterator[None]:
        """Have nothing of ``a`` read meanwhile, as if its process were stopped."""
        link = self.world.a._endpoint._link
        inbox = link._inbox
        held = Held(inbox)
        link._inbox = held
        link.wake()
        wait_until(lambda: held.is_read)
        try:
            yield
        finally:
            held.go_on()


class Held:
    """An inbox that gives nothing until it goes on."""

    def __init__(self, inbox: Any) -> None:
        self._inbox = inbox
        self._may_go_on = threading.Event()
        self.is_read = False

    def get(self, timeout: float | None = None) -> Any:
        self.is_read = True
        self._may_go_on.wait(WAIT_S)
        return self._inbox.get(timeout=timeout)

    def put(self, message: Any) -> None:
        self._inbox.put(message)

    def go_on(self) -> None:
        self._may_go_on.set()


def test_calls_of_a_worker_that_does_not_read_its_answers_are_not_started() -> None:
    """They are parked, say so, and go on once it reads."""
    with world_of() as world:
        answers = Answers(world)
        with answers.unread():
            calls = [world.a.rpc_async("b", "make") for _ in range(40)]
            wait_until(lambda: world.queue(world.b, 0).parked >= 40 - 3 - 16)
            parked = world.queue(world.b, 0).parked
            wait_until(lambda: answers.ran + world.queue(world.b, 0).parked == 40)
            assert 3 <= answers.ran <= 3 + 16, "as many as run at a time may be more"
            stages = [s.describe() for s in world.b._dispatcher.served.all()]
            assert sum("parked: too many answers" in s for s in stages) >= parked
            other = world.c.rpc_sync("b", "make", timeout=WAIT_S)
            assert other == LOAD, "others are served"
        assert [call.wait(WAIT_S) for call in calls] == [LOAD] * 40
        assert answers.ran == 41
        wait_until(lambda: world.queue(world.b, 0).parked == 0)


def test_parked_calls_of_a_worker_that_is_gone_never_start() -> None:
    with world_of() as world:
        answers = Answers(world)
        with answers.unread():
            for _ in range(40):
                world.a.rpc_async("b", "make")
            wait_until(lambda: answers.ran + world.queue(world.b, 0).parked == 40)
            ran = answers.ran
            endpoint = world.b._endpoint
            endpoint.lose_peer(0, world.a.record.incarnation, "on purpose")
            wait_until(lambda: not world.b._dispatcher.running)
            assert answers.ran == ran
            assert not world.b._dispatcher.served.all()


def test_a_parked_call_may_be_cancelled_or_run_out_of_time() -> None:
    """It never starts, and its caller hears so at once."""
    with world_of() as world:
        answers = Answers(world)
        with answers.unread():
            calls = [world.a.rpc_async("b", "make") for _ in range(40)]
            wait_until(lambda: answers.ran + world.queue(world.b, 0).parked == 40)
            ran = answers.ran
            for call in calls:
                call.cancel()
            # Each is told before the callee hears that it may go on.
        wait_until(lambda: not world.b._dispatcher.running)
        assert answers.ran <= ran + 16
        world.check_empty()
