"""Errors between real processes (RPC-3, RPC-4)."""

from __future__ import annotations

from typing import Any

import pytest

from tests.support import failing
from tests.support.group import run_group

pytestmark = pytest.mark.timeout(90)


@pytest.fixture(scope="module")
def seen() -> Any:
    """What w0 printed of each error that it met; w1 has lived through all of them."""
    return run_group(failing.see_errors, 3)[0]


def test_rpc4_whatever_fails_is_told_and_the_worker_lives(seen) -> None:
    """RPC-4, B13, B15, B18, B19: after each, the same worker serves the next call."""
    for name, text in seen.items():
        assert "failing.py" in text, name
        assert "worker 'w1'" in text, name
        assert "on worker 'w0'" in text, name
    assert "KeywordError: worn out (7)" in seen["keyword"]
    assert "HeldError: ('held'" in seen["held"]
    for part in ("KeyError: 'first'", "literal for int()", "third (3)"):
        assert part in seen["chain"]
    assert "RecursionError" in seen["deep"]
    assert "builtins.SystemExit: 3" in seen["exit"]
    assert "builtins.KeyboardInterrupt: now" in seen["interrupt"]
    assert "CancelledError: stop" in seen["cancelled"]
    assert "torch.OutOfMemoryError: CUDA out of memory" in seen["out of memory"]
    assert "characters are left out]" in seen["large"]
    assert len(seen["large"]) < 200_000
    assert "KeyError: 'text'" in seen["key"]


def test_rpc4_an_error_of_a_nested_call_names_the_worker_behind(seen) -> None:
    """It is no timeout, and no missing name, of the call that was made here."""
    assert "rpcfut.RemoteError: rpcfut.RpcTimeoutError" in seen["nested timeout"]
    assert "wait_for_ever on worker 'w2'" in seen["nested timeout"]
    assert "give_up on worker 'w1'" in seen["nested timeout"]
    assert "rpcfut.RemoteError: rpcfut.NotExposedError" in seen["nested name"]
    assert "raise_keyword on worker 'w2'" in seen["nested error"]
    assert (
        "worker 'w1', function 'tests.support.failing:pass_on'"
        in (seen["nested error"])
    )


def test_b16_a_class_that_exists_on_the_callee_only_keeps_its_words() -> None:
    """B16: nothing is imported for it, and the way out is named."""
    text, _ = run_group(failing.see_unknown_class, 2)
    assert text.startswith("RemoteError: only_on_w1.OnlyError: text\n")
    assert "is not registered here: import the module that registers it" in text
