"""What travels and what does not, by example; docs/values.md is made of it.

``python -m tests.support.wire_table`` writes the tables of the page, from the checkout.
"""

from __future__ import annotations

import datetime as dt
import decimal
import functools
import http
import ipaddress
import threading
import types
import zoneinfo
from array import array
from collections import (
    ChainMap,
    Counter,
    OrderedDict,
    UserDict,
    UserList,
    UserString,
    defaultdict,
    deque,
)
from fractions import Fraction
from pathlib import Path, PosixPath, PurePosixPath, PureWindowsPath
from typing import TYPE_CHECKING, Any, Final, NamedTuple
from uuid import UUID

import numpy as np
import torch
from torch.nn.utils.rnn import pack_sequence

import rpcfut
from tests.support.extractor_table import replaced, table
from tests.support.tensor_table import TENSORS
from tests.support.types import (
    AttrsPair,
    Box,
    Colour,
    Corner,
    Derived,
    FrozenLayer,
    Grade,
    HidingList,
    HidingPoint,
    Layer,
    Lazy,
    Level,
    Modes,
    OddError,
    OldPoint,
    Opaque,
    Point,
    Rights,
    SlotRecord,
)

if TYPE_CHECKING:
    from collections.abc import Callable

PAGE = Path(__file__).parents[2] / "docs/values.md"


class Travels(NamedTuple):
    """A kind that arrives as it was.

    Args:
        kind: What it is, for the page.
        make: Makes examples.
        remark: What the page says beside.
        register: Types that have to be registered.
    """

    kind: str
    make: Callable[[], list[object]]
    remark: str = ""
    register: tuple[type, ...] = ()


class Refused(NamedTuple):
    """A kind that is refused at the call.

    Args:
        kind: What it is, for the page.
        make: Makes examples.
        text: The message holds this, and the page shows it.
    """

    kind: str
    make: Callable[[], list[object]]
    text: str


def _state() -> list[object]:
    return [torch.nn.BatchNorm1d(2).state_dict(), OrderedDict(b=1, a=2)]


def _nan(payload: int) -> float:
    return np.uint64(0x7FF8_0000_0000_0000 | payload).view(np.float64).item()


_EST = dt.timezone(dt.timedelta(hours=-5), "EST")
_TIME = dt.datetime(2020, 1, 1, 2, 3, 4, 5, fold=1, tzinfo=_EST)

