"""Define the classes of atoms, formal charges and bonds of a set of molecule graphs."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

BondForm = Literal["kekulised", "aromatic"]
BONDS = ("none", "single", "double", "triple")
# The bond order of each class. An aromatic bond lies between 1 and 2, which no integer tensor may hold.
BOND_ORDERS = (0.0, 1.0, 2.0, 3.0, 1.5)


@dataclass(frozen=True)
class Vocabulary:
    """Meaning of each class index; class 0 of the charges is always neutral, class 0 of the bonds is always "none".

    Attributes:
        atoms: element symbols by atomic number, such as "C". "[nH]" is an aromatic atom with a hydrogen, which the aromatic form
            cannot infer.
        charges: formal charges, 0 first, then ascending.
        bonds: ``BONDS``, and "aromatic" in the aromatic form.
        max_atoms: heavy atoms of the largest molecule.

    Raises:
        ValueError: if a class is repeated, or the first charge or bond differs from the above.
    """

    atoms: tuple[str, ...]
    charges: tuple[int, ...]
    bonds: tuple[str, ...]
    max_atoms: int

    def __post_init__(self) -> None:
        for name in ("atoms", "charges", "bonds"):
            classes = getattr(self, name)
            if not classes or len(set(classes)) != len(classes):
                raise ValueError(
                    f"{name} must be classes without repetition, got {list(classes)}; name each one once"
                )
        wrong = [
            symbol
            for symbol in self.atoms
            if not re.fullmatch(r"[A-Z][a-z]?|\[[a-z]{1,2}H\]", symbol)
        ]
        if wrong:
            raise ValueError(
                f"atoms must be element symbols or such as '[nH]', got {wrong}; correct them"
            )
        if self.charges[0] != 0:
            raise ValueError(
                f"charges must begin with 0, got {list(self.charges)}; padding is class 0, and neutral"
            )
        if self.bonds not in (BONDS, (*BONDS, "aromatic")):
            raise ValueError(
                f"bonds must be {list(BONDS)}, with or without 'aromatic', got {list(self.bonds)}; take them"
            )
        if self.max_atoms < 1:
            raise ValueError(
                f"max_atoms must be at least 1, got {self.max_atoms}; give the size of the largest molecule"
            )

    @property
    def form(self) -> BondForm:
        """Find the form of rings with alternating bonds: aromatic or kekulised."""
        return "aromatic" if "aromatic" in self.bonds else "kekulised"

    def to_json(self) -> dict[str, Any]:
        """Return the fields as JSON-able values."""
        lists = {name: list(getattr(self, name)) for name in ("atoms", "charges", "bonds")}
        return lists | {"max_atoms": self.max_atoms}


def read_vocabulary(values: Mapping[str, Any]) -> Vocabulary:
    """Read the vocabulary that ``to_json`` wrote."""
    return Vocabulary(
        tuple(values["atoms"]),
        tuple(values["charges"]),
        tuple(values["bonds"]),
        int(values["max_atoms"]),
    )


def bonds_of(form: BondForm) -> tuple[str, ...]:
    """List the classes of bonds of a form."""
    return (*BONDS, "aromatic") if form == "aromatic" else BONDS
