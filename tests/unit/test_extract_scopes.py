"""What a type holds may be said for one call of then(), or for a context (EXT-2)."""

from __future__ import annotations

import asyncio
import threading
from typing import TYPE_CHECKING, Any

import pytest
import torch

import rpcfut
from rpcfut._registry import isolated_registry
from rpcfut._type_registry import current_types
from rpcfut.testing import RaceError, simulate
from tests.support.types import Opaque

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture(autouse=True)
def _isolated() -> Iterator[None]:
    with isolated_registry():
        yield


def is_known() -> bool:
    try:
        rpcfut.extract(Opaque())
    except rpcfut.ExtractionError:
        return False
    return True


def done(value: object = 1) -> rpcfut.Future[Any]:
    future: rpcfut.Future[Any] = rpcfut.Future()
    future.set_result(value)
    return future


def test_an_extractor_of_a_call_orders_the_reader() -> None:
    with simulate() as sim:
        child = done().then(
            lambda _: Opaque(a=sim.array([1.0])), extractor=lambda value: [value.a]
        )
        assert len(child._refs) == 1
        assert child.wait().a.tolist() == [1.0]


def test_an_extractor_that_forgets_leaves_a_race() -> None:
    with simulate() as sim:
        future: rpcfut.Future[Any] = rpcfut.Future()
        child = future.then(lambda f: f.value(), extractor=lambda _: [])
        with rpcfut.extractors({Opaque: None}), sim.stream():
            future.set_result(Opaque(a=sim.array([1.0])))
        with pytest.raises(RaceError):
            child.wait().a.tolist()
        assert sim.take_races()


def test_an_extractor_of_a_call_that_raises_fails_the_child_and_is_named() -> None:
    def broken(value: object) -> list[object]:
        raise ValueError("no such part")

    error = done().then(lambda _: Opaque(), extractor=broken).exception()
    assert isinstance(error, rpcfut.ExtractionError)
    assert "broken (" in error.fix
    assert "ValueError: no such part" in error.fix
    assert error.path == "result"


def test_an_extractor_of_a_call_may_not_lead_to_an_unknown_type() -> None:
    child = done().then(lambda _: 1, extractor=lambda _: [Opaque()])
    assert isinstance(child.exception(), rpcfut.ExtractionError)


def test_an_extractor_of_a_call_is_not_asked_about_a_future() -> None:
    child = done().then(lambda _: done(3), extractor=lambda future: [future.parts])
    assert child.wait() == 3


def test_an_extractor_of_a_call_is_a_function() -> None:
    with pytest.raises(TypeError, match="an extractor must be callable, got 3"):
        done().then(lambda _: 1, extractor=3)  # type: ignore[call-overload]


def test_what_is_said_in_a_context_ends_with_it() -> None:
    with rpcfut.extractors({Opaque: lambda value: [value.a]}):
        assert len(rpcfut.extract(Opaque(a=torch.ones(3)))) == 1
        with rpcfut.extractors({Opaque: None}):
            assert rpcfut.extract(Opaque(a=torch.ones(3))) == []
        assert len(rpcfut.extract(Opaque(a=torch.ones(3)))) == 1
    assert not is_known()


def test_a_context_goes_before_the_registry_and_sees_what_is_registered_later() -> None:
    rpcfut.no_device_data(Opaque)
    later = type("Later", (), {})
    with rpcfut.extractors({Opaque: lambda value: [value.a]}):
        assert len(rpcfut.extract(Opaque(a=torch.ones(3)))) == 1
        rpcfut.no_device_data(later)
        assert rpcfut.extract(later()) == []
    assert rpcfut.extract([later(), Opaque(a=torch.ones(3))]) == []


def test_other_threads_and_tasks_do_not_see_a_context() -> None:
    seen: list[bool] = []
    with rpcfut.extractors({Opaque: None}):
        thread = threading.Thread(target=lambda: seen.append(is_known()))
        thread.start()
        thread.join(10)

    async def inside(started: asyncio.Event, other: asyncio.Event) -> bool:
        with rpcfut.extractors({Opaque: None}):
            started.set()
            await other.wait()
            return is_known()

    async def outside(started: asyncio.Event, other: asyncio.Event) -> bool:
        await started.wait()
        other.set()
        return is_known()

    async def both() -> list[bool]:
        events = asyncio.Event(), asyncio.Event()
        return await asyncio.gather(inside(*events), outside(*events))

    assert asyncio.run(both()) == [True, False]
    assert seen == [False]


def test_a_callback_sees_the_context_that_registered_it() -> None:
    future: rpcfut.Future[int] = rpcfut.Future()
    with rpcfut.extractors({Opaque: None}):
        inside = future.then(lambda _: (Opaque(), is_known())[1])
        returned = future.then(lambda _: Opaque())
    outside = future.then(lambda _: Opaque())
    with rpcfut.extractors({Opaque: None}):
        future.set_result(1)
    assert inside.wait() is True
    assert isinstance(returned.wait(), Opaque)
    assert isinstance(outside.exception(), rpcfut.ExtractionError)


@pytest.mark.parametrize("rules", [{3: None}, {Opaque: 3}])
def test_nonsense_is_refused_before_anything_is_in_use(rules: Any) -> None:
    with pytest.raises(TypeError, match="extractors"), rpcfut.extractors(rules):
        raise AssertionError
    assert not is_known()


def test_the_repr_says_what_lies_over_what() -> None:
    with rpcfut.extractors({Opaque: None}):
        text = repr(current_types())
    assert text.startswith("<ScopedTypes 1 extractors over <TypeRegistry")
