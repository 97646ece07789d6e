"""All orders in which a program may run, found by trying.

Written without any notion of a clock. A state is how far the host has come in the
program and how far each stream has come in its queue. The host may always go on, but a
synchronisation waits; a stream may run its next entry once the host has queued it, and
an entry that awaits a record only when that was run. Every order that these rules allow
is a path through the states, and all paths are followed.

Two accesses are unordered when some path runs one first and some path runs the other
first. What came out is the set of the outcomes of all paths.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from itertools import combinations
from typing import TYPE_CHECKING

from tests.unit.sim.programs import (
    ARRAYS,
    DEVICE_OF_STREAM,
    EVENTS,
    Outcome,
    Program,
    Step,
    canonical,
    value_of,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

Memory = tuple[float, ...]
Reads = tuple[tuple[int, float], ...]  # where in the outcome, value


@dataclass(frozen=True, slots=True)
class Touch:
    """That an entry reads or writes a block, for the array that owns it then."""

    block: int
    writes: bool
    owner: int


@dataclass(slots=True, eq=False)
class Entry:
    """One entry of a stream's queue, or one act of the host."""

    position: int
    touches: tuple[Touch, ...] = ()
    awaits: Entry | None = None
    effect: Callable[[Memory, Reads], tuple[Memory, Reads]] | None = None


@dataclass(slots=True, eq=False)
class Listing:
    """A program, sorted into queues."""

    queues: list[list[Entry]] = field(
        default_factory=lambda: [[] for _ in DEVICE_OF_STREAM]
    )
    host: list[tuple[list[Entry], Entry | None]] = field(default_factory=list)
    blocks: int = len(ARRAYS)
    alive: dict[int, int] = field(default_factory=dict)
    # By block: the marks made when an owner died, on the streams that were to be kept.
    marks: dict[int, list[Entry]] = field(default_factory=dict)
    born: dict[int, int] = field(default_factory=dict)  # position, by array
    # Blocks that were given out again while marks stood: the allocator waited.
    waits_for_marks: dict[int, list[Entry]] = field(default_factory=dict)


class _Compiler:
    """Sorts a program into queues."""

    def __init__(self) -> None:
        self.out = Listing()
        self.block = {a: a for a in range(len(ARRAYS))}
        self.home = {a: home for a, (home, _) in enumerate(ARRAYS)}
        self.kept: dict[int, list[int]] = {}
        self.free_blocks: dict[int, list[int]] = {}
        self.last_marks: dict[int, list[Entry]] = {}
        self.recorded: list[Entry | None] = [None] * EVENTS
        self.reads = 0

    def compile(self, program: Program) -> Listing:
        for position, step in enumerate(program):
            self.out.host.append(([], None))
            getattr(self, step.verb)(step, position)
        self.out.alive = dict(sorted(self.block.items()))
        return self.out

    def queue(self, stream: int, entry: Entry) -> Entry:
        self.out.queues[stream].append(entry)
        return entry

    def touch(self, array: int, *, writes: bool) -> Touch:
        return Touch(self.block[array], writes, array)

    def write(self, step: Step, position: int) -> None:
        block = self.block[step.array]
        entry = Entry(position, (self.touch(step.array, writes=True),))
        entry.effect = lambda m, r: (_set(m, block, value_of(position)), r)
        self.queue(step.stream, entry)

    def update(self, step: Step, position: int) -> None:
        block = self.block[step.array]
        entry = Entry(position, (self.touch(step.array, writes=True),))
        entry.effect = lambda m, r: (
            _set(m, block, 2 * m[block] + value_of(position)),
            r,
        )
        self.queue(step.stream, entry)

    def read_effect(
        self, block: int, slot: int
    ) -> Callable[[Memory, Reads], tuple[Memory, Reads]]:
        return lambda m, r: (m, (*r, (slot, m[block])))

    def read(self, step: Step, position: int) -> None:
        entry = Entry(position, (self.touch(step.array, writes=False),))
        entry.effect = self.read_effect(self.block[step.array], 100 + self.reads)
        self.reads += 1
        self.queue(step.stream, entry)

    def host_read(self, step: Step, position: int) -> None:
        entry = Entry(position, (self.touch(step.array, writes=False),))
        entry.effect = self.read_effect(self.block[step.array], self.reads)
        self.reads += 1
        self.out.host[position] = (list(self.out.queues[step.stream]), entry)

    def copy(self, step: Step, position: int, stream: int | None = None) -> None:
        block, source = self.block[step.array], self.block[step.source]
        touches = (
            self.touch(step.source, writes=False),
            self.touch(step.array, writes=True),
        )
        entry = Entry(position, touches)
        entry.effect = lambda m, r: (_set(m, block, m[source]), r)
        self.queue(step.stream if stream is None else stream, entry)

    def peer_copy(self, step: Step, position: int) -> None:
        ready = self.queue(step.stream, Entry(position))
        self.queue(step.source_stream, Entry(position, awaits=ready))
        self.copy(step, position, step.source_stream)
        done = self.queue(step.source_stream, Entry(position))
        self.queue(step.stream, Entry(position, awaits=done))

    def record(self, step: Step, position: int) -> None:
        self.recorded[step.event] = self.queue(step.stream, Entry(position))

    def wait(self, step: Step, position: int) -> None:
        awaited = self.recorded[step.event]
        if awaited is not None:
            self.queue(step.stream, Entry(position, awaits=awaited))

    def sync_stream(self, step: Step, position: int) -> None:
        self.out.host[position] = (list(self.out.queues[step.stream]), None)

    def sync_event(self, step: Step, position: int) -> None:
        awaited = self.recorded[step.event]
        self.out.host[position] = ([awaited] if awaited is not None else [], None)

    def keep(self, step: Step, position: int) -> None:
        kept = self.kept.setdefault(step.array, [])
        if step.stream != self.home[step.array] and step.stream not in kept:
            kept.append(step.stream)

    def free(self, step: Step, position: int) -> None:
        array, block = step.array, self.block.pop(step.array)
        marks = [
            self.queue(stream, Entry(position)) for stream in self.kept.get(array, [])
        ]
        self.last_marks[block] = marks
        self.out.marks.setdefault(block, []).extend(marks)
        self.free_blocks.setdefault(self.home[array], []).append(block)

    def alloc(self, step: Step, position: int) -> None:
        free = self.free_blocks.get(step.stream)
        if free:
            block = free.pop()
            self.out.waits_for_marks[position] = self.last_marks[block]
        else:
            block = self.out.blocks
            self.out.blocks += 1
        self.block[step.array] = block
        self.home[step.array] = step.stream
        self.out.born[step.array] = position


