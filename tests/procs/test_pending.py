"""What is pending is said while a worker hangs, by the command and by the signal."""

from __future__ import annotations

import json
import os
import signal
import tempfile
from typing import TYPE_CHECKING, Any

import pytest

from rpcfut.__main__ import NOT_REACHED, NOTHING_PENDING, SOMETHING_PENDING, main
from rpcfut._control_client import ask_all
from rpcfut_transport.links._inbox_folder import PREFIX, sweep
from tests.support import remote_pending
from tests.support.group import children, run_group
from tests.support.threads import wait_until

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from tests.support.group import Child

pytestmark = pytest.mark.timeout(90)

PATIENCE_S = 0.5


@pytest.fixture
def ask(capsys: pytest.CaptureFixture[str]) -> Callable[..., tuple[int, str]]:
    def run(child: Child, *options: str) -> tuple[int, str]:
        status = main(["pending", "--pid", str(child.process.pid), *options])
        said = capsys.readouterr()
        return status, said.out + said.err

    return run


def reports_of(child: Child) -> Any:
    return [each for each in ask_all(PATIENCE_S) if each.pid == child.process.pid]


def is_running(child: Child) -> bool:
    return [asked.report and asked.report.state for asked in reports_of(child)] == [
        "running"
    ]


def has_made(child: Child, count: int) -> Callable[[], bool]:
    def has() -> bool:
        found = reports_of(child)
        return bool(found and found[0].report and found[0].report.made_count == count)

    return has


def has_served(child: Child, count: int) -> Callable[[], bool]:
    def has() -> bool:
        found = reports_of(child)
        return bool(found and found[0].report and found[0].report.served_count == count)

    return has


def kill(group: list[Child]) -> None:
    """Kill all, and remove what nobody is left to remove."""
    for child in group:
        child.process.kill()
    for child in group:
        child.process.join(15)
    sweep(tempfile.gettempdir())


def has_swept_all() -> bool:
    sweep(tempfile.gettempdir())
    return not any(
        name.startswith(PREFIX) for name in os.listdir(tempfile.gettempdir())
    )


