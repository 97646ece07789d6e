"""The body of an error is hostile input: it always makes an exception, and no more."""

from __future__ import annotations

import copy
import sys
import traceback
from typing import Any

import msgpack
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rpcfut import RemoteError
from rpcfut._call_info import CallInfo
from rpcfut._encode import encode
from rpcfut._error_chain import MAX_CHAIN
from rpcfut._error_codec import decode_error, encode_error
from rpcfut._error_types import REMADE
from tests.support.types import OddError

CALL = CallInfo(worker="w0", to="w1", function="m:step", site="/job/train.py:12")


def noted(error: BaseException) -> BaseException:
    error.add_note("remember")
    return error


SEEDS: list[BaseException] = [
    noted(ValueError("a", (1, None), b"x")),
    ExceptionGroup("g", [KeyError("k"), noted(OddError("odd"))]),
    BaseExceptionGroup("g", [SystemExit(3)]),
    OSError(2, "No such file", "a", None, "b"),
    UnicodeDecodeError("utf-8", b"\xff", 0, 1, "bad"),
    UnicodeEncodeError("ascii", "ä", 0, 1, "bad"),
    SyntaxError("bad", ("f.py", 3, 4, "text", 3, 5)),
    ImportError("no", name="n", path="p"),
    AttributeError("no", name="n"),
    StopIteration(3),
    RemoteError("a.B", "text", remote_traceback="frames", worker="w"),
]
SEEDS[0].__cause__ = OddError("cause")
SEEDS[0].__context__ = KeyError("context")
BODIES = [encode_error(error, worker="w", function="f") for error in SEEDS]


def check(body: bytes) -> None:
    """What any caller does with an error works, and says nothing unclean."""
    before = set(sys.modules)
    back = decode_error(body, CALL)
    assert isinstance(back, Exception)
    assert type(back) in {*REMADE.values(), RemoteError}
    text = "".join(traceback.format_exception(back)) + str(back) + repr(back)
    assert not set(text) & set("\x1b\x00\r\u202e")
    copy.copy(back)
    assert set(sys.modules) == before


VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**64 - 1)
    | st.sampled_from([-1, 0, 1, 2, 1 << 20, 1 << 40, 10**18])
    | st.floats()
    | st.text(max_size=10)
    | st.sampled_from([*REMADE, "os.system", "\x1b[2J", "errno", "args", "__class__"])
    | st.binary(max_size=10)
    | st.sampled_from([msgpack.packb(v) for v in (1 << 40, "\x1b[2J", None, {}, [0])]),
    lambda inner: (
        st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=5), inner)
    ),
    max_leaves=8,
)


