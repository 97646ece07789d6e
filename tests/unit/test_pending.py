"""What is pending: what a report says, how it is printed, sent, and asked for."""

from __future__ import annotations

import contextlib
import faulthandler
import json
import os
import signal
import socket
import stat
import tempfile
import threading
from dataclasses import asdict, replace
from pathlib import Path

import pytest

import rpcfut
from rpcfut import _control, _control_client
from rpcfut.__main__ import NOT_REACHED, NOTHING_PENDING, SOMETHING_PENDING, main
from rpcfut._control import ControlServer
from rpcfut._control_client import Asked, ask
from rpcfut._exposed import ExposedTable
from rpcfut._pending import CallHere, MadeCall, Peer, PendingReport, fitting
from rpcfut._secret import find_secret
from rpcfut.testing import local_cluster
from tests.support import remote
from tests.support.threads import Gate, wait_until

MADE = MadeCall(
    to="w1", function="m:f", age_s=12.34, left_s=None, stage="sent", site="t.py:3"
)
HERE = CallHere(
    caller="w2",
    function="m:g",
    age_s=0.0,
    left_s=5,
    stage="queued, since 0.0 s",
    thread="",
    at="",
)
PEER = Peer(
    name="w1",
    rank=1,
    state="alive",
    reason="",
    open_calls=1,
    queued_nbytes=2048,
    seen_s=1.0,
)
REPORT = PendingReport(
    worker="w0",
    rank=0,
    pid=77,
    state="running",
    threads="<ThreadPool>",
    made_count=1,
    served_count=1,
    peer_count=1,
    made=[MADE],
    served=[HERE],
    peers=[PEER],
)
QUIET = replace(REPORT, made_count=0, served_count=0, made=[], served=[])
TEXT = """\
worker w0 (rank 0, process 77), running: 1 made and 1 served calls are pending
  made, oldest first:
    TO  FUNCTION  AGE     LEFT  STAGE  CALLED AT
    w1  m:f       12.3 s  -     sent   t.py:3
  served, oldest first:
    FROM  FUNCTION  AGE    LEFT   STAGE                THREAD  WHERE THAT IS
    w2    m:g       0.0 s  5.0 s  queued, since 0.0 s  -       -
  threads: <ThreadPool>
  peers:
    NAME  RANK  OPEN CALLS  QUEUED   LAST SEEN  STATE
    w1    1     1           2.0 KiB  1.0 s ago  alive"""


# ---- the text -----------------------------------------------------------------------


def test_a_report_is_printed_as_tables() -> None:
    assert str(REPORT) == TEXT


def test_a_report_without_calls_shows_who_is_there() -> None:
    assert QUIET.is_empty
    assert [line.strip().split()[0] for line in str(QUIET).splitlines()] == [
        "worker",
        "threads:",
        "peers:",
        "NAME",
        "w1",
    ]


def test_a_cut_table_says_so() -> None:
    cut = replace(REPORT, made_count=20_000)
    assert "  made, oldest first (1 of 20000):" in str(cut)


@pytest.mark.parametrize(
    "name", ["\x1b[2Jm:f", "m\n:f", "m:\u202ef", "m:\ud800f", "m\x00"]
)
def test_names_cannot_repaint_a_terminal(name: str) -> None:
    """Names come from peers; each stays on its line, in plain characters."""
    nasty = replace(
        REPORT,
        worker=name,
        made=[replace(MADE, function=name, site=name, stage=name, to=name)],
        served=[replace(HERE, function=name, caller=name, at=name)],
        peers=[replace(PEER, name=name, reason=name)],
    )
    text = str(nasty)
    assert len(text.splitlines()) == len(TEXT.splitlines())
    assert all(c.isprintable() or c == "\n" for c in text)
    text.encode()  # prints on any terminal


# ---- as bytes -----------------------------------------------------------------------


def test_a_report_comes_back_as_it_was() -> None:
    assert PendingReport.from_json(REPORT.to_json()) == REPORT


