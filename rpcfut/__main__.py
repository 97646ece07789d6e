"""``python -m rpcfut``: look into running workers, and make what a job needs."""

from __future__ import annotations

import argparse
import json
import os
import secrets
import sys
from dataclasses import asdict
from typing import TYPE_CHECKING

from rpcfut._control_client import ask_all
from rpcfut._error_text import clean_line

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rpcfut._control_client import Asked

NOTHING_PENDING = 0
SOMETHING_PENDING = 1
NOT_REACHED = 2
_KEY_NBYTES = 32
_PENDING_TEXT = """\
List every call that the workers of this user on this host wait for, and every call that
they serve. Each answers on a thread of its own, also while all its other threads hang.
"""
_PENDING_END = """\
exit status: 0 nothing is pending; 1 something is; 2 there is no such worker, or one
does not answer
"""
_KEYGEN_TEXT = """\
Make a job secret: 64 hexadecimal digits, printed, or written to a new file that only
this user can read. Give it to all workers of the job in RPCFUT_SECRET_FILE or
RPCFUT_SECRET.
"""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command line; returns its exit status."""
    given = _parser().parse_args(arguments)
    if given.command == "keygen":
        return keygen(given.file)
    return pending(given.worker, given.pid, is_json=given.json)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m rpcfut", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    pending = commands.add_parser(
        "pending",
        help="list the calls that workers wait for and serve",
        description=_PENDING_TEXT,
        epilog=_PENDING_END,
    )
    which = pending.add_mutually_exclusive_group()
    which.add_argument("worker", nargs="?", metavar="NAME", help="only this worker")
    which.add_argument("--pid", type=int, help="only the worker in this process")
    pending.add_argument("--json", action="store_true", help="for programs")
    keygen = commands.add_parser(
        "keygen", help="make a job secret", description=_KEYGEN_TEXT
    )
    keygen.add_argument("file", nargs="?", metavar="FILE", help="must not exist yet")
    return parser


def pending(worker: str | None, pid: int | None, *, is_json: bool) -> int:
    """Print what is pending; returns the exit status.

    Args:
        worker: Only the workers of this name; None for all.
        pid: Only those in this process; None for all.
        is_json: Print a list of objects, one a worker, instead of tables.
    """
    found = [each for each in ask_all() if _is_wanted(each, worker, pid)]
    if is_json:
        _print(json.dumps([_as_json(each) for each in found], indent=2))
    elif found:
        _print("\n\n".join(_as_text(each) for each in found))
    if not found:
        print(_nobody(worker, pid), file=sys.stderr)  # noqa: T201 - a command's output
    if not found or any(each.report is None for each in found):
        return NOT_REACHED
    is_quiet = all(each.report and each.report.is_empty for each in found)
    return NOTHING_PENDING if is_quiet else SOMETHING_PENDING


def _is_wanted(asked: Asked, worker: str | None, pid: int | None) -> bool:
    if asked.report is None:  # its name is not known
        return pid in (None, asked.pid)
    if pid is not None:
        return pid in (asked.pid, asked.report.pid)
    return worker in (None, asked.report.worker)


def _as_text(asked: Asked) -> str:
    if asked.report is not None:
        return str(asked.report)
    where = clean_line(asked.path)
    return f"a worker in process {asked.pid} ({where}): {clean_line(asked.trouble)}"


def _as_json(asked: Asked) -> dict[str, object]:
    if asked.report is not None:
        return asdict(asked.report)
    return {"pid": asked.pid, "path": asked.path, "trouble": asked.trouble}


def _nobody(worker: str | None, pid: int | None) -> str:
    which = "no worker"
    if worker is not None:
        which = f"no worker named {worker!r}"
    elif pid is not None:
        which = f"no worker in process {pid}"
    return (
        f"{which} of user {os.getuid()} on this host. Workers in a container are seen "
        "from inside it only; a worker that has not called init_rpc() yet, or has shut "
        "down, is none"
    )


def keygen(file: str | None) -> int:
    """Make a job secret; returns the exit status.

    Args:
        file: A file to make for it, with mode 0600; None to print it.
    """
    secret = secrets.token_hex(_KEY_NBYTES)
    if file is None:
        _print(secret)
        return 0
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
    try:
        fd = os.open(file, flags, 0o600)
        with os.fdopen(fd, "w", encoding="ascii") as out:
            out.write(f"{secret}\n")
    except OSError as error:
        hint = "; an old secret is not replaced: remove it first, or name another file"
        hint = hint if isinstance(error, FileExistsError) else ""
        print(f"cannot write {file!r}: {error}{hint}", file=sys.stderr)  # noqa: T201
        return 1
    return 0


def _print(text: str) -> None:
    print(text)  # noqa: T201 - this is a command's output


if __name__ == "__main__":
    sys.exit(main())
