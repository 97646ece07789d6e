"""How calls end: deadlines, cancellation, and what is said of them meanwhile.

RPC-2, RPC-5, FUT-9 and FUT-10 between two agents of this process.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import logging
import math
import random
import threading
import weakref
from concurrent.futures import CancelledError
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest
import torch

import rpcfut
from rpcfut import Future, RpcTimeoutError, current_call
from rpcfut._callbacks import isolated_runtime
from rpcfut._placement import Placement
from rpcfut._reply import Limit, Reply, Side
from rpcfut._serving import ServedCall, Stage
from rpcfut._workers import WorkerInfo
from rpcfut.testing import local_cluster
from rpcfut_transport import ManualClock
from tests.support.threads import wait_until

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from rpcfut import Agent

PATIENCE_S = 20.0


class Gate:
    """A function that runs until the test lets it go on."""

    def __init__(self) -> None:
        self.runs = threading.Semaphore(0)
        self.go = threading.Event()
        self.calls: list[ServedCall] = []

    def __call__(self) -> str:
        self.calls.append(current_call())
        self.runs.release()
        assert self.go.wait(PATIENCE_S)
        return "done"

    def wait_until_it_runs(self) -> None:
        assert self.runs.acquire(timeout=PATIENCE_S)


class Pair:
    """Two agents, and what bob exposes by name."""

    def __init__(self, alice: Agent, bob: Agent) -> None:
        self.alice, self.bob = alice, bob
        self.gate = Gate()
        self.expose("gate", self.gate)
        self.expose("echo", lambda x: x)

    def expose(self, name: str, function: Callable[..., Any]) -> None:
        self.bob.exposed.expose(function, name=name)

    def call(self, name: str, *args: Any, timeout: float | None = None) -> Future[Any]:
        return self.alice.rpc_async("bob", name, args, timeout=timeout)

    @property
    def unconfirmed(self) -> int:
        return self.alice._endpoint.counters.unconfirmed

    @property
    def late(self) -> int:
        return self.alice._endpoint.counters.late_replies

    def is_idle(self) -> bool:
        return (
            self.alice._endpoint.pending_count == 0
            and self.unconfirmed == 0
            and len(self.bob._dispatcher.served) == 0
            and not self.bob._dispatcher.running
        )


@pytest.fixture
def pair() -> Iterator[Pair]:
    options = rpcfut.AgentOptions(core_threads=2, max_threads=2)
    with (
        isolated_runtime(),
        local_cluster("alice", "bob", options=options) as (alice, bob),
    ):
        made = Pair(alice, bob)
        yield made
        made.gate.go.set()
        wait_until(made.is_idle)


# ---- what a function may ask --------------------------------------------------------


def test_a_function_knows_who_calls_and_how_long_they_wait(pair: Pair) -> None:
    seen: list[tuple[str, str, float | None, bool]] = []

    def note() -> None:
        call = current_call()
        seen.append((call.caller, call.function, call.remaining_s, call.cancelled))

    pair.expose("note", note)
    pair.call("note").wait(PATIENCE_S)
    pair.call("note", timeout=50.0).wait()
    assert seen[0] == ("alice", "note", None, False)
    left_s = seen[1][2]
    assert left_s is not None
    assert 0 < left_s <= 50.0


def test_outside_of_a_call_there_is_none() -> None:
    with pytest.raises(rpcfut.LifecycleError, match="functions that peers call"):
        current_call()


@pytest.mark.parametrize("how", ["then", "then_async", "async def", "thread pool"])
def test_what_a_function_registers_or_awaits_serves_its_call(
    pair: Pair, how: str
) -> None:
    go: Future[None] = Future()

    async def awaits(_: object = None) -> str:
        await asyncio.sleep(0)
        return current_call().function

    functions: dict[str, Callable[..., Any]] = {
        "then": lambda: go.then(lambda _: current_call().function),
        "then_async": lambda: go.then_async(awaits),
        "async def": awaits,
        "thread pool": lambda: asyncio.run(_in_a_thread()),
    }

    async def _in_a_thread() -> str:
        return (await asyncio.to_thread(current_call)).function

    pair.expose("f", functions[how])
    future = pair.call("f")
    go.set_result(None)
    assert future.wait(PATIENCE_S) == "f"
    with pytest.raises(rpcfut.LifecycleError):
        go.then(lambda _: current_call()).wait(PATIENCE_S)


# ---- deadlines ----------------------------------------------------------------------


def test_nested_calls_wait_no_longer_than_the_outer_one(pair: Pair) -> None:
    left: list[float | None] = []

    def inner() -> None:
        left.append(current_call().remaining_s)

    def outer(timeout: float | None) -> None:
        pair.bob.rpc_sync("alice", "inner", timeout=timeout)

    pair.alice.exposed.expose(inner, name="inner")
    pair.expose("outer", outer)
    for own in (None, 500.0, 5.0):
        pair.call("outer", own, timeout=60.0).wait()
    pair.call("outer", None).wait(PATIENCE_S)
    assert left[0] is not None
    assert 5.0 < left[0] <= 60.0
    assert left[1] is not None
    assert left[1] <= 60.0
    assert left[2] is not None
    assert left[2] <= 5.0
    assert left[3] is None


def test_a_nested_call_without_time_left_fails_at_once_and_names_the_outer_one(
    pair: Pair,
) -> None:
    failed: list[BaseException | None] = []

    def outer() -> None:
        assert pair.gate.go.wait(PATIENCE_S)
        failed.append(pair.bob.rpc_async("alice", "echo", (1,)).exception(PATIENCE_S))

    pair.expose("outer", outer)
    future = pair.call("outer", timeout=0.5)
    assert isinstance(future.exception(PATIENCE_S), RpcTimeoutError)
    pair.gate.go.set()
    wait_until(lambda: bool(failed))
    assert isinstance(failed[0], RpcTimeoutError)
    assert "no time left" in str(failed[0])
    assert "outer, called by worker 'alice'" in str(failed[0])


def test_work_that_expired_in_the_queue_is_not_started(pair: Pair) -> None:
    """And the caller hears nothing of it but its own timeout."""
    ran: list[int] = []
    pair.expose("run", ran.append)
    blockers = [pair.call("gate") for _ in range(2)]
    for _ in blockers:
        pair.gate.wait_until_it_runs()
    for future in [pair.call("run", i, timeout=0.03) for i in range(5)]:
        assert isinstance(future.exception(PATIENCE_S), RpcTimeoutError)
    # Over there it may be over a moment later.
    served = pair.bob._dispatcher.served
    wait_until(lambda: sum(call.cancelled for call in served.all()) == 5)
    pair.gate.go.set()
    for blocker in blockers:
        assert blocker.wait(PATIENCE_S) == "done"
    wait_until(pair.is_idle)
    assert ran == []


@pytest.mark.parametrize("timeout", [-1, math.nan, "1", True, [], b"1"])
def test_a_timeout_that_is_none_is_refused(pair: Pair, timeout: Any) -> None:
    with pytest.raises(rpcfut.CallRefusedError, match="seconds from 0 on"):
        pair.call("echo", 1, timeout=timeout)


def test_a_timeout_of_nothing_ends_at_once_and_one_of_ever_never(pair: Pair) -> None:
    assert isinstance(
        pair.call("gate", timeout=0).exception(PATIENCE_S), RpcTimeoutError
    )
    for forever in (math.inf, 10**400, 1e300):
        assert pair.call("echo", 1, timeout=forever).wait(PATIENCE_S) == 1


@pytest.mark.parametrize("timeout_s", [0, -1, math.nan, True, "1"])
def test_a_default_timeout_that_is_none_is_refused(timeout_s: Any) -> None:
    with pytest.raises(ValueError, match="timeout_s must be positive"):
        rpcfut.AgentOptions(timeout_s=timeout_s)


def test_a_worker_that_leaves_does_not_call_that_a_timeout() -> None:
    """What still queues there has no answer; its caller learns that it left."""
    options = rpcfut.AgentOptions(core_threads=1, max_threads=1)
    with (
        isolated_runtime(),
        local_cluster("alice", "bob", options=options) as (alice, bob),
    ):
        made = Pair(alice, bob)
        made.call("gate")
        made.gate.wait_until_it_runs()
        queued = made.call("echo", 1)
        wait_until(lambda: len(bob._dispatcher.served) == 2)
        bob._dispatcher.close()
        made.gate.go.set()
        assert made.call("echo", 2).wait(PATIENCE_S) == 2
        assert not queued.done()
        bob.close()
        assert isinstance(queued.exception(PATIENCE_S), rpcfut.PeerLostError)


def test_a_callee_whose_clock_is_ahead_says_that_it_was_too_late(
    pair: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ServedCall, "cancelled", True)
    error = pair.call("echo", 1, timeout=60.0).exception(PATIENCE_S)
    assert isinstance(error, RpcTimeoutError)
    assert "'bob' did not start echo on worker 'bob'" in str(error)
    assert "60.0 s had passed" in str(error)


def test_a_call_that_timed_out_is_cancelled_there(pair: Pair) -> None:
    future = pair.call("gate", timeout=0.1)
    pair.gate.wait_until_it_runs()
    assert isinstance(future.exception(PATIENCE_S), RpcTimeoutError)
    told = threading.Event()
    pair.gate.calls[0].add_cancel_callback(told.set)
    assert told.wait(PATIENCE_S)
    assert pair.unconfirmed == 1
    pair.gate.go.set()
    wait_until(pair.is_idle)
    assert pair.late == 1


def test_b41_late_answers_are_counted_and_change_nothing(pair: Pair) -> None:
    futures = [pair.call("gate", timeout=0.2) for _ in range(40)]
    errors = [future.exception(PATIENCE_S) for future in futures]
    assert {type(error) for error in errors} == {RpcTimeoutError}
    pair.gate.go.set()
    wait_until(pair.is_idle)
    assert pair.late == 40
    assert [future.exception(0) for future in futures] == errors
    assert pair.call("echo", 1).wait(PATIENCE_S) == 1


# ---- cancelling ---------------------------------------------------------------------


def test_cancelling_ends_it_here_at_once_and_is_seen_there(pair: Pair) -> None:
    future = pair.call("gate")
    pair.gate.wait_until_it_runs()
    (call,) = pair.gate.calls
    assert not call.cancelled
    told = threading.Event()
    call.add_cancel_callback(told.set)
    assert future.cancel()
    with pytest.raises(CancelledError):
        future.wait(0)
    assert told.wait(PATIENCE_S)
    assert call.cancelled
    assert pair.unconfirmed == 1, "the callee may still use what it was sent"
    pair.gate.go.set()
    wait_until(pair.is_idle)


def test_what_was_not_started_is_not_run(pair: Pair) -> None:
    ran: list[int] = []
    pair.expose("run", ran.append)
    blockers = [pair.call("gate") for _ in range(2)]
    for _ in blockers:
        pair.gate.wait_until_it_runs()
    futures = [pair.call("run", i) for i in range(3)]
    assert [future.cancel() for future in futures] == [True] * 3
    served = pair.bob._dispatcher.served
    wait_until(lambda: sum(call.cancelled for call in served.all()) == 3)
    pair.gate.go.set()
    wait_until(pair.is_idle)
    assert ran == []
    assert blockers[0].wait(PATIENCE_S) == "done"


def test_an_async_def_is_cancelled(pair: Pair) -> None:
    started, ended = threading.Event(), threading.Event()

    async def hang() -> None:
        started.set()
        try:
            await asyncio.get_running_loop().create_future()
        finally:
            ended.set()

    pair.expose("hang", hang)
    future = pair.call("hang")
    assert started.wait(PATIENCE_S)
    assert future.cancel()
    assert ended.wait(PATIENCE_S)


def test_cancelling_goes_down_and_not_up(pair: Pair) -> None:
    future = pair.call("gate")
    child = future.then(lambda done: done.value())
    sibling = future.then(lambda done: done.cancelled())
    assert child.cancel()
    assert not future.done()
    assert future.cancel()
    assert sibling.wait(PATIENCE_S) is True


def test_an_ended_call_cannot_be_cancelled(pair: Pair) -> None:
    future = pair.call("echo", 1)
    assert future.wait(PATIENCE_S) == 1
    assert not future.cancel()
    assert future.wait(0) == 1


def test_a_cancelled_task_cancels_its_call_and_a_shielded_one_does_not(
    pair: Pair,
) -> None:
    async def use() -> None:
        cancelled, kept = pair.call("gate"), pair.call("gate")
        for awaited in (cancelled, asyncio.shield(kept)):
            with pytest.raises((TimeoutError, asyncio.TimeoutError)):
                await asyncio.wait_for(awaited, 0.05)
        assert cancelled.cancelled()
        assert not kept.done()
        pair.gate.go.set()
        assert await kept == "done"

    asyncio.run(use())


@pytest.mark.parametrize(("name", "reports"), [("gate", 0), ("fail", 1)])
def test_a_late_value_behind_a_shield_is_quiet_and_an_error_is_reported_once(
    pair: Pair, caplog: pytest.LogCaptureFixture, name: str, reports: int
) -> None:
    """The error by asyncio, whose task has awaited it; not by us as well (FUT-6)."""

    def fail() -> None:
        pair.gate()
        raise ValueError("late")

    pair.expose("fail", fail)

    async def use() -> None:
        future = pair.call(name)
        with pytest.raises((TimeoutError, asyncio.TimeoutError)):
            await asyncio.wait_for(asyncio.shield(future), 0.05)
        pair.gate.go.set()
        while not future.done():
            await asyncio.sleep(0)
        await asyncio.sleep(0)
        del future
        gc.collect()

    asyncio.run(use())
    gc.collect()
    assert [record.name for record in caplog.records] == ["asyncio"] * reports


def test_the_calls_of_a_caller_that_left_are_cancelled(pair: Pair) -> None:
    future = pair.call("gate")
    pair.gate.wait_until_it_runs()
    told = threading.Event()
    pair.gate.calls[0].add_cancel_callback(told.set)
    pair.alice.close()
    assert told.wait(PATIENCE_S)
    assert isinstance(future.exception(PATIENCE_S), rpcfut.LifecycleError)


def test_a_hook_that_raises_is_logged_and_the_others_run(
    caplog: pytest.LogCaptureFixture,
) -> None:
    call = ServedCall("alice", None, ManualClock(0.0))
    ran: list[int] = []
    call.add_cancel_callback(lambda: 1 / 0)
    call.add_cancel_callback(lambda: ran.append(1))
    call.cancel()
    call.cancel()
    call.add_cancel_callback(lambda: ran.append(2))
    assert ran == [1, 2]
    assert "ZeroDivisionError" in caplog.text


def test_a_deadline_that_passed_counts_as_cancelled() -> None:
    clock = ManualClock(0.0)
    call = ServedCall("alice", 5.0, clock)
    assert (call.remaining_s, call.cancelled) == (5.0, False)
    clock.advance(6)
    assert (call.remaining_s, call.cancelled) == (0.0, True)


def test_a_value_lives_no_longer_than_what_holds_it(pair: Pair) -> None:
    """Not until a garbage collection: it may be most of a device's memory."""
    gc.disable()
    try:
        future = pair.call("echo", torch.ones(3))
        tensor = future.wait(PATIENCE_S)
        refs = weakref.ref(future), weakref.ref(tensor)
        del future, tensor
        wait_until(lambda: [ref() for ref in refs] == [None, None])
    finally:
        gc.enable()


