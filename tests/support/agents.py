"""Two agents in this process over any kind of link, which counts what is sent."""

from __future__ import annotations

import secrets
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from rpcfut._agent import Agent
from rpcfut._exposed import ExposedTable
from rpcfut.transport import describe_this_process
from tests.support import remote

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from rpcfut.transport import Link


class CountingLink:
    """A link that counts what it is asked to send, and may spoil it."""

    def __init__(self, link: Link) -> None:
        self._link = link
        self.sent_count = 0
        self.spoil: Callable[[list[Any]], list[Any]] = lambda frames: frames

    def __getattr__(self, name: str) -> Any:
        return getattr(self._link, name)

    def send(self, rank: int, frames: Any) -> None:
        self.sent_count += 1
        self._link.send(rank, self.spoil(list(frames)))


@contextmanager
def two_agents(
    make_link: Callable[[], Link], *functions: Callable[..., object]
) -> Iterator[tuple[Agent, CountingLink]]:
    """Agents ``w0`` and ``w1``, which expose the functions; the first, and its link."""
    table = ExposedTable()
    for function in (remote.echo, *functions):
        table.expose(function)
    links: Any = [CountingLink(make_link()) for _ in range(2)]
    records = [
        describe_this_process(
            rank=rank,
            name=f"w{rank}",
            incarnation=secrets.randbits(63),
            address=link.address,
        )
        for rank, link in enumerate(links)
    ]
    agents = [Agent(*pair, table) for pair in zip(records, links, strict=True)]
    try:
        for agent in agents:
            agent.start([one.record for one in agents])
        yield agents[0], links[0]
    finally:
        for agent in agents:
            agent.close()