def test_a_report_stays_small_whatever_is_in_it() -> None:
    """At most a few hundred kilobytes, of 20,000 calls with nasty names, too."""
    rows = fitting(
        replace(MADE, function="\U0001f680" * 300, site=f"{i}") for i in range(20_000)
    )
    assert 10 < len(rows) < 1000
    assert [row.site for row in rows[:3]] == ["0", "1", "2"]
    full = replace(
        REPORT,
        made=rows,
        served=fitting(HERE for _ in range(20_000)),
        peers=fitting(PEER for _ in range(20_000)),
    )
    assert len(full.to_json()) < 250_000


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"[]",
        b"null",
        b"7",
        b"\xff\xfe",
        b"[" * 100_000,
        b"{}",
        REPORT.to_json()[:-9],
        json.dumps({**asdict(REPORT), "made": 3}).encode(),
        json.dumps({**asdict(REPORT), "made": [[]]}).encode(),
        json.dumps({**asdict(REPORT), "rank": "x"}).encode(),
        json.dumps({**asdict(REPORT), "more": 1}).encode(),
        json.dumps(
            {**asdict(REPORT), "made": [{**asdict(MADE), "age_s": "x"}]}
        ).encode(),
        json.dumps(
            {**asdict(REPORT), "made": [{**asdict(MADE), "left_s": True}]}
        ).encode(),
    ],
)
def test_what_is_no_report_is_refused(data: bytes) -> None:
    with pytest.raises(ValueError):  # noqa: PT011 - of json, of unicode or ours
        PendingReport.from_json(data)


# ---- of an agent --------------------------------------------------------------------


def test_an_agent_says_what_it_made_and_serves_but_no_values() -> None:
    go = Gate()

    def hold(secret: str) -> None:
        go.pass_through()

    table = ExposedTable()
    table.expose(hold, name="hold")
    with local_cluster("alice", "bob", exposed=table) as (alice, bob):
        held = alice.rpc_async("bob", "hold", ("hush-hush",), timeout=500)
        wait_until(lambda: "running, since" in str(bob.pending()))
        made = alice.pending()
        served = bob.pending()
        go.set()
        held.wait(10)
        wait_until(lambda: alice.pending().is_empty and bob.pending().is_empty)
    (call,) = made.made
    assert (call.to, call.function, call.stage) == ("bob", "hold", "sent")
    assert call.site.startswith(f"{__file__}:")
    assert 400 < call.left_s <= 500
    assert (made.made_count, made.served_count) == (1, 0)
    assert [(peer.name, peer.open_calls) for peer in made.peers] == [
        ("alice", 0),
        ("bob", 1),
    ]
    (here,) = served.served
    assert (here.caller, here.function) == ("alice", "hold")
    assert here.stage.startswith("running, since")
    assert here.thread.startswith("rpcfut-serve-bob")
    assert here.at.startswith(f"{Path(__file__).parents[1] / 'support/threads.py'}:")
    assert (served.worker, served.rank, served.pid) == ("bob", 1, os.getpid())
    assert "hush-hush" not in str(made) + str(served)
    assert "hush-hush" not in (made.to_json() + served.to_json()).decode()


def test_what_the_callee_said_last_is_told() -> None:
    table = ExposedTable()
    table.expose(remote.never)
    with local_cluster("alice", "bob", exposed=table) as (alice, _):
        call = alice.rpc_async("bob", remote.never)
        wait_until(lambda: "returned a future" in call.explain())
        (made,) = alice.pending().made
        call.cancel()
    assert "sent; 0." in made.stage
    assert "it was there: its function returned a future" in made.stage


def test_looking_takes_no_lock() -> None:
    """So it works while somebody hangs with one."""
    table = ExposedTable()
    table.expose(remote.never)
    with local_cluster("alice", "bob", exposed=table) as (alice, bob):
        call = alice.rpc_async("bob", remote.never)
        wait_until(lambda: bob.pending().served_count == 1)
        with alice._endpoint._ledger._lock, bob._endpoint._ledger._lock:
            assert alice.pending().made_count == 1
            assert bob.pending().served_count == 1
        call.cancel()


