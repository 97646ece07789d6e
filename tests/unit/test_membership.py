"""Who is in the group: joiners introduce themselves, and watchers hear of it."""

from __future__ import annotations

import dataclasses
import logging
import secrets
import threading
from typing import TYPE_CHECKING, Any

import pytest

import rpcfut
from rpcfut._exposed import ExposedTable
from rpcfut._records import OPEN, RecordForm
from rpcfut._workers import WorkerInfo, WorkerTable
from rpcfut.transport import (
    MemoryLink,
    MemoryNetwork,
    describe_this_process,
)
from tests.support import remote
from tests.support.threads import Gate, wait_until

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

FORM = RecordForm(OPEN)


class Group:
    """Agents of an open group in this process."""

    def __init__(self) -> None:
        self.network = MemoryNetwork()
        self.agents: list[rpcfut.Agent] = []

    def make(self, rank: int, name: str, **changes: Any) -> rpcfut.Agent:
        """An agent that does not run yet."""
        link = MemoryLink(self.network)
        record = describe_this_process(
            rank=rank,
            name=name,
            incarnation=secrets.randbits(62) + 1,
            address=link.address,
        )
        table = ExposedTable()
        table.expose(remote.add)
        agent = rpcfut.Agent(dataclasses.replace(record, **changes), link, table)
        self.agents.append(agent)
        return agent

    def join(self, rank: int, name: str, timeout_s: float = 10.0) -> rpcfut.Agent:
        """An agent that is known to all that were there."""
        records = [agent.record for agent in self.agents]
        agent = self.make(rank, name)
        agent.start([agent.record], FORM)
        agent.membership.introduce(records, lambda _: True, timeout_s)
        return agent


@pytest.fixture
def group() -> Iterator[Group]:
    made = Group()
    yield made
    for agent in made.agents:
        agent.close()


def names(agent: rpcfut.Agent) -> list[str]:
    return [worker.name for worker in agent.workers]


def works(agent: rpcfut.Agent, to: str) -> bool:
    return agent.rpc_sync(to, remote.add, (1,), timeout=10) == 2


# ---- joining --------------------------------------------------------------------


def test_b100_a_joiner_is_known_to_all_when_it_has_joined(group: Group) -> None:
    first = group.join(0, "w0")
    second = group.join(1, "w1")
    third = group.join(2, "w2")
    for agent in (first, second, third):
        assert names(agent) == ["w0", "w1", "w2"]
    assert works(first, "w2")
    assert works(third, "w0")
    assert works(third, "w1")


def test_who_joins_at_the_same_time_finds_the_other(group: Group) -> None:
    """Both read the record of the other: each counts as an answer."""
    agents = [group.make(rank, f"w{rank}") for rank in range(2)]
    records = [agent.record for agent in agents]

    def join(agent: rpcfut.Agent) -> None:
        agent.start([agent.record], FORM)
        agent.membership.introduce(records, lambda _: True, 10)

    threads = [threading.Thread(target=join, args=(agent,)) for agent in agents]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(10)
    assert works(agents[0], "w1")
    assert works(agents[1], "w0")


def test_b99_a_member_refuses_another_of_its_name(group: Group) -> None:
    host = group.join(0, "host")
    with pytest.raises(rpcfut.RendezvousError, match="the name 'host' is mine"):
        group.join(1, "host")
    assert names(host) == ["host"]
    group.agents[1].close()
    assert works(host, "host")


def test_one_that_does_not_answer_is_named(group: Group) -> None:
    group.make(0, "silent")
    with pytest.raises(
        rpcfut.MissingWorkersError, match=r"'silent' \(rank 0\) did not answer"
    ):
        group.join(1, "w1", timeout_s=0.3)


def test_one_that_took_back_its_record_is_not_waited_for(
    group: Group, caplog: pytest.LogCaptureFixture
) -> None:
    """It left while this one joined, which is no error."""
    silent = group.make(0, "leaving")
    agent = group.make(1, "w1")
    agent.start([agent.record], FORM)
    events = Events()
    agent.membership.watch(events)
    with caplog.at_level(logging.WARNING):
        agent.membership.introduce([silent.record], lambda _: False, 600)
    assert names(agent) == ["w1"]
    events.wait_for(3)
    assert events.kinds == ["w1 joined", "leaving joined", "leaving left"]
    assert caplog.text == ""


