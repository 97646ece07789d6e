"""Kinds that are easily half known (EXT-4), and pinned host memory (STR-2)."""

from __future__ import annotations

import threading
from collections import UserDict
from typing import TYPE_CHECKING

import numpy as np
import pytest
import torch

from rpcfut._devices import CPU, Device
from rpcfut._errors import ExtractionError
from rpcfut._extract import DataRef, extract, extract_device
from rpcfut._known_types import REFUSED
from rpcfut._memory import PinnedMemory
from rpcfut._registry import isolated_registry, register_extractor
from tests.support.types import HidingList, Opaque, SilentTensor

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture(autouse=True)
def _isolated() -> Iterator[None]:
    with isolated_registry():
        yield


def pinned(*tensors: torch.Tensor) -> PinnedMemory:
    """As if these tensors lay in pinned memory, and CUDA were in use."""
    pointers = {tensor.data_ptr() for tensor in tensors}
    return PinnedMemory(
        is_in_use=lambda: True, is_pinned=lambda t: t.data_ptr() in pointers
    )


T = torch.arange(6.0)


@pytest.mark.parametrize(
    "value",
    [
        *(T, [1, T], [torch.ones(2), T], {"a": T}, torch.nn.Parameter(T)),
        *(T.untyped_storage(), T.numpy(), T.numpy()[::-1], memoryview(T.numpy())),
        *([T.numpy()[2:]], [torch.eye(2).to_sparse(), T]),
    ],
    ids=lambda value: type(value).__name__,
)
def test_pinned_memory_is_found_whoever_owns_it(value: object) -> None:
    refs = extract_device(value, pinned=pinned(T))
    assert T.data_ptr() in {ref.pointer for ref in refs}
    assert extract_device(value, pinned=pinned()) == []


def test_memory_that_an_extractor_names_by_its_address_may_be_pinned() -> None:
    tensor = torch.ones(4)
    ref = DataRef(CPU, tensor.data_ptr(), 16, "its owner")
    register_extractor(Opaque, lambda _: [ref])
    assert extract_device(Opaque(), pinned=pinned(tensor)) == [ref]
    assert extract_device(Opaque(), pinned=pinned()) == []


def test_the_driver_is_asked_once_for_each_storage() -> None:
    asked: list[torch.Tensor] = []

    def ask(tensor: torch.Tensor) -> bool:
        asked.append(tensor)
        return False

    seam = PinnedMemory(is_in_use=lambda: True, is_pinned=ask)
    tensors = [torch.ones(2) for _ in range(5)]
    value = [*tensors, *(tensor.view(2, 1) for tensor in tensors)]
    for _ in range(3):
        assert extract_device(value, pinned=seam) == []
    assert len(asked) <= 2 * len(tensors)
    asked.clear()
    assert extract_device([tensors[0][1:], torch.ones(2)], pinned=seam) == []
    assert len(asked) == 1


def test_nothing_is_asked_before_cuda_is_in_use() -> None:
    def refuse(_: torch.Tensor) -> bool:
        raise AssertionError("asking starts CUDA")

    seam = PinnedMemory(is_in_use=lambda: False, is_pinned=refuse)
    assert extract_device([T, T.numpy(), torch.nn.Parameter(T)], pinned=seam) == []


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_scales_of_every_scheme_by_channel_are_named(dtype: torch.dtype) -> None:
    zeros = torch.zeros(3, dtype=torch.int64 if dtype is torch.float64 else dtype)
    tensor = torch.quantize_per_channel(
        torch.ones(3, 2), torch.ones(3, dtype=dtype), zeros, 0, torch.quint8
    )
    assert len(extract(tensor)) == 3


def test_a_kept_gradient_of_no_leaf_is_named() -> None:
    inner = torch.ones(3, requires_grad=True) * 2
    inner.retain_grad()
    inner.sum().backward()
    assert inner.grad is not None
    pointers = {ref.pointer for ref in extract(inner)}
    assert inner.grad.untyped_storage().data_ptr() in pointers


