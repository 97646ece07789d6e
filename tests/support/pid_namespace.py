"""A process that is in a pid namespace of its own, as those of a container are."""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
from typing import TYPE_CHECKING, NoReturn

if TYPE_CHECKING:
    from collections.abc import Callable

_CLONE_NEWNS = 0x00020000
_CLONE_NEWPID = 0x20000000
_MS_REC_PRIVATE = 0x4000 | 0x40000
_PR_SET_PDEATHSIG = 1


def why_no_pid_namespace() -> str:
    """Why there can be none here; empty if there can."""
    if os.getuid() != 0:
        return "only root can make pid namespaces"
    made = subprocess.run(
        ["unshare", "--pid", "--fork", "--mount-proc", "true"],
        capture_output=True,
        text=True,
        timeout=20,
        check=False,
    )
    return f"no pid namespace can be made: {made.stderr}" if made.returncode else ""


def run_as_first_process(function: Callable[[], object]) -> NoReturn:
    """Run a function as process 1 of a pid namespace, and end with it.

    The new process dies with the calling one, which does nothing but wait for it.
    """
    libc = ctypes.CDLL(None, use_errno=True)
    _check(libc.unshare(_CLONE_NEWNS | _CLONE_NEWPID))
    pid = os.fork()
    if pid != 0:
        os._exit(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) & 0xFF)
    code = 1
    try:
        _check(libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL))
        _check(libc.mount(b"none", b"/", None, _MS_REC_PRIVATE, None))
        _check(libc.mount(b"proc", b"/proc", b"proc", 0, None))
        assert os.getpid() == 1
        function()
        code = 0
    finally:
        os._exit(code)


def _check(result: int) -> None:
    if result != 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
