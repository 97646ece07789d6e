"""Types of users, for tests of what is and what is not registered."""

from __future__ import annotations

import enum
import functools
from collections import namedtuple
from dataclasses import dataclass, field
from typing import Any, Generic, NamedTuple, Self, TypeVar

import attrs
import torch


class Opaque:
    """Nobody knows what it holds."""

    def __init__(self, **attributes: Any) -> None:
        self.__dict__.update(attributes)


@dataclass
class Layer:
    weight: Any = None
    cache: Any = None


@dataclass(frozen=True, slots=True)
class FrozenLayer:
    weight: Any
    _scale: float = 1.0


@dataclass
class Derived:
    first: int
    total: int = field(init=False)

    def __post_init__(self) -> None:
        self.total = self.first + 1

    @functools.cached_property
    def twice(self) -> int:
        return 2 * self.first


@attrs.define
class AttrsPair:
    left: Any
    right: Any


class Point(NamedTuple):
    x: Any
    y: Any


OldPoint = namedtuple("OldPoint", ["x", "y"])  # noqa: PYI024 - this is the old way


class Colour(enum.Enum):
    RED = 1
    BLUE = (1, 2)


class Rights(enum.Flag):
    READ = 1
    WRITE = 2


class HidingList(list):  # type: ignore[type-arg]
    """A container that may hide a tensor in an attribute."""


class HidingPoint(Point):
    """Not what NamedTuple made: it has a __dict__."""


@dataclass
class HidingRecord(dict):  # type: ignore[type-arg]
    """A dataclass that is a container too: its fields are not all it holds."""

    name: str = ""

    __hash__ = object.__hash__


class OddError(Exception):
    """Only exists in the tests."""


class InnerTensor(torch.Tensor):
    """A subclass that tells what it is made of."""

    inner: torch.Tensor

    @staticmethod
    def __new__(cls, inner: torch.Tensor) -> Self:
        return torch.Tensor._make_wrapper_subclass(  # type: ignore[attr-defined,no-any-return]
            cls, inner.shape, dtype=inner.dtype
        )

    def __init__(self, inner: torch.Tensor) -> None:
        self.inner = inner

    @classmethod
    def __torch_dispatch__(cls, func: Any, kinds: Any, args: Any, kwargs: Any) -> Any:
        raise NotImplementedError

    def __tensor_flatten__(self) -> tuple[list[str], None]:
        return ["inner"], None


class SilentTensor(torch.Tensor):
    """A subclass that tells nothing."""


class Grade(enum.StrEnum):
    """Its members are texts, too."""

    GOOD = "good"
    FINE = "good"
    BAD = "bad"


class Level(enum.IntEnum):
    LOW = 1
    HIGH = 2


class Corner(tuple, enum.Enum):  # type: ignore[type-arg]  # noqa: SLOT001
    """Its members are tuples, too."""

    ORIGIN = (0, 0)


class Modes(enum.IntFlag):
    A = 1
    B = 4


T = TypeVar("T")


@dataclass
class Box(Generic[T]):
    """Made as ``Box[int](1)``, it remembers the int."""

    item: T


class Hinted:
    __slots__ = ("hint",)


@dataclass(slots=True)
class SlotRecord(Hinted):
    """Has a slot that is no field."""

    item: Any = None


@dataclass
class RecordError(Exception):
    """An exception is more than its fields."""

    code: int = 0


@attrs.define
class Lazy:
    """Keeps what it computed in a slot."""

    item: Any

    @functools.cached_property
    def twice(self) -> Any:
        return [self.item, self.item]