def places(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """The path of each part of a message."""
    found = [path]
    items: Any = ()
    if isinstance(value, dict):
        items = value.items()
    elif isinstance(value, list):
        items = enumerate(value)
    for key, part in items:
        found += places(part, (*path, key))
    return found


def put(message: Any, path: tuple[Any, ...], value: Any) -> Any:
    if not path:
        return value
    message = copy.copy(message)
    message[path[0]] = put(message[path[0]], path[1:], value)
    return message


@pytest.mark.parametrize("second", ["0", [1], {"": None}, None])
def test_an_error_whose_class_would_not_take_its_arguments_is_one_of_words(
    second: object,
) -> None:
    """A SyntaxError takes its second one apart; what it cannot, nobody could copy."""
    error = SyntaxError("bad", ("f.py", 3, 1, "x ="))
    message = msgpack.unpackb(encode_error(error, worker="w1", function="f"))
    args = ["bad", msgpack.packb(second)]
    check(msgpack.packb(put(message, ("nodes", 0, "state", "args"), args)))


@settings(max_examples=250, deadline=None)
@given(st.sampled_from(BODIES), st.data())
def test_a_message_with_other_parts_makes_some_error(body: bytes, data: Any) -> None:
    message = msgpack.unpackb(body)
    for _ in range(data.draw(st.integers(1, 3))):
        path = data.draw(st.sampled_from(places(message)))
        message = put(message, path, data.draw(VALUES))
    check(msgpack.packb(message))


@settings(max_examples=400, deadline=None)
@given(
    st.sampled_from(BODIES),
    st.lists(st.tuples(st.integers(0, 9999), st.integers(0, 255)), max_size=4),
    st.integers(0, 9999),
)
def test_a_body_with_other_bytes_makes_some_error(
    body: bytes, damage: list[tuple[int, int]], length: int
) -> None:
    made = bytearray(body)
    for place, byte in damage:
        made[place % len(made)] = byte
    check(bytes(made[: max(length, 1)]))


def message(*nodes: dict[str, Any]) -> bytes:
    whole = msgpack.unpackb(BODIES[0])
    blank = {**whole["nodes"][-1], "members": [], "cause": None, "context": None}
    body: bytes = msgpack.packb({**whole, "nodes": [{**blank, **n} for n in nodes]})
    return body


def state(*args: Any, **fields: Any) -> dict[str, Any]:
    return {
        "args": [msgpack.packb(arg) for arg in args],
        "fields": {name: msgpack.packb(value) for name, value in fields.items()},
    }


@pytest.mark.parametrize("kind", ["builtins.ExceptionGroup", "builtins.OSError"])
def test_groups_that_share_their_members_are_printed_in_time(kind: str) -> None:
    """Twenty levels, each with all of the next: 20 ** 19 ways to reach the last."""
    nodes = [
        {
            "type": kind,
            "state": state("g") if "Group" in kind else None,
            "members": [number + 1] * 20 if number + 1 < MAX_CHAIN else [],
        }
        for number in range(MAX_CHAIN)
    ]
    check(message(*nodes))
    wide = [{**n, "members": list(range(i + 1, 20))} for i, n in enumerate(nodes)]
    check(message(*wide))


@pytest.mark.parametrize(
    "fields",
    [
        {"offset": 1, "end_offset": 1 << 40, "text": "a", "lineno": 1},
        {"offset": -(1 << 40), "end_offset": 1, "text": "a", "lineno": 1},
        {"offset": "x", "text": "a", "lineno": 1},
        {"offset": 1, "text": 3, "lineno": []},
        {"filename": {}, "lineno": 1 << 62},
        {"msg": "\x1b[2J", "text": "\x1b[2J", "offset": 1, "lineno": 1},
    ],
)
def test_a_syntax_error_of_odd_positions_can_be_printed(fields: dict[str, Any]) -> None:
    back = message({"type": "builtins.SyntaxError", "state": state("m", **fields)})
    check(back)
    assert type(decode_error(back)) is SyntaxError


@pytest.mark.parametrize(
    "name", ["builtins.ValueError", "builtins.OSError", "builtins.UnicodeEncodeError"]
)
def test_texts_in_a_state_are_cleaned_where_they_arrive(name: str) -> None:
    """A peer that does not clean them is the one to fear."""
    esc = "\x1b[2J"
    states = [
        state(esc, errno=3, strerror=esc, filename=esc),
        state(esc, esc, 0, 1, esc),
        {"args": [esc], "fields": {}},
    ]
    for made in states:
        check(message({"type": name, "state": made}))


@pytest.mark.parametrize("name", ["builtins.ValueError", "builtins.OSError"])
def test_what_python_would_not_print_is_told_in_the_words_beside_it(name: str) -> None:
    """A log line about an error must not raise: str() of it always works."""
    nobody: Any = None
    numeral, _ = encode(10**5000, stage=nobody)
    fields = {"errno": numeral, "strerror": numeral} if "OS" in name else {}
    made = {"args": [numeral], "fields": fields}
    body = message({"type": name, "text": "its words", "state": made})
    check(body)
    back: Any = decode_error(body)
    assert type(back) is RemoteError
    assert back.text == "its words"


def test_no_method_of_an_exception_can_be_replaced() -> None:
    names = (
        "add_note",
        "with_traceback",
        "args",
        "__class__",
        "__notes__",
        "_x",
        "a b",
    )
    made = state("x", **dict.fromkeys(names, 1), kept=2)
    back: Any = decode_error(
        message({"type": "builtins.ValueError", "state": made, "notes": ["n"]})
    )
    assert type(back) is ValueError
    assert back.args == ("x",)
    assert vars(back).keys() == {"kept", "__notes__"}


@pytest.mark.parametrize("name", ["builtins.BaseException", "rpcfut.RpcTimeoutError"])
def test_a_type_outside_of_the_table_is_a_name(name: str) -> None:
    """A callee cannot forge a timeout of this call, nor an exit of this process."""
    for made in (state("x"), None):
        back: Any = decode_error(message({"type": name, "state": made}))
        assert type(back) is RemoteError
        assert back.type_name == name
