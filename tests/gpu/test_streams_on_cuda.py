"""The stream rules on a real GPU; a latch makes each race certain, not likely."""

from __future__ import annotations

import threading

import pytest
import torch

import rpcfut
from rpcfut import Future
from tests.support.latch import Latch

pytestmark = [pytest.mark.gpu(n=1), pytest.mark.timeout(120)]

REPEATS = 50
SIZE = 1 << 16


class Unknown:
    """A type that nobody registered."""

    def __init__(self, tensor: torch.Tensor) -> None:
        self.tensor = tensor


def held_write(latch: Latch, value: float) -> tuple[torch.cuda.Stream, torch.Tensor]:
    """A tensor of zeros that becomes `value` on a side stream once the latch opens."""
    tensor = torch.zeros(SIZE, device="cuda:0")
    stream = torch.cuda.Stream(0)
    stream.wait_stream(torch.cuda.current_stream(0))
    latch.hold(stream)
    with torch.cuda.stream(stream):
        tensor.fill_(value)
    tensor.record_stream(stream)
    return stream, tensor


def read_on_side_stream(
    latch: Latch, future: Future[torch.Tensor]
) -> tuple[float, float]:
    """Read a future on a stream of its own while the latch is shut; then open it."""
    reader = torch.cuda.Stream(0)
    with torch.cuda.stream(reader):
        seen = future.wait().clone()
    latch.open_after_chance(reader)
    reader.synchronize()
    return seen.min().item(), seen.max().item()


def test_str1_str2_value_written_on_a_side_stream_is_safe_to_read_on_another() -> None:
    """STR-1, STR-2: the reader's stream waits for the writer's, the host does not."""
    for turn in range(1, REPEATS + 1):
        latch = Latch()
        stream, tensor = held_write(latch, turn)
        future: Future[torch.Tensor] = Future()
        with torch.cuda.stream(stream):
            future.set_result(tensor)
        assert future.done()
        assert read_on_side_stream(latch, future) == (turn, turn)


def test_str2_without_the_wait_the_latch_shows_the_race() -> None:
    """The check can fail: reading the tensor past the future sees old values."""
    wrong = 0
    for turn in range(1, REPEATS + 1):
        latch = Latch()
        _, tensor = held_write(latch, turn)
        reader = torch.cuda.Stream(0)
        with torch.cuda.stream(reader):
            seen = tensor.clone()
        latch.open_after_chance(reader)
        torch.cuda.current_stream().wait_stream(reader)
        reader.synchronize()
        wrong += int(seen.min().item() != turn)
    assert wrong == REPEATS


def test_str3_callback_waits_for_the_parents_work() -> None:
    """STR-3, STR-4: the callback's stream waits, and the child has its own marks."""
    for turn in range(1, REPEATS + 1):
        latch = Latch()
        stream, tensor = held_write(latch, turn)
        parent: Future[torch.Tensor] = Future()
        child = parent.then(lambda p: p.value() * 2)
        with torch.cuda.stream(stream):
            parent.set_result(tensor)
        assert read_on_side_stream(latch, child) == (2 * turn, 2 * turn)


def test_str3_code_before_then_happens_before_the_callback() -> None:
    """STR-3: the callback also waits for the registering thread's current stream."""
    for turn in range(1, REPEATS + 1):
        latch = Latch()
        stream, tensor = held_write(latch, turn)
        parent: Future[None] = Future()
        with torch.cuda.stream(stream):
            child = parent.then(lambda _, tensor=tensor: tensor * 3)
        parent.set_result(None)
        assert read_on_side_stream(latch, child) == (3 * turn, 3 * turn)


def test_str3_callback_has_a_stream_of_its_own_and_all_is_restored() -> None:
    """STR-3: not the default stream, not the caller's; the caller's come back."""
    torch.zeros(1, device="cuda:0")
    mine = torch.cuda.Stream(0)
    parent: Future[None] = Future()
    seen: list[torch.cuda.Stream] = []
    parent.then(lambda _: seen.append(torch.cuda.current_stream(0)))

    def fail(_: Future[None]) -> None:
        seen.append(torch.cuda.current_stream(0))
        raise ValueError("on purpose")

    child = parent.then(fail)
    with torch.cuda.stream(mine):
        parent.set_result(None)
        assert torch.cuda.current_stream(0) == mine
    assert isinstance(child.exception(), ValueError)
    assert len(seen) == 2
    assert all(s not in {mine, torch.cuda.default_stream(0)} for s in seen)


