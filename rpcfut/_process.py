"""What this process has: one agent at most, and the functions that it exposes."""

from __future__ import annotations

import threading
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from rpcfut._errors import LifecycleError
from rpcfut._exposed import ExposedTable

if TYPE_CHECKING:
    from rpcfut._agent import Agent


@dataclass(slots=True)
class Process:
    """What this process has: one agent at most, and what it exposes."""

    exposed: ExposedTable = field(default_factory=ExposedTable)
    agent: Agent | None = None
    is_joining: bool = False


lock = threading.Lock()
_process = Process()


def this_process() -> Process:
    """What this process has. Who changes it holds `lock`."""
    return _process


def current_agent() -> Agent:
    """The agent that init_rpc made.

    Raises:
        LifecycleError: Before init_rpc and after shutdown.
    """
    agent = _process.agent
    if agent is None:
        raise LifecycleError(
            "this process belongs to no group: call rpcfut.init_rpc(name, rank, "
            "world_size) before calling workers, and rpcfut.shutdown() after the last "
            "call"
        )
    return agent
