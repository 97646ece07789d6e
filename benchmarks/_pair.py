"""The two processes of a system, started, asked and restarted together."""

from __future__ import annotations

import contextlib
import dataclasses
import time
from typing import TYPE_CHECKING, Self

from benchmarks._measure import UnmeasurableError
from benchmarks._seat import Answer, Ask, Failed, Ready, Role, Seat
from benchmarks._systems._system import Place, System

if TYPE_CHECKING:
    from pathlib import Path

_OPEN_S = 60.0
_CLOSE_S = 5.0
_MOST_STARTS = 3


class Pair:
    """One system's caller and, if it has one, its callee.

    Owner thread. A context manager: on leaving it, both processes have ended. When one
    of them had to be killed, the next probe starts both anew, a few times.

    Args:
        system: Which.
        folder: Where the system may make folders of its own.
    """

    def __init__(self, system: System, folder: Path) -> None:
        self._system = system
        self._folder = folder
        self._starts = 0
        self._seats: list[Seat] = []
        self._is_ready = False
        self._why_not: str | None = None

    def __repr__(self) -> str:
        return f"<Pair {self._system.name!r} starts={self._starts} {self._seats!r}>"

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def wait_ready(self) -> None:
        """Wait until the processes are open, or known not to open.

        So that nobody is sampled while others still start.
        """
        with contextlib.suppress(UnmeasurableError):  # the next probe raises it again
            self._make_ready(time.perf_counter() + _OPEN_S)
        self._stop()

    def start(self) -> None:
        """Start the processes, without waiting until they are ready."""
        self._starts += 1
        folder = self._folder / f"{self._system.name}-{self._starts}"
        folder.mkdir()
        place = Place(folder=folder)
        if self._system.has_callee:
            callee = Seat(self._system, Role.CALLEE, place)
            self._seats.append(callee)
            place = dataclasses.replace(place, callee_pid=callee.pid)
        self._seats.append(Seat(self._system, Role.CALLER, place))

    def probe(self, name: str, count: int, deadline_s: float) -> tuple[float, ...]:
        """Return the samples of one round.

        Args:
            name: The probe.
            count: How many samples are wanted.
            deadline_s: On the clock of `time.perf_counter`.

        Raises:
            UnmeasurableError: When there are none, whatever the cause.
        """
        self._make_ready(deadline_s)
        self._go()
        try:
            self._seats[-1].ask(Ask(probe=name, count=count))
            reply = self._seats[-1].reply(deadline_s)
        except UnmeasurableError:
            self._kill()
            raise
        self._stop()
        match reply:
            case Answer(samples=samples):
                return samples
            case Failed(reason=reason):
                raise UnmeasurableError(reason)
            case Ready():
                raise UnmeasurableError("the caller was ready twice")

    def close(self) -> None:
        """End both processes. May be repeated."""
        self._go()
        for seat in self._seats:
            seat.leave()
        deadline_s = time.perf_counter() + _CLOSE_S
        for seat in self._seats:
            seat.kill(max(0.0, deadline_s - time.perf_counter()))
        self._seats.clear()
        self._is_ready = False

    def _make_ready(self, deadline_s: float) -> None:
        if self._is_ready:
            return
        if self._why_not is not None:
            raise UnmeasurableError(self._why_not)
        if not self._seats:
            if self._starts == _MOST_STARTS:
                raise UnmeasurableError("its processes had to be killed too often")
            self.start()
        try:
            self._wait_seats(min(deadline_s, time.perf_counter() + _OPEN_S))
        except UnmeasurableError as error:
            self._why_not = f"does not start: {error}"
            self._kill()
            raise UnmeasurableError(self._why_not) from error
        self._is_ready = True

    def _wait_seats(self, deadline_s: float) -> None:
        for seat in self._seats:
            reply = seat.reply(deadline_s)
            if isinstance(reply, Failed):
                raise UnmeasurableError(reply.reason)

    def _stop(self) -> None:
        if self._system.is_stopped_between:
            for seat in self._seats:
                seat.stop()

    def _go(self) -> None:
        for seat in self._seats:
            seat.go()

    def _kill(self) -> None:
        for seat in self._seats:
            seat.kill()
        self._seats.clear()
        self._is_ready = False
