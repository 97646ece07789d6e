"""Each short example runs, and prints what it is about."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
ENVIRONMENT = {
    **{k: v for k, v in os.environ.items() if k not in {"MASTER_ADDR", "RANK"}},
    "PYTHONPATH": f"{ROOT}:{ROOT / 'transport'}",
    "OMP_NUM_THREADS": "1",
}
# The example, what starts it, and what it prints, in that order.
EXAMPLES = {
    "async_await": ("awaited [8.0, 8.0]", "gathered [1.0, 2.0, 4.0, 8.0]"),
    "side_stream": ("4.0",),
    "custom_type": (
        "Cache [[0, 1], [0, 1, 2]]",
        "cannot tell which device memory '__main__.Forgotten' holds",
        "to fix:",
    ),
    "cancel": ("some steps: True", "here it is cancelled", "async def was cancelled"),
    "errors": (
        "ZeroDivisionError: float division by zero",
        "RemoteError: __main__.OutOfTokensError",
        "RpcTimeoutError:",
        "go on: 0.0",
    ),
}


def run(*command: str) -> str:
    """Run Python to its end, and return what it printed; it must not complain."""
    done = subprocess.run(
        [sys.executable, *command],
        env=ENVIRONMENT,
        cwd="/",
        capture_output=True,
        text=True,
        timeout=80,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.timeout(90)
@pytest.mark.parametrize("name", EXAMPLES)
def test_an_example_prints_what_it_is_about(name: str) -> None:
    printed = run(str(ROOT / f"examples/{name}.py"))
    rest = printed
    for text in EXAMPLES[name]:
        assert text in rest, printed
        rest = rest.split(text, 1)[1]


@pytest.mark.timeout(90)
def test_one_call_reaches_all_workers(tmp_path: Path) -> None:
    printed = run(
        *("-m", "torch.distributed.run", "--nproc-per-node=4", "--standalone"),
        f"--log-dir={tmp_path}",
        str(ROOT / "examples/fan_out.py"),
    )
    lines = printed.splitlines()
    assert sorted(lines[:3]) == ["worker1 5.0", "worker2 10.0", "worker3 15.0"]
    assert lines[3:] == ["best: worker3 15.0"]


@pytest.mark.timeout(90)
def test_torchrun_tells_workers_who_they_are(tmp_path: Path) -> None:
    printed = run(
        *("-m", "torch.distributed.run", "--nproc-per-node=2", "--standalone"),
        f"--log-dir={tmp_path}",
        str(ROOT / "examples/torchrun.py"),
    )
    assert sorted(printed.splitlines()) == [
        "worker0 of 2 asked worker1: 2.0",
        "worker1 of 2 asked worker0: 4.0",
    ]


@pytest.mark.timeout(90)
def test_workers_that_torchrun_starts_again_meet_anew(tmp_path: Path) -> None:
    """The store is the same, and what the first ones left there is not in the way."""
    script = tmp_path / "crash_once.py"
    script.write_text(
        "import os, rpcfut\n"
        "rpcfut.init_rpc('w' + os.environ['RANK'])\n"
        "attempt = os.environ['TORCHELASTIC_RESTART_COUNT']\n"
        "if attempt == '0':\n"
        "    os._exit(int(os.environ['RANK']))\n"
        "print('met in attempt', attempt, len(rpcfut.get_worker_infos()), flush=True)\n"
        "rpcfut.shutdown()\n"
    )
    printed = run(
        *("-m", "torch.distributed.run", "--nproc-per-node=2", "--standalone"),
        *("--max-restarts=1", "--monitor-interval=0.1", f"--log-dir={tmp_path}"),
        str(script),
    )
    assert printed.splitlines() == ["met in attempt 1 2"] * 2


def test_every_example_is_tested() -> None:
    found = {path.stem for path in (ROOT / "examples").glob("*.py")}
    assert found == {*EXAMPLES, "fan_out", "first_call", "quickstart", "torchrun"}