@pytest.fixture(params=remote_pending.HANGS)
def hung(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[list[Child]]:
    with children(
        remote_pending.call_and_hang, 2, request.param, str(tmp_path / "stderr")
    ) as group:
        wait_until(has_made(group[1], 1), 60)
        wait_until(has_served(group[0], 1), 60)
        yield group
        kill(group)


def test_the_calls_of_a_worker_whose_main_thread_hangs_are_listed(hung, ask) -> None:
    """RPC-2: on both sides, with function, place, stage, deadline; never arguments."""
    status, text = ask(hung[1])
    assert status == SOMETHING_PENDING
    assert f"worker w1 (rank 1, process {hung[1].process.pid}), running: 1 made" in text
    assert "tests.support.remote:never" in text
    assert "sent" in text
    assert f"{remote_pending.__file__}:" in text
    status, text = ask(hung[0])
    assert status == SOMETHING_PENDING
    assert "leaving: 0 made and 1 served" in text
    assert "its function returned a future" in text
    assert "hush-hush" not in text
    (said,) = json.loads(ask(hung[1], "--json")[1])
    (made,) = said["made"]
    assert made["to"] == "w0"
    assert 400 < made["left_s"] < 500
    assert [peer["name"] for peer in said["peers"]] == ["w0", "w1"]
    assert [peer["open_calls"] for peer in said["peers"]] == [1, 0]


def test_a_signal_has_the_same_written_to_stderr(hung, tmp_path: Path) -> None:
    """Also while the main thread waits for a lock for ever, or is in a call to C."""
    file = tmp_path / "stderr"
    for count in (1, 2):
        os.kill(hung[1].process.pid, signal.SIGUSR2)
        wait_until(lambda c=count: file.read_text().count("in call_and_hang") == c, 30)
    text = file.read_text()
    assert text.count("worker w1 (rank 1, process") == 2
    assert text.count("the thread that got the signal:") == 2
    assert text.count("tests.support.remote:never") == 2
    assert "hush-hush" not in text
    assert hung[1].process.is_alive()


def test_a_worker_whose_pool_is_full_of_hanging_calls_lists_them(ask) -> None:
    """Those that run by their threads and places, the queued ones by their names."""
    with children(remote_pending.fill_the_pool, 2) as group:
        wait_until(has_served(group[1], 5), 60)
        status, text = ask(group[1])
        kill(group)
    assert status == SOMETHING_PENDING
    lines = [line for line in text.splitlines() if ":block_for_ever" in line]
    assert len(lines) == 5
    assert sum("queued, since" in line for line in lines) == 3
    running = [line for line in lines if "running, since" in line]
    assert len(running) == 2
    assert all("rpcfut-serve-w1-" in line for line in running)
    assert all(f"{remote_pending.__file__}:" in line for line in running)
    assert all("in block_for_ever" in line for line in running)
    assert "hush-hush" not in text


def test_a_quiet_worker_has_nothing_pending_and_a_killed_one_is_none(ask) -> None:
    """What a killed worker leaves in its folder is not taken for a worker."""
    with children(remote_pending.stay, 2) as group:
        wait_until(lambda: all(is_running(child) for child in group), 60)
        wait_until(lambda: ask(group[0])[0] == NOTHING_PENDING)
        group[1].process.kill()
        group[1].process.join(15)
        status, text = ask(group[1])
        assert status == NOT_REACHED
        assert f"no worker in process {group[1].process.pid} of user" in text
        wait_until(lambda: "lost: " in ask(group[0])[1])
        kill(group)


def test_a_stopped_worker_cannot_be_reached_and_why(ask) -> None:
    """The way out is named; the others answer meanwhile."""
    with children(remote_pending.stay, 2) as group:
        wait_until(lambda: all(is_running(child) for child in group), 60)
        os.kill(group[1].process.pid, signal.SIGSTOP)
        status, text = ask(group[1])
        assert status == NOT_REACHED
        assert f"process {group[1].process.pid} is stopped: kill -CONT" in text
        assert reports_of(group[0])[0].report is not None
        kill(group)


def test_a_worker_that_keeps_the_gil_cannot_be_reached_and_why(ask) -> None:
    """Nothing of Python runs there; a tool that reads its memory is named."""

    def hangs() -> bool:
        found = reports_of(group[0])
        return bool(found) and found[0].report is None

    with children(remote_pending.keep_the_gil, 1) as group:
        wait_until(hangs, 60)
        status, text = ask(group[0])
        pid = group[0].process.pid
        kill(group)
    assert status == NOT_REACHED
    assert f"py-spy dump --native --pid {pid}" in text


def test_a_forked_child_does_not_answer_for_its_parent(tmp_path: Path) -> None:
    """Neither while that lives, nor with the sockets that it inherited after."""
    note = tmp_path / "child"
    with children(remote_pending.fork_and_leave, 1, str(note)) as group:
        wait_until(lambda: note.exists() and note.read_text().endswith("\n"), 60)
        forked = int(note.read_text())
        group[0].process.join(15)
        assert group[0].process.exitcode == 0
        os.kill(forked, signal.SIGKILL)


def test_a_killed_worker_with_a_forked_child_is_not_taken_for_living(
    tmp_path: Path,
) -> None:
    """The child holds its parent's socket: connecting works, and nobody answers."""
    note = tmp_path / "child"
    with children(remote_pending.fork_and_stay, 1, str(note)) as group:
        wait_until(lambda: note.exists() and note.read_text().endswith("\n"), 60)
        assert len(reports_of(group[0])) == 1
        for child in group:
            child.process.kill()
            child.process.join(15)
        pids = [child.process.pid for child in group]
        assert [each for each in ask_all(PATIENCE_S) if each.pid in pids] == []
        os.kill(int(note.read_text()), signal.SIGKILL)
        wait_until(has_swept_all)


def test_a_forked_child_reports_nothing_at_the_signal(tmp_path: Path) -> None:
    """It has the handler, but the report would be its parent's."""
    (text,) = run_group(remote_pending.signal_a_forked_child, 1, str(tmp_path / "err"))
    assert text.count("Stack (most recent call first)") == 1
    assert text.count("worker w0 (rank 0") == 1
