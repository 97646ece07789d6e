"""Small random programs on streams, and how the simulated device runs them."""

from __future__ import annotations

import math
import random
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from rpcfut.testing import SimArray, simulate

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from rpcfut.testing import HostBuffer, SimEvent, SimStream, Simulation

DEVICE_OF_STREAM = (0, 0, 1)
STREAMS_OF_DEVICE = {0: (0, 1), 1: (2,)}
EVENTS = 2
ARRAYS = ((0, 0), (1, 0), (2, 1))  # the home stream and the device of each
MAX_OPERATIONS = 6


@dataclass(frozen=True, slots=True)
class Step:
    """One operation of a program; what a field means depends on the verb."""

    verb: str
    stream: int = 0
    array: int = 0
    source: int = 0
    source_stream: int = 0
    event: int = 0


Program = tuple[Step, ...]
Outcome = tuple[float | None, ...]

_VERBS = {
    "write": 6,  # stream array
    "update": 4,  # stream array
    "read": 6,  # stream array
    "copy": 2,  # stream array source
    "peer_copy": 1,  # stream array source source_stream
    "record": 5,  # event stream
    "wait": 5,  # event stream
    "sync_stream": 1,  # stream
    "sync_event": 1,  # event
    "host_read": 1,  # stream array
}
# In programs about memory, besides: keep (array stream), free (array), and alloc
# (stream array), which gives the new array a new number.
_SPINE = ("use", "free", "alloc", "use")
_USES = ("write", "update", "read")
_RIBS = ("record", "wait", "record", "wait", "keep", "use", "sync_stream")