# ---- the socket ---------------------------------------------------------------------


@pytest.fixture
def path():
    with tempfile.TemporaryDirectory(prefix="c") as folder:
        yield f"{folder}/ctrl"


@pytest.fixture
def server(path):
    server = ControlServer("w0", path, REPORT.to_json)
    yield server
    server.close()


def connect(path: str) -> socket.socket:
    connection = socket.socket(socket.AF_UNIX)
    connection.connect(path)
    connection.settimeout(10)
    return connection


def read_all(connection: socket.socket) -> bytes:
    with connection:
        return b"".join(iter(lambda: connection.recv(65536), b""))


def test_who_connects_gets_the_report(server, path) -> None:
    for _ in range(3):
        asked = ask(path, 10)
        assert asked is not None
        assert asked.report == REPORT
        assert asked.pid == os.getpid()
    assert "open clients=0" in repr(server)


@pytest.mark.parametrize("garbage", [b"\x00" * 100_000, b"GET / HTTP/1.1\r\n\r\n"])
def test_what_a_client_says_is_never_read(server, path, garbage: bytes) -> None:
    """It may say anything, and close or not; the next one is answered."""
    rude = [connect(path) for _ in range(20)]
    for connection in rude:
        connection.settimeout(0)
        with contextlib.suppress(OSError):  # it was answered and closed before
            connection.send(garbage)
    asked = ask(path, 10)
    assert asked is not None
    assert asked.report == REPORT
    for connection in rude:
        connection.close()


def test_a_client_that_does_not_read_blocks_nobody(path, monkeypatch) -> None:
    """Nor do many of them, nor closing."""
    monkeypatch.setattr(_control, "_CLIENT_S", 1000.0)
    large = replace(REPORT, made=[MADE] * 5000)  # more than a socket takes at once
    data = large.to_json()
    server = ControlServer("w0", path, lambda: data)
    idle = [connect(path) for _ in range(20)]
    asked = ask(path, 10)
    assert asked is not None
    assert asked.report == large
    assert len(server._clients) <= _control._MAX_CLIENTS
    assert PendingReport.from_json(read_all(idle.pop())) == large
    server.close()
    assert not server._thread.is_alive()
    for connection in idle:
        connection.close()


def test_a_client_that_reads_too_slowly_is_dropped(path, monkeypatch) -> None:
    monkeypatch.setattr(_control, "_CLIENT_S", 0.05)
    server = ControlServer("w0", path, lambda: b"x" * 10_000_000)
    with connect(path) as idle:
        wait_until(lambda: "clients=1" in repr(server))
        wait_until(lambda: "clients=0" in repr(server))
        assert 0 < len(read_all(idle)) < 10_000_000
    server.close()


def test_another_user_gets_nothing(server, path, monkeypatch) -> None:
    """The kernel says who connects; the folder's mode is not all that protects it."""
    monkeypatch.setattr(_control, "peer_process", lambda _: (1, os.getuid() + 1))
    assert read_all(connect(path)) == b""


def test_a_socket_of_another_user_is_not_believed(server, path, monkeypatch) -> None:
    monkeypatch.setattr(_control_client, "peer_process", lambda _: (1, os.getuid() + 1))
    asked = ask(path, 10)
    assert asked is not None
    assert asked.report is None
    assert "listens there" in asked.trouble


def test_a_report_that_fails_is_logged_and_the_next_one_comes(path, caplog) -> None:
    answers = [lambda: 1 / 0, REPORT.to_json]
    server = ControlServer("w0", path, lambda: answers.pop(0)())
    asked = ask(path, 10)
    assert asked is not None
    assert "its log may say why" in asked.trouble
    assert "cannot say what is pending" in caplog.text
    asked = ask(path, 10)
    assert asked is not None
    assert asked.report == REPORT
    server.close()


