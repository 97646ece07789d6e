"""All that lets peers call a function: torch's, whole modules, one call at a time."""

from __future__ import annotations

import asyncio
import sys
import threading
from typing import TYPE_CHECKING, Any

import pytest
import torch

import rpcfut
from rpcfut import FunctionRefusedError, Future, NotExposedError
from rpcfut._callbacks import isolated_runtime
from rpcfut._exposed import ExposedTable
from rpcfut._function_names import find_torch_function, torch_name_of
from rpcfut.testing import local_cluster
from tests.support.group import run_group

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path


@pytest.fixture
def table() -> ExposedTable:
    return ExposedTable()


# ---- torch's own --------------------------------------------------------------------


@pytest.mark.parametrize(
    "name", ["add", "einsum", "linalg.norm", "fft.fft", "nn.functional.gelu"]
)
def test_a_function_of_torch_is_called_by_itself_or_its_name(
    table: ExposedTable, name: str
) -> None:
    function = find_torch_function(name)
    assert torch_name_of(function) == name
    table.expose_torch(name)
    assert table.name_of(function) == f"torch:{name}"
    assert table.find(f"torch:{name}", "w").function is function


def test_a_function_of_torch_runs_on_the_callee(table: ExposedTable) -> None:
    table.expose_torch("add", "torch.mul")
    with local_cluster("alice", "bob", exposed=table) as (alice, _):
        x = torch.arange(3.0)
        sent = alice.rpc_async("bob", torch.add, (x, 1), {"alpha": 2})
        assert torch.equal(sent.wait(10), x + 2)
        assert torch.equal(alice.rpc_sync("bob", "torch:mul", (x, 3)), x * 3)
        with pytest.raises(NotExposedError, match="torch:sub"):
            alice.rpc_sync("bob", torch.sub, (x, x))


@pytest.mark.parametrize(
    "name",
    [
        *("load", "save", "from_file", "compile", "hub.load", "manual_seed", ""),
        *("nn.functional.has_torch_function", "os.system", "nn.functional.torch"),
        *("_add_relu", "functional.einsum", "Tensor.add_"),
    ],
)
def test_what_does_more_than_compute_is_not_exposed(
    table: ExposedTable, name: str
) -> None:
    """And nothing else that was named with it."""
    with pytest.raises(FunctionRefusedError, match="function of your own"):
        table.expose_torch("add", name)
    with pytest.raises(NotExposedError):
        table.find("torch:add", "w")


# ---- modules and packages -----------------------------------------------------------

_MODULE = """
import os
from posixpath import join

def update(x): return x + 1
def _private(x): return x
def generate(): yield 1
async def later(x): return x
class Tools:
    def method(self): pass
    @staticmethod
    def helper(x): return x * 2
"""


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """An importable package of two modules, whose name no other test uses."""
    name = f"exposed_{tmp_path.name.replace('-', '_')}"
    (tmp_path / name).mkdir()
    for module in ("__init__", "first", "second"):
        (tmp_path / name / f"{module}.py").write_text(_MODULE)
    monkeypatch.syspath_prepend(tmp_path)
    yield name
    for loaded in [m for m in sys.modules if m.split(".")[0] == name]:
        del sys.modules[loaded]


def is_exposed(table: ExposedTable, name: str) -> bool:
    try:
        table.find(name, "w")
    except NotExposedError:
        return False
    return True


def test_a_module_exposes_what_it_defines(table: ExposedTable, package: str) -> None:
    """Not what it imported, nor what it keeps to itself."""
    table.expose_path(f"{package}.first")
    found = {
        name: is_exposed(table, f"{package}.first:{name}")
        for name in ("update", "later", "join", "_private", "generate", "Tools")
    }
    assert {name for name, is_there in found.items() if is_there} == {"update", "later"}
    assert not is_exposed(table, f"{package}.second:update")
    assert not is_exposed(table, f"{package}.first:Tools.helper")
    assert not is_exposed(table, f"{package}.first:os.system")


def test_a_path_exposes_one_function(table: ExposedTable, package: str) -> None:
    table.expose_path(f"{package}.first:Tools.helper")
    assert is_exposed(table, f"{package}.first:Tools.helper")
    assert not is_exposed(table, f"{package}.first:update")


def test_a_package_exposes_what_is_imported_below_it(
    table: ExposedTable, package: str
) -> None:
    """A peer's call imports nothing."""
    table.expose_path(f"{package}.*")
    assert is_exposed(table, f"{package}:update")
    assert not is_exposed(table, f"{package}.second:update")
    assert f"{package}.second" not in sys.modules
    __import__(f"{package}.second")
    assert is_exposed(table, f"{package}.second:update")
    for hidden in ("_private", "join", "os.system", "Tools.helper", "__import__", ""):
        assert not is_exposed(table, f"{package}.second:{hidden}")
    assert not is_exposed(table, f"{package}_other:update")


