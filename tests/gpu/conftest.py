"""Tests that need a CUDA device."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

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
