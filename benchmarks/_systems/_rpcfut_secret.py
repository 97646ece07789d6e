"""rpcfut with a job secret: workers prove who they are, and other hosts could join."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from benchmarks._systems import _rpcfut

if TYPE_CHECKING:
    from benchmarks._systems._system import Place

_SECRET = "of-the-benchmarks-" + "0" * 32  # guards nothing


def open_callee(place: Place) -> _rpcfut.RpcfutCallee:
    """Join the group."""
    os.environ["RPCFUT_SECRET"] = _SECRET
    return _rpcfut.open_callee(place)


def open_caller(place: Place) -> _rpcfut.RpcfutCaller:
    """Join the group, and make the first call."""
    os.environ["RPCFUT_SECRET"] = _SECRET
    return _rpcfut.open_caller(place)