@pytest.mark.parametrize(
    "path", ["no_such_module", "os:no_such_name", ":x", "", "a..b", "os:", 3]
)
def test_a_path_to_nothing_is_refused(table: ExposedTable, path: Any) -> None:
    with pytest.raises(FunctionRefusedError):
        table.expose_path(path)


def _joined(rank: int, count: int, rendezvous: str) -> object:
    rpcfut.init_rpc(
        f"w{rank}", rank, count, init_method=rendezvous, expose=["tests.support.remote"]
    )
    try:
        return rpcfut.rpc_sync(1 - rank, "tests.support.remote:add", (41,), timeout=20)
    finally:
        rpcfut.shutdown()


def test_paths_are_exposed_at_init() -> None:
    assert run_group(_joined, 2) == [42, 42]


def test_a_bare_text_is_not_a_list_of_paths() -> None:
    with pytest.raises(TypeError, match=r"expose=\['os'\]"):
        rpcfut.init_rpc("w", 0, 1, expose="os")


# ---- one at a time ------------------------------------------------------------------


class Overlap:
    """Counts how many run at once, and in which order they came."""

    def __init__(self) -> None:
        self.running = self.most = 0
        self.order: list[int] = []
        self._lock = threading.Lock()

    def enter(self, number: int) -> None:
        with self._lock:
            self.running += 1
            self.most = max(self.most, self.running)
            self.order.append(number)

    def leave(self) -> None:
        with self._lock:
            self.running -= 1


@pytest.fixture
def overlap() -> Overlap:
    return Overlap()


def plain(overlap: Overlap) -> Callable[[int], None]:
    def run(number: int) -> None:
        overlap.enter(number)
        threading.Event().wait(0.001)
        overlap.leave()

    return run


def driven(overlap: Overlap) -> Callable[[int], Any]:
    async def run(number: int) -> None:
        overlap.enter(number)
        await asyncio.sleep(0.001)
        overlap.leave()

    return run


def chained(overlap: Overlap) -> Callable[[int], Future[None]]:
    def run(number: int) -> Future[None]:
        overlap.enter(number)
        start: Future[None] = Future()
        end = start.then(lambda _: overlap.leave())
        threading.Timer(0.001, start.set_result, (None,)).start()
        return end

    return run


def failing(overlap: Overlap) -> Callable[[int], None]:
    def run(number: int) -> None:
        overlap.enter(number)
        overlap.leave()
        raise KeyError(number)

    return run


@pytest.mark.parametrize(
    ("make", "fails"),
    [(plain, False), (driven, False), (chained, False), (failing, True)],
)
def test_serial_calls_run_one_at_a_time_in_the_order_they_came(
    table: ExposedTable,
    overlap: Overlap,
    make: Callable[[Overlap], Any],
    *,
    fails: bool,
) -> None:
    table.expose(make(overlap), name="run", serial=True)
    with (
        isolated_runtime(),
        local_cluster("alice", "bob", exposed=table) as (alice, _),
    ):
        calls = [alice.rpc_async("bob", "run", (number,)) for number in range(60)]
        errors = [call.exception(20) for call in calls]
    assert {type(error) for error in errors} == {KeyError if fails else type(None)}
    assert overlap.most == 1
    assert overlap.order == list(range(60))


def test_calls_that_wait_for_their_turn_take_no_thread(table: ExposedTable) -> None:
    go = threading.Event()
    table.expose(lambda: go.wait(20), name="wait", serial=True)
    table.expose(lambda: 1, name="one")
    options = rpcfut.AgentOptions(max_threads=2)
    with local_cluster("alice", "bob", exposed=table, options=options) as (alice, _):
        calls = [alice.rpc_async("bob", "wait") for _ in range(10)]
        assert alice.rpc_sync("bob", "one", timeout=10) == 1
        go.set()
        assert all(call.wait(20) for call in calls)


def test_calls_that_are_not_serial_overlap(
    table: ExposedTable, overlap: Overlap
) -> None:
    both = threading.Barrier(2)

    def run(number: int) -> None:
        overlap.enter(number)
        both.wait(10)
        overlap.leave()

    table.expose(run, name="run")
    table.expose(plain(Overlap()), name="other", serial=True)
    with local_cluster("alice", "bob", exposed=table) as (alice, _):
        calls = [alice.rpc_async("bob", "run", (number,)) for number in range(2)]
        assert [call.wait(20) for call in calls] == [None, None]
    assert overlap.most == 2


def test_a_serial_call_whose_arguments_do_not_decode_ends_its_turn(
    table: ExposedTable, overlap: Overlap
) -> None:
    table.expose(plain(overlap), name="run", serial=True)
    with local_cluster("alice", "bob", exposed=table) as (alice, _):
        for _ in range(3):
            with pytest.raises(TypeError):
                alice.rpc_sync("bob", "run", (1, 2, 3), timeout=10)
        alice.rpc_sync("bob", "run", (1,), timeout=10)
    assert overlap.order == [1]
