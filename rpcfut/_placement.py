"""On which device an array of another worker arrives (RPC-12).

A pair of workers has one correspondence of devices, used in both directions, for
arguments as for results: what either of them declared, and else the same index. Every
worker publishes what it has and what it declared, so each checks all pairs before the
group comes together.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final, Literal, TypeAlias

from rpcfut._devices import CPU, Device, parse_device
from rpcfut._errors import DecodeError, RendezvousError
from rpcfut._streams import device_counts

if TYPE_CHECKING:
    from collections.abc import Iterable

    import torch

    from rpcfut_transport import PeerRecord

Policy: TypeAlias = Literal["error", "cpu"]
DeviceMap: TypeAlias = "Mapping[str | int | torch.device, str | int | torch.device]"
_Pairs: TypeAlias = dict[Device, Device]

_POLICIES: Final = ("error", "cpu")


class Placement:
    """Where arrays of the peers of one worker arrive. Does not change once met.

    Args:
        worker: Name of this worker.
        policy: What to do with an array whose device this worker does not have:
            ``"error"``, or ``"cpu"`` to keep it on the host.
        maps: For each peer, which of its devices each of this worker's is.
        counts: How many devices of each type this worker has.

    Raises:
        TypeError: When a map is none.
        ValueError: When the policy is none, or a map names the host, a device without
            an index, or one device of a peer twice.
    """

    def __init__(
        self,
        worker: str,
        policy: Policy = "error",
        maps: Mapping[str, DeviceMap] | None = None,
        counts: Mapping[str, int] | None = None,
    ) -> None:
        if policy not in _POLICIES:
            raise ValueError(f"placement must be one of {_POLICIES}, got {policy!r}")
        self._worker = worker
        self._policy = policy
        self._maps = {peer: _parse_map(peer, m) for peer, m in (maps or {}).items()}
        self._counts = dict(counts if counts is not None else device_counts())
        self._arrivals: dict[int, _Pairs] = {}

    def __repr__(self) -> str:
        return f"<Placement {self._policy!r} of {self._worker!r}: {self._maps}>"

    def describe(self) -> str:
        """What other workers must know; they read it with `meet`."""
        maps = {
            peer: [[str(mine), str(its)] for mine, its in pairs.items()]
            for peer, pairs in self._maps.items()
        }
        return json.dumps({"counts": self._counts, "maps": maps})

    def meet(self, records: Iterable[PeerRecord], *, all_are_here: bool = True) -> None:
        """Take note of the workers of the group.

        Args:
            records: All that are members.
            all_are_here: Whether no others will join.

        Raises:
            RendezvousError: When a map names a worker or a device that does not exist,
                or two workers declared different things about each other; names both.
        """
        counts: dict[str, Mapping[str, int]] = {}
        maps: dict[str, dict[str, _Pairs]] = {}
        ranks = {}
        for record in records:
            ranks[record.name] = record.rank
            counts[record.name], maps[record.name] = _read(record)
        for one, declared in maps.items():
            for other, pairs in declared.items():
                if all_are_here or other in counts:
                    _check(one, other, pairs, counts, maps)
        for peer, rank in ranks.items():
            theirs = maps[peer].get(self._worker, {})
            mine = _invert(maps[self._worker].get(peer, {}))
            self._arrivals[rank] = {**theirs, **mine}

    def locate(self, rank: int, device: Device) -> Device | None:
        """Where an array arrives that lay on `device` of the worker of a rank.

        Returns:
            The device here; None to keep it on the host.

        Raises:
            DecodeError: When this worker has no such device, and may not keep it.
        """
        here = self._arrivals.get(rank, {}).get(device, device)
        count = self._counts.get(here.type, 0)
        if here.index < count:
            return here
        if self._policy == "cpu" and here.type == "cuda":
            return None
        raise DecodeError(
            f"an array of {device} of rank {rank} arrives on {here} of worker "
            f"{self._worker!r}, which has {count} {here.type} devices "
            f"(placement={self._policy!r}): send it from host memory (tensor.cpu()), "
            f"or have {self._worker!r} call init_rpc(..., placement='cpu'), or give "
            "device_maps= that name a device which it has"
        )


def _parse_map(peer: str, pairs: DeviceMap) -> _Pairs:
    if not isinstance(pairs, Mapping):
        raise TypeError(
            f"device_maps[{peer!r}] must map devices to devices, got {pairs!r}"
        )
    parsed = {parse_device(mine): parse_device(its) for mine, its in pairs.items()}
    if CPU in parsed or CPU in parsed.values():
        raise ValueError(
            f"device_maps[{peer!r}] maps the host; move the tensor with .to() instead"
        )
    if len({*parsed.values()}) < len(parsed):
        raise ValueError(
            f"device_maps[{peer!r}] maps two devices to one of {peer!r}, so answers "
            f"could not find their way back: {_show(parsed)}"
        )
    return parsed


def _read(record: PeerRecord) -> tuple[Mapping[str, int], dict[str, _Pairs]]:
    """Read what a worker says of itself; anyone may have written it."""
    try:
        fields: Any = json.loads(record.details)
        counts = {str(kind): int(count) for kind, count in fields["counts"].items()}
        maps = {
            str(peer): _parse_map(peer, {str(a): str(b) for a, b in pairs})
            for peer, pairs in fields["maps"].items()
        }
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise RendezvousError(
            f"the devices in the record of worker {record.name!r} are malformed: "
            f"{record.details[:200]!r}"
        ) from error
    return counts, maps


def _check(
    one: str,
    other: str,
    pairs: _Pairs,
    counts: Mapping[str, Mapping[str, int]],
    maps: Mapping[str, Mapping[str, _Pairs]],
) -> None:
    """Check what one worker declared about another."""
    said = f"device_maps of worker {one!r} for {other!r} ({_show(pairs)})"
    if other not in counts:
        raise RendezvousError(f"{said}: there is no such worker in the group")
    for mine, its in pairs.items():
        for worker, device in ((one, mine), (other, its)):
            count = counts[worker].get(device.type, 0)
            if device.index >= count:
                raise RendezvousError(
                    f"{said}: worker {worker!r} has no {device}, it has {count} "
                    f"{device.type} devices"
                )
    back = maps[other].get(one, {})
    for mine, its in pairs.items():
        if back.get(its, mine) != mine or _invert(back).get(mine, its) != its:
            raise RendezvousError(
                f"{said} contradicts that of {other!r} for {one!r} ({_show(back)}): "
                "one must be the inverse of the other, and one of them is enough"
            )


def _invert(pairs: _Pairs) -> _Pairs:
    return {its: mine for mine, its in pairs.items()}


def _show(pairs: _Pairs) -> str:
    return ", ".join(f"{mine} is {its}" for mine, its in pairs.items())
