"""Links at their limits: many peers, few files, forks, and ends without a goodbye."""

from __future__ import annotations

import subprocess
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from rpcfut_transport.links._inbox_folder import sweep
from tests.support.links import PATIENCE_S

if TYPE_CHECKING:
    from collections.abc import Callable

    from rpcfut_transport import Link

ROOT = Path(__file__).parents[2]
MANY = 1100  # more than ZeroMQ's default number of sockets


def _run(name: str) -> str:
    """What a function of `tests.support.link_processes` returned; its process ended."""
    code = f"from tests.support import link_processes as p; print(p.{name}())"
    done = subprocess.run(
        [sys.executable, "-c", code],
        cwd=ROOT,
        check=False,
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
    )
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout.strip()


@pytest.mark.timeout(120)
def test_b92_a_link_has_room_for_eleven_hundred_peers(
    make_link: Callable[[], Link],
) -> None:
    """B92: each peer takes a socket and a few files; both limits are raised."""
    link, other = make_link(), make_link()
    for rank in range(MANY):
        link.connect(rank, other.address)
    for rank in range(MANY):
        link.send(rank, [b"%d" % rank])
    got = [other.receive(PATIENCE_S) for _ in range(MANY)]
    assert sorted(int(frames[0]) for frames in got if frames) == list(range(MANY))
    assert repr(link).endswith(f"open peers={MANY}>")


def test_b92_too_many_peers_are_an_error_that_says_which_limit() -> None:
    """B92: ZeroMQ alone would end the process."""
    said = _run("run_out_of_files")
    assert "the 256 files that this process may open" in said
    assert "peers are connected" in said
    assert "ulimit -n 512" in said


def test_b92_too_many_links_are_an_error_that_says_which_limit() -> None:
    """B92: and what failed leaves no file behind."""
    assert "the 256 files that this process may open" in _run(
        "run_out_of_files_for_links"
    )


def test_b92_the_soft_limit_of_files_is_raised() -> None:
    """B92: it is for programs that call `select`, and 1024 mostly."""
    assert _run("low_soft_limit_is_raised") == "True"


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("close_what_cannot_leave", "closed"),
        ("forget_what_cannot_leave", "collected"),
        ("end_with_what_cannot_leave", "ending"),
    ],
)
def test_b82_messages_that_cannot_leave_hold_up_no_end(name: str, said: str) -> None:
    """B82: not of the link, nor of the collector, nor of the process."""
    assert _run(name) == said
    sweep(tempfile.gettempdir())  # as whoever comes next does


def test_a_fork_leaves_the_links_of_its_parent_alone() -> None:
    """Whatever the child does with them (RPC-11)."""
    assert _run("fork_with_links") == "[0, 0, 0]"
