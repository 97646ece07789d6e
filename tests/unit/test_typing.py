"""What a type checker makes of the public names (B132)."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.mark.slow  # mypy reads torch; `.ci/run types` checks the same
@pytest.mark.timeout(300)
def test_b132_the_types_of_futures_go_through(tmp_path: Path) -> None:
    """Generic from end to end, and what is wrong is an error, under mypy --strict."""
    assert (ROOT / "rpcfut/py.typed").exists()
    command = [sys.executable, "-m", "mypy", "--cache-dir", str(tmp_path)]
    done = subprocess.run(
        [*command, "--config-file", "setup.cfg", "tests/typing"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=280,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
