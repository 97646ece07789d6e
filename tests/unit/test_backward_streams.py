"""`backward` and its hand-over on fake and simulated devices: who waits for whom.

The graphs lie on the host, so a hook of theirs runs on the thread that runs the pass,
under its streams: it can look at them, or stand for a kernel of the pass.
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any

import pytest
import torch

from rpcfut import (
    DataRef,
    ExtractionError,
    Future,
    backward,
    extract,
    extractors,
    register_extractor,
)
from rpcfut._devices import CPU
from rpcfut._handover import Made, hand_over
from rpcfut._pool import CORE_THREADS
from tests.support.fake_seam import (
    FAKE0,
    FAKE1,
    FakeArray,
    FakeEvent,
    FakeSeam,
    FakeStream,
    installed,
)
from tests.support.threads import Gate

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from rpcfut._devices import Device

TIMEOUT_S = 10.0


@pytest.fixture
def seam() -> Iterator[FakeSeam]:
    """The fake device, both of its two in use."""
    with installed() as fake:
        yield fake


class Elsewhere(torch.Tensor):
    """A tensor that says it lies somewhere else."""

    @property
    def device(self) -> torch.device:  # type: ignore[override]
        """Nobody has a seam for this one."""
        return torch.device("xpu:0")


class Far(torch.Tensor):
    """A tensor on the host that counts as memory of a fake device."""


def far(tensor: torch.Tensor) -> torch.Tensor:
    """Make a tensor count as memory of fake:1."""
    known = [DataRef(FAKE1, tensor.data_ptr(), 8, tensor)]
    register_extractor(Far, lambda _: known)
    return tensor.as_subclass(Far)


def loss_with(hook: Callable[[], object]) -> tuple[torch.Tensor, torch.Tensor]:
    """A leaf and a loss of it; the pass calls the hook before it reaches the leaf."""
    leaf = torch.ones(2, requires_grad=True)
    middle = leaf * 2
    middle.register_hook(lambda _: (hook(), None)[1])
    return leaf, middle.sum()


def mark_streams(future: Future[Any]) -> list[FakeStream]:
    """The streams that a done future's marks lie on."""
    return [mark.event.stream for mark in future._marks]  # type: ignore[attr-defined]


def test_the_pass_waits_for_the_streams_that_were_current_at_the_call(
    seam: FakeSeam,
) -> None:
    """Marked by the calling thread, before the hand-over (STR-10)."""
    given: list[FakeStream] = []
    leaf, loss = loss_with(lambda: given.extend(seam.current()))
    callers = FakeStream(FAKE0), FakeStream(FAKE1)
    with seam.on(*callers):
        future = backward(loss)
        marked = [e for e in seam.log if e.verb == "record"][:2]
    future.wait(TIMEOUT_S)
    assert leaf.grad is not None
    assert [e.stream for e in marked] == list(callers)
    assert {e.thread for e in marked} == {threading.get_ident()}
    assert seam.created == given
    for mine, its in zip(callers, given, strict=True):
        assert seam.waited_for(its) == {mine}
        first = next(e for e in seam.log if e.verb == "wait" and e.stream is its)
        assert first.thread != threading.get_ident()


def test_the_futures_marks_lie_on_the_streams_of_the_pass_behind_it(
    seam: FakeSeam,
) -> None:
    """torch has these wait for the leaves; so whoever waits for them waits (STR-10)."""
    given: list[FakeStream] = []
    ran_at: list[int] = []
    _, loss = loss_with(
        lambda: (given.extend(seam.current()), ran_at.append(len(seam.log)))
    )
    future = backward(loss)
    reader = FakeStream(FAKE0)
    with seam.on(reader):
        future.wait(TIMEOUT_S)
    assert mark_streams(future) == given
    recorded = [i for i, e in enumerate(seam.log) if e.stream in given[:1]]
    assert max(recorded) >= ran_at[0]
    assert seam.waited_for(reader) == {given[0]}


def test_a_step_chained_to_the_pass_waits_for_it(seam: FakeSeam) -> None:
    """It has streams of its own, of any thread (STR-10)."""
    given: list[FakeStream] = []
    steps: list[FakeStream] = []
    _, loss = loss_with(lambda: given.extend(seam.current()))
    step = backward(loss).then(lambda _: steps.extend(seam.current()))
    step.wait(TIMEOUT_S)
    for its, of_pass in zip(steps, given, strict=True):
        assert of_pass in seam.waited_for(its)


def test_explicit_gradients_are_kept_for_the_streams_of_the_pass(
    seam: FakeSeam,
) -> None:
    """These convert them, if they are of another type (STR-11)."""
    given: list[FakeStream] = []
    leaf = torch.ones(2, requires_grad=True)
    root = leaf * 2
    root.register_hook(lambda _: (given.extend(seam.current()), None)[1])
    gradient = torch.ones(2)
    backward(root, far(gradient)).wait(TIMEOUT_S)
    assert seam.kept_alive_on(gradient) == [given[1]]


@pytest.mark.parametrize("how", ["all leaves", "inputs"])
def test_gradients_of_leaves_are_kept_for_whoever_reads_the_future(
    seam: FakeSeam, how: str
) -> None:
    """Also without `inputs`, when they are not the value (STR-2, STR-10)."""
    leaf, loss = loss_with(lambda: None)
    gradient = torch.zeros(2)
    leaf.grad = far(gradient)
    reader = FakeStream(FAKE1)
    future = backward(loss, inputs=leaf) if how == "inputs" else backward(loss)
    with seam.on(reader):
        future.wait(TIMEOUT_S)
    assert gradient.tolist() == [2.0, 2.0]
    assert seam.kept_alive_on(gradient) == [reader]


