"""Queues of work, and an adversary who decides when it runs.

Theory of operation. A queue runs its tasks in order. A task may await a *point*, a
place in some queue that was marked before. Nothing else orders tasks, so the scheduler
may delay each of them as long as nobody asks for what comes behind it. It runs a task
when somebody forces a point, or by whim: the seed decides how often that is (some seeds
never do) and which queue goes first. All randomness comes from the seed, so a program
with one thread runs the same way each time.
"""

from __future__ import annotations

import random
from collections import deque
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from rpcfut.testing._sim_clock import VectorClock

if TYPE_CHECKING:
    from collections.abc import Callable

    from rpcfut._devices import Device

_WHIMS = (0.0, 0.1, 0.4, 0.8)


@dataclass(slots=True, eq=False)
class Capture:
    """Work that is noted down instead of done; guarded by the simulation's lock.

    Attributes:
        site: ``file:line`` where it began.
        broken_by: What broke it, if anything did.
    """

    site: str
    broken_by: BaseException | None = None


@dataclass(slots=True, eq=False)
class Queue:
    """Work of one device that runs in order; guarded by the simulation's lock."""

    number: int
    device: Device
    name: str
    clock: VectorClock = field(default_factory=VectorClock)
    tasks: deque[Task] = field(default_factory=deque)
    capture: Capture | None = None

    def __str__(self) -> str:
        return f"{self.name} of {self.device}"


@dataclass(slots=True, eq=False)
class Point:
    """A place in a queue, and what has happened before it."""

    queue: Queue
    clock: VectorClock
    has_passed: bool = False


@dataclass(slots=True, eq=False)
class Task:
    """One entry of a queue: await a point, or do something."""

    awaits: Point | None = None
    run: Callable[[], None] | None = None
    passes: Point | None = None


class Scheduler:
    """Runs tasks, as late and in as odd an order as it may.

    Guarded by the simulation's lock.

    Args:
        seed: Decides all that is left open.
    """

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)  # noqa: S311 - to be repeated, not secret
        self._whim = self._random.choice(_WHIMS)
        self._busy: dict[int, Queue] = {}

    def __repr__(self) -> str:
        waiting = {str(q): len(q.tasks) for q in self._busy.values()}
        return f"<Scheduler, tasks waiting: {waiting}>"

    def add(self, queue: Queue, task: Task) -> None:
        """Append a task; whether anything runs now is a whim."""
        queue.tasks.append(task)
        self._busy[queue.number] = queue
        while self._has_whim() and self._run_any():
            pass

    def mark(self, queue: Queue) -> Point:
        """Mark the end of a queue."""
        point = Point(queue, queue.clock.copy())
        self.add(queue, Task(passes=point))
        return point

    def force(self, point: Point) -> None:
        """Run what must run for a point to pass, and by whim more than that."""
        while not point.has_passed:
            if not (self._has_whim() and self._run_any()):
                self._run_head(self._first_runnable(point.queue))

    def run_all(self) -> None:
        """Run everything, in an order that the seed picks."""
        while self._run_any():
            pass

    def answers_yes(self) -> bool:
        """Whether a question about work that nobody forced is answered by yes."""
        return self._random.random() < 0.25

    def _has_whim(self) -> bool:
        return self._random.random() < self._whim

    def _run_any(self) -> bool:
        ready = [queue for queue in self._busy.values() if _is_runnable(queue)]
        if ready:
            self._run_head(self._random.choice(ready))
        return bool(ready)

    def _first_runnable(self, queue: Queue) -> Queue:
        # Points are made before they are awaited, so this comes to an end.
        awaited = queue.tasks[0].awaits
        while awaited is not None and not awaited.has_passed:
            queue = awaited.queue
            awaited = queue.tasks[0].awaits
        return queue

    def _run_head(self, queue: Queue) -> None:
        task = queue.tasks.popleft()
        if not queue.tasks:
            del self._busy[queue.number]
        if task.run is not None:
            task.run()
        if task.passes is not None:
            task.passes.has_passed = True


def _is_runnable(queue: Queue) -> bool:
    awaited = queue.tasks[0].awaits
    return awaited is None or awaited.has_passed
