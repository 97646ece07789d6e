"""Every supported value arrives equal, every other is refused here (RPC-9)."""

from __future__ import annotations

import ast
import datetime as dt
import threading
import types
import warnings
import zoneinfo
from collections import Counter, OrderedDict, defaultdict, deque
from fractions import Fraction
from pathlib import Path, PureWindowsPath
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from torch.nn.utils.rnn import pack_sequence

import rpcfut._codec
from rpcfut._codec import Encoded, decode, encode
from rpcfut._decode import _Decoder, _unpack
from rpcfut._encode import _Encoder
from rpcfut._errors import DecodeError, EncodeError, ExtractionError, Origin
from rpcfut._registry import isolated_registry, no_device_data, register_type
from rpcfut._wire_codes import (
    INLINE_NBYTES,
    MAX_BODY_NBYTES,
    MAX_CONTAINERS,
    MAX_DEPTH,
    TABLE_BYTE,
)
from rpcfut._wire_weights import FREE_NBYTES, Budget, weigh
from rpcfut_transport import MAX_BUFFERS
from tests.support.exact import same
from tests.support.types import (
    AttrsPair,
    Colour,
    Derived,
    FrozenLayer,
    HidingList,
    HidingRecord,
    Layer,
    OddError,
    OldPoint,
    Opaque,
    Point,
    RecordError,
    Rights,
)
from tests.support.values import values

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


@pytest.fixture(autouse=True)
def _isolated() -> Iterator[None]:
    with isolated_registry():
        yield


def no_stage(tensor: torch.Tensor) -> bytearray:
    raise AssertionError("a host tensor needs no stage")


def no_place(tensor: torch.Tensor, device: object) -> torch.Tensor:
    raise AssertionError("a host tensor needs no place")


def pack(value: object) -> Encoded:
    return encode(value, stage=no_stage)


def trip(value: object) -> Any:
    body, buffers = pack(value)
    received = [memoryview(bytearray(buffer)) for buffer in buffers]
    return decode(body, received, place=no_place)


@settings(max_examples=400, deadline=None)
@given(values)
def test_a_value_arrives_with_its_types_and_bits(value: object) -> None:
    assert same(trip(value), value)


CHOSEN = [
    *(0, -1, 2**63, 2**64 - 1, 2**64, -(2**63), -(2**63) - 1, -(2**70), 3**900, True),
    *(float("nan"), float("inf"), -0.0, 5e-324, complex(-0.0, float("nan"))),
    *("", "\0", "ä€😀", "\udc80", b"", b"\xff", bytearray(), bytearray(b"x")),
    *(
        [],
        (),
        {},
        set(),
        frozenset(),
        [[]],
        ((),),
        {"": {}},
        {1},
        deque(),
        deque([1], 1),
    ),
    *({1: "a", "1": "b", (1, 2): "c", None: "d", 1.5: "e", b"1": "f"}, {True: 1}),
    *({(1, (2, frozenset([3]))): [4]}, {float("nan"): 1}),
    *(OrderedDict([("b", 1), ("a", 2)]), Counter("abca"), defaultdict(list, {1: [2]})),
    *(
        defaultdict(None, a=1),
        range(3, 2**80, 7),
        slice(None, 2**70),
        ...,
        Fraction(1, 3),
    ),
    *(Path("/tmp/\udc80"), PureWindowsPath("C:\\a"), dt.date.min, dt.datetime.max),
    *(
        dt.datetime(
            2020, 1, 1, fold=1, tzinfo=dt.timezone(dt.timedelta(hours=-5), "EST")
        ),
    ),
    *(dt.time.max, dt.timedelta.min, dt.timedelta.max, dt.UTC),
    *(
        torch.float8_e4m3fn,
        torch.device("cuda:1"),
        torch.device("cpu"),
        torch.Size([2]),
    ),
    *(torch.strided, torch.sparse_coo, torch.channels_last, torch.preserve_format),
    torch.max(torch.eye(3), 0),
]


@pytest.mark.parametrize("value", CHOSEN, ids=lambda value: type(value).__name__)
def test_a_chosen_value_arrives_equal(value: object) -> None:
    assert same(trip(value), value)
    assert same(trip({"k": (value,)}), {"k": (value,)})


