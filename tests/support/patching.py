"""Patches of a few lines, put into a copy of the tree to see tests fail.

A test proves something once it was seen to fail without what it is about. The tables of
`tests.rules.mutants` and `tests.faults` keep that repeatable: what is taken out, and
whose tests must notice.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
import xml.etree.ElementTree as ET
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

ROOT = Path(__file__).parents[2]
# A test that pytest-timeout had to kill has noticed nothing by itself.
KILLED = "from pytest-timeout"
_RUN_LIMIT_S = 300
_OUTPUT_TAIL = 2000


class RunFailedError(Exception):
    """pytest itself came to no end, or to no report."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Patch:
    """One patch.

    Args:
        what: What is wrong, or missing, with the patch in.
        path: The file.
        old: What stands there, once.
        new: What replaces it.
    """

    what: str
    path: str
    old: str
    new: str

    def applies(self) -> bool:
        """Whether what it replaces stands in the tree, exactly once."""
        return (ROOT / self.path).read_text().count(self.old) == 1


@dataclass(frozen=True, slots=True)
class Report:
    """What a run of tests said."""

    ran: frozenset[str]  # the tests that were not skipped
    failed: dict[str, str]  # those that failed, and the error's message


@contextmanager
def copied_tree(patch: Patch | None = None) -> Iterator[Path]:
    """Copy what the tests need to a folder that is removed afterwards.

    Raises:
        LookupError: When the patch does not apply exactly once.
    """
    if patch is not None and not patch.applies():
        raise LookupError(f"{patch.path}: {patch.what!r} does not apply exactly once")
    with tempfile.TemporaryDirectory(prefix="rf-") as folder:
        target = Path(folder)
        for name in ("rpcfut", "transport", "tests"):
            shutil.copytree(ROOT / name, target / name)
        shutil.copy(ROOT / "setup.cfg", target)
        if patch is not None:
            file = target / patch.path
            file.write_text(file.read_text().replace(patch.old, patch.new))
        yield target


def run_tests(
    target: Path,
    tests: Sequence[str],
    keyword: str | None = None,
    *,
    max_failures: int = 0,
) -> Report:
    """Run the tests of a copied tree in a process of their own.

    Args:
        target: The tree.
        tests: Files, as pytest takes them.
        keyword: Which tests in these, as for pytest's ``-k``.
        max_failures: How many may fail before the rest is left out; 0 for all.

    Raises:
        RunFailedError: When they ran into the limit or the process crashed.
    """
    file = target / "report.xml"
    command = [sys.executable, "-m", "pytest", *tests, "-q", f"--junitxml={file}"]
    command += ["-p", "no:cacheprovider", "-p", "no:randomly"]
    command += ["-k", keyword] if keyword else []
    command += [f"--maxfail={max_failures}"]
    path = f"{target}:{target / 'transport'}:{os.environ.get('PYTHONPATH', '')}"
    try:
        done = subprocess.run(
            command,
            cwd=target,
            env={**os.environ, "PYTHONPATH": path},
            capture_output=True,
            text=True,
            timeout=_RUN_LIMIT_S,
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise RunFailedError(f"pytest did not end in {_RUN_LIMIT_S} s") from None
    if not file.exists():
        said = (done.stdout + done.stderr)[-_OUTPUT_TAIL:]
        raise RunFailedError(f"pytest ended with {done.returncode}, no report:\n{said}")
    return _read(file)


def _read(file: Path) -> Report:
    ran: set[str] = set()
    failed: dict[str, str] = {}
    for case in ET.parse(file).getroot().iter("testcase"):
        name = case.get("name", "?")
        if case.find("skipped") is None:
            ran.add(name)
        for kind in ("failure", "error"):
            for found in case.iter(kind):
                # What came first counts, not what was left behind because of it.
                failed.setdefault(name, found.get("message", ""))
    return Report(frozenset(ran), failed)
