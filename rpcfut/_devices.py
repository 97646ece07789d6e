"""Names of devices.

A device is a type and an index, always both: ``cuda`` alone would mean whatever is
current when someone looks, which is how values end up on the wrong GPU (STR-7).
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterable

    import torch

_PATTERN = re.compile(r"([a-z]+):(\d+)")


class Device(NamedTuple):
    """One device: its type (``cpu``, ``cuda``, ``sim`` ...) and its index."""

    type: str
    index: int  # type: ignore[assignment]  # hides tuple.index, no loss here

    def __str__(self) -> str:
        return f"{self.type}:{self.index}"


CPU = Device("cpu", 0)


def parse_device(spec: str | int | torch.device | Device) -> Device:
    """Turn what users write into a `Device`.

    Args:
        spec: ``"cuda:1"``, ``1`` (a CUDA index), a ``torch.device`` with an index, or
            a `Device`. ``"cpu"`` needs no index: there is one host.

    Returns:
        The device.

    Raises:
        ValueError: When the index is missing or the text is no device.
    """
    if isinstance(spec, Device):
        return spec
    if isinstance(spec, int) and not isinstance(spec, bool) and spec >= 0:
        return Device("cuda", spec)
    text = str(spec)
    if text in {"cpu", "cpu:0"}:
        return CPU
    match = _PATTERN.fullmatch(text)
    if match is not None:
        return Device(match[1], int(match[2]))
    if re.fullmatch(r"[a-z]+", text):
        raise ValueError(
            f"device {text!r} has no index: write {text + ':0'!r} or another index"
        )
    raise ValueError(f"not a device: {spec!r}; write it as 'cuda:0', 0 or 'cpu'")


def parse_devices(
    specs: Iterable[str | int | torch.device | Device],
) -> frozenset[Device]:
    """Turn a list of what users write into devices.

    Raises:
        TypeError: When it is no list, but one device.
        ValueError: When one of them has no index or is no device.
    """
    if isinstance(specs, (str, int, Device)) or not hasattr(specs, "__iter__"):
        raise TypeError(f"devices= wants a list; write devices=[{str(specs)!r}]")
    return frozenset(map(parse_device, specs))
