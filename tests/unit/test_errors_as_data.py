"""What comes back of an exception, whatever it is and holds (RPC-3, RPC-4)."""

from __future__ import annotations

import asyncio
import builtins
import copy
import json
import pickle
import subprocess
import sys
import threading
import traceback
import types
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import torch

import rpcfut
from rpcfut import RemoteError
from rpcfut._call_info import CallInfo
from rpcfut._error_chain import MAX_CHAIN
from rpcfut._error_codec import decode_error, encode_error
from rpcfut._registry import isolated_registry, register_type
from tests.support.types import OddError

if TYPE_CHECKING:
    from collections.abc import Iterator

CALL = CallInfo(worker="w0", to="w1", function="m:step", site="/job/train.py:12")


@pytest.fixture(autouse=True)
def _isolated() -> Iterator[None]:
    with isolated_registry():
        yield


def trip(error: BaseException) -> Any:
    return decode_error(encode_error(error, worker="w1", function="m:step"), CALL)


def raised(error: BaseException, cause: BaseException | None = None) -> BaseException:
    with pytest.raises(type(error)) as caught:
        raise error from cause
    return caught.value


def shown(error: BaseException) -> str:
    return "".join(traceback.format_exception(error))


# ---- which types come back as themselves ----------------------------------------


@pytest.mark.parametrize(
    "kind", [torch.OutOfMemoryError, torch.linalg.LinAlgError], ids=lambda k: k.__name__
)
def test_torchs_errors_that_are_asked_for_by_name_come_back_as_themselves(kind) -> None:
    back = trip(raised(kind("on w1")))
    assert type(back) is kind
    assert back.args == ("on w1",)


@pytest.mark.parametrize(
    "error",
    [
        asyncio.CancelledError("x"),
        KeyboardInterrupt("x"),
        SystemExit("x"),
        GeneratorExit("x"),
        torch.AcceleratorError("x"),
        torch.distributed.DistStoreError("x"),
        np.linalg.LinAlgError("x"),
        json.JSONDecodeError("x", "doc", 0),
        subprocess.CalledProcessError(3, "x"),
        BaseExceptionGroup("x", [SystemExit()]),
    ],
    ids=lambda error: type(error).__name__,
)
def test_all_others_are_a_remote_error(error: BaseException) -> None:
    back = trip(raised(error))
    assert type(back) is RemoteError
    assert back.type_name == f"{type(error).__module__}.{type(error).__qualname__}"
    assert back.text == str(error)


def test_a_class_that_calls_itself_a_builtin_is_not_one() -> None:
    named: Any = {"__module__": "builtins", "__qualname__": "ValueError"}
    back = trip(type("ValueError", (OddError,), named)("x"))
    assert type(back) is RemoteError


@pytest.mark.parametrize(
    "kind",
    [
        rpcfut.RpcTimeoutError,
        rpcfut.PeerLostError,
        rpcfut.LifecycleError,
        rpcfut.UnknownWorkerError,
        rpcfut.FunctionRefusedError,
        rpcfut.InvalidStateError,
        rpcfut.DeadlockError,
    ],
    ids=lambda kind: kind.__name__,
)
def test_an_own_error_of_another_call_is_not_taken_for_one_of_this(kind) -> None:
    """A lost peer of w1 must not look like a lost w1."""
    back = trip(kind("no answer from m:f on worker 'w2', called at far.py:3"))
    assert type(back) is RemoteError
    assert back.type_name == f"rpcfut.{kind.__name__}"
    assert back.worker == "w1"
    assert "worker 'w2', called at far.py:3" in str(back)
    assert "raised in: m:step on worker 'w1'" in str(back)


@pytest.mark.parametrize("kind", [rpcfut.NotExposedError, rpcfut.DecodeError])
def test_an_own_error_that_the_function_let_pass_is_remote(kind) -> None:
    """Its frames are the function's: it speaks of a call that the function made."""
    assert type(trip(kind("said by the callee"))) is kind
    assert type(trip(raised(kind("of a nested call")))) is RemoteError


def test_an_own_error_that_came_from_a_third_worker_is_remote() -> None:
    """As when the function returned the future of a nested call."""
    once = trip(rpcfut.NotExposedError("not exposed on worker 'w2'"))
    back = trip(once)
    assert type(back) is RemoteError
    assert back.type_name == "rpcfut.NotExposedError"


# ---- the state of built-in types ------------------------------------------------


def test_a_unicode_error_of_a_surrogate_keeps_its_positions() -> None:
    error = UnicodeEncodeError("utf-8", "a\udc80\x1b", 1, 2, "surrogates not allowed")
    back = trip(error)
    assert type(back) is UnicodeEncodeError
    assert str(back) == str(error)
    assert back.object == error.object


