"""What holds for every test: the machine it needs, and that it leaves nothing."""

from __future__ import annotations

import functools
import gc
import multiprocessing
import os
import tempfile
import threading
from dataclasses import dataclass
from multiprocessing import forkserver, resource_tracker, util
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from hypothesis import settings

if TYPE_CHECKING:
    from collections.abc import Iterator

# An example takes as long as it takes: machines are shared.
settings.register_profile("untimed", deadline=None)
settings.load_profile("untimed")

# Threads and folders that belong to the process, not to the test that first used them.
_PROCESS_WIDE_THREADS = ("rpcfut-callback-", "rpcfut-watcher-callbacks", "Trio thread")
_PROCESS_WIDE_NAMES = ("torchinductor_",)
_GRACE_ROUNDS = 40
_GRACE_ROUND_S = 0.05


def pytest_addoption(
    parser: pytest.Parser, pluginmanager: pytest.PytestPluginManager
) -> None:
    """Add --require-gpu, and the key `timeout` where pytest-timeout is missing."""
    parser.addoption(
        "--require-gpu",
        type=int,
        default=0,
        metavar="N",
        help="fail, not skip, the tests that need N CUDA devices or fewer",
    )
    if not pluginmanager.hasplugin("timeout"):
        parser.addini("timeout", "unused: pytest-timeout is not installed")


def pytest_configure(config: pytest.Config) -> None:
    """Know the marker `timeout` also where pytest-timeout is missing."""
    if not config.pluginmanager.hasplugin("timeout"):
        config.addinivalue_line("markers", "timeout: unused, see pytest-timeout")


@functools.cache
def _gpu_count() -> int:
    import torch  # here, because most tests need none

    return torch.cuda.device_count()


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Skip a test whose devices are not there, or fail it under --require-gpu."""
    mark = item.get_closest_marker("gpu")
    if mark is None:
        return
    need = mark.kwargs.get("n", 1)
    have = _gpu_count()
    if have >= need:
        return
    text = f"needs {need} CUDA devices, found {have}"
    if item.config.getoption("--require-gpu") >= need:
        pytest.fail(text, pytrace=False)
    pytest.skip(text)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Held:
    """What this process holds that outlives a function call."""

    threads: frozenset[threading.Thread]
    children: frozenset[int]
    sockets: frozenset[str]
    names: frozenset[str]

    def __sub__(self, other: _Held) -> _Held:
        return _Held(
            threads=self.threads - other.threads,
            children=self.children - other.children,
            sockets=self.sockets - other.sockets,
            names=self.names - other.names,
        )

    def __bool__(self) -> bool:
        return bool(self.threads or self.children or self.sockets or self.names)


def _threads() -> frozenset[threading.Thread]:
    return frozenset(
        thread
        for thread in threading.enumerate()
        if not thread.name.startswith(_PROCESS_WIDE_THREADS)
        # Stands for a thread that C++ started, for example autograd's.
        and not isinstance(thread, threading._DummyThread)
        # pyzmq's, one for the process, from the first large frame on.
        and type(thread).__name__ != "GarbageCollectorThread"
    )


def _children() -> frozenset[int]:
    pids = set()
    for task in os.listdir("/proc/self/task"):
        try:
            pids.update(Path(f"/proc/self/task/{task}/children").read_text().split())
        except (FileNotFoundError, ProcessLookupError):
            continue  # the thread ended meanwhile, or the kernel keeps no such list
    tracker = resource_tracker._resource_tracker._pid
    fork_server = forkserver._forkserver._forkserver_pid
    return frozenset(int(pid) for pid in pids) - {tracker, fork_server}


def _sockets() -> frozenset[str]:
    targets = set()
    for fd in os.listdir("/proc/self/fd"):
        try:
            targets.add(os.readlink(f"/proc/self/fd/{fd}"))
        except FileNotFoundError:
            continue  # the descriptor of the listing itself
    return frozenset(target for target in targets if target.startswith("socket:"))


def _names() -> frozenset[str]:
    found = {f"/dev/shm/{n}" for n in os.listdir("/dev/shm") if n.startswith("rpcfut")}
    folder = tempfile.gettempdir()
    found.update(
        f"{folder}/{name}"
        for name in os.listdir(folder)
        if not name.startswith(_PROCESS_WIDE_NAMES)
    )
    return frozenset(found)


def _held() -> _Held:
    return _Held(
        threads=_threads(), children=_children(), sockets=_sockets(), names=_names()
    )


def _after_grace(before: _Held) -> _Held:
    pause = threading.Event()
    for _ in range(_GRACE_ROUNDS):
        multiprocessing.active_children()  # collects those that have ended
        left = _held() - before
        if not left:
            break
        pause.wait(_GRACE_ROUND_S)
    return left


@pytest.fixture(scope="session", autouse=True)
def _own_temporary_folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Give the session a folder for temporary files that nobody else writes to.

    Its name is short, because a socket's path may have 107 bytes only.
    """
    # These two stay where they would be; both are cleaned up later than ours.
    tmp_path_factory.getbasetemp()
    util.get_temp_dir()
    with (
        tempfile.TemporaryDirectory(prefix="rf-") as folder,
        pytest.MonkeyPatch.context() as patch,
    ):
        patch.setattr(tempfile, "tempdir", folder)
        patch.setenv("TMPDIR", folder)
        patch.delenv("XDG_RUNTIME_DIR", raising=False)
        yield


@pytest.fixture(autouse=True)
def _nothing_left(_own_temporary_folder: None) -> Iterator[None]:
    """Fail a test that leaves a thread, a child, a socket or a named file behind.

    What is on its way out gets two seconds.
    """
    before = _held()
    yield
    left = _held() - before
    if left:
        gc.collect()  # what hangs in a cycle is on its way out, too
        left = _after_grace(before)
    if left:
        pytest.fail(f"the test left behind: {_describe(left)}", pytrace=False)


def _describe(left: _Held) -> str:
    parts = [f"thread {thread.name!r}" for thread in left.threads]
    parts += [f"child process {pid}" for pid in left.children]
    parts += [f"open {socket}" for socket in left.sockets]
    parts += [f"file or folder {name}" for name in left.names]
    return ", ".join(sorted(parts))