def test_a_named_timezone_and_utc_stay_what_they_are() -> None:
    named = dt.timezone(dt.timedelta(0), "Zulu")
    assert trip(named).tzname(None) == "Zulu"
    assert trip(dt.UTC) is dt.UTC


def test_the_order_of_a_dict_is_kept() -> None:
    value = {n % 7: n for n in range(20, 0, -1)}
    assert list(trip(value)) == list(value)


def test_a_state_dict_keeps_its_metadata() -> None:
    state: Any = torch.nn.BatchNorm1d(2).state_dict()
    back = trip(state)
    assert type(back) is OrderedDict
    assert same(dict(back), dict(state))
    assert back._metadata == state._metadata
    torch.nn.BatchNorm1d(2).load_state_dict(back)


def test_a_packed_sequence_arrives() -> None:
    packed = pack_sequence([torch.ones(3), torch.ones(2)])
    assert same(tuple(trip(packed)), tuple(packed))


@pytest.mark.parametrize("kind", [bytes, bytearray])
@pytest.mark.parametrize("more", [0, 1])
def test_long_bytes_travel_outside_of_the_body(kind: Any, more: int) -> None:
    value = kind(b"ab" * (INLINE_NBYTES // 2)) + kind(b"c" * more)
    body, buffers = pack([value])
    assert len(buffers) == more
    assert (len(body) < 100) == bool(more)
    assert same(trip([value]), [value])


def test_a_bytearray_may_be_overwritten_after_the_call() -> None:
    value = bytearray(INLINE_NBYTES * 2)
    body, buffers = pack(value)
    value[0] = 1
    assert decode(body, buffers, place=no_place)[0] == 0  # type: ignore[index]


ARRAYS = [
    np.arange(6, dtype=np.int32).reshape(2, 3),
    np.arange(6.0).reshape(2, 3).T,
    np.arange(24, dtype=">i8").reshape(2, 3, 4)[:, ::2],
    np.array(1.5, np.float32),
    np.zeros((2, 0), np.uint8),
    np.zeros((0, 3), "U2"),
    np.array(["ab", "c"]),
    np.array([b"ab", b"c"]),
    np.array(["2020-01-01", "NaT"], "M8[us]"),
    np.array([1 + 2j], np.complex64),
    np.ones(100_000, np.float16),
]


@pytest.mark.parametrize("array", ARRAYS, ids=lambda a: f"{a.dtype}{a.shape}")
def test_a_numpy_array_arrives_with_its_bits(array: Any) -> None:
    back = trip(array)
    assert type(back) is np.ndarray
    assert (back.dtype, back.shape) == (array.dtype, array.shape)
    assert back.tobytes() == array.tobytes()
    assert back.flags.writeable
    assert back.flags.f_contiguous == (array.flags.f_contiguous or array.ndim < 2)


@pytest.mark.parametrize(
    "value",
    [
        *(np.float64(1.5), np.int8(-3), np.bool_(1), np.str_("ab")),
        *(np.datetime64("NaT"), np.str_(""), np.str_("a\0"), np.str_("\udc80")),
        *(np.bytes_(b""), np.bytes_(b"a\0\0")),
    ],
    ids=repr,
)
def test_a_numpy_scalar_stays_one(value: Any) -> None:
    back = trip(value)
    assert type(back) is type(value)
    assert back.tobytes() == value.tobytes()
    if isinstance(value, (str, bytes)):
        assert len(back) == len(value)


REGISTERED = [
    Layer([1], {"a": (2,)}),
    FrozenLayer(torch.ones(2), 0.5),
    Derived(3),
    AttrsPair(1, "b"),
    Point(1, (2,)),
    OldPoint(1, None),
    Colour.RED,
    Colour.BLUE,
    Rights.READ,
    Rights.READ | Rights.WRITE,
]


@pytest.mark.parametrize("value", REGISTERED, ids=repr)
def test_a_registered_type_arrives_as_itself(value: Any) -> None:
    register_type(type(value))
    back = trip([value])[0]
    assert type(back) is type(value)
    if isinstance(value, FrozenLayer):
        assert same(back.weight, value.weight)
    else:
        assert back == value


def test_the_users_own_functions_are_used() -> None:
    register_type(
        Opaque,
        lambda value: (value.a, {1: value.b}),
        lambda v: Opaque(a=v[0], b=v[1][1]),
    )
    back = trip({"x": Opaque(a=torch.ones(2), b=Opaque(a=1, b=2))})["x"]
    assert same(back.a, torch.ones(2))
    assert (back.b.a, back.b.b) == (1, 2)


def test_a_registered_subclass_of_a_builtin_travels() -> None:
    register_type(HidingList, list, HidingList)
    assert type(trip((HidingList([1]),))[0]) is HidingList


def test_post_init_does_not_run_again() -> None:
    register_type(Derived)
    value = Derived(3)
    value.total = 9
    assert value.twice == 6  # a cached property may be lost
    assert trip(value).total == 9


@pytest.mark.parametrize("kind", [RecordError, HidingRecord])
def test_a_record_that_is_more_than_its_fields_needs_two_functions(kind: type) -> None:
    """Not only where it arrives: an exception or dict is not rebuilt from fields."""
    with pytest.raises(TypeError, match="cannot be rebuilt from its fields alone"):
        register_type(kind)
    register_type(RecordError, lambda error: error.code, RecordError)
    assert trip(RecordError(7)).code == 7


def test_an_attribute_of_a_packed_sequence_is_not_lost_in_silence() -> None:
    packed: Any = pack_sequence([torch.ones(3)])
    packed.note = 1
    with pytest.raises(EncodeError, match="attribute 'note', which would be lost"):
        pack(packed)


def test_an_attribute_that_is_no_field_is_not_lost_in_silence() -> None:
    register_type(Layer)
    layer = Layer()
    layer.extra = 1  # type: ignore[attr-defined]
    with pytest.raises(
        EncodeError, match="attribute 'extra' of this Layer is no field"
    ):
        pack(layer)


def test_another_version_of_a_dataclass_is_refused() -> None:
    with isolated_registry():
        register_type(Point, lambda p: {"weight": 1}, tuple, name="layer")  # type: ignore[arg-type]
        body, _ = pack(Point(1, 2))
    register_type(Layer, name="layer")
    with pytest.raises(DecodeError, match="do both run the same version"):
        decode(body, [], place=no_place)


def test_a_type_that_is_not_registered_here_is_named() -> None:
    with isolated_registry():
        register_type(Point)
        body, _ = pack(Point(1, 2))
    with pytest.raises(
        DecodeError, match=r"'tests.support.types:Point'.*register_type"
    ):
        decode(body, [], place=no_place)


def test_an_unflatten_that_raises_is_a_decode_error() -> None:
    def refuse(_: object) -> Opaque:
        raise OddError("not today")

    register_type(Opaque, lambda value: 1, refuse, name="opaque")
    body, _ = pack(Opaque())
    with pytest.raises(
        DecodeError, match="'opaque' raised OddError: not today"
    ) as caught:
        decode(body, [], place=no_place)
    assert isinstance(caught.value.__cause__, OddError)


def test_a_flatten_that_raises_is_an_encode_error_with_the_path() -> None:
    def refuse(_: object) -> object:
        raise OddError("not today")

    register_type(Opaque, refuse, Opaque)
    with pytest.raises(
        EncodeError, match=r"value\['a'\].*OddError: not today"
    ) as caught:
        pack({"a": Opaque()})
    assert isinstance(caught.value.__cause__, OddError)


REFUSED: list[tuple[object, str]] = [
    (memoryview(b"x"), "send bytes(x)"),
    (types.MappingProxyType({}), "send dict(x)"),
    (Point(1, 2), "register_type(Point"),
    (Layer(), "register_type(Layer"),
    (Colour.RED, "register_type(Colour"),
    (type("Count", (int,), {})(1), "cannot tell"),
    (lambda: 1, "is a function; send its name"),
    (Opaque, "is a class; send its name"),
    (ValueError(1), "is an exception; raise it"),
    (torch.Generator(), "send its get_state()"),
    (torch.ones(1).untyped_storage(), "send a tensor over it"),
    (dt.datetime.now(zoneinfo.ZoneInfo("UTC")), "astimezone(datetime.timezone.utc)"),
    (defaultdict(lambda: 1), "send dict(x)"),
    (Fraction(1, 1 << (1 << 19)), "send its numerator and denominator"),
    (np.array([1, None]), "is an array of objects; send x.tolist()"),
    (np.ndarray(3, "S0"), "of 0 bytes; send x.tolist()"),
    (np.zeros(2, "i4,f8"), "send its fields as separate arrays"),
    (np.ma.array([1]), "cannot tell"),
]


@pytest.mark.parametrize(
    ("value", "text"),
    REFUSED,
    ids=lambda v: v if isinstance(v, str) else type(v).__name__,
)
def test_a_value_that_cannot_travel_is_refused_with_the_way_out(
    value: object, text: str
) -> None:
    with pytest.raises((EncodeError, ExtractionError)) as caught:
        pack({"a": [1, (value,)]})
    assert text in str(caught.value)
    assert "value['a'][1][0]" in str(caught.value)


def test_a_known_type_without_a_wire_format_is_an_encode_error() -> None:
    no_device_data(Opaque)
    with pytest.raises(EncodeError, match="on both workers call rpcfut"):
        pack([Opaque()])


def test_an_unknown_type_is_the_same_error_as_in_extract() -> None:
    origin = Origin(what="an argument", path_root="args", call="f() for worker 'b'")
    with pytest.raises(ExtractionError) as caught:
        encode([{"k": Opaque()}], stage=no_stage, origin=origin)
    assert caught.value.path == "args[0]['k']"
    assert caught.value.call == "f() for worker 'b'"


def test_the_root_and_the_call_are_in_the_message() -> None:
    with pytest.raises(EncodeError, match=r"cannot send result\[0\]"):
        encode([memoryview(b"")], stage=no_stage, root="result")
    origin = Origin(what="an argument", path_root="args", call="f() for worker 'b'")
    with pytest.raises(EncodeError, match=r"args\[0\][^$]*call: +f\(\) for worker 'b'"):
        encode([memoryview(b"")], stage=no_stage, origin=origin)


def test_an_attribute_of_a_container_is_not_lost_in_silence() -> None:
    value: Any = OrderedDict(a=1)
    value.note = "x"
    with pytest.raises(EncodeError, match="attribute 'note', which would be lost"):
        pack(value)


def test_the_path_goes_through_registered_types() -> None:
    register_type(Layer)
    with pytest.raises(EncodeError, match=r"value\[1\]\.weight\[0\]"):
        pack([0, Layer(weight=[memoryview(b"")])])
    register_type(Point)
    with pytest.raises(EncodeError, match=r"value\.y\.weight\['a'\], a builtins.mem"):
        pack(Point(1, Layer(weight={"a": memoryview(b"")})))


def test_the_path_through_a_users_own_form_names_what_it_can() -> None:
    register_type(Opaque, lambda value: [value.a, [value.b]], Opaque)
    with pytest.raises(EncodeError, match=r"value\.<flattened>\[1\]\[0\], a builtins"):
        pack(Opaque(a=1, b=memoryview(b"")))


def test_a_cycle_is_refused_with_both_ends() -> None:
    value: dict[str, Any] = {"a": [1]}
    value["a"].append(value)
    with pytest.raises(
        EncodeError, match=r"value\['a'\]\[1\].*same object as value: a cyc"
    ):
        pack(value)


def test_depth_is_bounded_on_both_sides() -> None:
    value: object = torch.ones(1)
    for _ in range(MAX_DEPTH):
        value = [value]
    assert isinstance(trip(value), list)
    with pytest.raises(EncodeError, match=f"too deeply: {MAX_DEPTH} levels"):
        pack((value,))
    body = b"\x91" * (MAX_DEPTH + 1) + b"\xc0"
    with pytest.raises(DecodeError, match=f"too deeply: {MAX_DEPTH} levels"):
        decode(body, [], place=no_place)


def test_a_body_over_the_limit_is_refused_with_the_way_out() -> None:
    with pytest.raises(EncodeError, match="send numbers as a tensor, text as bytes"):
        pack("x" * (MAX_BODY_NBYTES + 1))


LARGE: dict[str, Callable[[], object]] = {
    "ints": lambda: list(range(2_000_000)),
    "tuples": lambda: [(n, n + 0.5) for n in range(400_000)],
    "records": lambda: [{"id": n, "name": "somebody"} for n in range(300_000)],
    "dict of ints": lambda: {n: n for n in range(500_000)},
    "set": lambda: set(range(1_000_000)),
    "dates": lambda: [dt.date.min] * 500_000,
}


@pytest.mark.parametrize("name", LARGE)
def test_a_large_value_is_no_attack(name: str) -> None:
    value = LARGE[name]()
    assert trip(value) == value


@pytest.mark.timeout(90)
def test_hundreds_of_thousands_of_tensors_arrive() -> None:
    sent = list(torch.arange(300_000).unbind())
    back = trip(sent)
    assert len(back) == 300_000
    assert same(back[-1], sent[-1])


@settings(max_examples=200, deadline=None)
@given(values)
def test_the_sender_counts_what_the_receiver_counts(value: object) -> None:
    encoder = _Encoder(no_stage, None, "value")
    lowered = encoder.lower(value)
    body, buffers = pack(value)
    decoder, budget = _Decoder(buffers, no_place), Budget(FREE_NBYTES)
    packed = memoryview(body)
    if packed[0] == TABLE_BYTE:
        packed = decoder.read_table(packed)
    _unpack(packed, budget, decoder.read_ext)
    assert weigh(lowered) == budget.nbytes - budget.left


@pytest.mark.parametrize("small", [(), set(), deque()], ids=repr)
def test_a_value_that_the_receiver_would_refuse_is_not_sent(small: object) -> None:
    with pytest.raises(EncodeError, match="send numbers as a tensor, or the value in"):
        pack([small] * 1_000_000)


def test_too_many_containers_are_refused_before_they_are_lowered() -> None:
    with pytest.raises(EncodeError, match=f"it holds more than {MAX_CONTAINERS} li"):
        pack([()] * (MAX_CONTAINERS + 1))
    assert len(trip([0] * (MAX_CONTAINERS + 1) + [()])) == MAX_CONTAINERS + 2


def test_shared_parts_count_as_often_as_they_are_held() -> None:
    value: list[Any] = []
    for _ in range(30):
        value = [value, value]
    with pytest.raises(EncodeError, match="counted as often as it is held"):
        pack(value)


def test_more_buffers_than_a_message_has_are_refused() -> None:
    with pytest.raises(EncodeError, match=f"more than {MAX_BUFFERS} tensors"):
        pack([bytes(INLINE_NBYTES + 1)] * (MAX_BUFFERS + 1))


def test_a_dict_that_changes_meanwhile_is_an_encode_error() -> None:
    value: dict[str, Any] = {"a": Opaque(), "b": 2}
    register_type(Opaque, lambda _: value.update(c=3), Opaque)
    with pytest.raises(EncodeError, match=r"was changed while .*send a copy"):
        pack([value])


def test_only_a_wire_format_helps_a_value_that_travels() -> None:
    with pytest.raises(ExtractionError) as caught:
        pack([Opaque()])
    assert "rpcfut.register_type(" in caught.value.fix
    assert "register_extractor" not in caught.value.fix
    assert "no_device_data" not in caught.value.fix


def test_two_threads_encode_at_once() -> None:
    value = {"a": [(n, str(n)) for n in range(300)]}
    results: list[bool] = []

    def work() -> None:
        results.extend(same(trip(value), value) for _ in range(20))

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(10)
    assert results == [True] * 80


def test_the_users_containers_are_left_as_they_were() -> None:
    value = {"a": [1, (2,)], "b": {3: [4]}}
    trip(value)
    assert value == {"a": [1, (2,)], "b": {3: [4]}}


def test_nothing_warns() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        trip([torch.ones(3), np.ones(3), b"x" * 100_000, torch.zeros(1 << 20)])


def test_no_module_can_reach_pickle() -> None:
    """RPC-10: not by an import, and not by a torch function that unpickles."""
    package = Path(rpcfut._codec.__file__).parent
    banned = {
        "pickle",
        "cPickle",
        "dill",
        "cloudpickle",
        "marshal",
        "shelve",
        "copyreg",
    }
    for path in package.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Import):
                names = {alias.name.split(".")[0] for alias in node.names}
            elif isinstance(node, ast.ImportFrom):
                names = {(node.module or "").split(".")[0]}
            elif isinstance(node, ast.Attribute):
                is_load = node.attr in {"load", "save"}
                names = {"pickle"} if is_load and _is_torch(node.value) else set()
            else:
                continue
            if path.name == "_pickler_walk.py":
                names -= {"pickle"}  # the pickler only, see test_layout
            assert not names & banned, f"{path.name}:{node.lineno}"


def _is_torch(node: ast.expr) -> bool:
    return isinstance(node, ast.Name) and node.id == "torch"