@pytest.mark.parametrize("place", [0, 5_000_000, 9_999_999])
def test_a_unicode_error_of_a_large_file_shows_the_place(place: int) -> None:
    data = bytearray(b"a" * 10_000_000)
    data[place] = 0xFF
    with pytest.raises(UnicodeDecodeError) as caught:
        data.decode()
    back = trip(caught.value)
    assert type(back) is UnicodeDecodeError
    assert back.object[back.start : back.end] == b"\xff"
    assert len(back.object) < 5000
    assert "invalid start byte" in str(back)
    assert f"of {len(data)}]" in str(back)


def test_what_blocking_io_wrote_is_kept() -> None:
    back = trip(BlockingIOError(11, "again", 5))
    assert back.characters_written == 5


def test_a_name_of_a_method_is_no_attribute() -> None:
    error: Any = ValueError("x")
    error.add_note = error.with_traceback = error._private = 1
    error.code = 2
    back = trip(error)
    assert {name for name in vars(back) if not name.startswith("__")} == {"code"}


def test_a_numeral_that_python_does_not_print_keeps_the_type() -> None:
    back = trip(ValueError(10**5000, "kept"))
    assert type(back) is ValueError
    assert back.args[1] == "kept"


def test_a_long_message_is_cut_once() -> None:
    back = trip(ValueError("m" * 100_000_000))
    assert type(back) is ValueError
    assert str(back).count("[cut:") == 1
    kept = str(back).count("m") - "[cut: characters are left out]".count("m")
    assert f"{100_000_000 - kept} of 100000000 characters are left out" in str(back)


def test_a_key_error_keeps_its_key_and_a_readable_traceback() -> None:
    back = trip(raised(KeyError("a\nb")))
    assert back.args == ("a\nb",)
    assert '\n  File "' in shown(back)


# ---- chains and groups ----------------------------------------------------------


def test_members_that_refer_to_each_other_are_all_kept() -> None:
    """Errors that were collected in a loop have each other as context."""
    first, second = ValueError("first"), ValueError("second")
    second.__context__ = first
    back = trip(ExceptionGroup("g", [first, second]))
    assert [str(member) for member in back.exceptions] == ["first", "second"]
    assert back.exceptions[1].__context__ is back.exceptions[0]


def test_a_group_that_is_not_rebuilt_keeps_its_members() -> None:
    inner = [SystemExit(3), ValueError("x"), OddError("y\nz")]
    back = trip(BaseExceptionGroup("g", inner))
    assert [type(e) for e in back.exceptions] == [RemoteError, ValueError, RemoteError]
    assert "member 1:  builtins.SystemExit: 3\n" in str(back)
    assert "member 2:  ValueError: x\n" in str(back)
    again = trip(back)
    assert [str(e.__class__) for e in again.exceptions] == [
        str(e.__class__) for e in back.exceptions
    ]


def test_what_is_left_out_of_a_chain_is_counted() -> None:
    error = top = ValueError("0")
    for number in range(1, 10_000):
        error.__cause__ = error = ValueError(str(number))
    assert f"[cut: {10_000 - MAX_CHAIN} more exceptions" in trip(top).__notes__[-1]
    group = ExceptionGroup("g", [ValueError(n) for n in range(100)])
    back = trip(group)
    assert [e.args[0] for e in back.exceptions] == list(range(MAX_CHAIN - 1))
    assert f"[cut: {101 - MAX_CHAIN} more exceptions" in back.__notes__[-1]


def test_a_cycle_through_a_group_ends() -> None:
    inner = ValueError("x")
    group = ExceptionGroup("g", [inner])
    inner.__context__ = group
    back = trip(group)
    assert str(back.exceptions[0]) == "x"
    assert back.exceptions[0].__context__ is None
    shown(back)


# ---- tracebacks -----------------------------------------------------------------


def _frames(count: int) -> types.TracebackType:
    frame = sys._getframe()
    made = None
    for _ in range(count):
        made = types.TracebackType(made, frame, frame.f_lasti, frame.f_lineno)
    assert made is not None
    return made


def test_of_a_million_frames_the_first_and_the_last_are_shown() -> None:
    error = OddError("deep").with_traceback(_frames(1_000_000))
    with pytest.raises(OddError) as caught:
        raise error
    back = trip(caught.value)
    assert "  [999901 frames are left out]\n" in back.remote_traceback
    assert "in test_of_a_million_frames" in back.remote_traceback
    assert len(back.remote_traceback) < 10_000


def test_endless_recursion_comes_back_as_itself() -> None:
    def endless(n: int) -> int:
        return endless(n + 1) + 1

    with pytest.raises(RecursionError) as caught:
        endless(0)
    back = trip(caught.value)
    assert type(back) is RecursionError
    assert "Previous line repeated" in shown(back)


# ---- hostile exceptions ---------------------------------------------------------


class NoTextError(Exception):
    def __str__(self) -> Any:
        return 3

    __repr__ = __str__


