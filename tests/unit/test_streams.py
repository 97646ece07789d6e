"""STR-1..7 on a fake device: who records, who waits, and what is current when."""

from __future__ import annotations

import asyncio
import concurrent.futures
import random
import threading
from typing import TYPE_CHECKING, Any

import pytest
import torch

import rpcfut
from rpcfut import DeviceMismatchError, ExtractionError, Future
from rpcfut._devices import CPU, Device
from rpcfut._streams import Mark, installed_seam, seam_of, wait_marks
from tests.support.fake_seam import (
    FAKE0,
    FAKE1,
    Box,
    FakeArray,
    FakeEvent,
    FakeSeam,
    FakeStream,
    installed,
)
from tests.support.threads import Running, run_together

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


@pytest.fixture
def seam() -> Iterator[FakeSeam]:
    """The fake device, both of its two in use."""
    with installed() as fake:
        yield fake


class Unknown:
    """A type that nobody registered."""


def _mark_streams(future: Future[Any]) -> list[FakeStream]:
    """The streams that a done future's marks lie on."""
    return [mark.event.stream for mark in future._marks]  # type: ignore[attr-defined]


def _done(value: object) -> Future[Any]:
    future: Future[Any] = Future()
    future.set_result(value)
    return future


# ---- STR-1 complete -----------------------------------------------------------------


def test_set_result_records_one_event_per_device_on_the_current_streams(
    seam: FakeSeam,
) -> None:
    """A value made on a side stream and set there is safe to read anywhere (STR-1)."""
    side = FakeStream(FAKE1)
    with seam.on(side):
        future = _done([FakeArray(FAKE1), FakeArray(FAKE1)])
    assert _mark_streams(future) == [side]
    both = _done(FakeArray(FAKE0, FAKE1))
    assert _mark_streams(both) == list(seam.current())


def test_events_are_recorded_on_the_completing_thread_before_any_hand_over(
    seam: FakeSeam,
) -> None:
    """Nobody can see the value before its event exists (STR-1)."""
    future: Future[FakeArray] = Future()
    seen: list[list[str]] = []
    future._add_hook(lambda _f, _w: seen.append([e.verb for e in seam.log]))
    own = FakeStream(FAKE0)

    def complete() -> int:
        with seam.on(own):
            future.set_result(FakeArray(FAKE0))
        return threading.get_ident()

    thread = Running(complete).result()
    assert seen == [["record"]]
    assert (seam.log[0].stream, seam.log[0].thread) == (own, thread)


def test_a_host_value_touches_no_stream(seam: FakeSeam) -> None:
    """Nothing is recorded or waited for (STR-1)."""
    assert _done({"a": [1, 2.0, "x"]}).wait(0) == {"a": [1, 2.0, "x"]}
    assert seam.log == []


def test_a_stream_with_nothing_queued_needs_no_event(seam: FakeSeam) -> None:
    """The seam says so, and nobody waits (STR-1)."""
    seam.idle.add(seam.current_stream(FAKE0))
    future = _done(FakeArray(FAKE0))
    assert future._marks == ()
    future.wait(0)
    assert seam.waited_for(seam.current_stream(FAKE0)) == set()


# ---- STR-2 read ---------------------------------------------------------------------


def _await(future: Future[Any]) -> object:
    async def main() -> object:
        return await future

    return asyncio.run(main())


READS: dict[str, Callable[[Future[Any]], object]] = {
    "wait": lambda f: f.wait(10),
    "result": lambda f: f.result(10),
    "value": lambda f: f.value(),
    "exception": lambda f: f.exception(10),
    "await": _await,
}


@pytest.mark.parametrize("read", READS.values(), ids=READS)
def test_the_readers_current_streams_wait(
    seam: FakeSeam, read: Callable[[Future[Any]], object]
) -> None:
    """Every way to get the value, on any thread and stream (STR-2)."""
    array = FakeArray(FAKE0, FAKE1)
    writers = FakeStream(FAKE0), FakeStream(FAKE1)
    with seam.on(*writers):
        future = _done(array)
    readers = FakeStream(FAKE0), FakeStream(FAKE1)

    def read_elsewhere() -> None:
        with seam.on(*readers):
            read(future)

    Running(read_elsewhere).result()
    assert [seam.waited_for(stream) for stream in readers] == [{w} for w in writers]
    assert seam.kept_alive_on(array) == list(readers)