def test_b107_one_that_says_goodbye_lets_nobody_join_meanwhile(group: Group) -> None:
    """Who joined after the goodbyes would call it for ever."""
    host = group.join(0, "host")
    host.membership.end()
    agent = group.make(1, "late")
    agent.start([agent.record], FORM)
    agent.membership.introduce([host.record], lambda _: False, 600)
    assert names(agent) == ["late"]
    assert names(host) == ["host"]


def test_one_whose_process_ended_is_not_waited_for(group: Group) -> None:
    dead = group.make(0, "dead", start_time=1)
    agent = group.make(1, "w1")
    agent.start([agent.record], FORM)
    agent.membership.introduce([dead.record], lambda _: True, 600)
    assert names(agent) == ["w1"]


def test_a_second_introduction_is_answered_and_told_to_nobody(group: Group) -> None:
    """The answer to the first may have been on its way."""
    first = group.join(0, "w0")
    events = Events()
    first.membership.watch(events)
    second = group.join(1, "w1")
    body = FORM.write(second.record).encode()
    first.on_join(1, body)
    assert names(first) == ["w0", "w1"]
    events.wait_for(2)
    assert works(first, "w1")
    assert events.kinds == ["w0 joined", "w1 joined"]


@pytest.mark.parametrize(
    "spoil",
    [
        lambda _: b"",
        lambda _: b"\xff" * 100,
        lambda _: b"[" * 10_000,
        lambda body: body + b" " * (64 << 10),
        lambda body: body.replace(b'"rank": 7', b'"rank": 8'),
        lambda body: body.replace(b'"world_size": 0', b'"world_size": 3'),
        lambda body: body.replace(b"memory://", b"nowhere://"),
        lambda body: body.replace(b'"stranger"', b'"host"'),
    ],
)
def test_an_introduction_that_makes_no_sense_changes_nothing(
    group: Group, spoil: Callable[[bytes], bytes]
) -> None:
    """RPC-10: anyone who reaches the inbox can send one."""
    host = group.join(0, "host")
    stranger = group.make(7, "stranger")
    host.on_join(7, spoil(FORM.write(stranger.record).encode()))
    host.on_join(0, FORM.write(host.record).encode())
    assert names(host) == ["host"]
    assert works(host, "host")


def test_a_returning_rank_takes_the_place_of_one_that_ended(group: Group) -> None:
    """RPC-7: a restarted namesake is a new incarnation; of the two, one is a member."""
    host = group.join(0, "host")
    events = Events()
    host.membership.watch(events)
    earlier = group.make(1, "w1")
    host.on_join(1, FORM.write(earlier.record).encode())
    assert names(host) == ["host", "w1"]
    again = group.make(1, "w1").record
    host.on_join(1, FORM.write(again).encode())
    assert host.membership.record_of(1) == earlier.record, "the earlier one lives"
    host._endpoint.lose_peer(1, earlier.record.incarnation, "for a test")
    host.on_join(1, FORM.write(again).encode())
    assert host.membership.record_of(1) == again
    events.wait_for(4)
    assert events.kinds[1:] == ["w1 joined", "w1 lost", "w1 joined"]


def test_what_is_read_is_what_was_written(group: Group) -> None:
    record = group.make(3, "w3").record
    assert FORM.read(FORM.write(record).encode(), 3) == record


# ---- watching -------------------------------------------------------------------


class Events:
    """A callback that keeps what it is told."""

    def __init__(self) -> None:
        self.seen: list[rpcfut.WorkerEvent] = []

    def __call__(self, event: rpcfut.WorkerEvent) -> None:
        self.seen.append(event)

    @property
    def kinds(self) -> list[str]:
        return [f"{event.worker.name} {event.kind}" for event in self.seen]

    def wait_for(self, count: int) -> None:
        wait_until(lambda: len(self.seen) >= count)


