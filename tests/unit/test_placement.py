"""Where arrays of another worker arrive (RPC-12)."""

from __future__ import annotations

import json
from contextlib import ExitStack
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

import rpcfut
from rpcfut import AgentOptions, RendezvousError
from rpcfut._devices import Device
from rpcfut._exposed import ExposedTable
from rpcfut._placement import Placement
from rpcfut.testing import SimArray, simulate
from rpcfut_transport import MemoryLink, MemoryNetwork, describe_this_process

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from rpcfut import Agent
    from rpcfut.testing import Simulation
    from rpcfut_transport import PeerRecord


def cuda(index: int) -> Device:
    return Device("cuda", index)


def meet(*workers: Placement) -> None:
    """Let workers of the ranks 0, 1 ... know each other."""
    records = [record(rank, worker) for rank, worker in enumerate(workers)]
    for worker in workers:
        worker.meet(records)


def record(rank: int, worker: Placement) -> PeerRecord:
    return describe_this_process(
        rank=rank,
        name=worker._worker,
        incarnation=1,
        address="a",
        details=worker.describe(),
    )


def test_the_same_index_without_a_map() -> None:
    a, b = Placement("a", counts={"cuda": 2}), Placement("b", counts={"cuda": 2})
    meet(a, b)
    assert b.locate(0, cuda(1)) == cuda(1)
    assert a.locate(1, cuda(0)) == cuda(0)


@pytest.mark.parametrize("declared_by", ["caller", "callee", "both"])
def test_a_map_holds_in_both_directions(declared_by: str) -> None:
    """Whoever declared it; answers take the way back."""
    a_map: Any = {"b": {"cuda:0": "cuda:1", 1: 0}} if declared_by != "callee" else {}
    b_map: Any = {"a": {1: 0, "cuda:0": 1}} if declared_by != "caller" else {}
    a = Placement("a", maps=a_map, counts={"cuda": 3})
    b = Placement("b", maps=b_map, counts={"cuda": 3})
    meet(a, b)
    for here, there in ((0, 1), (1, 0), (2, 2)):
        assert b.locate(0, cuda(here)) == cuda(there)
        assert a.locate(1, cuda(there)) == cuda(here)


def test_a_missing_device_is_an_error_that_names_both_sides_and_the_ways_out() -> None:
    a, b = Placement("a", counts={"cuda": 2}), Placement("b", counts={"cuda": 1})
    meet(a, b)
    with pytest.raises(rpcfut.DecodeError) as caught:
        b.locate(0, cuda(1))
    for text in ("cuda:1", "rank 0", "'b'", "1 cuda", "placement='error'", "cpu()"):
        assert text in str(caught.value)
    assert b.locate(0, cuda(0)) == cuda(0)


def test_b56_a_worker_without_a_gpu_keeps_values_on_the_host_if_told() -> None:
    a, b = Placement("a", counts={"cuda": 2}), Placement("b", "cpu", counts={"cuda": 0})
    meet(a, b)
    assert b.locate(0, cuda(1)) is None


@pytest.mark.parametrize(
    ("maps", "text"),
    [
        ({"b": {0: 2}}, "worker 'b' has no cuda:2, it has 2 cuda devices"),
        ({"b": {2: 0}}, "worker 'a' has no cuda:2"),
        ({"c": {0: 0}}, "for 'c' .*no such worker"),
    ],
)
def test_b55_a_map_to_nothing_fails_on_both_ends_and_names_them(
    maps: Any, text: str
) -> None:
    a = Placement("a", maps=maps, counts={"cuda": 2})
    b = Placement("b", counts={"cuda": 2})
    records = [record(0, a), record(1, b)]
    for worker in (a, b):
        with pytest.raises(RendezvousError, match=text):
            worker.meet(records)


@pytest.mark.parametrize("back", [{1: 1}, {0: 0}, {0: 1, 1: 1}])
def test_b55_maps_that_contradict_each_other_fail_and_name_both(back: Any) -> None:
    a = Placement("a", maps={"b": {0: 1}}, counts={"cuda": 2})
    if len({*back.values()}) < len(back):
        with pytest.raises(ValueError, match="two devices to one"):
            Placement("b", maps={"a": back}, counts={"cuda": 2})
        return
    b = Placement("b", maps={"a": back}, counts={"cuda": 2})
    with pytest.raises(RendezvousError, match=r"'a' for 'b' .* contradicts .*'b' for"):
        meet(a, b)


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"placement": "gpu"}, "placement must be one of"),
        ({"device_maps": {"b": {"cuda": "cuda:0"}}}, "has no index"),
        ({"device_maps": {"b": {"cpu": "cuda:0"}}}, "maps the host"),
        ({"device_maps": {"b": {0: 1, 1: 1}}}, "two devices to one"),
        ({"device_maps": {"b": "cuda:0"}}, "must map devices to devices"),
        ({"device_maps": {"b": {0: "nonsense!"}}}, "not a device"),
    ],
)
def test_options_that_make_no_sense_are_refused_at_once(
    options: Any, text: str
) -> None:
    with pytest.raises((ValueError, TypeError), match=text):
        AgentOptions(**options)


@pytest.mark.parametrize(
    "details",
    [
        "",
        "[]",
        "{}",
        "[" * 100_000,
        '{"counts": 1, "maps": {}}',
        '{"counts": {"cuda": "x"}, "maps": {}}',
        '{"counts": {}, "maps": {"a": [["cpu", "cuda:0"]]}}',
        '{"counts": {}, "maps": {"a": [1]}}',
        json.dumps({"counts": {}, "maps": {"a": [["cuda:0", "cuda"]]}}),
    ],
)
def test_a_record_that_makes_no_sense_is_refused(details: str) -> None:
    a = Placement("a", counts={})
    bad = replace(record(1, Placement("b", counts={})), details=details)
    with pytest.raises(RendezvousError, match="worker 'b' are malformed"):
        a.meet([record(0, a), bad])


# ---- calls --------------------------------------------------------------------------


@pytest.fixture
def sim() -> Iterator[Simulation]:
    with simulate(2, seed=1) as simulation:
        yield simulation


@pytest.fixture
def agents(sim: Simulation) -> Iterator[list[Agent]]:
    """Two workers whose two simulated devices correspond crosswise."""
    with ExitStack() as stack:
        network, made = MemoryNetwork(), []
        maps: list[Mapping[str, Any]] = [
            {"b": {"sim:0": "sim:1", "sim:1": "sim:0"}},
            {},
        ]
        for rank, name in enumerate("ab"):
            link = MemoryLink(network)
            me = describe_this_process(
                rank=rank, name=name, incarnation=1, address=link.address
            )
            options = AgentOptions(device_maps=maps[rank])
            agent = rpcfut.Agent(me, link, ExposedTable(), options=options)
            stack.callback(agent.close)
            made.append(agent)
        for agent in made:
            agent.start([other.record for other in made])
        yield made


def test_arguments_and_results_take_the_map_and_its_inverse(
    sim: Simulation, agents: list[Agent]
) -> None:
    a, b = agents
    seen: list[str] = []

    def note(x: SimArray) -> SimArray:
        seen.append(str(x.device))
        return x

    for agent in agents:
        agent.exposed.expose(note, name="note")
    x = sim.array([1.0], 0)
    for caller, callee in ((a, "b"), (b, "a"), (a, "a")):
        back = caller.rpc_sync(callee, "note", (x,), timeout=20)
        assert str(back.device) == "sim:0"
    assert seen == ["sim:1", "sim:1", "sim:0"]
