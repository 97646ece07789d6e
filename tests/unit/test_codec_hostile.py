"""Bytes from a stranger: a DecodeError, whatever they are (RPC-10)."""

from __future__ import annotations

import contextlib
import inspect
import os
import struct
import subprocess
import sys
from collections import Counter, OrderedDict
from decimal import Decimal
from fractions import Fraction
from pathlib import Path
from typing import TYPE_CHECKING, Any
from uuid import UUID

import msgpack
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from rpcfut._codec import decode
from rpcfut._decode import cost_of
from rpcfut._errors import DecodeError, EncodeError
from rpcfut._registry import isolated_registry, register_type
from rpcfut._tensor_table import (
    CONJUGATE,
    META,
    PARAMETER,
    REQUIRES_GRAD,
    SHARED,
    STRIDED,
    Table,
    write_table,
)
from rpcfut._wire_codes import (
    MAX_BODY_NBYTES,
    MAX_CONTAINERS,
    MAX_DEPTH,
    TABLE_BYTE,
    TABLE_HEAD,
    Code,
)
from rpcfut._wire_weights import FREE_NBYTES, SMALL_BODY_NBYTES
from tests.support.peak_memory import list_of
from tests.support.types import Point
from tests.support.values import values
from tests.unit.test_codec import CHOSEN, pack

if TYPE_CHECKING:
    from collections.abc import Callable

ROOT = Path(__file__).parents[2]


def receive(body: bytes, *buffers: Any) -> object:
    return decode(body, list(buffers), place=lambda tensor, device: tensor)


def marked(code: int, *parts: object) -> bytes:
    return msgpack.packb([msgpack.ExtType(code, b""), *parts])


def ext(code: int, data: bytes) -> bytes:
    return msgpack.packb(msgpack.ExtType(code, data))