class EndlessTextError(Exception):
    def __str__(self) -> str:
        return str(self)

    __repr__ = __str__


class NoPropertiesError(Exception):
    @property
    def args(self) -> Any:
        raise SystemExit

    __dict__ = __notes__ = __class__ = args  # type: ignore[assignment]


class LyingReduceError(Exception):
    def __reduce__(self) -> Any:
        return (eval, ("1/0",))


class OddMeta(type):
    @property
    def __module__(cls) -> str:  # type: ignore[override]
        raise SystemExit

    def __eq__(cls, other: object) -> bool:
        raise SystemExit

    __hash__ = None  # type: ignore[assignment]

    def __getattribute__(cls, name: str) -> Any:
        raise SystemExit


def oddly_made() -> Exception:
    """Of a class that would stop a search for tests."""

    class OddlyMadeError(Exception, metaclass=OddMeta):
        pass

    return OddlyMadeError("x")


class OutOfMemoryTextError(Exception):
    def __str__(self) -> str:
        raise MemoryError


class SneakyStr(str):
    __slots__ = ()

    def encode(self, *_: Any) -> Any:  # type: ignore[override]
        raise OddError

    __len__ = __getitem__ = __hash__ = encode  # type: ignore[assignment]


def cyclic() -> list[Any]:
    made: list[Any] = []
    made.append(made)
    return made


def with_attributes(**attributes: Any) -> Exception:
    error = ValueError("x")
    vars(error).update(attributes)
    return error


HOSTILE: dict[str, BaseException] = {
    "text is no text": NoTextError("x"),
    "text recurses": EndlessTextError("x"),
    "text out of memory": OutOfMemoryTextError("x"),
    "properties raise": NoPropertiesError("x"),
    "reduce lies": LyingReduceError("x"),
    "metaclass": oddly_made(),
    "a lock": ValueError(threading.Lock()),
    "a socket-like attribute": with_attributes(lock=threading.Lock()),
    "a tensor": ValueError(torch.ones(3)),
    "a large array": ValueError(np.zeros(10_000_000)),
    "a cycle": ValueError(cyclic()),
    "its own argument": ValueError("x"),
    "a strange text": ValueError(SneakyStr("x")),
    "an error that recurses": ValueError(EndlessTextError()),
    "surrogates and NUL": ValueError("\ud800\udc80\x00"),
    "memory": MemoryError(),
}
HOSTILE["its own argument"].args = (HOSTILE["its own argument"],)


@pytest.mark.parametrize("name", HOSTILE)
def test_whatever_an_error_does_it_is_told(name: str) -> None:
    """RPC-3: no answer of last resort is needed."""
    error = HOSTILE[name]
    back = trip(raised(error) if "metaclass" not in name else error)
    assert not isinstance(back, rpcfut.DecodeError)
    assert type(back) in {ValueError, MemoryError, RemoteError}
    text = shown(back)
    assert "w1" in text
    assert not set(text) & {"\x00", "\x1b"}


CONTROL = "a\x1b[31m\x07\x9b\u202e\u2066\u200b\u2028\ufeff\r\x00"


def test_no_text_of_an_error_can_drive_a_terminal_or_forge_a_line() -> None:
    odd = type("Odd\x1b[31m\nroot: all is well", (Exception,), {"__module__": "m\r\n"})
    error = odd(CONTROL)
    error.add_note(CONTROL)
    error.__cause__ = ValueError(CONTROL, (CONTROL,))
    error.__context__ = OSError(2, CONTROL, CONTROL)
    error.__suppress_context__ = False
    body = encode_error(error, worker=CONTROL, function="f\nroot: all is well")
    for call in (None, CALL):
        back: Any = decode_error(body, call)
        text = shown(back) + str(back.__context__) + repr(back)
        assert not set(text) & (set(CONTROL) - {"a", "[", "3", "1", "m"})
        assert "\nroot: all is well" not in text
        assert "\\x1b[31m" in text


# ---- what a RemoteError says ----------------------------------------------------


def test_a_remote_error_tells_the_whole_story() -> None:
    back = trip(raised(OddError("worn out"), KeyError("first")))
    lines = str(back).splitlines()
    line = (
        "rpcfut.register_type(OddError, lambda e: e.args, lambda args: OddError(*args))"
    )
    assert lines[:5] == [
        "tests.support.types.OddError: worn out",
        "  raised in: m:step on worker 'w1'",
        "  called at: /job/train.py:12, on worker 'w0'",
        f"  to catch it as itself: call {line} on both workers",
        "remote traceback:",
    ]
    assert "in raised" in lines[5]
    assert not hasattr(back, "__notes__"), "once is enough"
    assert "KeyError" in shown(back)


