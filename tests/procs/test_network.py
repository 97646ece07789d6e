"""Workers of several hosts, and those who are none (RPC-10)."""

from __future__ import annotations

import multiprocessing
import os
import pickle
import re
import secrets
import socket
import subprocess
import sys
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import zmq

from rpcfut._codec import encode_plain_request
from rpcfut_transport._wire import Header, Kind, encode_header
from rpcfut_transport.links._address import parse_tcp_address
from tests.support import networked, session
from tests.support.group import Child, children, meeting_file, nursery, run_group
from tests.support.hosts import Cable, two_hosts, why_no_namespaces
from tests.support.networked import OTHER, PLAIN, SECRET
from tests.support.threads import wait_until

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

pytestmark = pytest.mark.timeout(90)

WAYS = ("secret=", "RPCFUT_SECRET", "RPCFUT_SECRET_FILE")
LATE_S = 5.0
NO_HOSTS = why_no_namespaces()
needs_hosts = pytest.mark.skipif(bool(NO_HOSTS), reason=NO_HOSTS)
needs_root = pytest.mark.skipif(
    os.getuid() != 0, reason="only root can become another user"
)


@pytest.mark.parametrize("interface", ["127.0.0.1", "::1"])
def test_b91_calls_of_every_kind_go_by_tcp(interface: str) -> None:
    """B91: over both versions of the protocol, encrypted."""
    seen, _ = run_group(networked.call_peers_by_tcp, 2, interface)
    assert seen == {
        "sum": True,
        "pair": ("Pair", "r", [1.0, 1.0, 1.0]),
        "nested": 50,
        "self": 2,
        "by rank": 2,
        "later": 6,
        "chained": 12,
    }


def test_b100_workers_join_and_leave_by_tcp() -> None:
    """B100: those that nobody knows yet introduce themselves with the secret."""
    with nursery() as start, meeting_file() as file:

        def start_by_tcp(function: Callable[..., Any], *args: Any) -> Child:
            return start(networked.by_tcp, function, *args)

        host = start_by_tcp(session.host_an_open_group, file, "second left")
        start_by_tcp(session.visit_an_open_group, "early", file).result()
        for name in ("first", "second"):
            visitor = start_by_tcp(session.visit_an_open_group, name, file)
            _, answers, called = visitor.result()
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


def test_b100_six_workers_join_an_open_group_by_tcp_at_once() -> None:
    """B100: each introduces itself to all others, in any order."""
    with nursery() as start, meeting_file() as file:
        names = [f"w{number}" for number in range(6)]
        group = [
            start(networked.by_tcp, session.join_together, name, file, 6)
            for name in names
        ]
        seen = [child.result() for child in group]
    assert sorted(rank for rank, _ in seen) == list(range(6))
    assert all(found == sorted(names) for _, found in seen)


def test_b100_a_restarted_rank_returns_by_tcp(tmp_path: Path) -> None:
    """RPC-7: it has another key, and the earlier one's is nobody's any more."""
    with nursery() as start, meeting_file() as file:
        group = [
            start(networked.by_tcp, session.see_a_return, rank, 3, file, str(tmp_path))
            for rank in range(3)
        ]
        wait_until(lambda: (tmp_path / "lost").exists(), session.PATIENCE_S)
        again = start(networked.by_tcp, session.come_back, 1, 3, file)
        names, answers = again.result()
        seen = group[0].result()
        group[2].result()
    assert sorted(names) == sorted(answers) == ["w0", "w1", "w2"]
    assert seen["is another"]
    assert (seen["asked by w2"], seen["asks w2"]) == ("w1", "w2")


def test_an_open_group_has_one_secret() -> None:
    """Who comes with another finds out itself, and the others do not notice."""
    with nursery() as start, meeting_file() as file:
        host = start(networked.by_tcp, session.host_an_open_group, file, "visitor left")
        start(networked.by_tcp, session.visit_an_open_group, "early", file).result()
        text, took_s, _ = start(networked.try_to_join_with, OTHER, file).result()
        assert text.startswith("AuthenticationError: the secret of this worker is not")
        assert took_s < LATE_S
        text, _, _ = start(networked.try_to_join_with, None, file).result()
        assert text.startswith("AuthenticationError: this worker has no secret")
        start(networked.by_tcp, session.visit_an_open_group, "visitor", file).result()
        seen, _ = host.result()
    assert seen[-2:] == ["visitor joined", "visitor left"]


