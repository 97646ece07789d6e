"""The report of a run, as JSON."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from benchmarks._rows import Result


def to_json(machine: Mapping[str, object], results: Sequence[Result]) -> str:
    """Return the report; what could not be measured is null."""
    rows = [
        {
            "name": result.name,
            "unit": result.unit,
            "rpcfut": result.rpcfut,
            "peers": dict(result.peers),
            "goal": result.goal,
            "met": result.met,
        }
        for result in results
    ]
    return json.dumps({"machine": dict(machine), "rows": rows}, indent=2) + "\n"