@pytest.mark.parametrize("how", ["def", "async def", "future", "raises"])
def test_a_callee_keeps_nothing_of_a_call_that_it_answered(
    pair: Pair, how: str
) -> None:
    """Neither arguments nor result, nor waits for a garbage collection to let go."""
    refs: list[weakref.ref[Any]] = []

    def double(x: torch.Tensor) -> torch.Tensor:
        y = x * 2
        refs.extend((weakref.ref(x), weakref.ref(y)))
        return y

    async def double_later(x: torch.Tensor) -> torch.Tensor:
        await asyncio.sleep(0)
        return double(x)

    def double_in_future(x: torch.Tensor) -> Future[torch.Tensor]:
        future: Future[torch.Tensor] = Future()
        future.set_result(double(x))
        return future

    def fail(x: torch.Tensor) -> None:
        double(x)
        raise ValueError("on purpose")

    functions = {"def": double, "async def": double_later, "future": double_in_future}
    pair.expose("f", functions.get(how, fail))
    gc.disable()
    try:
        pair.call("f", torch.ones(3)).exception(PATIENCE_S)
        wait_until(lambda: [ref() for ref in refs] == [None, None])
    finally:
        gc.enable()


# ---- saying where it is -------------------------------------------------------------


def test_explain_says_that_it_runs_there(pair: Pair) -> None:
    future = pair.call("gate")
    pair.gate.wait_until_it_runs()
    text = future.explain()
    assert "waits for the answer of worker 'bob'" in text
    assert "there it is running, since 0." in text
    assert "on thread 'rpcfut-serve-bob" in text


