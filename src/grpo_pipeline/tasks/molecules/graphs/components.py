"""Hold one value for each of the three components of a molecule: atoms, charges, bonds."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

T = TypeVar("T")
R = TypeVar("R")

NAMES = ("atoms", "charges", "bonds")


@dataclass(frozen=True)
class Components(Generic[T]):
    """A value for the atoms, one for the charges, one for the bonds, in this order: classes, distributions, weights, names."""

    atoms: T
    charges: T
    bonds: T

    def __iter__(self) -> Iterator[T]:
        return iter((self.atoms, self.charges, self.bonds))

    def each(self, function: Callable[..., R], *others: "Components[Any]") -> "Components[R]":
        """Return function(value, value of each other) for every component."""
        return Components(*(function(*values) for values in zip(self, *others, strict=True)))
