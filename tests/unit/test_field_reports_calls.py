"""What users of the peers met with calls and the tensors in them, each kind as a test.

The names say the row of the report; what is right is said there.
"""

from __future__ import annotations

import asyncio
import random
import threading
from typing import TYPE_CHECKING, Any

import pytest
import torch

import rpcfut
from rpcfut import EncodeError, Future
from rpcfut._callbacks import isolated_runtime
from rpcfut._codec import Encoded, decode, encode
from rpcfut._dtypes import DTYPES
from rpcfut._exposed import ExposedTable
from rpcfut.testing import local_cluster, simulate
from tests.support.tensor_table import looks
from tests.support.threads import wait_until

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from rpcfut import Agent
    from rpcfut.testing import Simulation

PATIENCE_S = 20.0


@pytest.fixture
def seed() -> int:
    """That of the simulated device; tests may have several."""
    return 0


@pytest.fixture
def sim(seed: int) -> Iterator[Simulation]:
    """A device that all agents have; each lease of a stream gets a fresh one."""
    with isolated_runtime(), simulate(1, seed=seed) as simulation:
        yield simulation


@pytest.fixture
def agents(sim: Simulation) -> Iterator[list[Agent]]:
    table = ExposedTable()
    table.expose(lambda x: x, name="echo")
    with local_cluster("alice", "bob", "carol", exposed=table) as made:
        yield made


@pytest.fixture
def echo(agents: list[Agent]) -> Callable[[Any], Any]:
    """Sends a value to bob and back."""
    return lambda value: agents[0].rpc_sync("bob", "echo", (value,), timeout=PATIENCE_S)


def arrives(echo: Callable[[Any], Any], *tensors: torch.Tensor) -> bool:
    """Whether tensors come back as they were, alone and together."""
    together = echo(list(tensors))
    return all(
        looks(echo(sent)) == looks(back) == looks(sent)
        for sent, back in zip(tensors, together, strict=True)
    )


def pack(value: Any) -> Encoded:
    def no_stage(_: object) -> bytes:
        raise AssertionError("nothing here lies on a device")

    return encode(value, stage=no_stage)


def wire_nbytes(value: Any) -> int:
    body, buffers = pack(value)
    return len(body) + sum(memoryview(buffer).nbytes for buffer in buffers)


# ---- calls --------------------------------------------------------------------------


def test_b38_waits_that_are_cancelled_at_random_lose_no_message(
    agents: list[Agent],
) -> None:
    """Every call is run or was not, every answer is seen or late: the counts match."""
    alice, bob, _ = agents
    ran: list[int] = []
    patience = random.Random(38).choices((10.0, 0.0005), (2, 1), k=3000)
    bob.exposed.expose(ran.append, name="run")

    async def call(number: int, patience_s: float) -> bool:
        try:
            future = alice.rpc_async("bob", "run", (number,))
            await asyncio.wait_for(future, patience_s)
        except TimeoutError:
            return False
        return True

    async def flood() -> list[bool]:
        return await asyncio.gather(*[call(n, p) for n, p in enumerate(patience)])

    seen = asyncio.run(flood())
    wait_until(lambda: alice._endpoint.counters.unconfirmed == 0)
    assert alice._endpoint.pending_count == 0
    assert len(set(ran)) == len(ran), "run at most once"
    assert {n for n, is_seen in enumerate(seen) if is_seen} <= set(ran)
    assert all(seen[n] for n, p in enumerate(patience) if p > 1)


