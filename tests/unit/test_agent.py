"""One agent calls another, over the memory link; what bad input gets."""

from __future__ import annotations

import dataclasses
import functools
import os
import threading
import traceback
import warnings

import pytest
import torch

import rpcfut
from rpcfut._exposed import ExposedTable
from rpcfut._wire_codes import MAX_DEPTH
from rpcfut.testing import local_cluster
from rpcfut.transport import (
    LinkError,
    MemoryLink,
    MemoryNetwork,
    describe_this_process,
)
from tests.support import remote

HERE = __file__


@pytest.fixture
def table() -> ExposedTable:
    exposed = ExposedTable()
    for function in (
        remote.echo,
        remote.add,
        remote.fail,
        remote.make_opaque,
        remote.make_untransportable,
        remote.never,
        remote.later,
    ):
        exposed.expose(function)
    return exposed


@pytest.fixture
def agents(table):
    with local_cluster("alice", "bob", exposed=table) as both:
        yield both


@pytest.fixture
def alice(agents):
    return agents[0]


def works(alice) -> bool:
    """Whether bob still serves."""
    return alice.rpc_sync("bob", remote.add, (1,), timeout=10) == 2


def test_values_and_tensors_come_back_equal(alice) -> None:
    value = {"t": (1, 2.5, "x", b"y"), "n": None, "x": torch.arange(6).reshape(2, 3)}
    back = alice.rpc_sync("bob", remote.echo, (value,), timeout=10)
    assert torch.equal(back.pop("x"), value.pop("x"))
    assert back == value


def test_str8_host_arguments_may_be_overwritten_at_once(alice) -> None:
    """STR-8, B81: the call took its own copy."""
    x = torch.ones(1_000_000)
    future = alice.rpc_async("bob", remote.echo, (x,))
    x.zero_()
    assert future.wait(timeout=10).sum().item() == 1_000_000


def test_b71_received_tensors_are_writable_and_the_callers_own(alice) -> None:
    x = torch.ones(100_000)
    y = alice.rpc_sync("bob", remote.echo, (x,), timeout=10)
    y.add_(1)
    assert x.sum().item() == 100_000
    assert y.sum().item() == 200_000


def test_unknown_worker_lists_the_known_ones(alice) -> None:
    with pytest.raises(
        rpcfut.UnknownWorkerError,
        match=r"'carol'.*'alice' \(rank 0\), 'bob' \(rank 1\)",
    ):
        alice.rpc_async("carol", remote.add, (1,))


def test_b23_unexposed_function_names_the_line_to_add_and_the_worker_lives(
    alice,
) -> None:
    with pytest.raises(
        rpcfut.NotExposedError,
        match=r"not_exposed' is not exposed on worker 'bob'; add @rpcfut\.expose above",
    ):
        alice.rpc_sync("bob", remote.not_exposed, timeout=10)
    with pytest.raises(rpcfut.NotExposedError, match="add `import os2`"):
        alice.rpc_sync("bob", "os2:system", ("true",), timeout=10)
    assert works(alice)


def test_b135_nothing_is_found_by_attribute(alice) -> None:
    for name in ("builtins:eval", "os:system", "tests.support.remote:os.kill"):
        with pytest.raises(rpcfut.NotExposedError):
            alice.rpc_sync("bob", name, ("1",), timeout=10)


@pytest.mark.parametrize(
    ("function", "text"),
    [
        (lambda: 1, "lambda"),
        (functools.partial(remote.add, 1), "no module and name"),
    ],
)
def test_b24_functions_without_a_name_are_refused_before_sending(
    alice, function, text
) -> None:
    with pytest.raises(rpcfut.FunctionRefusedError, match=text):
        alice.rpc_async("bob", function)


def test_b24_local_functions_are_refused_with_the_way_out(alice) -> None:
    def local() -> None: ...

    with pytest.raises(rpcfut.FunctionRefusedError, match="move it to the top level"):
        alice.rpc_async("bob", local)


def test_unencodable_argument_is_refused_where_the_call_is_made(alice) -> None:
    with pytest.raises(
        rpcfut.ExtractionError, match=r"args\[0\]\['deep'\]\[1\]"
    ) as info:
        alice.rpc_async("bob", remote.echo, ({"deep": [0, remote.Opaque()]},))
    assert info.value.worker == "alice"
    assert "register_type" in str(info.value)
    assert HERE in str(info.value)
    with pytest.raises(rpcfut.EncodeError, match=r"register_type"):
        alice.rpc_async("bob", remote.echo, kwargs={"value": remote.Untransportable()})
    assert works(alice)


