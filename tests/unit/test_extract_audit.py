"""Audit mode checks extractors by pickling, and by_pickle uses one (EXT-2, EXT-7)."""

from __future__ import annotations

import logging
import threading
from typing import TYPE_CHECKING

import pytest
import torch

import rpcfut
from rpcfut._extract import extract, extract_device
from rpcfut._registry import (
    TYPES,
    isolated_registry,
    no_device_data,
    register_extractor,
    register_type,
)
from rpcfut.testing import simulate
from tests.support.types import Layer, Opaque

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture(autouse=True)
def _isolated() -> Iterator[None]:
    with isolated_registry():
        yield


@pytest.fixture
def audit(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("RPCFUT_AUDIT_EXTRACTORS", "1")
    with isolated_registry():
        yield


def forgets_b(value: Opaque) -> list[object]:
    return [value.a]


@pytest.mark.usefixtures("audit")
def test_a_tensor_that_an_extractor_missed_is_an_error() -> None:
    register_extractor(Opaque, forgets_b)
    value = {"x": [Opaque(a=torch.ones(1), b={"k": (1, torch.ones(2, 3))})]}
    for function in (extract, extract_device):
        with pytest.raises(rpcfut.ExtractionError) as caught:
            function(value)
        assert caught.value.path == "value['x'][0]"
        assert caught.value.type_name == "tests.support.types.Opaque"
        assert "forgets_b (" in caught.value.fix
        assert (
            "missed a torch.Tensor of shape (2, 3) and torch.float32 on cpu:0"
            in caught.value.fix
        )


def test_nothing_is_pickled_outside_of_audit_mode() -> None:
    class Loud(Opaque):
        def __reduce__(self) -> str:
            raise AssertionError("pickled")

    register_extractor(Loud, forgets_b)
    assert len(extract(Loud(a=torch.ones(1), b=torch.ones(2)))) == 1


@pytest.mark.usefixtures("audit")
def test_a_right_extractor_passes_the_audit() -> None:
    register_extractor(Opaque, lambda value: [value.a, value.b])
    register_type(Layer)
    shared = torch.ones(4)
    value = Opaque(a=shared, b=Layer(shared[1:], [torch.ones(1)]))
    value.again = shared[2:]
    assert len(extract(value)) == 2


@pytest.mark.usefixtures("audit")
def test_no_device_data_is_checked_for_device_memory_only() -> None:
    no_device_data(Opaque)
    assert extract(Opaque(a=torch.ones(1))) == []
    with simulate() as sim, pytest.raises(rpcfut.ExtractionError) as caught:
        extract_device(Opaque(a=sim.array([1.0])))
    assert "no_device_data() is wrong: it missed a" in caught.value.fix
    assert "on sim:0" in caught.value.fix


@pytest.mark.usefixtures("audit")
def test_what_does_not_pickle_is_not_audited(caplog: pytest.LogCaptureFixture) -> None:
    register_extractor(Opaque, forgets_b)
    value = Opaque(a=torch.ones(1), b=torch.ones(2), lock=threading.Lock())
    with caplog.at_level(logging.DEBUG, "rpcfut.extract"):
        assert len(extract(value)) == 1
    assert "not audited: an object of type tests.support.types.Opaque" in caplog.text


def test_the_environment_is_read_at_first_use(monkeypatch: pytest.MonkeyPatch) -> None:
    with isolated_registry():
        register_extractor(Opaque, forgets_b)
        monkeypatch.setenv("RPCFUT_AUDIT_EXTRACTORS", "1")
        assert TYPES.snapshot.is_audit
        monkeypatch.setenv("RPCFUT_AUDIT_EXTRACTORS", "0")
        no_device_data(Layer)
        assert TYPES.snapshot.is_audit
    assert not TYPES.snapshot.is_audit


@pytest.mark.usefixtures("audit")
def test_what_a_context_says_is_audited_too() -> None:
    with (
        rpcfut.extractors({Opaque: forgets_b}),
        pytest.raises(rpcfut.ExtractionError, match="missed"),
    ):
        extract(Opaque(a=1, b=torch.ones(1)))


def test_by_pickle_finds_tensors_and_what_has_an_extractor() -> None:
    register_extractor(Opaque, by_pickle=True)
    tensor = torch.ones(3)
    value = Opaque(a=[{"k": tensor}], b=Opaque(a=torch.ones(2)), c=tensor[1:])
    value.itself = value
    assert sorted(ref.nbytes for ref in extract(value)) == [8, 12]
    with simulate() as sim:
        assert len(extract_device(Opaque(a=sim.array([1.0])))) == 1


def test_by_pickle_of_what_does_not_pickle_is_an_error() -> None:
    register_extractor(Opaque, by_pickle=True)
    with pytest.raises(rpcfut.ExtractionError, match="by_pickle=True raised TypeError"):
        extract([Opaque(a=threading.Lock())])


def test_by_pickle_is_in_place_of_a_function() -> None:
    with pytest.raises(TypeError, match="two ways to say the same"):
        register_extractor(Opaque, forgets_b, by_pickle=True)  # type: ignore[call-overload]
