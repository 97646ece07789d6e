"""Functions that fail, each in a way of its own, and what test processes run."""

from __future__ import annotations

import asyncio
import builtins
import os
import sys
import threading
import traceback
from typing import Any, NoReturn

import torch

import rpcfut
from tests.support.remote import add

CALLS: list[str] = []  # of this process


class KeywordError(Exception):
    """Wants two arguments by name."""

    def __init__(self, *, code: int, reason: str) -> None:
        super().__init__(f"{reason} ({code})")
        self.code = code


class HeldError(Exception):
    """Holds what cannot travel."""

    def __init__(self, text: str) -> None:
        super().__init__(text, threading.Lock())
        self.lock = threading.Lock()
        self.pipe = os.fdopen(os.dup(0), "rb", closefd=True)
        self.pipe.close()


class Sealed:
    """Its wire format fails, here or there, as told."""

    def __init__(self, how: str) -> None:
        self.how = how


def flatten_sealed(sealed: Sealed) -> str:
    if sealed.how == "flatten":
        raise KeywordError(code=1, reason="cannot flatten")
    return sealed.how


def unflatten_sealed(how: str) -> Sealed:
    if how == "unflatten":
        raise KeywordError(code=2, reason="cannot unflatten")
    if how == "memory":
        raise MemoryError("no room for it")
    return Sealed(how)


@rpcfut.expose
def raise_keyword() -> NoReturn:
    raise KeywordError(code=7, reason="worn out")


@rpcfut.expose
def raise_held() -> NoReturn:
    raise HeldError("held")


@rpcfut.expose
def raise_builtin(name: str) -> NoReturn:
    wants: dict[str, tuple[Any, ...]] = {
        "UnicodeDecodeError": ("utf-8", b"\xff", 0, 1, "bad"),
        "UnicodeEncodeError": ("ascii", "ä", 0, 1, "bad"),
        "UnicodeTranslateError": ("ä", 0, 1, "bad"),
        "ExceptionGroup": ("text", [ValueError("inside")]),
        "BaseExceptionGroup": ("text", [SystemExit("inside")]),
    }
    raise getattr(builtins, name)(*wants.get(name, ("text",)))


@rpcfut.expose
def raise_unknown_here() -> NoReturn:
    """Of a class that no other module can name."""

    class OnlyThereError(Exception):
        pass

    raise OnlyThereError("only there")


@rpcfut.expose
def raise_chain() -> NoReturn:
    try:
        try:
            {}["first"]
        except KeyError:
            int("second")  # an implicit link
    except ValueError as error:
        wrapped = KeywordError(code=3, reason="third")
        wrapped.add_note("said on the way")
        raise wrapped from error


@rpcfut.expose
def raise_deep() -> NoReturn:
    def dive(depth: int) -> int:
        return dive(depth + 1) + 1

    dive(0)
    raise AssertionError


@rpcfut.expose
def raise_large(kind: str) -> NoReturn:
    text = "m" * 100_000_000
    raise KeywordError(code=1, reason=text) if kind == "own" else ValueError(text)


@rpcfut.expose
def raise_async(kind: str) -> NoReturn:
    raise {
        "cancelled": asyncio.CancelledError("stop"),
        "exit": SystemExit(3),
        "interrupt": KeyboardInterrupt("now"),
        "generator": GeneratorExit("done"),
        "memory": torch.OutOfMemoryError("CUDA out of memory"),
    }[kind]


@rpcfut.expose
def give(value: Any) -> Any:
    CALLS.append("give")
    return value


@rpcfut.expose
def make_sealed(how: str) -> Sealed:
    CALLS.append("make_sealed")
    return Sealed(how)


@rpcfut.expose
def give_up(to: str, timeout: float) -> Any:
    """Wait in vain for a third worker."""
    return rpcfut.rpc_sync(to, wait_for_ever, timeout=timeout)


@rpcfut.expose
def wait_for_ever() -> rpcfut.Future[None]:
    return rpcfut.Future()


@rpcfut.expose
def pass_on(to: str) -> Any:
    return rpcfut.rpc_sync(to, raise_keyword)


@rpcfut.expose
def call_what_is_not_there(to: str) -> Any:
    return rpcfut.rpc_sync(to, "no.such:thing")


# ---- what processes run: function(rank, world_size, rendezvous) -----------------


def see_errors(rank: int, count: int, rendezvous: str) -> Any:
    """Rank 0 has everything fail on w1, and prints what it saw."""
    rpcfut.init_rpc(f"w{rank}", rank, count, init_method=rendezvous)
    seen: dict[str, str] = {}
    if rank == 0:
        calls: dict[str, tuple[Any, ...]] = {
            "keyword": (raise_keyword,),
            "held": (raise_held,),
            "chain": (raise_chain,),
            "deep": (raise_deep,),
            "exit": (raise_async, "exit"),
            "interrupt": (raise_async, "interrupt"),
            "cancelled": (raise_async, "cancelled"),
            "out of memory": (raise_async, "memory"),
            "large": (raise_large, "own"),
            "key": (raise_builtin, "KeyError"),
            "nested timeout": (give_up, "w2", 0.05),
            "nested error": (pass_on, "w2"),
            "nested name": (call_what_is_not_there, "w2"),
        }
        for name, (function, *args) in calls.items():
            future = rpcfut.rpc_async("w1", function, args=args, timeout=30)
            error = future.exception()
            assert error is not None
            seen[name] = "".join(traceback.format_exception(error))
            assert rpcfut.rpc_sync("w1", add, args=(1,), timeout=30) == 2, name
    rpcfut.shutdown(timeout=20)
    return seen


def see_unknown_class(rank: int, count: int, rendezvous: str) -> Any:
    """Rank 1 has a class, and a registration, that rank 0 never heard of."""
    if rank == 1:
        only = type("OnlyError", (Exception,), {"__module__": "only_on_w1"})
        rpcfut.register_type(only, lambda e: e.args, lambda args: only(*args))

        def raise_only() -> NoReturn:
            raise only("text")

        rpcfut.expose(raise_only, name="raise_only")
    rpcfut.init_rpc(f"w{rank}", rank, count, init_method=rendezvous)
    text = ""
    if rank == 0:
        error = rpcfut.rpc_async("w1", "raise_only", timeout=30).exception()
        assert "only_on_w1" not in sys.modules
        text = f"{type(error).__name__}: {error}"
    rpcfut.shutdown(timeout=20)
    return text
