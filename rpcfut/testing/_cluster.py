"""Workers in one process, over a memory link: no sockets, no spawned processes."""

from __future__ import annotations

import secrets
from contextlib import contextmanager
from typing import TYPE_CHECKING

from rpcfut._agent import Agent
from rpcfut._exposed import ExposedTable
from rpcfut_transport import MemoryLink, MemoryNetwork, describe_this_process

if TYPE_CHECKING:
    from collections.abc import Iterator

    from rpcfut._options import AgentOptions
    from rpcfut_transport import FaultPlan


@contextmanager
def local_cluster(
    *names: str,
    exposed: ExposedTable | None = None,
    options: AgentOptions | None = None,
    faults: FaultPlan | None = None,
) -> Iterator[list[Agent]]:
    """Run a group of agents in this process; calls go through the whole codec.

    Args:
        names: The workers' names; their ranks count from 0.
        exposed: What each of them exposes; by default an empty table of its own, to be
            filled through ``agent.exposed``.
        options: How the agents behave.
        faults: What goes wrong between them, on purpose.

    Yields:
        The agents, by rank. They are closed at the end.
    """
    network = MemoryNetwork(faults)
    agents: list[Agent] = []
    records = []
    try:
        for rank, name in enumerate(names):
            link = MemoryLink(network)
            record = describe_this_process(
                rank=rank,
                name=name,
                incarnation=secrets.randbits(63),
                address=link.address,
            )
            table = exposed if exposed is not None else ExposedTable()
            agents.append(Agent(record, link, table, options=options))
            records.append(agents[-1].record)
        for agent in agents:
            agent.start(records)
        yield agents
    finally:
        for agent in agents:
            agent.close()
