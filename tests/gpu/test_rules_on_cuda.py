"""Each stream rule on a real GPU, by its name; the mutants are caught here.

A latch makes each race certain, not likely: a stream is held up by a kernel until the
host opens it, and the reader gets its chance to run ahead first. Each test runs 50
rounds and says in how many it was wrong. The same rules on the simulated device:
tests/rules/test_rules_on_sim.py.
"""

from __future__ import annotations

import threading
from contextlib import suppress
from typing import TYPE_CHECKING

import pytest
import torch

import rpcfut
from rpcfut import Future
from rpcfut._extract import extract_device
from tests.support.latch import Latch
from tests.support.rounds import SIZE, held_write, in_rounds, is_all, reads

if TYPE_CHECKING:
    from collections.abc import Callable

pytestmark = [pytest.mark.gpu(n=1), pytest.mark.timeout(120)]


class Opaque:
    """A type that nobody registered."""

    def __init__(self, tensor: torch.Tensor) -> None:
        self.tensor = tensor


@pytest.mark.racy
def test_the_latch_shows_a_read_that_does_not_wait() -> None:
    """The check can fail: without a future the reader sees zeros, each time."""

    def is_wrong(turn: int) -> bool:
        latch = Latch()
        stream, tensor = held_write(latch, turn)
        saw = reads(latch, lambda: tensor, turn)
        stream.synchronize()
        return not saw

    in_rounds(is_wrong)


def test_str1_completing_records_on_the_completing_threads_stream() -> None:
    def is_right(turn: int) -> bool:
        latch = Latch()
        stream, tensor = held_write(latch, turn)
        future: Future[torch.Tensor] = Future()
        with torch.cuda.stream(stream):
            future.set_result(tensor)
        return reads(latch, future.wait, turn)

    in_rounds(is_right)


@pytest.mark.parametrize("how", ["wait", "result", "value"])
def test_str2_reading_makes_the_readers_stream_wait(how: str) -> None:
    """The host does not wait: the latch is still shut when the read returns."""

    def is_right(turn: int) -> bool:
        latch = Latch()
        stream, tensor = held_write(latch, turn)
        future: Future[torch.Tensor] = Future()
        with torch.cuda.stream(stream):
            future.set_result(tensor)
        return reads(latch, getattr(future, how), turn)

    in_rounds(is_right)


def reused(read: Callable[[torch.Tensor], Future[torch.Tensor]], turn: int) -> bool:
    """Whether a held reader's memory is left alone once everybody dropped it."""
    latch = Latch()
    future = read(torch.full((SIZE,), float(turn), device="cuda:0"))
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
    del noise
    with torch.cuda.stream(reader):
        return is_all(seen, turn)


def done(tensor: torch.Tensor) -> Future[torch.Tensor]:
    """A future of a tensor."""
    future: Future[torch.Tensor] = Future()
    future.set_result(tensor)
    return future


def test_str2_the_allocator_is_told_who_reads_b51() -> None:
    in_rounds(lambda turn: reused(done, turn))


def test_str11_memory_lives_until_the_last_reader_is_through() -> None:
    """The value went through a callback; the reader holds nothing but its stream."""

    def through_a_callback(tensor: torch.Tensor) -> Future[torch.Tensor]:
        parent = done(tensor)
        del tensor
        child = parent.then(lambda f: f.value())
        child.wait(5)
        return child

    in_rounds(lambda turn: reused(through_a_callback, turn))


def test_str11_memory_of_cupy_is_held_for_its_readers_b52() -> None:
    """Its pool knows one stream only, and torch's record_stream does nothing for it."""
    cupy = pytest.importorskip("cupy")

    def is_right(turn: int) -> bool:
        latch = Latch()
        future: Future[object] = Future()
        future.set_result(cupy.full((SIZE,), turn, dtype=cupy.float32))
        reader = torch.cuda.Stream(0)
        latch.hold(reader)
        with torch.cuda.stream(reader):
            seen = torch.empty(SIZE, device="cuda:0")
            seen.copy_(torch.as_tensor(future.wait(), device="cuda:0"))
        del future
        noise = [cupy.full((SIZE,), -1, dtype=cupy.float32) for _ in range(4)]
        cupy.cuda.get_current_stream().synchronize()
        latch.open()
        reader.synchronize()
        del noise
        with torch.cuda.stream(reader):
            return is_all(seen, turn)

    in_rounds(is_right)


def test_str3_a_callback_comes_after_its_parents_work() -> None:
    """It takes the value past the future, so that only its stream can be right."""

    def is_right(turn: int) -> bool:
        latch = Latch()
        stream, tensor = held_write(latch, turn)
        parent: Future[torch.Tensor] = Future()
        child = parent.then(lambda _: tensor * 2, after_here=False)
        with torch.cuda.stream(stream):
            parent.set_result(tensor)
        return reads(latch, child.wait, 2 * turn)

    in_rounds(is_right)


