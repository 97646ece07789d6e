"""An error arrives as itself where that is safe, and always with its story (RPC-4)."""

from __future__ import annotations

import builtins
from collections import deque
from typing import TYPE_CHECKING, Any

import msgpack
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from rpcfut._error_chain import MAX_CHAIN
from rpcfut._error_codec import FALLBACK_BODY, decode_error, encode_error
from rpcfut._error_text import MAX_TEXT
from rpcfut._error_types import OF_THE_CALL
from rpcfut._errors import (
    DecodeError,
    ExtractionError,
    RemoteError,
    RpcError,
)
from rpcfut._registry import isolated_registry, register_type
from tests.support.types import OddError, Opaque

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture(autouse=True)
def _isolated() -> Iterator[None]:
    with isolated_registry():
        yield


def trip(error: BaseException) -> Any:
    return decode_error(encode_error(error, worker="w1", function="m:step"))


def raised(error: BaseException) -> BaseException:
    with pytest.raises(type(error)) as caught:
        raise error
    return caught.value


ERRORS: list[Exception] = [
    ValueError("a", 1, (2.5, None), b"x"),
    KeyError("a"),
    OSError(2, "No such file or directory", "a", None, "b"),
    FileNotFoundError(2, "No such file or directory", "a"),
    OSError("only a text"),
    BlockingIOError(11, "again"),
    TimeoutError("late"),
    UnicodeDecodeError("utf-8", b"\xff", 0, 1, "bad"),
    UnicodeEncodeError("ascii", "ä", 0, 1, "bad"),
    UnicodeTranslateError("ä", 0, 1, "bad"),
    ImportError("no", name="n", path="p"),
    ModuleNotFoundError("no", name="n"),
    NameError("no", name="n"),
    AttributeError("no", name="n"),
    StopIteration(3),
    StopAsyncIteration(),
    SyntaxError("bad", ("f.py", 3, 4, "text", 3, 5)),
    RecursionError("deep"),
    ZeroDivisionError(),
    NotImplementedError(),
]


@pytest.mark.parametrize("error", ERRORS, ids=lambda e: type(e).__name__)
def test_a_builtin_error_comes_back_as_itself(error: Exception) -> None:
    back = trip(raised(error))
    assert type(back) is type(error)
    assert back.args == error.args
    assert str(back) == str(error)
    for name in ("errno", "strerror", "filename", "filename2", "name", "path", "value"):
        assert getattr(back, name, None) == getattr(error, name, None)


def test_every_builtin_subclass_of_exception_comes_back() -> None:
    for kind in vars(builtins).values():
        if not isinstance(kind, type) or not issubclass(kind, Exception):
            continue
        if issubclass(kind, (UnicodeError, BaseExceptionGroup)):
            continue
        assert type(trip(kind("x"))) is kind


def test_the_remote_traceback_is_a_note_that_names_worker_and_function() -> None:
    back = trip(raised(ValueError("x")))
    (note,) = back.__notes__
    assert "worker 'w1', function 'm:step'" in note
    assert "in raised" in note
    assert "test_error_codec.py" in note
    assert "worker 'w1'" in trip(ValueError()).__notes__[0]


def test_notes_and_attributes_are_kept() -> None:
    error = ValueError("x")
    error.add_note("remember")
    error.code = 5  # type: ignore[attr-defined]
    back = trip(error)
    assert back.__notes__[0] == "remember"
    assert back.code == 5


def test_the_chain_is_kept() -> None:
    error = ValueError("top")
    error.__cause__ = KeyError("cause")
    error.__cause__.__context__ = OddError("context")
    back = trip(error)
    assert back.__suppress_context__
    assert type(back.__cause__) is KeyError
    assert type(back.__cause__.__context__) is RemoteError
    assert back.__cause__.__context__.text == "context"
    assert not back.__cause__.__suppress_context__


def test_raise_from_none_stays_quiet() -> None:
    error = ValueError("top")
    error.__context__ = KeyError("hidden")
    error.__suppress_context__ = True
    back = trip(error)
    assert back.__suppress_context__
    assert back.__cause__ is None


def test_a_chain_that_bites_its_tail_ends() -> None:
    first, second = ValueError("1"), ValueError("2")
    first.__cause__, second.__cause__ = second, first
    back = trip(first)
    assert str(back.__cause__) == "2"
    assert back.__cause__.__cause__ is None


def test_an_endless_chain_is_cut() -> None:
    error = top = ValueError("0")
    for number in range(1, 100):
        error.__context__ = ValueError(str(number))
        error = error.__context__
    back, length = trip(top), 0
    while back is not None:
        back, length = back.__context__, length + 1
    assert length == MAX_CHAIN