# ---- secrets ---------------------------------------------------------------------


@pytest.mark.parametrize("wrong", [0, 2])
def test_b89_a_worker_with_another_secret_finds_out_itself(wrong: int) -> None:
    """B89: within seconds, and the others hear which rank it was.

    Whose secret is wrong is measured by rank 0's.
    """
    given = [SECRET, SECRET, SECRET]
    given[wrong] = OTHER
    differ = {wrong} if wrong else {1, 2}
    seen = run_group(networked.join_with, 3, given)
    finders = set()
    for rank, (text, took_s, _) in enumerate(seen):
        assert took_s < LATE_S
        if text.startswith("AuthenticationError: the secret of rank"):
            finders.add(rank)
            assert f"rank {rank} is not that of rank 0" in text
            assert all(way in text for way in WAYS)
        else:
            assert text.startswith("RendezvousError: the group did not come together")
            assert re.search(f"rank {sorted(differ)}: the secret of rank", text)
    assert finders
    assert finders <= differ, "the second of two may hear of the first before"


@pytest.mark.parametrize("given", [[SECRET, None], [None, SECRET]])
def test_a_worker_without_a_secret_among_those_with_one_is_told(
    given: list[str | None],
) -> None:
    """It is not let in without, and does not wait for the others."""
    (first, _, _), (second, took_s, _) = run_group(networked.join_with, 2, given)
    assert took_s < LATE_S
    assert second.startswith("AuthenticationError: rank 1 has")
    assert all(way in second for way in WAYS)
    assert "rank 1: rank 1 has" in first


def test_secrets_are_found_in_the_environment_and_in_a_file(tmp_path: Path) -> None:
    """Three workers that were given one secret in three ways are one group."""
    path = tmp_path / "secret"
    path.write_text(f"{SECRET}\n")
    path.chmod(0o600)
    given = [{"RPCFUT_SECRET": SECRET}, {"RPCFUT_SECRET_FILE": str(path)}]
    seen = run_group(networked.join_by_environment, 2, given)
    assert [text for text, _, _ in seen] == ["left", "left"]


def test_a_secret_shows_up_in_no_log_and_no_error() -> None:
    """At any level, when all goes well and when it does not."""
    for given in ([SECRET, SECRET], [SECRET, OTHER]):
        for text, _, logged in run_group(networked.join_with, 2, given):
            assert "joined" in logged or "left" not in text
            for hidden in (SECRET, OTHER):
                assert hidden not in text
                assert hidden not in logged


# ---- strangers -------------------------------------------------------------------


@contextmanager
def _lone_worker() -> Iterator[tuple[str, str, str, int]]:
    """A worker that strangers attack, and where it is; it ends with the context."""
    ours, theirs = multiprocessing.get_context("forkserver").Pipe()
    with closing(ours), children(networked.serve_until_told, 1, theirs) as group:
        theirs.close()
        assert ours.poll(30)
        try:
            yield ours.recv()
        finally:
            ours.send("enough")
            alive, executed = group[0].result()
        assert alive == "mine"
        assert executed == ["mine"], "a stranger's call was executed"


def _call(incarnation: int) -> bytes:
    """A call that would be executed, if it came from the worker itself."""
    name = "tests.support.networked:execute"
    request = encode_plain_request(name, ["stranger's"], None)
    assert request is not None
    header = Header(Kind.CALL, 7, 0, incarnation, incarnation, None, 0)
    return encode_header(header) + bytes(request[0])


def _stranger(stack: ExitStack) -> zmq.Socket[bytes]:
    context = stack.enter_context(zmq.Context())
    context.linger = 0
    return stack.enter_context(context.socket(zmq.PUSH))


