"""Links of every kind."""

from __future__ import annotations

from contextlib import ExitStack
from typing import TYPE_CHECKING

import pytest

from tests.support.links import LINK_KINDS, make_link_maker, start_collector_of_zmq

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from rpcfut_transport import Link


@pytest.fixture(scope="module", autouse=True)
def _collector_of_zmq() -> None:
    start_collector_of_zmq()


@pytest.fixture(params=LINK_KINDS)
def make_link(request: pytest.FixtureRequest) -> Iterator[Callable[[], Link]]:
    """Make links that reach each other and are closed after the test."""
    maker = make_link_maker(request.param)
    with ExitStack() as stack:

        def make() -> Link:
            link = maker()
            stack.callback(link.close)
            return link

        yield make


@pytest.fixture
def pair(make_link: Callable[[], Link]) -> tuple[Link, Link]:
    """Two links; the first reaches the second as rank 1."""
    sender, receiver = make_link(), make_link()
    sender.connect(1, receiver.address)
    return sender, receiver