def tabled(
    *rows: tuple[int, int, int, tuple[int, ...]],
    hulls: tuple[int, ...] = (),
    devices: tuple[str, ...] = (),
    first: int = 0,
) -> bytes:
    """A list of tensors: of each the dtype, flags, device, lengths; then more numbers.

    Args:
        rows: The tensors; after the lengths of one stand its strides, if flags say so;
            before them its hull and its offset there.
        hulls: Size in bytes and device of each hull, in turn.
        devices: Names of the devices.
        first: Number of the first buffer that holds elements.
    """
    heads, numbers = [], [*hulls]
    for dtype, flags, device, sizes in rows:
        extra = 2 * bool(flags & SHARED)
        ndim = max(0, len(sizes) - extra) // (2 if flags & STRIDED else 1)
        heads.append(dtype & 255 | flags << 8 | device << 16 | ndim << 24)
        numbers += sizes
    table = write_table(Table(first, devices, heads, numbers, len(hulls) // 2))
    refs = [
        msgpack.ExtType(Code.TENSOR, struct.pack("<I", n)) for n in range(len(rows))
    ]
    return TABLE_HEAD.pack(TABLE_BYTE, len(table)) + table + msgpack.packb(refs)


def survive(body: bytes, *buffers: Any) -> None:
    """Decode; a value that nobody sent is as good as a DecodeError."""
    with contextlib.suppress(DecodeError):
        receive(body, *buffers)


@settings(max_examples=500, deadline=None)
@given(st.binary(max_size=60))
def test_random_bytes(body: bytes) -> None:
    survive(body)


@settings(max_examples=500, deadline=None)
@given(
    st.sampled_from(list(Code)),
    st.lists(
        st.recursive(
            st.none()
            | st.integers(-1, 70)
            | st.text(max_size=5)
            | st.binary(max_size=9),
            lambda inner: st.lists(inner, max_size=3),
            max_leaves=6,
        ),
        max_size=9,
    ),
)
def test_any_parts_behind_any_mark(code: Code, parts: list[object]) -> None:
    survive(marked(code, *parts), bytearray(16))


@settings(max_examples=500, deadline=None)
@given(st.integers(0, 127), st.binary(max_size=20))
def test_any_bytes_in_any_extension(code: int, data: bytes) -> None:
    survive(ext(code, data))
    survive(b"\xc7" + bytes((len(data), 255 - code)) + data)


@settings(max_examples=500, deadline=None)
@given(
    values,
    st.lists(
        st.tuples(st.integers(0, 999), st.integers(0, 255)), min_size=1, max_size=3
    ),
)
def test_a_damaged_body(value: object, damage: list[tuple[int, int]]) -> None:
    body, buffers = pack(value)
    damaged = bytearray(body)
    for place, byte in damage:
        damaged[place % len(damaged)] = byte
    survive(bytes(damaged), *buffers)


@settings(max_examples=200, deadline=None)
@given(st.sampled_from(CHOSEN), st.integers(1, 40))
def test_a_body_that_was_cut(value: object, cut: int) -> None:
    body, buffers = pack({"k": value})
    with pytest.raises(DecodeError):
        receive(body[: max(0, len(body) - cut)], *buffers)


SIZES = st.sampled_from([0, 1, 2, 3, 4, 8, 16, 2**31, 2**32, 2**61, 2**62 - 1])


@settings(max_examples=500, deadline=None)
@given(
    st.lists(
        st.tuples(
            st.integers(0, 40),
            st.integers(0, 127),
            st.integers(0, 2),
            st.lists(SIZES, max_size=8).map(tuple),
        ),
        max_size=3,
    ),
    st.lists(SIZES, max_size=4).map(lambda sizes: tuple(sizes[: len(sizes) // 2 * 2])),
)
def test_any_table_of_tensors(rows: Any, hulls: tuple[int, ...]) -> None:
    body = tabled(*rows, hulls=hulls, devices=("cuda:0",))
    for count in range(3):
        survive(body, *[bytearray(b"\x01" * 16) for _ in range(count)])


@settings(max_examples=300, deadline=None)
@given(damage=st.lists(st.tuples(st.integers(0, 1 << 16), st.integers(0, 255))))
def test_a_table_that_was_damaged(damage: list[tuple[int, int]]) -> None:
    x = torch.arange(12.0).reshape(3, 4)
    value = [x[0], x[1:], x.t().clone(), torch.ones(3, dtype=torch.bool), torch.ones(0)]
    body, buffers = pack(value)
    head = TABLE_HEAD.size
    damaged = bytearray(body)
    for place, byte in damage:
        damaged[head + place % (len(damaged) - head)] = byte
    survive(bytes(damaged), *buffers)


NONSENSE: dict[str, tuple[bytes, int]] = {
    "nothing": (b"", 0),
    "two values": (b"\x01\x02", 0),
    "a code that is not in the table": (ext(99, b"x"), 0),
    "a mark with bytes": (ext(Code.TUPLE, b"x"), 0),
    "a mark with bytes, at the head": (
        msgpack.packb([msgpack.ExtType(Code.TUPLE, b"x"), 1]),
        0,
    ),
    "a mark alone": (ext(Code.TUPLE, b""), 0),
    "a mark in the middle": (msgpack.packb([1, msgpack.ExtType(32, b"")]), 0),
    "a mark in a map": (msgpack.packb({"a": msgpack.ExtType(32, b"")}), 0),
    "a list as a key": (marked(Code.DICT, [1], 2), 0),
    "a key without a value": (marked(Code.DICT, 1), 0),
    "equal keys": (marked(Code.DICT, 1, 2, 1, 3), 0),
    "equal elements": (marked(Code.SET, 1, 1), 0),
    "an int as a map key": (b"\x81\x01\x02", 0),
    "a range without a step": (marked(Code.RANGE, 1, 2, 0), 0),
    "a fraction of nothing": (marked(Code.FRACTION, 1, 0), 0),
    "an endless fraction": (
        marked(Code.FRACTION, 1, msgpack.ExtType(1, b"\x01" * (1 << 16))),
        0,
    ),
    "a decimal that is a word": (ext(Code.DECIMAL, b"word"), 0),
    "a date before all dates": (ext(Code.DATE, struct.pack("<i", -1)), 0),
    "a layout of nobody": (ext(Code.LAYOUT, b"float32"), 0),
    "a struct of nobody": (marked(Code.STRUCT, "pytree", 1), 0),
    "a factory of nobody": (marked(Code.DEFAULT_DICT, "eval"), 0),
    "a type of nobody": (marked(Code.REGISTERED, "os:system", "true"), 0),
    "a dtype of nobody": (tabled((200, 0, 0, (16,))), 1),
    "no buffer": (tabled((1, 0, 0, (16,))), 0),
    "a buffer of nobody": (tabled((1, 0, 0, (16,)), first=1), 1),
    "too small a buffer": (tabled((1, 0, 0, (17,))), 1),
    "too large a buffer": (tabled((1, 0, 0, (15,))), 1),
    "one buffer for two": (tabled((1, 0, 0, (16,)), (1, 0, 0, (16,))), 1),
    "strides with holes": (tabled((1, STRIDED, 0, (4, 4, 1, 5))), 1),
    "strides that overlap": (tabled((1, STRIDED, 0, (4, 4, 1, 1))), 1),
    "grad of an int": (tabled((1, REQUIRES_GRAD, 0, (16,))), 1),
    "an int parameter with grad": (
        tabled((1, REQUIRES_GRAD | PARAMETER, 0, (16,))),
        1,
    ),
    "flags of nobody": (tabled((1, 128, 0, (16,))), 1),
    "a conjugated float": (tabled((8, CONJUGATE, 0, (2,))), 1),
    "a device of nobody": (tabled((1, 0, 1, (16,))), 1),
    "a device without an index": (tabled((1, 0, 1, (16,)), devices=("cuda",)), 1),
    "the host as a device": (tabled((1, 0, 1, (16,)), devices=("cpu",)), 1),
    "a bool that is neither": (tabled((0, 0, 0, (16,))), 1),
    "a hull of nobody": (tabled((1, SHARED | STRIDED, 0, (0, 0, 4, 1))), 1),
    "a view beyond its hull": (
        tabled((1, SHARED | STRIDED, 0, (0, 13, 4, 1)), hulls=(16, 0)),
        1,
    ),
    "a view of bools that are neither": (
        tabled((0, SHARED | STRIDED, 0, (0, 0, 4, 1)), hulls=(16, 0)),
        1,
    ),
    "a view between elements": (
        tabled((4, SHARED | STRIDED, 0, (0, 2, 1, 1)), hulls=(16, 0)),
        1,
    ),
    "elements beyond all memory": (tabled((1, 0, 0, (2**61, 8))), 1),
    "no elements beyond all memory": (tabled((1, 0, 0, (0, 2**61, 8))), 0),
    "a table that is too short": (
        TABLE_HEAD.pack(TABLE_BYTE, 9) + bytes(5) + b"\xc0",
        0,
    ),
    "a table that is cut": (bytes([TABLE_BYTE]), 0),
    "a tensor of no table": (ext(Code.TENSOR, bytes(4)), 0),
    "a tensor that is not in the table": (
        tabled()[:-1] + ext(Code.TENSOR, struct.pack("<I", 1)),
        0,
    ),
    "half a tensor": (tabled()[:-1] + ext(Code.TENSOR, b"\0\0"), 0),
    "a buffer for nobody": (b"\xc0", 1),
    "an array of no order": (marked(Code.ARRAY, 0, "<u1", [0, 0], 4, 4), 1),
    "an array of an axis too many": (marked(Code.ARRAY, 0, "<u1", [0, 1, 2], 4, 4), 1),
    "an array of an order of texts": (marked(Code.ARRAY, 0, "<u1", ["0"], 16), 1),
    "an array of 33 dimensions": (marked(Code.ARRAY, 0, "<u1", "C", 16, *[1] * 32), 1),
    "an array of objects": (marked(Code.ARRAY, 0, "|O", "C", 2), 1),
    "an array of arrays": (marked(Code.ARRAY, 0, "(99,)f8", "C", 2), 1),
    "an array of records": (marked(Code.ARRAY, 0, "f4,f4", "C", 2), 1),
    "too large an array": (marked(Code.ARRAY, 0, "<f8", "C", 3), 1),
    "an array of nothing": (marked(Code.ARRAY, None, "S0", "C", 3_000_000_000), 0),
    "an array of empty texts": (marked(Code.ARRAY, None, "<U0", "C", 3), 0),
    "a text of bytes": (marked(Code.ARRAY_SCALAR, "U", b"a"), 0),
    "bytes of text": (marked(Code.ARRAY_SCALAR, "S", "a"), 0),
    "a text with its dtype": (marked(Code.ARRAY_SCALAR, "|S1", b"a"), 0),
    "too small a scalar": (marked(Code.ARRAY_SCALAR, "<f8", b"1"), 0),
    "half a text": (b"\xa2\xc3\x28", 0),
    "an array of 4e9 elements": (b"\xdd\xff\xff\xff\xff", 0),
    "bytes of 4 GB": (b"\xc6\xff\xff\xff\xff", 0),
    "a million levels": (b"\x91" * 1_000_000, 0),
    "levels that each announce much": (b"\xdd\x00\x00\x03\x00" * 250, 0),
}


@pytest.mark.parametrize("name", NONSENSE)
def test_nonsense_is_refused(name: str) -> None:
    body, count = NONSENSE[name]
    with pytest.raises(DecodeError):
        receive(body, *[bytearray(b"\x02" * 16) for _ in range(count)])


def test_decoding_opens_imports_and_runs_nothing() -> None:
    """RPC-10, under an audit hook, which only a process of its own can take back."""
    done = subprocess.run(
        [sys.executable, "-m", "tests.support.audited_decode", "20"],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": f"{ROOT}:{ROOT}/transport"},
    )
    assert done.returncode == 0, done.stderr  # torch may warn there
    decoded, refused = map(int, done.stdout.split())
    assert decoded > 1000
    assert refused > 10_000


PRIME = 2**61 - 1  # the hash of an int is the int modulo this
COLLIDING: dict[str, list[Any]] = {
    "ints": [n * PRIME for n in range(300)],
    "Decimals": [Decimal(n * PRIME) for n in range(300)],
    "Fractions": [Fraction(n * PRIME) for n in range(300)],
    "UUIDs": [UUID(int=n * PRIME) for n in range(300)],
    "tuples": [(n * PRIME, (1, n * PRIME)) for n in range(300)],
    "NumPy scalars": [np.float64(2.0**61) ** n for n in range(10)]
    + [n * PRIME for n in range(300)],
}


@pytest.mark.parametrize("name", COLLIDING)
def test_keys_that_all_have_one_hash_are_refused_before_they_are_compared(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """64 MB of them would keep a thread busy for days; both sides count alike."""
    keys = COLLIDING[name]
    makers = (set, frozenset, dict.fromkeys, Counter, OrderedDict.fromkeys)
    for make in makers:
        with pytest.raises(EncodeError, match="keys or elements with one hash"):
            pack([make(keys)])
    with monkeypatch.context() as patch:
        patch.setattr("rpcfut._wire_types.require_scattered", lambda keys: None)
        bodies = [pack(make(keys)) for make in makers]
    for body, buffers in bodies:
        with pytest.raises(DecodeError, match="keys or elements with one hash"):
            receive(body, *buffers)


def test_keys_that_meet_by_chance_are_no_attack() -> None:
    """-1 and -2 have one hash, and so have tuples of them."""
    grid = {(a, b, c): a for a in range(-9, 9) for b in range(-9, 9) for c in (-1, -2)}
    assert receive(pack(grid).body) == grid
    few = {n * PRIME for n in range(64)}
    assert receive(pack(few).body) == few


def test_equal_keys_of_a_map_are_one_key() -> None:
    """The last one wins, as in any dict; keys that are no text are refused."""
    assert receive(b"\x82\xa1a\x01\xa1a\x02") == {"a": 2}


def test_a_timestamp_of_msgpack_is_a_number() -> None:
    """The one extension that msgpack reads by itself: nothing of ours writes it."""
    assert receive(b"\xd6\xff\x00\x00\x00\x01") == 1.0
    survive(b"\xc7\x0c\xff" + b"\xff" * 12)


def test_numbers_of_a_million_digits_do_no_harm() -> None:
    """They are never written out: Python refuses to, or takes long."""
    large = msgpack.ExtType(Code.INT, b"\x7f" + b"\xff" * 1_000_000)
    assert isinstance(receive(msgpack.packb(large)), int)
    assert isinstance(receive(ext(Code.DECIMAL, b"7" * 1_000_000)), Decimal)
    for code in Code:
        for parts in (
            [large],
            [large, large],
            [large] * 7,
            ["name", large],
            [0, large],
        ):
            survive(marked(code, *parts), bytearray(16))


def _at_the_end_of_the_stack(function: Callable[[], object]) -> object:
    """Call a function where the stack has room for few frames more."""

    def descend(count: int) -> object:
        return descend(count - 1) if count else function()

    used = len(inspect.stack(0))
    return descend(sys.getrecursionlimit() - used - 60)


def test_a_full_stack_is_an_error_that_says_so() -> None:
    value: object = 1
    for _ in range(MAX_DEPTH - 1):
        value = (value,)
    body, _ = pack(value)
    with pytest.raises(EncodeError, match="what is left of this thread's stack"):
        _at_the_end_of_the_stack(lambda: pack(value))
    with pytest.raises(DecodeError, match="what is left of this thread's stack"):
        _at_the_end_of_the_stack(lambda: receive(body))
    assert receive(body) == value


def test_a_body_over_the_limit_is_not_unpacked() -> None:
    with pytest.raises(DecodeError, match=f"{MAX_BODY_NBYTES} are allowed"):
        receive(bytes(MAX_BODY_NBYTES + 1))


def many(unit: bytes, nbytes: int = 4_000_000) -> bytes:
    return list_of(unit, nbytes // len(unit))


AMPLIFIERS: dict[str, bytes] = {
    "lists": b"\x90",
    "maps": b"\x80",
    "maps of one": b"\x81\xa1a\x01",
    "deques": marked(Code.DEQUE, None),
    "arrays": marked(Code.ARRAY, None, "<f8", "C", 0),
    "sets": marked(Code.SET),
    "sets of five": marked(Code.SET, 1, 2, 3, 4, 5),
    "paths": ext(Code.POSIX_PATH, b"a"),
    "Counters": marked(Code.COUNTER),
    "ordered dicts": marked(Code.ORDERED_DICT, None, 1, 1),
    "Decimals": ext(Code.DECIMAL, b"1"),
    "torch.Sizes": marked(Code.SIZE),
    "timezones": marked(Code.TIMEZONE, 1, None),
}


@pytest.mark.parametrize("name", AMPLIFIERS)
def test_millions_of_small_objects_are_not_made(name: str) -> None:
    """Some are 180 times as large in memory as on the wire."""
    with pytest.raises(DecodeError, match=r"take more than \d+ bytes of memory"):
        receive(many(AMPLIFIERS[name]))


@pytest.mark.parametrize(
    "row",
    [
        (1, 0, 0, (0,)),
        (6, REQUIRES_GRAD | PARAMETER, 0, (0,)),
        (1, META | STRIDED, 0, (0, 1)),
    ],
    ids=["empty", "parameter", "meta"],
)
def test_millions_of_tensors_without_bytes_of_their_own_are_not_made(row: Any) -> None:
    body = tabled(*[row] * 400_000)
    with pytest.raises(DecodeError, match="memory"):
        receive(body)


QUICK = {"maps", "deques"}


@pytest.mark.parametrize(
    "name",
    [n if n in QUICK else pytest.param(n, marks=pytest.mark.slow) for n in AMPLIFIERS],
)
def test_what_is_counted_is_what_it_costs(name: str) -> None:
    """As many as a body may hold; with 15% for what the process does besides."""
    done = subprocess.run(
        [sys.executable, "-m", "tests.support.peak_memory"],
        input=AMPLIFIERS[name],
        capture_output=True,
        timeout=60,
        check=True,
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": f"{ROOT}:{ROOT}/transport"},
    )
    count, nbytes = map(int, done.stdout.split())
    assert count * len(AMPLIFIERS[name]) < 6 << 20
    assert nbytes < 1.15 * FREE_NBYTES


@pytest.mark.parametrize("name", AMPLIFIERS)
def test_a_body_that_is_not_counted_is_too_small_to_do_harm(name: str) -> None:
    unit = AMPLIFIERS[name]
    assert cost_of(many(unit, SMALL_BODY_NBYTES)) <= FREE_NBYTES


def test_containers_are_counted_whatever_they_hold() -> None:
    with pytest.raises(
        DecodeError, match=f"more than {MAX_CONTAINERS} lists and dicts"
    ):
        receive(many(b"\x91\xcb12345678", 10 * (MAX_CONTAINERS + 1)))


def test_many_numbers_are_no_containers() -> None:
    count = MAX_CONTAINERS + 1
    body = b"\xdd" + struct.pack(">I", count) + b"\x01" * count
    assert len(receive(body)) == count  # type: ignore[arg-type]


def test_a_name_from_the_wire_is_only_looked_up() -> None:
    with isolated_registry():
        register_type(Point, name="point")
        assert receive(marked(Code.REGISTERED, "point", [1, 2])) == Point(1, 2)
        for name in ("builtins:eval", "tests.support.types:Opaque", "", "point "):
            with pytest.raises(DecodeError, match="is not registered here"):
                receive(marked(Code.REGISTERED, name, [1, 2]))
        with pytest.raises(DecodeError, match="without its name and value"):
            receive(marked(Code.REGISTERED, 3, [1, 2]))
        with pytest.raises(DecodeError, match="unflatten of 'point' raised TypeError"):
            receive(marked(Code.REGISTERED, "point", [1, 2, 3]))


def test_a_received_array_of_any_text_is_harmless() -> None:
    array: Any = receive(marked(Code.ARRAY, 0, "<U4", "C", 1), bytearray(b"\xff" * 16))
    assert array.dtype == np.dtype("<U4")


def test_a_tensor_over_received_bytes_is_only_as_large_as_they() -> None:
    tensor: Any = receive(tabled((1, STRIDED, 0, (4, 4, 1, 4))), bytearray(16))
    (tensor,) = tensor
    assert tensor.untyped_storage().nbytes() == 16
    assert isinstance(tensor, torch.Tensor)
