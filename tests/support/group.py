"""Groups of real worker processes for tests.

Children come from a fork server that has imported torch and rpcfut but started
nothing, so that one costs a few hundredths of a second; what they run lives in
importable modules (`tests.support.*`).
"""

from __future__ import annotations

import multiprocessing
import tempfile
import traceback
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from multiprocessing.connection import Connection
    from multiprocessing.process import BaseProcess

JOIN_S = 15.0


@dataclass
class Child:
    """One worker process and the pipe that brings its result."""

    process: BaseProcess
    results: Connection

    def result(self, timeout_s: float = 60.0) -> Any:
        """What the child's function returned; raises if it raised or died."""
        if not self.results.poll(timeout_s):
            raise TimeoutError(f"{self.process.name} said nothing in {timeout_s} s")
        try:
            is_error, value = self.results.recv()
        except EOFError:
            self.process.join(JOIN_S)
            raise RuntimeError(
                f"{self.process.name} died, exit code {self.process.exitcode}"
            ) from None
        if is_error:
            raise AssertionError(f"{self.process.name} failed:\n{value}")
        return value


def _run(function: Callable[..., Any], args: tuple[Any, ...], out: Connection) -> None:
    try:
        out.send((False, function(*args)))
    except BaseException:  # noqa: BLE001 - sent to the parent
        out.send((True, traceback.format_exc()))
        raise SystemExit(1) from None


def _context() -> Any:
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["torch", "rpcfut", "tests.support.group"])
    return context


@contextmanager
def nursery(*, daemon: bool = True) -> Iterator[Callable[..., Child]]:
    """Yield what starts ``function(*args)`` in a process of its own.

    Those that still run at the end of the context get a moment, and are killed then, or
    if it is left by an error. A process that starts others must be no daemon.
    """
    context = _context()
    started: list[Child] = []

    def start(function: Callable[..., Any], *args: Any) -> Child:
        results, out = context.Pipe(duplex=False)
        process = context.Process(
            target=_run,
            args=(function, args, out),
            name=f"child {len(started)}",
            daemon=daemon,
        )
        process.start()
        out.close()
        started.append(Child(process, results))
        return started[-1]

    try:
        yield start
        for child in started:
            child.process.join(JOIN_S)
    finally:
        for child in started:
            if child.process.is_alive():
                child.process.kill()
            child.process.join(JOIN_S)
            child.process.close()
            child.results.close()


@contextmanager
def meeting_file() -> Iterator[str]:
    """An init_method that nobody else uses."""
    with tempfile.TemporaryDirectory() as folder:
        yield f"file://{Path(folder, 'rendezvous')}"


@contextmanager
def children(
    function: Callable[..., Any], count: int, *args: Any, daemon: bool = True
) -> Iterator[list[Child]]:
    """Run ``function(rank, count, rendezvous, *args)`` in `count` processes.

    Those that still run at the end of the context are killed.
    """
    with meeting_file() as rendezvous, nursery(daemon=daemon) as start:
        yield [start(function, rank, count, rendezvous, *args) for rank in range(count)]


def run_group(function: Callable[..., Any], count: int, *args: Any) -> list[Any]:
    """Run `function` in `count` processes; what each returned, by rank."""
    with children(function, count, *args) as group:
        return [child.result() for child in group]