def test_the_call_of_these_tests_would_be_executed() -> None:
    """By file, as the same user, it is: what follows proves something then."""
    with (  # noqa: PT012 - the end of the worker is what raises
        pytest.raises(AssertionError, match="a stranger's call was executed"),
        _lone_worker() as (address, _, _, incarnation),
        ExitStack() as stack,
    ):
        push = _stranger(stack)
        push.connect(address)
        push.send(_call(incarnation))
        push.linger = 5000


@pytest.mark.parametrize("encrypts", [False, True])
def test_b90_a_stranger_s_call_is_not_executed(*, encrypts: bool) -> None:
    """B90: neither in plain words nor with a key of its own."""
    with _lone_worker() as (_, tcp, key, incarnation), ExitStack() as stack:
        push = _stranger(stack)
        if encrypts:
            push.curve_serverkey = key.encode()
            push.curve_publickey, push.curve_secretkey = zmq.curve_keypair()
        push.connect(tcp)
        push.send(_call(incarnation))
        push.linger = 1000  # as long as it may take


class Bomb:
    """Leaves a file behind when it is unpickled."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[object, ...]:
        return os.mkdir, (str(self.path),)


def test_b136_pickles_and_noise_run_nothing_and_kill_nobody(tmp_path: Path) -> None:
    """B136: sent to the port, and as messages of one who may speak."""
    trace = tmp_path / "trace"
    bomb = pickle.dumps(Bomb(trace))
    with _lone_worker() as (address, tcp, _, incarnation), ExitStack() as stack:
        for _ in range(20):
            with socket.create_connection(parse_tcp_address(tcp)) as raw:
                raw.sendall(bomb + secrets.token_bytes(1000))
        push = _stranger(stack)
        push.connect(address)
        header = encode_header(
            Header(Kind.CALL, 7, 0, incarnation, incarnation, None, 0)
        )
        reply = encode_header(
            Header(Kind.ERROR, 7, 0, incarnation, incarnation, None, 0)
        )
        for first in (bomb, header + bomb, reply + bomb):
            push.send(first)
            push.send(first + secrets.token_bytes(100))
            push.send_multipart([first, bomb])
        for _ in range(100):
            push.send(secrets.token_bytes(200))
            push.send(header + secrets.token_bytes(200))
        push.linger = 5000
    assert not trace.exists()


def _place() -> str:
    with socket.create_server(("127.0.0.1", 0)) as probe:
        return f"tcp://127.0.0.1:{probe.getsockname()[1]}"


@needs_root
def test_another_user_does_not_join() -> None:
    """Neither side takes the other: whose folders are whose is checked by both."""
    first, second = run_group(networked.join_as_user, 2, _place(), 12345)
    for text, _, _ in (first, second):
        assert text.startswith("RendezvousError")
        assert re.search("belongs to (user|another user)", text)


@needs_root
def test_two_users_with_one_secret_join_by_tcp() -> None:
    """They share no folder, so each is to the other as if on another host."""
    seen = run_group(networked.join_as_user, 2, _place(), 12345, SECRET)
    assert [text for text, _, _ in seen] == ["left", "left"]


@needs_root
def test_the_user_of_nobody_does_not_join() -> None:
    """65534 stands for every user without an id, so it is nobody's."""
    first, second = run_group(networked.join_as_user, 2, _place(), 65534)
    assert second[0].startswith(
        "RendezvousError: worker 'w1' cannot join: user id 65534"
    )
    assert "rank 1: user id 65534" in first[0]


_CALL_AS = """
import os, sys, zmq
os.setgid(65534); os.setuid(65534)
with zmq.Context() as context, context.socket(zmq.PUSH) as push:
    push.connect(sys.argv[1])
    push.send(bytes.fromhex(sys.argv[2]))
    push.linger = 500
"""