def test_str3_a_callback_comes_after_the_code_before_then() -> None:
    def is_right(turn: int) -> bool:
        latch = Latch()
        stream, tensor = held_write(latch, turn)
        parent: Future[None] = Future()
        with torch.cuda.stream(stream):
            child = parent.then(lambda _: tensor * 3)
        parent.set_result(None)
        return reads(latch, child.wait, 3 * turn)

    in_rounds(is_right)


def test_str3_a_callback_has_a_stream_of_its_own_and_all_is_restored() -> None:
    """Not the default stream, not the caller's, who gets his back, also on error."""
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


def test_str3_callbacks_given_one_stream_do_not_interleave() -> None:
    """Two callbacks read, then change, then write; the other may not come between."""

    def is_right(_: int) -> bool:
        total = torch.zeros(1, device="cuda:0")
        stream = rpcfut.stream("cuda:0")
        inside = [threading.Event(), threading.Event()]
        parents: list[Future[None]] = [Future(), Future()]

        def update(number: int) -> None:
            old = total.clone()
            inside[number].set()
            inside[1 - number].wait(0.05)
            total.copy_(old + 1)

        children = [
            parent.then(lambda _, n=number: update(n), stream=stream)
            for number, parent in enumerate(parents)
        ]
        threads = [
            threading.Thread(target=parent.set_result, args=(None,))
            for parent in parents
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(10)
        for child in children:
            child.wait(10)
        return total.item() == 2

    in_rounds(is_right)


def test_str4_the_childs_events_come_from_what_is_returned() -> None:
    """On the stream that was current when the callback returned."""

    def is_right(turn: int) -> bool:
        latch = Latch()
        side = torch.cuda.Stream(0)

        def switch(_: Future[None]) -> torch.Tensor:
            torch.cuda.set_stream(side)
            tensor = torch.zeros(SIZE, device="cuda:0")
            latch.hold(side)
            return tensor.fill_(turn)

        parent: Future[None] = Future()
        child = parent.then(switch)
        parent.set_result(None)
        return reads(latch, child.wait, turn)

    in_rounds(is_right)


@pytest.mark.parametrize("ending", ["nothing", "raises", "unknown"])
def test_str5_what_was_launched_in_place_is_waited_for(ending: str) -> None:
    expected = {
        "nothing": type(None),
        "raises": ValueError,
        "unknown": rpcfut.ExtractionError,
    }[ending]

    def is_right(turn: int) -> bool:
        latch = Latch()
        target = torch.zeros(SIZE, device="cuda:0")
        torch.cuda.current_stream(0).synchronize()

        def work(_: Future[None]) -> object:
            latch.hold(torch.cuda.current_stream(0))
            target.fill_(turn)
            if ending == "raises":
                raise ValueError("on purpose")
            return Opaque(target) if ending == "unknown" else None

        parent: Future[None] = Future()
        child = parent.then(work)
        parent.set_result(None)

        def read() -> torch.Tensor:
            assert type(child.exception(timeout=5)) is expected
            return target

        return reads(latch, read, turn)

    in_rounds(is_right)


def test_str6_an_unknown_type_never_hides_behind_the_parents_events() -> None:
    """It fails at once, while the GPU is busy; let through, it would be read early."""

    def is_right(turn: int) -> bool:
        latch = Latch()
        stream, tensor = held_write(latch, turn)
        parent: Future[torch.Tensor] = Future()

        def work(f: Future[torch.Tensor]) -> Opaque:
            side = torch.cuda.Stream(0)
            side.wait_stream(torch.cuda.current_stream(0))
            with torch.cuda.stream(side):
                return Opaque(f.value() * 2)

        child = parent.then(work)
        with torch.cuda.stream(stream):
            parent.set_result(tensor)
        assert child.done()
        if child.exception() is not None:
            assert turn == 0 or not stream.query()  # the GPU is still busy
            latch.open()
            stream.synchronize()
            return isinstance(child.exception(), rpcfut.ExtractionError)
        return reads(latch, lambda: child.wait().tensor, 2 * turn)

    in_rounds(is_right)


def test_str7_without_declared_devices_they_come_from_the_value() -> None:
    """A future made without devices is as safe as one made with them."""

    def is_right(turn: int) -> bool:
        latch = Latch()
        stream, tensor = held_write(latch, turn)
        future: Future[torch.Tensor] = Future()
        with torch.cuda.stream(stream):
            future.set_result(tensor)
        return reads(latch, future.wait, turn)

    in_rounds(is_right)


def test_str7_a_value_on_an_undeclared_device_is_refused() -> None:
    future: Future[torch.Tensor] = Future(devices=["cuda:1"])
    future.set_result(torch.zeros(1, device="cuda:0"))
    with pytest.raises(rpcfut.DeviceMismatchError, match=r"cuda:0.*cuda:1"):
        future.wait()


def test_str12_pool_streams_are_used_again_so_memory_is_too() -> None:
    """500 callbacks that allocate 256 MB reserve at most 3 x torch's peak."""
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats()
    nbytes = 256 << 20
    for _ in range(500):
        parent: Future[None] = Future()
        child = parent.then(
            lambda _: torch.empty(nbytes, dtype=torch.uint8, device="cuda:0").fill_(1)
        )
        parent.set_result(None)
        child.wait(10)
        del parent, child
        # A block whose last reader has not passed counts as active: with such blocks
        # in the peak, any reserve would look small.
        torch.cuda.current_stream(0).synchronize()
    stats = torch.cuda.memory_stats()
    reserved, active = stats["reserved_bytes.all.peak"], stats["active_bytes.all.peak"]
    assert reserved <= 3 * active, f"{reserved >> 20} MB of {active >> 20} MB"


def test_str12_no_other_device_gets_a_context_b53() -> None:
    for index in range(1, torch.cuda.device_count()):
        assert not torch._C._cuda_hasPrimaryContext(index)


@pytest.mark.racy  # the sanitizer does not know captures
def test_str14_what_would_break_a_capture_is_refused_and_the_graph_is_right() -> None:
    """Refused on the capturing thread; the capture goes on, and replays rightly."""
    x = torch.zeros(8, device="cuda:0")
    ready = done(torch.ones(8, device="cuda:0"))
    pending: Future[object] = Future()
    torch.cuda.current_stream(0).synchronize()
    graph = torch.cuda.CUDAGraph()
    refused = 0
    with suppress(RuntimeError), torch.cuda.graph(graph):  # if it breaks, see below
        x.add_(1)
        for act in (
            lambda: pending.set_result(x),
            lambda: pending.then(lambda f: f),
            ready.wait,
            ready.value,
        ):
            try:
                act()
            except rpcfut.CaptureError:
                refused += 1
    assert refused == 4
    graph.replay()
    torch.cuda.current_stream(0).synchronize()
    assert x.sum().item() == 8
    pending.set_result(x)
    assert is_all(pending.wait(), 1)


@pytest.mark.racy  # the sanitizer does not know captures
def test_str14_threads_of_the_library_do_not_break_a_capture() -> None:
    """A callback runs on the pool while this thread captures, in the strictest mode."""
    x = torch.zeros(8, device="cuda:0")
    ran = threading.Event()
    may_run = threading.Event()
    parent = done(torch.ones(8, device="cuda:0"))

    def work(f: Future[torch.Tensor]) -> torch.Tensor:
        may_run.wait(10)
        value = f.value() + 1
        ran.set()
        return value

    warm = parent.then(lambda f: f.value() + 1)
    warm.wait(5)
    child = parent.then(work)
    torch.cuda.current_stream(0).synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, capture_error_mode="global"):
        x.add_(1)
        may_run.set()
        assert ran.wait(10)
        x.add_(1)
    graph.replay()
    assert is_all(child.wait(5), 2)
    assert is_all(x, 2)


