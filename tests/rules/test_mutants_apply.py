"""The table of mutants keeps up with the code: each patch applies, once."""

from __future__ import annotations

import pytest

from tests.rules.mutants import MUTANTS, ROOT


@pytest.mark.parametrize(
    "mutant", MUTANTS, ids=[f"{m.rule}: {m.what}" for m in MUTANTS]
)
def test_a_mutant_applies_exactly_once(mutant) -> None:
    assert (ROOT / mutant.path).read_text().count(mutant.old) == 1