def test_all_who_ask_at_once_are_told() -> None:
    """One word of the callee is for all of them."""
    asked = threading.Barrier(3)
    endpoint: Any = SimpleNamespace(
        inbox=None,
        ask=lambda _: asked.wait(PATIENCE_S) >= 0,
        abandon_call=lambda _: True,
    )
    side = Side("alice", endpoint, Placement("alice", "error", {}))
    site = (test_all_who_ask_at_once_are_told.__code__, 0)
    reply: Reply[int] = Reply(side, WorkerInfo("bob", 1), "f", site, Limit(1.0))
    future = reply.begin()
    reply.is_sent = True
    said: list[str] = []

    def ask() -> None:
        said.append(reply.ask(PATIENCE_S))

    threads = [threading.Thread(target=ask) for _ in range(2)]
    for thread in threads:
        thread.start()
    asked.wait(PATIENCE_S)
    reply.on_told("running")
    for thread in threads:
        thread.join(PATIENCE_S / 2)
    assert said == ["there it is running"] * 2
    future.cancel()


def test_explain_says_that_it_queues_there(pair: Pair) -> None:
    blockers = [pair.call("gate") for _ in range(2)]
    for _ in blockers:
        pair.gate.wait_until_it_runs()
    assert "there it is queued, since" in pair.call("echo", 1).explain()