def test_pinned_memory_is_waited_for_on_the_host() -> None:
    """STR-2: its reader runs on the host, so the host thread waits for the copy."""

    def is_right(turn: int) -> bool:
        latch = Latch()
        stream, tensor = held_write(latch, turn)
        host = torch.zeros(SIZE, pin_memory=True)
        future: Future[torch.Tensor] = Future()
        with torch.cuda.stream(stream):
            host.copy_(tensor, non_blocking=True)
            future.set_result(host)
        opener = threading.Timer(0.005, latch.open)
        opener.start()
        value = future.wait()
        right = value.min().item() == value.max().item() == turn
        opener.join()
        return right

    in_rounds(is_right)


@pytest.mark.racy  # the sanitizer does not know sparse tensors
def test_ext1_the_short_way_for_plain_tensors_finds_what_the_long_way_finds() -> None:
    """One block, the same as the walk's; anything else goes the long way."""
    plain = torch.arange(10.0, device="cuda:0")
    leaf = torch.ones(3, device="cuda:0", requires_grad=True)
    leaf.sum().backward()
    for tensor in (plain, plain[3:], plain.expand(2, 10), leaf, plain.to_sparse()):
        short = {ref[:3] for ref in extract_device(tensor)}
        assert short == {ref[:3] for ref in extract_device([tensor])}
    assert len(extract_device(plain)) == 1
    assert len(extract_device(leaf)) == 2