TRAVELS: Final = (
    Travels("`None`, `...`, `NotImplemented`", lambda: [None, ..., NotImplemented]),
    Travels("`bool`", lambda: [True, False]),
    Travels(
        "`int`",
        lambda: [0, -1, 2**63, 2**64 - 1, 2**64, -(2**63) - 1, -(2**70), 3**99999],
        "of any size",
    ),
    Travels(
        "`float`, `complex`",
        lambda: [-0.0, float("inf"), 5e-324, _nan(0), _nan(77), complex(-0.0, _nan(5))],
        "with all bits, those of a NaN too",
    ),
    Travels(
        "`decimal.Decimal`",
        lambda: [
            decimal.Decimal(text)
            for text in ("-0.00", "1E+999999999999999999", "-sNaN123", "NaN", "-Inf")
        ],
        "with its exponent, and the digits of a NaN",
    ),
    Travels(
        "`fractions.Fraction`",
        lambda: [Fraction(-1, 3), Fraction(2**9000)],
        "up to 32768 bits a side",
    ),
    Travels(
        "`str`",
        lambda: ["", "a\0b", "ä€😀", "\udc80", "x" * 10_000_000],
        "halves of surrogate pairs too; all text of a message counts to its 64 MB",
    ),
    Travels(
        "`bytes`, `bytearray`",
        lambda: [b"", b"\xff\0", b"x" * 100_000, bytearray(b"x"), bytearray(100_000)],
        "long ones beside the message, without its limit",
    ),
    Travels(
        "`range`, `slice`",
        lambda: [range(3, 2**80, 7), range(0), slice(None, 2**70), slice(1, "a", None)],
    ),
    Travels("`uuid.UUID`", lambda: [UUID(int=7)]),
    Travels(
        "`pathlib.PosixPath`, `PurePosixPath`, `PureWindowsPath`",
        lambda: [
            *(PosixPath("/tmp/\udc80"), PurePosixPath(), PurePosixPath("//a/../b")),
            *(PureWindowsPath("c:a"), PureWindowsPath("\\\\host\\share\\a")),
        ],
    ),
    Travels(
        "`datetime.date`, `time`, `datetime`, `timedelta`, `timezone`",
        lambda: [
            *(dt.date.min, dt.date.max, dt.datetime.min, dt.datetime.max, _TIME),
            *(dt.time.max, dt.time(1, tzinfo=dt.UTC), dt.timedelta.min, dt.UTC, _EST),
            *(dt.timedelta.max, dt.timezone(dt.timedelta(0), "Zulu")),
        ],
        "with `fold`; the time zone an offset, with or without a name",
    ),
    Travels("`list`, `tuple`", lambda: [[], (), [[]], (1, [2, (3,)])]),
    Travels(
        "`dict`",
        lambda: [
            *({}, {"": {}}, {"b": 1, "a": 2}, {True: 1, "True": 2}, {_nan(1): 1}),
            {1: "a", "1": "b", (1, (2,)): "c", None: "d", b"1": "e", 1.5: "f"},
            {frozenset([1]): [2], dt.date.min: (), ...: torch.float32},
        ],
        "in its order; keys of any kind that has a hash",
    ),
    Travels("`set`, `frozenset`", lambda: [set(), {1, (2, "a")}, frozenset([None])]),
    Travels(
        "`collections.OrderedDict`",
        _state,
        "with a state_dict's `_metadata`; any other attribute is refused",
    ),
    Travels(
        "`collections.defaultdict`",
        lambda: [defaultdict(None, a=1), defaultdict(list, {1: [2]})],
        "whose factory is None or a builtin: `int`, `float`, `bool`, `complex`, "
        "`str`, `bytes`, `list`, `tuple`, `dict`, `set`",
    ),
    Travels("`collections.Counter`", lambda: [Counter("abca"), Counter(a=-1)]),
    Travels("`collections.deque`", lambda: [deque(), deque([1], 1)], "with `maxlen`"),
    Travels(
        "`torch.Tensor`, of every dtype",
        lambda: _tensors(
            "torch.", "channels", "NaN", "no dim", "empty", "large", "win"
        ),
        "with its dtype and shape; strides where it is dense, else row by row; a slice "
        "without the rest of its storage; not `.grad`, not hooks",
    ),
    Travels(
        "tensors that share memory",
        lambda: [[x := torch.arange(9.0), x[2:], x.view(3, 3).t()]],
        "share it on arrival; sent once",
    ),
    Travels(
        "`torch.nn.Parameter`, leaves that need gradients",
        lambda: _tensors("leaf", "parameter"),
    ),
    Travels("conjugated and negated views", lambda: _tensors("conj", "neg"), "as such"),
    Travels(
        "sparse tensors: COO, CSR, CSC, BSR, BSC",
        lambda: _tensors("sparse", "csr", "csc", "bsr", "bsc"),
        "as they are, coalesced or not",
    ),
    Travels("nested tensors", lambda: _tensors("nested", "jagged"), "of both layouts"),
    Travels(
        "quantised tensors",
        lambda: _tensors("torch.q", "quint8"),
        "per tensor and per channel",
    ),
    Travels("tensors on `meta`", lambda: _tensors("meta")),
    Travels(
        "`torch.dtype`, `device`, `Size`, `layout`, `memory_format`",
        lambda: [
            *(torch.float8_e4m3fn, torch.device("cuda:1"), torch.device("cpu")),
            *(torch.Size([2, 0]), torch.sparse_coo, torch.channels_last),
        ],
    ),
    Travels(
        "what torch's functions return, `torch.return_types`",
        lambda: [torch.max(torch.eye(3), 0)],
    ),
    Travels(
        "`torch.nn.utils.rnn.PackedSequence`",
        lambda: [pack_sequence([torch.ones(3), torch.ones(2)])],
    ),
    Travels(
        "`numpy.ndarray`",
        lambda: [
            *(np.arange(6, dtype=np.int8).reshape(2, 3).T, np.zeros((2, 0, 3), "U2")),
            *(np.zeros((2, 3, 4)).transpose(1, 0, 2), np.arange(9, dtype=">i8")[::2]),
            *(np.array(1.5), np.array(["ab", "c"]), np.array([b"ab", b""])),
            *(np.array(["2020-01-01", "NaT"], "M8[us]"), np.array([1], "m8[3D]")),
            *(np.ones(3, np.float16), np.array([True]), np.ones(2, np.complex64)),
        ],
        "of numbers, texts and times, in any byte order, up to 32 dimensions; axes "
        "stay in their order where dense; it can be written to, even where the "
        "sender's could not",
    ),
    Travels(
        "NumPy scalars",
        lambda: [
            *(np.float64(-0.0), np.int8(-3), np.bool_(1), np.longdouble(1) / 3),
            *(np.str_("a\0"), np.bytes_(b"a\0\0"), np.datetime64("NaT")),
            *(np.timedelta64(3, "h"), np.complex128(1j)),
        ],
    ),
    Travels(
        "dataclasses, attrs classes",
        lambda: [
            *(Layer([1], {"a": (2,)}), FrozenLayer(torch.ones(2), 0.5), Derived(3)),
            *(AttrsPair(1, "b"), Box[int](1), SlotRecord(2), Lazy(1)),
        ],
        "registered by `register_type(T)`; rebuilt field by field, cached properties "
        "are computed anew",
        (Layer, FrozenLayer, Derived, AttrsPair, Box, SlotRecord, Lazy),
    ),
    Travels(
        "named tuples",
        lambda: [Point(1, (2,)), OldPoint(1, None), HidingPoint(1, 2)],
        "registered by `register_type(T)`",
        (Point, OldPoint, HidingPoint),
    ),
    Travels(
        "members of enums",
        lambda: [
            *(Colour.RED, Colour.BLUE, Rights.READ, Rights.READ | Rights.WRITE),
            *(Grade.FINE, Level.HIGH, Corner.ORIGIN, Modes(0), Modes.A | Modes.B),
        ],
        "registered by `register_type(T)`; by name, flags by value",
        (Colour, Rights, Grade, Level, Corner, Modes),
    ),
)


