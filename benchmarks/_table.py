"""The report of a run, for people."""

from __future__ import annotations

import importlib.util
import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from benchmarks._rows import Result

_HEAD = ("row", "rpcfut", "unit", "peers (ratio)", "goal", "met")
_MET = {True: "yes", False: "NO", None: "-"}


def cells(result: Result) -> tuple[str, ...]:
    """Return the row's cells, in the order of the head."""
    peers = ", ".join(
        f"{name} {_number(value)}{_ratio(result.rpcfut, value)}"
        for name, value in result.peers.items()
    )
    return (
        result.name,
        _number(result.rpcfut),
        result.unit,
        peers,
        result.goal,
        _MET[result.met],
    )


def notes(results: Sequence[Result]) -> list[str]:
    """Return a line for each reason why something could not be measured."""
    rows: dict[tuple[str, str], list[str]] = {}
    for result in results:
        for name, reason in result.notes.items():
            rows.setdefault((name, reason), []).append(result.name)
    return [
        f"n/a: {name}: {reason} [{', '.join(names)}]"
        for (name, reason), names in rows.items()
    ]


def as_text(machine: Mapping[str, object], results: Sequence[Result]) -> str:
    """Return the whole report as plain text."""
    lines = [_HEAD, *(cells(result) for result in results)]
    widths = [max(len(line[i]) for line in lines) for i in range(len(_HEAD))]
    lines.insert(1, tuple("-" * width for width in widths))
    table = [
        "  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True))
        for line in lines
    ]
    parts = [*_machine_lines(machine), "", *table, "", *notes(results)]
    return "\n".join(part.rstrip() for part in parts).rstrip() + "\n"


def show(machine: Mapping[str, object], results: Sequence[Result]) -> None:
    """Print the report; with rich, if it is installed, on a terminal."""
    if sys.stdout.isatty() and importlib.util.find_spec("rich") is not None:
        _show_rich(machine, results)
    else:
        sys.stdout.write(as_text(machine, results))


def _show_rich(machine: Mapping[str, object], results: Sequence[Result]) -> None:
    from rich.console import Console  # noqa: PLC0415 - an optional extra
    from rich.table import Table  # noqa: PLC0415 - as above

    console = Console(highlight=False, markup=False)
    table = Table(*_HEAD)
    styles = {True: "green", False: "red", None: None}
    for result in results:
        table.add_row(*cells(result), style=styles[result.met])
    for line in _machine_lines(machine):
        console.print(line)
    console.print(table)
    for line in notes(results):
        console.print(line)


def _machine_lines(machine: Mapping[str, object]) -> list[str]:
    return [f"{name}: {value}" for name, value in machine.items()]


def _number(value: float | None) -> str:
    if value is None:
        return "n/a"
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.3g}"


def _ratio(own: float | None, peer: float | None) -> str:
    if own is None or not peer:
        return ""
    return f" ({own / peer:.2f}x)"
