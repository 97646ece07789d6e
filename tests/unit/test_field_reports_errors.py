"""What users of the peers met with errors that travel, each with the right outcome.

Rows that are tested elsewhere, too: B06, B07, B09, B17 (values that do not encode or
decode) in test_agent.py; B13, B15, B16, B18, B19 between processes in
tests/procs/test_errors.py; B24 in test_exposed.py; B25 in test_handlers.py.
"""

from __future__ import annotations

import builtins
import inspect
import re
import traceback
from typing import TYPE_CHECKING, Any

import pytest

import rpcfut
from rpcfut import RemoteError
from rpcfut._exposed import ExposedTable
from rpcfut._registry import isolated_registry, register_type
from rpcfut.testing import local_cluster
from tests.support import failing
from tests.support.remote import add

if TYPE_CHECKING:
    from collections.abc import Iterator

    from rpcfut._agent import Agent

HERE = "test_field_reports_errors.py"


@pytest.fixture
def table() -> ExposedTable:
    exposed = ExposedTable()
    for function in vars(failing).values():
        if inspect.isfunction(function) and function.__module__ == failing.__name__:
            exposed.expose(function)
    exposed.expose(add)
    return exposed


@pytest.fixture
def agents(table: ExposedTable) -> Iterator[list[Agent]]:
    with (
        isolated_registry(),
        local_cluster("alice", "bob", "carol", exposed=table) as them,
    ):
        register_type(failing.Sealed, failing.flatten_sealed, failing.unflatten_sealed)
        failing.CALLS.clear()
        yield them


@pytest.fixture
def alice(agents: list[Agent]) -> Iterator[Agent]:
    """Whatever failed, bob serves the next call."""
    yield agents[0]
    assert agents[0].rpc_sync("bob", add, (1,), timeout=10) == 2


def failed(alice: Agent, function: Any, *args: Any, to: str = "bob") -> Any:
    error = alice.rpc_async(to, function, args, timeout=10).exception(timeout=20)
    assert error is not None
    return error


def shown(error: BaseException) -> str:
    return "".join(traceback.format_exception(error))


# ---- the reply ------------------------------------------------------------------


@pytest.mark.parametrize("how", ["unflatten", "memory"])
def test_b06_an_argument_that_does_not_decode_fails_its_call(alice, how) -> None:
    """B06: the caller hears what the decoder said, at once."""
    error = failed(alice, failing.give, failing.Sealed(how))
    text = {"unflatten": r"cannot unflatten (2)", "memory": "no room for it"}[how]
    assert isinstance(error, rpcfut.DecodeError)
    assert text in str(error)
    assert "worker 'bob'" in shown(error)
    assert failing.CALLS == []


@pytest.mark.parametrize("body", [b"", b"\xc1", b"\x93\xa1x", b"\x90", b"\xff" * 99])
def test_b07_a_body_of_any_bytes_is_answered_by_its_id(agents, alice, body) -> None:
    """B07: what leads the answer back does not lie in the part that is broken."""
    endpoint = agents[0]._endpoint
    future: rpcfut.Future[Any] = rpcfut.Future()

    class Sink:
        def on_error(self, body: memoryview, _: Any) -> None:
            future.set_exception(rpcfut.RpcError(bytes(body).decode("latin-1")))

        def on_result(self, *_: Any) -> None:
            future.set_result(None)

        on_lost = on_timeout = on_result

    sink: Any = Sink()
    call_id = endpoint.open_call(1, 20.0, sink)
    endpoint.send_call(call_id, body, [])
    assert "DecodeError" in str(future.exception(timeout=20))


@pytest.mark.parametrize("how", ["flatten", "unflatten", "memory"])
def test_b09_b17_a_result_that_does_not_travel_fails_once(alice, how) -> None:
    """B09, B17: the one future fails, and nothing is run a second time."""
    error = failed(alice, failing.make_sealed, how)
    assert isinstance(error, (rpcfut.EncodeError, rpcfut.DecodeError))
    text = {"memory": "no room for it"}.get(how, f"cannot {how}")
    assert text in str(error)
    assert failing.CALLS == ["make_sealed"]


