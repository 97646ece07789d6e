"""The machine and the versions that a run was made with."""

from __future__ import annotations

import datetime as dt
import os
import platform
import subprocess
from importlib import metadata
from pathlib import Path

import zmq

_ROOT = Path(__file__).resolve().parent.parent


def describe() -> dict[str, object]:
    """Return the facts that a reader needs to judge the numbers."""
    return {
        "date": dt.datetime.now(dt.UTC).isoformat(timespec="seconds"),
        "commit": _commit(),
        "nproc": len(os.sched_getaffinity(0)),
        "cpu": _cpu_model(),
        "gpus": _gpus(),
        "loadavg": list(os.getloadavg()),
        "kernel": platform.release(),
        "python": platform.python_version(),
        "torch": _version("torch"),
        "pyzmq": _version("pyzmq"),
        "libzmq": zmq.zmq_version(),
        "msgpack": _version("msgpack"),
    }


def _version(distribution: str) -> str | None:
    try:
        return metadata.version(distribution)
    except metadata.PackageNotFoundError:
        return None


def _cpu_model() -> str | None:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return None
    models = [line.partition(":")[2] for line in lines if line.startswith("model name")]
    return models[0].strip() if models else None


def _commit() -> str | None:
    commit = _output("git", "-C", str(_ROOT), "rev-parse", "HEAD")
    if commit is None:
        return None
    changed = _output("git", "-C", str(_ROOT), "status", "--porcelain", "-uno")
    return f"{commit} and changes" if changed else commit


def _gpus() -> list[str]:
    names = _output("nvidia-smi", "--query-gpu=name", "--format=csv,noheader")
    return names.splitlines() if names else []


def _output(*command: str) -> str | None:
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=10, check=True
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout.strip()