def test_the_host_waits_for_pinned_memory_and_for_nothing_else(seam: FakeSeam) -> None:
    """A reader of device memory never blocks; one of pinned memory must (STR-2)."""
    event = FakeEvent(FakeStream(FAKE0))
    mark = Mark(seam, FAKE0, event)
    array = FakeArray(FAKE0)
    on_device = rpcfut.DataRef(FAKE0, 1, 8, array)
    pinned = rpcfut.DataRef(CPU, 2, 8, object())
    wait_marks([mark], [on_device])
    assert event.host_waits == 0
    wait_marks([mark], [pinned], on_host=False)
    assert event.host_waits == 0
    wait_marks([mark], [pinned])
    assert event.host_waits == 1


def test_an_error_can_carry_marks_too(seam: FakeSeam) -> None:
    """Waiting for a child that failed waits for what was launched there (STR-5)."""
    child = _done(FakeArray(FAKE0)).then(lambda _: 1 // 0)
    reader = FakeStream(FAKE0)
    with seam.on(reader), pytest.raises(ZeroDivisionError):
        child.wait(10)
    launched_on = {stream for stream in seam.created if stream.device == FAKE0}
    assert seam.waited_for(reader) == launched_on != set()


# ---- STR-3 callback -----------------------------------------------------------------


def _currents_in(
    seam: FakeSeam, future: Future[Any], **options: Any
) -> tuple[FakeStream, FakeStream]:
    return future.then(lambda _: Box(seam.current()), **options).wait(10).content


def test_a_callback_has_own_streams_current_on_every_used_device(
    seam: FakeSeam,
) -> None:
    """Streams of ours, behind the parent's events and the registering ones (STR-3)."""
    writer, here = FakeStream(FAKE0), FakeStream(FAKE1)
    array = FakeArray(FAKE0)
    with seam.on(writer):
        future = _done(array)
    with seam.on(here):
        registering = seam.current()
        own = _currents_in(seam, future)
    assert set(own) <= set(seam.created)
    assert [stream.device for stream in own] == [FAKE0, FAKE1]
    assert seam.waited_for(own[0]) == {writer, registering[0]}
    assert seam.waited_for(own[1]) == {here}
    assert own[0] in seam.kept_alive_on(array)


def test_without_after_here_only_the_parents_events_are_waited_for(
    seam: FakeSeam,
) -> None:
    """A backlog queued before `then` does not delay the callback (STR-3)."""
    writer = FakeStream(FAKE0)
    with seam.on(writer):
        future = _done(FakeArray(FAKE0))
    own = _currents_in(seam, future, after_here=False)
    assert seam.waited_for(own[0]) == {writer}
    assert seam.waited_for(own[1]) == set()


def test_what_counts_is_the_registering_thread_at_then(seam: FakeSeam) -> None:
    """Not the thread or the streams that complete the parent later (STR-3)."""
    here, there = FakeStream(FAKE1), FakeStream(FAKE1)
    parent: Future[int] = Future()
    with seam.on(here):
        child = parent.then(lambda _: Box(seam.current()))

    def complete() -> None:
        with seam.on(there):
            parent.set_result(1)

    Running(complete).result()
    assert seam.waited_for(child.wait(10).content[1]) == {here}


def test_devices_brings_an_unused_device_into_play() -> None:
    """`devices=` gives a stream where none would be; the host needs none (STR-3)."""
    with installed(FakeSeam(used=[])) as seam:
        plain = _currents_in(seam, _done(1))
        assert seam.created == []
        own = _currents_in(seam, _done(1), devices=["fake:1", "cpu"])
        assert plain[1] not in seam.created
        assert [own[1]] == seam.created
        assert own[0] is plain[0]


def test_a_parents_device_is_in_play_though_unused() -> None:
    """Its events say so (STR-3)."""
    with installed(FakeSeam(used=[])) as seam:
        own = _currents_in(seam, _done(FakeArray(FAKE1)))
        assert [own[1]] == seam.created


def test_the_current_device_is_the_parents(seam: FakeSeam) -> None:
    """Code that allocates without saying where finds the value's device (STR-3)."""
    child = _done(FakeArray(FAKE1)).then(lambda _: Box(seam.current_device))
    assert child.wait(10).content == FAKE1


@pytest.mark.parametrize("is_failing", ["returns", "raises"])
def test_streams_and_device_are_restored(seam: FakeSeam, is_failing: str) -> None:
    """The thread of set_result goes on as before, also after an error (STR-3)."""
    mine = FakeStream(FAKE0)

    def callback(_: object) -> None:
        assert seam.current_stream(FAKE0) is not mine
        seam.make_current({FAKE1: FakeStream(FAKE1)}, FAKE1)
        if is_failing == "raises":
            raise ValueError

    with seam.on(mine):
        before = seam.current(), seam.current_device
        parent: Future[Any] = Future()
        child = parent.then(callback)
        parent.set_result(FakeArray(FAKE1))
        assert child.done()
        assert (seam.current(), seam.current_device) == before


@pytest.mark.parametrize("where", ["create_stream", "make_current", "wait", "record"])
def test_a_failing_device_fails_the_child_and_restores_the_streams(
    seam: FakeSeam, where: str
) -> None:
    """It is an error of the child, not a lost callback or a changed thread (STR-3)."""
    mine = FakeStream(FAKE0)
    parent: Future[Any] = Future()
    with seam.on(mine):
        before = seam.current()
        child = parent.then(lambda _: 1)
        other = parent.then(lambda _: 2)
        seam.idle.add(mine)
        seam.fails_in = where
        parent.set_result(1)
        seam.fails_in = None
        assert seam.current() == before
    with pytest.raises(OSError, match=f"the device failed in {where}"):
        child.wait(10)
    assert isinstance(other.exception(10), OSError)
    assert _done(1).then(lambda f: f.value()).wait(10) == 1


def test_a_done_callback_gets_the_same_streams(seam: FakeSeam) -> None:
    """`add_done_callback` runs under the rules of `then` (STR-3)."""
    parent: Future[Any] = Future()
    seen: list[tuple[FakeStream, FakeStream]] = []
    parent.add_done_callback(lambda _: seen.append(seam.current()))
    parent.set_result(FakeArray(FAKE0))
    assert set(seen[0]) <= set(seam.created)
    assert seam.waited_for(seen[0][0]) == {seam.current_stream(FAKE0)}


def test_a_given_stream_replaces_the_pool_stream_of_its_device(seam: FakeSeam) -> None:
    """With the same waits; the other device gets a pool stream (STR-3)."""
    given, writer = FakeStream(FAKE0), FakeStream(FAKE0)
    with seam.on(writer):
        future = _done(FakeArray(FAKE0))
    own = _currents_in(seam, future, stream=given)
    assert own[0] is given
    assert own[1] in seam.created
    assert seam.waited_for(given) == {writer, seam.current_stream(FAKE0)}


def test_one_stream_per_device_may_be_given(seam: FakeSeam) -> None:
    """Two on one device, or what is no stream, are refused at `then` (STR-3)."""
    one, other, host = FakeStream(FAKE0), FakeStream(FAKE1), rpcfut.stream("cpu")
    assert _currents_in(seam, _done(1), stream=[one, other, host]) == (one, other)
    with pytest.raises(ValueError, match="two streams on fake:0"):
        _done(1).then(lambda _: 0, stream=[one, FakeStream(FAKE0)])
    with pytest.raises(TypeError, match="not a stream: 'fake:0'"):
        _done(1).then(lambda _: 0, stream="fake:0")


def test_streams_can_be_made_by_name(seam: FakeSeam) -> None:
    """There is one host stream; a device stream is new each time, and has an index."""
    assert rpcfut.stream("cpu") is rpcfut.stream("cpu")
    assert rpcfut.stream("fake:1").device == FAKE1
    assert rpcfut.stream("fake:1") is not rpcfut.stream("fake:1")
    with pytest.raises(ValueError, match="write 'cuda:0'"):
        rpcfut.stream("cuda")
    with pytest.raises(LookupError, match="no seam for device 'odd:0'"):
        rpcfut.stream("odd:0")
    assert len(seam.created) == 3


def test_callbacks_given_one_device_stream_run_one_at_a_time(seam: FakeSeam) -> None:
    """A FIFO stream alone does not save two threads that interleave (STR-3)."""
    given = FakeStream(FAKE0)
    inside: list[int] = []
    most: list[int] = []

    def callback(f: Future[int]) -> int:
        inside.append(f.value())
        most.append(len(inside))
        inside.pop()
        return f.value()

    parents = [Future[int]() for _ in range(100)]
    children = [p.then(callback, stream=given) for p in parents]
    run_together(
        *(lambda k=k: [p.set_result(1) for p in parents[k::4]] for k in range(4))
    )
    assert [c.wait(10) for c in children] == [1] * 100
    assert most == [1] * 100
    assert seam.created


@pytest.mark.parametrize("seed", range(300))
def test_random_programs_with_several_lanes_always_end(seed: int) -> None:
    """In whatever order lanes, futures and threads meet, nobody waits for ever."""
    rng = random.Random(seed)
    lanes = [FakeStream(FAKE0), FakeStream(FAKE1), rpcfut.stream("cpu")]
    with installed():
        futures = [Future[int]() for _ in range(4)]
        ends: list[Future[Any]] = []

        def register() -> None:
            for _ in range(6):
                parent = rng.choice([*futures, *ends])
                given = rng.sample(lanes, rng.randint(0, 3)) or None
                ends.append(parent.then(lambda f: f.value() + 1, stream=given))

        register()
        orders = [rng.sample(futures, len(futures)) for _ in range(2)]
        run_together(
            register,
            *(lambda o=o: [f.try_set_result(0) for f in o] for o in orders),
        )
        for end in ends:
            assert end.wait(10) >= 1


# ---- STR-4, STR-5 child -------------------------------------------------------------


def _value(seam: FakeSeam, private: FakeStream) -> FakeArray:
    seam.make_current({FAKE0: private}, None)
    return FakeArray(FAKE0)


def test_the_childs_events_come_from_what_the_callback_returns(seam: FakeSeam) -> None:
    """On the streams current then: the user's own one, too; never the parent's."""
    private, writer = FakeStream(FAKE0, "private"), FakeStream(FAKE0, "writer")
    with seam.on(writer):
        parent = _done(FakeArray(FAKE0))
    child = parent.then(lambda _: _value(seam, private))
    child.wait(10)
    assert any(stream is private for stream in _mark_streams(child))
    assert writer not in _mark_streams(child)


def _return_none(_: object) -> None:
    return None


def _raise(_: object) -> None:
    raise ValueError


def _return_unknown(_: object) -> Unknown:
    return Unknown()


def _return_host(_: object) -> int:
    return 3


@pytest.mark.parametrize(
    "callback", [_return_none, _return_host, _raise, _return_unknown]
)
def test_the_child_waits_for_all_that_was_launched_on_given_streams(
    seam: FakeSeam, callback: Callable[[object], Any]
) -> None:
    """Whatever the callback returned or raised: nothing given escapes (STR-5)."""
    given = FakeStream(FAKE0)
    child = _done(FakeArray(FAKE0)).then(callback, stream=given)
    concurrent.futures.wait([child], timeout=10)
    assert set(_mark_streams(child)) == {given, *seam.created}
    reader = FakeStream(FAKE0)
    with seam.on(reader):
        child.exception(10)
    assert seam.waited_for(reader) == {given}


def test_a_device_first_used_inside_is_waited_for_too() -> None:
    """Its current stream gets an event, though it was not given (STR-5)."""
    with installed(FakeSeam(used=[FAKE0])) as seam:
        child = _done(1).then(lambda _: seam.used_devices.append(FAKE1))
        child.wait(10)
        assert [s.device for s in _mark_streams(child)] == [FAKE0, FAKE1]


def test_events_are_recorded_before_a_stream_is_given_back(seam: FakeSeam) -> None:
    """Or another callback's work would be in front of the child's event (STR-5)."""
    parent = _done(FakeArray(FAKE0))
    first = parent.then(lambda _: Box(seam.current()))
    own = first.wait(10).content
    assert set(own) <= set(_mark_streams(first))
    second = parent.then(lambda _: Box(seam.current()))
    assert second.wait(10).content == own, "the last one released comes first"


def test_a_flattened_child_has_the_inner_events_and_the_given_ones(
    seam: FakeSeam,
) -> None:
    """It depends on the inner value and on what the callback launched (STR-5)."""
    given, writer = FakeStream(FAKE0, "given"), FakeStream(FAKE0, "inner")
    inner: Future[FakeArray] = Future()
    child = _done(1).then(lambda _: inner, stream=given)
    late = FakeArray(FAKE0)
    with seam.on(writer):
        inner.set_result(late)
    assert child.wait(10) is late
    assert {writer, given} <= set(_mark_streams(child))
    early = _done(1).then(lambda _: inner, stream=given)
    early.wait(10)
    assert {writer, given} <= set(_mark_streams(early))
    assert set(_mark_streams(inner)) == {writer}


# ---- STR-6 unknown type, STR-7 devices ----------------------------------------------


def test_an_unknown_type_fails_the_child_at_once(seam: FakeSeam) -> None:
    """Before set_result returns; it never falls back to the parent's events (STR-6)."""
    writer = FakeStream(FAKE0)
    parent: Future[Any] = Future()
    child = parent.then(lambda _: {"layers": [FakeArray(FAKE0), Unknown()]})
    with seam.on(writer):
        parent.set_result(FakeArray(FAKE0))
    assert child.done()
    error = child.exception(0)
    assert isinstance(error, ExtractionError)
    assert error.type_name.endswith("Unknown")
    assert error.path == "result['layers'][1]"
    assert "test_an_unknown_type_fails_the_child_at_once" in error.what
    assert f"{__file__}:" in error.what
    assert "register" in error.fix
    assert writer not in _mark_streams(child)


def test_an_unknown_type_fails_set_results_future_at_once(seam: FakeSeam) -> None:
    """With the place of the call; nothing is recorded (STR-6)."""
    future = _done([1, Unknown()])
    error = future.exception(0)
    assert isinstance(error, ExtractionError)
    assert error.path == "value[1]"
    assert f"set_result at {__file__}:" in error.what
    assert seam.log == []


def test_a_value_elsewhere_is_refused_with_both_sets(seam: FakeSeam) -> None:
    """The devices that it lies on, and those that were declared (STR-7)."""
    future: Future[Any] = Future(devices=["fake:0"])
    future.set_result([FakeArray(FAKE0), FakeArray(FAKE1)])
    with pytest.raises(
        DeviceMismatchError, match=r"lies on fake:0, fake:1, but .* made for fake:0;"
    ):
        future.wait(0)
    none: Future[Any] = Future(devices=[])
    none.set_result(FakeArray(FAKE0))
    with pytest.raises(DeviceMismatchError, match="made for no device"):
        none.wait(0)
    assert seam.log == []


def test_a_value_on_a_declared_device_is_taken(seam: FakeSeam) -> None:
    """Declared or not, the events are the same (STR-7)."""
    future: Future[Any] = Future(devices=["fake:0", "fake:1", "cpu"])
    future.set_result(FakeArray(FAKE1))
    assert _mark_streams(future) == [seam.current_stream(FAKE1)]
    host: Future[int] = Future(devices=["fake:0"])
    host.set_result(1)
    assert host.wait(0) == 1


@pytest.mark.parametrize(
    ("spec", "text"),
    [
        ("cuda", "has no index: write 'cuda:0'"),
        ("fake", "has no index"),
        (-1, "not a device"),
        (True, "not a device"),
        ("cuda:x", "not a device"),
    ],
)
def test_a_device_without_an_index_is_refused(spec: Any, text: str) -> None:
    """At once: it would mean whatever is current when someone looks (STR-7)."""
    with pytest.raises(ValueError, match=text):
        Future(devices=[spec])
    with pytest.raises(ValueError, match=text):
        Future[int]().then(lambda _: 0, devices=[spec])


# ---- the seams ----------------------------------------------------------------------


def test_a_device_type_has_one_seam(seam: FakeSeam) -> None:
    """A second one is refused, and the first stays; it ends with its context."""
    with (
        pytest.raises(ValueError, match="'fake' already has a seam"),
        installed_seam("fake", FakeSeam()),
    ):
        pass
    assert seam_of(FAKE0) is seam
    with installed_seam("other", FakeSeam()):
        pass
    with pytest.raises(LookupError, match="no seam for device 'other:3'"):
        seam_of(Device("other", 3))


@pytest.mark.parametrize("one", ["cuda:0", 0, torch.device("cuda:0"), FAKE0])
def test_one_device_is_not_a_list_of_devices(one: Any) -> None:
    with pytest.raises(TypeError, match=r"write devices=\["):
        Future(devices=one)
    with pytest.raises(TypeError, match=r"write devices=\["):
        Future().then(lambda f: f, devices=one)


def test_a_tensor_is_not_a_stream() -> None:
    with pytest.raises(TypeError, match="not a stream"):
        Future().then(lambda f: f, stream=torch.ones(1))  # type: ignore[arg-type]
