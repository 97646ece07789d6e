"""One fault of the kind that a row of the field reports tells of."""

from __future__ import annotations

import re
from dataclasses import dataclass

from tests.support.patching import KILLED, Patch, Report

FIELD_REPORTS = "tests/unit/test_field_reports.py"
# How a test says that something is wrong. What else a fault shows as, `shows` says.
NOTICED = r"AssertionError|assert |Failed: |TimeoutError|RaceError|UseAfterFreeError"


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault(Patch):
    """One patch that puts a fault in.

    Args:
        row: The row, as in the names of its tests: ``b33``.
        tests: Files with tests of the row; one of them at least must fail.
        shows: What the message of that failure must match.
        on: ``cpu``, or ``gpu`` when only a GPU can show it.
    """

    row: str
    tests: tuple[str, ...] = (FIELD_REPORTS,)
    shows: str = NOTICED
    on: str = "cpu"

    def verdict(self, report: Report) -> str:
        """Empty when the row's own tests noticed it, else why not."""
        own = failures_of(self.row, report)
        if not own:
            return "SURVIVED"
        by_themselves = [message for message in own if KILLED not in message]
        if not by_themselves:
            return "HUNG"
        if not any(re.search(self.shows, message) for message in by_themselves):
            return "FAILED OTHERWISE"
        return ""


def failures_of(row: str, report: Report) -> list[str]:
    """The messages of the row's tests that failed."""
    return [text for name, text in report.failed.items() if is_of(row, name)]


def is_of(row: str, test: str) -> bool:
    """Whether a test's name names the row: ``test_b1_x`` does not name ``b10``."""
    return re.search(rf"_{row}(?![0-9])", test) is not None
