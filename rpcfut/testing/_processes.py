"""Workers in processes of their own, for tests of code that uses rpcfut."""

from __future__ import annotations

import multiprocessing
import os
import tempfile
import threading
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from rpcfut._joining import init_rpc, shutdown

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

_JOIN_S = 60.0
_LEAVE_S = 10.0


@contextmanager
def process_cluster(
    *names: str, expose: Iterable[str] = (), me: str = "main"
) -> Iterator[None]:
    """Be one worker of a group whose others are processes of their own.

    They are spawned, so a script that calls this needs the usual
    ``if __name__ == "__main__":``. At the end all leave. If this process ends without,
    however it ends, they end too, within a moment.

    Args:
        names: The names of the others.
        expose: What they expose, as for `init_rpc`.
        me: The name of this process, which has rank 0.

    Raises:
        RendezvousError: When one of them does not come.
    """
    spawn = multiprocessing.get_context("spawn")
    with tempfile.TemporaryDirectory() as folder:
        meeting = f"file://{Path(folder, 'meeting')}"
        workers = [
            spawn.Process(
                target=_work,
                args=(name, rank, 1 + len(names), meeting, tuple(expose)),
                name=name,
                daemon=True,
            )
            for rank, name in enumerate(names, 1)
        ]
        try:
            for worker in workers:
                worker.start()
            init_rpc(me, 0, 1 + len(names), init_method=meeting, join_timeout_s=_JOIN_S)
            try:
                yield
            finally:
                shutdown(timeout=_LEAVE_S)
        finally:
            for worker in workers:
                worker.join(_LEAVE_S)
                worker.kill()
                worker.join()
                worker.close()


def _work(
    name: str, rank: int, count: int, meeting: str, expose: tuple[str, ...]
) -> None:
    threading.Thread(target=_end_with_parent, name="parent-watch", daemon=True).start()
    init_rpc(name, rank, count, init_method=meeting, expose=expose)
    shutdown()


def _end_with_parent() -> None:
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
        # Not sys.exit: functions may run that never end.
        os._exit(1)