@pytest.mark.parametrize("seed", range(20))
def test_b48_a_pipeline_of_async_calls_gives_what_the_local_one_gives(
    agents: list[Agent], sim: Simulation
) -> None:
    """Four stages, none of which waits on the host."""
    for number in range(4):
        agents[0].exposed.expose(
            lambda x, number=number: x * 2.0 + float(number), name=f"stage{number}"
        )

    def stage(number: int, done: Future[Any]) -> Future[Any]:
        caller, callee = agents[number % 2], agents[1 - number % 2]
        return caller.rpc_async(callee.info, f"stage{number}", (done.value(),))

    first: Future[Any] = Future()
    last = first
    for number in range(4):
        last = last.then(lambda done, number=number: stage(number, done))
    with sim.stream(0):
        first.set_result(sim.array([1.0, 5.0]) + 1.0)
    expected = [2.0, 6.0]
    for number in range(4):
        expected = [x * 2.0 + number for x in expected]
    assert last.wait(PATIENCE_S).tolist() == expected


@pytest.mark.parametrize("seed", range(20))
def test_b49_a_call_comes_after_one_that_was_seen_to_end_whoever_makes_it(
    agents: list[Agent], sim: Simulation
) -> None:
    """Add from alice, wait, multiply from carol: as one after the other."""
    alice, bob, carol = agents
    x = sim.array([1.0])
    bob.exposed.expose(lambda: x.add_(2.0) and None, name="add")
    bob.exposed.expose(lambda: x.mul_(10.0) and None, name="mul")
    bob.exposed.expose(lambda: x.tolist(), name="read")
    alice.rpc_sync("bob", "add", timeout=PATIENCE_S)
    carol.rpc_sync("bob", "mul", timeout=PATIENCE_S)
    assert alice.rpc_sync("bob", "read", timeout=PATIENCE_S) == [30.0]


def test_b50_a_call_with_host_values_does_not_wait_for_a_busy_device(
    agents: list[Agent], sim: Simulation
) -> None:
    """Neither side's streams are waited for on the host."""
    busy = sim.array([1.0])
    with sim.held():
        busy.add_(1.0)
        call = agents[0].rpc_async("bob", "echo", (torch.ones(3),))
        assert torch.equal(call.wait(8), torch.ones(3))


