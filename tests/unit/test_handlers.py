"""What functions that peers call find, and what becomes of an `async def` (RPC-6)."""

from __future__ import annotations

import asyncio
import contextvars
import decimal
import threading
from typing import TYPE_CHECKING, Any

import pytest
import torch

import rpcfut
from rpcfut import AgentOptions, Future
from rpcfut._callbacks import isolated_runtime
from rpcfut._exposed import ExposedTable
from rpcfut._isolation import run_isolated
from rpcfut.testing import local_cluster, simulate

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from rpcfut import Agent

_variable: contextvars.ContextVar[int] = contextvars.ContextVar("_variable", default=0)


@pytest.fixture(autouse=True)
def _own_runtime() -> Iterator[None]:
    """The loop that drives coroutines, and its thread, go with the test."""
    with isolated_runtime():
        yield


@pytest.fixture
def table() -> ExposedTable:
    return ExposedTable()


@pytest.fixture
def call(table: ExposedTable) -> Iterator[Callable[..., Any]]:
    """Calls a function of bob's by its name, from alice."""
    with local_cluster("alice", "bob", exposed=table) as (alice, _):
        yield lambda name, *args: alice.rpc_async("bob", name, args)


def on_one_thread(*functions: Callable[[], Any]) -> list[Any]:
    """Run functions one after the other, isolated, on one new thread."""
    made: list[Any] = []
    thread = threading.Thread(
        target=lambda: made.extend(run_isolated(function) for function in functions)
    )
    thread.start()
    thread.join()
    return made


def state() -> dict[str, object]:
    """Whatever a function may have left behind on its thread."""
    return {
        "grad": torch.is_grad_enabled(),
        "inference": torch.is_inference_mode_enabled(),
        "autocast": torch.is_autocast_enabled("cpu"),
        "device": torch.ones(1).device.type,
        "variable": _variable.get(),
        "decimal": decimal.getcontext().prec,
        "hooks": torch._C._autograd._top_saved_tensors_default_hooks(True) is None,  # noqa: FBT003
        "dispatch": torch._C._len_torch_dispatch_stack(),
    }


class _Mode(torch.utils._python_dispatch.TorchDispatchMode):
    def __torch_dispatch__(self, func: Any, _: Any, args: Any = (), kw: Any = None):
        return func(*args, **(kw or {}))


LEAKS: dict[str, Callable[[], object]] = {
    "grad": lambda: torch.set_grad_enabled(False),
    "autocast": lambda: torch.autocast("cpu").__enter__(),
    "device": lambda: torch.set_default_device("meta"),
    "device_context": lambda: torch.device("meta").__enter__(),
    "variable": lambda: _variable.set(7),
    "decimal": lambda: decimal.getcontext().__setattr__("prec", 3),
    "dispatch": lambda: _Mode().__enter__(),
    "hooks": lambda: torch.autograd.graph.save_on_cpu().__enter__(),
}


@pytest.mark.parametrize("leak", LEAKS)
def test_nothing_is_left_for_the_next_function(leak: str) -> None:
    clean, _, after = on_one_thread(state, LEAKS[leak], state)
    assert after == clean


def test_inference_mode_is_off_although_somebody_left_it_on() -> None:
    mode = torch.inference_mode()

    def enter() -> None:
        mode.__enter__()

    def leave() -> None:
        mode.__exit__(None, None, None)

    clean, _, after, _ = on_one_thread(state, enter, state, leave)
    assert after == clean


def test_a_handler_does_not_see_its_callers_switches(
    table: ExposedTable, call: Callable[..., Any]
) -> None:
    table.expose(state, name="state")
    _variable.set(3)
    with torch.no_grad(), torch.inference_mode():
        seen = call("state").wait(10)
    assert (seen["grad"], seen["inference"], seen["variable"]) == (True, False, 0)


# ---- async def ---------------------------------------------------------------------


def test_an_async_def_is_answered_when_it_has_ended(
    table: ExposedTable, call: Callable[..., Any]
) -> None:
    go: Future[int] = Future()

    async def add(x: int) -> int:
        return x + await go

    table.expose(add, name="add")
    answers = [call("add", i) for i in range(100)]  # more than there are threads
    assert not any(answer.done() for answer in answers)
    go.set_result(1)
    assert [answer.wait(10) for answer in answers] == list(range(1, 101))


def test_an_async_def_that_raises_fails_the_call(
    table: ExposedTable, call: Callable[..., Any]
) -> None:
    async def fail() -> None:
        await asyncio.sleep(0)
        raise KeyError("no")

    async def give_up() -> None:
        raise asyncio.CancelledError

    table.expose(fail, name="fail")
    table.expose(give_up, name="give_up")
    with pytest.raises(KeyError):
        call("fail").wait(10)
    with pytest.raises(rpcfut.RemoteError, match="CancelledError"):
        call("give_up").wait(10)


def test_what_an_async_def_returned_is_refused_with_its_name(
    table: ExposedTable, call: Callable[..., Any]
) -> None:
    class Opaque:
        pass

    async def make() -> Opaque:
        return Opaque()

    table.expose(make, name="make")
    with pytest.raises(rpcfut.ExtractionError, match="the return value of make"):
        call("make").wait(10)


