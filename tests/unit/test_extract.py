"""Which memory a value holds: all of it, once, or a loud error (EXT-1 to EXT-8)."""

from __future__ import annotations

import datetime as dt
import functools
import types
import uuid
from collections import Counter, OrderedDict, defaultdict, deque
from decimal import Decimal
from fractions import Fraction
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import torch
from torch.nn.utils.rnn import pack_sequence

from rpcfut._devices import CPU, Device
from rpcfut._errors import ExtractionError, Origin
from rpcfut._extract import DataRef, extract, extract_device
from rpcfut._registry import isolated_registry, no_device_data, register_extractor
from tests.support.types import (
    AttrsPair,
    Colour,
    FrozenLayer,
    HidingList,
    HidingPoint,
    HidingRecord,
    InnerTensor,
    Layer,
    OddError,
    OldPoint,
    Opaque,
    Point,
    SilentTensor,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

SIM = Device("sim", 1)
# Made here, because torch makes a temporary folder for the first one.
JAGGED = torch.nested.nested_tensor([torch.ones(2), torch.ones(3)], layout=torch.jagged)


@pytest.fixture(autouse=True)
def _isolated() -> Iterator[None]:
    with isolated_registry():
        yield


@pytest.fixture
def block() -> Opaque:
    """An object that holds 64 bytes on a simulated device."""

    @register_extractor(Opaque)
    def parts(value: Opaque) -> list[DataRef]:
        return [DataRef(SIM, 4096, 64, value)]

    return Opaque()


def pointer(tensor: torch.Tensor) -> int:
    return tensor.untyped_storage().data_ptr()


def raising(error: Exception) -> Exception:
    error.__cause__ = OddError(torch.ones(3))
    return error


T = torch.ones(3)
HOLDERS: dict[str, Any] = {
    "list": lambda x: [x],
    "tuple": lambda x: (1, (x,)),
    "dict": lambda x: {"a": {1: x}},
    "dict key": lambda x: {x: 1},
    "set": lambda x: {x},
    "frozenset": lambda x: frozenset([x]),
    "deque": lambda x: deque([x]),
    "OrderedDict": lambda x: OrderedDict(a=x),
    "defaultdict": lambda x: defaultdict(list, a=[x]),
    "default_factory": lambda x: defaultdict(functools.partial(list, x)),
    "Counter": lambda x: Counter({x: 1}),
    "mappingproxy": lambda x: types.MappingProxyType({"a": x}),
    "namedtuple": lambda x: OldPoint(1, x),
    "NamedTuple": lambda x: Point(x, 1),
    "dataclass": lambda x: Layer(cache=[x]),
    "dataclass with slots": FrozenLayer,
    "attrs": lambda x: AttrsPair(1, x),
    "SimpleNamespace": lambda x: types.SimpleNamespace(a=x),
    "partial": lambda x: functools.partial(max, 1, key=x),
    "exception args": lambda x: ValueError("text", x),
    "exception cause": lambda x: raising_from(x),
    "exception group": lambda x: ExceptionGroup("several", [OddError(x)]),
    "stop": lambda x: StopIteration(x),
}


def raising_from(x: object) -> Exception:
    error = KeyError("k")
    error.__context__ = OddError(x)
    return error


@pytest.mark.parametrize("holder", HOLDERS)
def test_memory_is_found_in(holder: str, block: Opaque) -> None:
    value = HOLDERS[holder](block)
    assert extract_device(value) == [DataRef(SIM, 4096, 64, block)]
    assert extract(value) == [DataRef(SIM, 4096, 64, block)]


def test_an_undeclared_attribute_of_a_dataclass_is_looked_at(block: Opaque) -> None:
    layer = Layer()
    layer.hidden = block  # type: ignore[attr-defined]
    assert len(extract_device(layer)) == 1


def test_the_metadata_of_a_state_dict_is_looked_at(block: Opaque) -> None:
    state: Any = torch.nn.Linear(2, 2).state_dict()
    assert len(extract(state)) == 2
    state._metadata["mine"] = block
    assert len(extract_device(state)) == 1


@pytest.mark.parametrize(
    "value",
    [
        *(None, True, 3, 2**80, 1.5, 1j, "s", b"b", bytearray(b"b"), memoryview(b"b")),
        *(range(3), slice(1), ..., Decimal(1), Fraction(1, 3), uuid.UUID(int=3)),
        *(Path("/tmp"), dt.date(2020, 1, 1), dt.datetime.now(dt.UTC), dt.time(1)),
        *(dt.timedelta(1), dt.UTC, Colour.RED, torch.float32, torch.device("cuda:1")),
        *(torch.Size([1]), torch.strided, torch.channels_last, torch.Generator()),
        *(int, Opaque, len, np.float32(1), np.ones(3), T, [T, 1], (T,), {"a": T}),
    ],
    ids=repr,
)
def test_no_device_memory_is_found_in(value: object) -> None:
    assert extract_device(value) == []


def test_a_host_tensor_is_named_by_its_whole_storage() -> None:
    tensor = torch.arange(10.0)
    (ref,) = extract(tensor[2:4])
    assert (ref.device, ref.pointer, ref.nbytes) == (CPU, pointer(tensor), 40)


def test_each_block_is_named_once() -> None:
    tensor = torch.arange(10.0)
    value = [tensor, tensor[1:], {"a": tensor.view(2, 5)}, tensor.untyped_storage()]
    assert len(extract(value)) == 1


def test_an_empty_and_a_meta_tensor_hold_nothing() -> None:
    assert extract([torch.empty(0), torch.empty(3, device="meta")]) == []


def test_the_gradient_of_a_leaf_is_named() -> None:
    leaf = torch.ones(3, requires_grad=True)
    leaf.sum().backward()
    grad = leaf.grad
    assert grad is not None
    assert {ref.pointer for ref in extract(leaf)} == {pointer(leaf), pointer(grad)}
    parameter = torch.nn.Parameter(torch.ones(2))
    parameter.grad = torch.ones(2)
    assert len(extract(parameter)) == 2


@pytest.mark.parametrize(
    ("layout", "count"),
    [("coo", 2), ("csr", 3), ("csc", 3), ("bsr", 3), ("bsc", 3)],
)
@pytest.mark.filterwarnings("ignore:Sparse .* tensor support is in beta")
def test_every_part_of_a_sparse_tensor_is_named(layout: str, count: int) -> None:
    block = (2, 2) if layout.startswith("bs") else None
    kind = getattr(torch, f"sparse_{layout}")
    sparse = torch.eye(4).to_sparse(layout=kind, blocksize=block)
    assert len(extract(sparse)) == count


def test_the_parts_of_a_jagged_tensor_are_named() -> None:
    assert pointer(JAGGED.values()) in {ref.pointer for ref in extract(JAGGED)}


@pytest.mark.filterwarnings("ignore")
def test_the_scales_of_a_quantised_tensor_are_named() -> None:
    scales, zeros = torch.ones(3), torch.zeros(3, dtype=torch.int64)
    tensor = torch.quantize_per_channel(torch.ones(3, 2), scales, zeros, 0, torch.qint8)
    assert len(extract(tensor)) == 3


def test_a_tensor_subclass_is_its_inner_tensors() -> None:
    inner = torch.ones(3)
    assert [ref.pointer for ref in extract(InnerTensor(inner))] == [pointer(inner)]


def test_what_a_torch_function_returned_is_known() -> None:
    assert len(extract(torch.max(torch.eye(3), 0))) == 2
    packed = pack_sequence([torch.ones(3), torch.ones(2)])
    assert pointer(packed.data) in {ref.pointer for ref in extract(packed)}


def test_a_numpy_array_is_host_memory_and_its_objects_are_looked_at(
    block: Opaque,
) -> None:
    assert [ref.nbytes for ref in extract(np.ones(3))] == [24]
    assert len(extract_device(np.array([1, block], dtype=object))) == 1


def test_a_pytree_registration_of_torch_is_honoured(block: Opaque) -> None:
    kind = type("Node", (), {})
    torch.utils._pytree.register_pytree_node(
        kind,
        lambda node: ([node.child], None),
        lambda children, _: kind(),
    )
    node = kind()
    node.child = block
    assert len(extract_device(node)) == 1


class CudaArray:
    """What CuPy looks like, on device 1."""

    def __init__(self, **interface: object) -> None:
        self.__cuda_array_interface__ = {
            "data": (4096, False),
            "typestr": "<f4",
            "shape": (2, 3),
            **interface,
        }

    __cuda_array_interface__: dict[str, object] | None = None

    def __dlpack_device__(self) -> tuple[int, int]:
        return (2, 1)


@pytest.mark.parametrize(
    ("interface", "start", "nbytes"),
    [
        ({}, 4096, 24),
        ({"strides": (24, 8)}, 4096, 44),
        ({"strides": (-12, 4)}, 4084, 24),
    ],
)
def test_an_array_with_the_cuda_interface_is_device_memory(
    interface: dict[str, object], start: int, nbytes: int
) -> None:
    array = CudaArray(**interface)
    assert extract_device(array) == [DataRef(Device("cuda", 1), start, nbytes, array)]


def test_an_empty_array_with_the_cuda_interface_holds_nothing() -> None:
    assert extract_device(CudaArray(shape=(0, 3))) == []


def test_an_array_with_dlpack_is_named_by_its_owner() -> None:
    class Array:
        def __init__(self) -> None:
            self.tensor = torch.ones(4)

        def __dlpack__(self, **options: Any) -> object:
            return self.tensor.__dlpack__(**options)

        def __dlpack_device__(self) -> tuple[int, int]:
            return (1, 0)

    array = Array()
    assert extract(array) == [DataRef(CPU, pointer(array.tensor), 16, array)]


def test_cycles_and_sharing_end() -> None:
    value: list[Any] = [torch.ones(1)]
    value.append({"self": value, "twice": [value, value]})
    assert len(extract(value)) == 1


def test_depth_is_bounded_by_memory_only(block: Opaque) -> None:
    value: object = block
    for _ in range(100_000):
        value = [value]
    assert len(extract_device(value)) == 1


def test_objects_that_an_extractor_makes_are_not_confused() -> None:
    register_extractor(Opaque, lambda value: ([torch.ones(n + 1)] for n in range(50)))
    assert len(extract(Opaque())) == 50


@pytest.mark.parametrize(
    "value",
    [
        Opaque(),
        HidingList(),
        HidingPoint(1, 2),
        type("D", (dict,), {})(),
        HidingRecord(),
        np.ones((1, 1)).view(type("Array", (np.ndarray,), {})),
        torch.ones(1).as_subclass(SilentTensor),
        types,
        iter([]),
    ],
    ids=lambda value: type(value).__name__,
)
@pytest.mark.parametrize("function", [extract, extract_device])
def test_an_unknown_type_is_refused(function: Any, value: object) -> None:
    with pytest.raises(ExtractionError) as caught:
        function([1, value])
    kind = type(value)
    assert caught.value.type_name == f"{kind.__module__}.{kind.__qualname__}"


def test_the_message_says_where_and_what_to_do() -> None:
    result = {"layers": [1, 2, 3, Layer(cache=Opaque())], "z": Opaque()}
    origin = Origin(
        what="the return value of the then() callback",
        path_root="result",
        worker="trainer1",
        call="step() for worker 'server'",
    )
    with pytest.raises(ExtractionError) as caught:
        extract_device(result, origin=origin)
    error = caught.value
    assert error.path == "result['layers'][3].cache"
    assert error.worker == "trainer1"
    assert error.call == "step() for worker 'server'"
    assert error.what == "the return value of the then() callback"
    assert error.type_name == "tests.support.types.Opaque"
    assert error.fix == (
        "rpcfut.register_type(Opaque, flatten, unflatten)\n"
        "or, if it never travels: @rpcfut.register_extractor(Opaque)\n"
        "or, if it holds no device memory: rpcfut.no_device_data(Opaque)"
    )
    assert "to fix:" in str(error)


@pytest.mark.parametrize(
    ("value", "path"),
    [
        (Opaque(), "value"),
        ((Opaque(),), "value[0]"),
        (Point(1, Opaque()), "value.y"),
        ({Opaque(): 1}, "value.<key <a tests.support.types.Opaque>>"),
        ({(1, 2): Opaque()}, "value[<a builtins.tuple>]"),
        ({Opaque()}, "value.<element>"),
        (FrozenLayer(Opaque()), "value.weight"),
        (ValueError(Opaque()), "value.<part 0>"),
    ],
)
def test_the_path_leads_to_the_unknown_object(value: object, path: str) -> None:
    with pytest.raises(ExtractionError) as caught:
        extract(value)
    assert caught.value.path == path


def test_a_module_is_refused_with_the_way_out() -> None:
    with pytest.raises(ExtractionError, match=r"send its state_dict\(\)"):
        extract({"model": torch.nn.Linear(1, 1)})


def test_a_function_with_a_closure_is_refused_and_a_plain_one_is_not() -> None:
    hidden = torch.ones(1)
    with pytest.raises(ExtractionError, match="closure, which may hold anything"):
        extract([lambda: hidden])
    assert extract([pointer]) == []
    assert len(extract(functools.partial(pointer, hidden))) == 1
    assert len(extract(hidden.add)) == 1


def bad_extractor(value: object) -> list[object]:
    raise OddError("no such field")


def test_an_extractor_that_raises_is_named() -> None:
    register_extractor(Opaque, bad_extractor)
    with pytest.raises(ExtractionError) as caught:
        extract_device({"a": Opaque()})
    assert caught.value.path == "value['a']"
    assert "bad_extractor" in caught.value.fix
    assert "test_extract.py:" in caught.value.fix
    assert "OddError: no such field" in caught.value.fix
    assert isinstance(caught.value.__cause__, OddError)


def test_an_extractor_whose_generator_raises_is_named() -> None:
    def parts(value: object) -> Iterator[object]:
        yield T
        raise OddError("later")

    register_extractor(Opaque, parts)
    with pytest.raises(ExtractionError, match="OddError: later"):
        extract(Opaque())


@pytest.mark.parametrize(
    ("result", "text"), [(None, "it returned None"), (Opaque(), "it returned <")]
)
def test_an_extractor_that_returns_nonsense_is_refused(result: Any, text: str) -> None:
    kind = type("Holder", (), {})
    register_extractor(kind, lambda value: result)
    with pytest.raises(ExtractionError, match=text):
        extract(kind())


def test_an_extractor_that_returns_one_value_is_understood(block: Opaque) -> None:
    kind = type("Holder", (), {})
    for result in ({"a": block}, block, DataRef(SIM, 4096, 64, block)):
        register_extractor(kind, lambda value, result=result: result, override=True)
        assert len(extract_device(kind())) == 1


def test_no_device_data_is_believed() -> None:
    no_device_data(Opaque)
    assert extract([Opaque(a=T)] * 3) == []
