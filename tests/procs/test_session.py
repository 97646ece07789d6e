"""Joining, leaving and restarting, between real processes."""

from __future__ import annotations

import os
import random
import socket
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest
import torch.distributed as dist

from tests.support import session
from tests.support.group import children, meeting_file, nursery, run_group
from tests.support.threads import wait_until

pytestmark = pytest.mark.timeout(90)

ROOT = Path(__file__).parents[2]
ENVIRONMENT = {
    **{k: v for k, v in os.environ.items() if k not in {"MASTER_ADDR", "RANK"}},
    "PYTHONPATH": f"{ROOT}:{ROOT / 'transport'}",
    "OMP_NUM_THREADS": "1",
}


def free_port() -> int:
    """A port for a store, which cannot choose its own."""
    with socket.create_server(("127.0.0.1", 0)) as probe:
        return probe.getsockname()[1]


# ---- starting -------------------------------------------------------------------


@pytest.mark.slow  # counts seconds, which others on the machine take from it
def test_rpc1_forty_workers_join_within_ten_seconds() -> None:
    """RPC-1: counted from the end of their imports; what is promised, not how fast."""
    seen = run_group(session.join_and_call, 40, 16)
    assert [name for name, _, _ in seen] == [f"w{(r + 1) % 40}" for r in range(40)]
    assert max(joined for *_, joined in seen) - max(s for _, s, _ in seen) < 10


@pytest.mark.slow  # as above
def test_b96_64_workers_with_pools_of_two_start_and_stop() -> None:
    """B96: nothing that joins or leaves waits for a thread of the users' pool."""
    with children(session.join_and_call, 64, 2) as group:
        names = [child.result(30)[0] for child in group]
    assert names == [f"w{(rank + 1) % 64}" for rank in range(64)]


def test_b95_twenty_groups_of_four_start_at_the_same_instant() -> None:
    """B95: nobody takes what another one chose."""
    with nursery() as start, meeting_file() as file:
        groups = [
            [
                start(session.join_and_call, rank, 4, f"{file}-{n}", 16)
                for rank in range(4)
            ]
            for n in range(20)
        ]
        for group in groups:
            names = [child.result()[0] for child in group]
            assert names == ["w1", "w2", "w3", "w0"]


def test_b97_a_rank_that_comes_late_is_waited_for() -> None:
    """B97: those that are quick do not start without it, and do not fail."""
    with nursery() as start, meeting_file() as file:
        early = [start(session.join_and_call, rank, 4, file, 16) for rank in range(3)]
        assert not any(child.results.poll(0.5) for child in early)
        late = start(session.join_and_call, 3, 4, file, 16)
        names = [child.result()[0] for child in [*early, late]]
    assert names == ["w1", "w2", "w3", "w0"]


@pytest.mark.parametrize("meeting", ["file", "tcp"])
def test_b98_a_process_joins_and_leaves_twenty_times(meeting: str) -> None:
    """B98: no group is in the way of the next one."""
    address = "" if meeting == "file" else f"tcp://127.0.0.1:{free_port()}"
    seen = run_group(session.join_and_leave_often, 2, 20, address)
    assert seen == [[f"w{1 - rank}-{turn}" for turn in range(20)] for rank in range(2)]


def test_b99_a_name_of_an_open_group_is_given_once() -> None:
    """B99: who comes second is told who has it, at once."""
    with nursery() as start, meeting_file() as file:
        host = start(session.host_an_open_group, file, "guest left")
        start(session.visit_an_open_group, "early", file).result()  # host is there
        text = start(session.try_to_join, "host", file).result()
        start(session.visit_an_open_group, "guest", file).result()
        host.result()
    assert text.startswith("DuplicateNameError: worker 'host' is a member already")


def test_rpc1_workers_meet_at_each_others_addresses() -> None:
    """RPC-1: each keeps what it published, so there is no store to lose."""
    places = ",".join(f"127.0.0.1:{free_port()}" for _ in range(3))
    with nursery() as start:
        group = [
            start(session.join_and_call, rank, 3, f"peers://{places}", 16)
            for rank in range(3)
        ]
        assert [child.result()[0] for child in group] == ["w1", "w2", "w0"]


# ---- coming and going -----------------------------------------------------------


def test_b100_a_worker_joins_later_is_called_and_leaves() -> None:
    """B100: the others see it come and go, and go on."""
    with nursery() as start, meeting_file() as file:
        host = start(session.host_an_open_group, file, "second left")
        start(session.visit_an_open_group, "early", file).result()  # host is there
        for name in ("first", "second"):
            _, answers, called = start(session.visit_an_open_group, name, file).result()
            assert set(answers) == {"host", name}
            assert called == name
        seen, said = host.result()
    assert seen[-4:] == [
        "first joined",
        "first left",
        "second joined",
        "second left",
    ]
    assert said == []


def test_b100_twelve_workers_join_an_open_group_at_once() -> None:
    """B100: whoever returned from joining is known to all others."""
    with nursery() as start, meeting_file() as file:
        names = [f"w{number}" for number in range(12)]
        group = [start(session.join_together, name, file, 12) for name in names]
        seen = [child.result() for child in group]
    assert sorted(rank for rank, _ in seen) == list(range(12))
    assert all(found == sorted(names) for _, found in seen)