def test_a_dead_owner_is_not_there(path) -> None:
    """Its socket may be: nobody listens there."""
    assert ask(path, 10) is None
    with socket.socket(socket.AF_UNIX) as left_behind:
        left_behind.bind(path)
    assert ask(path, 10) is None


def test_closing_leaves_neither_socket_nor_thread(server, path) -> None:
    server.close()
    server.close()
    assert not os.path.exists(path)
    assert not server._thread.is_alive()
    assert "closed" in repr(server)
    assert ask(path, 10) is None


def test_a_worker_that_cannot_listen_works_without(caplog) -> None:
    with local_cluster("alice", "bob") as (alice, _):
        alice.observer.answer_at("/nowhere/ctrl")
        assert "python -m rpcfut pending will not find this" in caplog.text
        alice.observer.answer_at("")
        assert repr(alice.observer).endswith(": None>")
        assert alice.pending().is_empty


# ---- the command --------------------------------------------------------------------

LOUD = Asked(path="/a", pid=1001, report=REPORT)
STILL = Asked(path="/b", pid=1002, report=replace(QUIET, worker="w1", pid=78))
DEAF = Asked(path="/c", pid=1003, trouble="no answer in 3 s")


@pytest.fixture
def workers(monkeypatch):
    found: list[Asked] = []
    monkeypatch.setattr("rpcfut.__main__.ask_all", lambda: found)
    return found


@pytest.mark.parametrize(
    ("found", "options", "status"),
    [
        ([], [], NOT_REACHED),
        ([STILL], [], NOTHING_PENDING),
        ([STILL, LOUD], [], SOMETHING_PENDING),
        ([STILL, LOUD], ["w1"], NOTHING_PENDING),
        ([STILL, LOUD], ["w0"], SOMETHING_PENDING),
        ([STILL, LOUD], ["--pid", "1001"], SOMETHING_PENDING),
        ([STILL, LOUD], ["--pid", "78"], NOTHING_PENDING),
        ([STILL, LOUD], ["--pid", "5"], NOT_REACHED),
        ([STILL, LOUD], ["w7"], NOT_REACHED),
        ([STILL, DEAF], [], NOT_REACHED),
        ([STILL, DEAF], ["--pid", "1003"], NOT_REACHED),
        ([STILL, DEAF], ["--pid", "1002"], NOTHING_PENDING),
    ],
)
@pytest.mark.parametrize("as_json", [False, True])
def test_the_exit_status_says_what_scripts_want_to_know(
    workers, capsys, found, options, status, as_json
) -> None:
    workers += found
    assert main(["pending", *options, *(["--json"] if as_json else [])]) == status
    said = capsys.readouterr()
    if as_json:
        assert isinstance(json.loads(said.out), list)


def test_who_does_not_answer_is_named_with_the_reason(workers, capsys) -> None:
    workers += [DEAF, STILL]
    main(["pending"])
    assert "a worker in process 1003 (/c): no answer in 3 s" in capsys.readouterr().out
    main(["pending", "--json"])
    deaf, still = json.loads(capsys.readouterr().out)
    assert deaf == {"pid": 1003, "path": "/c", "trouble": "no answer in 3 s"}
    assert still["worker"] == "w1"


def test_a_name_and_a_pid_at_once_are_refused(capsys) -> None:
    with pytest.raises(SystemExit) as raised:
        main(["pending", "w0", "--pid", "3"])
    assert raised.value.code == 2
    assert "not allowed with" in capsys.readouterr().err


# ---- keygen -------------------------------------------------------------------------


def test_keygen_prints_64_hexadecimal_digits(capsys) -> None:
    secrets = set()
    for _ in range(2):
        assert main(["keygen"]) == 0
        secrets.add(capsys.readouterr().out.strip())
    assert len(secrets) == 2
    assert all(len(bytes.fromhex(secret)) == 32 for secret in secrets)