def test_explain_says_that_its_future_is_waited_for(pair: Pair) -> None:
    pending: Future[None] = Future()
    pair.expose("later", lambda: pending)
    future = pair.call("later")
    wait_until(lambda: "returned a future" in future.explain())
    pending.set_result(None)
    future.wait(PATIENCE_S)


def test_a_timeout_says_where_the_call_was(pair: Pair) -> None:
    future = pair.call("gate", timeout=0.3)
    pair.gate.wait_until_it_runs()
    with pytest.raises(TimeoutError, match="there it is running"):
        future.wait(0.01)
    error = future.exception(PATIENCE_S)
    assert isinstance(error, RpcTimeoutError)
    assert "no answer after 0.3 s from gate on worker 'bob'" in str(error)
    assert "s before that, it was there: running, since" in str(error)


def test_a_peer_that_is_stopped_does_not_answer_and_explain_says_so(
    pair: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    future = pair.call("gate")
    pair.gate.wait_until_it_runs()
    monkeypatch.setattr(pair.bob, "on_ask", lambda *_: 1 / 0)
    assert "worker 'bob' does not say where it is" in future.explain()


def test_a_call_that_takes_long_is_logged_with_its_place(
    pair: Pair, caplog: pytest.LogCaptureFixture
) -> None:
    future = pair.call("gate")
    pair.gate.wait_until_it_runs()
    sink = next(iter(pair.alice._endpoint._ledger._sinks.values()))
    with caplog.at_level(logging.WARNING, "rpcfut.agent"):
        sink.on_slow()
        wait_until(lambda: "pending for a minute" in caplog.text)
    assert "there it is running" in caplog.text
    future.cancel()


def test_every_stage_has_words() -> None:
    clock = ManualClock(0.0)
    call = ServedCall("alice", None, clock)
    for stage in Stage:
        call.enter(stage)
        clock.advance(2)
        assert "since 2.000 s" in call.describe()


# ---- all at once --------------------------------------------------------------------


@pytest.mark.timeout(120)
def test_a_thousand_calls_around_their_deadline_end_once_each(pair: Pair) -> None:
    """By value or by timeout, at least 200 of each; and nothing is left."""
    pair.expose("wait", lambda s: threading.Event().wait(s) and None)
    ends: list[int] = [0] * 1000
    futures = []
    for number in range(1000):
        # Too slow, in time, and around it.
        work_s, timeout = (
            (0.4, random.uniform(0.001, 0.2)),
            (0.0, 60.0),
            (random.uniform(0, 0.02), random.uniform(0.001, 0.04)),
        )[number % 3]
        future = pair.call("wait", work_s, timeout=timeout)

        def note(_: object, number: int = number) -> None:
            ends[number] += 1

        future.add_done_callback(note)
        futures.append(future)
    errors = [future.exception(PATIENCE_S) for future in futures]
    kinds = [type(error) for error in errors]
    assert kinds.count(RpcTimeoutError) >= 200
    assert kinds.count(type(None)) >= 200
    assert len(errors) == kinds.count(RpcTimeoutError) + kinds.count(type(None))
    wait_until(pair.is_idle)
    wait_until(lambda: ends == [1] * 1000)


def test_cancel_answer_and_deadline_race_for_one_end(pair: Pair) -> None:
    pair.expose("spin", lambda n: n)
    for _ in range(60):
        futures = [pair.call("spin", n, timeout=0.002) for n in range(10)]
        threads = [
            threading.Thread(target=lambda f=f: f.cancel())  # type: ignore[misc]
            for f in futures
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        for n, future in enumerate(futures):
            with contextlib.suppress(CancelledError, RpcTimeoutError):
                assert future.wait(PATIENCE_S) == n
    wait_until(pair.is_idle)
