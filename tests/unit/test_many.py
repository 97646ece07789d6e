"""One call to many workers: encoded once, a future for each."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

import pytest
import torch

import rpcfut
from rpcfut import AgentOptions, WorkerInfo, _calling
from rpcfut._exposed import ExposedTable
from rpcfut.testing import local_cluster
from tests.support import remote

if TYPE_CHECKING:
    from collections.abc import Iterator

    from rpcfut import Agent

NAMES = ("alice", "bob", "carol", "dave")


@pytest.fixture
def table() -> ExposedTable:
    exposed = ExposedTable()
    exposed.expose(remote.echo)
    exposed.expose(remote.fail)
    return exposed


@pytest.fixture
def agents(table: ExposedTable) -> Iterator[list[Agent]]:
    with local_cluster(*NAMES, exposed=table) as made:
        yield made


@pytest.fixture
def alice(agents: list[Agent]) -> Agent:
    return agents[0]


def test_each_worker_answers_in_the_order_in_which_they_were_named(
    alice: Agent,
) -> None:
    to = ["dave", 2, WorkerInfo("bob", 1), "alice"]
    futures = alice.rpc_async(to, remote.echo, ((1, "x"),), timeout=10)
    assert rpcfut.wait_all(futures) == [(1, "x")] * 4
    for future, name in zip(futures, NAMES[::-1], strict=True):
        assert f"'{name}'" in future.explain()
    assert alice.rpc_sync(tuple(to), remote.echo, (2,), timeout=10) == [2] * 4


def test_no_worker_is_no_call(alice: Agent) -> None:
    assert alice.rpc_async([], remote.echo, (1,)) == []
    assert alice.rpc_sync((), remote.echo, (1,)) == []


def test_the_same_worker_may_be_called_twice(alice: Agent) -> None:
    assert alice.rpc_sync(["bob", "bob"], remote.echo, (1,), timeout=10) == [1, 1]


def test_b129_arguments_are_encoded_once(
    alice: Agent, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And each receiver has its own: what one writes no other sees."""
    count = 0
    encode = _calling.encode

    def counted(*args: object, **kwargs: object) -> object:
        nonlocal count
        count += 1
        return encode(*args, **kwargs)  # type: ignore[arg-type]

    monkeypatch.setattr(_calling, "encode", counted)
    x = torch.arange(50_000_000 // 8)
    futures = alice.rpc_async(["bob", "carol", "dave"], remote.echo, (x,), timeout=60)
    assert count == 1
    x.zero_()
    for value in rpcfut.wait_all(futures):
        assert value[0] == 0
        assert value[-1] == len(x) - 1
        value.fill_(7)


def test_an_unknown_worker_is_refused_before_anything_is_sent(
    alice: Agent, table: ExposedTable
) -> None:
    called = threading.Event()
    table.expose(called.set, name="note")
    with pytest.raises(rpcfut.UnknownWorkerError, match="'nobody'"):
        alice.rpc_async(["bob", "nobody"], "note")
    assert alice.rpc_sync("bob", remote.echo, (1,), timeout=10) == 1
    assert not called.is_set()


def test_a_worker_that_is_gone_fails_its_own_future_only(
    alice: Agent, agents: list[Agent]
) -> None:
    agents[2].close()
    lost = alice.rpc_async("carol", remote.echo, (1,))
    assert isinstance(lost.exception(10), rpcfut.PeerLostError)
    futures = alice.rpc_async(["bob", "carol", "dave"], remote.echo, (1,), timeout=10)
    errors = [type(f.exception(10)) for f in futures]
    assert errors == [type(None), rpcfut.PeerLostError, type(None)]
    with pytest.raises(rpcfut.PeerLostError, match="carol"):
        alice.rpc_sync(["bob", "carol", "dave"], remote.echo, (1,), timeout=10)


def test_the_first_failure_ends_a_call_that_waits_for_all(
    alice: Agent, table: ExposedTable
) -> None:
    """The others are cancelled."""
    go = threading.Event()
    with local_cluster("server", "other") as (server, other):
        server.exposed.expose(lambda: go.wait(20), name="run")

        def fail() -> None:
            raise KeyError("other")

        other.exposed.expose(fail, name="run")
        with pytest.raises(KeyError):
            server.rpc_sync(["server", "other"], "run")
        assert server._endpoint.pending_count == 0
        go.set()


def test_a_deadline_is_for_each(alice: Agent, table: ExposedTable) -> None:
    go = threading.Event()
    table.expose(lambda: go.wait(20), name="wait")
    futures = alice.rpc_async(["bob", "carol"], "wait", timeout=0.05)
    for future in futures:
        assert isinstance(future.exception(10), rpcfut.RpcTimeoutError)
    go.set()


def test_a_closed_agent_refuses(table: ExposedTable) -> None:
    options = AgentOptions()
    with local_cluster("alice", "bob", exposed=table, options=options) as (alice, _):
        alice.close()
        with pytest.raises(rpcfut.LifecycleError):
            alice.rpc_async(["bob"], remote.echo, (1,))
