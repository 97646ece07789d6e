"""What users of the peers met with functions that are called, each kind as a test.

Here stands what is wrong with a call before it is sent, or with what its function gives
back. Rows that are tested elsewhere, too: B20, B23, B24 and B25 in test_agent.py and
test_field_reports_errors.py; B124 and B125 in test_handlers.py; B126 in
test_field_reports_values.py.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import functools
import threading
from typing import TYPE_CHECKING, Any

import pytest
import torch

import rpcfut
from rpcfut import EncodeError, ExtractionError, FunctionRefusedError, Future
from rpcfut._callbacks import isolated_runtime
from rpcfut._exposed import ExposedTable
from rpcfut.testing import local_cluster
from tests.support import remote
from tests.support.agents import CountingLink, two_agents
from tests.support.links import make_link_maker

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Iterator

    from rpcfut._agent import Agent

PATIENCE_S = 10.0


@pytest.fixture(autouse=True)
def _own_runtime() -> Iterator[None]:
    """The loop that drives coroutines, and its thread, go with the test."""
    with isolated_runtime():
        yield


@pytest.fixture
def table() -> ExposedTable:
    exposed = ExposedTable()
    exposed.expose(remote.add)
    return exposed


@pytest.fixture
def alice(table: ExposedTable) -> Iterator[Agent]:
    """Whatever was asked of them, both serve the next call."""
    with local_cluster("alice", "bob", exposed=table) as (agent, _):
        yield agent
        for worker in ("alice", "bob"):
            assert agent.rpc_sync(worker, remote.add, (1,), timeout=PATIENCE_S) == 2


@pytest.fixture
def counted() -> Iterator[tuple[Agent, CountingLink]]:
    """An agent, and how many messages it sent."""
    with two_agents(make_link_maker("memory"), remote.add) as both:
        yield both


# ---- errors of a call to oneself ----------------------------------------------------


def _raise() -> None:
    raise KeyError("no", 7)


async def _raise_late() -> None:
    await asyncio.sleep(0)
    raise KeyError("no", 7)


def _give_failed() -> Future[None]:
    future: Future[None] = Future()
    future.set_exception(KeyError("no", 7))
    return future


def _give_what_fails_later() -> Future[None]:
    start: Future[None] = Future()
    child = start.then(lambda _: _raise())
    threading.Thread(target=start.set_result, args=(None,)).start()
    return child


@pytest.mark.parametrize(
    "function", [_raise, _raise_late, _give_failed, _give_what_fails_later]
)
@pytest.mark.parametrize("worker", ["alice", "bob"])
def test_b20_every_way_to_look_at_a_call_raises_its_error(
    alice: Agent, table: ExposedTable, function: Callable[[], Any], worker: str
) -> None:
    """Of a call to oneself as of one to another, and however the function failed."""
    table.expose(function, name="fail")

    def call() -> Future[Any]:
        return alice.rpc_async(worker, "fail", timeout=PATIENCE_S)

    async def awaited() -> object:
        return await call()

    ways: list[Callable[[], object]] = [
        lambda: alice.rpc_sync(worker, "fail", timeout=PATIENCE_S),
        lambda: call().wait(),
        lambda: call().result(),
        lambda: call().then(lambda f: f.value()).wait(),
        lambda: rpcfut.wait_all([call()]),
        lambda: asyncio.run(awaited()),
    ]
    for way in ways:
        with pytest.raises(KeyError) as caught:
            way()
        assert caught.value.args == ("no", 7)
    assert isinstance(call().exception(), KeyError)


# ---- functions that are not there ---------------------------------------------------


@pytest.mark.parametrize(
    ("name", "hint"),
    [
        ("", "call rpcfut.expose(function, name='') there"),
        ("step", "call rpcfut.expose(function, name='step') there"),
        ("no_such_module:step", "add `import no_such_module` to that worker's script"),
        ("tests.support.remote:ad", "did you mean 'tests.support.remote:add'?"),
        ("tests.support.remote:add.__globals__", "add @rpcfut.expose above"),
        ("torch:add", "call rpcfut.expose_torch('add') there"),
        ("a:b:c", "call rpcfut.expose(function, name='a:b:c') there"),
        ("x" * 100_000, f"'{'x' * 200}...' is not exposed"),
        ("\x1b[31m\n:\x00", r"name='\x1b[31m\n:\x00') there"),
        ("\N{SNOWMAN}:\N{SNOWMAN}", "is not exposed"),
    ],
    ids=range(10),
)
def test_b23_a_name_of_nothing_is_an_error_with_the_line_to_add(
    alice: Agent, name: str, hint: str
) -> None:
    """Whatever the name holds: the error is one line of printable text."""
    error = alice.rpc_async("bob", name).exception(PATIENCE_S)
    assert isinstance(error, rpcfut.NotExposedError)
    assert isinstance(error, LookupError)
    assert "worker 'bob'" in str(error)
    assert hint in str(error)
    assert str(error).isprintable()
    assert len(str(error)) < 1000


def test_b23_many_calls_of_nothing_take_no_thread_along(alice: Agent) -> None:
    calls = [alice.rpc_async("bob", f"no_such:f{n}") for n in range(500)]
    errors = {type(call.exception(PATIENCE_S)) for call in calls}
    assert errors == {rpcfut.NotExposedError}


# ---- functions that no other process could find -------------------------------------


def _count() -> Iterator[int]:
    yield 1


async def _count_late() -> AsyncIterator[int]:
    yield 1


def _local() -> Callable[[], None]:
    def inner() -> None: ...

    return inner


class _Tools:
    def method(self) -> None: ...

    @classmethod
    def made(cls) -> None: ...

    def __call__(self) -> None: ...


NO_FUNCTIONS: dict[str, tuple[Any, str]] = {
    "lambda": (lambda: 1, "write `def` at the top level of a module"),
    "local": (_local(), "move it to the top level of"),
    "generator function": (_count, "return a list"),
    "async generator function": (_count_late, "return a list"),
    "generator": (_count(), "give a function at the top level of a module"),
    "bound method": (_Tools().method, "at the top level of a module that finds"),
    "classmethod": (_Tools.made, "at the top level of a module that finds"),
    "object": (_Tools(), "wrap it in a function at the top level of a module"),
    "partial": (functools.partial(remote.add, 1), "wrap it in a function at the top"),
    "method of a builtin": ([].append, "wrap it in a function at the top level"),
    "nothing": (None, "give a function at the top level of a module, or its name"),
    "bytes": (b"add", "give a function at the top level of a module, or its name"),
}


@pytest.mark.parametrize("kind", NO_FUNCTIONS)
def test_b24_what_no_peer_could_find_is_refused_before_anything_is_sent(
    counted: tuple[Agent, CountingLink], kind: str
) -> None:
    """With the reason and the way out, for one worker, for many and for oneself."""
    agent, link = counted
    function, way_out = NO_FUNCTIONS[kind]
    sent = link.sent_count
    for to in ("w1", ["w1", "w0"], "w0"):
        for call in (agent.rpc_async, agent.rpc_sync):
            refused: Any = call
            with pytest.raises(FunctionRefusedError) as caught:
                refused(to, function)
            assert way_out in str(caught.value)
    assert link.sent_count == sent
    assert agent._endpoint.pending_count == 0
    assert agent.rpc_sync("w1", remote.add, (1,), timeout=PATIENCE_S) == 2


# ---- functions that give back what may still be made --------------------------------


def _done(value: object) -> Future[Any]:
    future: Future[Any] = Future()
    future.set_result(value)
    return future


def _torch_future() -> Any:
    future: Any = torch.futures.Future()
    future.set_result(1)
    return future


class _Awaitable:
    def __await__(self) -> Iterator[None]:
        yield


REFUSED_RESULTS: dict[str, tuple[Callable[[], Any], str]] = {
    "a future in a list": (lambda: [_done(1)], "result[0]"),
    "a future in a future": (lambda: _done(_done(1)), "wait for it"),
    "one of torch": (_torch_future, "wait for it"),
    "one of concurrent.futures": (concurrent.futures.Future, "wait for it"),
    "an awaitable": (_Awaitable, "_Awaitable"),
    "a generator": (_count, "make a list of it"),
    "an awaitable in a list": (lambda: [_Awaitable()], "result[0]"),
}


@pytest.mark.parametrize("kind", REFUSED_RESULTS)
def test_b25_what_may_still_be_made_is_refused_with_its_place(
    alice: Agent, table: ExposedTable, kind: str
) -> None:
    """A future alone is waited for; anything else like it fails the call, at once."""
    make, text = REFUSED_RESULTS[kind]
    table.expose(lambda: make(), name="make")
    error = alice.rpc_async("bob", "make").exception(PATIENCE_S)
    assert isinstance(error, EncodeError | ExtractionError)
    assert text in str(error)


@pytest.mark.parametrize("is_late", [False, True])
def test_b25_a_returned_future_takes_no_thread_and_no_marker(
    table: ExposedTable, *, is_late: bool
) -> None:
    """More of them than there are threads, done before or after they were returned."""
    made: list[Future[int]] = []
    all_made = threading.Event()

    def make(number: int) -> Future[int]:
        future: Future[int] = Future()
        if not is_late:
            future.set_result(number)
        made.append(future)
        if len(made) == 100:
            all_made.set()
        return future

    table.expose(make, name="make")
    options = rpcfut.AgentOptions(max_threads=8)
    with local_cluster("alice", "bob", exposed=table, options=options) as (agent, _):
        calls = [agent.rpc_async("bob", "make", (n,)) for n in range(100)]
        assert all_made.wait(PATIENCE_S)
        for future in made if is_late else ():
            future.set_result(7)
        expected = [7 if is_late else n for n in range(100)]
        assert [call.wait(PATIENCE_S) for call in calls] == expected
