"""How an agent behaves."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal, TypeAlias, get_args

from rpcfut._placement import DeviceMap, Placement, Policy
from rpcfut_transport import LOST_AFTER_S, QUEUE_NBYTES, Patience

if TYPE_CHECKING:
    from collections.abc import Mapping

WhenFull: TypeAlias = Literal["block", "fail"]


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentOptions:
    """How an agent behaves.

    Args:
        timeout_s: Deadline of calls that name none, in seconds; None for no deadline.
        max_threads: How many threads may serve calls, waiting ones included.
        core_threads: How many may run at a time, waiting ones not included.
        placement: What to do with an array whose device this worker does not have:
            ``"error"`` fails its call, ``"cpu"`` keeps it on the host.
        device_maps: For each peer, by name, which of its devices each of this worker's
            is, where it is not the one of the same index.
        queue_nbytes: How many bytes of calls may be on their way to a worker before
            they are started there, and how many of answers before they are read.
        when_full: What a call does that finds no room: ``"block"`` until there is some,
            ``"fail"`` with `QueueFullError`.
        lost_after_s: For how long a worker may be stopped or cut off before it counts
            as lost, in seconds, where it is not seen at once that its process ended.
    """

    timeout_s: float | None = None
    max_threads: int = 256
    core_threads: int = 16
    placement: Policy = "error"
    device_maps: Mapping[str, DeviceMap] = field(default_factory=dict)
    queue_nbytes: int = QUEUE_NBYTES
    when_full: WhenFull = "block"
    lost_after_s: float = LOST_AFTER_S

    def __post_init__(self) -> None:
        if self.timeout_s is not None and not (
            isinstance(self.timeout_s, (int, float))
            and not isinstance(self.timeout_s, bool)
            and self.timeout_s > 0
        ):
            raise ValueError(f"timeout_s must be positive, got {self.timeout_s!r}")
        if not (isinstance(self.max_threads, int) and self.max_threads >= 1):
            raise ValueError(f"max_threads must be 1 or more, got {self.max_threads!r}")
        if not (isinstance(self.core_threads, int) and self.core_threads >= 1):
            raise ValueError(
                f"core_threads must be 1 or more, got {self.core_threads!r}"
            )
        _check_queue(self.queue_nbytes, self.when_full)
        Placement("", self.placement, self.device_maps)  # raises if they are wrong
        Patience(lost_after_s=self.lost_after_s)  # the same


def _check_queue(queue_nbytes: object, when_full: object) -> None:
    is_number = isinstance(queue_nbytes, int) and not isinstance(queue_nbytes, bool)
    if not is_number or not queue_nbytes > 0:  # type: ignore[operator]
        raise ValueError(
            f"queue_nbytes must be a number of bytes from 1 on, got {queue_nbytes!r}"
        )
    if when_full not in get_args(WhenFull):
        raise ValueError(f'when_full must be "block" or "fail", got {when_full!r}')