def test_a_group_comes_back_with_its_members() -> None:
    back = trip(ExceptionGroup("several", [ValueError(1), OddError("x")]))
    assert type(back) is ExceptionGroup
    assert back.message == "several"
    assert [type(member) for member in back.exceptions] == [ValueError, RemoteError]


@pytest.mark.parametrize(
    "error",
    [SystemExit(3), KeyboardInterrupt(), GeneratorExit(), OddError("text")],
    ids=lambda e: type(e).__name__,
)
def test_what_is_not_rebuilt_is_a_remote_error(error: BaseException) -> None:
    back = trip(raised(error))
    assert type(back) is RemoteError
    assert back.type_name == f"{type(error).__module__}.{type(error).__qualname__}"
    assert back.text == str(error)
    assert back.worker == "w1"
    assert back.function == "m:step"
    assert "in raised" in back.remote_traceback


def test_a_remote_error_that_travels_on_keeps_its_origin() -> None:
    back = trip(trip(raised(OddError("text"))))
    assert type(back) is RemoteError
    assert back.type_name == "tests.support.types.OddError"
    assert back.text == "text"
    assert "in raised" in back.remote_traceback


def test_the_librarys_own_errors_come_back_with_their_fields() -> None:
    error = ExtractionError(
        type_name="a.B", path="value[0]", what="the value", worker="w2", fix="line"
    )
    back = trip(error)
    assert type(back) is ExtractionError
    assert str(back) == str(error)
    for name, value in vars(error).items():
        assert getattr(back, name) == value


def test_what_the_callee_says_of_this_call_comes_back_as_itself() -> None:
    for kind in OF_THE_CALL:
        if kind is not ExtractionError:
            back = trip(kind("text"))
            assert type(back) is kind
            assert str(back) == "text"


def test_a_registered_error_comes_back_as_itself() -> None:
    register_type(OddError, lambda e: e.args, lambda args: OddError(*args))
    back = trip(raised(OddError("text", 3)))
    assert type(back) is OddError
    assert back.args == ("text", 3)
    assert "in raised" in back.__notes__[0]


def test_an_error_that_is_registered_there_only_is_a_remote_error() -> None:
    with isolated_registry():
        register_type(OddError, lambda e: e.args, lambda args: OddError(*args))
        body = encode_error(OddError("text"), worker="w1", function="f")
    back: Any = decode_error(body)
    assert type(back) is RemoteError
    assert back.text == "text"


def test_arguments_that_cannot_travel_become_text() -> None:
    back = trip(ValueError("a", Opaque, torch.ones(3), {1: (2,)}, memoryview(b"")))
    assert back.args[0] == "a"
    assert back.args[1] == str(Opaque)
    assert back.args[2] == str(torch.ones(3))
    assert back.args[3] == {1: (2,)}


class BrokenError(Exception):
    def __init__(self, how: BaseException) -> None:
        self.how = how

    def __str__(self) -> str:
        raise self.how

    __repr__ = __str__


class BadText(str):
    __slots__ = ()

    def __str__(self) -> str:
        return self

    def __len__(self) -> int:
        raise OddError

    def __getitem__(self, key: Any) -> Any:
        raise OddError


class LiarError(ValueError):
    @property
    def __notes__(self) -> Any:
        raise OddError


def test_nothing_that_an_error_does_prevents_the_reply() -> None:
    deep: Any = ()
    for _ in range(5000):
        deep = (deep,)
    odd = type("Type\x1b[31m", (Exception,), {"__module__": None})
    noted = ValueError("x")
    noted.__notes__ = [3, "a\x1b[31m", None, "n" * 100_000]  # type: ignore[attr-defined]
    ill = ValueError("x")
    ill.__notes__ = 7  # type: ignore[attr-defined]
    errors = [
        BrokenError(OddError()),
        BrokenError(SystemExit()),
        BrokenError(KeyboardInterrupt()),
        ValueError(BrokenError(OddError())),
        ValueError(BadText("x")),
        ValueError(deep),
        LiarError(),
        odd("x"),
        noted,
        ill,
        OSError(Opaque(), BrokenError(OddError())),
        ExceptionGroup("g", [BrokenError(OddError())] * 30),
        BaseExceptionGroup("g", [SystemExit()]),
    ]
    for error in errors:
        assert isinstance(trip(error), Exception), repr(type(error))
        assert not isinstance(trip(error), DecodeError), type(error)


