"""Faults of the kinds that users met elsewhere, put in one at a time.

``python -m tests.faults [--only b33 b34] [--gpu]`` puts each fault into a copy of the
tree, runs the tests of its row and prints a table. A fault is caught when a test of its
row fails by itself: by an assertion, or a bounded wait of its own that ran out; a test
that hangs until it is killed catches nothing. It fails if a fault is not caught, if a
row has none, or if a test fails without any.
"""

from __future__ import annotations

import argparse
import sys
from typing import TYPE_CHECKING

from tests.faults.fault import failures_of, is_of
from tests.faults.table import FAULTS, ROWS, mistakes
from tests.support.patching import RunFailedError, copied_tree, run_tests

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tests.faults.fault import Fault


def check_clean(faults: Sequence[Fault]) -> None:
    """Exit if the rows' tests fail, or do not run, before any fault is in."""
    files = sorted({file for fault in faults for file in fault.tests})
    rows = {fault.row for fault in faults}
    with copied_tree() as tree:
        report = run_tests(tree, files, " or ".join(f"_{row}" for row in rows))
    failed = [name for name in report.failed if any(is_of(row, name) for row in rows)]
    if failed:
        sys.exit(f"without a fault these fail already: {sorted(failed)}")
    silent = [row for row in rows if not any(is_of(row, name) for name in report.ran)]
    if silent:
        sys.exit(f"no test ran for these rows: {sorted(silent)}")


def try_fault(fault: Fault) -> tuple[str, str]:
    """Put a fault in and run its row's tests; the verdict, and what they said."""
    try:
        with copied_tree(fault) as tree:
            report = run_tests(tree, fault.tests, f"_{fault.row}")
    except RunFailedError as error:
        return "NO REPORT", str(error)
    said = failures_of(fault.row, report)
    return fault.verdict(report), said[0].splitlines()[0] if said else ""


def main() -> None:
    """Try all faults and print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", nargs="+", metavar="ROW", help="rows, as in b33")
    parser.add_argument("--gpu", action="store_true", help="those that need a GPU")
    options = parser.parse_args()
    unknown = set(options.only or ()) - set(ROWS)
    wrong = [*mistakes(), *(f"{row} is no row" for row in sorted(unknown))]
    if wrong:
        sys.exit("\n".join(wrong))
    place = "gpu" if options.gpu else "cpu"
    wanted = set(options.only or ROWS)
    faults = [f for f in FAULTS if f.on == place and f.row in wanted]
    if not faults:
        sys.exit(f"none of these rows has a fault for a {place}")
    check_clean(faults)
    missed = 0
    for fault in faults:
        verdict, said = try_fault(fault)
        missed += bool(verdict)
        print(f"{fault.row:5} {verdict or 'ok':9} {fault.what}", flush=True)
        print(f"{'':15} {said[:100]}", flush=True)
    sys.exit(f"{missed} of {len(faults)} faults were not caught" if missed else 0)


if __name__ == "__main__":
    main()
