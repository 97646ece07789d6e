"""The code keeps the shape that its rules give it."""

from __future__ import annotations

import ast
import configparser
import importlib
from importlib.metadata import PackageNotFoundError, files
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOT = Path(__file__).parents[2]
PACKAGES = {
    "rpcfut": ROOT / "rpcfut",
    "rpcfut_transport": ROOT / "transport/rpcfut_transport",
}
PRODUCT = sorted(path for folder in PACKAGES.values() for path in folder.rglob("*.py"))
EVERYTHING = sorted(
    path
    for folder in ("rpcfut", "transport", "tests", "benchmarks", "examples", "docs")
    for path in (ROOT / folder).rglob("*.py")
)
MAX_LINES = 420
UNFINISHED = tuple(a + b for a, b in (("TO", "DO"), ("FIX", "ME"), ("XX", "X")))
UNPICKLERS = {
    "pickle",
    "_pickle",
    "cPickle",
    "cloudpickle",
    "dill",
    "marshal",
    "shelve",
}


# Pickles to nowhere, to look into objects that nobody can take apart; see its head.
PICKLER = ROOT / "rpcfut/_pickler_walk.py"


def _relative(path: Path) -> str:
    return str(path.relative_to(ROOT))


def _dotted(path: Path) -> str:
    for name, folder in PACKAGES.items():
        if path.is_relative_to(folder):
            inner = path.relative_to(folder).with_suffix("").parts
            return ".".join((name, *(part for part in inner if part != "__init__")))
    raise AssertionError(path)


def _imported(path: Path) -> Iterator[str]:
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            yield node.module


def _public_packages() -> list[str]:
    return [
        _dotted(path)
        for path in PRODUCT
        if not any(part.startswith("_") for part in _dotted(path).split("."))
    ]


@pytest.mark.parametrize("path", PRODUCT, ids=_relative)
def test_a_module_is_short_enough_to_be_read(path: Path) -> None:
    """A module with one noun fits on a few screens."""
    count = len(path.read_text().splitlines())
    assert count <= MAX_LINES, "split it: one noun a module"


@pytest.mark.parametrize("path", EVERYTHING, ids=_relative)
def test_nothing_is_left_for_later(path: Path) -> None:
    """What is on main is finished."""
    found = [
        line
        for line in path.read_text().splitlines()
        if any(w in line for w in UNFINISHED)
    ]
    assert found == []


@pytest.mark.parametrize("path", PRODUCT, ids=_relative)
def test_nothing_can_unpickle(path: Path) -> None:
    """No message from a peer can reach code that builds arbitrary objects (RPC-10)."""
    found = UNPICKLERS & {name.split(".")[0] for name in _imported(path)}
    assert found == ({"pickle"} if path == PICKLER else set())


def test_the_module_that_pickles_takes_the_pickler_only() -> None:
    """Half of pickle is harmless; the other half stays out of reach (RPC-10)."""
    for node in ast.walk(ast.parse(PICKLER.read_text())):
        if isinstance(node, ast.Import):
            assert {alias.name for alias in node.names} == {"torch"}
        elif isinstance(node, ast.ImportFrom) and node.module == "pickle":
            assert [alias.name for alias in node.names] == ["Pickler"]


@pytest.mark.parametrize("path", EVERYTHING, ids=_relative)
def test_nobody_imports_the_folder_transport(path: Path) -> None:
    """From the checkout it would be a second copy of rpcfut_transport."""
    assert "transport" not in {name.split(".")[0] for name in _imported(path)}


def test_the_folder_transport_is_no_package() -> None:
    """Only what lies below it is installed."""
    assert not (ROOT / "transport/__init__.py").exists()
    try:
        installed = {file.parts[0] for file in files("rpcfut") or ()}
    except PackageNotFoundError:  # run from the checkout alone
        return
    assert "transport" not in installed


def test_setup_cfg_lists_the_packages_that_exist() -> None:
    """A package that is not listed is missing from the wheel."""
    config = configparser.ConfigParser()
    config.read(ROOT / "setup.cfg")
    listed = config["options"]["packages"].split()
    assert listed == sorted(
        _dotted(path) for path in PRODUCT if path.name == "__init__.py"
    )


@pytest.mark.parametrize("name", _public_packages())
def test_public_names_are_listed(name: str) -> None:
    """`__all__` names what a public module shows, no more and no less, in order."""
    module = importlib.import_module(name)
    shown = {
        key
        for key, value in vars(module).items()
        if not key.startswith("_")
        and not (isinstance(value, ModuleType) and value.__name__ == f"{name}.{key}")
        and key != "annotations"
    }
    listed = list(module.__all__)
    assert set(listed) - {"__version__"} == shown
    assert listed == sorted(set(listed), key=listed.index), "a name is listed twice"


def test_the_shim_shows_the_whole_transport() -> None:
    """`rpcfut.transport` and `rpcfut_transport` are the same names and objects."""
    shim = importlib.import_module("rpcfut.transport")
    real = importlib.import_module("rpcfut_transport")
    assert set(shim.__all__) == set(real.__all__)
    assert all(getattr(shim, name) is getattr(real, name) for name in real.__all__)
