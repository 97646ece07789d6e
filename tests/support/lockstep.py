"""Endpoints without threads on a network that holds every message for the test."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

from rpcfut_transport import (
    Endpoint,
    MemoryLink,
    MemoryNetwork,
    describe_this_process,
)
from tests.support.links import RecordingHandler

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from rpcfut_transport import Clock, PeerRecord

Message = list[Any]
Way = tuple[str, str]


class HeldMessages:
    """Stands where a `FaultPlan` does: keeps all messages until they are delivered."""

    def __init__(self) -> None:
        self.ways: dict[Way, list[tuple[Message, Callable[[Message], None]]]] = {}

    def pass_on(
        self,
        way: Way,
        receiver: int,
        message: Message,
        deliver: Callable[[Message], None],
    ) -> None:
        self.ways.setdefault(way, []).append((message, deliver))

    def waiting(self) -> list[Way]:
        """The ways with messages under way."""
        return [way for way, messages in self.ways.items() if messages]


class NoCrew:
    """A `Crew` without threads: the test reads the inbox, and work is done at once."""

    has_more = False

    def start_reader(self, read: Callable[[], None]) -> bool:
        return True

    def enter(self) -> bool:
        return False

    def leave(self) -> None:
        return None

    def submit(self, work: Callable[[], None]) -> None:
        work()

    def put_off(self, works: Sequence[Callable[[], None]]) -> None:
        for work in works:
            work()

    def relieve(self) -> None:
        pass


class Life:
    """One life of a worker: an endpoint that reads when it is told to."""

    def __init__(
        self, network: MemoryNetwork, clock: Clock, rank: int, incarnation: int
    ) -> None:
        self.link = MemoryLink(network)
        self.handler = RecordingHandler()
        record = describe_this_process(
            rank=rank,
            name=f"w{rank}",
            incarnation=incarnation,
            address=self.link.address,
        )
        # Another namespace for each: nobody watches this very process in their names.
        self.record = dataclasses.replace(record, pid_namespace=incarnation)
        self.endpoint = Endpoint(self.record, self.link, clock, self.handler, NoCrew())
        # Small messages are held until the test says so: no watchdog flushes.
        self.endpoint._sender._on_held = lambda: None
        self.endpoint.start()

    def meet(self, record: PeerRecord) -> None:
        self.endpoint.add_peer(record)

    def lose(self, rank: int, incarnation: int, reason: str) -> None:
        """Be told that a peer died, as by the watch of its process."""
        self.endpoint.lose_peer(rank, incarnation, reason)

    def flush(self) -> None:
        """Send the small messages that wait for others, all as one."""
        self.endpoint._flush()

    def read(self) -> None:
        """Do what is due, and file all that is in the inbox."""
        for _ in range(3):  # what is due, and what comes due by that
            self.endpoint._pull(0.0)
        while self.link._inbox.qsize():
            self.endpoint._pull(0.0)
