"""Ctrl-C while messages are read: a wait ends, and no message is lost (FUT-2)."""

from __future__ import annotations

import os
import random
import signal
import threading
from contextlib import contextmanager
from multiprocessing import get_context
from typing import TYPE_CHECKING, Any

import pytest

from tests.support import interrupted

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

PATIENCE_S = 60.0


@contextmanager
def caller_and_server(target: Callable[..., None], folder: Path) -> Iterator[Any]:
    """A child that runs `target` and one that serves it; yields its connection."""
    spawn = get_context("spawn")
    pipes = [spawn.Pipe() for _ in range(2)]
    store = str(folder / "store")
    children = [
        spawn.Process(target=main, args=(pipe[1], store))
        for main, pipe in zip((target, interrupted.serve), pipes, strict=True)
    ]
    for child in children:
        child.start()
    try:
        yield pipes[0][0]
        pipes[1][0].send("end")
        for child in children:
            child.join(PATIENCE_S)
            assert child.exitcode == 0
    finally:
        for child in children:
            child.kill()
            child.join(PATIENCE_S)
        for pipe in pipes:
            for end in pipe:
                end.close()


def receive(conn: Any) -> Any:
    """Receive something, or fail."""
    assert conn.poll(PATIENCE_S), "the child says nothing"
    return conn.recv()


@pytest.mark.timeout(150)
def test_a_thousand_interrupts_lose_no_message(tmp_path: Path) -> None:
    """While four threads call, and the main thread reads for all of them."""
    pause, chance = threading.Event(), random.Random(7)
    with caller_and_server(interrupted.call_under_fire, tmp_path) as conn:
        pid = receive(conn)
        for _ in range(1000):
            pause.wait(chance.uniform(0.001, 0.004))
            os.kill(pid, signal.SIGINT)
        pause.wait(0.1)
        conn.send("end")
        count, inbox_count, wrong = receive(conn)
    assert wrong == []
    assert count >= 500  # two that come at once may be one
    assert inbox_count >= 200


@pytest.mark.timeout(150)
def test_an_interrupt_ends_a_wait_that_reads(tmp_path: Path) -> None:
    with caller_and_server(interrupted.wait_for_ever, tmp_path) as conn:
        pid = receive(conn)
        threading.Event().wait(0.3)  # let it wait
        os.kill(pid, signal.SIGINT)
        assert conn.poll(1.0), "the wait goes on a second after Ctrl-C"
        assert conn.recv() == "inbox"


@pytest.mark.timeout(150)
def test_b133_an_interrupt_that_ends_no_system_call_ends_a_wait(tmp_path: Path) -> None:
    """As one that comes after Python looked for signals and before it blocks."""
    with caller_and_server(interrupted.wait_for_ever, tmp_path) as conn:
        receive(conn)
        threading.Event().wait(0.3)  # let it wait
        conn.send("interrupt yourself")
        assert conn.poll(1.0), "the wait goes on a second after Ctrl-C"
        assert conn.recv() == "inbox"
