"""The tables of mutants and faults keep up with the code: each patch applies, once."""

from __future__ import annotations

import pytest

from tests.faults import table
from tests.rules.mutants import MUTANTS


@pytest.mark.parametrize(
    "mutant", MUTANTS, ids=[f"{m.rule}: {m.what}" for m in MUTANTS]
)
def test_a_mutant_applies_exactly_once(mutant) -> None:
    assert mutant.applies()


def test_every_row_has_a_fault_and_every_fault_applies_exactly_once() -> None:
    assert table.mistakes() == []
