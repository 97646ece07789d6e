"""The tutorial's script is the example, and it runs under torchrun."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


def test_the_tutorial_shows_the_example_as_it_is() -> None:
    page = (ROOT / "docs/first-call.md").read_text()
    shown = re.search(r"```text\n(\"\"\"Two.*?)```", page, re.DOTALL)
    assert shown is not None
    assert shown[1] == (ROOT / "examples/first_call.py").read_text()


@pytest.mark.timeout(90)
def test_two_processes_under_torchrun_meet_and_call(tmp_path: Path) -> None:
    """RPC-1: env://, as torchrun sets it, with nothing configured."""
    run = subprocess.run(
        [
            sys.executable,
            "-m",
            "torch.distributed.run",
            "--nproc-per-node=2",
            "--master-port=0",
            "--standalone",
            f"--log-dir={tmp_path}",
            str(ROOT / "examples/first_call.py"),
        ],
        env={
            **os.environ,
            "PYTHONPATH": f"{ROOT}:{ROOT / 'transport'}",
            "OMP_NUM_THREADS": "1",
        },
        capture_output=True,
        text=True,
        timeout=80,
        check=False,
    )
    assert run.returncode == 0, run.stderr
    assert run.stdout == "6.0\n"