def test_zeros_without_memory_hold_nothing() -> None:
    zeros = torch._efficientzerotensor(3)
    assert [ref.owner for ref in extract([zeros, T])] == [T]


def test_a_tensor_without_storage_is_refused_with_its_path() -> None:
    def look(row: torch.Tensor) -> torch.Tensor:
        with pytest.raises(ExtractionError, match="Cannot access storage") as caught:
            extract({"a": row})
        assert caught.value.path == "value['a']"
        return row

    torch.vmap(look)(torch.ones(2, 3))


def test_a_slice_is_looked_into() -> None:
    assert len(extract(slice(torch.ones(1), torch.ones(1), torch.ones(1)))) == 3
    with pytest.raises(ExtractionError) as caught:
        extract([slice(None, Opaque())])
    assert caught.value.path == "value[0].stop"


def test_views_of_an_array_are_one_block() -> None:
    array = np.arange(10.0)
    start = array.__array_interface__["data"][0]
    refs = extract([array[::-1], array[::2], array[3:], array.reshape(2, 5)])
    assert [(ref.pointer, ref.nbytes) for ref in refs] == [(start, 80)]


def test_records_of_a_structured_array_are_looked_into() -> None:
    array = np.zeros(2, dtype=[("n", int), ("o", object)])
    array["o"][1] = T
    assert T.data_ptr() in {ref.pointer for ref in extract(array)}
    assert T.data_ptr() in {ref.pointer for ref in extract(array[1])}


class Interface:
    """As a Numba array: the interface, and a device that no protocol names."""

    def __init__(self, device: object = None) -> None:
        self.device = device

    @property
    def __cuda_array_interface__(self) -> dict[str, object]:
        return {"data": (8192, True), "typestr": "<f8", "shape": (2,), "version": 3}


def test_a_cuda_array_names_its_device_or_is_refused() -> None:
    device = type("Device", (), {"id": 3})()
    array = Interface(device)
    assert extract(array) == [DataRef(Device("cuda", 3), 8192, 16, array)]
    if torch.cuda.device_count() != 1:
        with pytest.raises(ExtractionError, match="does not say on which device"):
            extract(Interface())


def test_b54_a_dlpack_producer_on_a_device_is_told_not_to_synchronise() -> None:
    class Array:
        def __init__(self) -> None:
            self.streams: list[object] = []

        def __dlpack__(self, *, stream: object = None) -> object:
            self.streams.append(stream)
            return torch.utils.dlpack.to_dlpack(T)

        def __dlpack_device__(self) -> tuple[int, int]:
            return (2, 1)

    array = Array()
    assert extract(array) == [DataRef(Device("cuda", 1), T.data_ptr(), 24, array)]
    assert array.streams == [-1]


@pytest.mark.parametrize(
    ("value", "advice"),
    [
        (torch.nn.Linear(1, 1), REFUSED[0].advice),
        (torch.optim.SGD([torch.nn.Parameter(T)], lr=1), REFUSED[1].advice),
        (pytest, REFUSED[2].advice),
        ((n for n in ()), REFUSED[3].advice),
        (iter([]), REFUSED[3].advice),
        ({}.values(), REFUSED[4].advice),
        (torch.ones(1).as_subclass(SilentTensor), REFUSED[5].advice),
        (HidingList(), REFUSED[6].advice),
        (torch.futures.Future(), REFUSED[7].advice),
        (UserDict(), REFUSED[8].advice),
        (threading.Lock(), REFUSED[9].advice),
    ],
    ids=lambda value: type(value).__name__,
)
def test_what_people_do_send_is_refused_with_advice(value: object, advice: str) -> None:
    with pytest.raises(ExtractionError) as caught:
        extract([value])
    assert caught.value.fix.startswith(advice)
    assert caught.value.path == "value[0]"