@needs_root
@pytest.mark.parametrize("is_open", [False, True])
def test_a_call_of_another_user_is_not_executed(*, is_open: bool) -> None:
    """Nor if it could enter the folder: the kernel is asked who it is."""
    with _lone_worker() as (address, _, _, incarnation):
        path = Path(address.removeprefix("ipc://"))
        if is_open:
            path.chmod(0o777)
            for folder in path.parents[:-2]:
                folder.chmod(0o755)
        subprocess.run(
            [sys.executable, "-c", _CALL_AS, address, _call(incarnation).hex()],
            check=True,
            timeout=30,
        )


# ---- hosts -----------------------------------------------------------------------


@pytest.fixture(scope="module")
def cable() -> Iterator[Cable]:
    """Two hosts for all tests of this module."""
    with two_hosts() as found:
        yield found


def _meet(cable: Cable, init_method: str, **options: Any) -> list[Any]:
    return run_group(networked.be_a_host, 2, cable.names, init_method, options)


@needs_hosts
@pytest.mark.parametrize("version", [4, 6])
def test_b91_two_hosts_call_each_other(cable: Cable, version: int) -> None:
    """B91: each listens at the address that leads to where they meet."""
    host = cable.address(0, version)
    place = f"tcp://[{host}]:29600" if version == 6 else f"tcp://{host}:29600"
    with cable.overhear(0) as heard:
        seen = _meet(cable, place, secret=SECRET)
    for rank, (address, key) in enumerate(seen):
        assert parse_tcp_address(address)[0] == cable.address(1 - rank, version)
        assert len(key) == 40
    said = b"".join(heard)
    assert len(said) > len(PLAIN) * 10_000, "much of what was said was heard"
    for hidden in (PLAIN[:30], b"remote:echo", SECRET.encode()):
        assert hidden not in said


@needs_hosts
def test_two_hosts_without_a_secret_are_told_the_three_ways_out(cable: Cable) -> None:
    """Nothing has listened for the other then."""
    seen = _meet(cable, f"tcp://{cable.address(0)}:29601")
    assert all(text.startswith("RendezvousError") for text in seen)
    # The first one to find out may take the store with it.
    text = next(text for text in seen if "is on another host than" in text)
    assert all(way in text for way in WAYS)


@needs_hosts
def test_b94_hosts_whose_names_lead_to_127_0_1_1_still_connect(cable: Cable) -> None:
    """B94: each host's file says that of its own name."""
    hosts = [
        {"localhost": "127.0.0.1", "node0": "127.0.1.1"},
        {"localhost": "127.0.0.1", "node1": "127.0.1.1", "node0": cable.address(0)},
    ]
    seen = _meet(cable, "tcp://node0:29602", secret=SECRET, hosts=hosts)
    addresses = [parse_tcp_address(address)[0] for address, _ in seen]
    assert addresses == [cable.address(1), cable.address(0)]


@needs_hosts
def test_b91_a_host_that_has_a_name_of_version_6_only(cable: Cable) -> None:
    """B91: an AAAA record, and nothing else."""
    hosts = [{"localhost": "::1", "node0": cable.address(0, 6)}] * 2
    seen = _meet(cable, "tcp://node0:29603", secret=SECRET, hosts=hosts)
    addresses = [parse_tcp_address(address)[0] for address, _ in seen]
    assert addresses == [cable.address(1, 6), cable.address(0, 6)]


@needs_hosts
def test_b94_an_address_that_only_its_own_host_reaches_is_named(cable: Cable) -> None:
    """B94: both addresses, and what to set."""
    place = f"tcp://{cable.address(0)}:29604"
    seen = _meet(cable, place, secret=SECRET, interface="lo")
    assert all(text.startswith("RendezvousError") for text in seen)
    text = next(text for text in seen if "are on two hosts" in text)
    assert text.count("tcp://127.0.0.1:") == 2
    assert "init_rpc(interface=...)" in text


@needs_hosts
def test_b102_every_listener_stays_in_the_range(cable: Cable) -> None:
    """B102: the ports that were opened between two hosts are the ones used."""
    place = f"tcp://{cable.address(0)}:29605"
    seen = _meet(cable, place, secret=SECRET, ports=(29700, 29701), interface="eth0")
    for address, _ in seen:
        assert parse_tcp_address(address)[1] in {29700, 29701}