def test_b13_a_constructor_with_keywords_hides_nothing(alice) -> None:
    """B13: never a TypeError in place of what happened."""
    error = failed(alice, failing.raise_keyword)
    assert type(error) is RemoteError
    assert error.type_name == "tests.support.failing.KeywordError"
    assert error.text == "worn out (7)"
    assert "in raise_keyword" in error.remote_traceback


def test_b14_what_a_remote_error_raises_again_is_itself(alice) -> None:
    """B14: by wait(), by then(), by a second wait()."""
    future = alice.rpc_async("bob", failing.raise_keyword)
    child = future.then(lambda f: f.value())
    for waited in (future, child, future):
        with pytest.raises(RemoteError, match=r"worn out \(7\)"):
            waited.wait(timeout=20)


def test_b14_a_registered_error_that_cannot_be_rebuilt_keeps_its_words(alice) -> None:
    def fail(_: object) -> Any:
        raise TypeError("missing 2 required keyword-only arguments")

    register_type(failing.KeywordError, lambda e: e.code, fail)
    error = failed(alice, failing.raise_keyword)
    assert type(error) is RemoteError
    assert error.text == "worn out (7)"
    assert "missing 2 required" in str(error)


def test_b15_an_error_that_holds_a_lock_arrives(alice) -> None:
    error = failed(alice, failing.raise_held)
    assert error.type_name == "tests.support.failing.HeldError"
    assert "held" in error.text
    builtin = failed(alice, failing.raise_large, "builtin")
    assert type(builtin) is ValueError


def test_b16_a_class_that_is_not_here_keeps_its_words(alice) -> None:
    error = failed(alice, failing.raise_unknown_here)
    assert error.type_name.endswith("OnlyThereError")
    assert error.text == "only there"
    assert "failing.py" in str(error)


def test_b18_the_whole_chain_arrives(alice) -> None:
    """B18: an explicit link, an implicit one, and notes."""
    error = failed(alice, failing.raise_chain)
    assert type(error.__cause__) is ValueError
    assert error.__suppress_context__
    assert type(error.__cause__.__context__) is KeyError
    assert error.__cause__.__context__.args == ("first",)
    assert "said on the way" in getattr(error, "__notes__", ())
    text = shown(error)
    for part in ("'first'", "'second'", "third (3)", "During handling", "direct cause"):
        assert part in text


@pytest.mark.parametrize(
    ("name", "args"), [("raise_keyword", ()), ("raise_builtin", ("KeyError",))]
)
def test_b19_the_error_tells_two_lines_apart(alice, name, args) -> None:
    """B19: where the call was made, on which worker, and where it ran."""
    path = f"tests.support.failing:{name}"
    one = alice.rpc_async("bob", path, args).exception(timeout=20)
    two = alice.rpc_async("bob", path, args).exception(timeout=20)
    first, second = shown(one), shown(two)
    assert first != second
    for text in (first, second):
        assert re.search(rf"called at:? \S*{HERE}:\d+, on worker 'alice'", text)
        assert "worker 'bob'" in text
        assert f"in {name}" in text


def test_b20_a_call_to_oneself_fails_alike(alice) -> None:
    error = failed(alice, failing.raise_keyword, to="alice")
    assert type(error) is RemoteError
    assert error.worker == "alice"
    assert (
        type(failed(alice, failing.raise_builtin, "KeyError", to="alice")) is KeyError
    )


def test_b21_each_builtin_type_is_caught_by_its_name(alice) -> None:
    """B21. StopIteration would end an awaiter, and is the cause of a RuntimeError."""
    for name, kind in vars(builtins).items():
        if isinstance(kind, type) and issubclass(kind, Exception):
            error = failed(alice, failing.raise_builtin, name)
            if issubclass(kind, (StopIteration, StopAsyncIteration)):
                assert type(error) is RuntimeError, name
                error = error.__cause__
            assert type(error) is kind, name
            assert isinstance(error, kind)