def test_b134_nothing_is_sent_twice(
    agents: list[Agent], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The answer of a counter is lost: it counted once, the caller gets an error."""
    alice, bob, _ = agents
    counted = threading.Semaphore(0)
    bob.exposed.expose(counted.release, name="count")
    monkeypatch.setattr(bob._endpoint, "reply", lambda *_args, **_options: False)
    error = alice.rpc_async("bob", "count", timeout=0.3).exception(PATIENCE_S)
    assert isinstance(error, rpcfut.RpcTimeoutError)
    assert counted.acquire(timeout=PATIENCE_S)
    assert not counted.acquire(timeout=0.3)


# ---- tensors ------------------------------------------------------------------------


def test_b59_any_strides_arrive_equal(echo: Callable[[Any], Any]) -> None:
    x = torch.arange(2.0 * 3 * 4 * 5).view(2, 3, 4, 5)
    assert arrives(
        echo,
        x.clone().transpose(0, 3),
        x[:, :, ::2].clone(),
        x[..., ::2],
        x[:, :1].expand(2, 7, 4, 5),
        x.to(memory_format=torch.channels_last),
        x.flip(0),
        torch.arange(5.0).unfold(0, 3, 1),
    )


def test_b60_bfloat16_stays_itself_and_takes_its_own_bytes(
    echo: Callable[[Any], Any],
) -> None:
    x = torch.randn(1_000_000).to(torch.bfloat16)
    assert arrives(echo, x)
    assert 2_000_000 <= wire_nbytes(x) < 2_001_000


def test_b61_every_float8_arrives_bit_by_bit(echo: Callable[[Any], Any]) -> None:
    kinds = [dtype for dtype in DTYPES if "float8" in str(dtype)]
    assert len(kinds) >= 5
    every_byte = torch.arange(256, dtype=torch.int16).to(torch.uint8)
    assert arrives(echo, *[every_byte.clone().view(kind) for kind in kinds])


def test_b62_complex_numbers_arrive_conjugated_ones_too(
    echo: Callable[[Any], Any],
) -> None:
    real = torch.randn(6)
    for kind in (torch.complex64, torch.complex128):
        x = torch.complex(real, real.flip(0)).to(kind)
        assert arrives(echo, x, x.clone().conj(), x.clone().conj().imag)
    half = torch.randn(6).to(torch.float16)
    assert arrives(echo, torch.view_as_complex(half.view(3, 2)))


def test_b63_a_tensor_without_dimensions_arrives_alone_and_among_others(
    echo: Callable[[Any], Any],
) -> None:
    assert arrives(echo, torch.tensor(3.5), torch.ones(2), torch.tensor(2))
    assert echo(torch.tensor(3.5)).shape == ()


@pytest.mark.parametrize("shape", [(0,), (2, 0), (0, 3, 0)])
def test_b64_empty_tensors_keep_their_shape_alone_and_among_others(
    echo: Callable[[Any], Any], shape: tuple[int, ...]
) -> None:
    assert arrives(echo, torch.ones(3), torch.empty(shape), torch.ones(2))


def test_b65_only_the_visible_elements_of_a_slice_travel() -> None:
    x = torch.zeros(8 << 20)
    assert wire_nbytes(x[:1]) < 1000
    assert wire_nbytes({"a": x[5:7], "b": torch.ones(1)}) < 1000


def test_b66_tensors_that_share_memory_share_it_there(
    echo: Callable[[Any], Any],
) -> None:
    """Sent once, as the hull; if that would be mostly unseen, it is refused."""
    x = torch.arange(100_000.0)
    assert wire_nbytes([x, x[1:]]) < 1.1 * x.nbytes
    first, second = echo([x, x[1:]])
    first[1] = -1
    assert second[0] == -1
    assert x[1] == 1, "not with the sender's"
    with pytest.raises(EncodeError, match=r"clone\(\) one of them"):
        pack([x[::50], x[1::50], x[:: 50 * 2]])


@pytest.mark.filterwarnings("ignore::UserWarning")
def test_b67_sparse_tensors_arrive(echo: Callable[[Any], Any]) -> None:
    dense = torch.eye(4).roll(1, 0)
    indices, values = [[0, 0, 2]], [1.0, 2.0, 3.0]
    coo = torch.sparse_coo_tensor(indices, values, (4,), check_invariants=True)
    assert arrives(echo, coo, coo.coalesce(), dense.to_sparse_csr())
    assert arrives(echo, dense.to_sparse_csc(), dense.to_sparse_bsr((2, 2)))


def test_b68_parameters_and_leaves_stay_what_they_are_and_the_rest_is_refused(
    echo: Callable[[Any], Any],
) -> None:
    leaf = torch.ones(3, requires_grad=True)
    frozen = torch.nn.Parameter(torch.ones(2), requires_grad=False)
    assert arrives(echo, leaf, torch.nn.Parameter(torch.ones(2)), frozen)
    with pytest.raises(EncodeError, match=r"detach\(\)"):
        echo(leaf * 2)
    with pytest.raises((EncodeError, rpcfut.ExtractionError), match="Unknown"):
        echo(torch.ones(3).as_subclass(UnknownTensor))


class UnknownTensor(torch.Tensor):
    """A subclass that nobody registered."""


@pytest.mark.slow
@pytest.mark.timeout(500)
@pytest.mark.parametrize("nbytes", [2**31 + 7, 2**32 + 9])
def test_b69_more_than_two_gigabytes_arrive(nbytes: int) -> None:
    x = torch.zeros(nbytes, dtype=torch.uint8)
    x[:: 2**20 + 1] = torch.arange(len(x[:: 2**20 + 1]), dtype=torch.int64).to(x.dtype)
    body, buffers = pack(x)
    back: Any = decode(body, buffers, place=lambda tensor, _: tensor)
    assert back.shape == x.shape
    assert torch.equal(back[:: 2**20 + 1], x[:: 2**20 + 1])
    assert torch.equal(back[-100:], x[-100:])