@pytest.mark.parametrize("ending", ["none", "raises", "unknown type"])
def test_str5_child_waits_for_work_in_place(ending: str) -> None:
    """STR-5, STR-6: waiting for the child waits for what the callback launched."""
    for turn in range(1, REPEATS + 1):
        latch = Latch()
        target = torch.zeros(SIZE, device="cuda:0")
        torch.cuda.current_stream(0).synchronize()

        def work(
            _: Future[None],
            latch: Latch = latch,
            target: torch.Tensor = target,
            turn: int = turn,
        ) -> object:
            latch.hold(torch.cuda.current_stream(0))
            target.fill_(turn)
            if ending == "raises":
                raise ValueError("on purpose")
            return Unknown(target) if ending == "unknown type" else None

        parent: Future[None] = Future()
        child = parent.then(work)
        parent.set_result(None)
        reader = torch.cuda.Stream(0)
        with torch.cuda.stream(reader):
            error = child.exception(timeout=5)
            seen = target.clone()
        latch.open_after_chance(reader)
        reader.synchronize()
        assert seen.min().item() == turn
        expected = {
            "none": type(None),
            "raises": ValueError,
            "unknown type": rpcfut.ExtractionError,
        }
        assert type(error) is expected[ending]


def test_str6_unknown_type_fails_at_once_while_the_gpu_is_busy() -> None:
    """STR-6, EXT-3: the error does not wait for the device."""
    latch = Latch()
    stream, tensor = held_write(latch, 1.0)
    parent: Future[torch.Tensor] = Future()
    child = parent.then(lambda p: Unknown(p.value()))
    with torch.cuda.stream(stream):
        parent.set_result(tensor)
    assert child.done()
    with pytest.raises(rpcfut.ExtractionError, match="Unknown"):
        child.wait()
    assert not stream.query()
    latch.open()
    stream.synchronize()


def test_str7_value_on_an_undeclared_device_is_refused() -> None:
    """STR-7: both sets are named."""
    future: Future[torch.Tensor] = Future(devices=["cuda:1"])
    future.set_result(torch.zeros(1, device="cuda:0"))
    with pytest.raises(rpcfut.DeviceMismatchError, match=r"cuda:0.*cuda:1"):
        future.wait()


def test_str3_callbacks_on_one_stream_lose_no_update() -> None:
    """STR-3: read, change and write from many threads, all on one stream."""
    total = torch.zeros(1, device="cuda:0")
    stream = rpcfut.stream("cuda:0")
    parents: list[Future[int]] = [Future() for _ in range(200)]

    def add(_: Future[int]) -> None:
        old = total.clone()
        total.copy_(old + 1)

    children = [parent.then(add, stream=stream) for parent in parents]
    threads = [
        threading.Thread(target=lambda i=i: [p.set_result(0) for p in parents[i::8]])
        for i in range(8)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for child in children:
        child.wait(timeout=10)
    assert total.item() == len(parents)


def test_str11_memory_is_not_reused_while_a_reader_still_needs_it() -> None:
    """STR-11, STR-2: the allocator knows the reader's stream."""
    for turn in range(1, REPEATS + 1):
        latch = Latch()
        future: Future[torch.Tensor] = Future()
        future.set_result(torch.full((SIZE,), float(turn), device="cuda:0"))
        reader = torch.cuda.Stream(0)
        latch.hold(reader)
        with torch.cuda.stream(reader):
            seen = torch.empty(SIZE, device="cuda:0")
            seen.copy_(future.wait())
        del future
        noise = [torch.full((SIZE,), -1.0, device="cuda:0") for _ in range(4)]
        torch.cuda.current_stream(0).synchronize()
        latch.open()
        reader.synchronize()
        assert seen.min().item() == seen.max().item() == turn
        del noise
