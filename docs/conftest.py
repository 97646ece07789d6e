"""Every Python block in the documentation is a test.

The blocks of a page share their names and run in the order of the page, after all
other tests, whatever order these are shuffled into. A block that cannot run here is
written as `text`, or stands below `<!-- skip: next if(condition, reason="...") -->`.
"""

from __future__ import annotations

import pytest
from sybil import Sybil
from sybil.integration.pytest import SybilItem
from sybil.parsers.markdown import (
    ClearNamespaceParser,
    PythonCodeBlockParser,
    SkipParser,
)

pytest_collect_file = Sybil(
    parsers=[PythonCodeBlockParser(), SkipParser(), ClearNamespaceParser()],
    patterns=["*.md"],
    excludes=["changes/*"],
).pytest()


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Put the blocks last, in the order of their pages."""
    blocks = [item for item in items if isinstance(item, SybilItem)]
    blocks.sort(key=lambda block: (block.path, block.example.start))
    items[:] = [item for item in items if not isinstance(item, SybilItem)] + blocks
