"""What users of the peers met with values on the wire, each kind with what is right.

Those about errors stand in test_field_reports_errors.py.
"""

from __future__ import annotations

import sys
import threading
import tracemalloc
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pytest
import torch

import rpcfut
from rpcfut._registry import isolated_registry, register_type
from rpcfut._wire_codes import MAX_DEPTH
from rpcfut_transport._wire import HEADER_NBYTES
from tests.support import remote
from tests.support.agents import CountingLink, two_agents
from tests.support.exact import difference
from tests.support.links import make_link_maker
from tests.support.types import Colour, Point

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from rpcfut._agent import Agent
    from rpcfut.transport import Link


@pytest.fixture(autouse=True)
def _isolated() -> Iterator[None]:
    with isolated_registry():
        yield


@pytest.fixture
def network() -> Callable[[], Link]:
    return make_link_maker("memory")


@pytest.fixture
def pair(network: Callable[[], Link]) -> Iterator[tuple[Agent, CountingLink]]:
    with two_agents(network, remote.add) as both:
        yield both


@pytest.fixture
def w0(pair: tuple[Agent, CountingLink]) -> Agent:
    return pair[0]


def works(w0: Agent) -> bool:
    """Whether w1 still serves."""
    return w0.rpc_sync("w1", remote.add, (1,), timeout=10) == 2


def echo(w0: Agent, value: object) -> Any:
    return w0.rpc_sync("w1", remote.echo, (value,), timeout=15)


def test_b70_long_bytes_do_not_go_through_msgpack(w0: Agent) -> None:
    """Nor count to its limit; what does is refused where it is sent."""
    value = [bytes(80 << 20), bytearray(80 << 20)]
    back = echo(w0, value)
    assert [(type(part), len(part)) for part in back] == [
        (bytes, 80 << 20),
        (bytearray, 80 << 20),
    ]
    with pytest.raises(rpcfut.EncodeError, match="send numbers as a tensor, text as b"):
        w0.rpc_async("w1", remote.echo, ("x" * (65 << 20),))
    assert works(w0)


@pytest.mark.parametrize(
    "value",
    [
        {(1, 2): "a"},
        {None: 1, 2**70: 2, b"b": 3, 1.5: 4, (): 5, "t": 6, frozenset([1]): 7},
        {True: {(1, (2,)): {(): ()}}},
    ],
    ids=repr,
)
def test_b73_keys_of_a_dict_stay_what_they_were(w0: Agent, value: object) -> None:
    assert difference(echo(w0, value), value) is None


@dataclass
class Record:
    """A dataclass with a tuple in it."""

    items: Any


@pytest.mark.parametrize(
    "value",
    [
        (1, [2, (3,)]),
        Point(1, (2, [3])),
        Record((1, [2, (3,)])),
        {1, (2,)},
        frozenset({(1,)}),
        [Colour.BLUE, (Colour.RED,)],
    ],
    ids=repr,
)
def test_b74_tuples_records_sets_and_enums_keep_their_type(
    w0: Agent, value: object
) -> None:
    for kind in (Point, Record, Colour):
        register_type(kind)
    assert difference(echo(w0, value), value) is None


@pytest.mark.parametrize(
    "value", [2**63, 2**64 - 1, 2**64, -(2**63) - 1, -(2**70), 7**5000]
)
def test_b75_integers_of_any_size_arrive(w0: Agent, value: int) -> None:
    assert echo(w0, [value, {value: -value}]) == [value, {value: -value}]


def nested(depth: int) -> Any:
    value: list[Any] = []
    for _ in range(depth - 1):
        value = [value]
    return value


def test_b76_depth_has_one_limit_that_the_sender_checks(w0: Agent) -> None:
    assert echo(w0, nested(MAX_DEPTH - 1)) == nested(MAX_DEPTH - 1)
    for depth in (400, 600, 5000, 100_000):
        with pytest.raises(rpcfut.EncodeError, match=f"{MAX_DEPTH} levels are allowed"):
            w0.rpc_async("w1", remote.echo, (nested(depth),))
    itself: list[Any] = []
    itself.append((itself,))
    with pytest.raises(rpcfut.EncodeError, match="a cycle cannot travel"):
        w0.rpc_async("w1", remote.echo, (itself,))
    assert works(w0)


def test_b77_a_claim_of_more_than_came_takes_no_memory(
    pair: tuple[Agent, CountingLink],
) -> None:
    """Lists, maps, texts, bytes and extensions that announce what does not follow."""
    w0, link = pair
    tracemalloc.start()
    try:
        for first in b"\xc6\xc9\xdb\xdd\xdf":
            body = bytes([first]) + b"\x02\xff\xff\xff" + b"\x01" * 100
            link.spoil = lambda frames, body=body: [
                bytes(frames[0][:HEADER_NBYTES]) + body
            ]  # type: ignore[misc]
            with pytest.raises(rpcfut.DecodeError):
                w0.rpc_async("w1", remote.add, (1,)).wait(timeout=10)
        assert tracemalloc.get_traced_memory()[1] < 10 << 20
    finally:
        tracemalloc.stop()
    link.spoil = lambda frames: frames
    assert works(w0)


@pytest.mark.timeout(60)
def test_b78_no_two_threads_mix_their_messages(w0: Agent) -> None:
    wrong: list[object] = []
    done: list[int] = []

    def call(name: int) -> None:
        for turn in range(8):
            value = {"who": (name, turn), "bytes": bytes([name]) * 10_000}
            value["text"] = f"{name}-{turn}-" * 500
            value["long"] = bytes([name + turn]) * 70_000
            found = difference(echo(w0, value), value)
            wrong.extend([] if found is None else [found])
        done.append(name)

    threads = [threading.Thread(target=call, args=(name,)) for name in range(32)]
    interval_s = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(50)
            assert not thread.is_alive()
    finally:
        sys.setswitchinterval(interval_s)
    assert len(done) == 32
    assert wrong == []


def test_b126_a_future_is_refused_wherever_it_is_held(
    pair: tuple[Agent, CountingLink],
) -> None:
    """The same alone, in a container, and of another library."""
    w0, link = pair
    future = rpcfut.Future[int]()
    sent = link.sent_count
    for value in (future, [future], {"a": (future,)}, torch.futures.Future()):
        with pytest.raises((rpcfut.EncodeError, rpcfut.ExtractionError)) as caught:
            w0.rpc_async("w1", remote.echo, (value,))
        assert "wait for it and" in str(caught.value)
    assert link.sent_count == sent
    future.set_result(1)
