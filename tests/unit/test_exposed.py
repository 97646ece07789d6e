"""Which functions a peer may call, and by which name (RPC-10)."""

from __future__ import annotations

import functools
import operator
import types
from typing import Any

import pytest

from rpcfut import FunctionRefusedError, NotExposedError
from rpcfut._exposed import ExposedTable, function_path


def top_level(x: int) -> int:
    """Something a peer may call."""
    return x + 1


def _traced(function: Any) -> Any:
    @functools.wraps(function)
    def traced(*args: Any) -> Any:
        return function(*args)

    return traced


class Counter:
    """Something with a method."""

    def __init__(self) -> None:
        self.count = 0

    def add(self, n: int) -> int:
        self.count += n
        return self.count

    @staticmethod
    def double(n: int) -> int:
        return 2 * n


class Unhashable:
    """Callable, but no key of a dict."""

    __hash__ = None  # type: ignore[assignment]

    def __call__(self) -> int:
        return 5


PATH = f"{__name__}:top_level"


def test_an_exposed_function_is_found_by_its_path() -> None:
    """Both sides agree on ``module:qualname``."""
    table = ExposedTable()
    assert table.expose(top_level) is top_level
    assert table.name_of(top_level) == PATH
    assert table.find(PATH, "w").function is top_level
    assert repr(table) == f"<ExposedTable [{PATH!r}]>"


def test_expose_is_a_decorator_with_and_without_arguments() -> None:
    """The function itself comes back."""
    table = ExposedTable()
    assert table.expose(name="plus_one")(top_level) is top_level
    assert table.name_of(top_level) == "plus_one"
    assert table.find("plus_one", "w").function is top_level
    with pytest.raises(NotExposedError):
        table.find(PATH, "w")


def test_a_name_given_as_text_is_taken_as_it_is() -> None:
    """The caller need not have the function at all."""
    assert ExposedTable().name_of("worker:step") == "worker:step"


def test_a_static_method_has_a_path() -> None:
    """It lies at the top level of a class, where the other side finds it, too."""
    assert function_path(Counter.double) == f"{__name__}:Counter.double"


def _local() -> Any:
    def inner() -> None:
        pass

    return inner


@pytest.mark.parametrize(
    ("function", "text"),
    [
        (lambda: 0, "cannot call a lambda"),
        (_local(), "move it to the top level of"),
        (Counter().add, "cannot call the bound method Counter.add"),
        (functools.partial(top_level, 1), "it has no module and name"),
        (Counter, None),
        (Unhashable(), "it has no module and name"),
        ([].append, "it has no module and name"),
        (3, "not a function: 3"),
    ],
    ids=[
        "lambda",
        "local",
        "bound",
        "partial",
        "class",
        "object",
        "builtin-bound",
        "number",
    ],
)
def test_what_no_process_could_find_is_refused(function: Any, text: str | None) -> None:
    """On both sides, with the way out, and nothing is exposed by halves."""
    table = ExposedTable()
    if text is None:
        assert table.name_of(function) == f"{__name__}:Counter"
        return
    for refuse in (table.expose, table.name_of):
        with pytest.raises(FunctionRefusedError, match=text):
            refuse(function)
    assert repr(table) == "<ExposedTable []>"


@pytest.mark.parametrize(
    "function",
    [lambda: 5, functools.partial(operator.add, 2, 3), Unhashable(), _local()],
    ids=["lambda", "partial", "unhashable", "local"],
)
def test_with_a_name_any_callable_may_be_exposed(function: Any) -> None:
    """`name=` is the path that it lacks."""
    table = ExposedTable()
    table.expose(function, name="five")
    table.expose(function, name="five")
    assert table.find("five", "w").function is function


def test_a_bound_method_may_be_exposed_by_name_and_again() -> None:
    """Each access makes a new method object; it is the same method."""
    table, counter = ExposedTable(), Counter()
    table.expose(counter.add, name="add")
    table.expose(counter.add, name="add")
    with pytest.raises(ValueError, match="exposed already"):
        table.expose(Counter().add, name="add")
    assert table.find("add", "w").function(2) == counter.count == 2


def _adder(n: int) -> Any:
    def add(x: int) -> int:
        return x + n

    return add


def test_another_function_of_the_same_name_is_refused() -> None:
    """Or a peer would call the one and get the other."""
    table = ExposedTable()
    table.expose(top_level, name="f")
    with pytest.raises(ValueError, match=r"exposed already, .* pass name="):
        table.expose(operator.add, name="f")
    assert table.find("f", "w").function is top_level


def test_two_closures_of_one_code_are_two_functions() -> None:
    """They add different numbers, so the second one is refused."""
    table = ExposedTable()
    one = table.expose(_adder(1), name="add")
    with pytest.raises(ValueError, match="exposed already"):
        table.expose(_adder(2), name="add")
    assert table.find("add", "w").function is one


_MODULE = """
def step(x):
    return x + 1

def other(x):
    return x - 1
"""


def _load(name: str, text: str = _MODULE) -> types.ModuleType:
    module = types.ModuleType(name)
    exec(compile(text, "a_module.py", "exec"), vars(module))
    return module


def test_a_module_that_is_run_twice_exposes_the_newer_function() -> None:
    """A notebook's cell or a reload; with a decorator as well."""
    table = ExposedTable()
    first, second = _load("a_module"), _load("a_module")
    table.expose(first.step)
    table.expose(second.step)
    assert table.find("a_module:step", "w").function is second.step
    table.expose(_traced(first.other))
    again = table.expose(_traced(second.other))
    assert table.find("a_module:other", "w").function is again


def test_a_function_that_is_defined_again_replaces_the_old_one() -> None:
    """A changed cell of a notebook, run again: its path now means the new function."""
    table = ExposedTable()
    table.expose(_load("a_module").step)
    changed = _load("a_module", _MODULE.replace("x + 1", "x + 2")).step
    table.expose(changed)
    assert table.find("a_module:step", "w").function is changed


def test_the_main_module_of_a_spawned_child_is_the_parents() -> None:
    """multiprocessing runs it again under the name ``__mp_main__``."""
    table = ExposedTable()
    table.expose(_load("__mp_main__").step)
    assert table.name_of(_load("__main__").step) == "__main__:step"
    assert table.find("__main__:step", "w").function(1) == 2


def test_what_is_not_exposed_is_refused_with_the_line_to_add() -> None:
    """Being importable is not enough, not even with the right path."""
    table = ExposedTable()
    with pytest.raises(NotExposedError) as caught:
        table.find(PATH, "server")
    text = str(caught.value)
    assert "on worker 'server'" in text
    assert f"add @rpcfut.expose above `def top_level` in {__name__}" in text


def test_a_module_that_is_not_imported_there_is_named() -> None:
    """The commonest reason: the callee's script never imported it. It is not now."""
    with pytest.raises(NotExposedError, match="add `import no_such_module`"):
        ExposedTable().find("no_such_module:f", "server")


@pytest.mark.parametrize("name", ["", "f", "os:system", "\n" * 3, "a" * 10_000, "::"])
def test_hostile_names_get_a_short_refusal(name: str) -> None:
    """Nothing is looked up by attribute, and the message stays small."""
    with pytest.raises(NotExposedError) as caught:
        ExposedTable().find(name, "server")
    assert len(str(caught.value)) < 1000