class _Writer:
    """Makes one random program."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.device = {a: device for a, (_, device) in enumerate(ARRAYS)}
        self.wide = self.random.random() < 0.3  # also the second device

    def write(self) -> Program:
        if self.random.random() < 0.3:
            return self.write_about_memory()
        count = self.random.randint(2, MAX_OPERATIONS)
        steps: list[Step] = []
        while len(steps) < count:
            step = self.step()
            if step is not None:
                steps.append(step)
        return tuple(steps)

    def write_about_memory(self) -> Program:
        verbs = list(_SPINE)
        for _ in range(self.random.randint(0, MAX_OPERATIONS - len(_SPINE))):
            verb = self.random.choice(_RIBS)
            verbs.insert(self.random.randint(0, len(verbs)), verb)
        return tuple(self.steps_about_memory(verbs))

    def steps_about_memory(self, verbs: list[str]) -> Iterator[Step]:
        array, home, is_alive = 0, ARRAYS[0][0], True
        for verb in verbs:
            stream = self.random.choice((0, 1))
            if verb == "alloc":
                array, is_alive = len(ARRAYS), True
                stream = self.random.choice((home, home, stream))
            if verb in {"use", "keep"} and not is_alive:
                continue
            if verb == "use":
                yield Step(self.random.choice(_USES), stream=stream, array=array)
            else:
                yield Step(verb, stream=stream, array=array)
            is_alive = is_alive and verb != "free"

    def step(self) -> Step | None:
        verb = self.random.choices(tuple(_VERBS), tuple(_VERBS.values()))[0]
        stream = self.random.choice((0, 1, 2) if self.wide else (0, 1))
        step = Step(verb, stream=stream, event=self.random.randrange(EVENTS))
        if verb in {"record", "wait", "sync_stream", "sync_event"}:
            return step
        here = self.arrays(DEVICE_OF_STREAM[stream])
        if not here:
            return None
        step = replace(step, array=self.random.choice(here))
        if verb in {"copy", "peer_copy"}:
            return self.with_source(step)
        return step

    def with_source(self, step: Step) -> Step | None:
        device = DEVICE_OF_STREAM[step.stream]
        if step.verb == "peer_copy":
            if not self.wide:
                return None
            device = 1 - device
        sources = [a for a in self.arrays(device) if a != step.array]
        if not sources:
            return None
        stream = self.random.choice(STREAMS_OF_DEVICE[device])
        source = self.random.choice(sources)
        return replace(step, source=source, source_stream=stream)

    def arrays(self, device: int) -> list[int]:
        # Few of them, so that operations meet.
        found = [a for a, where in self.device.items() if where == device]
        return found[-1:] if self.random.random() < 0.6 else found


def random_program(seed: int) -> Program:
    """A program of two to six operations."""
    return _Writer(seed).write()


def value_of(position: int) -> float:
    """What the step at a position of the program writes or adds."""
    return float(position + 10)


def _update(position: int) -> Callable[[list[float]], list[float]]:
    return lambda old: [2 * x + value_of(position) for x in old]


def canonical(values: list[float]) -> Outcome:
    """Values that compare: memory that nobody wrote to is None."""
    return tuple(None if math.isnan(value) else value for value in values)


class _Run:
    """A program on a simulation."""

    def __init__(self, sim: Simulation) -> None:
        self.sim = sim
        self.streams: list[SimStream] = [sim.stream(d) for d in DEVICE_OF_STREAM]
        self.events: list[SimEvent] = [sim.event() for _ in range(EVENTS)]
        self.arrays: dict[int, SimArray] = {}
        self.buffers: list[HostBuffer] = []
        self.host_reads: list[float] = []
        for number, (home, _) in enumerate(ARRAYS):
            with self.streams[home]:
                self.arrays[number] = sim.array([float(number)])
        sim.synchronize()

    def run(self, program: Program) -> None:
        for position, step in enumerate(program):
            getattr(self, step.verb)(step, position)

    def write(self, step: Step, position: int) -> None:
        with self.streams[step.stream]:
            self.arrays[step.array].fill_(value_of(position))

    def update(self, step: Step, position: int) -> None:
        array = self.arrays[step.array]
        with self.streams[step.stream]:
            array.launch("update", (array,), _update(position))

    def read(self, step: Step, position: int) -> None:
        self.buffers.append(self.sim.host_buffer(1))
        with self.streams[step.stream]:
            self.arrays[step.array].copy_to_host(self.buffers[-1])

    def copy(self, step: Step, position: int) -> None:
        with self.streams[step.stream]:
            self.arrays[step.array].copy_(self.arrays[step.source])

    def peer_copy(self, step: Step, position: int) -> None:
        with self.streams[step.source_stream], self.streams[step.stream]:
            self.arrays[step.array].copy_(self.arrays[step.source])

    def record(self, step: Step, position: int) -> None:
        self.events[step.event].record(self.streams[step.stream])

    def wait(self, step: Step, position: int) -> None:
        self.streams[step.stream].wait_event(self.events[step.event])

    def sync_stream(self, step: Step, position: int) -> None:
        self.streams[step.stream].synchronize()

    def sync_event(self, step: Step, position: int) -> None:
        self.events[step.event].synchronize()

    def host_read(self, step: Step, position: int) -> None:
        with self.streams[step.stream]:
            self.host_reads += self.arrays[step.array].tolist()

    def keep(self, step: Step, position: int) -> None:
        self.arrays[step.array].keep_alive(self.streams[step.stream])

    def free(self, step: Step, position: int) -> None:
        del self.arrays[step.array]

    def alloc(self, step: Step, position: int) -> None:
        with self.streams[step.stream]:
            self.arrays[step.array] = self.sim.empty(1)

    def outcome(self) -> Outcome:
        self.sim.synchronize()
        values = list(self.host_reads)
        for buffer in self.buffers:
            values += buffer.tolist()
        for number in sorted(self.arrays):
            values += self.arrays[number].tolist()
        return canonical(values)


def observe(program: Program, seed: int) -> tuple[bool, Outcome]:
    """Run a program: was a race found, and what came out, reads and final values."""
    with simulate(2, seed=seed, raise_at_once=False) as sim:
        run = _Run(sim)
        run.run(program)
        outcome = run.outcome()
        return bool(sim.take_races()), outcome
