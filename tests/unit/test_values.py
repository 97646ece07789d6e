"""The table of what travels is right, whole, and on the page (EXT-4, RPC-9)."""

from __future__ import annotations

import pathlib
from typing import TYPE_CHECKING

import pytest
import torch

from rpcfut._codec import decode, encode
from rpcfut._errors import EncodeError, ExtractionError
from rpcfut._extract import extract
from rpcfut._known_types import KNOWN
from rpcfut._registry import isolated_registry, register_type
from tests.support.exact import difference
from tests.support.wire_table import PAGE, REFUSED, TRAVELS, Refused, Travels, written
from tests.unit.test_codec import no_place, no_stage

if TYPE_CHECKING:
    from collections.abc import Iterator

# Of another system, or of a GPU.
ELSEWHERE = {pathlib.WindowsPath, torch.Event, torch.Stream, torch.cuda.ExternalStream}
ELSEWHERE |= {torch.cuda.Stream, torch.cuda.Event}


@pytest.fixture(autouse=True)
def _isolated() -> Iterator[None]:
    with isolated_registry():
        yield


def trip(value: object) -> object:
    body, buffers = encode(value, stage=no_stage)
    received = [memoryview(bytearray(buffer)) for buffer in buffers]
    return decode(body, received, place=no_place)


@pytest.mark.parametrize("row", TRAVELS, ids=lambda row: row.kind)
def test_what_the_table_says_travels_arrives_as_it_was(row: Travels) -> None:
    for kind in row.register:
        register_type(kind)
    for value in row.make():
        assert difference(trip(value), value) is None
        assert (
            difference(trip({"k": (value, [value])}), {"k": (value, [value])}) is None
        )
        extract(value)


@pytest.mark.parametrize("row", REFUSED, ids=lambda row: row.kind)
def test_what_the_table_says_is_refused_is_refused_with_the_way_out(
    row: Refused,
) -> None:
    """With the path to it; here and in an extractor the type has one name."""
    if "registered object" in row.kind:
        for value in row.make():
            register_type(type(value))
    for value in row.make():
        with pytest.raises((EncodeError, ExtractionError)) as caught:
            encode({"a": [1, (value,)]}, stage=no_stage)
        assert row.text in str(caught.value)
        assert "value['a'][1][0]" in str(caught.value)
        if isinstance(caught.value, ExtractionError):
            with pytest.raises(ExtractionError) as here:
                extract({"a": [1, (value,)]})
            assert here.value.path == caught.value.path
            assert here.value.type_name == caught.value.type_name
            assert str(here.value).startswith(str(caught.value).split("  to fix:")[0])


def test_the_table_has_an_example_of_every_known_type() -> None:
    examples: set[type] = set()
    for row in (*TRAVELS, *REFUSED):
        examples.update(map(type, row.make()))
    known = {kind for row in KNOWN for kind in row.kinds}
    assert known - examples <= ELSEWHERE


def test_the_page_shows_the_table() -> None:
    page = PAGE.read_text()
    assert page == written(page), "run python -m tests.support.wire_table"
