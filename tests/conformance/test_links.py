"""What every link promises, and what an endpoint promises on every link."""

from __future__ import annotations

import multiprocessing
import os
import stat
import subprocess
import sys
import tempfile
import threading
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from rpcfut_transport import (
    ClosedError,
    Kind,
    Link,
    LinkError,
    LocalProtocolError,
    PeerLost,
    UnknownPeer,
    ZmqLink,
)
from rpcfut_transport.links._zmq import _to_ms
from tests.support.links import (
    PATIENCE_S,
    EchoHandler,
    RecordingHandler,
    RecordingSink,
    serve_until_told,
    start_endpoint,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from rpcfut_transport import PeerRecord

BIG_NBYTES = 8 << 20


def _receive(link: Link) -> list[bytes | memoryview]:
    frames = link.receive(PATIENCE_S)
    assert frames is not None, "nothing came"
    return frames


def test_messages_of_a_sender_arrive_in_order(pair: tuple[Link, Link]) -> None:
    """A goodbye never overtakes an answer."""
    sender, receiver = pair
    for number in range(1000):
        sender.send(1, [b"%d" % number, b"x" * (number % 7)])
    for number in range(1000):
        assert _receive(receiver) == [b"%d" % number, b"x" * (number % 7)]


def test_frames_have_the_promised_types(pair: tuple[Link, Link]) -> None:
    """The first is bytes; buffers can be written to and outlive the rest."""
    sender, receiver = pair
    sender.send(1, [memoryview(b"first"), b"ab", bytearray(BIG_NBYTES)])
    first, small, big = _receive(receiver)
    assert type(first) is bytes
    for buffer in (small, big):
        assert isinstance(buffer, memoryview)
        assert not buffer.readonly
    small[0] = big[-1] = ord("z")
    assert (bytes(small), big[-1], big.nbytes) == (b"zb", ord("z"), BIG_NBYTES)


def test_empty_frames_are_frames(pair: tuple[Link, Link]) -> None:
    """An empty tensor has an empty buffer."""
    sender, receiver = pair
    sender.send(1, [b""])
    sender.send(1, [b"", b"", bytearray()])
    assert _receive(receiver) == [b""]
    assert _receive(receiver) == [b"", b"", b""]


def test_big_frames_arrive_whole(pair: tuple[Link, Link]) -> None:
    """Also as the first, of many, and of items that are no bytes."""
    sender, receiver = pair
    data = os.urandom(BIG_NBYTES)
    sender.send(1, [data, memoryview(data).cast("d"), b"", data[:100_000]])
    assert _receive(receiver) == [data, data, b"", data[:100_000]]


def test_a_sender_may_write_to_a_small_buffer_after_sending(
    pair: tuple[Link, Link],
) -> None:
    """The receiver sees what was there at the call."""
    sender, receiver = pair
    head, tail = bytearray(b"a" * 100), bytearray(b"b" * 65_535)
    sender.send(1, [head, memoryview(tail)])
    head[:] = b"X" * 100
    tail[:] = b"X" * 65_535
    assert _receive(receiver) == [b"a" * 100, b"b" * 65_535]


def test_a_big_buffer_lives_until_it_is_sent(pair: tuple[Link, Link]) -> None:
    """The sender may forget it at once."""
    sender, receiver = pair
    for number in range(20):
        sender.send(1, [b"", bytearray([number]) * 1_000_000])
    for number in range(20):
        assert _receive(receiver)[1] == bytes([number]) * 1_000_000


def test_a_receiver_does_not_see_into_the_sender(pair: tuple[Link, Link]) -> None:
    """Writing to what came changes nothing over there, also to oneself."""
    _, receiver = pair
    receiver.connect(0, receiver.address)
    data = bytearray(b"abc")
    receiver.send(0, [b"", data])
    buffer = _receive(receiver)[1]
    assert isinstance(buffer, memoryview)
    buffer[0] = ord("X")
    assert data == b"abc"


def test_nothing_came_is_none_after_the_timeout(pair: tuple[Link, Link]) -> None:
    """Also with no time to wait at all, or a fraction of a millisecond."""
    assert pair[1].receive(0) is None
    assert pair[1].receive(0.0001) is None


def test_wake_ends_the_current_or_the_next_receive(pair: tuple[Link, Link]) -> None:
    """It cannot come too early, and drops no message."""
    sender, receiver = pair
    receiver.wake()
    assert receiver.receive(None) is None
    entered = threading.Event()
    got: list[object] = []

    def read() -> None:
        entered.set()
        got.append(receiver.receive(PATIENCE_S))

    reader = threading.Thread(target=read)
    reader.start()
    assert entered.wait(PATIENCE_S)
    receiver.wake()
    reader.join(PATIENCE_S)
    assert got == [None]
    sender.send(1, [b"after"])
    assert _receive(receiver) == [b"after"]


def test_close_ends_a_receive_and_may_be_repeated(pair: tuple[Link, Link]) -> None:
    """The reader is never left inside a socket that is closed."""
    sender, receiver = pair
    entered = threading.Event()
    ends: list[object] = []

    def read() -> None:
        entered.set()
        try:
            while True:
                ends.append(receiver.receive(None))
        except ClosedError as error:
            ends.append(error)

    reader = threading.Thread(target=read)
    reader.start()
    assert entered.wait(PATIENCE_S)
    receiver.close()
    receiver.close()
    reader.join(PATIENCE_S)
    assert isinstance(ends[-1], ClosedError)
    receiver.wake()
    sender.send(1, [b"nobody reads this"])
    sender.close()


def test_a_closed_link_refuses_everything(pair: tuple[Link, Link]) -> None:
    """The error says that it was you."""
    sender, receiver = pair
    sender.close()
    with pytest.raises(ClosedError, match=sender.address):
        sender.send(1, [b""])
    with pytest.raises(ClosedError):
        sender.receive(0)
    with pytest.raises(ClosedError):
        sender.connect(2, receiver.address)
    sender.disconnect(1)


def test_a_rank_must_be_connected(pair: tuple[Link, Link]) -> None:
    """Before, and no longer after it was disconnected."""
    sender, _ = pair
    with pytest.raises(UnknownPeer, match=r"known ranks: \[1\]"):
        sender.send(2, [b""])
    sender.disconnect(1)
    sender.disconnect(1)
    with pytest.raises(UnknownPeer):
        sender.send(1, [b""])


def test_a_rank_can_be_connected_elsewhere(
    pair: tuple[Link, Link], make_link: Callable[[], Link]
) -> None:
    """A restarted peer has another address."""
    sender, receiver = pair
    other = make_link()
    sender.connect(1, other.address)
    sender.send(1, [b"for the new one"])
    assert _receive(other) == [b"for the new one"]
    assert receiver.receive(0) is None


def test_what_is_no_frame_is_refused_and_nothing_is_sent(
    pair: tuple[Link, Link],
) -> None:
    """Half a message would be joined with the next one."""
    sender, receiver = pair
    with pytest.raises(LocalProtocolError):
        sender.send(1, [b"half", memoryview(b"abcd")[::2]])
    sender.send(1, [b"whole"])
    assert _receive(receiver) == [b"whole"]


def test_a_sender_does_not_wait_for_a_reader(pair: tuple[Link, Link]) -> None:
    """A peer that reads nothing delays nobody."""
    sender, receiver = pair
    for _ in range(20_000):
        sender.send(1, [b"x" * 200])
    assert _receive(receiver) == [b"x" * 200]


def test_no_message_of_eight_threads_is_lost_or_mixed(pair: tuple[Link, Link]) -> None:
    """Any thread may send; each one's messages keep their order."""
    sender, receiver = pair

    def send(name: int) -> None:
        for number in range(1000):
            sender.send(1, [b"%d" % name, b"%d" % number, b"%d" % name])

    threads = [threading.Thread(target=send, args=(name,)) for name in range(8)]
    for thread in threads:
        thread.start()
    seen: dict[bytes, list[int]] = {}
    for _ in range(8000):
        name, number, again = _receive(receiver)
        assert name == again
        seen.setdefault(bytes(name), []).append(int(bytes(number)))
    for thread in threads:
        thread.join(PATIENCE_S)
    assert seen == {b"%d" % name: list(range(1000)) for name in range(8)}


def test_the_repr_says_state_and_count(pair: tuple[Link, Link]) -> None:
    """A log line says how things stand."""
    sender, _ = pair
    kind = type(sender).__name__
    assert repr(sender) == f"<{kind} {sender.address!r} open peers=1>"
    sender.close()
    assert f"{sender.address!r} closed" in repr(sender)


@pytest.mark.parametrize("address", ["", "nonsense", "memory://99", "ipc:///no/inbox"])
def test_an_address_that_leads_nowhere_is_refused(
    make_link: Callable[[], Link], address: str
) -> None:
    """When connecting, not by a hang later."""
    with pytest.raises(LinkError):
        make_link().connect(1, address)


@contextmanager
def _zmq_link() -> Iterator[ZmqLink]:
    link = ZmqLink()
    try:
        yield link
    finally:
        link.close()


def _folder(link: ZmqLink) -> Path:
    return Path(link.address.removeprefix("ipc://")).parent


def test_only_our_user_can_enter_the_folder_and_it_goes_with_the_link() -> None:
    """Nobody else reaches the socket, and nothing is left (RPC-10)."""
    with _zmq_link() as link:
        folder = _folder(link)
        assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    assert not folder.exists()


def test_a_folder_that_others_may_enter_is_not_trusted() -> None:
    """A stranger may have put a socket there (RPC-10)."""
    with _zmq_link() as victim, _zmq_link() as link:
        _folder(victim).chmod(0o750)
        with pytest.raises(LinkError, match="mode 0o750; wanted user"):
            link.connect(1, victim.address)


@pytest.mark.skipif(os.getuid() != 0, reason="only root can give a folder away")
def test_a_folder_of_another_user_is_not_trusted() -> None:
    """A record in the store cannot lead us to a stranger's socket (RPC-10)."""
    with _zmq_link() as victim, _zmq_link() as link:
        os.chown(_folder(victim), 12345, -1)
        with pytest.raises(LinkError, match="belongs to user 12345"):
            link.connect(1, victim.address)


def test_a_link_to_a_folder_is_not_followed() -> None:
    """What it points to may change after the check (RPC-10)."""
    with _zmq_link() as victim, _zmq_link() as link, ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        (folder / "link").symlink_to(_folder(victim))
        with pytest.raises(LinkError, match="cannot open the folder"):
            link.connect(1, f"ipc://{folder}/link/inbox")


def test_moving_the_folder_after_the_check_changes_nothing() -> None:
    """The way leads to what was checked, not to what has its name now (RPC-10)."""
    with _zmq_link() as victim, _zmq_link() as thief, _zmq_link() as link:
        folder, stolen = _folder(victim), _folder(thief)
        away = folder.with_name("away")
        link.connect(1, victim.address)
        folder.rename(away)
        stolen.rename(folder)
        link.send(1, [b"secret"])
        assert _receive(victim) == [b"secret"]
        assert thief.receive(0) is None
        folder.rename(stolen)
        away.rename(folder)


@pytest.mark.parametrize(
    "address",
    [
        "tcp://127.0.0.1:1",
        "ipc://@abstract/inbox",
        "ipc://relative/inbox",
        "inproc://x",
    ],
)
def test_only_paths_are_addresses(address: str) -> None:
    """No record in the store makes us talk to another host (RPC-10)."""
    with _zmq_link() as link, pytest.raises(LinkError, match="wanted 'ipc:///"):
        link.connect(1, address)


_CONNECT_AS = """
import os, socket, sys
os.setuid(int(sys.argv[2]))
with socket.socket(socket.AF_UNIX) as s:
    s.settimeout(10)
    s.connect(sys.argv[1])
    try:
        print(len(s.recv(1)))
    except ConnectionResetError:
        print(0)
"""


def _greeting_nbytes(link: ZmqLink, user: int) -> int:
    """Connect as a user; return how much the link says to it before it hangs up."""
    path = link.address.removeprefix("ipc://")
    done = subprocess.run(
        [sys.executable, "-S", "-c", _CONNECT_AS, path, str(user)],
        check=True,
        capture_output=True,
        timeout=PATIENCE_S,
    )
    return int(done.stdout)


@pytest.mark.skipif(os.getuid() != 0, reason="only root can become another user")
def test_the_inbox_asks_the_kernel_who_connects(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Another user is not heard, even if it could enter the folder (RPC-10)."""
    monkeypatch.setattr(tempfile, "tempdir", "/tmp")
    with _zmq_link() as link:
        _folder(link).chmod(0o755)
        Path(link.address.removeprefix("ipc://")).chmod(0o777)
        assert _greeting_nbytes(link, os.getuid()) == 1
        assert _greeting_nbytes(link, 12345) == 0


@pytest.mark.parametrize(
    ("timeout_s", "ms"), [(0.0, 0), (-1.0, 0), (0.0101, 11), (1e12, 2**31 - 1)]
)
def test_a_wait_does_not_end_before_its_deadline(timeout_s: float, ms: int) -> None:
    """The reader would come back again and again until it is over."""
    assert _to_ms(timeout_s) == ms


def test_a_path_that_is_too_long_says_what_to_set(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The limit is the kernel's, the folder is the user's."""
    monkeypatch.setattr(tempfile, "tempdir", "/tmp/" + "x" * 100)
    with pytest.raises(LinkError, match="set XDG_RUNTIME_DIR or TMPDIR"):
        ZmqLink()


def test_a_runtime_folder_of_ours_is_used(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is made for sockets; one that is missing is not."""
    with tempfile.TemporaryDirectory() as folder:
        monkeypatch.setenv("XDG_RUNTIME_DIR", folder)
        with _zmq_link() as link:
            assert _folder(link).parent == Path(folder)
        monkeypatch.setenv("XDG_RUNTIME_DIR", f"{folder}/missing")
        with _zmq_link() as link:
            assert _folder(link).parent == Path(tempfile.gettempdir())


def test_the_user_id_of_nobody_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """It stands for every user that has no id here (RPC-10)."""
    monkeypatch.setattr(os, "getuid", lambda: 65534)
    with pytest.raises(LinkError, match="a user id of your own"):
        ZmqLink()


def test_two_endpoints_call_each_other_and_themselves(
    make_link: Callable[[], Link],
) -> None:
    """Calls and buffers arrive as they were."""
    first = start_endpoint(0, make_link(), EchoHandler())
    second = start_endpoint(1, make_link(), EchoHandler())
    try:
        for endpoint in (first, second):
            endpoint.add_peer(first.record)
            endpoint.add_peer(second.record)
        for caller, rank in ((first, 0), (first, 1), (second, 0)):
            sink = RecordingSink()
            call_id = caller.open_call(rank, 60.0, sink)
            caller.send_call(call_id, b"body", [b"", b"small", bytes(BIG_NBYTES)])
            expected = (b"body", [b"", b"small", bytes(BIG_NBYTES)])
            assert sink.wait() == ("result", expected)
    finally:
        first.close()
        second.close()


def test_a_short_timeout_wakes_a_reader_that_sleeps_longer(
    make_link: Callable[[], Link],
) -> None:
    """A deadline is not seen only when the next message comes (RPC-2)."""
    endpoint = start_endpoint(0, make_link(), RecordingHandler())
    try:
        endpoint.add_peer(endpoint.record)
        endpoint.open_call(0, 3600.0, RecordingSink())
        endpoint.open_call(0, None, RecordingSink())
        sink = RecordingSink()
        endpoint.open_call(0, 0.01, sink)
        assert sink.wait()[0] == "timeout"
        assert endpoint.pending_count == 2
    finally:
        endpoint.close()


def test_answers_that_race_with_deadlines_end_each_call_once(
    make_link: Callable[[], Link],
) -> None:
    """Eight threads, timeouts of the length of a round trip."""
    endpoint = start_endpoint(0, make_link(), EchoHandler())
    try:
        endpoint.add_peer(endpoint.record)
        sinks: list[list[RecordingSink]] = [[] for _ in range(8)]

        def call(mine: list[RecordingSink]) -> None:
            for number in range(200):
                mine.append(RecordingSink())
                call_id = endpoint.open_call(0, number % 10 * 1e-4, mine[-1])
                endpoint.send_call(call_id, b"x")

        threads = [threading.Thread(target=call, args=(mine,)) for mine in sinks]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(PATIENCE_S)
        ends = [sink.wait()[0] for mine in sinks for sink in mine]
        assert set(ends) <= {"result", "timeout"}
    finally:
        endpoint.close()
    assert all(len(sink.ends) == 1 for mine in sinks for sink in mine)


@contextmanager
def _worker(
    rank: int, others: list[PeerRecord], *, echoes: bool
) -> Iterator[
    tuple[PeerRecord, multiprocessing.process.BaseProcess, Callable[[], None]]
]:
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    process = context.Process(
        target=serve_until_told, args=(theirs, rank, others), kwargs={"echoes": echoes}
    )
    process.start()
    try:
        assert ours.poll(PATIENCE_S)
        yield ours.recv(), process, lambda: ours.send("done")
    finally:
        if process.is_alive():
            ours.send("done")
        process.join(PATIENCE_S)
        ours.close()
        theirs.close()


@pytest.mark.timeout(60)
def test_calls_to_a_killed_worker_fail_at_once_and_others_do_not() -> None:
    """SIGKILL, with calls that it never answers (RPC-7)."""
    handler = RecordingHandler()
    endpoint = start_endpoint(0, ZmqLink(), handler)
    try:
        with (
            _worker(1, [endpoint.record], echoes=False) as (victim, process, _),
            _worker(2, [endpoint.record], echoes=True) as (other, _, _),
        ):
            endpoint.add_peer(victim)
            endpoint.add_peer(other)
            sinks = [RecordingSink() for _ in range(10)]
            for sink in sinks:
                endpoint.send_call(endpoint.open_call(1, None, sink), b"wait")
            process.kill()
            for sink in sinks:
                how, error = sink.wait()
                assert how == "lost"
                assert isinstance(error, PeerLost)
                assert error.reason == f"its process {victim.pid} ended"
            assert handler.losses.get(timeout=PATIENCE_S)[0] == 1
            with pytest.raises(PeerLost):
                endpoint.open_call(1, None, RecordingSink())
            sink = RecordingSink()
            endpoint.send_call(endpoint.open_call(2, None, sink), b"hello")
            assert sink.wait() == ("result", (b"hello", []))
            assert all(len(sink.ends) == 1 for sink in sinks)
        # A killed process cannot remove its folder; whoever closes next does.
    finally:
        endpoint.close()


@pytest.mark.timeout(60)
def test_a_cancel_reaches_a_worker_in_another_process() -> None:
    """Notices travel as calls do, and the worker goes on serving."""
    endpoint = start_endpoint(0, ZmqLink(), RecordingHandler())
    try:
        with _worker(1, [endpoint.record], echoes=True) as (record, _, _):
            endpoint.add_peer(record)
            assert endpoint.send_notice(1, Kind.READY)
            sink = RecordingSink()
            endpoint.send_call(endpoint.open_call(1, 60.0, sink), b"x" * 100_000)
            assert sink.wait() == ("result", (b"x" * 100_000, []))
    finally:
        endpoint.close()