def _ordered_dict_with_a_note() -> list[object]:
    value: Any = OrderedDict(a=1)
    value.note = "x"
    return [value]


def _record_with_more() -> list[object]:
    layer: Any = Layer()
    layer.extra = 1
    slots = SlotRecord(1)
    slots.hint = 2
    point: Any = HidingPoint(1, 2)
    point.more = 3
    return [layer, slots, point]


def _tensors(*starts: str) -> list[object]:
    return [make() for name, make in TENSORS.items() if name.startswith(starts)]


def _with_attribute() -> torch.Tensor:
    tensor = torch.ones(1)
    tensor.scale = 2.0  # type: ignore[attr-defined]
    return tensor


def _typed_storage() -> torch.TypedStorage:
    storage = torch.ones(1).untyped_storage()
    return torch.TypedStorage(wrap_storage=storage, dtype=torch.float32, _internal=True)


def _cycle() -> list[object]:
    value: list[object] = []
    value.append(value)
    return [value]


def _lambda() -> int:
    return 1


async def _coroutine_function() -> None: ...


REFUSED: Final = (
    Refused("`memoryview`", lambda: [memoryview(b"x")], "send bytes(x)"),
    Refused(
        "`types.MappingProxyType`",
        lambda: [types.MappingProxyType({})],
        "send dict(x)",
    ),
    Refused(
        "`types.SimpleNamespace`",
        lambda: [types.SimpleNamespace(a=1)],
        "send vars(x)",
    ),
    Refused(
        "`UserDict`, `UserList`, `UserString`, `ChainMap`, `array.array`",
        lambda: [UserDict(), UserList(), UserString(""), ChainMap(), array("d")],
        "make a dict, list, str or tensor of it",
    ),
    Refused(
        "a dataclass, attrs class, named tuple or enum that is not registered",
        lambda: [
            *(Layer(), AttrsPair(1, 2), Point(1, 2), Colour.RED, Rights.READ),
            *(Level.LOW, Grade.GOOD, http.HTTPStatus.OK),
        ],
        "rpcfut.register_type(",
    ),
    Refused(
        "any other class that is not registered, subclasses of builtins too",
        lambda: [Opaque(), HidingList(), object(), ipaddress.ip_address("::1")],
        ", flatten, unflatten)",
    ),
    Refused(
        "a registered object with an attribute that is no field",
        _record_with_more,
        "is no field and would be lost",
    ),
    Refused(
        "an `OrderedDict` or `Counter` with attributes",
        _ordered_dict_with_a_note,
        "has the attribute 'note', which would be lost; delete it",
    ),
    Refused(
        "a `defaultdict` with another factory",
        lambda: [defaultdict(_lambda), defaultdict(Counter)],
        "can travel: send dict(x)",
    ),
    Refused(
        "a `Fraction` of more than 32768 bits a side",
        lambda: [Fraction(1, 1 << 40_000)],
        "send its numerator and denominator",
    ),
    Refused(
        "keys or elements with one hash, thousands of them",
        lambda: [{n * (2**61 - 1) for n in range(200)}],
        "send a list of them",
    ),
    Refused("what contains itself", _cycle, "a cycle cannot travel"),
    Refused(
        "functions, methods, `functools.partial`",
        lambda: [
            *(_lambda, len, [].append, functools.partial(_lambda), _coroutine_function),
            *(str.upper, Derived(1).__post_init__, (1).__str__, list.__len__),
        ],
        "is a function; send its name",
    ),
    Refused("classes", lambda: [int, Opaque, list[int]], "is a class; send its name"),
    Refused(
        "Python modules", lambda: [types], "a Python module is not a value: send what"
    ),
    Refused(
        "exceptions",
        lambda: [ValueError(1), OddError(), ExceptionGroup("", [OddError()])],
        "is an exception; raise it, or register its type",
    ),
    Refused(
        "`rpcfut.Future`",
        lambda: [rpcfut.Future()],
        "wait for it and send its value, or return it",
    ),
    Refused(
        "futures of other libraries",
        lambda: [torch.futures.Future()],
        "wait for it and pass its value on",
    ),
    Refused(
        "iterators, generators",
        lambda: [iter([]), (n for n in ())],
        "make a list of it",
    ),
    Refused(
        "views of a dict",
        lambda: [{}.keys(), {}.values(), {}.items()],
        "make a list of it",
    ),
    Refused(
        "locks, queues, files, sockets, processes",
        lambda: [threading.Lock(), threading.Event()],
        "it belongs to this process",
    ),
    Refused(
        "a time or `datetime` with another kind of time zone",
        lambda: [dt.datetime(2020, 1, 1, tzinfo=zoneinfo.ZoneInfo("UTC"))],
        "send x.astimezone(datetime.timezone.utc)",
    ),
    Refused("`zoneinfo.ZoneInfo`", lambda: [zoneinfo.ZoneInfo("UTC")], "send x.key"),
    Refused(
        "a `PureWindowsPath` whose text means another path, such as `//host/`",
        lambda: [PureWindowsPath("//host/")],
        "send str(x)",
    ),
    Refused(
        "NumPy arrays of objects",
        lambda: [np.array([1, None])],
        "send x.tolist()",
    ),
    Refused(
        "NumPy records",
        lambda: [np.zeros(2, "i4,f8"), np.zeros(2, "i4,f8")[0]],
        "send its fields as separate arrays",
    ),
    Refused(
        "NumPy arrays of raw bytes",
        lambda: [np.zeros(2, "V4"), np.zeros(2, "V4")[0]],
        "send another view of it, as x.view('u1')",
    ),
    Refused(
        "NumPy arrays of texts without a size",
        lambda: [np.ndarray(3, "S0"), np.ndarray(3, "U0")],
        "send x.tolist()",
    ),
    Refused(
        "NumPy arrays of more than 32 dimensions",
        lambda: [np.zeros((1,) * 33)],
        "send x.ravel() and x.shape",
    ),
    Refused(
        "masked arrays, `numpy.recarray` and other subclasses",
        lambda: [np.ma.array([1]), np.recarray(2, "i4")],
        "may hide memory in its attributes",
    ),
    Refused("NumPy dtypes", lambda: [np.dtype("f4")], "send x.str"),
    Refused(
        "`torch.nn.Module`, optimizers",
        lambda: [
            torch.nn.Linear(1, 1),
            torch.optim.SGD([torch.ones(1, requires_grad=True)]),
        ],
        "send its state_dict()",
    ),
    Refused(
        "tensors that are part of a graph of autograd",
        lambda: [torch.ones(2, requires_grad=True) * 2],
        "send x.detach()",
    ),
    Refused(
        "tensors that share memory, most of which none of them shows",
        lambda: [[x := torch.zeros(1000), x[:9:2], x[::99]][1:]],
        "clone() one of them",
    ),
    Refused(
        "tensors for oneDNN",
        lambda: [torch.ones(2, 2).to_mkldnn()],
        "send x.to_dense()",
    ),
    Refused(
        "tensors with attributes of yours",
        lambda: [_with_attribute()],
        "which would be lost",
    ),
    Refused("`torch.Generator`", lambda: [torch.Generator()], "send its get_state()"),
    Refused(
        "storages",
        lambda: [torch.ones(1).untyped_storage(), _typed_storage()],
        "send a tensor over it",
    ),
    Refused(
        "`torch.finfo`, `torch.iinfo`",
        lambda: [torch.finfo(torch.float32), torch.iinfo(torch.int8)],
        "send the dtype",
    ),
    Refused("`torch.qscheme`", lambda: [torch.per_tensor_affine], "send str(x)"),
)

_TRAVELS = ("<!-- travels: from tests/support/wire_table.py -->\n", "<!-- end -->\n")
_REFUSED = ("<!-- refused: from the same -->\n", "<!-- end of refused -->\n")


def written(page: str) -> str:
    """The page with its tables as they stand here."""
    travels = [(row.kind, row.remark) for row in TRAVELS]
    refused = [(row.kind, f"... {row.text} ...") for row in REFUSED]
    page = replaced(page, _TRAVELS, table("kind", "how", travels))
    return replaced(page, _REFUSED, table("kind", "the message says", refused))


if __name__ == "__main__":
    PAGE.write_text(written(PAGE.read_text()))