def test_a_huge_text_is_cut_with_a_note() -> None:
    back = trip(OddError("x" * (MAX_TEXT + 7)))
    assert back.text.endswith(f"[cut: 7 of {MAX_TEXT + 7} characters are left out]")
    assert len(back.text) < MAX_TEXT + 100
    assert len(str(trip(ValueError("x" * 10_000_000)))) < MAX_TEXT + 100


def test_a_text_cannot_drive_a_terminal() -> None:
    text = "a\x1b[2J\r\x9b\u202eb\udc80\n\tc"
    for back in (trip(OddError(text)), trip(ValueError(text))):
        shown = str(back)
        assert "a\\x1b[2J\\r\\x9b\\u202eb\\udc80\n\tc" in shown
    body = encode_error(ValueError(), worker="w\x1b", function="f")
    assert "\x1b" not in decode_error(body).__notes__[0]


def test_a_long_traceback_is_bounded() -> None:
    def sink(depth: int) -> None:
        if depth == 0:
            raise OddError
        sink(depth - 1)

    with pytest.raises(OddError) as caught:
        sink(400)
    assert len(trip(caught.value).remote_traceback) <= MAX_TEXT + 100


@settings(max_examples=300, deadline=None)
@given(st.binary(max_size=50))
def test_random_bytes_are_a_decode_error(body: bytes) -> None:
    assert isinstance(decode_error(body), DecodeError)


@settings(max_examples=500, deadline=None)
@given(
    st.sampled_from(ERRORS),
    st.lists(st.tuples(st.integers(0, 9999), st.integers(0, 255)), max_size=4),
)
def test_a_damaged_body_makes_some_error(
    error: Exception, damage: list[tuple[int, int]]
) -> None:
    body = bytearray(encode_error(error, worker="w", function="f"))
    for place, byte in damage:
        body[place % len(body)] = byte
    back = decode_error(bytes(body))
    assert isinstance(back, Exception)
    str(back)


def node(**changes: Any) -> dict[str, Any]:
    body = encode_error(ValueError("x"), worker="w", function="f")
    made: dict[str, Any] = msgpack.unpackb(body)["nodes"][0]
    return {**made, **changes}


@pytest.mark.parametrize(
    "nodes",
    [
        [],
        [node()] * (MAX_CHAIN + 1),
        [node(cause=0)],
        [node(cause=9)],
        [node(cause=1), node(context=0)],
        [node(members=[0])],
        [node(notes=3)],
        [node(state=None, text=3)],
        [node(state=None, said={})],
        [3],
    ],
)
def test_nodes_that_make_no_sense_are_a_decode_error(nodes: Any) -> None:
    assert isinstance(decode_error(_body(*nodes)), DecodeError)


@pytest.mark.parametrize(
    "state",
    [
        3,
        {},
        {"args": 3, "fields": {}},
        {"args": [b"junk"], "fields": {}},
        {"args": [], "fields": {"errno": b"junk"}},
        {"args": [], "fields": 3},
    ],
)
def test_a_state_that_makes_no_sense_leaves_the_words(state: Any) -> None:
    """B16: the text travels beside what makes the error again."""
    back: Any = decode_error(_body(node(type="builtins.OSError", state=state)))
    assert type(back) is RemoteError
    assert (back.type_name, back.text) == ("builtins.OSError", "x")


def unicode_node(*args: Any) -> dict[str, Any]:
    state = {"args": [msgpack.packb(arg) for arg in args], "fields": {}}
    return node(type="builtins.UnicodeDecodeError", state=state)


def test_positions_outside_of_a_text_are_not_looked_at() -> None:
    plain = unicode_node("utf-8")
    assert type(decode_error(_body(plain))) is RemoteError
    for start, end in ((-5, -4), (5, 6), (1, 0)):
        wrong = unicode_node("utf-8", b"\xff", start, end, "bad")
        assert type(decode_error(_body(wrong))) is RemoteError


@pytest.mark.parametrize(
    "name",
    ["builtins.SystemExit", "builtins.eval", "os.system", "tests.support.types.Opaque"],
)
def test_a_type_of_nobody_is_only_a_name(name: str) -> None:
    back: Any = decode_error(_body(node(type=name)))
    assert type(back) is RemoteError
    assert back.type_name == name


def _body(*nodes: dict[str, Any]) -> bytes:
    message = {"worker": "w", "function": "f", "nodes": nodes, "left_out": 0}
    body: bytes = msgpack.packb(message)
    return body