@pytest.mark.parametrize("place", ["file", "tcp"])
def test_b100_a_restarted_worker_takes_its_name_again(place: str) -> None:
    """B100, RPC-7: it has another rank, and calls by name reach it."""
    with nursery() as start, meeting_file() as file:
        store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
        address = file if place == "file" else f"tcp://127.0.0.1:{store.port}"
        host = start(session.host_an_open_group, address, "again left")
        start(session.visit_an_open_group, "early", address).result()  # host is there
        dying = start(session.join_and_die, "again", address)
        with pytest.raises(RuntimeError, match="exit code -9"):
            dying.result()
        again = start(session.visit_an_open_group, "again", address)
        rank, _, called = again.result()
        seen, _ = host.result()
    assert rank == 3  # after host, early and the one that died
    assert called == "again"
    assert seen[-4:] == ["again joined", "again lost", "again joined", "again left"]


@pytest.mark.parametrize("place", ["file", "peers"])
def test_b100_a_restarted_rank_returns_to_its_group(place: str, tmp_path: Path) -> None:
    """RPC-7: calls to the earlier one fail, the new one is called and calls."""
    with nursery() as start, meeting_file() as file:
        address = file
        if place == "peers":
            places = ",".join(f"127.0.0.1:{free_port()}" for _ in range(3))
            address = f"peers://{places}"
        group = [
            start(session.see_a_return, rank, 3, address, str(tmp_path))
            for rank in range(3)
        ]
        wait_until(lambda: (tmp_path / "lost").exists(), session.PATIENCE_S)
        names, answers = start(session.come_back, 1, 3, address).result()
        seen = group[0].result()
        group[2].result()
    assert sorted(names) == sorted(answers) == ["w0", "w1", "w2"]
    assert "its process" in seen["gone"]
    assert seen["is another"]
    assert (seen["asked by w2"], seen["asks w2"]) == ("w1", "w2")
    assert seen["events"][-2:] == ["w1 lost", "w1 joined"]
    assert seen["names"] == ["w0", "w1", "w2"]


# ---- leaving --------------------------------------------------------------------


def test_b103_who_stops_does_not_wait_for_one_that_was_killed() -> None:
    """B103: the others return, once and again, and say who is gone."""
    with children(session.stop_without_one, 3) as group:
        for child in group[:2]:
            (said,) = child.result()
            assert "'w2' is lost" in said
        with pytest.raises(RuntimeError, match="exit code -9"):
            group[2].result()


def test_b104_stopping_waits_for_a_call_as_long_as_it_was_told() -> None:
    """B104: an answer that is on the way comes; without patience it does not."""
    said, answer = run_group(session.stop_while_serving, 2, session.PATIENCE_S)
    assert (said, answer) == ([], "'through'")
    said, answer = run_group(session.stop_while_serving, 2, 0.2)
    assert "leaves after 0.2 s" in said[0]
    assert "'w1'" in said[0]
    assert answer.startswith("PeerLostError")
    assert "left" in answer


def test_b107_workers_leave_in_any_order_without_a_complaint() -> None:
    """B107: a goodbye is no error, and what was answered did not fail."""
    order = random.Random(7).sample(range(4), 4)
    for said, answer in run_group(session.leave_in_turn, 4, order):
        assert said == []
        assert answer == f"w{order[-1]}"


@pytest.mark.parametrize("code", [0, 3])
def test_b105_an_end_without_shutdown_keeps_the_exit_code(code: int) -> None:
    """B105: a script that calls itself and ends, in good order or not."""
    script = (
        "import sys, rpcfut\n"
        "rpcfut.init_rpc('me', 0, 1)\n"
        "rpcfut.expose(sorted, name='sorted')\n"
        "rpcfut.rpc_async('me', 'sorted', args=([2, 1],))\n"
        f"sys.exit({code})\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", script],
        env=ENVIRONMENT,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == code
    assert "abort" not in done.stderr.lower()
    assert "Traceback" not in done.stderr


def test_b83_a_forked_child_is_told_and_its_parent_goes_on() -> None:
    """B83: what the child does and how it ends changes nothing for the parent."""
    seen, _ = run_group(session.fork_and_go_on, 2)
    error, status, answer = seen
    assert error.startswith("LifecycleError")
    assert "forked child" in error
    assert (status, answer) == (0, "through")


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_b84_a_function_may_use_a_data_loader_that_forks() -> None:
    """B84: it answers, and so does the next call."""
    with children(session.load_data_there, 2, daemon=False) as group:
        seen = [child.result() for child in group]
    assert seen == [(28.0, "w1"), (None, "w0")]


def test_b106_helpers_end_with_a_driver_that_was_killed() -> None:
    """B106: they see their parent end, also in the middle of a call."""
    with tempfile.TemporaryDirectory() as folder, nursery(daemon=False) as start:
        driver = start(session.drive_and_die, folder)
        with pytest.raises(RuntimeError, match="exit code -9"):
            driver.result()
        pids = Path(folder, "pids").read_text().split()
        assert len(pids) == 2
        wait_until(lambda: not any(is_running(pid) for pid in pids), 5)


def test_helpers_of_a_driver_are_called_and_end() -> None:
    with nursery(daemon=False) as start:
        assert start(session.drive, ["a", "b"]).result() == ["a", "b"]


def is_running(pid: str) -> bool:
    """Whether a process runs, and is not only kept until its parent looks at it."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return False
    return stat.rpartition(")")[2].split()[0] != "Z"