def test_a_pass_that_fails_is_waited_for_as_well(seam: FakeSeam) -> None:
    """What it launched before may still run (STR-5)."""
    given: list[FakeStream] = []

    def fail() -> None:
        given.extend(seam.current())
        raise KeyError("on purpose")

    future = backward(loss_with(fail)[1])
    assert isinstance(future.exception(TIMEOUT_S), KeyError)
    assert mark_streams(future) == given


def test_the_callers_device_is_current_in_the_pass(seam: FakeSeam) -> None:
    """A hook that makes a tensor on "the" device means the caller's."""
    seen: list[Device] = []
    _, loss = loss_with(lambda: seen.append(seam.current_device))
    undo = seam.make_current({}, FAKE1)
    backward(loss).wait(TIMEOUT_S)
    undo()
    assert seen == [FAKE1]


@pytest.mark.parametrize("where", ["create_stream", "make_current", "wait", "record"])
def test_a_device_that_fails_fails_the_future_or_the_call(
    seam: FakeSeam, where: str
) -> None:
    """It is never left pending."""
    seam.fails_in = where
    with pytest.raises(OSError, match=f"the device failed in {where}"):
        backward(loss_with(lambda: None)[1]).wait(TIMEOUT_S)
    seam.fails_in = None


def test_hooks_of_many_passes_may_wait_for_callbacks(seam: FakeSeam) -> None:
    """A pass that waits for the engine's threads does not use up the pool (RPC-6)."""
    may_go_on = Gate()
    passes = [
        backward(loss_with(may_go_on.pass_through)[1]) for _ in range(CORE_THREADS)
    ]
    done: Future[None] = Future()
    done.set_result(None)
    done.then(lambda _: may_go_on.set())
    for one in passes:
        one.wait(TIMEOUT_S)


# ---- the hand-over ------------------------------------------------------------------


def test_what_the_work_reads_is_kept_for_its_streams(seam: FakeSeam) -> None:
    """The allocator is told, on the stream that reads (STR-11)."""
    array = FakeArray(FAKE0)
    future = hand_over(lambda: Made(seam.current(), None), extract(array), what="work")
    given = future.wait(TIMEOUT_S)
    assert seam.kept_alive_on(array) == [given[0]]


def test_what_the_work_made_is_kept_for_its_readers(seam: FakeSeam) -> None:
    """Also when it is not the value, as the gradients of all leaves (STR-2)."""
    array = FakeArray(FAKE1)
    future = hand_over(lambda: Made(None, [array]), what="work")
    reader = FakeStream(FAKE1)
    with seam.on(reader):
        assert future.wait(TIMEOUT_S) is None
    assert seam.kept_alive_on(array) == [reader]


def test_what_the_work_made_must_be_known(seam: FakeSeam) -> None:
    """Else nobody could wait for it (STR-6, EXT-3)."""

    class Unknown:
        pass

    future = hand_over(lambda: Made(None, [Unknown()]), what="work")
    with pytest.raises(ExtractionError) as caught:
        future.wait(TIMEOUT_S)
    assert caught.value.path == "made[0]"
    assert f"what the work called at {__file__}:" in str(caught.value)
    assert len(mark_streams(future)) == 2


def test_what_extractors_say_at_the_call_holds_for_the_work(seam: FakeSeam) -> None:
    """EXT-2: as for a callback."""
    array = FakeArray(FAKE1)

    class Scoped:
        pass

    with extractors({Scoped: lambda _: [array]}):
        future = hand_over(lambda: Made(None, Scoped()), what="work")
    reader = FakeStream(FAKE1)
    with seam.on(reader):
        future.wait(TIMEOUT_S)
    assert seam.kept_alive_on(array) == [reader]


def test_the_work_starts_once_pinned_memory_that_it_reads_is_filled(
    seam: FakeSeam,
) -> None:
    """It runs on the host; neither the caller nor a pool thread waits (STR-2)."""
    block = DataRef(CPU, 4096, 8, object())
    events: list[FakeEvent] = []

    def work() -> Made[bool]:
        return Made(all(event.query() for event in events), None)

    future = hand_over(work, [block], what="work")
    events += [e.what for e in seam.log if e.verb == "record"]
    assert len(events) == 2
    assert seam.created == []
    for event in events:
        event.passed.set()
    assert future.wait(TIMEOUT_S)


def test_no_stream_is_touched_where_there_is_no_device() -> None:
    """STR-12: nothing is in use, so nothing is marked or made current."""
    with installed(FakeSeam(used=())) as seam:
        backward(loss_with(lambda: None)[1]).wait(TIMEOUT_S)
        assert seam.log == []
        assert seam.created == []


def test_a_device_first_used_in_the_pass_is_waited_for() -> None:
    """STR-5: on the stream that was current for it there."""
    with installed(FakeSeam(used=())) as seam:
        _, loss = loss_with(lambda: seam.used_devices.append(FAKE1))
        future = backward(loss)
        future.wait(TIMEOUT_S)
        assert mark_streams(future) == [seam.current_stream(FAKE1)]


def test_a_root_on_a_device_that_nobody_knows_is_refused() -> None:
    """Its streams could not be waited for."""
    root = torch.ones(1, requires_grad=True).as_subclass(Elsewhere)
    with pytest.raises(LookupError, match="no seam for device 'xpu:0'"):
        backward(root)