def test_arguments_may_be_as_deep_as_results(alice) -> None:
    value: list = []
    for _ in range(MAX_DEPTH - 1):
        value = [value]
    assert alice.rpc_sync("bob", remote.echo, (value,), timeout=10) == value
    assert alice.rpc_sync("bob", remote.echo, kwargs={"value": value}) == value
    for call in ({"args": ([value],)}, {"kwargs": {"value": [value]}}):
        with pytest.raises(rpcfut.EncodeError, match=r"cannot send k?w?args\["):
            alice.rpc_async("bob", remote.echo, **call)


def test_unencodable_result_becomes_an_error_reply_and_the_worker_lives(alice) -> None:
    with pytest.raises(
        rpcfut.ExtractionError, match=r"result\['layers'\]\[1\]"
    ) as info:
        alice.rpc_sync("bob", remote.make_opaque, timeout=10)
    assert info.value.worker == "bob"
    assert info.value.type_name.endswith("Opaque")
    assert "make_opaque" in (info.value.call or "")
    with pytest.raises(rpcfut.EncodeError, match="register_type"):
        alice.rpc_sync("bob", remote.make_untransportable, timeout=10)
    assert works(alice)


def test_callback_returning_an_unknown_type_fails_its_child_naming_the_call(
    alice,
) -> None:
    """EXT-3: type, path, worker, call and the line to add, on the child, at once."""
    child = alice.rpc_async("bob", remote.add, (1,)).then(
        lambda _: {"a": [remote.Opaque()]}
    )
    with pytest.raises(rpcfut.ExtractionError) as info:
        child.wait(timeout=10)
    error = info.value
    assert error.type_name == "tests.support.remote.Opaque"
    assert error.path == "result['a'][0]"
    assert error.worker == "alice"
    assert "remote:add on worker 'bob'" in (error.call or "")
    assert "rpcfut.register_type" in error.fix


def test_rpc4_builtin_errors_come_back_as_themselves(alice) -> None:
    """RPC-4, B21, B22: type, args and remote traceback."""
    with pytest.raises(KeyError) as info:
        alice.rpc_sync("bob", remote.fail, ("KeyError",), timeout=10)
    assert info.value.args == ("no such key",)
    text = "".join(traceback.format_exception(info.value))
    assert "worker 'bob'" in text
    assert "remote.py" in text


def test_b13_errors_that_exist_only_there_keep_type_text_and_traceback(alice) -> None:
    with pytest.raises(rpcfut.RemoteError, match=r"worn out \(7\)") as info:
        alice.rpc_sync("bob", remote.fail, ("TwoArguments",), timeout=10)
    assert info.value.type_name.endswith("TwoArguments")
    assert "remote.py" in (info.value.remote_traceback or "")
    with pytest.raises(rpcfut.RemoteError, match="SystemExit"):
        alice.rpc_sync("bob", remote.fail, ("SystemExit",), timeout=10)
    assert works(alice)


def test_rpc2_a_call_ends_at_its_deadline_and_late_replies_are_dropped(alice) -> None:
    with pytest.raises(
        rpcfut.RpcTimeoutError, match=r"no answer after 0\.05 s"
    ) as info:
        alice.rpc_sync("bob", remote.never, timeout=0.05)
    assert isinstance(info.value, TimeoutError)
    assert "remote:never on worker 'bob'" in str(info.value)
    assert works(alice)


def test_b20_calls_to_oneself_obey_the_same_rules(alice) -> None:
    x = torch.ones(3)
    y = alice.rpc_sync("alice", remote.echo, (x,), timeout=10)
    y.add_(1)
    assert x.sum().item() == 3
    with pytest.raises(KeyError):
        alice.rpc_sync("alice", remote.fail, ("KeyError",), timeout=10)


def test_b25_a_returned_future_is_flattened(alice) -> None:
    assert alice.rpc_sync("bob", remote.later, (1,), timeout=10) == 2


def test_b34_a_callback_may_return_another_call(alice) -> None:
    child = alice.rpc_async("bob", remote.add, (1,)).then(
        lambda f: alice.rpc_async("bob", remote.add, (f.value(), 10))
    )
    assert child.wait(timeout=10) == 12