def test_what_the_hint_says_works() -> None:
    (line,) = [line for line in str(trip(OddError())).splitlines() if "catch" in line]
    code = line.partition("call ")[2].partition(" on both")[0]
    exec(code, {"rpcfut": rpcfut, "OddError": OddError})
    back = trip(raised(OddError("text", 3)))
    assert type(back) is OddError
    assert back.args == ("text", 3)


class KeywordError(Exception):
    def __init__(self, *, code: int) -> None:
        super().__init__(f"code {code}")
        self.code = code


def test_the_hint_makes_no_guess_at_a_constructor() -> None:
    assert (
        "register_type(KeywordError, flatten, unflatten)"
        in trip(KeywordError(code=3)).hint
    )
    register_type(KeywordError, lambda e: e.code, lambda code: KeywordError(code=code))
    back = trip(raised(KeywordError(code=3)))
    assert type(back) is KeywordError
    assert back.code == 3
    assert "worker 'w1'" in back.__notes__[0]


@pytest.mark.parametrize(
    "error",
    [SystemExit(), asyncio.CancelledError(), rpcfut.DeadlockError("x")],
    ids=lambda e: type(e).__name__,
)
def test_no_hint_where_registering_does_not_help(error: BaseException) -> None:
    assert trip(error).hint == ""


def test_an_error_that_is_registered_there_only_says_so() -> None:
    with isolated_registry():
        register_type(OddError, lambda e: e.args, lambda args: OddError(*args))
        body = encode_error(OddError("text"), worker="w1", function="f")
    back: Any = decode_error(body, CALL)
    assert type(back) is RemoteError
    assert back.text == "text"
    assert "not registered here: import the module" in back.hint


@pytest.mark.parametrize("end", ["flatten", "unflatten"])
@pytest.mark.parametrize("kind", [SystemExit, KeyError, RecursionError])
def test_an_error_whose_wire_format_raises_keeps_its_words(end: str, kind) -> None:
    def fail(_: Any) -> Any:
        raise kind("no")

    def pass_on(error: Any) -> Any:
        return error.args

    flatten, unflatten = (fail, OddError) if end == "flatten" else (pass_on, fail)
    register_type(OddError, flatten, unflatten)
    back = trip(raised(OddError("text")))
    assert type(back) is RemoteError
    assert back.text == "text"
    assert "flatten" in back.hint


def test_an_error_that_is_passed_on_names_both_workers() -> None:
    """The story of the first, and what the one between adds."""
    first = decode_error(
        encode_error(raised(OddError("x")), worker="w2", function="m:far"),
        CallInfo(worker="w1", to="w2", function="m:far", site="relay.py:3"),
    )
    back = trip(raised(first))
    assert (back.worker, back.function) == ("w2", "m:far")
    assert back.call_site == "relay.py:3, on worker 'w1'"
    (note,) = back.__notes__
    assert "worker 'w1', function 'm:step', called at /job/train.py:12" in note
    assert "in raised" in note


def test_a_builtin_error_that_is_passed_on_names_both_workers() -> None:
    first = decode_error(
        encode_error(raised(ValueError("x")), worker="w2", function="m:far"), None
    )
    notes = trip(raised(first)).__notes__
    assert [("worker 'w2'" in n, "worker 'w1'" in n) for n in notes] == [
        (True, False),
        (False, True),
    ]


def test_what_the_caller_knows_is_not_taken_from_the_bytes() -> None:
    body = encode_error(OddError(), worker="someone", function="else")
    back: Any = decode_error(body, CALL)
    assert (back.worker, back.function) == ("w1", "m:step")


@pytest.mark.parametrize("again", [copy.copy, lambda e: pickle.loads(pickle.dumps(e))])  # noqa: TID251 - users do
def test_errors_with_more_than_args_can_be_copied(again) -> None:
    """A pool of processes between must not turn it into a TypeError."""
    extraction = rpcfut.ExtractionError(
        type_name="a.B", path="value[0]", what="the value", worker="w2", fix="line"
    )
    for error in (trip(raised(OddError("x"))), extraction):
        made = again(error)
        assert type(made) is type(error)
        assert str(made) == str(error)
        assert vars(made) == vars(error)


def test_every_builtin_exception_can_be_caught_by_its_name() -> None:
    """Whatever its constructor wants; B21."""
    wants: dict[str, tuple[Any, ...]] = {
        "UnicodeDecodeError": ("utf-8", b"\xff", 0, 1, "bad"),
        "UnicodeEncodeError": ("ascii", "ä", 0, 1, "bad"),
        "UnicodeTranslateError": ("ä", 0, 1, "bad"),
        "ExceptionGroup": ("g", [ValueError()]),
    }
    for name, kind in vars(builtins).items():
        if isinstance(kind, type) and issubclass(kind, Exception):
            error = kind(*wants.get(kind.__name__, ("x",)))
            assert type(trip(raised(error))) is kind, name