def test_an_async_def_starts_in_a_clean_context(
    table: ExposedTable, call: Callable[..., Any]
) -> None:
    async def read() -> int:
        await asyncio.sleep(0)
        return _variable.get()

    table.expose(lambda: _variable.set(5) and None, name="set")
    table.expose(read, name="read")
    call("set").wait(10)
    assert call("read").wait(10) == 0


def test_closing_cancels_what_still_runs(table: ExposedTable) -> None:
    started, cancelled = threading.Event(), threading.Event()

    async def hang() -> None:
        started.set()
        try:
            await asyncio.get_running_loop().create_future()
        except asyncio.CancelledError:
            cancelled.set()
            raise

    table.expose(hang, name="hang")
    with local_cluster("alice", "bob", exposed=table) as (alice, _):
        future = alice.rpc_async("bob", "hang")
        assert started.wait(10)
    assert cancelled.wait(10)
    assert isinstance(future.exception(10), rpcfut.RpcError)


@pytest.mark.parametrize("seed", range(8))
def test_steps_of_an_async_def_are_in_order_and_later_calls_come_after(
    table: ExposedTable, seed: int
) -> None:
    """Each step under own streams; the next handler behind them all (STR-13)."""
    with simulate(1, seed=seed) as sim:
        p = sim.array([0.0])

        async def add_twice() -> None:
            p.add_(1.0)
            await asyncio.sleep(0)
            p.add_(1.0)

        table.expose(add_twice, name="add")
        with local_cluster("alice", "bob", exposed=table) as (alice, bob):
            for agent in (alice, bob, alice):
                agent.rpc_sync("bob", "add", timeout=20)
            seen: list[list[float]] = []
            table.expose(lambda: seen.append(p.tolist()), name="read")
            alice.rpc_sync("bob", "read", timeout=20)
        assert seen == [[6.0]]


def test_generators_are_refused_with_the_way_out(table: ExposedTable) -> None:
    def count() -> Iterator[int]:
        yield 1

    async def count_async() -> Any:
        yield 1

    for function in (count, count_async):
        with pytest.raises(rpcfut.FunctionRefusedError, match="return a list"):
            table.expose(function, name="count")


# ---- handlers that call and wait ----------------------------------------------------


def ping_pong(table: ExposedTable, agents: list[Agent]) -> Callable[[int], int]:
    """A function of both agents that calls itself on the other one, `depth` deep."""

    def bounce(depth: int, to: int) -> int:
        if depth == 0:
            return 0
        return 1 + agents[1 - to].rpc_sync(to, "bounce", (depth - 1, 1 - to))

    table.expose(bounce, name="bounce")
    return lambda depth: agents[0].rpc_sync(1, "bounce", (depth, 0), timeout=30)


def test_calls_nest_as_deep_as_the_pool_may_grow(table: ExposedTable) -> None:
    options = AgentOptions(core_threads=1)
    with local_cluster("a", "b", exposed=table, options=options) as agents:
        assert ping_pong(table, agents)(50) == 50


def test_calls_that_nest_deeper_fail_at_once_with_the_way_out(
    table: ExposedTable,
) -> None:
    options = AgentOptions(core_threads=1, max_threads=4)
    with local_cluster("a", "b", exposed=table, options=options) as agents:
        bounce = ping_pong(table, agents)
        assert bounce(6) == 6
        with pytest.raises(rpcfut.RpcError, match="then_async"):
            bounce(50)
        assert bounce(6) == 6


def test_b124_calls_that_call_back_all_end_with_a_pool_of_four(
    table: ExposedTable,
) -> None:
    """Eight at once, from A to B and back to A."""
    options = AgentOptions(core_threads=4)
    with local_cluster("a", "b", exposed=table, options=options) as (a, b):
        table.expose(lambda x: x + 1, name="leaf")
        table.expose(lambda x: b.rpc_sync("a", "leaf", (x,)), name="back")
        calls = [a.rpc_async("b", "back", (x,), timeout=30) for x in range(8)]
        assert [call.wait() for call in calls] == list(range(1, 9))


def test_b125_a_worker_calls_itself_with_a_pool_of_one(table: ExposedTable) -> None:
    options = AgentOptions(core_threads=1)
    with local_cluster("a", exposed=table, options=options) as (a,):
        table.expose(lambda x: x + 1, name="leaf")
        table.expose(lambda x: a.rpc_async("a", "leaf", (x,)).wait(), name="outer")
        assert a.rpc_sync("a", "outer", (1,), timeout=30) == 2


def test_a_lock_held_across_a_wait_does_not_stop_those_who_want_it(
    table: ExposedTable,
) -> None:
    """A waiting thread runs no handler, so none can need a lock that it holds."""
    lock = threading.Lock()
    never: Future[None] = Future()

    def locked() -> int:
        with lock:
            return 1

    table.expose(locked, name="locked")
    table.expose(lambda x: x, name="echo")
    with local_cluster("a", "b", exposed=table) as (a, b):
        with lock:
            foreign = [b.rpc_async("a", "locked", timeout=30) for _ in range(40)]
            assert a.rpc_sync("b", "echo", (1,), timeout=30) == 1
            with pytest.raises(TimeoutError):
                never.wait(0.2)
        assert [call.wait() for call in foreign] == [1] * 40
