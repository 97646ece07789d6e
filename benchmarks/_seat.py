"""A spawned process that holds one part of a system and does what it is asked.

Theory of operation: the run's process owns one pipe to each seat and never waits on it
without a limit. A seat that does not answer in time is killed; what it was asked for is
then unmeasurable, and the run goes on. A seat dies with the run's process.
"""

from __future__ import annotations

import ctypes
import enum
import importlib
import multiprocessing
import os
import signal
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

from benchmarks._measure import UnmeasurableError

if TYPE_CHECKING:
    from multiprocessing.connection import Connection

    from benchmarks._systems._system import Callee, Caller, Place, System

_SPAWN = multiprocessing.get_context("spawn")
_CLOSE_S = 3.0
_PR_SET_PDEATHSIG = 1
_REASON_CHARS = 300


class Role(enum.Enum):
    """Which part of a system a seat holds."""

    CALLEE = "callee"
    CALLER = "caller"


@dataclass(frozen=True, slots=True, kw_only=True)
class Ask:
    """To a caller: run a probe."""

    probe: str
    count: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Leave:
    """To both: close and end."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Ready:
    """From both: it is open."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """From a caller: what the probe measured."""

    samples: tuple[float, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Failed:
    """From both: it did not work."""

    reason: str


Order: TypeAlias = Ask | Leave
Reply: TypeAlias = Ready | Answer | Failed


class Seat:
    """The run's handle on one such process. Owner thread; the run closes it."""

    def __init__(self, system: System, role: Role, place: Place) -> None:
        self._name = f"{system.name} {role.value}"
        self._pipe, theirs = _SPAWN.Pipe()
        self._process = _SPAWN.Process(
            target=sit,
            args=(theirs, system, role, place),
            name=self._name,
            daemon=True,
        )
        self._process.start()
        theirs.close()

    def __repr__(self) -> str:
        state = "alive" if self._process.is_alive() else "dead"
        return f"<Seat {self._name!r} pid={self.pid} {state}>"

    @property
    def pid(self) -> int | None:
        """Return the process id."""
        return self._process.pid

    def ask(self, order: Order) -> None:
        """Send an order; the reply is to be fetched.

        Raises:
            UnmeasurableError: When the process is gone.
        """
        try:
            self._pipe.send(order)
        except OSError as error:
            raise UnmeasurableError(f"the {self._name} process is gone") from error

    def reply(self, deadline_s: float) -> Reply:
        """Return the next reply.

        Args:
            deadline_s: On the clock of `time.perf_counter`.

        Raises:
            UnmeasurableError: When it did not come in time, or the process is gone.
        """
        try:
            if not self._pipe.poll(max(0.0, deadline_s - time.perf_counter())):
                raise UnmeasurableError(f"no answer in time from the {self._name}")
            reply: Reply = self._pipe.recv()
        except (EOFError, OSError) as error:
            self._process.join(_CLOSE_S)
            raise UnmeasurableError(
                f"the {self._name} process ended with exit code "
                f"{self._process.exitcode}"
            ) from error
        return reply

    def stop(self) -> None:
        """Take the processor from it, until `go`."""
        self._signal(signal.SIGSTOP)

    def go(self) -> None:
        """Let it run again. May be repeated."""
        self._signal(signal.SIGCONT)

    def leave(self) -> None:
        """Ask the process to end, without waiting for it."""
        try:
            self._pipe.send(Leave())
        except OSError:
            return  # it has ended

    def kill(self, grace_s: float = 0.0) -> None:
        """Wait for the process's end, then force it. May be repeated."""
        self._process.join(grace_s)
        if self._process.is_alive():
            self._process.kill()
            self._process.join(_CLOSE_S)
        self._pipe.close()

    def _signal(self, number: signal.Signals) -> None:
        if self.pid is not None and self._process.is_alive():
            os.kill(self.pid, number)


def sit(pipe: Connection, system: System, role: Role, place: Place) -> None:
    """Be the process: open the part, do what is asked, close."""
    _die_with_parent()
    try:
        module = importlib.import_module(system.module)
        part: Callee | Caller
        match role:
            case Role.CALLEE:
                part = module.open_callee(place)
            case Role.CALLER:
                part = module.open_caller(place)
    except BaseException as error:  # noqa: BLE001 - the reason in the table
        pipe.send(Failed(reason=_reason(error)))
        os._exit(1)
    pipe.send(Ready())
    try:
        _serve(pipe, part)
    except EOFError:
        os._exit(1)
    part.close()


def _serve(pipe: Connection, part: Callee | Caller) -> None:
    while True:
        order: Order = pipe.recv()
        match order:
            case Leave():
                return
            case Ask(probe=name, count=count):
                pipe.send(_run_probe(part, name, count))


def _run_probe(part: Callee | Caller, name: str, count: int) -> Reply:
    probes = getattr(part, "probes", {})
    if name not in probes:
        return Failed(reason="there is no such thing in this system")
    try:
        return Answer(samples=tuple(probes[name](count)))
    except UnmeasurableError as error:
        return Failed(reason=str(error))
    except BaseException as error:  # noqa: BLE001 - the reason in the table
        return Failed(reason=_reason(error))


def _reason(error: BaseException) -> str:
    text = " ".join(f"{type(error).__name__}: {error}".split())
    return text if len(text) <= _REASON_CHARS else text[:_REASON_CHARS] + " ..."


def _die_with_parent() -> None:
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