@pytest.mark.parametrize(
    ("kind", "name"),
    [
        ("exit", "builtins.SystemExit"),
        ("interrupt", "builtins.KeyboardInterrupt"),
        ("generator", "builtins.GeneratorExit"),
        ("cancelled", "asyncio.exceptions.CancelledError"),
    ],
)
def test_b21_what_would_end_this_process_is_a_remote_error(alice, kind, name) -> None:
    error = failed(alice, failing.raise_async, kind)
    assert type(error) is RemoteError
    assert error.type_name == name
    assert not alice.rpc_async("bob", failing.raise_async, (kind,)).cancelled()


def test_b22_a_remote_traceback_is_readable_and_args_are_untouched(alice) -> None:
    error = failed(alice, failing.raise_builtin, "KeyError")
    assert error.args == ("text",)
    lines = shown(error).splitlines()
    assert any("in raise_builtin" in line for line in lines)
    assert "\\n" not in shown(error)


def test_b23_a_function_that_is_not_there_is_named(alice) -> None:
    error = failed(alice, "no.such:fn")
    assert isinstance(error, rpcfut.NotExposedError)
    assert isinstance(error, LookupError)
    assert "'no.such:fn' is not exposed on worker 'bob'" in str(error)


def test_b24_a_lambda_is_refused_before_anything_is_sent(alice) -> None:
    for function in (lambda: 1, alice.rpc_sync):
        with pytest.raises(rpcfut.FunctionRefusedError, match="on another worker"):
            alice.rpc_async("bob", function)


def test_b25_a_function_that_returns_a_failed_future_is_answered(alice, table) -> None:
    def give_failed() -> rpcfut.Future[None]:
        future: rpcfut.Future[None] = rpcfut.Future()
        future.set_exception(failing.KeywordError(code=1, reason="late"))
        return future

    table.expose(give_failed, name="give_failed")
    error = failed(alice, "give_failed")
    assert type(error) is RemoteError
    assert error.text == "late (1)"


# ---- nested calls ---------------------------------------------------------------


def test_b19_a_nested_failure_is_not_taken_for_one_of_this_call(agents, alice) -> None:
    """Neither one that the function let pass, nor one in a future that it returned."""
    bob, table = agents[1], agents[1].exposed

    def wait(name: str) -> Any:
        return bob.rpc_sync("carol", name, timeout=0.05)

    def give(name: str) -> Any:
        return bob.rpc_async("carol", name, timeout=0.05)

    table.expose(wait, name="wait")
    table.expose(give, name="give")
    never = "tests.support.failing:wait_for_ever"
    for name in ("wait", "give"):
        late = failed(alice, name, never)
        assert type(late) is RemoteError, name
        assert not isinstance(late, TimeoutError)
        assert late.type_name == "rpcfut.RpcTimeoutError"
        assert "wait_for_ever on worker 'carol'" in str(late)
        assert "worker 'bob'" in str(late)
        missing = failed(alice, name, "no.such:fn")
        assert type(missing) is RemoteError, name
        assert missing.type_name == "rpcfut.NotExposedError"
        assert "on worker 'carol'" in str(missing)


def test_b13_a_nested_error_names_the_worker_that_raised_it(agents, alice) -> None:
    """And each one between, with the lines of code that called."""
    bob, table = agents[1], agents[1].exposed
    table.expose(lambda: bob.rpc_sync("carol", failing.raise_keyword), name="relay")
    error = failed(alice, "relay")
    assert (error.worker, error.text) == ("carol", "worn out (7)")
    assert error.call_site.endswith("on worker 'bob'")
    assert "in raise_keyword" in error.remote_traceback
    (note,) = error.__notes__
    assert "worker 'bob', function 'relay', called at" in note
    assert "on worker 'alice'" in note


def test_a_deep_and_a_large_error_arrive_cut(alice) -> None:
    deep = failed(alice, failing.raise_deep)
    assert type(deep) is RecursionError
    large = failed(alice, failing.raise_large, "own")
    assert "of 100000004 characters are left out]" in large.text
    assert len(str(large)) < 100_000