def test_keygen_writes_a_file_that_only_we_can_read(
    tmp_path, capsys, monkeypatch
) -> None:
    """Whatever the umask; and it never replaces one."""
    file = tmp_path / "secret"
    before = os.umask(0)
    try:
        assert main(["keygen", str(file)]) == 0
    finally:
        os.umask(before)
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert len(bytes.fromhex(file.read_text())) == 32
    said = capsys.readouterr()
    assert said.out + said.err == ""
    monkeypatch.delenv("RPCFUT_SECRET", raising=False)
    monkeypatch.setenv("RPCFUT_SECRET_FILE", str(file))
    assert find_secret() is not None  # a worker takes it as it is
    secret = file.read_text()
    assert main(["keygen", str(file)]) == 1
    assert "an old secret is not replaced" in capsys.readouterr().err
    assert file.read_text() == secret
    link = tmp_path / "link"
    link.symlink_to(tmp_path / "elsewhere")
    assert main(["keygen", str(link)]) == 1
    assert not (tmp_path / "elsewhere").exists()


# ---- the signal ---------------------------------------------------------------------


@pytest.fixture
def stderr(monkeypatch, tmp_path):
    file = tmp_path / "stderr"
    with file.open("wb") as out:
        monkeypatch.setattr("rpcfut._pending_signal._STDERR", out.fileno())
        yield file


def test_the_earlier_handler_is_back_afterwards(stderr) -> None:
    seen: list[int] = []

    def handle(signum: int, _: object) -> None:
        seen.append(signum)

    before = signal.signal(signal.SIGUSR2, handle)
    try:
        with rpcfut.report_pending_on(signal.SIGUSR2) as reports:
            signal.raise_signal(signal.SIGUSR2)
            wait_until(lambda: "the thread that got the signal" in stderr.read_text())
            assert seen == []
            assert repr(reports) == "<PendingOnSignal SIGUSR2 open>"
        reports.close()
        assert not reports._thread.is_alive()
        signal.raise_signal(signal.SIGUSR2)
        assert seen == [signal.SIGUSR2]
    finally:
        signal.signal(signal.SIGUSR2, before)
    assert "is no worker of a group" in stderr.read_text()


def test_a_handler_that_came_later_stays(stderr) -> None:
    reports = rpcfut.report_pending_on(signal.SIGUSR2)
    seen: list[int] = []
    before = signal.signal(signal.SIGUSR2, lambda signum, _: seen.append(signum))
    try:
        errors: list[BaseException] = []

        def close() -> None:
            try:
                reports.close()
            except rpcfut.LifecycleError as error:
                errors.append(error)

        other = threading.Thread(target=close)
        other.start()
        other.join()
        assert "call close() on the main thread" in str(errors[0])
        reports.close()
        signal.raise_signal(signal.SIGUSR2)
        assert seen == [signal.SIGUSR2]
    finally:
        signal.signal(signal.SIGUSR2, before)


def test_a_signal_that_c_code_handles_is_refused(tmp_path) -> None:
    """What faulthandler was told to do could not be put back."""
    with (tmp_path / "dump").open("w") as file:
        faulthandler.register(signal.SIGUSR2, file=file)
        with pytest.raises(rpcfut.LifecycleError, match="take another signal"):
            rpcfut.report_pending_on(signal.SIGUSR2)
        assert faulthandler.unregister(signal.SIGUSR2)
    earlier = "an earlier report_pending_on"
    with (
        rpcfut.report_pending_on(signal.SIGUSR2),
        pytest.raises(rpcfut.LifecycleError, match=earlier),
    ):
        rpcfut.report_pending_on(signal.SIGUSR2)


@pytest.mark.parametrize("signum", [0, -1, 1000, signal.SIGKILL, signal.SIGSEGV])
def test_no_signal_is_refused(signum: int) -> None:
    """And nothing is left behind."""
    with pytest.raises((ValueError, OSError, RuntimeError)):
        rpcfut.report_pending_on(signum)
