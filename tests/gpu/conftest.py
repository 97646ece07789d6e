"""Tests that need a CUDA device."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
import torch

from rpcfut._devices import Device
from rpcfut._pool import around_tasks
from rpcfut._streams import seam_of

if TYPE_CHECKING:
    from collections.abc import Iterator

_HERE = Path(__file__).parent


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark what says nothing else as needing one device."""
    for item in items:
        if item.path.is_relative_to(_HERE) and not item.get_closest_marker("gpu"):
            item.add_marker(pytest.mark.gpu(n=1))


@pytest.fixture(scope="session", autouse=True)
def _cuda_started() -> None:
    """Start CUDA before any test, so that none is blamed for what the driver opens.

    Only the first device gets a context: tests count those of the others.
    """
    if torch.cuda.is_available():
        torch.empty(1, device="cuda:0")


@pytest.fixture(autouse=True)
def _sanitized(request: pytest.FixtureRequest) -> Iterator[None]:
    """With RPCFUT_SANITIZE=1, run under torch's CUDA sanitizer, on every thread.

    Its mode is per thread: on the main thread alone it sees no callback.
    """
    is_racy = request.node.get_closest_marker("racy") is not None
    if os.environ.get("RPCFUT_SANITIZE") != "1" or is_racy:
        yield
        return
    from torch.cuda import _sanitizer  # importing it starts the tracing

    mode = _sanitizer.cuda_sanitizer.dispatch
    with (
        pytest.MonkeyPatch.context() as patch,
        mode,
        around_tasks(lambda: mode),
    ):
        patch.setattr(seam_of(Device("cuda", 0)), "skips_idle_streams", False)
        yield
