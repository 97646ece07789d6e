"""The transport needs no torch, so it can be tested where torch is not installed."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
VERSIONS = ("3.11", "3.12", "3.13", "3.14")
NEEDS = ("pyzmq>=27", "msgpack>=1.2.3", "pytest>=9", "hypothesis>=6.150")
TESTS = ("tests/unit/transport", "tests/conformance")
INSTALL_TIMEOUT_S = 240
TESTS_TIMEOUT_S = 240
THIS = f"{sys.version_info.major}.{sys.version_info.minor}"


def find_python(version: str) -> str | None:
    """An interpreter of a version, on the path or among those of pyenv, that starts."""
    pyenv = Path(os.environ.get("PYENV_ROOT", "~/.pyenv")).expanduser() / "versions"
    found = [shutil.which(f"python{version}"), *pyenv.glob(f"{version}.*/bin/python")]
    for python in filter(None, found):
        # pyenv puts commands on the path also for versions that are switched off.
        asked = subprocess.run(
            [python, "-c", "import sys; print('%d.%d' % sys.version_info[:2])"],
            capture_output=True,
            text=True,
            timeout=20,
            check=False,
        )
        if asked.stdout.strip() == version:
            return str(python)
    return None


def make_environment(python: str, folder: Path) -> Path:
    """A virtual environment with what the transport's tests need, without torch."""
    made = subprocess.run(
        [python, "-m", "venv", folder],
        capture_output=True,
        text=True,
        timeout=INSTALL_TIMEOUT_S,
        check=False,
    )
    if made.returncode != 0:
        pytest.skip(f"{python} -m venv failed: {(made.stdout + made.stderr)[-500:]}")
    own = folder / "bin" / "python"
    installed = subprocess.run(
        [own, "-m", "pip", "install", "-q", "--disable-pip-version-check", *NEEDS],
        capture_output=True,
        text=True,
        timeout=INSTALL_TIMEOUT_S,
        check=False,
    )
    if installed.returncode != 0:
        pytest.skip(f"pip could not install {NEEDS}: {installed.stderr[-500:]}")
    return own


@pytest.mark.slow
@pytest.mark.timeout(INSTALL_TIMEOUT_S * 2 + TESTS_TIMEOUT_S)
@pytest.mark.parametrize("version", [v for v in VERSIONS if v != THIS])
def test_the_transport_works_under_other_pythons(version: str, tmp_path: Path) -> None:
    """Its own tests and those of its links, under an interpreter without torch."""
    python = find_python(version)
    if python is None:
        pytest.skip(f"no Python {version} on the path or under ~/.pyenv/versions")
    own = make_environment(python, tmp_path / "environment")
    command = [own, "-m", "pytest", "-q", "-p", "no:cacheprovider", *TESTS]
    command += [f"--basetemp={tmp_path / 'base'}", "-m", "not slow and not gpu"]
    environment = {**os.environ, "PYTHONDONTWRITEBYTECODE": "1"}
    environment.pop("PYTHONPATH", None)  # may lead to packages of another version
    done = subprocess.run(
        command,
        cwd=ROOT,
        env=environment,
        capture_output=True,
        text=True,
        timeout=TESTS_TIMEOUT_S,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-1000:]
    assert re.search(r"\d+ passed", done.stdout), done.stdout[-500:]
