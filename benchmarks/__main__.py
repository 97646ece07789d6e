"""``python -m benchmarks``, from the checkout root."""

from __future__ import annotations

import argparse
import importlib.util
import sys
from pathlib import Path

from benchmarks import _machine, _report, _rows, _run, _table


def main() -> None:
    """Run what the command line asks for."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="few samples, < 3 minutes")
    parser.add_argument(
        "--only", action="append", default=[], metavar="NAME", help="only this row"
    )
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the report")
    options = parser.parse_args()
    try:
        rows = _rows.pick(options.only)
    except ValueError as error:
        parser.error(str(error))
    if options.json is not None and not options.json.absolute().parent.is_dir():
        parser.error(f"--json {options.json}: no such folder")
    _find_transport()
    machine = _machine.describe()
    plan = _run.QUICK if options.quick else _run.FULL
    results = _run.run(rows, plan, lambda line: print(line, file=sys.stderr))
    if options.json is not None:
        options.json.write_text(_report.to_json(machine, results), encoding="utf-8")
    _table.show(machine, results)


def _find_transport() -> None:
    if importlib.util.find_spec("rpcfut_transport") is None:
        root = Path(__file__).resolve().parent.parent
        sys.path.insert(0, str(root / "transport"))


if __name__ == "__main__":
    main()