class RaisingLinksError(ValueError):
    @property
    def __cause__(self) -> Any:
        raise OddError

    __context__ = __suppress_context__ = __cause__  # type: ignore[assignment]


class RaisingLookupError(ValueError):
    def __getattribute__(self, name: str) -> Any:
        raise SystemExit


class NumberLinksError(ValueError):
    __context__ = __cause__ = 5  # type: ignore[assignment]
    __suppress_context__ = "yes"  # type: ignore[assignment]


@pytest.mark.parametrize(
    "kind", [RaisingLinksError, RaisingLookupError, NumberLinksError]
)
def test_links_that_a_class_hides_do_not_prevent_the_reply(
    kind: type[Exception],
) -> None:
    """RPC-3: the chain is read where Python keeps it."""
    error = raised(kind("second"))
    vars(BaseException)["__cause__"].__set__(error, KeyError("first"))
    back = trip(error)
    assert back.type_name.endswith(kind.__name__)
    assert type(back.__cause__) is KeyError
    outer = ValueError("outer")
    outer.__context__ = error
    assert type(trip(outer)) is ValueError


def _noted(text: str) -> ValueError:
    error = ValueError(text)
    for _ in range(20):
        error.add_note(text)
    return error


def _chained(count: int, text: str) -> ValueError:
    error = top = _noted(text)
    for _ in range(count - 1):
        error.__cause__ = error = _noted(text)
        error.extra = text  # type: ignore[attr-defined]
    return top


LARGE: dict[str, Exception] = {
    "long arguments": ValueError(*["x" * 5000] * 3000),
    "many arguments": ValueError(*range(100_000)),
    "arguments without a value": ValueError(*[Opaque] * 100_000),
    "two with long notes": _chained(2, "remote traceback" + "\U0001f600" * 65_000),
    "a long chain": _chained(30, "remote traceback" + "\U0001f600" * 65_000),
    "control characters": _chained(4, "remote traceback" + "\x1b" * 65_000),
    "a group": ExceptionGroup("g", [_chained(2, "€" * 70_000) for _ in range(30)]),
}


@pytest.mark.parametrize("name", LARGE)
def test_a_large_error_still_comes_back_as_itself(name: str) -> None:
    """RPC-4: what is too much is cut, with a remark; the type stays."""
    error = LARGE[name]
    back = trip(error)
    assert type(back) is type(error)
    assert len(encode_error(error, worker="w", function="f")) < 7 << 20


def test_arguments_over_the_limit_are_counted_in_a_remark() -> None:
    back = trip(ValueError(*range(100_000)))
    assert back.args[:1000] == tuple(range(1000))
    assert back.args[1000:] == ("[cut: it has 100000 arguments]",)


def test_an_attribute_that_is_no_name_is_left_out() -> None:
    error = ValueError("x")
    vars(error).update({"\udc80": 1, "n" * 10_000_000: 2, "a b": 3, "kept": 4})
    vars(error)[5] = 6  # type: ignore[index]
    back = trip(error)
    assert vars(back).keys() - {"__notes__"} == {"kept"}


def test_the_answer_of_last_resort_decodes() -> None:
    back = decode_error(FALLBACK_BODY)
    assert type(back) is RpcError
    assert "that worker's log says more" in str(back)


def test_an_error_of_millions_of_small_objects_is_not_made() -> None:
    """The outer maps and the arguments are counted together."""
    plain: Any = decode_error(_body(node(extra=[{}] * 65_000 * 15)))
    assert "65536" in str(plain) or "bytes of memory" in str(plain)
    maps = {"args": [msgpack.packb([[{}] * 65_000] * 15)], "fields": {}}
    back = decode_error(_body(node(state=maps, extra=[[{}] * 65_000] * 15)))
    assert isinstance(back, DecodeError)
    assert "bytes of memory" in str(back)
    deques = msgpack.packb([[msgpack.ExtType(39, b""), None]] * 60_000)
    for args in ([*maps["args"]] * 5, [deques] * 20):
        state = {"args": args, "fields": {}}
        assert type(decode_error(_body(node(state=state)))) is RemoteError


def test_arguments_that_would_be_large_there_become_text() -> None:
    """What a receiver would refuse is not sent, so that the reply decodes."""
    small: list[Any] = [deque() for _ in range(10_000)]
    back = trip(ValueError(*[small] * 20))
    assert type(back) is ValueError
    assert len(back.args) == 20
    top = ValueError(small)
    link = top
    for _ in range(19):
        link.__cause__ = link = ValueError(small)
    assert type(trip(top)) is ValueError
