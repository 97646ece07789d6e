"""Asks the workers of this host what is pending, each through its control socket."""

from __future__ import annotations

import os
import re
import socket
import struct
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from rpcfut._control import peer_process
from rpcfut._pending import PendingReport
from rpcfut_transport import MonotonicClock, find_control_sockets

if TYPE_CHECKING:
    from collections.abc import Iterator

PATIENCE_S = 3.0
_MAX_NBYTES = 4 * 1024 * 1024
_CHUNK_NBYTES = 64 * 1024
_TIMEVAL = struct.Struct("ll")  # seconds and microseconds


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """What came of asking one worker.

    Args:
        path: Its control socket.
        pid: Its process, as it is seen here; 0 if it is not.
        report: What it said; None if nothing.
        trouble: Why it said nothing.
    """

    path: str
    pid: int
    report: PendingReport | None = None
    trouble: str = ""


def ask_all(patience_s: float = PATIENCE_S) -> list[Asked]:
    """Ask all workers of this user on this host, at the same time.

    Args:
        patience_s: How long one may take, in seconds.

    Returns:
        What came of it, by their sockets; nothing for those that have ended.
    """
    paths = find_control_sockets()
    if not paths:
        return []
    with ThreadPoolExecutor(max_workers=len(paths)) as threads:
        asked = threads.map(lambda path: ask(path, patience_s), paths)
        return [each for each in asked if each is not None]


def ask(path: str, patience_s: float) -> Asked | None:
    """Ask one worker; None when it has ended."""
    pid = 0
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
        try:
            _connect(connection, path, patience_s)
            pid, uid = peer_process(connection)
            if uid != os.getuid():
                return Asked(path=path, pid=pid, trouble=f"user {uid} listens there")
            data = b"".join(_read(connection, patience_s))
            return Asked(path=path, pid=pid, report=PendingReport.from_json(data))
        except (ConnectionRefusedError, FileNotFoundError):
            return None
        except TimeoutError:
            state = _process_state(pid)
            if not state:
                return None  # only a forked child of it holds the socket
            trouble = f"no answer in {patience_s:g} s; {_reason(state, pid)}"
        except (OSError, ValueError) as error:
            trouble = f"no answer that can be read; its log may say why ({error})"
    return Asked(path=path, pid=pid, trouble=trouble)


def _connect(connection: socket.socket, path: str, patience_s: float) -> None:
    # A socket with a timeout of Python's does not wait where others wait already.
    limit = _TIMEVAL.pack(int(patience_s), int(patience_s % 1 * 1e6))
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, limit)
    try:
        connection.connect(path)
    except BlockingIOError:
        raise TimeoutError from None
    connection.settimeout(patience_s)


def _read(connection: socket.socket, patience_s: float) -> Iterator[bytes]:
    clock = MonotonicClock()
    until_s = clock.now_s() + patience_s
    nbytes = 0
    while chunk := connection.recv(_CHUNK_NBYTES):
        nbytes += len(chunk)
        left_s = until_s - clock.now_s()
        if nbytes > _MAX_NBYTES:
            raise ValueError(f"more than {_MAX_NBYTES} bytes")
        if left_s <= 0:
            raise TimeoutError
        connection.settimeout(left_s)
        yield chunk


def _process_state(pid: int) -> str:
    """The state of a process, as a letter; empty if it has ended, ``?`` if unknown."""
    if pid == 0:
        return "?"
    try:
        status = Path(f"/proc/{pid}/status").read_text()
    except FileNotFoundError:
        return ""
    found = re.search(r"^State:\s+(\S)", status, re.MULTILINE)
    state = found[1] if found else "?"
    return "" if state in "ZX" else state


def _reason(state: str, pid: int) -> str:
    if pid == 0:
        return "it is in another pid namespace: ask from inside its container"
    if state in "Tt":
        return f"process {pid} is stopped: kill -CONT {pid} lets it go on"
    return (
        "some code in it holds the interpreter's lock (GIL): "
        f"py-spy dump --native --pid {pid} shows which"
    )
