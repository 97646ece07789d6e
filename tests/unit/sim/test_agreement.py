"""The simulated device finds a race exactly where two orders are possible."""

from __future__ import annotations

from collections import Counter
from itertools import islice
from typing import TYPE_CHECKING

import pytest

from tests.unit.sim.orders import is_racy, outcomes
from tests.unit.sim.programs import Step, observe, random_program

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.unit.sim.programs import Program

PROGRAMS = 2000
SEEDS = 80
VALUED = 200


def write(stream: int, array: int = 0) -> Step:
    return Step("write", stream=stream, array=array)


def read(stream: int, array: int = 0) -> Step:
    return Step("read", stream=stream, array=array)


RECORD = Step("record", stream=0)
WAIT = Step("wait", stream=1)
FREE = Step("free", array=0)
ALLOC = Step("alloc", stream=0, array=3)
KEEP = Step("keep", stream=1, array=0)

RACY: dict[str, Program] = {
    "two writes": (write(0), write(1)),
    "read before write": (read(0), write(1)),
    "write before read": (write(0), read(1)),
    "event recorded too early": (RECORD, write(0), WAIT, read(1)),
    "event never recorded": (write(0), WAIT, read(1)),
    "wait on the wrong side": (write(0), RECORD, read(1), WAIT),
    "another stream synchronised": (
        write(0),
        Step("sync_stream", stream=1),
        read(1),
    ),
    "host reads too early": (write(0), Step("host_read", stream=1)),
    "memory used again": (read(1), FREE, ALLOC, write(0, 3)),
    "memory kept too early for another stream": (
        KEEP,
        Step("read", stream=1),
        FREE,
        Step("alloc", stream=0, array=3),
        Step("write", stream=1, array=3),
        Step("read", stream=0, array=3),
    ),
}
CLEAN: dict[str, Program] = {
    "one stream": (write(0), read(0), write(0)),
    "two reads": (read(0), read(1)),
    "two arrays": (write(0, 0), write(1, 1)),
    "event": (write(0), RECORD, WAIT, read(1)),
    "event of a later write": (write(0), write(0), RECORD, WAIT, write(1)),
    "stream synchronised": (write(0), Step("sync_stream", stream=0), read(1)),
    "event synchronised": (write(0), RECORD, Step("sync_event"), read(1)),
    "host reads": (write(0), Step("host_read", stream=0), write(1)),
    "memory used again by its stream": (read(0), FREE, ALLOC, write(0, 3)),
    "memory kept": (read(1), KEEP, FREE, ALLOC, write(0, 3)),
}


@pytest.mark.parametrize("name", RACY)
def test_a_missing_order_is_found_by_both(name: str) -> None:
    """Neither the simulation nor the trying of all orders misses a plain race."""
    assert is_racy(RACY[name])
    assert all(observe(RACY[name], seed)[0] for seed in range(20))


@pytest.mark.parametrize("name", CLEAN)
def test_an_order_is_seen_by_both(name: str) -> None:
    """Neither the simulation nor the trying of all orders raises a false alarm."""
    assert not is_racy(CLEAN[name])
    assert not any(observe(CLEAN[name], seed)[0] for seed in range(20))


def _agree(numbers: range) -> Counter[str]:
    counts: Counter[str] = Counter()
    for number in numbers:
        program = random_program(number)
        racy = is_racy(program)
        found, _ = observe(program, seed=number)
        assert found == racy, f"program {number}: {program}"
        counts["racy" if racy else "clean"] += 1
        counts.update({step.verb for step in program})
    return counts


def test_it_agrees_with_trying_all_orders() -> None:
    """No false alarm and no race missed, on two thousand random programs."""
    counts = _agree(range(PROGRAMS))
    assert counts["racy"] >= 500
    assert counts["clean"] >= 500
    assert counts["alloc"] >= 400
    assert counts["peer_copy"] >= 40


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_it_agrees_with_trying_all_orders_many_times() -> None:
    """The same, on a hundred thousand other programs."""
    counts = _agree(range(PROGRAMS, PROGRAMS + 100_000))
    assert min(counts["racy"], counts["clean"]) >= 25_000


def _programs(*, racy: bool) -> Iterator[Program]:
    for number in range(PROGRAMS):
        program = random_program(number)
        if is_racy(program) == racy:
            yield program


def test_a_race_shows_in_the_values_under_some_seed() -> None:
    """The adversary finds two different outcomes wherever there are two.

    What it makes happen is always something that may happen.
    """
    checked = 0
    for program in islice(_programs(racy=True), VALUED):
        possible = outcomes(program)
        seen = set()
        for seed in range(SEEDS):
            seen.add(observe(program, seed)[1])
            if len(seen) > 1:
                break
        assert seen <= possible, program
        assert len(seen) == min(len(possible), 2), program
        checked += len(possible) > 1
    assert checked >= VALUED * 0.9


def test_a_clean_program_has_one_outcome_under_every_seed() -> None:
    """Without a race, no order of the device can change a value."""
    for program in islice(_programs(racy=False), VALUED):
        possible = outcomes(program)
        assert len(possible) == 1, program
        assert {observe(program, seed)[1] for seed in range(20)} == possible, program
