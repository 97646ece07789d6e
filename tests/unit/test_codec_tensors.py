"""Tensors arrive with their bits, dtype, shape, strides and flags (RPC-9)."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch._subclasses import FakeTensorMode

from rpcfut import _encode
from rpcfut._codec import Encoded, decode, encode
from rpcfut._devices import Device
from rpcfut._dtypes import DTYPES, QUANTISED
from rpcfut._errors import DecodeError, EncodeError, ExtractionError
from rpcfut._tensor_copies import flat_bytes, is_dense_strided
from rpcfut._tensor_table import ALIGNMENT, OWN_FRAME_NBYTES, read_table
from rpcfut._tensor_writer import TensorWriter
from tests.support.exact import bits, same
from tests.support.tensor_table import TENSORS, looks
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
    assert looks(trip(tensor)) == looks(tensor)


@pytest.mark.filterwarnings("ignore::UserWarning")
@pytest.mark.parametrize("name", TENSORS)
def test_a_tensor_of_the_table_arrives_as_it_was(name: str) -> None:
    tensor = TENSORS[name]()
    wanted = looks(tensor)
    for value in (tensor, [torch.ones(3), tensor, torch.ones(2)]):
        back = trip(value)
        assert looks(back[1] if isinstance(value, list) else back) == wanted
    assert looks(tensor) == wanted


def test_the_table_of_dtypes_is_append_only() -> None:
    dtypes = (*DTYPES[:27], *QUANTISED, *DTYPES[27:])
    text = " ".join(str(dtype).removeprefix("torch.") for dtype in dtypes)
    assert text == (
        "bool uint8 int8 int16 int32 int64 float16 float32 float64 bfloat16 "
        "complex32 complex64 complex128 uint16 uint32 uint64 float8_e4m3fn "
        "float8_e4m3fnuz float8_e5m2 float8_e5m2fnuz float8_e8m0fnu float4_e2m1fn_x2 "
        "bits8 bits16 bits1x8 bits2x4 bits4x2 qint8 quint8 qint32 quint4x2 quint2x4 "
        "int1 int2 int3 int4 int5 int6 int7 uint1 uint2 uint3 uint4 uint5 uint6 uint7"
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
    for view, nbytes in ((large[:2], 8), (large.view(1024, 1024)[:, 0], 4096)):
        _, buffers = pack([view])
        assert [memoryview(b).nbytes for b in buffers] == [nbytes]


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


@pytest.mark.parametrize("numel", [1, 100, OWN_FRAME_NBYTES])
def test_a_tensor_may_be_overwritten_on_both_sides(numel: int) -> None:
    tensor = torch.zeros(numel)
    body, buffers = pack(tensor)
    tensor.add_(1)
    back: Any = decode(body, buffers, place=no_place)
    assert not back.any()
    back.add_(2)
    assert tensor.max() == 1


def test_a_large_buffer_becomes_the_memory_of_the_tensor() -> None:
    body, _ = pack(torch.zeros(OWN_FRAME_NBYTES, dtype=torch.uint8))
    received = memoryview(bytearray(OWN_FRAME_NBYTES + 32))
    start = -torch.frombuffer(received, dtype=torch.uint8).data_ptr() % 16
    aligned = received[start : start + OWN_FRAME_NBYTES]
    tensor: Any = decode(body, [aligned], place=no_place)
    aligned[0] = 7
    assert tensor[0] == 7
    del received, aligned
    assert tensor[0] == 7  # the tensor keeps the memory


@pytest.mark.parametrize("kind", ["small", "read-only", "unaligned"])
def test_a_buffer_that_cannot_be_used_is_copied(kind: str) -> None:
    nbytes = 64 if kind == "small" else OWN_FRAME_NBYTES
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


def with_attribute() -> torch.Tensor:
    tensor = torch.ones(2)
    tensor.scale = 3  # type: ignore[attr-defined]
    return tensor


def freed() -> torch.Tensor:
    tensor = torch.ones(8)
    tensor.untyped_storage().resize_(0)
    return tensor


def cut() -> torch.Tensor:
    tensor = torch.ones(8)[4:]
    tensor.untyped_storage().resize_(20)
    return tensor


def batched() -> torch.Tensor:
    held: list[torch.Tensor] = []
    torch.func.vmap(lambda x: held.append(x) or x)(torch.ones(2, 2))  # type: ignore[func-returns-value]
    return held[0]


REFUSED: dict[str, tuple[Any, str]] = {
    "mkldnn": (lambda: torch.ones(2, 2).to_mkldnn(), "send x.to_dense()"),
    "graph": (lambda: torch.ones(2, requires_grad=True) * 2, "send x.detach()"),
    "sparse graph": (
        lambda: torch.eye(2).to_sparse().requires_grad_() * 2,
        "send x.detach()",
    ),
    "silent": (lambda: torch.ones(1).as_subclass(SilentTensor), "SilentTensor"),
    "inner": (lambda: InnerTensor(torch.ones(1)), "is a tensor subclass"),
    "attribute": (with_attribute, "has the attribute 'scale', which would be lost"),
    "freed": (freed, "shows 32 bytes from byte 0, and its storage was resized to 0"),
    "cut": (cut, "shows 16 bytes from byte 16, and its storage was resized to 20"),
    "batched": (batched, "has no memory of its own"),
    "functional": (
        lambda: torch._to_functional_tensor(torch.ones(2)),
        "is a wrapper that torch.compile traces with",
    ),
    "sparse on meta": (
        lambda: torch.sparse_coo_tensor(size=(2, 2), device="meta"),
        "has no data, and is not dense",
    ),
}


@pytest.mark.filterwarnings("ignore::UserWarning")
@pytest.mark.parametrize("name", REFUSED)
def test_a_tensor_that_cannot_travel_is_refused_with_the_way_out(name: str) -> None:
    make, text = REFUSED[name]
    tensor = make()
    with pytest.raises((EncodeError, TypeError)) as caught:
        pack({"a": (tensor,)})
    assert text in str(caught.value)
    assert "value['a'][0]" in str(caught.value)


def test_a_fake_tensor_is_refused_and_its_mode_empties_no_copy() -> None:
    real = torch.arange(12.0).view(3, 4)
    views = [real[:, ::2], real.t(), torch.ones(1 << 15)[::2]]
    with FakeTensorMode():
        body, buffers = pack(views)
        with pytest.raises(ExtractionError, match="FakeTensor"):
            pack([torch.ones(2)])
    assert same(decode(body, buffers, place=no_place), views)
    with torch.device("meta"):
        assert same(trip(views), views)


def test_what_belongs_to_this_process_stays_here() -> None:
    leaf = torch.ones(2, requires_grad=True)
    leaf.register_hook(lambda grad: grad)
    leaf._mark = "a library's own"  # type: ignore[attr-defined]
    back = trip(leaf)
    assert (back.grad, back._backward_hooks, vars(back)) == (None, None, {})


def test_a_zero_tensor_arrives_as_zeros() -> None:
    back = trip(torch._efficientzerotensor(3))  # type: ignore[attr-defined]
    assert same(back, torch.zeros(3))
    back.add_(1)


class FarDevice:
    """Stands for a GPU: `stage` and `place` are what the codec knows of one."""

    def __init__(self) -> None:
        self.placed: list[Device] = []

    def place(self, tensor: torch.Tensor, device: Device) -> torch.Tensor:
        self.placed.append(device)
        return tensor.clone()


def from_far(value: object) -> Encoded:
    """Encode a value as if its host tensors lay on a device."""

    def device_of(writer: TensorWriter, _: torch.Tensor) -> int:
        return writer._devices.setdefault("sim:12", 1)

    def stage(flat: torch.Tensor) -> bytearray:
        assert (flat.dtype, flat.dim(), flat.is_contiguous()) == (torch.uint8, 1, True)
        return bytearray(bits(flat))

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(TensorWriter, "_device", device_of)
        patch.setattr(_encode, "is_plain_on_host", lambda _: False)
        return encode(value, stage=stage)


def test_a_tensor_from_a_device_is_placed_with_its_strides_and_flags() -> None:
    leaf = torch.randn(3, 4).t().requires_grad_()
    body, buffers = from_far([leaf])
    far = FarDevice()
    (back,) = decode(body, buffers, place=far.place)  # type: ignore[misc]
    assert far.placed == [Device("sim", 12)]
    assert looks(back) == looks(leaf)


def test_views_of_device_memory_are_staged_and_placed_once() -> None:
    tensor = torch.arange(6.0)
    body, buffers = from_far([tensor, tensor[2:], tensor.view(2, 3).t()])
    assert [memoryview(buffer).nbytes for buffer in buffers] == [24]
    far = FarDevice()
    first, second, third = decode(body, buffers, place=far.place)  # type: ignore[misc]
    assert far.placed == [Device("sim", 12)]
    first.fill_(7)
    assert torch.equal(second, torch.full((4,), 7.0))
    assert torch.equal(third, torch.full((3, 2), 7.0))


@pytest.mark.filterwarnings("ignore::UserWarning")
@pytest.mark.parametrize(
    "name",
    [name for name in TENSORS if name.startswith(("sp", "cs", "bs", "jag", "q"))],
)
def test_a_layout_from_a_device_is_made_of_what_was_placed(name: str) -> None:
    tensor = TENSORS[name]()
    far = FarDevice()
    back = decode(*from_far(tensor), place=far.place)
    assert far.placed
    assert looks(back) == looks(tensor)


def test_an_error_of_place_is_nobodys_nonsense() -> None:
    def refuse(tensor: torch.Tensor, device: Device) -> torch.Tensor:
        raise ValueError("there is no sim:12 here")

    with pytest.raises(ValueError, match="there is no sim:12 here") as caught:
        decode(*from_far(torch.ones(1)), place=refuse)
    assert not isinstance(caught.value, DecodeError)


@pytest.mark.parametrize("name", VIEWS)
def test_what_a_stage_is_given_are_the_bytes_that_a_host_tensor_sends(
    name: str,
) -> None:
    tensor = VIEWS[name]
    if tensor.numel():
        is_dense = is_dense_strided(tensor.shape, tensor.stride())
        flat = flat_bytes(tensor, is_dense=is_dense)
        assert (flat.dtype, flat.dim()) == (torch.uint8, 1)
        assert flat.is_contiguous()
        (buffer,) = encode(tensor, stage=no_stage).buffers
        assert bits(flat) == bytes(buffer)


# ---- memory that tensors share -----------------------------------------------------


def shares(first: torch.Tensor, second: torch.Tensor) -> bool:
    """Whether two tensors lie in one storage."""
    return (
        first.untyped_storage().data_ptr() == second.untyped_storage().data_ptr()
        and first.untyped_storage().nbytes() == second.untyped_storage().nbytes()
    )


SHARING: dict[str, Any] = {
    "flat and shaped": lambda x: [x, x.view(-1)],
    "two slices": lambda x: [x[0:4], x[2:6]],
    "a chain": lambda x: [x[4:8], x[0:3], x[2:5]],
    "even and odd": lambda x: [x[::2], x[1::2]],
    "another dtype": lambda x: [x, x.view(torch.int32)],
    "bytes before": lambda x: [x.view(torch.uint8)[3:], x[1:]],
    "doubles after a float": lambda x: [
        x[1:].view(torch.uint8),
        x.view(torch.float64)[1:],
    ],
    "expanded": lambda x: [x, x[:1].expand(5)],
    "windows": lambda x: [x, x.unfold(0, 3, 1)],
    "parameter and data": lambda x: [torch.nn.Parameter(x), x],
    "conjugated": lambda x: [x.view(torch.complex64), x.view(torch.complex64).conj()],
    "real and imaginary part": lambda x: [
        x.view(torch.complex64).real,
        x.view(torch.complex64).conj().imag,
    ],
}


@pytest.mark.parametrize("numel", [8, 1 << 16])
@pytest.mark.parametrize("name", SHARING)
def test_what_shares_memory_shares_it_on_arrival(name: str, numel: int) -> None:
    x = torch.randn(numel + 2)[2:]
    sent = SHARING[name](x)
    arrived = trip(sent)
    assert [looks(tensor) for tensor in arrived] == [looks(tensor) for tensor in sent]
    assert all(shares(arrived[0], tensor) for tensor in arrived)
    for each in (sent, arrived):
        with torch.no_grad():
            each[0].view(-1)[3:].fill_(1)
    assert [looks(tensor) for tensor in arrived] == [looks(tensor) for tensor in sent]


def test_what_is_shared_is_sent_once() -> None:
    x = torch.zeros(1 << 16)
    _, buffers = pack([x, x.view(256, 256), x[5:], {"again": x}])
    assert [memoryview(buffer).nbytes for buffer in buffers] == [x.nbytes]


def test_one_object_twice_is_one_object_on_arrival() -> None:
    weight = torch.nn.Parameter(torch.ones(3))
    back = trip({"embed": weight, "head": [weight]})
    assert back["embed"] is back["head"][0]
    tied = trip({"embed": weight.detach(), "head": weight.detach()})
    assert tied["embed"] is not tied["head"]
    assert tied["embed"].data_ptr() == tied["head"].data_ptr()


def test_tensors_beside_each_other_share_nothing() -> None:
    x = torch.arange(8)
    first, second = trip([x[:4], x[4:]])
    assert not shares(first, second)
    first.add_(1)
    assert same(second, x[4:])
    assert first._version == 1 or first._version != second._version


def test_small_views_far_apart_are_refused_with_both_paths() -> None:
    x = torch.zeros(100, 100)
    with pytest.raises(EncodeError) as caught:
        pack({"a": x[:, 0], "b": [1, x[:, 1]]})
    assert str(caught.value) == (
        "cannot send value['b'][1], a torch.Tensor: it shares memory with value['a'], "
        "and both are small parts of it: 39608 bytes would be sent for 800 that they "
        "show; clone() one of them"
    )
    assert same(trip([x[:, 0].clone(), x[:, 1]]), [x[:, 0], x[:, 1]])


def test_a_hull_is_sent_up_to_twice_what_is_shown() -> None:
    x = torch.arange(400.0)
    assert same(trip([x[::4], x[1::4]]), [x[::4], x[1::4]])
    kept = [x[::4][:50], x[2::4][:50]]
    assert same(trip(kept), kept)
    with pytest.raises(EncodeError, match="clone"):
        pack([x[::5], x[2::5]])


def test_the_same_small_view_twice_is_sent_as_its_elements() -> None:
    column = torch.arange(1e4).view(100, 100)[:, 3]
    _, buffers = pack([column, column.detach()])
    assert [memoryview(buffer).nbytes for buffer in buffers] == [400]
    first, second = trip([column, column.detach()])
    assert same(first, column)
    first.zero_()
    assert not second.any()


# ---- many tensors, and how they lie ------------------------------------------------


def test_small_tensors_travel_together_at_aligned_places() -> None:
    value = [torch.full((5,), float(n)) for n in range(2000)]
    body, buffers = pack(value)
    assert len(buffers) == 3  # two packs and the table
    assert all(memoryview(b).nbytes <= OWN_FRAME_NBYTES for b in buffers[:2])
    numbers = memoryview(buffers[0]).cast("f")[:: ALIGNMENT // 4]
    assert list(numbers) == list(range(1024))
    assert len(read_table(buffers[2]).heads) == 2000
    assert same(decode(body, buffers, place=no_place), value)


@settings(max_examples=50, deadline=None)
@given(
    st.lists(
        st.sampled_from([0, 1, 63, 64, 65, 40_000, OWN_FRAME_NBYTES - 1])
        | st.sampled_from([OWN_FRAME_NBYTES, OWN_FRAME_NBYTES + 1]),
        max_size=8,
    )
)
def test_any_mix_of_sizes_arrives(sizes: list[int]) -> None:
    value = [torch.arange(n, dtype=torch.int64).to(torch.uint8) for n in sizes]
    assert same(trip(value), value)


def test_a_small_tensor_keeps_no_message_alive() -> None:
    first, *_ = trip([torch.ones(4) for _ in range(3)])
    assert first.untyped_storage().nbytes() == 16


def test_a_tensor_can_be_detached_in_place() -> None:
    for tensor in (torch.ones(2), torch.ones(2, 2), torch.ones(300, 300).t()):
        assert trip(tensor).detach_() is not None
        for shared in trip([tensor, tensor.view(tensor.shape)]):
            assert shared.detach_()._base is None


@pytest.mark.timeout(60)
def test_the_sender_counts_tensors_without_bytes_as_the_receiver() -> None:
    empty = torch.empty(0)
    with pytest.raises(EncodeError, match="the receiver would take at most 74565"):
        pack([empty.clone() for _ in range(74_566)])
    assert len(trip([empty.clone() for _ in range(74_565)])) == 74_565
