"""Values of every kind, through real agents: they arrive, or are refused (RPC-9).

By calls to a peer and to oneself, over the memory link and over ZeroMQ. `make slow`
tries 20,000 of them.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import pytest
from hypothesis import HealthCheck, given, settings

from rpcfut._errors import EncodeError, ExtractionError
from rpcfut._extract import extract
from rpcfut._registry import isolated_registry
from tests.support import remote
from tests.support.agents import CountingLink, two_agents
from tests.support.all_values import mixed, register_all
from tests.support.exact import difference
from tests.support.links import LINK_KINDS, make_link_maker, start_collector_of_zmq

if TYPE_CHECKING:
    from collections.abc import Iterator

    from rpcfut._agent import Agent

FEW, MANY = 200, 5000


@pytest.fixture(scope="module", autouse=True)
def _collector_of_zmq() -> None:
    start_collector_of_zmq()


@pytest.fixture(autouse=True)
def _registered() -> Iterator[None]:
    with isolated_registry():
        register_all()
        yield


class Tally:
    """Sends values to a worker, checks what comes of each, and counts."""

    def __init__(self, agent: Agent, link: CountingLink, to: str) -> None:
        self._agent = agent
        self._link = link
        self._to = to
        self.arrived = 0
        self.refused = 0

    def check(self, value: object, *, travels: bool) -> None:
        before = self._link.sent_count
        try:
            future = self._agent.rpc_async(self._to, remote.echo, (value,))
        except (EncodeError, ExtractionError) as error:
            if travels:
                raise
            assert self._link.sent_count == before, "something was sent"
            self._check_refusal(value, error)
            self.refused += 1
        else:
            found = difference(future.wait(timeout=15), value)
            assert travels
            assert found is None, found
            extract(value)
            self.arrived += 1

    def _check_refusal(self, value: object, error: Exception) -> None:
        """The message has a path and a way out; an extractor says the same."""
        text = str(error)
        assert re.search(r"(cannot send|found at:) args\[0\][.\[]", text), text
        assert re.search("send |register_type|leave it|make a |wait for|raise it", text)
        if isinstance(error, ExtractionError):
            with pytest.raises(ExtractionError) as here:
                extract(value)
            assert here.value.type_name == error.type_name
            assert here.value.path == error.path.replace("args[0]", "value", 1)
        else:
            extract(value)


@pytest.mark.parametrize("to", ["w0", "w1"], ids=["to oneself", "to a peer"])
@pytest.mark.parametrize("link", LINK_KINDS)
@pytest.mark.parametrize(
    "count",
    [
        pytest.param(FEW, marks=pytest.mark.timeout(120)),
        pytest.param(MANY, marks=[pytest.mark.slow, pytest.mark.timeout(1200)]),
    ],
)
def test_a_value_arrives_as_it_was_or_is_refused_where_it_is_sent(
    count: int, link: str, to: str
) -> None:
    with two_agents(make_link_maker(link)) as (agent, counting):
        tally = Tally(agent, counting, to)

        @settings(
            max_examples=count,
            deadline=None,
            database=None,
            suppress_health_check=list(HealthCheck),
        )
        @given(mixed)
        def check(pair: tuple[object, bool]) -> None:
            value, travels = pair
            tally.check(value, travels=travels)

        check()
    # Of a few, hypothesis may well repeat what cannot travel.
    assert tally.arrived >= (0.9 if count == MANY else 0.6) * count
    assert tally.refused >= count // 200
