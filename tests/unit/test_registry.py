"""Registering types: loud about mistakes, quick to look up (EXT-2, EXT-5)."""

from __future__ import annotations

import re
import threading
from typing import TYPE_CHECKING

import pytest
import torch

from rpcfut._extract import extract
from rpcfut._registry import (
    TYPES,
    isolated_registry,
    no_device_data,
    register_builtin,
    register_extractor,
    register_type,
)
from tests.support.types import Colour, HidingList, Layer, Opaque, Point

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture(autouse=True)
def _isolated() -> Iterator[None]:
    with isolated_registry():
        yield


class SubOpaque(Opaque):
    pass


def test_an_extractor_is_one_line() -> None:
    tensor = torch.ones(3)

    @register_extractor(Opaque)
    def parts(value: Opaque) -> list[object]:
        return [value.a, value.b]

    refs = extract(Opaque(a=[tensor], b={"k": torch.ones(2)}))
    assert sorted(ref.nbytes for ref in refs) == [8, 12]
    assert parts.__name__ == "parts"


def test_an_extractor_may_be_given_directly() -> None:
    register_extractor(Opaque, lambda value: [value.a])
    assert len(extract(Opaque(a=torch.ones(1)))) == 1


def test_a_second_extractor_is_refused_with_the_place_of_the_first() -> None:
    no_device_data(Opaque)
    with pytest.raises(ValueError, match="second extractor for") as caught:
        register_extractor(Opaque, lambda value: [])
    text = str(caught.value)
    assert "tests.support.types.Opaque" in text
    assert re.search(r"test_registry\.py:\d+", text)
    assert "override=True" in text


def test_a_builtin_type_is_not_replaced_by_accident() -> None:
    with pytest.raises(ValueError, match="the first is from rpcfut itself"):
        no_device_data(torch.Tensor)


def test_override_replaces_an_extractor() -> None:
    no_device_data(Opaque)
    register_extractor(Opaque, lambda value: [value.a], override=True)
    assert len(extract(Opaque(a=torch.ones(1)))) == 1
    no_device_data(Opaque, override=True)
    assert extract(Opaque(a=torch.ones(1))) == []


@pytest.mark.parametrize(
    "register",
    [
        lambda kind: register_extractor(kind, lambda value: []),
        no_device_data,
        register_type,
    ],
)
@pytest.mark.parametrize("kind", ["Opaque", 3, Opaque()])
def test_what_is_no_class_cannot_be_registered(register, kind) -> None:
    with pytest.raises(TypeError, match="wants a class, got"):
        register(kind)


def test_an_extractor_that_is_no_function_is_refused() -> None:
    with pytest.raises(TypeError, match="wants a function"):
        register_extractor(Opaque, 3)  # type: ignore[call-overload]


def test_a_subclass_inherits_only_when_asked() -> None:
    no_device_data(Opaque)
    assert TYPES.snapshot.find_rule(SubOpaque) is None
    no_device_data(Opaque, override=True, subclasses=True)
    assert TYPES.snapshot.find_rule(SubOpaque) is not None


def test_a_later_registration_beats_what_was_derived() -> None:
    no_device_data(Opaque, subclasses=True)
    assert extract(SubOpaque(a=torch.ones(1))) == []
    register_extractor(SubOpaque, lambda value: [value.a])
    assert len(extract(SubOpaque(a=torch.ones(1)))) == 1


def test_a_later_registration_of_a_base_is_seen_too() -> None:
    no_device_data(Opaque, subclasses=True)
    assert extract(SubOpaque(a=torch.ones(1))) == []
    register_extractor(Opaque, lambda value: [value.a], override=True, subclasses=True)
    assert len(extract(SubOpaque(a=torch.ones(1)))) == 1


def test_isolation_ends_what_was_registered_inside() -> None:
    with isolated_registry():
        no_device_data(Opaque)
        assert TYPES.snapshot.find_rule(Opaque) is not None
    assert TYPES.snapshot.find_rule(Opaque) is None


def test_isolation_keeps_what_was_registered_before() -> None:
    no_device_data(Opaque)
    with isolated_registry():
        assert TYPES.snapshot.find_rule(Opaque) is not None


def test_one_function_of_two_is_refused() -> None:
    with pytest.raises(TypeError, match="unflatten is missing"):
        register_type(Opaque, lambda value: value.a)


def test_a_plain_class_needs_functions() -> None:
    with pytest.raises(TypeError, match=r"register_type\(Opaque, flatten, unflatten"):
        register_type(Opaque)


@pytest.mark.parametrize("kind", [int, list, dict, tuple, str, type(None)])
def test_the_format_of_native_types_is_fixed(kind) -> None:
    with pytest.raises(ValueError, match="cannot be replaced"):
        register_type(kind, tuple, tuple, override=True)


def test_two_types_with_one_wire_name_are_both_named() -> None:
    register_type(Layer, name="layer")
    with pytest.raises(ValueError, match="wire name 'layer'") as caught:
        register_type(Point, name="layer")
    assert "tests.support.types.Layer" in str(caught.value)
    assert "tests.support.types.Point" in str(caught.value)


def test_a_refused_registration_leaves_no_half() -> None:
    register_type(Layer, name="layer")
    with pytest.raises(ValueError, match="wire name"):
        register_type(Opaque, tuple, Opaque, name="layer")
    assert TYPES.snapshot.find_rule(Opaque) is None
    assert Opaque not in TYPES.snapshot.wire_by_type


def test_the_wire_name_of_a_spawned_main_is_the_parents() -> None:
    kind = type("Config", (Opaque,), {"__module__": "__mp_main__"})
    register_type(kind, tuple, kind)
    assert TYPES.snapshot.wire_by_type[kind].name == "__main__:Config"


def test_a_class_that_was_defined_again_replaces_the_old_one() -> None:
    first = type("Config", (Opaque,), {})
    second = type("Config", (Opaque,), {})
    register_type(first, tuple, first, name="config")
    register_type(second, tuple, second, name="config", override=True)
    assert TYPES.snapshot.wire_by_name["config"].kind is second
    assert first not in TYPES.snapshot.wire_by_type


def test_a_new_name_frees_the_old_one() -> None:
    register_type(Colour, name="old")
    register_type(Colour, name="new", override=True)
    assert "new" in TYPES.snapshot.wire_by_name
    assert "old" not in TYPES.snapshot.wire_by_name


def test_register_type_is_a_decorator_with_and_without_options() -> None:
    assert register_type(Point) is Point
    assert register_type(name="layer")(Layer) is Layer
    assert {"tests.support.types:Point", "layer"} <= set(TYPES.snapshot.wire_by_name)


def test_a_library_type_may_be_given_twice() -> None:
    register_builtin(HidingList)
    register_builtin(HidingList)
    assert extract(HidingList()) == []


def test_registrations_from_many_threads_are_all_kept() -> None:
    kinds = [type(f"Kind{n}", (), {}) for n in range(40)]
    threads = [threading.Thread(target=no_device_data, args=(kind,)) for kind in kinds]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(10)
    assert all(TYPES.snapshot.find_rule(kind) for kind in kinds)


def test_classes_made_in_a_loop_do_not_pile_up() -> None:
    snapshot = TYPES.snapshot
    for n in range(5000):
        snapshot.find_rule(type(f"Error{n}", (ValueError,), {}))
    assert len(snapshot.derived) <= 4096


def test_the_repr_counts_registrations() -> None:
    before = repr(TYPES)
    no_device_data(Opaque)
    assert repr(TYPES) != before
    assert re.fullmatch(r"<TypeRegistry \d+ extractors, \d+ wire formats>", before)
