"""What the processes of a system must offer, and the systems there are."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from benchmarks._probes import Probe


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """Where the two processes of a system meet.

    Args:
        folder: An empty folder of theirs.
        callee_pid: The callee's process id, told to the caller.
    """

    folder: Path
    callee_pid: int | None = None


class Callee(Protocol):
    """The process that is called. Serves on threads of its own until closed."""

    def close(self) -> None:
        """Stop serving. Main thread."""


class Caller(Protocol):
    """The process that calls. Used by its main thread only."""

    probes: Mapping[str, Probe]

    def close(self) -> None:
        """Leave the group."""


@dataclass(frozen=True, slots=True, kw_only=True)
class System:
    """A system by name.

    Args:
        name: As the experiments call it.
        module: Where its processes' parts are.
        has_callee: Whether it has a second process.
        is_stopped_between: Its idle threads poll, so that both processes are stopped by
            signal while others are sampled.
    """

    name: str
    module: str
    has_callee: bool = True
    is_stopped_between: bool = False


SYSTEMS = {
    system.name: system
    for system in (
        System(name="rpcfut", module="benchmarks._systems._rpcfut"),
        System(name="rpcfut_secret", module="benchmarks._systems._rpcfut_secret"),
        System(
            name="torch",
            module="benchmarks._systems._torch_rpc",
            is_stopped_between=True,  # TensorPipe's shared-memory reactor
        ),
        System(name="zmq", module="benchmarks._systems._raw_zmq"),
        System(name="floor", module="benchmarks.floor"),
        System(
            name="rpcfut_local",
            module="benchmarks._systems._rpcfut_local",
            has_callee=False,
        ),
        System(
            name="torch_local",
            module="benchmarks._systems._torch_local",
            has_callee=False,
        ),
    )
}
