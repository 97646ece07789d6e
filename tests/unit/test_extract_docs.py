"""The page about extractors shows the tables that the code has (EXT-4)."""

from __future__ import annotations

from tests.support.extractor_table import PAGE, written


def test_the_page_shows_what_is_known_and_refused() -> None:
    page = PAGE.read_text()
    assert page == written(page), "run python -m tests.support.extractor_table"