def test_a_watch_hears_of_those_that_are_there_then_of_changes(group: Group) -> None:
    host = group.join(0, "host")
    group.join(1, "early")
    events = Events()
    host.membership.watch(events)
    group.join(2, "late").shutdown()
    events.wait_for(4)
    assert events.kinds == ["host joined", "early joined", "late joined", "late left"]
    assert events.seen[2].worker == WorkerInfo("late", 2)
    assert events.seen[3].reason == "it said goodbye"


def test_a_watch_is_told_one_thing_at_a_time_in_order(group: Group) -> None:
    """While its callback is busy, what happens waits for it."""
    host = group.join(0, "host")
    gate, running, seen = Gate(), [], []

    def callback(event: rpcfut.WorkerEvent) -> None:
        running.append(event)
        assert len(running) == 1
        gate.pass_through()
        seen.append(f"{event.worker.name} {event.kind}")
        running.clear()

    host.membership.watch(callback)
    others = [group.join(rank, f"w{rank}") for rank in range(1, 4)]
    for agent in reversed(others):
        agent.shutdown()
    gate.set()
    wait_until(lambda: len(seen) == 7)
    assert seen == [
        "host joined",
        *(f"w{rank} joined" for rank in (1, 2, 3)),
        *(f"w{rank} left" for rank in (3, 2, 1)),
    ]


def test_a_watch_that_raises_is_logged_with_its_place_and_told_on(
    group: Group, caplog: pytest.LogCaptureFixture
) -> None:
    host = group.join(0, "host")
    events = Events()

    def callback(event: rpcfut.WorkerEvent) -> None:
        events(event)
        raise SystemExit("on purpose")

    with caplog.at_level(logging.ERROR):
        host.membership.watch(callback)
        group.join(1, "w1")
        events.wait_for(2)
        wait_until(lambda: caplog.text.count("on purpose") >= 2)
    assert __file__ in caplog.text


def test_a_closed_watch_is_told_no_more(group: Group) -> None:
    host = group.join(0, "host")
    events, others = Events(), Events()
    with host.membership.watch(events):
        events.wait_for(1)
    host.membership.watch(others)
    group.join(1, "w1")
    others.wait_for(2)
    assert events.kinds == ["host joined"]


# ---- the table ------------------------------------------------------------------


def table(*known: str) -> WorkerTable:
    return WorkerTable(WorkerInfo(name, rank) for rank, name in enumerate(known))


def test_b99_an_unknown_worker_is_compared_with_the_known_ones() -> None:
    workers = table("trainer", "rollout-1", "rollout-2")
    with pytest.raises(
        rpcfut.UnknownWorkerError,
        match=r"'trianer'.*known: 'trainer' \(rank 0\).*did you mean 'trainer'\?",
    ):
        workers.find("trianer")
    with pytest.raises(rpcfut.UnknownWorkerError, match="no worker 9 in this group"):
        workers.find(9)
    with pytest.raises(rpcfut.UnknownWorkerError, match="and 70 more"):
        table(*(f"w{rank}" for rank in range(100))).find("elsewhere")


def test_one_that_is_gone_is_found_but_not_listed() -> None:
    """So that a call to it can say what became of it."""
    workers = table("w0", "w1")
    gone = WorkerInfo("w1", 1)
    workers.remove(gone)
    assert [worker.name for worker in workers] == ["w0"]
    assert workers.find("w1") == workers.find(1) == workers.find(gone) == gone
    workers.add(WorkerInfo("w1", 2))
    assert workers.find("w1") == WorkerInfo("w1", 2)
    assert workers.find(1) == gone


def test_of_those_that_are_gone_a_thousand_are_remembered() -> None:
    workers = table("w0")
    for rank in range(1, 1202):
        workers.add(WorkerInfo(f"w{rank}", rank))
        workers.remove(WorkerInfo(f"w{rank}", rank))
    with pytest.raises(rpcfut.UnknownWorkerError):
        workers.find("w201")
    assert workers.find("w202").rank == 202
    assert [worker.name for worker in workers] == ["w0"]
