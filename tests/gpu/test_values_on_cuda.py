"""Tensors on a GPU through calls: layouts, shared memory, and where they arrive."""

from __future__ import annotations

import threading
import warnings
from typing import TYPE_CHECKING, Any

import pytest
import torch

import rpcfut
from rpcfut import AgentOptions
from rpcfut._exposed import ExposedTable
from rpcfut.testing import local_cluster
from tests.support.latch import Latch
from tests.support.tensor_table import TENSORS, looks

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

pytestmark = [pytest.mark.gpu(n=1), pytest.mark.timeout(180)]

PATIENCE_S = 30


@pytest.fixture
def echo() -> Iterator[Callable[[Any], Any]]:
    """Sends a value to another worker and back."""
    table = ExposedTable()
    table.expose(lambda x: x, name="echo")
    with local_cluster("alice", "bob", exposed=table) as (alice, _):
        yield lambda value: alice.rpc_sync("bob", "echo", (value,), timeout=PATIENCE_S)


def on_cuda(name: str) -> torch.Tensor | None:
    """The tensor of the table on a GPU; None where torch has no such thing."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            made = TENSORS[name]()
            moved = made.detach().to("cuda:0")
            if isinstance(made, torch.nn.Parameter):
                return torch.nn.Parameter(moved, requires_grad=made.requires_grad)
            return moved.requires_grad_(made.requires_grad)
        except (RuntimeError, NotImplementedError):
            return None


def host_looks(tensor: torch.Tensor) -> object:
    """What must be the same, with the device, and the bits as the host sees them."""
    plain = tensor.detach().cpu()
    return str(tensor.device), type(tensor), tensor.requires_grad, looks(plain)


@pytest.mark.racy  # the sanitizer does not know all of these
def test_every_layout_arrives_as_it_was(echo: Callable[[Any], Any]) -> None:
    tried = 0
    for name in TENSORS:
        tensor = on_cuda(name)
        if tensor is None or not tensor.is_cuda:
            continue
        tried += 1
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            back = echo(tensor)
            assert host_looks(back) == host_looks(tensor), name
    assert tried > 100


def test_views_of_one_memory_share_it_there(echo: Callable[[Any], Any]) -> None:
    x = torch.arange(1 << 16, dtype=torch.float32, device="cuda:0")
    host = torch.arange(1 << 16, dtype=torch.float32)
    a, b, c, d, e = echo([x, x[100:], x.view(256, 256).t(), host, host[5:]])
    a.fill_(7)
    d.fill_(8)
    assert [str(t.device) for t in (a, b, c, d)] == ["cuda:0"] * 3 + ["cpu"]
    assert (b.min().item(), c.max().item(), e.max().item()) == (7, 7, 8)
    assert x[1].item() == 1


def test_b56_a_worker_may_keep_arrays_on_the_host() -> None:
    """As one without a GPU does: it counts none."""
    options = AgentOptions(placement="cpu")
    table = ExposedTable()
    table.expose(lambda x: (str(x.device), x + 1), name="where")
    with local_cluster("alice", "bob", exposed=table, options=options) as (alice, bob):
        bob._placement._counts["cuda"] = 0
        device, back = alice.rpc_sync(
            "bob", "where", (torch.ones(9, device="cuda:0"),), timeout=PATIENCE_S
        )
        assert (device, str(back.device), back.sum().item()) == ("cpu", "cpu", 18)
        bob._placement._policy = "error"
        with pytest.raises(rpcfut.DecodeError, match="placement='error'"):
            alice.rpc_sync("bob", "where", (torch.ones(9, device="cuda:0"),))


def test_b50_host_values_do_not_wait_for_a_busy_device(
    echo: Callable[[Any], Any],
) -> None:
    """The default stream is held up for as long as the call takes."""
    with Latch.made_open():
        warm = Latch()
        warm.hold(torch.cuda.current_stream(0))
        assert echo(torch.ones(3)).sum().item() == 3
    latch = Latch()
    latch.hold(torch.cuda.current_stream(0))
    try:
        seen: list[float] = []
        thread = threading.Thread(
            target=lambda: seen.append(echo(torch.ones(3)).sum().item())
        )
        thread.start()
        thread.join(5)
        assert seen == [3.0]
        assert not torch.cuda.current_stream(0).query()
    finally:
        latch.open()
        thread.join(PATIENCE_S)


@pytest.mark.parametrize("turn", range(20))
def test_b49_a_call_comes_after_one_that_was_seen_to_end(turn: int) -> None:
    """Add from one worker, wait, multiply from another: as one after the other."""
    table = ExposedTable()
    x = torch.full((1 << 22,), float(turn), device="cuda:0")
    table.expose(lambda: x.add_(2) is None, name="add")
    table.expose(lambda: x.mul_(10) is None, name="mul")
    with local_cluster("alice", "bob", "carol", exposed=table) as (alice, _, carol):
        alice.rpc_sync("bob", "add", timeout=PATIENCE_S)
        carol.rpc_sync("bob", "mul", timeout=PATIENCE_S)
        read = alice.exposed
        read.expose(lambda: x.sum().item() / x.numel(), name="read")
        value = alice.rpc_sync("bob", "read", timeout=PATIENCE_S)
    assert value == (turn + 2.0) * 10
