"""Endpoints and agents on links of any kind, with faults between them."""

from __future__ import annotations

import secrets
from collections import Counter
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from rpcfut._agent import Agent
from rpcfut._exposed import ExposedTable
from rpcfut_transport import (
    FaultKind,
    FaultPlan,
    FaultRule,
    Kind,
    describe_this_process,
)
from rpcfut_transport._buffers import require_frames
from tests.support.links import EchoHandler, make_link_maker, start_endpoint

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from rpcfut_transport import Buffer, Endpoint, IncomingCall, Link

FAULTS = tuple(FaultKind)
# Each kind of message on its own, and each way.
KINDS = (Kind.CALL, Kind.RESULT, Kind.CANCEL)


class FaultyLink:
    """A link whose messages pass a plan before they leave.

    What `MemoryNetwork` does by itself, for links that are real.

    Args:
        link: How messages travel.
        plan: What happens to them.
    """

    def __init__(self, link: Link, plan: FaultPlan) -> None:
        self._link = link
        self._plan = plan

    def __getattr__(self, name: str) -> Any:
        return getattr(self._link, name)

    def send(self, rank: int, frames: Sequence[Buffer]) -> None:
        require_frames(frames)
        message: list[bytes | memoryview] = [bytes(frames[0])]
        message += [memoryview(bytearray(frame)) for frame in frames[1:]]
        self._plan.pass_on(
            (id(self), rank), rank, message, lambda m: self._link.send(rank, m)
        )


def faulty_link_maker(kind: str, plan: FaultPlan) -> Callable[[], Any]:
    """Return what makes links that reach each other, with faults between them."""
    make = make_link_maker(kind)
    return lambda: FaultyLink(make(), plan)


def plan_of(fault: FaultKind, *kinds: Kind, chance: float = 0.2, seed: int = 0) -> Any:
    """A plan with one fault for messages of some kinds, or of any."""
    return FaultPlan(
        [FaultRule(fault=fault, kind=kind, chance=chance) for kind in kinds or (None,)],
        seed,
    )


class CountingHandler(EchoHandler):
    """Echoes, and counts how often it served each call."""

    def __init__(self) -> None:
        super().__init__()
        self.served: Counter[tuple[int, int]] = Counter()  # by caller and number
        self.bodies: list[bytes] = []

    def on_call(self, call: IncomingCall) -> None:
        self.served[call.sender_rank, call.call_id] += 1
        self.bodies.append(bytes(call.body))
        super().on_call(call)


class Group(list["tuple[Endpoint, CountingHandler]"]):
    """Endpoints that know each other and themselves, each with its handler."""

    def __init__(self, make_link: Callable[[], Link]) -> None:
        super().__init__()
        self._make_link = make_link

    def join(self) -> Endpoint:
        """Add one more."""
        handler = CountingHandler()
        new = start_endpoint(len(self), self._make_link(), handler)
        self.append((new, handler))
        for endpoint, _ in self[:-1]:
            endpoint.add_peer(new.record)
            new.add_peer(endpoint.record)
        new.add_peer(new.record)
        return new


@contextmanager
def endpoints_with_faults(
    kind: str, plan: FaultPlan, count: int = 3
) -> Iterator[Group]:
    """Endpoints on links with faults between them."""
    group = Group(faulty_link_maker(kind, plan))
    try:
        for _ in range(count):
            group.join()
        yield group
    finally:
        for endpoint, _ in group:
            endpoint.close()


@contextmanager
def agents_with_faults(
    kind: str, plan: FaultPlan, *functions: Callable[..., object], count: int = 3
) -> Iterator[list[Agent]]:
    """Workers ``w0``, ``w1`` ..., which expose the functions, faults between them."""
    table = ExposedTable()
    for function in functions:
        table.expose(function)
    make = faulty_link_maker(kind, plan)
    links = [make() for _ in range(count)]
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
        yield agents
    finally:
        for agent in agents:
            agent.close()
