"""Hold a value for each of the three components of a molecule: atoms, charges, bonds."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

T = TypeVar("T")
R = TypeVar("R")

NAMES = ("atoms", "charges", "bonds")


@dataclass(frozen=True)
class Components(Generic[T]):
    """Values of atoms, charges and bonds, in this order, such as classes, distributions, weights or names."""

    atoms: T
    charges: T
    bonds: T

    def __iter__(self) -> Iterator[T]:
        return iter((self.atoms, self.charges, self.bonds))

    def each(self, function: Callable[..., R], *others: "Components[Any]") -> "Components[R]":
        """Apply a function to the values of every component."""
        return Components(*(function(*values) for values in zip(self, *others, strict=True)))