def _set(memory: Memory, block: int, value: float) -> Memory:
    return (*memory[:block], value, *memory[block + 1 :])


State = tuple[int, tuple[int, ...]]


def _has_run(listing: Listing, state: State, entry: Entry) -> bool:
    _, counts = state
    return any(
        entry in queue[:n] for queue, n in zip(listing.queues, counts, strict=True)
    )


def _moves(
    listing: Listing, state: State, *, allocator_waits: bool
) -> Iterator[tuple[State, Entry | None]]:
    """Where a state may go, and which entry that runs."""
    position, counts = state
    if position < len(listing.host):
        needs, act = listing.host[position]
        if allocator_waits:
            needs = needs + listing.waits_for_marks.get(position, [])
        if all(_has_run(listing, state, entry) for entry in needs):
            yield (position + 1, counts), act
    for stream, (queue, n) in enumerate(zip(listing.queues, counts, strict=True)):
        if n == len(queue) or queue[n].position >= position:
            continue  # not queued yet
        awaited = queue[n].awaits
        if awaited is None or _has_run(listing, state, awaited):
            yield (position, (*counts[:stream], n + 1, *counts[stream + 1 :])), queue[n]


def unordered_pairs(listing: Listing) -> set[frozenset[Entry]]:
    """The pairs of entries that some path runs in one order, and some in the other."""
    acts = [act for _, act in listing.host if act is not None]
    entries = [entry for queue in listing.queues for entry in queue] + acts
    first_then: set[tuple[Entry, Entry]] = set()
    start: State = (0, (0,) * len(listing.queues))
    seen, ahead = {start}, [start]
    while ahead:
        state = ahead.pop()
        run = [e for q, n in zip(listing.queues, state[1], strict=True) for e in q[:n]]
        run += [act for _, act in listing.host[: state[0]] if act is not None]
        rest = set(entries) - set(run)
        first_then.update((a, b) for a in run for b in rest)
        for after, _ in _moves(listing, state, allocator_waits=False):
            if after not in seen:
                seen.add(after)
                ahead.append(after)
    return {
        frozenset((a, b))
        for a, b in combinations(entries, 2)
        if (a, b) in first_then and (b, a) in first_then
    }


def is_racy(program: Program) -> bool:
    """Whether two accesses that conflict are unordered."""
    listing = _Compiler().compile(program)
    unordered = unordered_pairs(listing)

    def was_waited_for(one: Entry, block: int, other_owner: int) -> bool:
        """Whether the allocator gave the block out only after `one` had run."""
        return any(
            one.position < mark.position < listing.born.get(other_owner, 0)
            and frozenset((one, mark)) not in unordered
            for mark in listing.marks.get(block, [])
        )

    for pair in unordered:
        one, other = sorted(pair, key=lambda entry: entry.position)
        for a in one.touches:
            for b in other.touches:
                if a.block != b.block or not (a.writes or b.writes):
                    continue
                if not was_waited_for(one, a.block, b.owner):
                    return True
    return False


def outcomes(program: Program) -> set[Outcome]:
    """What may come out, over all paths: reads and final values."""
    listing = _Compiler().compile(program)
    memory: Memory = tuple(
        float(b) if b < len(ARRAYS) else math.nan for b in range(listing.blocks)
    )
    start = ((0, (0,) * len(listing.queues)), memory, ())
    end = (len(listing.host), tuple(len(queue) for queue in listing.queues))
    found: set[Outcome] = set()
    seen, ahead = {repr(start)}, [start]
    while ahead:
        state, memory, reads = ahead.pop()
        if state == end:
            values = [value for _, value in sorted(reads)]
            values += [memory[block] for block in listing.alive.values()]
            found.add(canonical(values))
        for after, entry in _moves(listing, state, allocator_waits=True):
            effect = entry.effect if entry is not None else None
            then = effect(memory, reads) if effect is not None else (memory, reads)
            node = (after, *then)
            if repr(node) not in seen:  # a NaN differs from itself
                seen.add(repr(node))
                ahead.append(node)
    return found