def test_wrong_shapes_of_arguments_are_named(alice) -> None:
    with pytest.raises(rpcfut.CallRefusedError, match=r"write args=\(x,\)"):
        alice.rpc_async("bob", remote.echo, "text")
    with pytest.raises(rpcfut.CallRefusedError, match="timeout"):
        alice.rpc_async("bob", remote.echo, (1,), timeout=-1)


def test_calls_after_close_are_refused_and_pending_ones_end(agents) -> None:
    alice, _ = agents
    pending = alice.rpc_async("bob", remote.never)
    alice.close()
    with pytest.raises(rpcfut.LifecycleError, match=r"shut down|closed"):
        pending.wait(timeout=10)
    with pytest.raises(rpcfut.LifecycleError, match="shut down"):
        alice.rpc_async("bob", remote.add, (1,))
    alice.close()


def test_cancelled_call_is_over_at_once(alice) -> None:
    future = alice.rpc_async("bob", remote.never)
    assert future.cancel()
    assert future.cancelled()
    assert works(alice)


def test_calls_before_init_and_after_shutdown_say_what_to_do() -> None:
    with pytest.raises(rpcfut.LifecycleError, match=r"call rpcfut\.init_rpc\("):
        rpcfut.rpc_async("w1", remote.add)
    rpcfut.shutdown()


def test_repr_shows_state_and_counts(alice) -> None:
    assert repr(alice) == "<Agent 'alice' rank 0 running: 0 calls pending, 0 served>"


def test_a_peer_on_another_host_is_refused_by_name(table) -> None:
    """Silence would be a hang: nothing here reaches another host yet."""
    network = MemoryNetwork()
    link = MemoryLink(network)
    record = describe_this_process(
        rank=0, name="alice", incarnation=1, address=link.address
    )
    far = dataclasses.replace(record, rank=1, name="far", host_id="elsewhere")
    agent = rpcfut.Agent(record, link, table)
    try:
        with pytest.raises(LinkError, match=r"'far'.*on another host"):
            agent.start([record, far])
    finally:
        agent.close()


def test_callbacks_that_wait_for_a_lock_do_not_hold_up_replies(alice) -> None:
    """RPC-6: the lock is held by the thread that waits for the reply."""
    lock = threading.Lock()

    def take(_: object) -> None:
        with lock:
            pass

    with lock:
        held = [
            alice.rpc_async("bob", remote.echo, ([i],)).then(take) for i in range(20)
        ]
        assert alice.rpc_sync("bob", remote.echo, ([1, 2],), timeout=10) == [1, 2]
    for future in held:
        future.wait(timeout=10)


def test_a_graceful_shutdown_inside_a_served_function_is_refused(agents, table) -> None:
    """It would wait for itself."""
    alice, bob = agents
    table.expose(lambda: bob.shutdown(), name="bye")
    with pytest.raises(rpcfut.RemoteError, match="that very call"):
        alice.rpc_sync("bob", "bye", timeout=10)
    assert works(alice)


def test_a_forked_child_gets_a_clear_error_and_leaves_the_parent_alone(alice) -> None:
    """RPC-11, B83: neither its calls nor its closing touch what is the parent's."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # of forking with threads
        pid = os.fork()
    if pid == 0:
        code = 1
        try:
            alice.rpc_async("bob", remote.add, (1,))
        except rpcfut.LifecycleError as error:
            code = 0 if "forked child" in str(error) else 2
        alice.close()
        os._exit(code)
    assert os.waitpid(pid, 0)[1] == 0
    assert works(alice)


def test_the_main_module_of_a_spawned_child_may_be_named_as_text(agents, table) -> None:
    alice, _ = agents
    table.expose(remote.add, name="__main__:add")
    assert alice.rpc_sync("bob", "__mp_main__:add", (1,), timeout=10) == 2


@pytest.mark.parametrize("to", [[0.0], {}, 0.0, None, True, [True]])
def test_what_is_no_worker_is_named(alice, to) -> None:
    with pytest.raises(rpcfut.UnknownWorkerError, match="a name, a rank or a Worker"):
        alice.rpc_async(to, remote.add, (1,))


@pytest.mark.parametrize("kwargs", [5, "a", {1: 2}, [1]])
def test_what_are_no_keyword_arguments_are_named(alice, kwargs) -> None:
    with pytest.raises(rpcfut.CallRefusedError, match="kwargs must be a dict"):
        alice.rpc_async("bob", remote.add, (1,), kwargs)
