"""Tensors arrive with their bits, dtype, shape, strides and flags (RPC-9)."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given, settings

from rpcfut._codec import decode, encode
from rpcfut._devices import Device
from rpcfut._errors import DecodeError, EncodeError
from rpcfut._tensor_codec import (
    DTYPES,
    IN_PLACE_MIN_NBYTES,
    _flat_bytes,
    is_dense_strided,
)
from tests.support.exact import bits, same
from tests.support.types import InnerTensor, SilentTensor
from tests.support.values import tensors
from tests.unit.test_codec import no_place, no_stage, pack, trip


@settings(max_examples=300, deadline=None)
@given(tensors())
def test_any_dense_tensor_arrives_bit_by_bit(tensor: torch.Tensor) -> None:
    back = trip(tensor)
    assert same(back, tensor)
    if is_dense_strided(tensor.shape, tensor.stride()):
        assert back.stride() == tensor.stride()
    else:
        assert back.is_contiguous()


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_every_dtype_takes_as_many_bytes_as_it_has(dtype: torch.dtype) -> None:
    tensor = torch.arange(64, dtype=torch.uint8).view(dtype)
    if dtype is torch.bool:
        tensor = torch.arange(64) % 2 == 0
    _, (buffer,) = pack(tensor)
    assert memoryview(buffer).nbytes == 64
    assert same(trip(tensor), tensor)


def test_the_table_of_dtypes_is_append_only() -> None:
    text = " ".join(str(dtype).removeprefix("torch.") for dtype in DTYPES)
    assert text.startswith(
        "bool uint8 int8 int16 int32 int64 float16 float32 float64 bfloat16 "
        "complex32 complex64 complex128 uint16 uint32 uint64 float8_e4m3fn "
        "float8_e4m3fnuz float8_e5m2 float8_e5m2fnuz float8_e8m0fnu float4_e2m1fn_x2 "
        "bits8 bits16 bits1x8 bits2x4 bits4x2"
    )


VIEWS = {
    "transposed": torch.randn(3, 4).t(),
    "channels_last": torch.randn(2, 3, 4, 5).to(memory_format=torch.channels_last),
    "channels_last, one channel": torch.randn(2, 1, 4, 5).to(
        memory_format=torch.channels_last
    ),
    "scalar": torch.tensor(3.5),
    "empty": torch.empty(2, 0, 3),
    "empty, transposed": torch.empty(0, 3).t(),
    "expanded": torch.ones(1, 3).expand(4, 3),
    "sliced": torch.arange(10)[1::3],
    "flipped": torch.arange(10.0).flip(0),
    "conjugated": torch.randn(3, dtype=torch.complex64).conj(),
    "negated": torch.randn(3, dtype=torch.complex64).conj().imag,
    "diagonal": torch.eye(3).diagonal(),
    "overlapping": torch.arange(5.0).unfold(0, 3, 1),
    "large": torch.randn(300, 1000).t(),
}


@pytest.mark.parametrize("name", VIEWS)
def test_a_view_arrives_as_what_it_shows(name: str) -> None:
    tensor = VIEWS[name]
    for value in (tensor, [tensor, 1], {"k": (tensor,)}):
        assert same(trip(value), value)


def test_only_the_visible_elements_travel() -> None:
    large = torch.zeros(1 << 20)
    _, buffers = pack([large[:2], large.view(1024, 1024)[:, 0]])
    assert [memoryview(b).nbytes for b in buffers] == [8, 4096]


def test_flags_stay_what_they_were() -> None:
    leaf = torch.ones(3, requires_grad=True)
    leaf.grad = torch.ones(3)
    back = trip(leaf)
    assert (back.requires_grad, back.is_leaf, back.grad) == (True, True, None)
    for requires_grad in (True, False):
        parameter = torch.nn.Parameter(torch.ones(3), requires_grad=requires_grad)
        assert same(trip(parameter), parameter)
        assert type(trip(parameter)) is torch.nn.Parameter


def test_a_tensor_may_be_sent_under_any_grad_mode() -> None:
    leaf = torch.ones(3, requires_grad=True)
    with torch.no_grad():
        assert trip(leaf).requires_grad
    with torch.inference_mode():
        assert same(trip(torch.ones(3)), torch.ones(3))
    made = torch.inference_mode()(lambda: torch.ones(3))()
    assert same(trip(made), torch.ones(3))


def test_two_tensors_that_share_memory_arrive_as_two() -> None:
    base = torch.zeros(4)
    first, second = trip([base, base])
    first.add_(1)
    assert same(second, torch.zeros(4))


@pytest.mark.parametrize("numel", [1, 100, IN_PLACE_MIN_NBYTES])
def test_a_tensor_may_be_overwritten_on_both_sides(numel: int) -> None:
    tensor = torch.zeros(numel)
    body, buffers = pack(tensor)
    tensor.add_(1)
    back: Any = decode(body, buffers, place=no_place)
    assert not back.any()
    back.add_(2)
    assert tensor.max() == 1


def test_a_large_buffer_becomes_the_memory_of_the_tensor() -> None:
    body, _ = pack(torch.zeros(IN_PLACE_MIN_NBYTES, dtype=torch.uint8))
    received = memoryview(bytearray(IN_PLACE_MIN_NBYTES + 32))
    start = -torch.frombuffer(received, dtype=torch.uint8).data_ptr() % 16
    aligned = received[start : start + IN_PLACE_MIN_NBYTES]
    tensor: Any = decode(body, [aligned], place=no_place)
    aligned[0] = 7
    assert tensor[0] == 7
    del received, aligned
    assert tensor[0] == 7  # the tensor keeps the memory


@pytest.mark.parametrize("kind", ["small", "read-only", "unaligned"])
def test_a_buffer_that_cannot_be_used_is_copied(kind: str) -> None:
    nbytes = 64 if kind == "small" else IN_PLACE_MIN_NBYTES
    body, _ = pack(torch.zeros(nbytes, dtype=torch.uint8))
    memory = bytearray(nbytes + 16)
    received = memoryview(memory)
    start = -torch.frombuffer(received, dtype=torch.uint8).data_ptr() % 16
    start = (start + 1) % 16 if kind == "unaligned" else start
    view = received[start : start + nbytes]
    if kind == "read-only":
        view = view.toreadonly()
    tensor: Any = decode(body, [view], place=no_place)
    memory[start] = 7
    assert tensor[0] == 0
    tensor.add_(1)
    assert tensor[0] == 1


REFUSED = {
    "coo": (
        torch.eye(2).to_sparse(),
        "is sparse (torch.sparse_coo); send its to_dense",
    ),
    "meta": (torch.ones(2, device="meta"), "is on the meta device and has no data"),
    "graph": (torch.ones(2, requires_grad=True) * 2, "send x.detach()"),
    "silent": (torch.ones(1).as_subclass(SilentTensor), "SilentTensor"),
    "inner": (InnerTensor(torch.ones(1)), "is a tensor subclass"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_a_tensor_that_cannot_travel_is_refused_with_the_way_out(name: str) -> None:
    tensor, text = REFUSED[name]
    with pytest.raises((EncodeError, TypeError)) as caught:
        pack({"a": (tensor,)})
    assert text in str(caught.value)
    assert "value['a'][0]" in str(caught.value)


@pytest.mark.filterwarnings("ignore")
def test_other_layouts_are_refused_with_the_way_out() -> None:
    with pytest.raises(EncodeError, match=r"sparse_csr\); send its to_dense"):
        pack(torch.eye(2).to_sparse_csr())
    with pytest.raises(EncodeError, match=r"nested tensor; send list\(x.unbind"):
        pack(torch.nested.nested_tensor([torch.ones(1), torch.ones(2)]))
    quantised = torch.quantize_per_tensor(torch.ones(2), 0.1, 0, torch.qint8)
    with pytest.raises(EncodeError, match=r"quantised; send its dequantize"):
        pack(quantised)


class FarDevice:
    """Stands for a GPU: `stage` and `place` are what the codec knows of one."""

    def __init__(self) -> None:
        self.placed: list[Device] = []

    def place(self, tensor: torch.Tensor, device: Device) -> torch.Tensor:
        self.placed.append(device)
        return tensor.clone()


def test_a_tensor_from_a_device_is_placed_with_its_strides_and_flags() -> None:
    leaf = torch.randn(3, 4).t().requires_grad_()
    body, buffers = pack([leaf])
    far = FarDevice()
    body = body.replace(b"\x01\xc0\x02", b"\x01\xa6sim:12\x02")
    (back,) = decode(body, buffers, place=far.place)  # type: ignore[misc]
    assert far.placed == [Device("sim", 12)]
    assert same(back, leaf)
    assert back.stride() == leaf.stride()
    assert back.is_leaf


def test_an_error_of_place_is_nobodys_nonsense() -> None:
    def refuse(tensor: torch.Tensor, device: Device) -> torch.Tensor:
        raise ValueError("there is no sim:12 here")

    body, buffers = pack([torch.ones(1)])
    body = body.replace(b"\x00\xc0\x01", b"\x00\xa6sim:12\x01")
    with pytest.raises(ValueError, match="there is no sim:12 here") as caught:
        decode(body, buffers, place=refuse)
    assert not isinstance(caught.value, DecodeError)


@pytest.mark.parametrize("name", VIEWS)
def test_what_a_stage_is_given_are_the_bytes_that_a_host_tensor_sends(
    name: str,
) -> None:
    tensor = VIEWS[name]
    if tensor.numel():
        is_dense = is_dense_strided(tensor.shape, tensor.stride())
        flat = _flat_bytes(tensor, is_dense=is_dense)
        assert (flat.dtype, flat.dim()) == (torch.uint8, 1)
        assert flat.is_contiguous()
        (buffer,) = encode(tensor, stage=no_stage).buffers
        assert bits(flat) == bytes(buffer)
